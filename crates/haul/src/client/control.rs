//! A control connection without a data channel.

use std::net::TcpStream;
use std::time::Instant;

use haul_control::SOFTWARE;
use haul_control::connection::Connection;
use haul_control::frame::{Greeting, TaskId};
use haul_control::stream::Stream;

use super::config::Config;
use super::connect::connect_both;
use crate::fault::{Code, Fault};

/// Connects to a service of the server, and sends the greeting and the messages in one flight.
///
/// # Errors
/// The server cannot be reached, or one end refuses the other.
pub(crate) fn open_control(
    config: &Config,
    service: &str,
    messages: &[Vec<u8>],
) -> Result<Connection, Fault> {
    let (stream, server, ()) = connect_both(config, |_| Ok(()))?;
    let peer = server.to_string();
    let deadline = Instant::now() + config.connect_timeout;
    let handshake = |stream: TcpStream| {
        let stream = Stream::tcp(stream).map_err(|error| Fault::connection(&error))?;
        Connection::client(stream, &config.control, &peer, deadline)
    };
    let mut connection = match handshake(stream) {
        // Damage may look like a refusal, but not twice.
        Err(failed) if !failed.is_certain => handshake(server.connect(config.connect_timeout)?)?,
        result => result?,
    };
    let greeting = Greeting {
        software: SOFTWARE.to_owned(),
        service: service.to_owned(),
        features: 0,
        dead_after_ms: u32::try_from(config.dead_after.as_millis()).unwrap_or(u32::MAX),
        task: transfer_id()?,
    };
    connection.greet(&greeting, messages)?;
    connection.greeting()?;
    Ok(connection)
}

/// Returns a random number for a transfer.
pub(super) fn transfer_id() -> Result<TaskId, Fault> {
    haul_io::random::bytes()
        .map_err(|error| Fault::new(Code::Other, format!("cannot read random bytes: {error}")))
}
