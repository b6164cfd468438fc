//! `haul serve`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use haul::fault::{Code, Fault};
use haul::server::{Config, Log, Server, exposure};

use super::fail;
use crate::args::Serve;
use crate::operand::listen_address;
use crate::output::tell;

/// Serves until it is ended.
pub(crate) fn run(args: Serve) -> ExitCode {
    match bind(&args).and_then(Server::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn bind(args: &Serve) -> Result<Server, Fault> {
    let listen = args
        .listen
        .iter()
        .map(|text| listen_address(text, args.port));
    let mut listen = listen.collect::<Result<Vec<SocketAddr>, _>>()?;
    for address in &listen {
        let Some(why) = exposure(address.ip()) else {
            continue;
        };
        if !args.allow_insecure {
            return Err(
                Fault::new(Code::Usage, format!("will not listen on {address}: {why}"))
                    .hint("add --allow-insecure where you trust everybody who reaches it"),
            );
        }
        tell(&format!("warning: listening on {address}: {why}"));
    }
    let by_default = listen.is_empty();
    if by_default {
        listen.push((Ipv4Addr::LOCALHOST, args.port).into());
        listen.push((Ipv6Addr::LOCALHOST, args.port).into());
    }
    let mut config = Config {
        root: args.dir.clone(),
        listen,
        read_only: args.read_only,
        sessions_max: args.max_sessions,
    };
    let server = match Server::bind(&config, log(args.quiet)) {
        // A machine without IPv6 has no ::1.
        Err(_) if by_default => {
            config.listen.pop();
            Server::bind(&config, log(args.quiet))?
        }
        result => result?,
    };
    let addresses = server
        .addresses()
        .map_err(|error| Fault::new(Code::Other, format!("cannot tell the addresses: {error}")))?;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let dir = haul::printable(args.dir.as_os_str().as_encoded_bytes());
    tell(&format!("serving '{dir}' on {}", addresses.join(" and ")));
    Ok(server)
}

fn log(quiet: bool) -> Log {
    if quiet {
        Box::new(|_| {})
    } else {
        Box::new(tell)
    }
}
