//! Configuration of a client.

use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use haul_control::trust::ClientConfig;

use crate::channel::{ChannelKind, udt};
use crate::dial::Dialer;
use crate::fault::{Code, Fault};
use crate::limit::Limit;
use crate::paths::Paths;

/// The congestion control that measures the path.
const MODEL: &str = "model";

/// Configuration of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name or address of the server.
    pub host: String,
    /// Its port, TCP and UDP.
    pub port: u16,
    /// Kind of channel.
    pub channel: ChannelKind,
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
    /// Identity of this end, and which servers it trusts.
    pub control: ClientConfig,
    /// Data channels are encrypted and authenticated. A server may refuse those that are not.
    pub sealed: bool,
    /// Makes the TCP connections in place of this host's kernel.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// Finds the server, before the first attempt and after failures.
    pub access: Option<Arc<dyn Access>>,
    /// The kind of channel is a default: another may replace it.
    pub may_fall_back: bool,
    /// Remembers the rates of paths; without it, every transfer finds its rate anew.
    pub paths: Option<Paths>,
    /// The rate of the content, which may change during a transfer.
    pub limit: Option<Limit>,
}

/// Finds a server whose address, port and key are not known beforehand.
pub trait Access: std::fmt::Debug + Send + Sync {
    /// Completes the configuration before the first attempt.
    ///
    /// # Errors
    /// Why the server cannot be reached, with what to do.
    fn prepare(&self, config: &mut Config) -> Result<(), Fault>;

    /// Changes the configuration after a failed attempt; returns whether the next one is to follow
    /// at once.
    ///
    /// # Errors
    /// If no further attempt can succeed.
    fn recover(&self, config: &mut Config, fault: &Fault) -> Result<bool, Fault>;
}

/// Takes lines for people.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// A server whose address and key are known, and that perhaps no UDP reaches: the data then goes by
/// TCP, with a line for `say`.
pub struct Direct {
    say: Say,
    is_receiver: bool,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Direct")
    }
}

impl Direct {
    /// Makes the access; `say` gets the line for people.
    #[must_use]
    pub fn new(say: Say) -> Self {
        Self {
            say,
            is_receiver: false,
        }
    }

    /// Makes the access to a `haul receive`, whose keys end with its process.
    #[must_use]
    pub fn to_receiver(say: Say) -> Self {
        Self {
            say,
            is_receiver: true,
        }
    }
}

/// Returns whether the host is there, and nothing listens on the port.
fn is_refused(config: &Config) -> bool {
    let found = (config.host.as_str(), config.port).to_socket_addrs();
    let connected = found
        .and_then(|mut found| found.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
        .and_then(|address| haul_io::tcp::connect_narrow(&address, config.connect_timeout));
    matches!(connected, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

impl Access for Direct {
    fn prepare(&self, _: &mut Config) -> Result<(), Fault> {
        Ok(())
    }

    fn recover(&self, config: &mut Config, fault: &Fault) -> Result<bool, Fault> {
        if self.is_receiver && is_refused(config) {
            let text = format!("the haul receive at port {} has ended", config.port);
            return Err(Fault::new(Code::PeerGone, text)
                .hint("start haul receive there again; the same files resume"));
        }
        Ok(config.fall_back(fault, &self.say))
    }
}

impl Config {
    /// Returns whether its channels find a rate that is worth remembering.
    pub(crate) fn keeps_rates(&self) -> bool {
        let control = self.congestion.as_deref();
        self.channel == ChannelKind::Udt
            && self.rate_bps.is_none()
            && control.is_none_or(|name| name == MODEL)
    }

    /// Replaces the UDT channel if it is a default and `fault` shows that no UDP passes; returns
    /// whether it did.
    pub(crate) fn fall_back(&mut self, fault: &Fault, say: &Say) -> bool {
        let is_blocked =
            self.may_fall_back && self.channel == ChannelKind::Udt && udt::is_unopened(fault);
        if is_blocked {
            say(&format!("{fault}; the data goes by TCP"));
            self.channel = ChannelKind::Tcp;
            self.congestion = None;
        }
        is_blocked
    }
}
