//! Where a link's outgoing payload comes from.
//!
//! Memory is sent from where it lies. Files are read ahead by a thread into a ring, and what has
//! left stays there as long as there is room: lost packets are usually retransmitted from it. Where
//! the path holds more than the ring, a lost packet is read from the source once more, so that
//! memory does not grow with distance.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use haul_io::poller::Waker;
use haul_io::ring::{Consumer, Ending, Producer};
use haul_udt::{PayloadRange, Transmit};

use crate::bulk::Source;

/// Memory between reading and sending, bytes; half of it read ahead, half sent and kept.
pub(super) const RING_BYTES: usize = 48 << 20;
const READ_BYTES: usize = 256 << 10;
const PARK: Duration = Duration::from_millis(20);

/// Outgoing payload.
pub(super) enum Outgoing<'a> {
    Memory {
        source: &'a dyn Source,
    },
    Ring(Ring<'a>),
    /// A ring that keeps everything until it has arrived.
    Held(Consumer),
}

pub(super) struct Ring<'a> {
    source: &'a dyn Source,
    consumer: Consumer,
    reader: Thread,
    /// Packets that are no longer in the ring are read into here.
    again: Vec<u8>,
}

/// What there is to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Available {
    pub(super) end: u64,
    pub(super) complete: bool,
    /// Nothing more was asked for: a tail shorter than a packet need not wait for more.
    pub(super) push: bool,
    /// Reading has failed.
    pub(super) failed: bool,
}

impl<'a> Outgoing<'a> {
    pub(super) fn ring(source: &'a dyn Source, consumer: Consumer, reader: Thread) -> Self {
        Self::Ring(Ring {
            source,
            consumer,
            reader,
            again: Vec::new(),
        })
    }

    pub(super) fn available(&self, from: u64) -> Available {
        match self {
            Self::Memory { source } => {
                let extent = source.wait(from, Duration::ZERO);
                Available {
                    end: extent.end,
                    complete: extent.complete,
                    push: extent.complete,
                    failed: false,
                }
            }
            Self::Ring(ring) => {
                let (end, ending) = ring.consumer.extent();
                let (complete, failed) = (ending == Ending::Finished, ending == Ending::Lost);
                let is_all = || ring.source.wait(end, Duration::ZERO).end <= end;
                Available {
                    end,
                    complete,
                    push: complete || end > from && is_all(),
                    failed,
                }
            }
            Self::Held(ring) => Available {
                end: ring.committed(),
                complete: false,
                push: false,
                failed: false,
            },
        }
    }

    /// Everything below `acknowledged` has arrived; everything below `sent` has left.
    pub(super) fn release(&mut self, acknowledged: u64, sent: u64) {
        if let Self::Ring(ring) = self {
            let kept = ring.consumer.capacity() as u64 / 2;
            let to = acknowledged.max(sent.saturating_sub(kept));
            if to >= ring.consumer.released() + READ_BYTES as u64
                || (to == sent && to > ring.consumer.released())
            {
                ring.consumer.release(to);
                ring.reader.unpark();
            }
        } else if let Self::Held(ring) = self {
            ring.release(acknowledged);
        }
    }

    /// Hands the batch's packets but the first `skip`, each as header and payload, to `send`.
    pub(super) fn gather<R>(
        &mut self,
        batch: &Transmit,
        skip: usize,
        send: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> io::Result<R> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut used = 0;
        let payload = &batch.payload[skip..];
        let packets = batch.headers[skip..].iter().zip(payload);
        match self {
            Self::Memory { source } => {
                for (header, range) in packets {
                    push(&mut slices, &mut used, header);
                    push_memory(&mut slices, &mut used, *source, *range)?;
                }
                Ok(send(&slices[..used]))
            }
            Self::Ring(ring) => {
                ring.read_again(payload)?;
                let mut again = ring.again.as_slice();
                for (header, range) in packets {
                    push(&mut slices, &mut used, header);
                    let len = range.len as usize;
                    let payload = if let Some(held) = ring.consumer.slice(range.position, len) {
                        held
                    } else {
                        let (packet, rest) = again.split_at(len);
                        again = rest;
                        packet
                    };
                    push(&mut slices, &mut used, payload);
                }
                Ok(send(&slices[..used]))
            }
            Self::Held(ring) => {
                for (header, range) in packets {
                    push(&mut slices, &mut used, header);
                    let payload = ring.slice(range.position, range.len as usize);
                    let payload = payload.ok_or(io::ErrorKind::UnexpectedEof)?;
                    push(&mut slices, &mut used, payload);
                }
                Ok(send(&slices[..used]))
            }
        }
    }
}

/// A header and up to two pieces of payload for each packet of the largest batch.
const SLICES: usize = 64 * 3;

fn push<'s>(slices: &mut [IoSlice<'s>; SLICES], used: &mut usize, bytes: &'s [u8]) {
    if let Some(slot) = slices.get_mut(*used) {
        *slot = IoSlice::new(bytes);
        *used += 1;
    }
}

/// Memory may end within a packet and go on elsewhere.
fn push_memory<'s>(
    slices: &mut [IoSlice<'s>; SLICES],
    used: &mut usize,
    source: &'s dyn Source,
    range: PayloadRange,
) -> io::Result<()> {
    let (mut at, end) = (range.position, range.position + u64::from(range.len));
    for _ in 0..2 {
        let memory = source.memory_at(at).filter(|memory| !memory.is_empty());
        let memory = memory.ok_or(io::ErrorKind::UnexpectedEof)?;
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
        let take = memory.len().min(wanted);
        push(slices, used, &memory[..take]);
        at += take as u64;
        if at == end {
            return Ok(());
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "memory in pieces smaller than a packet",
    ))
}

impl Ring<'_> {
    /// Reads what the ring no longer holds of `payload`, one packet behind the other.
    fn read_again(&mut self, payload: &[PayloadRange]) -> io::Result<()> {
        self.again.clear();
        for range in payload {
            let len = range.len as usize;
            if self.consumer.slice(range.position, len).is_none() {
                let start = self.again.len();
                self.again.resize(start + len, 0);
                self.source
                    .read_at(range.position, &mut self.again[start..])?;
            }
        }
        Ok(())
    }
}

/// Reads `source` into the ring until it is complete, `stop` is set, or reading fails.
pub(super) fn read_ahead(
    source: &dyn Source,
    mut producer: Producer,
    waker: &Waker,
    stop: &AtomicBool,
) -> io::Result<()> {
    while !stop.load(Ordering::Acquire) && !producer.is_consumer_gone() {
        let from = producer.committed();
        let extent = source.wait(from, PARK);
        if extent.end <= from {
            if extent.complete {
                producer.finish();
                waker.wake();
                return Ok(());
            }
            continue;
        }
        let room = producer.writable(READ_BYTES);
        let wanted = usize::try_from(extent.end - from).unwrap_or(usize::MAX);
        let len = room.len().min(wanted);
        if len == 0 {
            std::thread::park_timeout(PARK);
            continue;
        }
        let read = source.read_at(from, &mut room[..len]);
        if let Err(error) = read {
            drop(producer);
            waker.wake();
            return Err(error);
        }
        producer.commit(len);
        waker.wake();
    }
    Ok(())
}
