//! A UDT byte stream for callers that have no loop to give it: a thread of its own drives the
//! connection, and any thread may send and receive.
//!
//! What flows through: [`Stream::send`] copies into a ring, from which packets are sent where they
//! lie and in which they stay until they have arrived; what arrives is placed into another ring,
//! from which [`Stream::recv`] copies. Between Longhaul ends the receiving ring is the window, and
//! each direction ends by itself ([`Stream::finish`]). Plain UDT peers take slots, and know only
//! the end of both.
//!
//! Waiting: the engine compares what is [`Ready`] with what somebody waits for, and wakes nobody
//! else ([`Readiness`]).

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use haul_cc::time::MILLISECOND_NS;
use haul_cc::{Algorithm, Rate, Time};
use haul_io::notify;
use haul_io::poller::{Interest, Poller, set_timer_slack_ns};
use haul_io::ring::{Consumer, Producer, mirror_ring};
use haul_io::thread::{Cpus, start_on};
use haul_io::wake::{Readiness, SleepFlag};
use haul_seal::Side;
use haul_seal::handshake::{Handshake, Protect, Transport};
use haul_udt::wire::SocketKind;
use haul_udt::{SendError, Seq, Stats, WINDOW_BYTES_MIN};

use super::handshake::UdtHandshake;
use super::link::{NAP_NS_MAX, Nothing};
use super::memory::Memory;
use super::outgoing::Outgoing;
use super::place::Place;
use super::plain;
use super::{Link, LinkError, Remote, unopened};

/// How to open streams. Build it from [`Options::default`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The connection's choices. Its kind is a stream, and its window the receiving ring.
    pub udt: super::LinkOptions,
    /// Bytes that are taken to be sent and have not arrived, at most.
    pub send_bytes: usize,
    /// Bytes that have come and were not received, at most.
    pub receive_bytes: usize,
    /// Sends at this rate, wire bits per second, whatever the path does.
    pub rate_bps: Option<u64>,
    /// Processors of the thread of each stream. None: those of the thread that opens it.
    pub engine_cpus: Option<Cpus>,
    /// Streams are encrypted, and both ends authenticated. A listener returns streams that are, and
    /// no others.
    pub protect: Option<Arc<dyn Protect>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            udt: super::LinkOptions::default(),
            send_bytes: 16 << 20,
            receive_bytes: 16 << 20,
            rate_bps: None,
            engine_cpus: None,
            protect: None,
        }
    }
}

impl Options {
    fn link(&self) -> super::LinkOptions {
        let mut link = self.udt.clone();
        link.config.receive_window_bytes = self.receive_bytes as u64;
        if let Some(rate_bps) = self.rate_bps {
            link.config.control = Algorithm::Fixed(Rate::from_bps(rate_bps));
        }
        link
    }

    /// Of the connection that begins: where streams are protected, the one that makes their keys.
    fn first(&self) -> super::LinkOptions {
        let mut link = self.link();
        if self.protect.is_some() {
            link.config.kind = SocketKind::Datagram;
        }
        link
    }
}

bitflags::bitflags! {
    /// What a stream can be waited for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ready: u32 {
        /// The connection is there.
        const OPEN = 1;
        /// [`Stream::recv`] returns something: bytes, the end, or an error.
        const READABLE = 1 << 1;
        /// [`Stream::send`] has room for an eighth of its ring at least.
        const WRITABLE = 1 << 2;
        /// All that was sent has arrived, and the end too if it was sent.
        const SENT = 1 << 3;
        /// The connection is over.
        const OVER = 1 << 4;
    }
}

/// What [`Stream::recv`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, more than none.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The peer has ended its half, and all of it was received.
    End,
}

/// A UDT byte stream.
#[derive(Debug)]
pub struct Stream {
    shared: Arc<Shared>,
    outgoing: Mutex<Producer>,
    incoming: Mutex<Consumer>,
    remote: Remote,
    peer: SocketAddr,
    engine: Option<JoinHandle<()>>,
}

