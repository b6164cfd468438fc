//! What a client is told.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::Kind;
use crate::dial::Dialer;

/// How a client reaches its server.
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
    /// How long connecting and the handshake may take.
    pub connect_timeout: Duration,
    /// After this long without a word the server is taken for gone.
    pub dead_after: Duration,
    /// How long to try again after the last byte arrived; without end where `None`.
    pub give_up_after: Option<Duration>,
    /// Who makes the TCP connections, where it is not this host's kernel.
    pub dialer: Option<Arc<dyn Dialer>>,
}
