//! `haul agent --stdio`: started by ssh, for a client at the other end of the pipe.

use std::process::ExitCode;
use std::sync::Arc;

use haul::fault::{Code, Fault};
use haul::ports::Ports;
use haul::printable;
use haul::ssh::agent;
use signal_hook::consts::SIGHUP;

use super::fail;

/// Serves until the client needs the agent no more.
pub(crate) fn run() -> ExitCode {
    // The end of a login is not the end of its transfer. It fails only for signals that cannot be
    // caught.
    let _ = signal_hook::flag::register(SIGHUP, Arc::default());
    let served = environment()
        .and_then(|environment| agent::serve(std::io::stdin(), std::io::stdout(), &environment));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn environment() -> Result<agent::Environment, Fault> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let text = |value: std::ffi::OsString| printable(value.as_encoded_bytes());
    let ports = variable("HAUL_PORT_RANGE").map(text).map(|range| {
        let ports: Result<Ports, String> = range.parse();
        ports.map_err(|why| Fault::new(Code::Usage, format!("HAUL_PORT_RANGE '{range}': {why}")))
    });
    Ok(agent::Environment {
        ports: ports.transpose()?,
        connection: variable("SSH_CONNECTION").map(text),
    })
}
