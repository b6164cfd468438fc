//! A gateway as a whole: listeners, inbound connections, sessions; started, drained, stopped.
//!
//! Map: `reach` whether its sessions can be opened · `reload` a changed configuration.

#![expect(
    clippy::disallowed_types,
    reason = "haul-io makes the stream that a caller is given"
)]

mod reach;
mod reload;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use haul_admin::server::Admin;
use haul_extender::{Extender, RdmaListener};
use haul_io::stream::Acceptor;
use haul_io::tcp;
use haul_verbs::{Context, Device, cm};
use haul_xsp::Directory;
use haul_xsp::wire::NackStatus;

use crate::access::AccessWriter;
use crate::admin;
use crate::budget::MemoryPlan;
use crate::caller::{Call, Caller, Party};
use crate::channel::{Means, Network};
use crate::config::{self, ChannelKind, Config, HostPort, Listen, ListenerKind, Route};
use crate::error::StartError;
use crate::health;
use crate::inbound;
use crate::listener::{Arrival, Listener, OpenError};
use crate::log::{Level, Log};
use crate::path::Backend;
use crate::rdma;
use crate::ready;
use crate::refusal::{Refusal, code};
use crate::resolver::Resolver;
use crate::session::{Worker, dispatch, open_session};
use crate::shared::{Secrets, SessionCommand, Shared};
use crate::status::Status;
use crate::sync::lock;
use haul_io::thread::Thread;

pub use reach::Reach;

/// How often a caller that waits for a session is asked whether to go on.
const LOOK: Duration = Duration::from_millis(20);
/// Data connections that may wait in a device's listener.
const BACKLOG: u32 = 64;

/// An open listener of any kind.
#[derive(Debug)]
enum OpenListener {
    Tcp(Listener),
    Rdma(RdmaListener),
}

impl OpenListener {
    fn local_addr(&self) -> SocketAddr {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Rdma(listener) => listener.local_addr(),
        }
    }
}

/// A running gateway. Dropping it ends all its sessions.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    /// Each with its configuration.
    listeners: Vec<(config::Listener, OpenListener)>,
    /// Bridges applications' RDMA connections.
    extender: Option<Thread>,
    inbound: Option<Thread>,
    /// Opens the sessions of routes that are `ready`.
    ready: Option<Thread>,
    /// Checks the ways of routes that have several.
    health: Option<Thread>,
    listen: Option<SocketAddr>,
    admin: Option<Admin>,
    stopped: AtomicBool,
}

impl Gateway {
    /// Starts a gateway. `device` returns the device for a kind of data channel. Blocks while it
    /// reads files and opens sockets.
    ///
    /// # Errors
    /// An address is in use or not this machine's, a key or certificate is unusable, or a device is
    /// missing.
    pub fn start(
        config: Config,
        device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
        log: Log,
    ) -> Result<Self, StartError> {
        let secrets = Secrets::load(&config).map_err(StartError)?;
        let path = Backend::new(&config.path).map_err(StartError)?;
        let resolver = Resolver::start().map_err(|error| StartError(error.to_string()))?;
        let seed = haul_io::random::bytes().map_err(|error| StartError(error.to_string()))?;
        let directory = Directory::new(config.sessions, config.allowed(), seed);
        let (networks, data_listeners) = networks(&config, &device)?;
        let access = config.access_log.as_ref().map(AccessWriter::open);
        let access = access.transpose().map_err(StartError)?;
        let (extender, runner) = config
            .rdma
            .as_ref()
            .map(|rdma| {
                device(ChannelKind::Verbs, Some(&rdma.device))
                    .and_then(|device| {
                        Extender::open(&device, rdma.plan(), rdma.connections.into())
                    })
                    .map_err(|why| StartError(format!("rdma: {why}")))
            })
            .transpose()?
            .unzip();
        let acceptor = config
            .listen
            .map(|listen| {
                Acceptor::bind(listen)
                    .map_err(|error| StartError(format!("cannot listen at {listen}: {error}")))
            })
            .transpose()?;
        let listen = acceptor
            .as_ref()
            .and_then(|acceptor| acceptor.local_addr().ok());
        let (listeners, admin) = (config.listeners.clone(), config.admin.clone());
        let shared = Arc::new(Shared::new(
            config,
            secrets,
            resolver,
            directory,
            (networks, extender),
            path,
            (Worker::open, log),
        ));
        shared.set_access(access);
        let inbound = inbound::open(&shared, acceptor, data_listeners)
            .map_err(|error| StartError(error.to_string()))?;
        let mut gateway = Self {
            shared,
            listeners: Vec::new(),
            extender: None,
            inbound: Some(inbound),
            ready: None,
            health: None,
            listen,
            admin: None,
            stopped: AtomicBool::new(false),
        };
        if let Some(runner) = runner {
            let thread = rdma::start(&gateway.shared, runner);
            gateway.extender = Some(thread.map_err(|error| StartError(error.to_string()))?);
        }
        if let Some(config) = admin {
            gateway.admin = Some(admin::open(&gateway.shared, &config).map_err(StartError)?);
        }
        for listener in listeners {
            let opened =
                open(&gateway.shared, &listener).map_err(|error| StartError(error.to_string()))?;
            gateway.listeners.push((listener, opened));
        }
        let ready = ready::start(&gateway.shared);
        gateway.ready = Some(ready.map_err(|error| StartError(error.to_string()))?);
        let health = health::start(&gateway.shared);
        gateway.health = Some(health.map_err(|error| StartError(error.to_string()))?);
        Ok(gateway)
    }

