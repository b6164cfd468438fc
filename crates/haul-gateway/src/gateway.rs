//! A gateway as a whole: doors, reception, sessions; started, drained, stopped.
//!
//! Map: `reach` whether its sessions could be had · `reload` a changed configuration.

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
use haul_io::stream::Acceptor;
use haul_io::tcp;
use haul_soft::udt::plain;
use haul_verbs::cm::Listener;
use haul_verbs::{Context, Device};
use haul_xsp::Directory;
use haul_xsp::wire::{Endpoint, NackStatus};

use crate::admin::Admin;
use crate::budget::MemoryPlan;
use crate::caller::{Call, Caller, Party, Refusal};
use crate::config::{self, ChannelKind, Config, DoorKind, Listen, Route};
use crate::door::{Arrival, Door, OpenError};
use crate::engine::{Worker, udt_options};
use crate::extender::{self, Extender, RdmaDoor};
use crate::host::{HostPort, Shown};
use crate::house::{House, Letter, Mailbox, Means, Network, Secrets, code, lock};
use crate::keeper;
use crate::log::{Level, Log};
use crate::path::Backend;
use crate::reception::{self, Entrance};
use crate::resolver::Resolver;
use crate::status::Status;
use crate::thread::Thread;

pub use reach::Reach;

/// How often whoever waits for a session is asked whether to go on.
const LOOK: Duration = Duration::from_millis(20);
/// Data connections that wait to be taken.
const BACKLOG: u32 = 64;

/// A door of any kind, open until it is dropped.
#[derive(Debug)]
enum OpenDoor {
    Tcp(Door),
    Rdma(RdmaDoor),
}

impl OpenDoor {
    fn local_addr(&self) -> SocketAddr {
        match self {
            Self::Tcp(door) => door.local_addr(),
            Self::Rdma(door) => door.local_addr(),
        }
    }
}

/// Why a gateway cannot start, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub(crate) String);

/// A running gateway. Dropping it ends all its sessions.
#[derive(Debug)]
pub struct Gateway {
    house: Arc<House>,
    /// Each with what the operator wrote.
    doors: Vec<(config::Door, OpenDoor)>,
    /// Bridges RDMA connections of applications.
    extender: Option<Thread>,
    reception: Option<Thread>,
    /// Opens the sessions of routes that are `ready`.
    keeper: Option<Thread>,
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
        let (networks, entrances) = networks(&config, &device)?;
        let (extender, means) = config
            .rdma
            .as_ref()
            .map(|rdma| {
                device(ChannelKind::Verbs, Some(&rdma.device))
                    .and_then(|device| Extender::open(&device, rdma))
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
        let (doors, admin) = (config.doors.clone(), config.admin.clone());
        let house = Arc::new(House::new(
            config,
            secrets,
            resolver,
            directory,
            (networks, extender),
            path,
            log,
        ));
        let reception = reception::open(&house, acceptor, entrances)
            .map_err(|error| StartError(error.to_string()))?;
        let mut gateway = Self {
            house,
            doors: Vec::new(),
            extender: None,
            reception: Some(reception),
            keeper: None,
            listen,
            admin: None,
            stopped: AtomicBool::new(false),
        };
        if let Some(means) = means {
            let thread = extender::start(&gateway.house, means);
            gateway.extender = Some(thread.map_err(|error| StartError(error.to_string()))?);
        }
        if let Some(admin) = admin {
            gateway.admin = Some(Admin::open(&gateway.house, &admin).map_err(StartError)?);
        }
        for door in doors {
            let opened =
                open(&gateway.house, &door).map_err(|error| StartError(error.to_string()))?;
            gateway.doors.push((door, opened));
        }
        let keeper = keeper::start(&gateway.house);
        gateway.keeper = Some(keeper.map_err(|error| StartError(error.to_string()))?);
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
        self.house.networks.iter().filter_map(listening).collect()
    }

    /// Where its doors are, in the order of the configuration.
    #[must_use]
    pub fn door_addrs(&self) -> Vec<SocketAddr> {
        self.doors
            .iter()
            .map(|(_, door)| door.local_addr())
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
        let statuses: Vec<_> = self.house.registers().statuses.values().cloned().collect();
        statuses.iter().map(|status| lock(status).clone()).collect()
    }

    /// Octets that slabs may still take.
    #[must_use]
    pub fn memory_left(&self) -> u64 {
        self.house.memory_left()
    }

    /// What it may take.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        self.house.config().memory_plan()
    }

