//! A socket-like face on a link: streams and messages with any UDT peer, Longhaul or not.
//!
//! Bulk between Longhaul ends goes by [`Link::send`](super::Link::send) and
//! [`Link::receive`](super::Link::receive). Here payload waits in receive memory and is copied out
//! to the caller. [`Stream`] never waits and is for event loops; [`Socket`] blocks.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use haul_udt::wire::{SocketId, SocketKind};
use haul_udt::{Config, Message, Seq, WINDOW_BYTES_MIN};

use super::link::RECEIVE_MEMORY_BYTES;
use super::listener::Acceptor;
use super::memory::{Memory, PAGE_BYTES, Pending, pages_of};
use super::outgoing::Outgoing;
use super::{Identity, Link, LinkError, LinkOptions, unopened};

/// Returns the configuration that suits [`Socket`]: `base` without placement of streams.
#[must_use]
pub fn config(base: Config) -> Config {
    let placement = base.offer_placement && base.kind == SocketKind::Datagram;
    let mut config = base;
    config.offer_placement = placement;
    config
}

/// A link that begins to connect, and the number of its first packet.
pub(super) fn connecting(
    peer: SocketAddr,
    options: &LinkOptions,
) -> Result<(Link, Seq), LinkError> {
    let local: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let own = random_identity().map_err(LinkError::System)?;
    let opener = haul_udt::Connection::connect;
    Ok((unopened(local, peer, own, options, opener)?, own.initial))
}

/// Bytes that are taken to be sent and have not arrived, at most.
const PENDING_MAX: usize = 16 << 20;
/// Bytes that are taken and have not been sent once, at most: what comes later is not to wait
/// behind more.
const UNSENT_MAX: usize = 1 << 20;
/// Pages of one that was accepted and not admitted. What begins a stream may lie across the border
/// of two.
const GREETING_PAGES: usize = 2;

/// Bytes of user memory that an accepted [`Stream`] takes at most before [`Stream::admit`]: what
/// has arrived, and what one call receives from the kernel.
pub const GREETING_MEMORY_BYTES: u64 = (GREETING_PAGES * PAGE_BYTES + RECEIVE_MEMORY_BYTES) as u64;

/// A UDT byte stream that never waits, for event loops. Call [`Stream::turn`] when it is readable
/// ([`AsFd`]), at the time of [`Stream::poll_timeout`], and after [`Stream::write`] and
/// [`Stream::consume`].
#[derive(Debug)]
pub struct Stream {
    link: Link,
    /// Bytes of it where the stream is placed.
    window: u64,
    received: Memory,
    /// Who the peer is is known.
    is_admitted: bool,
    taken: Taken,
    to_send: Pending,
    /// The peer has been told that this is over.
    is_closed: bool,
}

/// What of the receive memory has been taken.
#[derive(Debug, Clone, Copy)]
enum Taken {
    /// Nothing can have come yet.
    Opening,
    /// Bytes of the front piece.
    OfPiece(usize),
    /// Everything below this offset of the stream.
    To(u64),
}

impl Stream {
    /// Begins to connect. Towards a Longhaul peer the stream is placed, if `options` offer that,
    /// with a window of `receive_window_bytes`; else it has slots.
    ///
    /// # Errors
    /// [`LinkError::Network`] where the address cannot be reached.
    pub fn connect(peer: SocketAddr, options: &LinkOptions) -> Result<Self, LinkError> {
        let (link, _) = connecting(peer, options)?;
        Ok(Self::new(link, options.config.receive_window_bytes, true))
    }

    fn new(link: Link, window: u64, is_admitted: bool) -> Self {
        let mut stream = Self {
            link,
            window: window.max(WINDOW_BYTES_MIN),
            received: Memory::default(),
            is_admitted,
            taken: Taken::Opening,
            to_send: Pending::default(),
            is_closed: false,
        };
        stream.note_open();
        stream
    }

    fn note_open(&mut self) {
        let connection = &mut self.link.connection;
        if connection.params().is_none() {
            return;
        }
        let bytes = match connection.receive_memory_bytes() {
            0 => {
                self.taken = Taken::To(0);
                self.window
            }
            slots => {
                self.taken = Taken::OfPiece(0);
                slots
            }
        };
        let pages = match self.is_admitted {
            true => pages_of(bytes),
            false => GREETING_PAGES,
        };
        self.received = Memory::new(bytes, pages);
    }

    /// Who the peer is is known: from now on it has all of its receive memory. An accepted stream
    /// holds [`GREETING_MEMORY_BYTES`] before, and ends when more comes.
    pub fn admit(&mut self) {
        self.is_admitted = true;
        self.received.open();
    }

