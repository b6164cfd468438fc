//! A shard: queue pairs that move together, the mutex that is their baton, and the engine thread
//! that moves them while nobody else does, or alone (docs/adr/0057).
//!
//! The baton is held for a bounded piece of work and never while asleep. Who wants to post waits
//! for it; who only wants to drive tries, and yields to those who wait. Who sleeps does so outside,
//! on the poller's own file descriptor.
//!
//! Map: `connect`, `accept` how queue pairs get their connections, `pending` those that have
//! no queue pair yet · `services` those that have
//! none.

mod accept;
mod connect;
mod pending;
mod services;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::{Signal, wait_readable};
use haul_io::poller::{Event, Events, Interest, Poller, set_timer_slack_ns};
use haul_io::thread::start_on;
use haul_iwarp::wire::mpa::RtrKinds;
use haul_iwarp::{SECOND_NS, StreamConfig, Time};
use haul_seal::handshake::Protect;
use haul_slab::Registry;
use haul_verbs::provider::RequestOps;
use haul_verbs::{Error, Result, Transport};

use super::datagram::{Outbox, Service};
use super::events::CmEvents;
use super::limits::PAIRS_MAX;
use super::link::{Scratch, Watched, udt_options};
use super::lock::lock;
use super::options::{Drive, Options};
use super::pair::{ConnectionState, Opening, Pair, Tools};
use super::posts::{Batch, Member, Posts};
use super::slots::Slots;
use super::tap::Tap;
use super::time::ns;
pub(super) use pending::ListeningSocket;
use pending::PendingConnection;

/// Connections that are being accepted.
const PENDING_MAX: u32 = 4_096;
const LISTENERS_MAX: u32 = 1_024;
/// So few connections are asked directly; the poller is asked about more.
const DIRECT_PAIRS: usize = 2;
/// Every so many drives the poller is asked all the same: about listeners, and what has just begun.
const POLLER_EVERY: u32 = 32;
/// Looks at a queue without driving, at most.
const SKIPS_MAX: u32 = 8;
/// How long somebody else may have driven before the engine looks again whether it still does, ns.
const STANDBY_NS: u64 = 1_000_000;
/// How long the engine leaves the baton to its holder, ns: a long piece of work takes some
/// milliseconds, a usual one a few microseconds. It doubles, to [`STANDBY_NS`], while that one has
/// it whenever the engine looks.
const BUSY_NS: u64 = 100_000;
/// How often time-outs are looked at, ns: they are seconds long.
const TIMERS_NS: u64 = 20_000_000;
/// How long an attempt to connect may take, by default.
const CONNECT_NS: u64 = 30 * SECOND_NS;
/// How long the engine's end waits for such connections.
const LINGER_NS: u64 = SECOND_NS;

/// Makes what an application answers the request of a pending connection with, given its number and
/// its peer.
pub(super) type NewRequest = fn(Weak<Shard>, u32, SocketAddr) -> Box<dyn RequestOps>;

/// What a look at a shard has come to, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Nothing to do.
    Still,
    /// Somebody else has the baton.
    Busy,
    /// Something was received or sent.
    Moved,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shard {
    inner: Mutex<Inner>,
    /// The poller's file descriptor, for those who wait without the baton: readable while a
    /// connection has something to do.
    ready: OwnedFd,
    /// The file descriptor of [`Inner::setup_poller`].
    setup_ready: OwnedFd,
    /// The socket of the only connection, while it waits for arrivals only: to be woken by it
    /// directly is quicker than by way of the poller.
    only: Arc<Mutex<Option<Arc<Watched>>>>,
    /// Threads that want the baton to post.
    posters: AtomicU32,
    /// Threads that sleep on the poller until they can drive; those on the only socket are counted
    /// there.
    sleepers: AtomicU32,
    /// Drives by applications, so that the engine sees that there are any.
    drives: AtomicU64,
    skips: AtomicU32,
    /// Completion queues of the device that are armed: their owners may sleep on a file descriptor
    /// of their own, where nothing but the engine wakes them.
    armed: Arc<AtomicU32>,
    /// The engine leaves the driving to applications.
    stands_by: AtomicBool,
    /// When the shard wants to be driven though nothing arrives, ns; `u64::MAX` is never.
    due_ns: AtomicU64,
    stop: AtomicBool,
    signal: Signal,
    /// Nobody but the engine drives.
    offloaded: bool,
    posts: Arc<Posts>,
}

