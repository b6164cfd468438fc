//! Byte streams that data channels use.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use haul_io::stream::{self, Stream};
use haul_slab::{Gather, OutOfBounds, Scatter};
use haul_soft::udt::{LinkError, Options, Rate, plain};
use haul_verbs::RateLimit;
use haul_xsp::Time;

use super::fabric::DataConnection;
use super::ledger::Part;

/// A byte stream that never blocks.
pub(crate) trait Pipe: Debug + Send + Sized {
    /// Starts to connect.
    fn start(peer: SocketAddr) -> io::Result<Self>;

    /// Takes a peer's connection; `None` if it is of another kind.
    fn admit(connection: DataConnection) -> Option<Self>;

    /// Limits the sending rate.
    fn limit(&mut self, limit: RateLimit) -> io::Result<()>;

    /// Returns whether it is connected, once it is writable; or why it could not connect.
    fn is_connected(&mut self) -> io::Result<bool>;

    /// Sends `head` and then `payload`, and returns the number of bytes. `WouldBlock` if there is
    /// no room.
    fn send(&mut self, head: &[u8], payload: Option<Part<'_>>) -> io::Result<usize>;

    /// Receives into `payload` and then into `rest`, and returns the number of bytes; zero is the
    /// end. `WouldBlock` if nothing has arrived.
    fn receive(&mut self, payload: Option<Part<'_>>, rest: &mut [u8]) -> io::Result<usize>;

    /// Readable or writable while there is work.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Runs the transport, if it is not the kernel's.
    fn turn(&mut self) -> io::Result<Turned> {
        Ok(Turned::default())
    }

    /// Returns when the transport must run even if nothing has happened.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Packets retransmitted, as far as is known.
    fn resent(&self) -> u64;
}

/// The state of a transport in this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turned {
    /// Bytes have arrived.
    pub(crate) is_readable: bool,
    /// There is room to send.
    pub(crate) is_writable: bool,
}

/// Bytes that the kernel accepts and has not sent. More would sit in a slow stream, or in one that
/// repairs a loss, while others could send them. These keep a path of 10 Gb/s busy for 0.4 ms,
/// until this thread runs again.
pub(crate) const UNSENT_BYTES: u32 = 512 << 10;
/// The kernel gives a peer up after this time without an answer.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Configures the TCP connection of a data channel.
pub(crate) fn prepare(stream: &Stream) -> io::Result<()> {
    stream.limit_unsent(UNSENT_BYTES)?;
    stream.detect_dead_peer(DEAD_AFTER)
}

impl Pipe for Stream {
    fn start(peer: SocketAddr) -> io::Result<Self> {
        let stream = Self::start_connect(peer)?;
        prepare(&stream)?;
        Ok(stream)
    }

    fn admit(connection: DataConnection) -> Option<Self> {
        match connection {
            DataConnection::Tcp(stream) => Some(stream),
            _ => None,
        }
    }

    fn limit(&mut self, limit: RateLimit) -> io::Result<()> {
        self.limit_rate(limit.bits_per_second / 8)
    }

    fn is_connected(&mut self) -> io::Result<bool> {
        match self.connected() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, head: &[u8], payload: Option<Part<'_>>) -> io::Result<usize> {
        let Some(part) = payload else {
            return self.write(head);
        };
        let payload = part.region.gather(part.at, part.len).map_err(outside)?;
        if head.is_empty() {
            return stream::send(&*self, &[payload], false);
        }
        stream::send(&*self, &[Gather::from(head), payload], false)
    }

    fn receive(&mut self, payload: Option<Part<'_>>, rest: &mut [u8]) -> io::Result<usize> {
        let Some(part) = payload else {
            return self.read(rest);
        };
        let payload = part.region.scatter(part.at, part.len).map_err(outside)?;
        stream::receive(&*self, &mut [payload, Scatter::from(rest)])
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn resent(&self) -> u64 {
        self.resent_octets()
            .ok()
            .zip(self.segment_len().ok())
            .map_or(0, |(octets, len)| octets.div_ceil(u64::from(len.max(1))))
    }
}

/// Bytes of a UDT connection in flight or waiting to be read.
const UDT_WINDOW_BYTES: u64 = 16 << 20;

/// Returns the options of UDT data channels.
pub(crate) fn udt_options() -> Options {
    let mut options = Options::default();
    options.config.receive_window_bytes = UDT_WINDOW_BYTES;
    options.config.slot_memory_bytes = UDT_WINDOW_BYTES;
    options
}

impl Pipe for plain::Stream {
    fn start(peer: SocketAddr) -> io::Result<Self> {
        Self::connect(peer, &udt_options()).map_err(broken)
    }

    fn admit(connection: DataConnection) -> Option<Self> {
        match connection {
            DataConnection::Udt(mut stream) => {
                stream.admit();
                Some(*stream)
            }
            _ => None,
        }
    }

    fn limit(&mut self, limit: RateLimit) -> io::Result<()> {
        let rate_max = Rate::from_bps(limit.bits_per_second);
        self.limit_rate(rate_max, limit.max_burst_bytes);
        Ok(())
    }

    fn is_connected(&mut self) -> io::Result<bool> {
        Ok(self.is_open())
    }

    fn send(&mut self, head: &[u8], payload: Option<Part<'_>>) -> io::Result<usize> {
        if self.room() == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut sent = self.write(head, payload.is_some()).map_err(broken)?;
        let Some(part) = payload.filter(|_| sent == head.len()) else {
            return Ok(sent);
        };
        let len = part.len.min(self.room());
        let mut left = len;
        let mut result = Ok(());
        let shown = part.region.visit(part.at, len, |octets| {
            left -= octets.len();
            let more = left > 0 || len < part.len;
            match self.write(octets, more) {
                Ok(count) => sent += count,
                Err(error) => result = Err(broken(error)),
            }
        });
        shown.map_err(outside)?;
        result.map(|()| sent)
    }

    fn receive(&mut self, payload: Option<Part<'_>>, rest: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        if let Some(part) = payload {
            count = take(self, part.len, |at, octets| {
                part.region.write(part.at + at, octets).map_err(outside)
            })?;
        }
        if payload.is_none_or(|part| count == part.len) {
            count += take(self, rest.len(), |at, octets| {
                rest[at..at + octets.len()].copy_from_slice(octets);
                Ok(())
            })?;
        }
        match count {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn turn(&mut self) -> io::Result<Turned> {
        Self::turn(self).map_err(broken)?;
        Ok(Turned {
            is_readable: !self.arrived().is_empty(),
            is_writable: self.room() > 0,
        })
    }

    fn poll_timeout(&self) -> Option<Time> {
        Self::poll_timeout(self)
    }

    fn resent(&self) -> u64 {
        self.stats().map_or(0, |stats| stats.sent.resent_packets)
    }
}

/// Passes up to `most` received bytes to `place`, with the number before them. Returns how many.
fn take(
    stream: &mut plain::Stream,
    most: usize,
    mut place: impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<usize> {
    let mut count = 0;
    while count < most {
        let arrived = stream.arrived();
        let len = arrived.len().min(most - count);
        if len == 0 {
            break;
        }
        place(count, &arrived[..len])?;
        stream.consume(len);
        count += len;
    }
    Ok(count)
}

fn broken(error: LinkError) -> io::Error {
    io::Error::other(error)
}

fn outside(error: OutOfBounds) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
