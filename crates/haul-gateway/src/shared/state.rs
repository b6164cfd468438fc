//! Configuration, memory, devices and log of a gateway, which all its sessions share.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_channel::bounded;
use haul_extender::Extender;
use haul_io::clock::Clock;
use haul_xsp::{Directory, SECOND_NS, SharedKey, Time};

use super::handle::{SessionCommand, SessionHandle};
use super::registers::Registers;
use super::secrets::Secrets;
use super::unauthenticated::Idle;
use crate::channel::Network;
use crate::config::{ChannelKind, Config, Route};
use crate::log::{Level, Log, Tail};
use crate::path::Backend;
use crate::rates::{Meter, Rates};
use crate::resolver::Resolver;
use crate::status::Totals;
use crate::sync::lock;
use crate::tls::TlsContext;

/// Starts the thread that opens the session of a route.
pub(crate) type OpenSession = fn(&Arc<Shared>, &Route) -> Result<SessionHandle, String>;

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
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
    open_session: OpenSession,
    log: Log,
    /// Before, nobody says again that this system is short of something, ns.
    short_until_ns: AtomicU64,
    pub(crate) tail: Tail,
    pub(crate) clock: Clock,
    /// When it was started.
    pub(crate) since_ns: u64,
    draining: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        secrets: Secrets,
        resolver: Resolver,
        directory: Directory,
        (networks, extender): (Vec<Network>, Option<Extender>),
        path: Backend,
        (open_session, log): (OpenSession, Log),
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
            open_session,
            log,
            short_until_ns: AtomicU64::new(0),
            tail: Tail::default(),
            clock: Clock::new(),
            since_ns: Clock::new().now_ns(),
            draining: AtomicBool::new(false),
        }
    }

    /// A command for every session, twice for those that this gateway has opened.
    pub(crate) fn broadcast(&self, command: impl Fn() -> SessionCommand) {
        let registers = self.registers();
        let handles: Vec<_> = registers
            .sessions
            .values()
            .chain(registers.openers.iter().map(|(_, opener)| opener))
            .cloned()
            .collect();
        drop(registers);
        for handle in handles {
            // Who is gone needs no command.
            let _ = handle.send(command());
        }
    }

    /// Starts the thread that opens the session of `route`.
    pub(crate) fn open_session(self: &Arc<Self>, route: &Route) -> Result<SessionHandle, String> {
        (self.open_session)(self, route)
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
            shared: Arc::clone(self),
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
        for _ in 0..=EVICTIONS_MAX {
            if let Some(taken) = take() {
                return Some(taken);
            }
            let now_ns = self.clock.now_ns();
            let mut registers = self.registers();
            let left = registers.abandoned.bytes(now_ns);
            let idle = from.map(|from| registers.unauthenticated.leavers(from, now_ns, false));
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
    pub(crate) fn reserve(&self, handle: &SessionHandle, bytes: u64, from: IpAddr) -> Option<Idle> {
        let most = (self.memory_size / 4 * 3).max(bytes);
        for _ in 0..=EVICTIONS_MAX {
            let mut registers = self.registers();
            if registers.unauthenticated.bytes_of(from) + bytes <= most {
                return Some(registers.unauthenticated.add(handle.clone(), from, bytes));
            }
            let now_ns = self.clock.now_ns();
            let Registers {
                unauthenticated,
                abandoned,
                ..
            } = &mut *registers;
            let idle = unauthenticated
                .leavers(from, now_ns, true)
                .into_iter()
                .next();
            let left = || abandoned.make_room_of(now_ns, |one| unauthenticated.is_of(one, from));
            let leaver = idle.map(|(leaver, _)| leaver).or_else(left)?;
            drop(registers);
            self.ask_to_leave(&leaver);
        }
        None
    }

    fn ask_to_leave(&self, leaver: &SessionHandle) {
        let (asked, answer) = bounded(1);
        // A session that is over has made room.
        let _ = leaver.send(SessionCommand::MakeRoom(Some(asked)));
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
    pub(crate) fn log_shortage(&self, text: impl AsRef<str>) {
        let now_ns = self.clock.now_ns();
        let until_ns = self.short_until_ns.load(Ordering::Acquire);
        let next_ns = now_ns + SHORT_NS;
        let is_first = now_ns >= until_ns
            && self
                .short_until_ns
                .compare_exchange(until_ns, next_ns, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if is_first {
            self.log(Level::Error, text);
        }
    }

    pub(crate) fn log(&self, level: Level, text: impl AsRef<str>) {
        let text = text.as_ref();
        self.log.line(level, text);
        self.tail.push(self.clock.now_ns(), level, text);
    }
}

/// Time between two lines that say that this system is short of something, ns.
const SHORT_NS: u64 = 10 * SECOND_NS;

/// Sessions that are asked to make room for one.
const EVICTIONS_MAX: usize = 16;
/// Time for the thread of a session to end.
const ROOM: Duration = Duration::from_secs(1);

/// Memory of a session.
#[derive(Debug)]
pub(crate) struct Share {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Share {
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.memory.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

/// A path that is asked for.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Shared>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.circuits.fetch_sub(1, Ordering::AcqRel);
    }
}
