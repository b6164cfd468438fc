//! The thread that drives a stream's connection.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use haul_cc::Time;
use haul_cc::time::MILLISECOND_NS;
use haul_io::poller::set_timer_slack_ns;
use haul_io::ring::{Consumer, Producer};
use haul_io::thread::start_on;
use haul_seal::Side;
use haul_seal::handshake::Handshake;
use haul_udt::{SendError, Seq};

use super::border::Border;
use super::options::{Measured, Options, Ready};
use super::shared::Shared;
use crate::udt::handshake::UdtHandshake;
use crate::udt::link::{NAP_NS_MAX, Nothing};
use crate::udt::memory::Memory;
use crate::udt::outgoing::Outgoing;
use crate::udt::place::Place;
use crate::udt::{Link, LinkError, LinkOptions, Remote};

/// How long an end that has everything stays for a peer that may not know that, besides two
/// round trips.
const STAY_NS: u64 = 200 * MILLISECOND_NS;
/// Arrivals are left to gather where so many bytes came in a millisecond: 256 Mb/s.
const BULK_BYTES: u64 = 32 << 10;
const BULK_NS: u64 = MILLISECOND_NS;
/// How often the page gets what the connection has measured.
const MEASURE_NS: u64 = 50 * MILLISECOND_NS;
/// How often an engine whose connection is over looks for room for what is left.
const PARK: Duration = Duration::from_millis(20);

/// How the keys of a stream are made.
pub(super) struct Securing {
    handshake: UdtHandshake,
    /// Of the first connection.
    initial: Seq,
    options: LinkOptions,
}

impl Securing {
    pub(super) fn new(
        handshake: Option<Box<dyn Handshake>>,
        side: Side,
        initial: Seq,
        options: &Options,
    ) -> Option<Self> {
        Some(Self {
            // A stream has no first message that could be answered.
            handshake: UdtHandshake::new(handshake?, side, |_| Vec::new()),
            initial,
            options: options.link(),
        })
    }
}

/// The thread of a stream, and how it is reached.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    remote: Remote,
    peer: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// What a stream's bytes lie in.
pub(super) struct Rings {
    pub(super) to_send: Consumer,
    pub(super) arriving: Producer,
    /// The other ends, where the user of the stream is another process.
    pub(super) border: Option<Border>,
}

impl Driver {
    /// With `patient`, nobody need be at the peer's port yet.
    pub(super) fn start(
        link: Link,
        options: &Options,
        patient: bool,
        securing: Option<Securing>,
        rings: Rings,
        shared: Shared,
    ) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let (remote, peer) = (link.remote(), link.peer());
        let mut engine = Engine {
            link,
            patient,
            securing,
            outgoing: Outgoing::Held(rings.to_send),
            incoming: Incoming {
                ring: rings.arriving,
                slots: None,
            },
            border: rings.border,
            shared: Arc::clone(&shared),
            written: 0,
            finish: Finish::No,
            stay_until: None,
            bulk: Bulk::default(),
            measure_due: Time::ZERO,
        };
        if let Some(page) = &shared.page {
            engine.link.wake_by(Arc::clone(&page.watch))?;
        }
        let thread = start_on(options.engine_cpus.as_ref(), || {
            let builder = thread::Builder::new().name("haul-stream".into());
            builder.spawn(move || engine.run())
        })?;
        Ok(Self {
            shared,
            remote,
            peer,
            thread: Some(thread),
        })
    }

    pub(super) fn wake(&self) {
        self.remote.wake();
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn poll(&self, wanted: Ready) -> Ready {
        let ready = || self.shared.ready().bits();
        Ready::from_bits_truncate(self.shared.readiness.poll(wanted.bits(), ready))
    }

    pub(super) fn wait(&self, wanted: Ready, timeout: Option<Duration>) -> Ready {
        let ready = || self.shared.ready().bits();
        Ready::from_bits_truncate(self.shared.readiness.wait(wanted.bits(), timeout, ready))
    }

    pub(super) fn measured(&self) -> Option<Measured> {
        self.remote.stats().as_ref().map(Measured::of)
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.readiness.signal().as_fd()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let complete = self.shared.is_complete();
        self.shared.left.store(true, Ordering::Release);
        if complete {
            self.remote.wake();
            return;
        }
        self.remote.close();
        thread.thread().unpark();
        // That it has panicked helps nobody here.
        let _ = thread.join();
    }
}

