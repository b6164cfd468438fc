//! `haul agent --stdio`: started by ssh, for a client at the other end of the pipe.

use std::process::ExitCode;
use std::sync::Arc;

use haul::fault::{Code, Fault};
use haul::ports::Ports;
use haul::printable;
use haul::ssh::agent;
use signal_hook::consts::SIGHUP;

use super::fail;
use crate::config::Presets;

/// Serves until the client needs the agent no more.
pub(crate) fn run(presets: &Presets) -> ExitCode {
    // The end of a login is not the end of its transfer. It fails only for signals that cannot be
    // caught.
    let _ = signal_hook::flag::register(SIGHUP, Arc::default());
    let served = environment(presets)
        .and_then(|environment| agent::serve(std::io::stdin(), std::io::stdout(), &environment));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn environment(presets: &Presets) -> Result<agent::Environment, Fault> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let text = |value: std::ffi::OsString| printable(value.as_encoded_bytes());
    let named = |name: &str, range: String| {
        let ports: Result<Ports, String> = range.parse();
        ports.map_err(|why| Fault::new(Code::Usage, format!("{name} '{range}': {why}")))
    };
    let set = variable("HAUL_PORT_RANGE").map(|range| named("HAUL_PORT_RANGE", text(range)));
    let preset = || {
        presets
            .value("ports")
            .map(|range| named("'ports' of the configuration", range.to_owned()))
    };
    let ports = set.or_else(preset);
    Ok(agent::Environment {
        ports: ports.transpose()?,
        connection: variable("SSH_CONNECTION").map(text),
    })
}
