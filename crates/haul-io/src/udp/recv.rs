//! The way in: a batch of buffers that one system call fills.

use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::slice::{Chunks, ChunksMut};
use std::sync::Arc;

use super::UdpSocket;
use super::control::ArrivalNotes;
use super::message::{self, MESSAGES_MAX, RecvMeta};
use super::pool::{Buffer, Pool};
use crate::clock::Clock;

/// A super-packet may fill this much; a smaller buffer would cut it.
const BUFFER_BYTES_MIN: usize = 65_536;

/// An arrival's stamp older than this is taken for a jump of the wall clock, and ignored.
const ARRIVAL_AGE_NS_MAX: u64 = 1_000_000_000;

/// Time since an arrival, ns: its stamp and the present time are of the wall clock.
fn age_ns(realtime_ns: u64, stamp_ns: Option<u64>) -> u64 {
    stamp_ns
        .and_then(|stamp_ns| realtime_ns.checked_sub(stamp_ns))
        .filter(|age_ns| *age_ns <= ARRIVAL_AGE_NS_MAX)
        .unwrap_or(0)
}

impl UdpSocket {
    /// Fills `batch` with what has arrived, without waiting; how many messages there are. What was
    /// in the batch is gone.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived; for a connected socket, ICMP errors about the peer.
    pub fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.arrivals.clear();
        batch.filled = false;
        let received = message::receive_many(self.as_fd(), &mut batch.buffers, &mut batch.metas)?;
        batch.filled = received == batch.buffers.len();
        batch.read_arrivals(received);
        Ok(batch.arrivals.len())
    }
}

/// Buffers for the messages of one [`UdpSocket::recv_batch`], and some to spare for those that are
/// taken out.
pub struct RecvBatch {
    buffers: Box<[Buffer]>,
    metas: Box<[RecvMeta]>,
    arrivals: Vec<Arrival>,
    pool: Arc<Pool>,
    now_ns: u64,
    cut: u64,
    filled: bool,
}

impl RecvBatch {
    /// Room for `messages` super-packets (1 to 32) of `buffer_bytes` (rounded up to 64 KiB), and
    /// `spare` more buffers so that so many can be [taken](Self::take) and not yet given back.
    ///
    /// # Errors
    /// Out of memory, or sizes that overflow (`InvalidInput`).
    pub fn new(messages: usize, buffer_bytes: usize, spare: usize) -> io::Result<Self> {
        let messages = messages.clamp(1, MESSAGES_MAX);
        let buffer_bytes = buffer_bytes
            .max(1)
            .checked_next_multiple_of(BUFFER_BYTES_MIN)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let buffers = messages
            .checked_add(spare)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let pool = Pool::new(buffers, buffer_bytes)?;
        Ok(Self {
            buffers: (0..messages).map_while(|_| pool.take()).collect(),
            metas: vec![RecvMeta::EMPTY; messages].into(),
            arrivals: Vec::with_capacity(messages),
            pool,
            now_ns: 0,
            cut: 0,
            filled: false,
        })
    }

