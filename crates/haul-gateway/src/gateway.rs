//! A gateway as a whole: listeners, inbound connections, sessions; started, drained, stopped.
//!
//! Map: `reach` whether its sessions can be opened · `reload` a changed configuration.

#![expect(
    clippy::disallowed_types,
    reason = "haul-io makes the stream that a caller is given"
)]

mod reach;
mod reload;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use haul_extender::{Extender, RdmaListener};
use haul_io::stream::Acceptor;
use haul_io::tcp;
use haul_soft::udt::plain;
use haul_verbs::{Context, Device, cm};
use haul_xsp::Directory;
use haul_xsp::wire::NackStatus;

use crate::admin::Admin;
use crate::budget::MemoryPlan;
use crate::caller::{Call, Caller, Party};
use crate::channel::{Means, Network, udt_options};
use crate::config::{self, ChannelKind, Config, HostPort, Listen, ListenerKind, Route};
use crate::error::StartError;
use crate::inbound::{self, DataListener};
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
use crate::thread::Thread;

pub use reach::Reach;

/// How often whoever waits for a session is asked whether to go on.
const LOOK: Duration = Duration::from_millis(20);
/// Data connections that wait to be taken.
const BACKLOG: u32 = 64;

/// A listener of any kind, open until it is dropped.
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
    /// Each with what the operator wrote.
    listeners: Vec<(config::Listener, OpenListener)>,
    /// Bridges RDMA connections of applications.
    extender: Option<Thread>,
    inbound: Option<Thread>,
    /// Opens the sessions of routes that are `ready`.
    ready: Option<Thread>,
    listen: Option<SocketAddr>,
    admin: Option<Admin>,
    stopped: AtomicBool,
}

impl Gateway {
    /// Starts what `config` says. `device` gives the device of a kind of data channel.
    ///
    /// # Errors
    /// An address that cannot be listened at, a key that cannot be read, a device that there is
    /// not.
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
        let inbound = inbound::open(&shared, acceptor, data_listeners)
            .map_err(|error| StartError(error.to_string()))?;
        let mut gateway = Self {
            shared,
            listeners: Vec::new(),
            extender: None,
            inbound: Some(inbound),
            ready: None,
            listen,
            admin: None,
            stopped: AtomicBool::new(false),
        };
        if let Some(runner) = runner {
            let thread = rdma::start(&gateway.shared, runner);
            gateway.extender = Some(thread.map_err(|error| StartError(error.to_string()))?);
        }
        if let Some(admin) = admin {
            gateway.admin = Some(Admin::open(&gateway.shared, &admin).map_err(StartError)?);
        }
        for listener in listeners {
            let opened =
                open(&gateway.shared, &listener).map_err(|error| StartError(error.to_string()))?;
            gateway.listeners.push((listener, opened));
        }
        let ready = ready::start(&gateway.shared);
        gateway.ready = Some(ready.map_err(|error| StartError(error.to_string()))?);
        Ok(gateway)
    }

    /// Where it takes control connections.
    #[must_use]
    pub const fn listen_addr(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Where its data channels come in, of each kind that does.
    #[must_use]
    pub fn channel_addrs(&self) -> Vec<(ChannelKind, SocketAddr)> {
        let listening = |network: &Network| Some((network.kind, network.listen?));
        self.shared.networks.iter().filter_map(listening).collect()
    }

    /// Where its listeners are, in the order of the configuration.
    #[must_use]
    pub fn listener_addrs(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .map(|(_, listener)| listener.local_addr())
            .collect()
    }

    /// Where its page and its metrics are.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::local_addr)
    }

    /// Its sessions as they were a moment ago.
    #[must_use]
    pub fn sessions(&self) -> Vec<Status> {
        let statuses: Vec<_> = self.shared.registers().statuses.values().cloned().collect();
        statuses.iter().map(|status| lock(status).clone()).collect()
    }

    /// Octets that slabs may still take.
    #[must_use]
    pub fn memory_left(&self) -> u64 {
        self.shared.memory_left()
    }

    /// What it may take.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        self.shared.config().memory_plan()
    }

    /// Whether its threads are there and what they share can be had. It does not return where that
    /// cannot: for a watchdog.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        drop((self.shared.registers(), self.shared.directory()));
        let mut threads = self
            .inbound
            .iter()
            .chain(&self.ready)
            .chain(&self.extender)
            .chain(self.admin.iter().map(Admin::thread));
        threads.all(Thread::is_running)
    }

    /// Asks for a connection to `to` on behalf of this process, by the route that leads there;
    /// `caller` learns what becomes of it, on another thread. `from` names it for people.
    pub fn call(&self, from: &str, to: &HostPort, caller: Box<dyn Caller>) {
        let call = Call {
            party: Party::Own(caller),
            from: from.to_owned(),
            to: to.endpoint().clone(),
            named: None,
            metadata: haul_xsp::wire::Metadata::default(),
            is_again: false,
        };
        dispatch(&self.shared, call);
    }

    /// As [`Self::call`], and waits until there is a connection, at most for `patience`.
    ///
    /// # Errors
    /// Why there is none.
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

    /// Opens the session of the route that leads to `to`, if it is not there, and waits until
    /// octets can go through it, at most for `patience`, and as long as `goes_on`, which is asked
    /// again and again, says so.
    ///
    /// # Errors
    /// Why it cannot be had.
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
        // Where it is over already, the sender is dropped.
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

    /// Takes nothing new from now on; what there is finishes.
    pub fn begin_drain(&mut self) {
        self.shared.drain();
        self.listeners.clear();
        self.ready = None;
        self.shared.broadcast(|| SessionCommand::Drain);
    }

    /// Takes nothing new, lets what there is finish, and waits until all sessions are over or
    /// `patience` has passed; whether they are.
    pub fn drain(&mut self, patience: Duration) -> bool {
        self.begin_drain();
        self.wait(patience)
    }

    /// Waits until all sessions are over and all that they asked of the network is taken down, or
    /// `patience` has passed; whether they are.
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