    /// Whether its threads are there and what they share can be had. It does not return where that
    /// cannot: for a watchdog.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        drop((self.house.registers(), self.house.directory()));
        let mut threads = self
            .reception
            .iter()
            .chain(&self.keeper)
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
        dispatch(&self.house, call);
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
        let opening = lock(&self.house.opening);
        let config = self.house.config();
        let there = config
            .route(to.endpoint())
            .and_then(|route| self.house.registers().opener(route).cloned());
        let opener = match there {
            Some(opener) => Ok(opener),
            None => open_session(&self.house, to.endpoint()),
        };
        drop(opening);
        let opener = opener.map_err(|(status, why)| Refusal::new(code(status), Some(&why)))?;
        // Where it is over already, the sender is dropped.
        let _ = opener.post(Letter::Await(sender));
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
        let config = self.house.config();
        let hops = config.route(to.endpoint()).map(|route| route.via.iter());
        let hops = hops.into_iter().flatten();
        let hops: Vec<String> = hops.map(|via| via.gateway().to_string()).collect();
        let text = format!("gateway {}: {why}", hops.join(", "));
        Refusal::new(code(NackStatus::TimedOut), Some(&text))
    }

    /// Takes nothing new from now on; what there is finishes.
    pub fn begin_drain(&mut self) {
        self.house.drain();
        self.doors.clear();
        self.keeper = None;
        self.house.tell_all(|| Letter::Drain);
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
            let registers = self.house.registers();
            let is_empty = registers.sessions.is_empty() && registers.openers.is_empty();
            drop(registers);
            if is_empty && self.house.circuits() == 0 {
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
        self.doors.clear();
        self.house.drain();
        self.keeper = None;
        self.house.tell_all(|| Letter::Abort);
        let _ = self.wait(Duration::from_secs(2));
        self.reception = None;
        self.extender = None;
        self.admin = None;
    }
}

/// Opens a door through which connections come to their sessions.
fn open(house: &Arc<House>, door: &config::Door) -> Result<OpenDoor, OpenError> {
    if door.kind == DoorKind::Rdma {
        return open_rdma(house, door).map(OpenDoor::Rdma);
    }
    let own = Arc::clone(house);
    let teller = Arc::clone(house);
    let deliver = move |arrival: Arrival| dispatch(&own, arrival.into());
    let opened = Door::open(door, deliver, move |text| teller.say_short(text))?;
    if door.kind == DoorKind::Transparent && !opened.takes_tproxy() {
        let text =
            "this door takes what REDIRECT diverts, but not TPROXY: that needs CAP_NET_ADMIN";
        house.say(Level::Warning, format!("{}: {text}", opened.local_addr()));
    }
    Ok(OpenDoor::Tcp(opened))
}

fn open_rdma(house: &House, door: &config::Door) -> Result<RdmaDoor, OpenError> {
    let address = door.listen;
    let to = door.to.as_ref().ok_or(OpenError::NoDestination(address))?;
    let none = || io::Error::other("there was no [rdma] when the gateway was started");
    house
        .extender
        .as_ref()
        .ok_or_else(none)
        .and_then(|extender| extender.listen(door, to.endpoint().clone()))
        .map_err(|source| OpenError::System { address, source })
}

fn networks(
    config: &Config,
    device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
) -> Result<(Vec<Network>, Vec<Entrance>), StartError> {
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
    let mut entrances = Vec::new();
    for (kind, listen) in kinds {
        match network(kind, &device, listen) {
            Ok((network, entrance)) => {
                networks.push(network);
                entrances.extend(entrance);
            }
            Err(why) if listen.is_some() => {
                return Err(StartError(format!("data channel {kind}: {why}")));
            }
            // A route names what it would like.
            Err(_) => {}
        }
    }
    Ok((networks, entrances))
}