    /// How many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// No message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// As many messages came as there is room for: there may be more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.filled
    }

    /// The messages, in the order of their arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Received<'_>> {
        self.arrivals.iter().map(|arrival| self.received(arrival))
    }

    /// Message `index`, counted from zero.
    #[must_use]
    pub fn message(&self, index: usize) -> Option<Received<'_>> {
        self.arrivals
            .get(index)
            .map(|arrival| self.received(arrival))
    }

    /// The datagrams of message `index`, to be changed in place.
    pub fn datagrams_mut(&mut self, index: usize) -> ChunksMut<'_, u8> {
        let Some(arrival) = self.arrivals.get(index) else {
            return [].chunks_mut(1);
        };
        let content = self.buffers[arrival.slot].content_mut();
        content.chunks_mut(arrival.segment_bytes.max(1))
    }

    /// Takes the buffer of message `index` out, for another thread to work on, and puts an empty
    /// one in its place. The message reads as empty afterwards. None when there is no such message
    /// or no spare buffer: work on it in place.
    #[must_use]
    pub fn take(&mut self, index: usize) -> Option<Buffer> {
        let slot = self.arrivals.get(index)?.slot;
        let empty = self.pool.take()?;
        Some(mem::replace(&mut self.buffers[slot], empty))
    }

    /// When the last batch was received, nanoseconds of [`Clock`]: saves the caller a look at the
    /// clock.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Messages thrown away since the start because they did not fit a buffer, or came with no IP
    /// address.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Bytes that each buffer holds.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn received(&self, arrival: &Arrival) -> Received<'_> {
        let bytes = self.buffers[arrival.slot].as_slice();
        Received {
            from: arrival.from,
            bytes,
            segment_bytes: arrival.segment_bytes,
            arrived_ns: arrival.arrived_ns,
            ecn: arrival.ecn,
            to: arrival.to,
        }
    }

    fn read_arrivals(&mut self, received: usize) {
        let clock = Clock::new();
        self.now_ns = clock.now_ns();
        let realtime_ns = clock.realtime_ns();
        let arrived = self
            .buffers
            .iter_mut()
            .zip(&self.metas)
            .enumerate()
            .take(received);
        for (slot, (buffer, meta)) in arrived {
            let from = meta.from.decode();
            let (Some(from), false) = (from, meta.truncated) else {
                self.cut += 1;
                continue;
            };
            buffer.set_len(meta.bytes);
            let control = meta.control.0.get(..meta.control_len).unwrap_or(&[]);
            let notes = ArrivalNotes::parse(control);
            let segment_bytes = notes
                .segment_bytes
                .map_or(meta.bytes, |size| size.min(meta.bytes));
            self.arrivals.push(Arrival {
                slot,
                from,
                segment_bytes,
                arrived_ns: self
                    .now_ns
                    .saturating_sub(age_ns(realtime_ns, notes.realtime_ns)),
                ecn: notes.ecn,
                to: notes.to,
            });
        }
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("arrivals", &self.arrivals)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// One message: the datagrams of one sender that arrived in a row, joined.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// All datagrams, one after the other.
    pub bytes: &'a [u8],
    /// The size of each datagram but the last, which may be smaller; the size of all when there is
    /// only one.
    pub segment_bytes: usize,
    /// When the kernel got it (the first, if joined), nanoseconds of [`Clock`], never later than
    /// now nor more than a second ago.
    pub arrived_ns: u64,
    /// The two ECN bits (RFC 3168 §5).
    pub ecn: u8,
    /// Which of this machine's addresses it was sent to, with port 0; none unless
    /// [`report_destination`](super::UdpOptions::report_destination) is set, nor for a group's.
    pub to: Option<SocketAddr>,
}

impl<'a> Received<'a> {
    /// The datagrams; an empty one is passed over.
    #[must_use]
    pub fn datagrams(&self) -> Datagrams<'a> {
        Datagrams(self.bytes.chunks(self.segment_bytes.max(1)))
    }
}

/// The datagrams of a message, in order.
#[derive(Debug, Clone)]
pub struct Datagrams<'a>(Chunks<'a, u8>);

impl<'a> Iterator for Datagrams<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Datagrams<'_> {}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    slot: usize,
    from: SocketAddr,
    segment_bytes: usize,
    arrived_ns: u64,
    ecn: u8,
    to: Option<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_jumps_dates_no_arrival() {
        let now_ns = 1_800_000_000_000_000_000_u64;
        assert_eq!(age_ns(now_ns, Some(now_ns - 3_000)), 3_000);
        assert_eq!(age_ns(now_ns, None), 0);
        for seconds in [3_600_u64, 10 * 365 * 86_400] {
            let jump_ns = seconds * 1_000_000_000;
            for stamp_ns in [now_ns - jump_ns, now_ns + jump_ns] {
                assert_eq!(age_ns(now_ns, Some(stamp_ns)), 0);
            }
        }
    }
}
