//! Byte streams that data channels are made of.

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

/// A byte stream between two ends that never waits.
pub(crate) trait Pipe: Debug + Send + Sized {
    /// Begins to connect.
    fn start(peer: SocketAddr) -> io::Result<Self>;

    /// What a peer has connected; none if that is of another kind.
    fn admit(connection: DataConnection) -> Option<Self>;

    /// Sends no faster from now on.
    fn limit(&mut self, limit: RateLimit) -> io::Result<()>;

    /// Whether it is connected, once it is writable; the error if it will not be.
    fn is_connected(&mut self) -> io::Result<bool>;

    /// Sends `head` and then `payload`, as far as there is room; how many octets. `WouldBlock`
    /// where there is none.
    fn send(&mut self, head: &[u8], payload: Option<Part<'_>>) -> io::Result<usize>;

    /// Receives into `payload` and then into `rest`; how many octets, zero being the end.
    /// `WouldBlock` where nothing has come.
    fn receive(&mut self, payload: Option<Part<'_>>, rest: &mut [u8]) -> io::Result<usize>;

    /// Readable, or writable, while there is something to be done.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Lets the transport work, where that is not the kernel's.
    fn turn(&mut self) -> io::Result<Turned> {
        Ok(Turned::default())
    }

    /// When it is to have its turn though nothing has happened.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Segments that were sent more than once, as far as is known.
    fn resent(&self) -> u64;
}

/// What a transport in this process has come to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turned {
    /// Something has come.
    pub(crate) is_readable: bool,
    /// There is room to send.
    pub(crate) is_writable: bool,
}

/// Octets that the kernel takes and has not sent: with more, a stream that is slow, or repairs a
/// loss, would hold what others could send. These keep a path of 10 Gb/s busy for 0.4 ms, until
/// this thread has its turn again.
pub(crate) const UNSENT_BYTES: u32 = 512 << 10;
/// After so long without an answer the kernel gives a peer up.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// What a TCP connection of a data channel is to be like.
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

/// Octets of a UDT connection that may be on their way or wait to be taken.
const UDT_WINDOW_BYTES: u64 = 16 << 20;

/// How UDT connections of data channels are opened.
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

/// Hands up to `most` octets that have arrived to `place`, with how many there were before; how
/// many.
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