/// What the baton gives.
#[derive(Debug)]
pub(super) struct Inner {
    me: Weak<Shard>,
    new_request: NewRequest,
    registry: Registry,
    poller: Poller,
    /// Listeners, and connections that are being made: apart, and watched by the poller as one, so
    /// that the engine sees to them while an application sleeps on the only socket.
    setup_poller: Poller,
    events: Events,
    clock: Clock,
    pub(super) now: Time,
    scratch: Scratch,
    outbox: Option<Box<Outbox>>,
    pairs: Slots<Pair>,
    /// Queue pairs with a connection.
    up: Vec<u32>,
    services: Slots<Box<Service>>,
    /// Services with a socket.
    bound: Vec<u32>,
    only: Arc<Mutex<Option<Arc<Watched>>>>,
    /// Those that have more to do than they were given time for.
    again: Vec<Subject>,
    offloaded: bool,
    posts: Arc<Posts>,
    /// What was taken from `posts`; empty between calls.
    batch: Batch,
    /// Those that have something to send, which is left to the engine.
    posted: Vec<Subject>,
    pub(super) pending: Slots<PendingConnection>,
    listeners: Slots<Listening>,
    rounds: u32,
    /// Connections whose packets are paced, and when the next of those packets is due.
    clocked: Vec<Subject>,
    clocked_due: Option<Time>,
    /// Something may have a time-out: they are looked at then.
    timed: bool,
    timers_at: Time,
    transport: Transport,
    config: StreamConfig,
    socket_buffer: Option<usize>,
    udt: crate::udt::LinkOptions,
    connect_ns: u64,
    peer_timeout: Duration,
    protect: Option<Arc<dyn Protect>>,
    tap: Option<Arc<Tap>>,
}

#[derive(Debug)]
struct Listening {
    socket: ListeningSocket,
    channel: Arc<CmEvents>,
    backlog: u32,
    /// Connections that have come to it.
    arrivals: u64,
    /// Those that wait to be accepted.
    pending: usize,
    /// Those of them that have sent their request: `asked <= pending`.
    asked: usize,
}

/// What an event of the poller is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Pair(u32),
    Pending(u32),
    Listener(u32),
    Service(u32),
    Setup,
}

impl Subject {
    fn token(self) -> u64 {
        let (kind, number) = match self {
            Self::Pair(number) => (0, number),
            Self::Pending(number) => (1, number),
            Self::Listener(number) => (2, number),
            Self::Service(number) => (3, number),
            Self::Setup => (4, 0),
        };
        kind << 32 | u64::from(number)
    }

    fn of(token: u64) -> Self {
        let number = u32::try_from(token & 0xffff_ffff).unwrap_or(0);
        match token >> 32 {
            0 => Self::Pair(number),
            1 => Self::Pending(number),
            2 => Self::Listener(number),
            3 => Self::Service(number),
            _ => Self::Setup,
        }
    }
}

