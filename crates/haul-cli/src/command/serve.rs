//! `haul serve`.

use std::process::ExitCode;

use haul::fault::{Code, Fault};
use haul::server::{Config, EXPOSURE, Log, Server};

use super::fail;
use super::listen::Listen;
use crate::args::Serve;
use crate::output::tell;

/// Serves until it is ended.
pub(crate) fn run(args: Serve) -> ExitCode {
    match bind(&args).and_then(Server::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn bind(args: &Serve) -> Result<Server, Fault> {
    let listen = Listen::parse(&args.listen, args.port, args.allow_insecure, EXPOSURE)?;
    let server = listen.bind(|addresses| {
        let config = Config {
            root: args.dir.clone(),
            listen: addresses.to_vec(),
            read_only: args.read_only,
            sessions_max: args.max_sessions,
        };
        Server::bind(&config, log(args.quiet))
    })?;
    let addresses = server
        .addresses()
        .map_err(|error| Fault::new(Code::Other, format!("cannot tell the addresses: {error}")))?;
    let dir = haul::printable(args.dir.as_os_str().as_encoded_bytes());
    tell(&format!("serving '{dir}' on {}", listen.shown(&addresses)));
    Ok(server)
}

fn log(quiet: bool) -> Log {
    if quiet {
        Box::new(|_| {})
    } else {
        Box::new(tell)
    }
}