/// Drives the connection.
struct Engine {
    link: Link,
    /// Nobody need be at the peer's port before the connection is open.
    patient: bool,
    securing: Option<Securing>,
    outgoing: Outgoing<'static>,
    incoming: Incoming,
    border: Option<Border>,
    shared: Arc<Shared>,
    /// As much as the connection knows of what is to be sent.
    written: u64,
    finish: Finish,
    stay_until: Option<Time>,
    bulk: Bulk,
    /// When the page gets again what the connection has measured.
    measure_due: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    No,
    /// The connection has sent it.
    Said,
    /// The peer is plain UDT: the connection closes when all has arrived.
    Whole,
}

/// Whether much arrives at once.
#[derive(Debug, Default)]
struct Bulk {
    since: Time,
    bytes: u64,
    is: bool,
}

/// Where payload arrives.
struct Incoming {
    ring: Producer,
    /// Of plain peers: packets wait here until those before them have come.
    slots: Option<Memory>,
}

impl Place for Incoming {
    fn place(&mut self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if let Some(slots) = &mut self.slots {
            return slots.place(position, parts);
        }
        let skip = position.checked_sub(self.ring.committed());
        let skip = skip.and_then(|skip| usize::try_from(skip).ok());
        let room = self.ring.writable(usize::MAX);
        let mut room = skip
            .and_then(|skip| room.get_mut(skip..))
            .unwrap_or_default();
        for part in parts {
            let (to, rest) = room
                .split_at_mut_checked(part.len())
                .ok_or(io::ErrorKind::InvalidInput)?;
            to.copy_from_slice(part);
            room = rest;
        }
        Ok(())
    }
}

impl Engine {
    fn run(mut self) {
        // Timers coarser than this cost throughput; without the right to set them they still work.
        let _ = set_timer_slack_ns(1);
        let over = loop {
            if let Err(over) = self.step() {
                break over;
            }
        };
        // Offsets of a connection that made keys are not those of the stream.
        let is_open = self.shared.open.load(Ordering::Relaxed);
        if is_open {
            // Nothing that the socket did not take needs to leave any more.
            self.link.left = None;
            self.publish();
        }
        let in_order = matches!(over, LinkError::PeerClosed) && !self.halves();
        while is_open && !self.deliver() && !self.shared.left.load(Ordering::Acquire) {
            thread::park_timeout(PARK);
            if self.cross().is_err() {
                break;
            }
        }
        if in_order {
            self.shared.peer_finished.store(true, Ordering::Release);
        }
        // What it is first stays.
        let _ = self.shared.over.set(over);
        self.shared.tell();
        self.link.connection.abort(self.link.now);
        // If this is lost, the peer times out.
        let _ = if is_open {
            self.link.flush(&mut self.outgoing)
        } else {
            self.link.flush(&mut Outgoing::Memory { source: &Nothing })
        };
    }

    /// Whether each direction ends by itself.
    fn halves(&self) -> bool {
        self.incoming.slots.is_none()
    }

    fn step(&mut self) -> Result<(), LinkError> {
        if !self.shared.open.load(Ordering::Relaxed) {
            self.link.wait_open(self.patient)?;
            if let Some(securing) = self.securing.take() {
                let Securing {
                    handshake,
                    initial,
                    options,
                } = securing;
                self.link.secure(handshake, initial, &options)?;
            }
            self.begin();
        }
        self.take_over()?;
        self.link.follow_ecn()?;
        let turned = self.link.turn(&mut self.outgoing, &mut self.incoming);
        self.publish();
        turned?;
        if self.is_to_leave() {
            return Err(LinkError::Closed);
        }
        self.rest()
    }

    /// The connection is there.
    fn begin(&mut self) {
        let slots = self.link.connection.receive_memory_bytes();
        if slots > 0 {
            self.incoming.slots = Some(Memory::new(slots, usize::MAX));
            self.shared.plain.store(true, Ordering::Release);
        }
        self.shared.open.store(true, Ordering::Release);
        self.shared.tell();
    }

    /// Takes over the bytes and the commands that callers left.
    fn take_over(&mut self) -> Result<(), LinkError> {
        self.cross()?;
        // Before what was given: that is written first.
        let finishing = self.shared.finishing.load(Ordering::Acquire);
        let end = self.outgoing.available(0).end;
        self.link.read_clock();
        let now = self.link.now;
        let closed = |_| LinkError::Closed;
        if end > self.written {
            let more = end - self.written;
            let written = self.link.connection.write(now, more, true);
            written.map_err(closed)?;
            self.written = end;
        }
        if finishing && self.finish == Finish::No {
            self.link.ending = true;
            self.finish = match self.link.connection.finish(now) {
                Err(SendError::NoHalves) => Finish::Whole,
                said => said.map(|()| Finish::Said).map_err(closed)?,
            };
        }
        let noted = self.incoming.ring.released();
        self.shared.noted.store(noted, Ordering::Relaxed);
        self.link.connection.consume(now, noted);
        Ok(())
    }