/// A shard and its thread; dropping it ends both.
#[derive(Debug)]
pub(super) struct Engine {
    shard: Arc<Shard>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(super) fn start(
        number: usize,
        registry: Registry,
        transport: Transport,
        options: &Options,
        new_request: NewRequest,
        tap: Option<Arc<Tap>>,
        armed: Arc<AtomicU32>,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        let setup_poller = Poller::new()?;
        poller.add(&setup_poller, Subject::Setup.token(), Interest::READ)?;
        let ready = poller.as_fd().try_clone_to_owned()?;
        let setup_ready = setup_poller.as_fd().try_clone_to_owned()?;
        let signal = Signal::new()?;
        let clock = Clock::new();
        let config = stream_config(options);
        let only = Arc::default();
        let posts = Arc::<Posts>::default();
        let offloaded = options.drive == Drive::Engine;
        let shard = Arc::new_cyclic(|me| Shard {
            inner: Mutex::new(Inner {
                me: Weak::clone(me),
                new_request,
                registry,
                poller,
                setup_poller,
                events: Events::with_capacity(64),
                clock,
                now: Time::from_ns(clock.now_ns()),
                scratch: Scratch::new(options.strict),
                outbox: None,
                pairs: Slots::new(PAIRS_MAX),
                up: Vec::new(),
                services: Slots::new(PAIRS_MAX),
                bound: Vec::new(),
                only: Arc::clone(&only),
                again: Vec::new(),
                offloaded,
                posts: Arc::clone(&posts),
                batch: Batch::default(),
                posted: Vec::new(),
                pending: Slots::new(PENDING_MAX),
                listeners: Slots::new(LISTENERS_MAX),
                rounds: 0,
                clocked: Vec::new(),
                clocked_due: None,
                timed: false,
                timers_at: Time::default(),
                transport,
                config,
                socket_buffer: options.socket_buffer,
                udt: udt_options(options),
                connect_ns: options.connect_timeout.map_or(CONNECT_NS, ns),
                peer_timeout: options.peer_timeout,
                protect: options.protect.clone(),
                tap,
            }),
            ready,
            setup_ready,
            only,
            posters: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            drives: AtomicU64::new(0),
            skips: AtomicU32::new(0),
            armed,
            stands_by: AtomicBool::new(false),
            due_ns: AtomicU64::new(u64::MAX),
            stop: AtomicBool::new(false),
            signal,
            offloaded,
            posts,
        });
        let theirs = Arc::clone(&shard);
        let thread = start_on(options.engine_cpus.as_ref(), || {
            std::thread::Builder::new()
                .name(format!("haul-rnic-{number}"))
                .spawn(move || theirs.run())
        })?;
        Ok(Self {
            shard,
            thread: Some(thread),
        })
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shard.stop.store(true, Ordering::Release);
        self.shard.signal.set();
        if let Some(thread) = self.thread.take() {
            // It ends by itself, with or without a panic.
            let _ = thread.join();
        }
    }
}

fn stream_config(options: &Options) -> StreamConfig {
    let mut config = StreamConfig::default();
    // The tag of each record covers more.
    config.crc = options.crc && options.protect.is_none();
    config.fpdu_max = options.fpdu_max;
    config.strict = options.strict;
    config.close_timeout_ns = ns(options.close_timeout);
    config.peer_timeout_ns = Some(ns(options.peer_timeout));
    config.peer_to_peer = Some(RtrKinds {
        send: false,
        write: true,
        read: true,
    });
    config
}