/// What the threads that use a stream and its engine tell each other. Offsets of the stream; each
/// has one writer.
#[derive(Debug)]
struct Shared {
    /// Given to be sent.
    given: AtomicU64,
    /// `arrived <= given`
    arrived: AtomicU64,
    /// Come, in order.
    come: AtomicU64,
    /// `taken <= come`
    taken: AtomicU64,
    /// As much of `taken` as the engine has seen.
    noted: AtomicU64,
    send_bytes: u64,
    receive_bytes: u64,
    open: AtomicBool,
    /// The peer knows only the end of both directions.
    plain: AtomicBool,
    /// Nothing more will be given.
    finishing: AtomicBool,
    /// The peer has that end, and all before it.
    finished: AtomicBool,
    /// The peer's end has come, behind all of `come`.
    peer_finished: AtomicBool,
    /// Nobody uses the stream any more.
    left: AtomicBool,
    over: OnceLock<LinkError>,
    /// The engine sleeps.
    asleep: SleepFlag,
    readiness: Readiness,
}

/// How long an end that has everything stays for a peer that may not know that, besides two
/// round trips.
const STAY_NS: u64 = 200 * MILLISECOND_NS;
/// Arrivals are left to gather where so many bytes came in a millisecond: 256 Mb/s.
const BULK_BYTES: u64 = 32 << 10;
const BULK_NS: u64 = MILLISECOND_NS;
/// How often an engine whose connection is over looks for room for what is left.
const PARK: Duration = Duration::from_millis(20);

impl Stream {
    /// Begins to connect.
    ///
    /// # Errors
    /// [`LinkError::Network`] where the address cannot be reached, [`LinkError::System`] where
    /// memory is short, [`LinkError::Handshake`] where keys cannot be made for this peer.
    pub fn connect(peer: SocketAddr, options: &Options) -> Result<Self, LinkError> {
        let handshake = options.protect.as_ref();
        let handshake = handshake
            .map(|protect| protect.initiate(peer.ip(), Transport::UdtStream))
            .transpose()?;
        let (link, initial) = plain::connecting(peer, &options.first())?;
        let securing = Securing::new(handshake, Side::Initiator, initial, options);
        Self::start(link, options, false, securing).map_err(LinkError::System)
    }

    /// Begins to connect to a peer that does the same from `peer` to `local` (UDT's rendezvous).
    /// Such streams cannot be protected: neither end begins.
    ///
    /// # Errors
    /// [`LinkError::Network`] where `local` is in use or `peer` cannot be reached,
    /// [`LinkError::System`] where memory is short.
    pub fn rendezvous(
        local: SocketAddr,
        peer: SocketAddr,
        options: &Options,
    ) -> Result<Self, LinkError> {
        if options.protect.is_some() {
            return Err(LinkError::System(io::ErrorKind::Unsupported.into()));
        }
        let own = plain::random_identity().map_err(LinkError::System)?;
        let opener = haul_udt::Connection::rendezvous;
        let link = unopened(local, peer, own, &options.link(), opener)?;
        Self::start(link, options, true, None).map_err(LinkError::System)
    }

    /// With `patient`, nobody need be at the peer's port yet.
    fn start(
        link: Link,
        options: &Options,
        patient: bool,
        securing: Option<Securing>,
    ) -> io::Result<Self> {
        let least = usize::try_from(WINDOW_BYTES_MIN).unwrap_or(usize::MAX);
        let (outgoing, to_send) = mirror_ring(options.send_bytes)?;
        let (arriving, incoming) = mirror_ring(options.receive_bytes.max(least))?;
        let shared = Arc::new(Shared::new(outgoing.capacity(), incoming.capacity())?);
        let (remote, peer) = (link.remote(), link.peer());
        let engine = Engine {
            link,
            patient,
            securing,
            outgoing: Outgoing::Held(to_send),
            incoming: Incoming {
                ring: arriving,
                slots: None,
            },
            shared: Arc::clone(&shared),
            written: 0,
            finish: Finish::No,
            stay_until: None,
            bulk: Bulk::default(),
        };
        let engine = start_on(options.engine_cpus.as_ref(), || {
            let builder = thread::Builder::new().name("haul-stream".into());
            builder.spawn(move || engine.run())
        })?;
        Ok(Self {
            engine: Some(engine),
            shared,
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(incoming),
            remote,
            peer,
        })
    }

    /// Copies as much of `bytes` as there is room for; how much.
    ///
    /// # Errors
    /// Why the connection is over; [`LinkError::Closed`] after [`Stream::finish`].
    pub fn send(&self, bytes: &[u8]) -> Result<usize, &LinkError> {
        let mut ring = lock(&self.outgoing);
        if let Some(over) = self.shared.over.get() {
            return Err(over);
        }
        if self.shared.finishing.load(Ordering::Relaxed) {
            return Err(&LinkError::Closed);
        }
        let room = ring.writable(bytes.len());
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        ring.commit(len);
        self.shared.given.store(ring.committed(), Ordering::Release);
        self.wake_if(len > 0);
        Ok(len)
    }