    /// Returns whether the connection is there.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !matches!(self.taken, Taken::Opening)
    }

    /// Receives, lets timers act, sends.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends; what has arrived before can still be taken.
    pub fn turn(&mut self) -> Result<(), LinkError> {
        self.link.wait(Some(Time::ZERO))?;
        if !self.is_open() {
            if !self.link.try_open()? {
                return Ok(());
            }
            self.note_open();
        }
        let mut outgoing = Outgoing::Memory {
            source: &self.to_send,
        };
        self.link.turn(&mut outgoing, &mut self.received)?;
        // Unsent packets may be retransmissions of acknowledged data: they need its memory.
        if self.link.left.is_none() {
            self.to_send.release(self.link.connection.released());
        }
        Ok(())
    }

    /// Returns when to call [`Stream::turn`] though nothing arrives, by the machine's monotonic
    /// clock.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.link.due()
    }

    /// Returns bytes that [`Stream::write`] would take now.
    #[must_use]
    pub fn room(&self) -> usize {
        if !self.is_open() {
            return 0;
        }
        let pending = self.to_send.bytes.len();
        let sent = self.link.connection.sent_position();
        let unsent = (self.to_send.start + pending as u64).saturating_sub(sent);
        let unsent = usize::try_from(unsent).unwrap_or(usize::MAX);
        (PENDING_MAX - pending.min(PENDING_MAX)).min(UNSENT_MAX.saturating_sub(unsent))
    }

    /// Takes bytes to be sent, as many as there is room for; how many. With `more`, a packet that
    /// is not full waits for what follows at once.
    ///
    /// # Errors
    /// [`LinkError::Closed`]; [`LinkError::System`] where the system has no memory for them.
    pub fn write(&mut self, bytes: &[u8], more: bool) -> Result<usize, LinkError> {
        let bytes = &bytes[..bytes.len().min(self.room())];
        if !bytes.is_empty() {
            let taken = self.to_send.push(bytes, PENDING_MAX);
            taken.map_err(LinkError::System)?;
            let (now, len) = (self.link.now, bytes.len() as u64);
            let written = self.link.connection.write(now, len, !more);
            written.map_err(|_| LinkError::Closed)?;
        }
        Ok(bytes.len())
    }

    /// Returns bytes that have arrived, as far as they lie in one piece; empty if none have.
    pub fn arrived(&mut self) -> &[u8] {
        let connection = &mut self.link.connection;
        match self.taken {
            Taken::Opening => &[],
            Taken::OfPiece(taken) => connection.front_piece().map_or(&[], |piece| {
                let left = (piece.len as usize).saturating_sub(taken);
                self.received.get(piece.position + taken as u64, left)
            }),
            Taken::To(offset) => {
                let len = connection.delivered_offset().saturating_sub(offset);
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                self.received.get(offset, len)
            }
        }
    }

    /// Returns the first `count` bytes of what [`Stream::arrived`] showed have been taken.
    pub fn consume(&mut self, count: usize) {
        let (now, connection) = (self.link.now, &mut self.link.connection);
        match &mut self.taken {
            Taken::Opening => {}
            Taken::OfPiece(taken) => {
                *taken += count;
                if connection
                    .front_piece()
                    .is_some_and(|piece| piece.len as usize <= *taken)
                {
                    *taken = 0;
                    connection.pop_piece();
                }
            }
            Taken::To(offset) => {
                *offset += count as u64;
                connection.consume(now, *offset);
            }
        }
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.link.peer()
    }

    /// Returns the counters of the connection.
    #[must_use]
    pub fn stats(&self) -> Option<super::Stats> {
        self.link.stats()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_closed {
            // The peer need not wait for what will not come; if this is lost, it will find out.
            self.link.connection.abort(self.link.now);
            let _ = self.link.flush(&mut Outgoing::Memory {
                source: &self.to_send,
            });
        }
    }
}

/// Takes connections of UDT peers as streams, without waiting.
#[derive(Debug)]
pub struct Listener {
    acceptor: Acceptor,
    options: LinkOptions,
}

impl Listener {
    /// Listens at `local`.
    ///
    /// # Errors
    /// Of `bind(2)`.
    pub fn bind(local: SocketAddr, options: LinkOptions) -> io::Result<Self> {
        let secret = haul_io::random::bytes()?;
        let acceptor = Acceptor::bind(local, &options, secret)?.with_budget();
        Ok(Self { acceptor, options })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.local_addr()
    }

    /// The next connection, if one is there. It is not open before it has had its turns, and has
    /// little memory before [`Stream::admit`].
    ///
    /// # Errors
    /// Those of the socket.
    pub fn accept(&mut self) -> io::Result<Option<Stream>> {
        Ok(self.accept_link()?.map(|(link, _)| {
            let mut stream = Stream::new(link, self.options.config.receive_window_bytes, false);
            // The peer's request is answered now. Where that fails, so does the first read.
            let _ = stream.turn();
            stream
        }))
    }

