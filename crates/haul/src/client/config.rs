//! Configuration of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::Kind;
use crate::dial::Dialer;

/// Configuration of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name or address of the server.
    pub host: String,
    /// Its port, TCP and UDP.
    pub port: u16,
    /// Kind of channel.
    pub channel: Kind,
    /// Parallel streams.
    pub streams: u16,
    /// Declared rate, bits per second.
    pub rate_bps: Option<u64>,
    /// Congestion control: of [`haul_cc::Algorithm::NAMED`] for UDT, of the kernel's for TCP.
    pub congestion: Option<String>,
    /// Timeout of connecting and of the handshake.
    pub connect_timeout: Duration,
    /// If the server sends nothing for this long, the connection is lost.
    pub dead_after: Duration,
    /// How long to reconnect after the last byte arrived; for ever if `None`.
    pub give_up_after: Option<Duration>,
    /// Makes the TCP connections in place of this host's kernel.
    pub dialer: Option<Arc<dyn Dialer>>,
}