    /// Copies what has come, as much as fits.
    ///
    /// # Errors
    /// Why the connection is over, once all that came before was received.
    pub fn recv(&self, to: &mut [u8]) -> Result<Received, &LinkError> {
        self.recv_with(to.len(), |bytes| to[..bytes.len()].copy_from_slice(bytes))
    }

    /// The same, `most` bytes at most, by whoever has another kind of room. It is called where
    /// there are bytes, once.
    ///
    /// # Errors
    /// As [`Stream::recv`].
    pub fn recv_with(&self, most: usize, copy: impl FnOnce(&[u8])) -> Result<Received, &LinkError> {
        let mut ring = lock(&self.incoming);
        // Before what has come: that is written first.
        let over = self.shared.over.get();
        let finished = self.shared.peer_finished.load(Ordering::Acquire);
        let (from, end) = (ring.released(), ring.committed());
        let here = usize::try_from(end - from).unwrap_or(usize::MAX);
        let len = here.min(most);
        match (ring.slice(from, len), over) {
            (Some(bytes), _) if len > 0 => copy(bytes),
            _ if here > 0 => return Ok(Received::Nothing),
            _ if finished => return Ok(Received::End),
            (_, Some(over)) => return Err(over),
            _ => return Ok(Received::Nothing),
        }
        ring.release(from + len as u64);
        self.shared.taken.store(ring.released(), Ordering::Release);
        let unknown = ring.released() - self.shared.noted.load(Ordering::Relaxed);
        self.wake_if(unknown >= self.shared.receive_bytes / 8);
        Ok(Received::Bytes(len))
    }

    /// Ends this direction behind what was sent; the other one goes on. Towards a plain UDT peer it
    /// ends both, when all that was sent has arrived.
    pub fn finish(&self) {
        // With the ring, so that nothing is sent behind it.
        let ring = lock(&self.outgoing);
        self.shared.finishing.store(true, Ordering::Release);
        drop(ring);
        self.wake_if(true);
    }

    fn wake_if(&self, news: bool) {
        if news && self.shared.asleep.is_set() {
            self.remote.wake();
        }
    }

    /// Returns what of `wanted` is so now. If nothing is, the descriptor becomes readable when that
    /// changes; it is one for one watcher.
    #[must_use]
    pub fn poll(&self, wanted: Ready) -> Ready {
        let ready = || self.shared.ready().bits();
        Ready::from_bits_truncate(self.shared.readiness.poll(wanted.bits(), ready))
    }

    /// Waits until something of `wanted` is so, or the time is over; what is.
    #[must_use]
    pub fn wait(&self, wanted: Ready, timeout: Option<Duration>) -> Ready {
        let ready = || self.shared.ready().bits();
        Ready::from_bits_truncate(self.shared.readiness.wait(wanted.bits(), timeout, ready))
    }

    /// Returns why the connection is over, if it is.
    #[must_use]
    pub fn over(&self) -> Option<&LinkError> {
        self.shared.over.get()
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether the peer is plain UDT, which knows only the end of both directions; known
    /// when the stream is open.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.shared.plain.load(Ordering::Acquire)
    }

    /// Returns whether the peer has ended its half: what has come is all of it.
    #[must_use]
    pub fn has_peer_ended(&self) -> bool {
        self.shared.peer_finished.load(Ordering::Acquire)
    }

    /// Bytes given to be sent; of those, arrived; bytes that have come, and of those, received.
    #[must_use]
    pub fn counts(&self) -> [u64; 4] {
        let shared = &self.shared;
        [&shared.given, &shared.arrived, &shared.come, &shared.taken]
            .map(|count| count.load(Ordering::Acquire))
    }

    /// Returns the counters of late (updated every 50 ms and at the end).
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.remote.stats()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.readiness.signal().as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else {
            return;
        };
        let complete = self.shared.is_complete();
        self.shared.left.store(true, Ordering::Release);
        if complete {
            self.remote.wake();
            return;
        }
        self.remote.close();
        engine.thread().unpark();
        // That it has panicked helps nobody here.
        let _ = engine.join();
    }
}

