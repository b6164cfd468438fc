//! A socket-like face on a link: streams and messages with any UDT peer, Longhaul or not.
//!
//! Bulk between Longhaul ends goes by [`Link::send`](super::Link::send) and [`Link::receive`](super::Link::receive). Here
//! payload waits in slots of the receive memory and is copied out to the caller.

use std::io::{self, IoSlice};

use haul_cc::time::SECOND_NS;
use haul_udt::wire::SocketKind;
use haul_udt::{Config, Message};

use super::link::Place;
use super::outgoing::Outgoing;
use super::{Link, LinkError};
use crate::bulk::{Extent, FileRange, Source};

/// A UDT socket that blocks. Open its link with [`config`], so that payload takes slots.
#[derive(Debug)]
pub struct Socket {
    link: Link,
    received: Memory,
    /// Octets of the front piece that are taken already.
    taken: usize,
    to_send: Pending,
}

/// The configuration that suits [`Socket`]: `base` without placement of streams.
#[must_use]
pub fn config(base: Config) -> Config {
    let placement = base.offer_placement && base.kind == SocketKind::Datagram;
    Config {
        offer_placement: placement,
        ..base
    }
}

/// Receive memory: one slot per packet of the window.
#[derive(Debug)]
struct Memory(Vec<u8>);

impl Place for Memory {
    fn place(&mut self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = usize::try_from(position).unwrap_or(usize::MAX);
        for part in parts {
            let slot = self.0.get_mut(at..at.saturating_add(part.len()));
            slot.ok_or(io::ErrorKind::InvalidInput)?
                .copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }
}

/// What was given to send and has not arrived: bytes from position `start` on.
#[derive(Debug, Default)]
struct Pending {
    start: u64,
    bytes: Vec<u8>,
}

impl Source for Pending {
    fn wait(&self, _: u64, _: std::time::Duration) -> Extent {
        Extent {
            end: self.start + self.bytes.len() as u64,
            complete: false,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = self
            .memory_at(offset)
            .and_then(|memory| memory.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..)
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

/// Bytes that [`Socket::send`] takes before it waits for the peer.
const PENDING_MAX: usize = 16 << 20;

impl Socket {
    /// Takes over a link that was opened with [`config`].
    #[must_use]
    pub fn new(mut link: Link) -> Self {
        let bytes = link.connection.receive_memory_bytes();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            link,
            received: Memory(vec![0; bytes]),
            taken: 0,
            to_send: Pending::default(),
        }
    }

    /// Sends stream bytes; returns when they are all taken, which is before they have arrived.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        for chunk in bytes.chunks(PENDING_MAX / 4) {
            self.make_room()?;
            self.to_send.bytes.extend_from_slice(chunk);
            let now = self.link.now;
            let written = self.link.connection.write(now, chunk.len() as u64, true);
            written.map_err(|_| LinkError::Closed)?;
            self.turn()?;
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
        self.make_room()?;
        self.to_send.bytes.extend_from_slice(bytes);
        let (now, len) = (self.link.now, bytes.len() as u64);
        let sent = self
            .link
            .connection
            .send_message(now, len, in_order, ttl_ns);
        sent.map_err(|error| {
            LinkError::Source(io::Error::new(io::ErrorKind::InvalidInput, error))
        })?;
        self.turn()
    }

    /// Receives stream bytes; zero when the peer has closed.
    ///
    /// # Errors
    /// [`LinkError`] where the connection ends otherwise.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<usize, LinkError> {
        let mut closed = false;
        loop {
            let mut filled = 0;
            while let Some(piece) = self.link.connection.front_piece() {
                let rest = self.slot(piece.position, piece.len as usize)?;
                let rest = &rest[self.taken..];
                let len = rest.len().min(buf.len() - filled);
                buf[filled..filled + len].copy_from_slice(&rest[..len]);
                filled += len;
                if len < rest.len() {
                    self.taken += len;
                    break;
                }
                self.taken = 0;
                self.link.connection.pop_piece();
            }
            if filled > 0 || closed || buf.is_empty() {
                return Ok(filled);
            }
            match self.turn().and_then(|()| self.wait_unless_ready()) {
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
            if let Some(message) = self.link.connection.front_message() {
                return self.copy_out(&message).map(Some);
            }
            if closed {
                return Ok(None);
            }
            match self.turn().and_then(|()| self.wait_unless_ready()) {
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
        while !self.link.connection.is_drained() {
            match self.turn().and_then(|()| self.link.sleep(None)) {
                Ok(()) => {}
                Err(LinkError::PeerClosed) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.link.connection.close(self.link.now);
        self.link.flush(&mut Outgoing::Memory {
            source: &self.to_send,
        })
    }

    /// Counters of the connection.
    #[must_use]
    pub fn stats(&self) -> Option<super::Stats> {
        self.link.stats()
    }

    fn copy_out(&mut self, message: &Message) -> Result<Vec<u8>, LinkError> {
        let mut pieces = Vec::new();
        self.link
            .connection
            .take_message(message, |piece| pieces.push(piece));
        let mut bytes = Vec::with_capacity(usize::try_from(message.len).unwrap_or(0));
        for piece in pieces {
            bytes.extend_from_slice(self.slot(piece.position, piece.len as usize)?);
        }
        Ok(bytes)
    }

    fn slot(&self, position: u64, len: usize) -> Result<&[u8], LinkError> {
        let at = usize::try_from(position).unwrap_or(usize::MAX);
        let slot = self.received.0.get(at..at.saturating_add(len));
        slot.ok_or_else(|| LinkError::Sink(io::ErrorKind::InvalidInput.into()))
    }

    fn make_room(&mut self) -> Result<(), LinkError> {
        while self.to_send.bytes.len() > PENDING_MAX * 3 / 4 {
            self.turn()?;
            if self.to_send.bytes.len() > PENDING_MAX * 3 / 4 {
                self.link.sleep(None)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), LinkError> {
        let mut outgoing = Outgoing::Memory {
            source: &self.to_send,
        };
        self.link.turn(&mut outgoing, &mut self.received)?;
        let released = self.link.connection.released();
        let gone = usize::try_from(released - self.to_send.start).unwrap_or(0);
        if gone > PENDING_MAX / 8 {
            self.to_send.bytes.drain(..gone);
            self.to_send.start = released;
        }
        Ok(())
    }

    fn wait_unless_ready(&mut self) -> Result<(), LinkError> {
        let ready = self.link.connection.front_piece().is_some()
            || self.link.connection.front_message().is_some();
        if ready {
            Ok(())
        } else {
            self.link.sleep(Some(self.link.now.after(SECOND_NS)))
        }
    }
}