impl Shard {
    /// Works with the baton, waiting for it. Leaves what is still to do then to the engine.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        // A driver that does not see it in time holds the baton a moment longer, no more.
        self.posters.fetch_add(1, Ordering::Relaxed);
        let mut inner = lock(&self.inner);
        self.posters.fetch_sub(1, Ordering::Relaxed);
        inner.look_at_clock();
        // What was posted before goes first.
        inner.take_posts();
        let result = work(&mut inner);
        let due = inner.due().map_or(u64::MAX, Time::as_ns);
        let before = self.due_ns.swap(due, Ordering::Relaxed);
        drop(inner);
        // An engine that alone drives may have found the baton taken: nobody has driven for it.
        let is_awaited = self.offloaded && self.posts.is_awaited();
        if due < before || is_awaited {
            self.signal.set();
        }
        result
    }

    /// Leaves work requests to the engine, which alone drives, and wakes it.
    pub(super) fn post<R>(&self, post: impl FnOnce(&mut Batch) -> R) -> R {
        let result = self.posts.add(post);
        if self.posts.is_awaited() {
            self.signal.set();
        }
        result
    }

    /// Whether nobody but the engine drives.
    pub(super) fn is_offloaded(&self) -> bool {
        self.offloaded
    }

    /// Moves what there is to move, on an application's thread, which has just looked at the clock.
    pub(super) fn try_drive(&self, now_ns: u64) -> Progress {
        self.drives.fetch_add(1, Ordering::Relaxed);
        self.skips.store(0, Ordering::Relaxed);
        self.drive(now_ns)
    }

    /// Whether it was not driven for some looks; counts this one.
    pub(super) fn is_due(&self) -> bool {
        self.skips.fetch_add(1, Ordering::Relaxed) >= SKIPS_MAX
    }

    fn drive(&self, now_ns: u64) -> Progress {
        if self.posters.load(Ordering::Relaxed) > 0 {
            return Progress::Busy;
        }
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Progress::Busy,
        };
        let moved = inner.drive(now_ns);
        let due = inner.due().map_or(u64::MAX, Time::as_ns);
        self.due_ns.store(due, Ordering::Relaxed);
        if moved {
            Progress::Moved
        } else {
            Progress::Still
        }
    }

    /// Sleeps until `signal`, or until there is something to drive, or until `timeout_ns` has
    /// passed.
    pub(super) fn sleep(&self, signal: &Signal, timeout_ns: Option<u64>) -> io::Result<()> {
        // Counted before the time is read: either it is seen here, or the engine sees to it.
        let only = self.begin_sleep();
        let due = self.until_due();
        let timeout = match (timeout_ns, due) {
            (Some(timeout), Some(due)) => Some(timeout.min(due)),
            (timeout, due) => timeout.or(due),
        };
        let result = match only {
            Some(watched) => {
                let result = wait_readable([watched.stream.as_fd(), signal.as_fd()], timeout);
                watched.sleepers.fetch_sub(1, Ordering::SeqCst);
                result
            }
            None => {
                let result = wait_readable([self.ready.as_fd(), signal.as_fd()], timeout);
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                result
            }
        };
        result.map(|_| ())
    }

    /// Whether there is one connection, with nothing to send.
    pub(super) fn only_listens(&self) -> bool {
        self.until_due() != Some(0) && lock(&self.only).is_some()
    }

    /// Counts a thread that sleeps: on the only socket if there is one, or else on the poller.
    fn begin_sleep(&self) -> Option<Arc<Watched>> {
        let only = lock(&self.only);
        let sleepers = match &*only {
            Some(watched) => &watched.sleepers,
            None => &self.sleepers,
        };
        sleepers.fetch_add(1, Ordering::SeqCst);
        only.clone()
    }

    /// Whether somebody sleeps who sees all that arrives. Who sleeps on a socket that is no longer
    /// the only one does not.
    fn has_sleepers(&self) -> bool {
        let only = lock(&self.only);
        let on_it = only.as_ref().map(|only| &only.sleepers);
        let asleep = |sleepers: &AtomicU32| sleepers.load(Ordering::SeqCst) > 0;
        asleep(&self.sleepers) || on_it.is_some_and(asleep)
    }

    /// A completion queue has been armed.
    pub(super) fn attend(&self) {
        if self.stands_by.load(Ordering::SeqCst) {
            self.signal.set();
        }
    }

    fn until_due(&self) -> Option<u64> {
        let due = self.due_ns.load(Ordering::Relaxed);
        (due != u64::MAX).then(|| due.saturating_sub(Clock::new().now_ns()))
    }

    /// The engine thread.
    fn run(&self) {
        // Without the right to set it, timers are 50 µs late; nothing else.
        let _ = set_timer_slack_ns(1);
        let clock = Clock::new();
        let mut seen = 0;
        let mut busy_ns = BUSY_NS;
        loop {
            // Before anything is looked at: what is signalled from here on is seen the next time.
            self.signal.clear();
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let drives = self.drives.load(Ordering::Relaxed);
            let attended = drives != seen || self.has_sleepers();
            seen = drives;
            // Neither wait fails but for a lack of memory; then this looks again at once.
            if attended {
                // SeqCst here and in `attend`: either this thread sees the armed queue, or the
                // signal comes.
                self.stands_by.store(true, Ordering::SeqCst);
                if self.armed.load(Ordering::SeqCst) == 0 {
                    self.stand_by();
                }
                self.stands_by.store(false, Ordering::SeqCst);
                // Who sleeps may not know what is due since another thread's post.
                let neglected = self.drives.load(Ordering::Relaxed) == seen
                    && self.until_due() == Some(0)
                    && self.has_sleepers();
                if self.armed.load(Ordering::SeqCst) == 0 && !neglected {
                    continue;
                }
            }
            self.posts.sleep(|| {
                let fds = [self.ready.as_fd(), self.signal.as_fd()];
                let _ = wait_readable(fds, self.until_due());
            });
            let mut found = Progress::Moved;
            while self.drives.load(Ordering::Relaxed) == seen
                && !self.stop.load(Ordering::Acquire)
                && found == Progress::Moved
            {
                found = self.drive(clock.now_ns());
            }
            if found == Progress::Busy {
                // What woke it is still there. The thread that has the baton handles it, or wakes
                // this one. To look again at once would take the processor from that thread, or
                // from the peer.
                self.posts.sleep(|| {
                    let _ = wait_readable([self.signal.as_fd()], Some(busy_ns));
                });
                // Who waits for an event of an armed queue has nobody else.
                let is_awaited = self.armed.load(Ordering::SeqCst) > 0;
                busy_ns = if is_awaited {
                    BUSY_NS
                } else {
                    (2 * busy_ns).min(STANDBY_NS)
                };
            } else {
                busy_ns = BUSY_NS;
            }
            if self.posters.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
        }
        self.linger();
    }

    /// Leaves the driving to others, and serves listeners and handshakes, which they do not look
    /// at.
    fn stand_by(&self) {
        if lock(&self.only).is_none() {
            let _ = wait_readable([self.signal.as_fd()], Some(STANDBY_NS));
            return;
        }
        let (setup_ready, signal) = (self.setup_ready.as_fd(), self.signal.as_fd());
        if wait_readable([setup_ready, signal], Some(STANDBY_NS)).unwrap_or(false) {
            self.with(Inner::ask_setup_poller);
        }
    }

    /// Lets connections that nobody holds end in order.
    fn linger(&self) {
        let clock = Clock::new();
        let end = clock.now_ns() + LINGER_NS;
        while clock.now_ns() < end && self.with(|inner| inner.has_orphans()) {
            self.drive(clock.now_ns());
            let _ = wait_readable([self.ready.as_fd()], Some(TIMERS_NS));
        }
    }
}

