//! What all sessions of a gateway share: configuration, names, devices, memory, and who is to be
//! told what.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use haul_io::clock::Clock;
use haul_io::poller::Waker;
use haul_verbs::Context;
use haul_verbs::cm::{EventChannel, Listener};
use haul_xsp::wire::{NackStatus, PathState, SessOpen};
use haul_xsp::{ConnId, Directory, ResumeRequest, SECOND_NS, Session, SessionId, SharedKey, Time};

use crate::abandoned::Abandoned;
use crate::caller::{Call, Refusal};
use crate::config::{ChannelKind, Config, Route};
use crate::control::Control;
use crate::engine::{Accepted, Knock, Meter};
use crate::extender::Extender;
use crate::log::{Level, Log, Tail};
use crate::path::Backend;
use crate::rates::Rates;
use crate::reception::Guests;
use crate::resolver::Resolver;
use crate::status::{Status, Totals};
use crate::tls::TlsContext;
use crate::unproven::{Idle, Unproven};

/// A kind of data channel that this gateway has.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) kind: ChannelKind,
    pub(crate) means: Means,
    /// Where it listens; without, data channels of this kind go outwards only.
    pub(crate) listen: Option<SocketAddr>,
    /// What peers are told, where it is not the address that they have reached.
    pub(crate) public: Option<SocketAddr>,
}

/// What data channels are made with.
#[derive(Debug)]
pub(crate) enum Means {
    /// TCP connections.
    Tcp,
    /// UDT connections.
    Udt,
    /// Reliable datagrams of an RDMA device.
    Datagram { context: Context },
    /// Connections of an RDMA device.
    Connected {
        context: Context,
        /// Listens as long as it is there.
        _listener: Option<Listener>,
        /// Of the listener and of the queue pairs that came of it.
        events: EventChannel,
    },
}

/// Something for a session's thread.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A program's connection.
    Call(Call),
    /// A connection is wanted no more that the far end may not have answered for: its caller says
    /// so when asked.
    Withdrawn,
    /// Somebody waits until octets can go through the session, or it cannot be had.
    Await(Sender<Result<(), Refusal>>),
    /// A control connection to the next hop, or why there is none.
    Dialled(Result<Box<Control>, (NackStatus, String)>),
    /// Addresses of a name.
    Resolved(ConnId, Result<Vec<SocketAddr>, String>),
    /// The session's owner is back on a new control connection.
    Resume {
        fresh: Box<Session>,
        control: Box<Control>,
        request: ResumeRequest,
    },
    /// The session's owner is back over another way.
    Anew {
        fresh: Box<Session>,
        control: Box<Control>,
        open: Box<SessOpen>,
    },
    /// A data connection that began with a cookie of this session.
    Knock {
        kind: ChannelKind,
        cookie: [u8; 16],
        knock: Knock,
    },
    /// What became of a data connection that was accepted.
    Accepted {
        kind: ChannelKind,
        qp_num: u32,
        news: Accepted,
    },
    /// How a path is, by its number in the session.
    Path(u32, PathState, String),
    /// A control connection that has not said what it wants, or a session that its owner has left,
    /// is in the way of others. What comes with it is dropped when it has made room, or does not.
    MakeRoom(Option<Sender<()>>),
    /// Finish what there is, and end.
    Drain,
    /// End now.
    Abort,
}

/// A session's thread, as others see it.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Letter>,
    waker: Waker,
}

impl Mailbox {
    /// A mailbox whose owner is woken by `waker`.
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<Letter>) {
        let (sender, receiver) = unbounded();
        (Self { sender, waker }, receiver)
    }

    /// A mailbox that nobody reads.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        let poller = haul_io::poller::Poller::new().unwrap();
        Self::new(poller.waker()).0
    }

    /// Delivers a letter, or gives it back if its reader is gone.
    pub(crate) fn post(&self, letter: Letter) -> Result<(), Box<Letter>> {
        self.sender
            .send(letter)
            .map_err(|error| Box::new(error.0))?;
        self.waker.wake();
        Ok(())
    }

    /// Whether both are of the same thread.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}

