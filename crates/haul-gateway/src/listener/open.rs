//! Opening a listener: its socket, and the thread that serves its clients.

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

/// A listener that is open, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    takes_tproxy: bool,
    is_closing: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// A listener that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// It has nowhere to lead to.
    #[error("the listener at {0} leads nowhere: it needs `to`")]
    NoDestination(SocketAddr),
    /// The system does not let it.
    #[error("cannot open the listener at {address}: {source}")]
    System {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

impl Listener {
    /// Listens, and hands on each connection that says where it wants to go. `deliver` is called on
    /// the listener's thread and must not wait; so is `report`, each time that the system has no means
    /// for a connection, with what became of it.
    ///
    /// # Errors
    /// No destination where there must be one; the system's: the address is taken, or not of this
    /// machine, or not allowed.
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

    /// Where it listens.
    pub(crate) const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether TPROXY can hand connections to it; a transparent listener without the right for that has
    /// only REDIRECT's.
    pub(crate) const fn takes_tproxy(&self) -> bool {
        self.takes_tproxy
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Where it panicked, that was told.
            let _ = thread.join();
        }
    }
}

/// Connections that come in are reset when they are dropped, or this process ends, until they have
/// ended in order.
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
