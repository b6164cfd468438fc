//! Configuration, memory, devices and log of a gateway, which all its sessions share.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_channel::bounded;
use haul_extender::Extender;
use haul_io::clock::Clock;
use haul_xsp::wire::NackStatus;
use haul_xsp::{Directory, SECOND_NS, SharedKey, Time};

use super::handle::{SessionCommand, SessionHandle};
use super::health::Health;
use super::registers::Registers;
use super::secrets::Secrets;
use super::unauthenticated::Idle;
use crate::access::{Access, AccessWriter, Outcome};
use crate::caller::Call;
use crate::channel::Network;
use crate::config::{ChannelKind, Config, Route};
use crate::host::Shown;
use crate::log::{Admission, Kind, Level, Log, Repeats, Tail};
use crate::path::Backend;
use crate::rates::{Meter, Rates};
use crate::refusal::{code, meaning};
use crate::resolver::Resolver;
use crate::status::Totals;
use crate::sync::lock;
use crate::tls::TlsContext;

/// Starts the thread that opens the session of a route.
pub(crate) type OpenSession = fn(&Arc<Shared>, &Route) -> Result<SessionHandle, String>;

/// The state that all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    config: Mutex<Arc<Config>>,
    keys: Mutex<Vec<(String, SharedKey)>>,
    tls: Mutex<Option<Arc<TlsContext>>>,
    pub(crate) resolver: Resolver,
    directory: Mutex<Directory>,
    registers: Mutex<Registers>,
    pub(crate) networks: Vec<Network>,
    /// The range extender, for applications' RDMA connections.
    pub(crate) extender: Option<Extender>,
    /// Bytes of the configured memory that are left.
    memory: AtomicU64,
    /// The configured memory, bytes.
    pub(crate) memory_size: u64,
    totals: Mutex<Totals>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) health: Health,
    path: Mutex<Arc<Backend>>,
    /// Paths that are wanted or being taken down.
    circuits: AtomicUsize,
    /// Held while a session is opened for a route, or the routes change.
    pub(crate) opening: Mutex<()>,
    open_session: OpenSession,
    log: Log,
    repeats: Repeats,
    access: Mutex<Option<AccessWriter>>,
    /// Before, no line about a shortage is logged, ns.
    short_until_ns: AtomicU64,
    pub(crate) tail: Tail,
    pub(crate) clock: Clock,
    /// When the gateway was started, ns.
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
            health: Health::default(),
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
            repeats: Repeats::default(),
            access: Mutex::default(),
            short_until_ns: AtomicU64::new(0),
            tail: Tail::default(),
            clock: Clock::new(),
            since_ns: Clock::new().now_ns(),
            draining: AtomicBool::new(false),
        }
    }

    /// Sends a command to every session; twice to those that this gateway opened.
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
            // The session may have ended.
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

    /// Returns the certificates, if configured: then control connections use TLS.
    pub(crate) fn tls(&self) -> Option<Arc<TlsContext>> {
        lock(&self.tls).clone()
    }

    /// Returns the back end for paths.
    pub(crate) fn path(&self) -> Arc<Backend> {
        Arc::clone(&lock(&self.path))
    }

    /// Takes one path of at most `most`; dropping the slot returns it.
    pub(crate) fn take_circuit(self: &Arc<Self>, most: usize) -> Option<Slot> {
        let more = |there: usize| (there < most).then_some(there + 1);
        let taken = self
            .circuits
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Slot(Arc::clone(self)))
    }

    /// Returns the number of paths that are wanted or being taken down.
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

    /// Changes the counters of the gateway.
    pub(crate) fn count(&self, what: impl FnOnce(&mut Totals)) {
        what(&mut lock(&self.totals));
    }

    pub(crate) fn totals(&self) -> Totals {
        lock(&self.totals).clone()
    }

    /// Writes the access log from now on with `writer`. The earlier one writes its queued lines.
    pub(crate) fn set_access(&self, writer: Option<AccessWriter>) {
        let earlier = std::mem::replace(&mut *lock(&self.access), writer);
        drop(earlier);
    }

    /// Refuses a connection that has no session, and counts and logs that. `session` states why, if
    /// the reason is the session.
    pub(crate) fn turn_away(&self, call: Call, status: NackStatus, session: Option<&str>) {
        let access = Access {
            client: call.from,
            gateway: None,
            identity: None,
            target: Shown(&call.to).to_string(),
            received: 0,
            sent: 0,
            began: call.began,
            ended: self.now(),
            outcome: Outcome::Refused(code(status)),
        };
        self.note_ended(&access, session);
        call.party.refuse(code(status), session);
    }

    /// Counts and logs a connection that has ended. `why` states why it was refused, if more is
    /// known than its status.
    pub(crate) fn note_ended(&self, access: &Access, why: Option<&str>) {
        if let Outcome::Refused(status) = access.outcome {
            let meaning = meaning(status);
            self.count(|totals| totals.refuse(meaning.name));
            // Another connection of the client comes from another port, and is a repetition.
            let client = &access.client;
            let host = client
                .parse::<SocketAddr>()
                .map(|client| client.ip().to_string());
            let (client, target) = (host.as_deref().unwrap_or(client), &access.target);
            let gateway = access
                .gateway
                .iter()
                .map(|name| format!(" of {}", name.escape_debug()));
            let gateway: String = gateway.collect();
            let why = why.unwrap_or(meaning.text);
            let text = format!("client {client}{gateway}: no connection to {target}: {why}");
            self.log_kind(Level::Warning, Kind::Connection, &text);
        }
        if let Some(writer) = &*lock(&self.access) {
            writer.record(access, self.now());
        }
    }

    pub(crate) fn network(&self, kind: ChannelKind) -> Option<&Network> {
        self.networks.iter().find(|network| network.kind == kind)
    }

    /// Takes slab memory; dropping the share returns it. `None`: too little is left.
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

    /// Calls `take` until it succeeds, evicting a session after each failure. If the evictions
    /// cannot free `bytes`, nothing is evicted. Abandoned sessions go first. Then, for a session
    /// that came `from` an address, idle sessions of unauthenticated owners.
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
            // Abandoned sessions are already counted.
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

    /// Reserves `bytes` for a session of an unauthenticated owner at `from`. All such sessions of
    /// one source together may have three quarters of the memory; one session always fits. To make
    /// room, idle sessions of that source are evicted, and then abandoned ones. `None`: the source
    /// has reached its limit.
    pub(crate) fn reserve(&self, handle: &SessionHandle, bytes: u64, from: IpAddr) -> Option<Idle> {
        let most = self.most_of_source().max(bytes);
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

    /// Returns the most memory of all unauthenticated sessions of one source, bytes.
    const fn most_of_source(&self) -> u64 {
        self.memory_size / 4 * 3
    }

    /// Counts `bytes` more for a session, if it is one of an unauthenticated owner. Returns whether
    /// its source may have them.
    pub(crate) fn may_grow(&self, handle: &SessionHandle, bytes: u64) -> bool {
        let most = self.most_of_source();
        let mut registers = self.registers();
        registers.unauthenticated.grow(handle, bytes, most)
    }

    /// Takes back what a session has returned.
    pub(crate) fn note_shrunk(&self, handle: &SessionHandle, bytes: u64) {
        self.registers().unauthenticated.shrink(handle, bytes);
    }

    fn ask_to_leave(&self, leaver: &SessionHandle) {
        let (asked, answer) = bounded(1);
        // A session that has ended has made room.
        let _ = leaver.send(SessionCommand::MakeRoom(Some(asked)));
        // Nothing is sent: the drop of the sender is the answer.
        let _ = answer.recv_timeout(ROOM);
    }

    /// Returns the rate limit of a class's sessions.
    pub(crate) fn meter(&self, class: Option<&str>) -> Meter {
        Meter {
            rates: Arc::clone(&self.rates),
            class: self.rates.class(class),
        }
    }

    /// Returns the bytes of slab memory left.
    pub(crate) fn memory_left(&self) -> u64 {
        self.memory.load(Ordering::Acquire)
    }

    /// Starts to refuse new sessions and connections.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Logs that a resource ran out; at most once in ten seconds.
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
        self.log_kind(level, Kind::Plain, text.as_ref());
    }

    fn log_kind(&self, level: Level, kind: Kind, text: &str) {
        let now_ns = self.clock.now_ns();
        self.log_repeats();
        match self.repeats.admit(now_ns, level, kind, text) {
            Admission::New => {
                self.log.line(level, text);
                self.tail.push(now_ns, level, text);
            }
            Admission::Repeats => self.tail.repeat(now_ns, level, text),
            Admission::LeftOut => {}
        }
    }

    /// Logs how often lines have been repeated, where that is due. The page shows it at each line.
    pub(crate) fn log_repeats(&self) {
        for (level, text) in self.repeats.take_due(self.clock.now_ns()) {
            self.log.line(level, &text);
        }
    }
}

/// Interval between two lines about shortages, ns.
const SHORT_NS: u64 = 10 * SECOND_NS;

/// Most sessions evicted for one.
const EVICTIONS_MAX: usize = 16;
/// Time for a session's thread to end.
const ROOM: Duration = Duration::from_secs(1);

/// Memory of a session, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Share {
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes more. Returns whether so much is left.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let Some(mut more) = self.shared.take_memory(bytes) else {
            return false;
        };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// Returns some of it.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.shared.memory.fetch_add(bytes, Ordering::AcqRel);
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