/// Sessions of a route that get no more connections and are not over.
const RETIRED_MAX: usize = 2;

/// Maps that change as sessions come and go.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    /// Sessions by name.
    pub(crate) sessions: HashMap<SessionId, Mailbox>,
    /// Sessions that this gateway has opened, by their route: after a reload the same one may have
    /// another number.
    pub(crate) openers: Vec<(Route, Mailbox)>,
    /// Such sessions that get no more connections, for they are to end.
    retired: Vec<(Route, Mailbox)>,
    /// Who expects a data connection that begins with this.
    pub(crate) cookies: HashMap<[u8; 16], Mailbox>,
    /// Whose accepted queue pairs are which.
    qps: HashMap<(ChannelKind, u32), Mailbox>,
    /// News of queue pairs that are accepted and not yet in `qps`.
    early: HashMap<(ChannelKind, u32), Vec<Accepted>>,
    /// What there is to show, by a number of its own.
    pub(crate) statuses: BTreeMap<u64, Arc<Mutex<Status>>>,
    pub(crate) next_status: u64,
    /// Threads that have a control connection and no session yet.
    pub(crate) guests: Guests,
    /// Sessions without their owner.
    pub(crate) abandoned: Abandoned,
    /// Sessions whose owner has not shown who it is.
    pub(crate) unproven: Unproven,
}

impl Registers {
    /// The session of a route.
    pub(crate) fn opener(&self, route: &Route) -> Option<&Mailbox> {
        let found = self.openers.iter().find(|(known, _)| known == route);
        found.map(|(_, opener)| opener)
    }

    /// Whether an opener may get no more connections because a peer says so: of a route there are
    /// not more than so many that end, and take memory meanwhile.
    pub(crate) fn may_retire(&self, opener: &Mailbox) -> bool {
        let own = self.openers.iter().find(|(_, other)| other.is(opener));
        let is_own = |route: &Route| own.is_some_and(|(own, _)| own == route);
        let ending = self.retired.iter().filter(|(route, _)| is_own(route));
        ending.count() < RETIRED_MAX
    }

    /// No more connections for this opener.
    pub(crate) fn retire(&mut self, opener: &Mailbox) {
        let own = self.openers.iter().position(|(_, other)| other.is(opener));
        if let Some(own) = own {
            let retired = self.openers.swap_remove(own);
            self.retired.push(retired);
        }
    }

    /// From now on news of a queue pair go to `owner`, those that have come already first.
    pub(crate) fn adopt_qp(&mut self, kind: ChannelKind, qp_num: u32, owner: &Mailbox) {
        for news in self.early.remove(&(kind, qp_num)).unwrap_or_default() {
            // Its owner is the caller.
            let _ = owner.post(Letter::Accepted { kind, qp_num, news });
        }
        self.qps.insert((kind, qp_num), owner.clone());
    }

    /// News of a queue pair, for its owner.
    pub(crate) fn tell_qp(&mut self, kind: ChannelKind, qp_num: u32, news: Accepted) {
        match self.qps.get(&(kind, qp_num)) {
            Some(owner) => drop(owner.post(Letter::Accepted { kind, qp_num, news })),
            None if matches!(news, Accepted::Up) => {
                self.early.entry((kind, qp_num)).or_default().push(news)
            }
            // Of one that is forgotten already; or its `Up` waits for its owner, and so does this.
            None => {
                if let Some(early) = self.early.get_mut(&(kind, qp_num)) {
                    early.push(news);
                }
            }
        }
    }

    /// Nobody wants news of a queue pair any more.
    pub(crate) fn forget_qp(&mut self, kind: ChannelKind, qp_num: u32) {
        self.qps.remove(&(kind, qp_num));
        self.early.remove(&(kind, qp_num));
    }

    /// Nobody is to find this thread any more.
    pub(crate) fn forget(&mut self, mailbox: &Mailbox) {
        self.openers.retain(|(_, opener)| !opener.is(mailbox));
        self.retired.retain(|(_, opener)| !opener.is(mailbox));
        self.abandoned.remove(mailbox);
        self.unproven.remove(mailbox);
        self.cookies.retain(|_, owner| !owner.is(mailbox));
        self.qps.retain(|_, owner| !owner.is(mailbox));
    }
}

