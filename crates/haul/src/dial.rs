//! Connecting to servers: by this host's kernel, or by a [`Dialer`].

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::fault::{Code, Fault, plain};

/// Makes TCP connections in place of this host's kernel: through gateways.
pub trait Dialer: fmt::Debug + Send + Sync {
    /// Connects to a server. Blocks no longer than `timeout`. Returns a blocking stream.
    ///
    /// # Errors
    /// Why there is no connection, with what to do.
    fn connect(&self, host: &str, port: u16, timeout: Duration) -> Result<TcpStream, Fault>;
}

/// A server that has an address.
#[derive(Debug, Clone)]
pub(crate) enum Server {
    /// Reached by the kernel.
    At(SocketAddr),
    /// Reached by a dialer, which resolves the name as well.
    Beyond {
        dialer: Arc<dyn Dialer>,
        host: String,
        port: u16,
    },
}

impl Server {
    /// Opens a further connection to it.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<TcpStream, Fault> {
        match self {
            Self::At(address) => TcpStream::connect_timeout(address, timeout).map_err(|error| {
                let why = plain(&error);
                let text = format!("cannot open a data connection to {address}: {why}");
                Fault::new(Code::Unreachable, text)
            }),
            Self::Beyond { dialer, host, port } => dialer.connect(host, *port, timeout),
        }
    }

    /// Returns its address, if this host's kernel reaches it.
    pub(crate) const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::At(address) => Some(*address),
            Self::Beyond { .. } => None,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Beyond { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Beyond { host, port, .. } => write!(f, "{host}:{port}"),
        }
    }
}

/// Returns what to do if nothing listens at `address`; `server` is the command that would.
#[must_use]
pub fn refused_hint(server: &str, address: IpAddr) -> String {
    if address.is_loopback() {
        format!("start '{server}' there, or give its port with --port")
    } else {
        format!(
            "start '{server} --listen ADDR' there, or give its port with --port; without --listen it \
             serves its own host only"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_hosts_are_told_how_to_listen_for_them() {
        let hint = |address: &str| refused_hint("haul serve DIR", address.parse().unwrap());
        assert!(hint("192.0.2.1").contains("--listen ADDR"));
        // A client with keys is not to be served without them.
        assert!(!hint("192.0.2.1").contains("insecure"));
        assert!(!hint("127.0.0.1").contains("--listen"));
        assert!(!hint("::1").contains("--listen"));
    }
}