/// What data channels of a kind are made with, and where they come in if that is for this process
/// to say.
fn network(
    kind: ChannelKind,
    device: impl Fn(ChannelKind, Option<&str>) -> Result<Device, String>,
    listen: Option<&Listen>,
) -> Result<(Network, Option<Entrance>), String> {
    let at = listen.map(|listen| listen.listen);
    let (means, address, entrance) = match kind {
        ChannelKind::Tcp => {
            let acceptor = at.map(Acceptor::bind).transpose().map_err(text)?;
            let address = acceptor.as_ref().map(Acceptor::local_addr);
            let address = address.transpose().map_err(text)?;
            (Means::Tcp, address, acceptor.map(Entrance::Tcp))
        }
        ChannelKind::Udt => {
            let listener = at.map(|at| plain::Listener::bind(at, udt_options()));
            let listener = listener.transpose().map_err(text)?;
            let address = listener.as_ref().map(plain::Listener::local_addr);
            let entrance = listener.map(|listener| Entrance::Udt(Box::new(listener)));
            (Means::Udt, address, entrance)
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
    Ok((network, entrance))
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
    let address = listener.as_ref().map(Listener::local_addr);
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

/// A connection goes to the session of its route, which is opened if it is not there.
pub(crate) fn dispatch(house: &Arc<House>, call: Call) {
    let Some(call) = hand_in(house, call) else {
        return;
    };
    // Of connections that come together one opens the session.
    let _opening = lock(&house.opening);
    let Some(call) = hand_in(house, call) else {
        return;
    };
    match open_session(house, &call.to) {
        Ok(opener) => {
            // It has just begun, and may be over already.
            if let Err(back) = opener.post(Letter::Call(call))
                && let Letter::Call(call) = *back
            {
                call.refuse(NackStatus::CannotConnect, None);
            }
        }
        Err((status, why)) => {
            let text = format!("no session for {}: {why}", Shown(&call.to));
            house.say(Level::Error, &text);
            turn_away(house, call, status, Some(&text));
        }
    }
}

/// Opens the session of the route that leads to `to`. Whoever calls it holds `opening`.
fn open_session(house: &Arc<House>, to: &Endpoint) -> Result<Mailbox, (NackStatus, String)> {
    let config = house.config();
    let no_route = || (NackStatus::NoRoute, "no route leads there".to_owned());
    open_route(house, config.route(to).ok_or_else(no_route)?)
}

/// Opens the session of a route. Whoever calls it holds `opening`.
pub(crate) fn open_route(
    house: &Arc<House>,
    route: &Route,
) -> Result<Mailbox, (NackStatus, String)> {
    let opener = Worker::open(house, route).map_err(|why| (NackStatus::Busy, why))?;
    let mut registers = house.registers();
    registers.openers.retain(|(known, _)| known != route);
    registers.openers.push((route.clone(), opener.clone()));
    Ok(opener)
}

/// A connection goes to the session of its route, or is refused if there is no route; it comes back
/// if there is no session.
fn hand_in(house: &House, call: Call) -> Option<Call> {
    let config = house.config();
    let Some(route) = config.route(&call.to).filter(|_| !house.is_draining()) else {
        let text = format!("{}: no route leads to {}", call.from, Shown(&call.to));
        house.say(Level::Warning, text);
        turn_away(house, call, NackStatus::NoRoute, None);
        return None;
    };
    let registers = house.registers();
    let Some(opener) = registers.opener(route) else {
        return Some(call);
    };
    match opener.post(Letter::Call(call)).map_err(|back| *back) {
        Err(Letter::Call(back)) => Some(back),
        _ => None,
    }
}

fn turn_away(house: &House, call: Call, status: NackStatus, session: Option<&str>) {
    house.count(|totals| totals.connections_refused += 1);
    call.refuse(status, session);
}