/// What proves who this gateway is, and who its peers are.
#[derive(Debug)]
pub(crate) struct Secrets {
    keys: Vec<(String, SharedKey)>,
    tls: Option<Arc<TlsContext>>,
}

impl Secrets {
    /// From the files that a configuration names.
    ///
    /// # Errors
    /// A line that says which file is wrong, and how.
    pub(crate) fn load(config: &Config) -> Result<Self, String> {
        let key = |key: &crate::config::Key| {
            let secret = key.read().map_err(|error| error.to_string())?;
            Ok((key.name.clone(), SharedKey::new(&key.name, &secret)))
        };
        let tls = config.tls.as_ref().map(TlsContext::load).transpose();
        Ok(Self {
            keys: config.keys.iter().map(key).collect::<Result<_, String>>()?,
            tls: tls.map_err(|error| error.to_string())?.map(Arc::new),
        })
    }
}

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct House {
    config: Mutex<Arc<Config>>,
    keys: Mutex<Vec<(String, SharedKey)>>,
    tls: Mutex<Option<Arc<TlsContext>>>,
    pub(crate) resolver: Resolver,
    directory: Mutex<Directory>,
    registers: Mutex<Registers>,
    pub(crate) networks: Vec<Network>,
    /// The device for RDMA connections of applications.
    pub(crate) extender: Option<Extender>,
    /// Octets that slabs may still take.
    memory: AtomicU64,
    /// Octets that they might take at the start.
    pub(crate) memory_size: u64,
    totals: Mutex<Totals>,
    pub(crate) rates: Arc<Rates>,
    path: Mutex<Arc<Backend>>,
    /// Paths that are wanted, or being taken down.
    circuits: AtomicUsize,
    /// Held by who opens a session for a route, or changes the routes.
    pub(crate) opening: Mutex<()>,
    log: Log,
    /// Before, nobody says again that this system is short of something, ns.
    short_until_ns: AtomicU64,
    pub(crate) tail: Tail,
    pub(crate) clock: Clock,
    /// When it was started.
    pub(crate) since_ns: u64,
    draining: AtomicBool,
}

impl House {
    pub(crate) fn new(
        config: Config,
        secrets: Secrets,
        resolver: Resolver,
        directory: Directory,
        (networks, extender): (Vec<Network>, Option<Extender>),
        path: Backend,
        log: Log,
    ) -> Self {
        Self {
            memory: AtomicU64::new(config.memory.0),
            rates: Arc::new(Rates::new(&config)),
            memory_size: config.memory.0,
            config: Mutex::new(Arc::new(config)),
            keys: Mutex::new(secrets.keys),
            tls: Mutex::new(secrets.tls),
            resolver,
            directory: Mutex::new(directory),
            registers: Mutex::default(),
            totals: Mutex::default(),
            path: Mutex::new(Arc::new(path)),
            circuits: AtomicUsize::new(0),
            opening: Mutex::default(),
            networks,
            extender,
            log,
            short_until_ns: AtomicU64::new(0),
            tail: Tail::default(),
            clock: Clock::new(),
            since_ns: Clock::new().now_ns(),
            draining: AtomicBool::new(false),
        }
    }

