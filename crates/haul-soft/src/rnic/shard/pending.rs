//! Listening sockets, and accepted connections that have no queue pair yet.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use haul_io::stream::Acceptor;
use haul_iwarp::Event;

use crate::rnic::buffers::Buffers;
use crate::rnic::events::CmEvents;
use crate::rnic::link::RnicLink;

/// A connection that came to a listener and has no queue pair yet.
#[derive(Debug)]
pub(in crate::rnic) struct PendingConnection {
    pub(in crate::rnic) link: Box<dyn RnicLink>,
    pub(in crate::rnic) channel: Arc<CmEvents>,
    pub(in crate::rnic) peer: SocketAddr,
    pub(in crate::rnic) listener: u32,
    /// How many came to its listener before it.
    pub(in crate::rnic) arrival: u64,
    /// It has sent its request, and waits for an answer.
    pub(in crate::rnic) has_asked: bool,
    /// None of it is used: nothing can be placed before there is a queue pair.
    pub(in crate::rnic) buffers: Buffers,
}

impl PendingConnection {
    /// Takes the events of the core; true when the connection is over.
    pub(in crate::rnic) fn report(&mut self) -> bool {
        let mut over = false;
        while let Some(event) = self.link.core_mut().poll_event() {
            match event {
                Event::Request => self.has_asked = true,
                Event::ShutdownSend => self.link.end(),
                Event::Disconnect => over = true,
                Event::Established | Event::Completion(_) | Event::Error(_) => {}
            }
        }
        over
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(in crate::rnic) enum ListeningSocket {
    Tcp(Acceptor),
    Udt(Box<crate::udt::Acceptor>),
}

impl ListeningSocket {
    pub(in crate::rnic) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(acceptor) => acceptor.local_addr(),
            Self::Udt(acceptor) => Ok(acceptor.local_addr()),
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(acceptor) => acceptor.as_fd(),
            Self::Udt(acceptor) => acceptor.as_fd(),
        }
    }
}
