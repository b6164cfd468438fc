//! How programs' connections come in.
//!
//! What flows through: a door's thread accepts connections, speaks with each client what the door's
//! kind says, and hands it on with its destination. It reads exactly the handshake: what a client
//! sends behind it stays in the socket.
//!
//! Map: `answer` what a client is told · `handshake` what it says: `socks`, `connect` · `porter`
//! the thread.

mod answer;
mod connect;
mod handshake;
mod porter;
mod socks;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use haul_io::poller::{Poller, Waker};
use haul_io::stream::{Acceptor, Stream};
use haul_xsp::wire::{Endpoint, Metadata};

use crate::config::{self, DoorKind};
pub(crate) use answer::{meaning, status_of};
pub(crate) use porter::CLIENT_MEMORY;
use porter::{Limits, Porter};

#[cfg(fuzzing)]
pub(crate) use {
    connect::Connect,
    handshake::{Handshake, listen},
    socks::Socks,
};

/// A connection that wants to go somewhere. Nothing behind what its door speaks has been read from
/// it.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The connection, which never waits, and is reset when it is dropped.
    pub(crate) stream: Stream,
    /// Who came.
    pub(crate) client: SocketAddr,
    /// Where to.
    pub(crate) to: Endpoint,
    /// How it is answered.
    pub(crate) answer: Answer,
    /// What the client says about it.
    pub(crate) metadata: Metadata,
}

/// How a client learns what became of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// By its being open, or reset.
    None,
    /// By a reply of SOCKS 5 (RFC 1928 §6).
    Socks5,
    /// By a status of HTTP (RFC 9110 §15).
    Http,
}

/// A door that is open, until it is dropped.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    takes_tproxy: bool,
    is_closing: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// A door that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// It has nowhere to lead to.
    #[error("the door at {0} leads nowhere: it needs `to`")]
    NoDestination(SocketAddr),
    /// The system does not let it.
    #[error("cannot open the door at {address}: {source}")]
    System {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

impl Door {
    /// Listens, and hands on each connection that says where it wants to go. `deliver` is called on
    /// the door's thread and must not wait; so is `report`, each time that the system has no means
    /// for a connection, with what became of it.
    ///
    /// # Errors
    /// No destination where there must be one; the system's: the address is taken, or not of this
    /// machine, or not allowed.
    pub(crate) fn open(
        config: &config::Door,
        deliver: impl Fn(Arrival) + Send + Sync + 'static,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        Self::open_with(config, Limits::default(), deliver, report)
    }

    fn open_with(
        config: &config::Door,
        limits: Limits,
        deliver: impl Fn(Arrival) + Send + Sync + 'static,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let listen = config.listen;
        let greeting = match (config.kind, &config.to) {
            (DoorKind::Transparent, _) => Greeting::Diverted,
            (DoorKind::Socks5, _) => Greeting::Socks5,
            (DoorKind::Http, _) => Greeting::Http,
            (DoorKind::Forward | DoorKind::Rdma, Some(to)) => {
                Greeting::Known(to.endpoint().clone())
            }
            (DoorKind::Forward | DoorKind::Rdma, None) => {
                return Err(OpenError::NoDestination(listen));
            }
        };
        let open = || {
            let (acceptor, takes_tproxy) = bind(config)?;
            let address = acceptor.local_addr()?;
            let poller = Poller::new()?;
            let (waker, is_closing) = (poller.waker(), Arc::new(AtomicBool::new(false)));
            let closing = Arc::clone(&is_closing);
            let porter = Porter::new(acceptor, config.clone(), greeting, limits, poller, closing)?;
            let thread = std::thread::Builder::new()
                .name("haul-door".to_owned())
                .spawn(move || porter.run(&deliver, &report))?;
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

    /// Whether TPROXY can hand connections to it; a transparent door without the right for that has
    /// only REDIRECT's.
    pub(crate) const fn takes_tproxy(&self) -> bool {
        self.takes_tproxy
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Where it panicked, that was told.
            let _ = thread.join();
        }
    }
}

/// How a door learns where a connection wants to go.
#[derive(Debug, Clone)]
enum Greeting {
    /// All go there.
    Known(Endpoint),
    /// Where the client connected to, which the kernel knows.
    Diverted,
    /// The client says it.
    Socks5,
    Http,
}

/// Connections that come in are reset when they are dropped, or this process ends, until they have
/// ended in order.
fn bind(config: &config::Door) -> io::Result<(Acceptor, bool)> {
    let (acceptor, takes_tproxy) = match config.kind {
        DoorKind::Transparent => bind_transparent(config.listen)?,
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
mod tests;