    /// A letter for every session, twice for those that this gateway has opened.
    pub(crate) fn tell_all(&self, letter: impl Fn() -> Letter) {
        let registers = self.registers();
        let mailboxes: Vec<_> = registers
            .sessions
            .values()
            .chain(registers.openers.iter().map(|(_, opener)| opener))
            .cloned()
            .collect();
        drop(registers);
        for mailbox in mailboxes {
            // Who is gone needs no letter.
            let _ = mailbox.post(letter());
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_ns(self.clock.now_ns())
    }

    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.config))
    }

    pub(crate) fn set_config(&self, config: Config, secrets: Secrets, path: Backend) {
        self.rates.set(&config);
        *lock(&self.config) = Arc::new(config);
        *lock(&self.keys) = secrets.keys;
        *lock(&self.tls) = secrets.tls;
        *lock(&self.path) = Arc::new(path);
    }

    /// Certificates, where this gateway has any: control connections are within TLS then.
    pub(crate) fn tls(&self) -> Option<Arc<TlsContext>> {
        lock(&self.tls).clone()
    }

    /// Who sets up paths.
    pub(crate) fn path(&self) -> Arc<Backend> {
        Arc::clone(&lock(&self.path))
    }

    /// One path more, of `most`; given back when the ticket is dropped.
    pub(crate) fn take_circuit(self: &Arc<Self>, most: usize) -> Option<Slot> {
        let more = |there: usize| (there < most).then_some(there + 1);
        let taken = self
            .circuits
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Slot(Arc::clone(self)))
    }

    /// Paths that are wanted, or being taken down.
    pub(crate) fn circuits(&self) -> usize {
        self.circuits.load(Ordering::Acquire)
    }

    pub(crate) fn keys(&self) -> Vec<(String, SharedKey)> {
        lock(&self.keys).clone()
    }

    pub(crate) fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }

    pub(crate) fn registers(&self) -> MutexGuard<'_, Registers> {
        lock(&self.registers)
    }

    /// Counts something that sessions do not outlive.
    pub(crate) fn count(&self, what: impl FnOnce(&mut Totals)) {
        what(&mut lock(&self.totals));
    }

    pub(crate) fn totals(&self) -> Totals {
        *lock(&self.totals)
    }

    pub(crate) fn network(&self, kind: ChannelKind) -> Option<&Network> {
        self.networks.iter().find(|network| network.kind == kind)
    }

    /// Takes memory for slabs; given back when the ticket is dropped. None: there is not as much
    /// left.
    pub(crate) fn take_memory(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let taken = self
            .memory
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(bytes)
            });
        taken.ok().map(|_| Share {
            house: Arc::clone(self),
            bytes,
        })
    }

    /// What a new session takes, `bytes` of memory or none, where there may be none left: then
    /// sessions make room, one after another, if that helps. Those that their owners have left come
    /// first; for a session that has come `from` somewhere, then those that carry nothing and whose
    /// owners have not shown who they are.
    pub(crate) fn with_room<T>(
        &self,
        bytes: u64,
        from: Option<IpAddr>,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        for _ in 0..=LEAVERS_MAX {
            if let Some(taken) = take() {
                return Some(taken);
            }
            let now_ns = self.clock.now_ns();
            let mut registers = self.registers();
            let left = registers.abandoned.bytes(now_ns);
            let idle = from.map(|from| registers.unproven.leavers(from, now_ns, false));
            let idle = idle.unwrap_or_default();
            // Those that their owners have left are counted.
            let others = idle
                .iter()
                .filter(|(one, _)| !registers.abandoned.may_go(one, now_ns));
            let idle_bytes: u64 = others.map(|(_, bytes)| bytes).sum();
            if self.memory_left() + left + idle_bytes < bytes {
                return None;
            }
            let leaver = registers.abandoned.make_room(now_ns);
            let leaver = leaver.or_else(|| idle.into_iter().next().map(|(leaver, _)| leaver))?;
            drop(registers);
            self.ask_to_leave(&leaver);
        }
        None
    }

    /// Counts `bytes` of memory for a session that came `from` there and whose owner has not shown
    /// who it is. None where all such sessions from there would then have more than three quarters
    /// of the memory; one session may always be. Those of them that carry nothing make room, and
    /// then those that their owners have left.
    pub(crate) fn reserve(&self, mailbox: &Mailbox, bytes: u64, from: IpAddr) -> Option<Idle> {
        let most = (self.memory_size / 4 * 3).max(bytes);
        for _ in 0..=LEAVERS_MAX {
            let mut registers = self.registers();
            if registers.unproven.bytes_of(from) + bytes <= most {
                return Some(registers.unproven.add(mailbox.clone(), from, bytes));
            }
            let now_ns = self.clock.now_ns();
            let Registers {
                unproven,
                abandoned,
                ..
            } = &mut *registers;
            let idle = unproven.leavers(from, now_ns, true).into_iter().next();
            let left = || abandoned.make_room_of(now_ns, |one| unproven.is_of(one, from));
            let leaver = idle.map(|(leaver, _)| leaver).or_else(left)?;
            drop(registers);
            self.ask_to_leave(&leaver);
        }
        None
    }

    fn ask_to_leave(&self, leaver: &Mailbox) {
        let (asked, answer) = bounded(1);
        // A session that is over has made room.
        let _ = leaver.post(Letter::MakeRoom(Some(asked)));
        // Nothing comes: the end of it is the answer.
        let _ = answer.recv_timeout(ROOM);
    }

    /// What sessions of this class may send.
    pub(crate) fn meter(&self, class: Option<&str>) -> Meter {
        Meter {
            rates: Arc::clone(&self.rates),
            class: self.rates.class(class),
        }
    }

    /// Octets that slabs may still take.
    pub(crate) fn memory_left(&self) -> u64 {
        self.memory.load(Ordering::Acquire)
    }

    /// Begins to refuse what is new.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Says that this system is short of something; not again before ten seconds have passed, for
    /// it is met again and again until there is more.
    pub(crate) fn say_short(&self, text: impl AsRef<str>) {
        let now_ns = self.clock.now_ns();
        let until_ns = self.short_until_ns.load(Ordering::Acquire);
        let next_ns = now_ns + SHORT_NS;
        let is_first = now_ns >= until_ns
            && self
                .short_until_ns
                .compare_exchange(until_ns, next_ns, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if is_first {
            self.say(Level::Error, text);
        }
    }

    pub(crate) fn say(&self, level: Level, text: impl AsRef<str>) {
        let text = text.as_ref();
        self.log.line(level, text);
        self.tail.push(self.clock.now_ns(), level, text);
    }
}