impl Inner {
    fn look_at_clock(&mut self) {
        self.now = Time::from_ns(self.clock.now_ns());
    }

    fn drive(&mut self, now_ns: u64) -> bool {
        // Another thread may have looked later, and driven sooner.
        self.now = self.now.max(Time::from_ns(now_ns));
        self.rounds = self.rounds.wrapping_add(1);
        self.take_posts();
        let mut moved = false;
        for _ in 0..self.posted.len() {
            moved |= match self.posted.swap_remove(0) {
                Subject::Pair(number) => self.with_pair(number, Pair::transmit).unwrap_or(false),
                subject => self.look_at(subject),
            };
        }
        for _ in 0..self.again.len() {
            let subject = self.again.swap_remove(0);
            moved |= self.look_at(subject);
        }
        let direct = self.up.len() + self.bound.len();
        if direct > DIRECT_PAIRS || direct == 0 || self.rounds.is_multiple_of(POLLER_EVERY) {
            moved |= self.ask_poller();
        } else {
            for at in 0..self.up.len() {
                if let Some(number) = self.up.get(at) {
                    moved |= self.turn(*number);
                }
            }
            for at in 0..self.bound.len() {
                if let Some(number) = self.bound.get(at) {
                    moved |= self.turn_service(*number);
                }
            }
        }
        moved |= self.turn_clocked();
        if self.timed && self.now >= self.timers_at {
            self.timers();
        }
        moved
    }

    /// Moves the connections whose packets are due; notes when the next ones are.
    fn turn_clocked(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.clocked.len() {
            let Some(&subject) = self.clocked.get(at) else {
                break;
            };
            if self.due_of(subject).is_some_and(|due| due <= self.now) {
                moved |= self.look_at(subject);
            }
        }
        self.note_due();
        moved
    }

    fn due_of(&self, subject: Subject) -> Option<Time> {
        match subject {
            Subject::Pair(number) => self.pairs.get(number)?.due(self.now),
            // Nobody waits for what they send by a clock: a look in each round of the timers is
            // enough.
            Subject::Pending(_) | Subject::Listener(_) | Subject::Setup => None,
            Subject::Service(number) => self.services.get(number)?.due(),
        }
    }

    fn note_due(&mut self) {
        if self.clocked.is_empty() {
            self.clocked_due = None;
            return;
        }
        let (pairs, services) = (&self.pairs, &self.services);
        self.clocked.retain(|subject| match *subject {
            Subject::Pair(number) => pairs.get(number).is_some_and(Pair::is_clocked),
            Subject::Pending(_) | Subject::Listener(_) | Subject::Setup => false,
            Subject::Service(number) => services
                .get(number)
                .is_some_and(|service| service.due().is_some()),
        });
        let due = self
            .clocked
            .iter()
            .filter_map(|subject| self.due_of(*subject));
        self.clocked_due = due.min();
    }

