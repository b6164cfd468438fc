//! Listening for streams.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use haul_io::notify;
use haul_io::poller::{Interest, Poller};
use haul_seal::Side;
use haul_seal::handshake::Transport;

use super::engine::Securing;
use super::half::Half;
use super::options::{Options, Ready};
use super::user::Stream;
use crate::udt::plain;

/// Takes connections of UDT peers as streams, without waiting: those of this process, or
/// [`Served`](super::Served) ones.
#[derive(Debug)]
pub struct Listener<H = Stream> {
    listener: plain::Listener,
    options: Options,
    /// Of protected streams, those that have no keys yet, the oldest first.
    opening: VecDeque<H>,
    poller: Poller,
}

/// Streams that have no keys yet. Beyond it the oldest is closed.
const OPENING_MAX: usize = 64;

#[expect(private_bounds, reason = "there are two kinds of streams")]
impl<H: Half> Listener<H> {
    /// Listens at `local`.
    ///
    /// # Errors
    /// Of `bind(2)`, and where there is no file descriptor left.
    pub fn bind(local: SocketAddr, options: Options) -> io::Result<Self> {
        let listener = plain::Listener::bind(local, options.first())?;
        let poller = Poller::new()?;
        poller.add(&listener, 0, Interest::READ)?;
        Ok(Self {
            listener,
            options,
            opening: VecDeque::new(),
            poller,
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next connection, if one is there. Call it when the listener is readable: handshakes go
    /// on in it.
    ///
    /// # Errors
    /// Those of the socket, and of memory.
    pub fn accept(&mut self) -> io::Result<Option<H>> {
        while let Some((link, initial)) = self.listener.accept_link()? {
            let Some(protect) = &self.options.protect else {
                return H::start(link, &self.options, false, None).map(Some);
            };
            let handshake = protect.respond(Transport::UdtStream);
            let handshake = Some(handshake.map_err(io::Error::other)?);
            let securing = Securing::new(handshake, Side::Responder, initial, &self.options);
            let stream = H::start(link, &self.options, false, securing)?;
            self.poller.add(&stream, 0, Interest::READ)?;
            if self.opening.len() == OPENING_MAX {
                self.opening.pop_front();
            }
            self.opening.push_back(stream);
        }
        // What is polled here tells when to come again.
        let polled = |stream: &H| stream.poll(Ready::OPEN | Ready::OVER);
        self.opening.retain(|stream| polled(stream) != Ready::OVER);
        let is_open = |stream: &H| polled(stream).contains(Ready::OPEN);
        let open = self.opening.iter().position(is_open);
        let stream = open.and_then(|at| self.opening.remove(at));
        if let Some(stream) = &stream {
            self.poller.remove(stream)?;
        }
        Ok(stream)
    }

    /// Returns the next connection; none if none comes before the time is over.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<H>> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(stream) = self.accept()? {
                return Ok(Some(stream));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
            if left_ns == Some(0) {
                return Ok(None);
            }
            // A handshake takes several packets.
            notify::wait_readable([self.as_fd()], left_ns)?;
        }
    }
}

impl<H> AsFd for Listener<H> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