/// Time between two lines that say that this system is short of something, ns.
const SHORT_NS: u64 = 10 * SECOND_NS;

/// Sessions that are asked to make room for one.
const LEAVERS_MAX: usize = 16;
/// Time for the thread of a session to end.
const ROOM: Duration = Duration::from_secs(1);

/// Memory of a session.
#[derive(Debug)]
pub(crate) struct Share {
    house: Arc<House>,
    bytes: u64,
}

impl Share {
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.house.memory.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

/// A path that is asked for.
#[derive(Debug)]
pub(crate) struct Slot(Arc<House>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.circuits.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a thread that panicked left behind is as good as what any other left.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a program's connection is refused, for its door: the number of a [`NackStatus`].
pub(crate) const fn code(status: NackStatus) -> u16 {
    status.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_cannot_have_more_sessions_of_a_route_end_than_so_many() {
        let text = "name = 'g'\n[[route]]\nto = ['a']\nvia = ['b:1']\n[[route]]\nto = ['*']\nvia = ['c:1']\n";
        let config = Config::parse(text).unwrap();
        let mut registers = Registers::default();
        let open = |registers: &mut Registers, route: usize| {
            let opener = Mailbox::of_nobody();
            let route = config.routes[route].clone();
            registers.openers.push((route, opener.clone()));
            opener
        };
        let mut ending = Vec::new();
        for _ in 0..RETIRED_MAX {
            let opener = open(&mut registers, 0);
            assert!(registers.may_retire(&opener));
            registers.retire(&opener);
            ending.push(opener);
        }
        let (last, other) = (open(&mut registers, 0), open(&mut registers, 1));
        assert!(!registers.may_retire(&last) && registers.may_retire(&other));
        assert!(registers.opener(&config.routes[0]).unwrap().is(&last));
        // When one of them is over there is room for another.
        registers.forget(&ending[0]);
        assert!(registers.may_retire(&last));
        // One whose peer has ended it gets nothing more, however many there are.
        registers.retire(&last);
        assert!(registers.opener(&config.routes[0]).is_none());
    }
}
