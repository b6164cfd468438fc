//! Reaching a server: the control connection, and the channel beside it.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;

use super::config::Config;
use crate::channel::{Opening, Setup};
use crate::dial::{Server, refused_hint};
use crate::fault::{Code, Fault, plain};
use crate::printable;

/// Connects to the server and begins to open the channel at the same time.
pub(super) fn connect(
    config: &Config,
    setup: &Setup,
) -> Result<(TcpStream, Server, Opening), Fault> {
    connect_both(config, |server| {
        Opening::connect(setup, server, config.connect_timeout)
    })
}

/// Connects to the server; `both` begins what goes beside the control connection.
pub(super) fn connect_both<T>(
    config: &Config,
    both: impl Fn(&Server) -> Result<T, Fault>,
) -> Result<(TcpStream, Server, T), Fault> {
    if let Some(dialer) = &config.dialer {
        let server = Server::Beyond {
            dialer: Arc::clone(dialer),
            host: config.host.clone(),
            port: config.port,
        };
        let opening = both(&server);
        return Ok((server.connect(config.connect_timeout)?, server, opening?));
    }
    let shown = printable(config.host.as_bytes());
    let port = config.port;
    let addresses = (config.host.as_str(), port)
        .to_socket_addrs()
        .map_err(|_| {
            Fault::new(
                Code::Unreachable,
                format!("cannot find a host called '{shown}'"),
            )
            .hint("check the name, or give its address")
        })?;
    let mut last = None;
    for address in addresses {
        let server = Server::At(address);
        // If the control connection fails, the user sees that failure.
        let opening = both(&server);
        match haul_io::tcp::connect_narrow(&address, config.connect_timeout) {
            Ok(stream) => return Ok((stream, server, opening?)),
            Err(error) => last = Some((address, error)),
        }
    }
    let (address, error) =
        last.ok_or_else(|| Fault::new(Code::Unreachable, format!("'{shown}' has no address")))?;
    let fault = |text: String| Err(Fault::new(Code::Unreachable, text));
    match error.kind() {
        io::ErrorKind::ConnectionRefused => fault(format!("nothing listens at {address}"))
            .map_err(|fault| fault.hint(refused_hint("haul serve DIR", address.ip()))),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            let seconds = config.connect_timeout.as_secs_f64();
            fault(format!("{address} did not answer within {seconds} s"))
                .map_err(|fault| fault.hint("check the address and any firewall in between"))
        }
        _ => fault(format!("cannot connect to {address}: {}", plain(&error)))
            .map_err(|fault| fault.hint("check the address and the route to it")),
    }
}