    /// Does what a user of this process would have done.
    fn cross(&mut self) -> Result<(), LinkError> {
        match &mut self.border {
            None => Ok(()),
            Some(border) => border.pull(&self.shared).map_err(LinkError::System),
        }
    }

    /// Tells what has arrived, here and there.
    fn publish(&mut self) {
        let (shared, connection) = (&self.shared, &self.link.connection);
        // Unsent packets may be retransmissions of acknowledged data: they need its memory.
        if self.link.left.is_none() {
            let arrived = connection.released();
            self.outgoing.release(arrived, connection.sent_position());
            shared.arrived.store(arrived, Ordering::Release);
        }
        if self.finish != Finish::No && connection.has_all_arrived() {
            shared.finished.store(true, Ordering::Release);
        }
        self.deliver();
        if self.link.connection.has_peer_finished() {
            self.shared.peer_finished.store(true, Ordering::Release);
        }
        self.measure();
        self.shared.tell();
        if self.finish == Finish::Whole && self.shared.finished.load(Ordering::Relaxed) {
            self.link.connection.close(self.link.now);
        }
    }

    /// Writes what the connection has measured for another process.
    fn measure(&mut self) {
        let Some(page) = self.shared.page.as_ref() else {
            return;
        };
        if self.link.now < self.measure_due {
            return;
        }
        if let Some(stats) = self.link.stats() {
            page.put_measured(Measured::of(&stats));
            self.measure_due = self.link.now.after(MEASURE_NS);
        }
    }

    /// Gives what has come in order to those who receive; whether that is all.
    fn deliver(&mut self) -> bool {
        let (ring, connection) = (&mut self.incoming.ring, &mut self.link.connection);
        let mut whole = true;
        if let Some(slots) = &self.incoming.slots {
            while let Some(piece) = connection.front_piece() {
                let len = piece.len as usize;
                let mut room = ring.writable(len);
                whole = room.len() == len;
                if !whole {
                    break;
                }
                slots.visit(piece.position, len, |bytes| {
                    let (to, rest) = std::mem::take(&mut room).split_at_mut(bytes.len());
                    to.copy_from_slice(bytes);
                    room = rest;
                });
                ring.commit(len);
                connection.pop_piece();
            }
        } else {
            let more = connection.delivered_offset() - ring.committed();
            ring.commit(usize::try_from(more).unwrap_or(usize::MAX));
        }
        self.shared.come.store(ring.committed(), Ordering::Release);
        whole
    }

    /// Nobody uses the stream any more, and the peer had time to learn that everything arrived.
    fn is_to_leave(&mut self) -> bool {
        if !self.shared.left.load(Ordering::Acquire) {
            return false;
        }
        let now = self.link.now;
        let rtt_ns = self.link.stats().map_or(0, |stats| stats.rtt_ns);
        let until = *self
            .stay_until
            .get_or_insert_with(|| now.after(2 * rtt_ns + STAY_NS));
        now >= until
    }

    /// Sleeps until there is something to do.
    fn rest(&mut self) -> Result<(), LinkError> {
        let link = &mut self.link;
        if link.left.is_some() {
            return link.sleep(None);
        }
        self.bulk.take(link.now, link.arrived);
        match link.connection.paced_until() {
            Some(due) if due.since(link.now) <= NAP_NS_MAX => link.nap(due),
            _ if link.arrived > 0 => {
                if link.drained && self.bulk.is {
                    thread::sleep(link.pause());
                }
            }
            _ => return self.sleep(),
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), LinkError> {
        self.shared.asleep().set();
        self.cross()?;
        let given = self.outgoing.available(0).end > self.written;
        let finishing = self.finish == Finish::No && self.shared.finishing.load(Ordering::Acquire);
        let unknown = self.incoming.ring.released() - self.shared.noted.load(Ordering::Relaxed);
        let news = given || finishing || unknown >= self.shared.receive_bytes / 8;
        let slept = if news {
            Ok(())
        } else {
            self.link.sleep(self.stay_until)
        };
        self.shared.asleep().clear();
        slept
    }
}

impl Bulk {
    fn take(&mut self, now: Time, bytes: u64) {
        self.bytes += bytes;
        if now.since(self.since) >= BULK_NS {
            self.is = self.bytes >= BULK_BYTES;
            *self = Self {
                since: now,
                bytes: 0,
                is: self.is,
            };
        }
    }
}