    /// Returns the address of the control listener.
    #[must_use]
    pub const fn listen_addr(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Returns the listening address of each kind of data channel that has one.
    #[must_use]
    pub fn channel_addrs(&self) -> Vec<(ChannelKind, SocketAddr)> {
        let listening = |network: &Network| Some((network.kind, network.listen?));
        self.shared.networks.iter().filter_map(listening).collect()
    }

    /// Returns the addresses of the listeners, in the order of the configuration.
    #[must_use]
    pub fn listener_addrs(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .map(|(_, listener)| listener.local_addr())
            .collect()
    }

    /// Returns the address of the administration server.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::local_addr)
    }

    /// Returns the sessions as they were at most 250 ms ago.
    #[must_use]
    pub fn sessions(&self) -> Vec<Status> {
        let statuses: Vec<_> = self.shared.registers().statuses.values().cloned().collect();
        statuses.iter().map(|status| lock(status).clone()).collect()
    }

    /// Returns the bytes of the configured memory that no session has taken.
    #[must_use]
    pub fn memory_left(&self) -> u64 {
        self.shared.memory_left()
    }

    /// Returns the memory plan of the present configuration.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        self.shared.config().memory_plan()
    }

    /// Returns whether all threads run. Meant for a watchdog: it blocks for ever if a thread holds
    /// a lock for ever.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        drop((self.shared.registers(), self.shared.directory()));
        let mut threads = self
            .inbound
            .iter()
            .chain(&self.ready)
            .chain(&self.health)
            .chain(&self.extender)
            .chain(self.admin.iter().map(Admin::thread));
        threads.all(Thread::is_running)
    }

    /// Logs how often lines have been repeated since they were logged. Call it every few seconds.
    pub fn flush_log(&self) {
        self.shared.log_repeats();
    }

    /// Requests a connection to `to` by its route. `caller` receives the outcome on another thread;
    /// `from` names it in log lines. Does not block.
    pub fn call(&self, from: &str, to: &HostPort, caller: Box<dyn Caller>) {
        let call = Call {
            party: Party::Own(caller),
            from: from.to_owned(),
            to: to.endpoint().clone(),
            named: None,
            metadata: haul_xsp::wire::Metadata::default(),
            began: self.shared.now(),
            is_again: false,
        };
        dispatch(&self.shared, call);
    }

    /// Asks for a connection as [`Self::call`] does. Blocks until there is one, at most for
    /// `patience`.
    ///
    /// # Errors
    /// States why there is no connection.
    pub fn connect(
        &self,
        from: &str,
        to: &HostPort,
        patience: Duration,
    ) -> Result<TcpStream, Refusal> {
        let (sender, result) = bounded(1);
        self.call(from, to, Box::new(Waiter(sender)));
        result
            .recv_timeout(patience)
            .unwrap_or_else(|error| Err(self.overdue(to, error)))
    }

    /// Opens the session of the route that leads to `to`, unless it is open. Blocks until the
    /// session can carry data, at most for `patience`, and while `goes_on` returns true; it is
    /// asked every 20 ms.
    ///
    /// # Errors
    /// States why the session cannot be opened.
    #[expect(
        clippy::disallowed_methods,
        reason = "a patience of the user's, not a protocol's time"
    )]
    pub fn open_session(
        &self,
        to: &HostPort,
        patience: Duration,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<(), Refusal> {
        let (sender, result) = bounded(1);
        let opening = lock(&self.shared.opening);
        let config = self.shared.config();
        let there = config
            .route(to.endpoint())
            .and_then(|route| self.shared.registers().opener(route).cloned());
        let opener = match there {
            Some(opener) => Ok(opener),
            None => open_session(&self.shared, to.endpoint()),
        };
        drop(opening);
        let opener = opener.map_err(|(status, why)| Refusal::new(code(status), Some(&why)))?;
        // If the session has ended, the sender is dropped.
        let _ = opener.send(SessionCommand::Await(sender));
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match result.recv_timeout(left.min(LOOK)) {
                Ok(opened) => return opened,
                Err(RecvTimeoutError::Timeout) if left > LOOK && goes_on() => {}
                Err(error) => return Err(self.overdue(to, error)),
            }
        }
    }

    fn overdue(&self, to: &HostPort, error: RecvTimeoutError) -> Refusal {
        let why = match error {
            RecvTimeoutError::Timeout => "no answer came in time",
            RecvTimeoutError::Disconnected => "the session ended",
        };
        let config = self.shared.config();
        let hops = config.route(to.endpoint()).map(|route| route.via.iter());
        let hops = hops.into_iter().flatten();
        let hops: Vec<String> = hops.map(|via| via.gateway().to_string()).collect();
        let text = format!("gateway {}: {why}", hops.join(", "));
        Refusal::new(code(NackStatus::TimedOut), Some(&text))
    }

    /// Stops accepting; open connections finish. Does not block.
    pub fn begin_drain(&mut self) {
        self.shared.drain();
        self.listeners.clear();
        (self.ready, self.health) = (None, None);
        self.shared.broadcast(|| SessionCommand::Drain);
    }

    /// Stops accepting, and blocks until all sessions have ended, at most for `patience`. Returns
    /// whether they have.
    pub fn drain(&mut self, patience: Duration) -> bool {
        self.begin_drain();
        self.wait(patience)
    }

    /// Blocks until all sessions have ended and all paths are taken down, at most for `patience`.
    /// Returns whether they have.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "a patience of the operator's, not a protocol's time"
    )]
    pub fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let registers = self.shared.registers();
            let is_empty = registers.sessions.is_empty() && registers.openers.is_empty();
            drop(registers);
            if is_empty && self.shared.circuits() == 0 {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Raises this process's limit of open files to the most allowed, and returns it. Each connection
/// takes one.
///
/// # Errors
/// A sandbox forbids it; the limit is unchanged.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    haul_io::process::raise_open_files()
}