/// Lets this process have as many sockets as its owner may allow it; how many, if there is a limit.
/// Each connection of a program takes one.
///
/// # Errors
/// A sandbox may forbid it: then it has what it has.
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
        // Whoever does not wait any more need not know.
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
        self.ready = None;
        self.shared.broadcast(|| SessionCommand::Abort);
        let _ = self.wait(Duration::from_secs(2));
        self.inbound = None;
        self.extender = None;
        self.admin = None;
    }
}

/// Opens a listener through which connections come to their sessions.
fn open(shared: &Arc<Shared>, listener: &config::Listener) -> Result<OpenListener, OpenError> {
    if listener.kind == ListenerKind::Rdma {
        return rdma::listen(shared, listener).map(OpenListener::Rdma);
    }
    let own = Arc::clone(shared);
    let teller = Arc::clone(shared);
    let deliver = move |arrival: Arrival| dispatch(&own, arrival.into());
    let opened = Listener::open(listener, deliver, move |text| teller.log_shortage(text))?;
    if listener.kind == ListenerKind::Transparent && !opened.takes_tproxy() {
        let text =
            "this listener takes what REDIRECT diverts, but not TPROXY: that needs CAP_NET_ADMIN";
        shared.log(Level::Warning, format!("{}: {text}", opened.local_addr()));
    }
    Ok(OpenListener::Tcp(opened))
}

fn networks(
    config: &Config,
    device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
) -> Result<(Vec<Network>, Vec<DataListener>), StartError> {
    let mut kinds: Vec<(ChannelKind, Option<&Listen>)> = config
        .channels
        .iter()
        .map(|listen| (listen.kind, Some(listen)))
        .collect();
    // What is only used outwards needs no address.
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
            // A route names what it would like.
            Err(_) => {}
        }
    }
    Ok((networks, data_listeners))
}

/// What data channels of a kind are made with, and where they come in if that is for this process
/// to say.
fn network(
    kind: ChannelKind,
    device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
    listen: Option<&Listen>,
) -> Result<(Network, Option<DataListener>), String> {
    let at = listen.map(|listen| listen.listen);
    let (means, address, data_listener) = match kind {
        ChannelKind::Tcp => {
            let acceptor = at.map(Acceptor::bind).transpose().map_err(text)?;
            let address = acceptor.as_ref().map(Acceptor::local_addr);
            let address = address.transpose().map_err(text)?;
            (Means::Tcp, address, acceptor.map(DataListener::Tcp))
        }
        ChannelKind::Udt => {
            let listener = at.map(|at| plain::Listener::bind(at, udt_options()));
            let listener = listener.transpose().map_err(text)?;
            let address = listener.as_ref().map(plain::Listener::local_addr);
            let data_listener = listener.map(|listener| DataListener::Udt(Box::new(listener)));
            (Means::Udt, address, data_listener)
        }
        _ => {
            let name = listen.and_then(|listen| listen.device.as_deref());
            let context = device(kind, name)?.open().map_err(text)?;
            let (means, address) = of_device(kind, context, at).map_err(text)?;
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

/// What data channels are made with that are queue pairs, and where they come in.
fn of_device(
    kind: ChannelKind,
    context: Context,
    at: Option<SocketAddr>,
) -> Result<(Means, Option<SocketAddr>), haul_verbs::Error> {
    if kind == ChannelKind::Udp {
        return Ok((Means::Datagram { context }, at));
    }
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