    fn ask_poller(&mut self) -> bool {
        // Its deadline has passed: it does not wait. An error shows again where it matters, with
        // the sockets.
        let _ = self.poller.wait(&mut self.events, Some(0), self.clock);
        self.look_at_events()
    }

    fn ask_setup_poller(&mut self) -> bool {
        let _ = self
            .setup_poller
            .wait(&mut self.events, Some(0), self.clock);
        self.look_at_events()
    }

    fn look_at_events(&mut self) -> bool {
        let ready: arrayvec::ArrayVec<Event, 64> = self.events.iter().take(64).collect();
        let mut moved = false;
        for event in ready {
            moved |= self.look_at(Subject::of(event.token));
        }
        moved
    }

    fn look_at(&mut self, subject: Subject) -> bool {
        match subject {
            Subject::Pair(number) => self.pair_ready(number),
            Subject::Pending(number) => self.turn_pending(number),
            Subject::Listener(number) => self.accept(number),
            Subject::Service(number) => self.turn_service(number),
            Subject::Setup => self.ask_setup_poller(),
        }
    }

    /// When to drive though nothing arrives.
    fn due(&self) -> Option<Time> {
        if !self.again.is_empty() || !self.posted.is_empty() {
            return Some(self.now);
        }
        let timers = self.timed.then_some(self.timers_at);
        let packets = self.clocked_due;
        match (timers, packets) {
            (Some(timers), Some(packets)) => Some(timers.min(packets)),
            (timers, packets) => timers.or(packets),
        }
    }

    /// Something may have a time-out now.
    fn set_timer(&mut self) {
        if !self.timed {
            self.timed = true;
            self.timers_at = self.now.after(TIMERS_NS);
        }
    }

    fn timers(&mut self) {
        self.timers_at = self.now.after(TIMERS_NS);
        let mut timed = self.pending.len() > 0;
        let now = self.now;
        for number in self.pairs.numbers() {
            let Some(pair) = self.pairs.get_mut(number) else {
                continue;
            };
            timed |= pair.orphaned.is_some();
            if pair.is_finished(now) {
                self.remove(number);
                continue;
            }
            match &mut pair.link {
                ConnectionState::Connecting(attempt) => {
                    timed = true;
                    if now >= attempt.deadline {
                        self.give_up(number, "the peer does not answer");
                    }
                }
                ConnectionState::Up(link) => {
                    let due = link.core().poll_timeout();
                    timed |= due.is_some();
                    if due.is_some_and(|due| now >= due) {
                        link.core_mut().handle_timeout(now);
                        self.turn(number);
                    }
                }
                ConnectionState::None | ConnectionState::Closing(_) | ConnectionState::Over => {}
            }
        }
        for number in self.pending.numbers() {
            let Some(pending) = self.pending.get_mut(number) else {
                continue;
            };
            let is_over = pending
                .link
                .core()
                .poll_timeout()
                .is_some_and(|due| now >= due);
            if is_over {
                pending.link.core_mut().handle_timeout(now);
            }
            if is_over || pending.link.due(now).is_some_and(|due| now >= due) {
                self.turn_pending(number);
            }
        }
        self.timed = timed;
    }

    // ---- queue pairs

    pub(super) fn insert(&mut self, pair: Pair) -> Result<u32> {
        self.pairs
            .insert(pair)
            .map_err(|_| Error::Exhausted("queue pairs"))
    }

    pub(super) fn pair(&mut self, number: u32) -> Option<&mut Pair> {
        self.pairs.get_mut(number)
    }

    /// Notes which socket is the only one, after the connections have changed.
    fn note_only(&self) {
        let watched = match self.up[..] {
            [number] => self.pairs.get(number).and_then(Pair::watched).cloned(),
            _ => None,
        };
        let mut only = lock(&self.only);
        let before = std::mem::replace(&mut *only, watched);
        drop(only);
        // Who sleeps there may miss what arrives elsewhere, or that there is room to send: the
        // engine is to see to it.
        if before.is_some_and(|before| before.sleepers.load(Ordering::SeqCst) > 0)
            && let Some(shard) = self.me.upgrade()
        {
            shard.signal.set();
        }
    }

