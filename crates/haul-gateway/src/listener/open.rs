//! Opens a listener: its socket, and the thread that serves its clients.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use haul_io::poller::{Poller, Waker};
use haul_io::stream::Acceptor;

use super::acceptor::{ClientAcceptor, Limits};
use super::arrival::{Arrival, Greeting};
use crate::config::{self, ListenerKind};

/// An open listener. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    takes_tproxy: bool,
    is_closing: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// States why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// It has no destination.
    #[error("the listener at {0} has no destination; set `to`")]
    NoDestination(SocketAddr),
    /// The system refuses.
    #[error("cannot open the listener at {address}: {source}")]
    System {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

impl Listener {
    /// Opens a listener, and delivers each connection with its destination. `deliver` runs on the
    /// listener's thread and must not block. The same holds for `report`, which is called each time
    /// the system lacks resources for a connection.
    ///
    /// # Errors
    /// The destination is missing; or the address is in use, not this machine's, or not permitted.
    pub(crate) fn open(
        config: &config::Listener,
        deliver: impl Fn(Arrival) + Send + Sync + 'static,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        Self::open_with(config, Limits::default(), deliver, report)
    }

    fn open_with(
        config: &config::Listener,
        limits: Limits,
        deliver: impl Fn(Arrival) + Send + Sync + 'static,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let listen = config.listen;
        let greeting = match (config.kind, &config.to) {
            (ListenerKind::Transparent, _) => Greeting::Diverted,
            (ListenerKind::Socks5, _) => Greeting::Socks5,
            (ListenerKind::Http, _) => Greeting::Http,
            (ListenerKind::Forward | ListenerKind::Rdma, Some(to)) => {
                Greeting::Known(to.endpoint().clone())
            }
            (ListenerKind::Forward | ListenerKind::Rdma, None) => {
                return Err(OpenError::NoDestination(listen));
            }
        };
        let open = || {
            let (acceptor, takes_tproxy) = bind(config)?;
            let address = acceptor.local_addr()?;
            let poller = Poller::new()?;
            let (waker, is_closing) = (poller.waker(), Arc::new(AtomicBool::new(false)));
            let closing = Arc::clone(&is_closing);
            let clients =
                ClientAcceptor::new(acceptor, config.clone(), greeting, limits, poller, closing)?;
            let thread = std::thread::Builder::new()
                .name("haul-listener".to_owned())
                .spawn(move || clients.run(&deliver, &report))?;
            Ok(Self {
                address,
                takes_tproxy,
                is_closing,
                waker,
                thread: Some(thread),
            })
        };
        open().map_err(|source| OpenError::System {
            address: listen,
            source,
        })
    }

    /// Returns the listening address.
    pub(crate) const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether TPROXY works with it. Without CAP_NET_ADMIN a transparent listener takes only what
    /// REDIRECT diverts.
    pub(crate) const fn takes_tproxy(&self) -> bool {
        self.takes_tproxy
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

/// Accepted connections are reset when they are dropped or this process ends, until they have ended
/// in order.
fn bind(config: &config::Listener) -> io::Result<(Acceptor, bool)> {
    let (acceptor, takes_tproxy) = match config.kind {
        ListenerKind::Transparent => bind_transparent(config.listen)?,
        _ => (Acceptor::bind(config.listen)?, false),
    };
    acceptor.reset_on_drop()?;
    Ok((acceptor, takes_tproxy))
}

fn bind_transparent(listen: SocketAddr) -> io::Result<(Acceptor, bool)> {
    match Acceptor::bind_transparent(listen) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok((Acceptor::bind(listen)?, false))
        }
        acceptor => Ok((acceptor?, true)),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