/// A thread of this process that waits for a connection.
struct Waiter(Sender<Result<TcpStream, Refusal>>);

impl Caller for Waiter {
    fn accepted(self: Box<Self>) -> io::Result<TcpStream> {
        let (own, theirs) = tcp::pair()?;
        let sent = self.0.send(Ok(theirs));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(own)
    }

    fn refused(self: Box<Self>, why: &Refusal) {
        // The caller may have stopped waiting.
        let _ = self.0.send(Err(why.clone()));
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        self.listeners.clear();
        self.shared.drain();
        (self.ready, self.health) = (None, None);
        self.shared.broadcast(|| SessionCommand::Abort);
        let _ = self.wait(Duration::from_secs(2));
        self.inbound = None;
        self.extender = None;
        self.admin = None;
    }
}

/// Opens a listener and dispatches its connections to their sessions.
fn open(shared: &Arc<Shared>, listener: &config::Listener) -> Result<OpenListener, OpenError> {
    if listener.kind == ListenerKind::Rdma {
        return rdma::listen(shared, listener).map(OpenListener::Rdma);
    }
    let own = Arc::clone(shared);
    let teller = Arc::clone(shared);
    let deliver = move |arrival: Arrival| dispatch(&own, arrival.into());
    let opened = Listener::open(listener, deliver, move |text| teller.log_shortage(text))?;
    if listener.kind == ListenerKind::Transparent && !opened.takes_tproxy() {
        let text = "the listener accepts connections diverted by REDIRECT, but not by TPROXY, which needs CAP_NET_ADMIN";
        shared.log(Level::Warning, format!("{}: {text}", opened.local_addr()));
    }
    Ok(OpenListener::Tcp(opened))
}