    fn with_pair<R>(
        &mut self,
        number: u32,
        work: impl FnOnce(&mut Pair, &mut Tools<'_>) -> R,
    ) -> Option<R> {
        let pair = self.pairs.get_mut(number)?;
        let mut tools = Tools {
            now: self.now,
            registry: &self.registry,
            scratch: &mut self.scratch,
            poller: &self.poller,
        };
        let watched = pair.watched().is_some();
        let result = work(pair, &mut tools);
        let subject = Subject::Pair(number);
        if pair.has_more() && !self.again.contains(&subject) {
            self.again.push(subject);
        }
        let times = pair.orphaned.is_some()
            || matches!(&pair.link, ConnectionState::Up(link)
                if link.core().poll_timeout().is_some());
        let ended = matches!(
            pair.link,
            ConnectionState::Over | ConnectionState::Closing(_)
        );
        if ended {
            self.up.retain(|up| *up != number);
        }
        let changed = ended || watched != pair.watched().is_some();
        let gone = pair.orphaned.is_some() && matches!(pair.link, ConnectionState::Over);
        if changed {
            self.note_only();
        }
        if times {
            self.set_timer();
        }
        if gone {
            self.remove(number);
        }
        Some(result)
    }

    /// Receives and sends for one queue pair.
    pub(super) fn turn(&mut self, number: u32) -> bool {
        self.with_pair(number, Pair::turn).unwrap_or(false)
    }

    /// Sends for one queue pair what was posted; the engine does where it alone drives.
    pub(super) fn transmit(&mut self, number: u32) {
        if self.offloaded {
            self.leave_to_engine(Subject::Pair(number));
        } else {
            self.with_pair(number, Pair::transmit);
        }
    }

    fn leave_to_engine(&mut self, subject: Subject) {
        if !self.posted.contains(&subject) {
            self.posted.push(subject);
        }
    }

    /// Hands what applications have posted without the baton to its queue pairs.
    fn take_posts(&mut self) {
        if !self.offloaded {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.posts.take(&mut batch);
        batch.drain(|member, wr| match member {
            Member::Pair(number) => {
                if let (Some(pair), Some(wr)) = (self.pairs.get_mut(number), wr) {
                    pair.post_admitted(wr);
                }
                self.leave_to_engine(Subject::Pair(number));
            }
            Member::Service(number) => {
                if let Some(wr) = wr {
                    self.with_service(number, |service, tools| service.post_admitted(tools, wr));
                }
                self.leave_to_engine(Subject::Service(number));
            }
        });
        self.batch = batch;
    }

    /// Passes on events without moving data.
    pub(super) fn report(&mut self, number: u32) {
        self.with_pair(number, |pair, tools| pair.report(tools));
    }

    fn pair_ready(&mut self, number: u32) -> bool {
        match self.pairs.get(number).map(|pair| &pair.link) {
            Some(ConnectionState::Connecting(attempt)) => {
                match attempt.socket {
                    Opening::Tcp(_) => self.connected(number),
                    Opening::Udt(_) => self.open(number),
                }
                true
            }
            _ => self.turn(number),
        }
    }

    /// The application lets go of a queue pair: its connection ends in order, if it can.
    pub(super) fn orphan(&mut self, number: u32) {
        let now = self.now;
        let Some(pair) = self.pairs.get_mut(number) else {
            return;
        };
        pair.orphaned = Some(now.after(self.config.close_timeout_ns));
        pair.events = None;
        match &mut pair.link {
            ConnectionState::Up(link) => {
                link.core_mut().close(now);
                self.transmit(number);
            }
            ConnectionState::Closing(_) => {
                self.turn(number);
            }
            _ => self.remove(number),
        }
    }

    fn remove(&mut self, number: u32) {
        if let Some(pair) = self.pairs.remove(number) {
            match pair.link {
                ConnectionState::Up(link) => link.unregister(&self.poller),
                ConnectionState::Closing(link) => link.unregister(&self.poller),
                ConnectionState::Connecting(attempt) => {
                    attempt.socket.unregister(&self.poller, &self.setup_poller);
                }
                ConnectionState::None | ConnectionState::Over => {}
            }
            self.up.retain(|up| *up != number);
            self.note_only();
        }
    }

    fn has_orphans(&self) -> bool {
        let mut numbers = self.pairs.numbers();
        numbers.any(|number| {
            self.pairs
                .get(number)
                .is_some_and(|pair| pair.orphaned.is_some())
        })
    }
}
