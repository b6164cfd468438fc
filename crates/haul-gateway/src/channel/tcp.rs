//! TCP connections of data channels, which never block.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use haul_io::stream::{self, Stream};
use haul_slab::{Gather, OutOfBounds, Scatter};

use super::ledger::Part;

/// Bytes that the kernel accepts and has not sent. More would sit in a slow stream, or in one that
/// repairs a loss, while others could send them. These keep a path of 10 Gb/s busy for 0.4 ms,
/// until this thread runs again.
pub(crate) const UNSENT_BYTES: u32 = 512 << 10;
/// Timeout after which the kernel gives up a silent peer.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Configures the TCP connection of a data channel.
pub(crate) fn prepare(stream: &Stream) -> io::Result<()> {
    stream.limit_unsent(UNSENT_BYTES)?;
    stream.detect_dead_peer(DEAD_AFTER)
}

/// Starts to connect.
pub(super) fn start(peer: SocketAddr) -> io::Result<Stream> {
    let stream = Stream::start_connect(peer)?;
    prepare(&stream)?;
    Ok(stream)
}

/// Returns whether it is connected, once it is writable; or why it could not connect.
pub(super) fn is_connected(stream: &Stream) -> io::Result<bool> {
    match stream.connected() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sends `head` and then `payload`, and returns the number of bytes. `WouldBlock` if there is no
/// room.
pub(super) fn send(stream: &Stream, head: &[u8], payload: Option<Part<'_>>) -> io::Result<usize> {
    let Some(part) = payload else {
        return stream.write(head);
    };
    let payload = part.region.gather(part.at, part.len).map_err(outside)?;
    if head.is_empty() {
        return stream::send(stream, &[payload], false);
    }
    stream::send(stream, &[Gather::from(head), payload], false)
}

/// Receives into `payload` and then into `rest`, and returns the number of bytes; zero is the end.
/// `WouldBlock` if nothing has arrived.
pub(super) fn receive(
    stream: &Stream,
    payload: Option<Part<'_>>,
    rest: &mut [u8],
) -> io::Result<usize> {
    let Some(part) = payload else {
        return stream.read(rest);
    };
    let payload = part.region.scatter(part.at, part.len).map_err(outside)?;
    stream::receive(stream, &mut [payload, Scatter::from(rest)])
}

/// Returns the packets retransmitted, as far as the kernel reports them.
pub(super) fn resent(stream: &Stream) -> u64 {
    stream
        .resent_octets()
        .ok()
        .zip(stream.segment_len().ok())
        .map_or(0, |(octets, len)| octets.div_ceil(u64::from(len.max(1))))
}

fn outside(error: OutOfBounds) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