fn networks(
    config: &Config,
    device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
) -> Result<(Vec<Network>, Vec<Acceptor>), StartError> {
    let mut kinds: Vec<(ChannelKind, Option<&Listen>)> = config
        .channels
        .iter()
        .map(|listen| (listen.kind, Some(listen)))
        .collect();
    // A kind that is only dialled needs no address.
    for kind in config.routes.iter().flat_map(Route::all_channels) {
        if kinds.iter().all(|(known, _)| *known != kind) {
            kinds.push((kind, None));
        }
    }
    let mut networks = Vec::new();
    let mut data_listeners = Vec::new();
    for (kind, listen) in kinds {
        match network(kind, &device, listen) {
            Ok((network, data_listener)) => {
                networks.push(network);
                data_listeners.extend(data_listener);
            }
            Err(why) if listen.is_some() => {
                return Err(StartError(format!("data channel {kind}: {why}")));
            }
            // A route may name kinds that this machine lacks.
            Err(_) => {}
        }
    }
    Ok((networks, data_listeners))
}

/// Prepares a kind of data channel, and opens its listener if this process accepts its connections.
fn network(
    kind: ChannelKind,
    device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
    listen: Option<&Listen>,
) -> Result<(Network, Option<Acceptor>), String> {
    let at = listen.map(|listen| listen.listen);
    let cannot_listen = |error: &dyn fmt::Display| match at {
        Some(at) => format!("cannot listen at {at}: {error}"),
        None => error.to_string(),
    };
    let (means, address, data_listener) = match kind {
        ChannelKind::Tcp => {
            let acceptor = at.map(Acceptor::bind).transpose();
            let acceptor = acceptor.map_err(|error| cannot_listen(&error))?;
            let address = acceptor.as_ref().map(Acceptor::local_addr);
            let address = address.transpose().map_err(text)?;
            (Means::Tcp, address, acceptor)
        }
        ChannelKind::IwarpUdt | ChannelKind::Verbs => {
            let name = listen.and_then(|listen| listen.device.as_deref());
            let context = device(kind, name)?.open().map_err(text)?;
            let (means, address) = of_device(context, at).map_err(|error| cannot_listen(&error))?;
            (means, address, None)
        }
    };
    let network = Network {
        kind,
        means,
        listen: address,
        public: listen.and_then(|listen| listen.public),
    };
    Ok((network, data_listener))
}

/// Prepares a kind of data channel that uses queue pairs.
fn of_device(
    context: Context,
    at: Option<SocketAddr>,
) -> Result<(Means, Option<SocketAddr>), haul_verbs::Error> {
    let events = context.create_event_channel()?;
    let listener = at.map(|at| context.listen(at, &events, BACKLOG));
    let listener = listener.transpose()?;
    let address = listener.as_ref().map(cm::Listener::local_addr);
    let means = Means::Connected {
        _listener: listener,
        context,
        events,
    };
    Ok((means, address))
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