    /// The same, to be driven otherwise, and the number of its first packet.
    pub(super) fn accept_link(&mut self) -> io::Result<Option<(Link, Seq)>> {
        while let Some((request, local)) = self.acceptor.next_request() {
            let now = Time::from_ns(haul_io::clock::Clock::new().now_ns());
            let opened = self.acceptor.open(&request, local, &self.options, now)?;
            if let Some((socket, connection)) = opened {
                let sealing = self.options.sealing();
                let link = Link::new(socket, request.from, connection, sealing)?;
                return Ok(Some((link, request.handshake.initial)));
            }
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.as_fd()
    }
}

/// A UDT socket that blocks. Open its link with [`config`], so that payload takes slots.
#[derive(Debug)]
pub struct Socket(Stream);

impl Socket {
    /// Takes over a link that was opened with [`config`].
    #[must_use]
    pub fn new(link: Link) -> Self {
        Self(Stream::new(link, 0, true))
    }

    /// Sends stream bytes; returns when they are all taken, which is before they have arrived.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends.
    pub fn send(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            let count = self.0.write(bytes, false)?;
            bytes = &bytes[count..];
            self.0.turn()?;
            if !bytes.is_empty() && self.0.room() == 0 {
                self.0.link.sleep(None)?;
            }
        }
        Ok(())
    }

    /// Sends a message; `ttl_ns` is how long it is worth sending.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends or the message does not fit.
    pub fn send_message(
        &mut self,
        bytes: &[u8],
        in_order: bool,
        ttl_ns: Option<u64>,
    ) -> Result<(), LinkError> {
        while self.0.to_send.bytes.len() > PENDING_MAX {
            self.0.turn()?;
            if self.0.to_send.bytes.len() > PENDING_MAX {
                self.0.link.sleep(None)?;
            }
        }
        // One message may lie behind what is full.
        let taken = self.0.to_send.push(bytes, PENDING_MAX + bytes.len());
        taken.map_err(LinkError::System)?;
        let link = &mut self.0.link;
        let (now, len) = (link.now, bytes.len() as u64);
        let sent = link.connection.send_message(now, len, in_order, ttl_ns);
        sent.map_err(|error| {
            LinkError::Source(io::Error::new(io::ErrorKind::InvalidInput, error))
        })?;
        self.0.turn()
    }

    /// Receives stream bytes; zero when the peer has closed.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends otherwise.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<usize, LinkError> {
        let mut closed = false;
        loop {
            let mut filled = 0;
            while filled < buf.len() {
                let arrived = self.0.arrived();
                let len = arrived.len().min(buf.len() - filled);
                if len == 0 {
                    break;
                }
                buf[filled..filled + len].copy_from_slice(&arrived[..len]);
                self.0.consume(len);
                filled += len;
            }
            if filled > 0 || closed || buf.is_empty() {
                return Ok(filled);
            }
            match self.0.turn().and_then(|()| self.wait_unless_ready()) {
                Ok(()) => {}
                Err(LinkError::PeerClosed) => closed = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives a message; none when the peer has closed.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends otherwise.
    pub fn recv_message(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let mut closed = false;
        loop {
            if let Some(message) = self.0.link.connection.front_message() {
                return Ok(Some(self.copy_out(&message)));
            }
            if closed {
                return Ok(None);
            }
            match self.0.turn().and_then(|()| self.wait_unless_ready()) {
                Ok(()) => {}
                Err(LinkError::PeerClosed) => closed = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until everything has arrived, or given-up messages are settled, and closes.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] where the peer falls silent first.
    pub fn close(mut self) -> Result<(), LinkError> {
        while !self.0.link.connection.is_drained() {
            match self.0.turn().and_then(|()| self.0.link.sleep(None)) {
                Ok(()) => {}
                Err(LinkError::PeerClosed) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.0.is_closed = true;
        let link = &mut self.0.link;
        link.connection.close(link.now);
        link.flush(&mut Outgoing::Memory {
            source: &self.0.to_send,
        })
    }

    /// Returns the counters of the connection.
    #[must_use]
    pub fn stats(&self) -> Option<super::Stats> {
        self.0.stats()
    }

    fn copy_out(&mut self, message: &Message) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(usize::try_from(message.len).unwrap_or(0));
        let (connection, received) = (&mut self.0.link.connection, &self.0.received);
        connection.take_message(message, |piece| {
            received.visit(piece.position, piece.len as usize, |part| {
                bytes.extend_from_slice(part);
            });
        });
        bytes
    }

    fn wait_unless_ready(&mut self) -> Result<(), LinkError> {
        let is_ready =
            !self.0.arrived().is_empty() || self.0.link.connection.front_message().is_some();
        if is_ready {
            return Ok(());
        }
        let link = &mut self.0.link;
        link.sleep(Some(link.now.after(SECOND_NS)))
    }
}

/// What a new connection calls its end.
pub(crate) fn random_identity() -> io::Result<Identity> {
    let [a, b, c, d, e, f, g, h] = haul_io::random::bytes::<8>()?;
    Ok(Identity {
        socket: SocketId(u32::from_be_bytes([a, b, c, d]) >> 2 | 1),
        initial: Seq::new(u32::from_be_bytes([e, f, g, h])),
    })
}