impl Shared {
    fn new(send_bytes: usize, receive_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            given: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            come: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            send_bytes: send_bytes as u64,
            receive_bytes: receive_bytes as u64,
            open: AtomicBool::new(false),
            plain: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            peer_finished: AtomicBool::new(false),
            left: AtomicBool::new(false),
            over: OnceLock::new(),
            asleep: SleepFlag::default(),
            readiness: Readiness::new()?,
        })
    }

    fn ready(&self) -> Ready {
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        let flag = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let (open, over) = (flag(&self.open), self.over.get().is_some());
        let arrived = load(&self.arrived);
        let under_way = load(&self.given).saturating_sub(arrived);
        let finishing = flag(&self.finishing);
        let taken = load(&self.taken);
        let set = [
            (Ready::OPEN, open),
            (
                Ready::READABLE,
                over || flag(&self.peer_finished) || load(&self.come) > taken,
            ),
            (
                Ready::WRITABLE,
                open && !over
                    && !finishing
                    && self.send_bytes - under_way.min(self.send_bytes) >= self.send_bytes / 8,
            ),
            (
                Ready::SENT,
                open && under_way == 0 && (!finishing || flag(&self.finished)),
            ),
            (Ready::OVER, over),
        ];
        let so = set.into_iter().filter(|(_, so)| *so);
        so.fold(Ready::empty(), |all, (one, _)| all | one)
    }

    /// Both ends have everything of each other.
    fn is_complete(&self) -> bool {
        let flag = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Acquire);
        flag(&self.finished)
            && flag(&self.peer_finished)
            && taken == self.come.load(Ordering::Acquire)
            && self.over.get().is_none()
    }

    /// Wakes those who wait for what is so now.
    fn tell(&self) {
        self.readiness.notify(|| self.ready().bits());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the keys of a stream are made.
struct Securing {
    handshake: UdtHandshake,
    /// Of the first connection.
    initial: Seq,
    options: super::LinkOptions,
}

impl Securing {
    fn new(
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

/// Drives the connection.
struct Engine {
    link: Link,
    /// Nobody need be at the peer's port before the connection is open.
    patient: bool,
    securing: Option<Securing>,
    outgoing: Outgoing<'static>,
    incoming: Incoming,
    shared: Arc<Shared>,
    /// As much as the connection knows of what is to be sent.
    written: u64,
    finish: Finish,
    stay_until: Option<Time>,
    bulk: Bulk,
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
        self.shared.tell();
        if self.finish == Finish::Whole && self.shared.finished.load(Ordering::Relaxed) {
            self.link.connection.close(self.link.now);
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
        self.shared.asleep.set();
        let given = self.outgoing.available(0).end > self.written;
        let finishing = self.finish == Finish::No && self.shared.finishing.load(Ordering::Acquire);
        let unknown = self.incoming.ring.released() - self.shared.noted.load(Ordering::Relaxed);
        let news = given || finishing || unknown >= self.shared.receive_bytes / 8;
        let slept = if news {
            Ok(())
        } else {
            self.link.sleep(self.stay_until)
        };
        self.shared.asleep.clear();
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

/// Takes connections of UDT peers as streams, without waiting.
#[derive(Debug)]
pub struct Listener {
    listener: plain::Listener,
    options: Options,
    /// Of protected streams, those that have no keys yet, the oldest first.
    opening: VecDeque<Stream>,
    poller: Poller,
}

/// Streams that have no keys yet. Beyond it the oldest is closed.
const OPENING_MAX: usize = 64;

impl Listener {
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
    pub fn accept(&mut self) -> io::Result<Option<Stream>> {
        while let Some((link, initial)) = self.listener.accept_link()? {
            let Some(protect) = &self.options.protect else {
                return Stream::start(link, &self.options, false, None).map(Some);
            };
            let handshake = protect.respond(Transport::UdtStream);
            let handshake = Some(handshake.map_err(io::Error::other)?);
            let securing = Securing::new(handshake, Side::Responder, initial, &self.options);
            let stream = Stream::start(link, &self.options, false, securing)?;
            self.poller.add(&stream, 0, Interest::READ)?;
            if self.opening.len() == OPENING_MAX {
                self.opening.pop_front();
            }
            self.opening.push_back(stream);
        }
        // What is polled here tells when to come again.
        let polled = |stream: &Stream| stream.poll(Ready::OPEN | Ready::OVER);
        self.opening.retain(|stream| polled(stream) != Ready::OVER);
        let is_open = |stream: &Stream| polled(stream).contains(Ready::OPEN);
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
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<Stream>> {
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

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
