//! The server: one directory, many sessions, one thread per session.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use haul_control::audit::Audit;
use haul_control::server::{self as control, Client, Data, Service};
use haul_control::trust::{Rights, ServerConfig};
pub use haul_io::address::{listen_address, own as own_addresses};
use haul_soft::udt::Listener;

use crate::channel::tcp::{STREAM_HEADER_REST, parse_stream_header};
use crate::channel::{Acceptors, Opening, udt};
use crate::entry::{Entry, What};
use crate::fault::{Code, Fault, plain};
use crate::fs::walk;
use crate::link::Link;
use crate::ports::Ports;
use crate::printable;
use crate::report::{Event, Observer, count_of};
use crate::session::plan::Destination;
use crate::session::{bench, receiver, sender};
use crate::sources::Sources;
use crate::wire::{Bench, DATA_PREAMBLE, Get, Message, OPERANDS_MAX, Policy, Put, SERVICE};

mod asked;
mod counters;
mod listing;
mod permit;
mod reading;
mod root;
mod shared;
mod table;

use asked::{next, open_channel};
use counters::{Counters, Direction, Moved};
pub use counters::{Counts, Sessions};
use listing::Listing;
use permit::permit;
use reading::Reading;
pub use root::Root;
use shared::{Record, Shared};
use table::{SessionSlot, Table};

/// Default of [`Config::sessions_max`].
pub const SESSIONS_DEFAULT: usize = 64;

/// Configuration of a server.
#[derive(Clone)]
pub struct Config {
    /// What is served.
    pub root: Root,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Refuse to receive files.
    pub read_only: bool,
    /// Maximum number of concurrent sessions.
    pub sessions_max: usize,
    /// Identities of the server, and whom it admits.
    pub control: ServerConfig,
    /// What else the port serves.
    pub services: Vec<Arc<dyn Service>>,
    /// Takes an entry for each session and each failed login, in place of a line of the log.
    pub audit: Option<Audit>,
}

impl Config {
    /// Makes the configuration of a server with the default limits, without an address.
    #[must_use]
    pub fn new(root: Root, control: ServerConfig) -> Self {
        Self {
            root,
            listen: Vec::new(),
            read_only: false,
            sessions_max: SESSIONS_DEFAULT,
            control,
            services: Vec::new(),
            audit: None,
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("root", &self.root)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// A server whose port is bound and that does not accept yet.
pub struct Server {
    control: Arc<control::Server>,
    files: Arc<Shared>,
    acceptors: Arc<Acceptors>,
    listeners: Vec<TcpListener>,
    datagrams: Vec<Listener>,
}

/// Receives the log lines about sessions.
pub use control::Log;

impl Server {
    /// Opens the directory and the ports.
    ///
    /// # Errors
    /// [`Code::DirectoryNotFound`], [`Code::Denied`], or [`Code::Other`] for an address that cannot
    /// be used.
    pub fn bind(config: &Config, log: Log) -> Result<Self, Fault> {
        let root = config.root.open()?;
        let pairs = config.listen.iter().map(|address| listen_twice(*address));
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let (listeners, datagrams) = pairs.into_iter().unzip();
        let acceptors: Arc<Acceptors> = Arc::default();
        let files = Arc::new(Shared {
            root,
            read_only: config.read_only,
            acceptors: Arc::clone(&acceptors),
            table: Table::new(config.sessions_max),
            refusals: AtomicUsize::new(0),
            counters: Counters::default(),
            audit: config.audit.clone().unwrap_or_else(|| {
                let log = Arc::clone(&log);
                Arc::new(move |entry| log(&entry.to_string()))
            }),
            log: Arc::clone(&log),
        });
        let audit = Arc::clone(&files.audit);
        let mut services = config.services.clone();
        services.push(Arc::new(Listing(Arc::clone(&files))));
        services.push(Arc::new(Reading::new(Arc::clone(&files))));
        services.push(Arc::clone(&files) as _);
        let data = Data {
            preamble: *DATA_PREAMBLE,
            take: take_data(&acceptors),
        };
        let control = control::Server::new(config.control.clone(), services, Some(data), log);
        Ok(Self {
            control: Arc::new(control.with_audit(audit)),
            files,
            acceptors,
            listeners,
            datagrams,
        })
    }

    /// Listens as [`Server::bind`] does, at the first port of the range that is free for TCP and
    /// UDP on every address; an address of the other family than the first may be missing. Returns
    /// the port as well.
    ///
    /// # Errors
    /// As [`Server::bind`], if no port is free.
    pub fn bind_in(
        config: &Config,
        ips: &[IpAddr],
        ports: Ports,
        log: &Log,
    ) -> Result<(Self, u16), Fault> {
        let mut last = None;
        for port in ports.iter() {
            let at = |ips: &[IpAddr]| Config {
                listen: ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect(),
                ..config.clone()
            };
            let bound = Self::bind(&at(ips), Arc::clone(log));
            // A host without IPv6 has only the first.
            match bound.or_else(|_| Self::bind(&at(&ips[..1]), Arc::clone(log))) {
                Ok(server) => return Ok((server, port)),
                Err(fault) if fault.code != Code::Other => return Err(fault),
                Err(fault) => last = Some(fault),
            }
        }
        let why = last.map_or(String::new(), |fault| format!(": {fault}"));
        let text = format!("no port of {ports} is free for TCP and UDP{why}");
        Err(Fault::new(Code::Other, text).hint("name other ports with HAUL_PORT_RANGE"))
    }

    /// Returns the addresses that it listens on.
    ///
    /// # Errors
    /// That of `getsockname(2)`.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Returns the port, whose identities and admission can be replaced while it serves.
    pub const fn port(&self) -> &Arc<control::Server> {
        &self.control
    }

    /// Returns what reads the server's counts while it serves.
    pub fn counts(&self) -> impl Fn() -> Counts + Send + use<> {
        let files = Arc::clone(&self.files);
        move || {
            files
                .counters
                .read(files.table.running(), files.table.max())
        }
    }

    /// Accepts and serves until the process ends.
    ///
    /// # Errors
    /// If the system has no thread for an address.
    pub fn run(self) -> Result<(), Fault> {
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.into());
            builder.spawn(work).map_err(|error| Fault::system(&error))
        };
        let mut threads = Vec::new();
        for mut listener in self.datagrams {
            let acceptors = Arc::clone(&self.acceptors);
            let serve = move || acceptors.udt.serve(&mut listener);
            threads.push(spawn("haul-udp", Box::new(serve))?);
        }
        for listener in self.listeners {
            let control = Arc::clone(&self.control);
            let accept = move || control.accept(&listener);
            threads.push(spawn("haul-accept", Box::new(accept))?);
        }
        for thread in threads {
            // A panic in it has been printed by its own thread.
            let _ = thread.join();
        }
        Ok(())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("listeners", &self.listeners)
            .finish_non_exhaustive()
    }
}

/// Listens on the same port of TCP and UDP. If the kernel chooses the TCP port, another process may
/// have the UDP port: then tries again.
fn listen_twice(address: SocketAddr) -> Result<(TcpListener, Listener), Fault> {
    const ATTEMPTS: u32 = 16;
    let mut attempt = 1;
    loop {
        let listener = listen(address)?;
        let chosen = listener
            .local_addr()
            .map_err(|error| Fault::new(Code::Other, format!("cannot tell the port: {error}")))?;
        match udt::listen(chosen) {
            Ok(datagrams) => return Ok((listener, datagrams)),
            Err(_) if address.port() == 0 && attempt < ATTEMPTS => attempt += 1,
            Err(fault) => return Err(fault),
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Fault> {
    haul_io::tcp::listen(address).map_err(|error| {
        let fault = Fault::new(
            Code::Other,
            format!("cannot listen on {address}: {}", plain(&error)),
        );
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                fault.hint("another server has that port; choose one with --listen")
            }
            io::ErrorKind::AddrNotAvailable => {
                fault.hint("this machine does not have that address")
            }
            _ => fault,
        }
    })
}

/// Returns what takes a TCP connection that carries data.
fn take_data(acceptors: &Arc<Acceptors>) -> Box<control::TakeData> {
    let acceptors = Arc::clone(acceptors);
    Box::new(move |stream: Arc<TcpStream>, deadline| {
        let mut rest = [0; STREAM_HEADER_REST];
        if control::read(&stream, &mut rest, deadline).is_ok()
            && let Some((ticket, index)) = parse_stream_header(rest)
            // Unless it is being closed for others.
            && let Some(stream) = Arc::into_inner(stream)
        {
            acceptors.tcp.deliver(ticket, index, stream, deadline);
        }
    })
}

impl Service for Shared {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn serve(&self, client: Client) {
        let Client {
            mut connection,
            greeting,
            rights,
            name,
            dead_after,
        } = client;
        if !(rights.read || rights.write || rights.bench) {
            // It takes no place from those that may do something.
            let refused = permit(false, &rights, "use this server");
            return refused.unwrap_or_else(|fault| connection.refuse(&fault));
        }
        if let Some(slot) = self.take_slot(&mut connection, greeting.task, &name)
            && let Ok(link) = Link::start(connection, dead_after)
        {
            serve(self, &link, &slot, &rights, &name, dead_after);
        }
    }
}

fn serve(
    shared: &Shared,
    link: &Link,
    slot: &SessionSlot<'_>,
    rights: &Rights,
    peer: &str,
    dead_after: Duration,
) {
    slot.hold(link.cancel());
    let log = |what: &str| (shared.log)(&format!("{peer}: {what}"));
    let mut record = Record::begin();
    let result = converse(shared, link, slot, rights, dead_after, &mut record, &log);
    if let Err(fault) = &result {
        link.report(fault);
    }
    shared.end(rights, peer, &record, result.as_ref().err());
}

/// Runs the session that the client requests.
fn converse(
    shared: &Shared,
    link: &Link,
    slot: &SessionSlot<'_>,
    rights: &Rights,
    dead_after: Duration,
    record: &mut Record,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    let asked = open_channel(shared, link, rights, dead_after)
        .and_then(|(opening, declared)| Ok((next(link)?, opening, declared)));
    slot.note_asked();
    let (request, opening, declared) = asked?;
    match request {
        Message::Put(put) => {
            record.operation = "put";
            record.path = printable(&put.directory);
            permit(rights.write, rights, "send files to this server")?;
            if put.policy.deletes {
                permit(rights.read, rights, "list files of this server")?;
                listing::permit_deletion(shared, rights)?;
            }
            check_rate(rights, declared)?;
            receive_files(shared, link, rights, &put, opening, record, log)
        }
        Message::Get(get) => {
            record.operation = "get";
            record.path = get
                .paths
                .first()
                .map(|path| printable(path))
                .unwrap_or_default();
            record.other_paths = get.paths.len().saturating_sub(1) as u64;
            permit(rights.read, rights, "get files from this server")?;
            send_files(shared, link, rights, &get, opening, record, log)
        }
        Message::Bench(bench) => {
            record.operation = "bench";
            permit(rights.bench, rights, "measure at this server")?;
            measure(shared, link, &bench, opening, log)
        }
        other => Err(other.misplaced()),
    }
}

/// A client that sends paces itself, so that it must have declared a rate within its limit.
fn check_rate(rights: &Rights, declared: Option<u64>) -> Result<(), Fault> {
    match rights.rate_bps {
        Some(most) if declared.is_none_or(|declared| declared > most) => Err(Fault::new(
            Code::Refused,
            format!("{} may send at most {most} bit/s", rights.name),
        )
        .hint(format!("add --rate {most}bit"))),
        _ => Ok(()),
    }
}

fn receive_files(
    shared: &Shared,
    link: &Link,
    rights: &Rights,
    put: &Put,
    opening: Opening,
    record: &mut Record,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    if shared.read_only {
        return Err(
            Fault::new(Code::Refused, "it is read-only and receives no files")
                .hint("start it without --read-only"),
        );
    }
    let mut policy = put.policy;
    // What is transferred of a file would tell what is in the old one.
    policy.delta &= rights.read;
    if rights.drop_only {
        policy = Policy {
            replace: false,
            xattrs: false,
            acls: false,
            setuid: false,
            ..policy
        };
        if !put.directory.is_empty() {
            let text = "it receives files into one directory only";
            return Err(Fault::new(Code::Refused, text).hint("name no directory"));
        }
    }
    let dir = shared
        .root
        .below(&rights.directory)?
        .directory(&put.directory)?;
    let first = match next(link)? {
        Message::Offer(offer) => offer,
        other => return Err(other.misplaced()),
    };
    let allows = |entry: &Entry| {
        let mut names = entry.path.as_bytes().split(|byte| *byte == b'/');
        if !rights.drop_only {
            return Ok(());
        }
        if let What::Symlink { .. } | What::HardLink { .. } = &entry.what {
            let text = format!("'{}' is a link, and only files are received", entry.path);
            return Err(Fault::new(Code::Refused, text).hint("send what it refers to"));
        }
        if !names.any(|name| name.starts_with(b".")) {
            return Ok(());
        }
        let text = format!(
            "a name of '{}' begins with a dot, as those of settings do",
            entry.path
        );
        Err(Fault::new(Code::Refused, text).hint("send it by another name"))
    };
    let mut outcome = receiver::ReceiverOutcome::default();
    let observer = Logger::new(log, &shared.counters.received);
    let binding = put.binding;
    let terms = receiver::Terms {
        policy,
        binding,
        allows: &allows,
        only: None,
        adds_only: rights.drop_only,
        limit: None,
    };
    let result = receiver::run(
        link,
        &first,
        Destination::new(dir, &binding)?,
        &terms,
        opening,
        &observer,
        &mut outcome,
    );
    record.bytes = outcome.spent.moved;
    observer.moved.reach(record.bytes);
    result
}

fn send_files(
    shared: &Shared,
    link: &Link,
    rights: &Rights,
    get: &Get,
    opening: Opening,
    record: &mut Record,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    if get.paths.len() > OPERANDS_MAX {
        return Err(Fault::protocol("too many files were asked for"));
    }
    let place = shared.root.below(&rights.directory)?;
    let mut sources = Sources::default();
    for path in &get.paths {
        let (name, file) = place.file(path)?;
        sources.add(path, name, file)?;
    }
    let binding = get.binding;
    let members = match &get.choice {
        Some(choice) => choice.options()?,
        None => walk::Options::default(),
    };
    let mut catalogue = sources.catalogue(get.policy, &members)?;
    for message in sender::offer(&mut catalogue, &binding) {
        link.send(&message)?;
    }
    let mut outcome = sender::SenderOutcome::default();
    let observer = Logger::new(log, &shared.counters.sent);
    let result = sender::run(link, catalogue, binding, opening, &observer, &mut outcome);
    record.bytes = outcome.spent.moved;
    observer.moved.reach(record.bytes);
    result
}

fn measure(
    shared: &Shared,
    link: &Link,
    request: &Bench,
    opening: Opening,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    let limit = u64::try_from(bench::TIME_MAX.as_millis()).unwrap_or(u64::MAX);
    let mut request = request.clone();
    request.time_ms = match (request.time_ms, request.bytes) {
        (None, None) => return Err(Fault::protocol("a bench needs a limit")),
        (time, _) => Some(time.unwrap_or(limit).min(limit)),
    };
    let counters = &shared.counters;
    if request.reverse {
        bench::send(link, &request, opening, &Logger::new(log, &counters.sent)).map(drop)
    } else {
        bench::receive(link, opening, &Logger::new(log, &counters.received)).map(drop)
    }
}

/// Writes the events of a session to the server's log, and counts what moves.
struct Logger<'a> {
    log: &'a (dyn Fn(&str) + Sync),
    moved: Moved<'a>,
}

impl<'a> Logger<'a> {
    fn new(log: &'a (dyn Fn(&str) + Sync), direction: &'a Direction) -> Self {
        Self {
            log,
            moved: Moved::new(direction),
        }
    }
}

impl Observer for Logger<'_> {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Planned {
                files,
                total,
                present,
            } => {
                let entries = count_of(*files as u64, "entry", "entries");
                let bytes = count_of(*total, "byte", "bytes");
                (self.log)(&format!("{entries}, {bytes}, {present} already present"));
            }
            Event::Progress { moved, .. } => self.moved.reach(*moved),
            Event::FileDone(file) => {
                self.moved.file();
                let hash = file.blake3.as_deref().unwrap_or("");
                let bytes = count_of(file.bytes, "byte", "bytes");
                (self.log)(&format!("complete: {} ({bytes}, {hash})", file.name));
            }
            Event::Note(note) => (self.log)(note),
            Event::Failed { path, fault } => {
                (self.log)(&format!("failed: {}: {fault}", printable(path)));
            }
            Event::Connected { .. }
            | Event::Measured { .. }
            | Event::AttemptOver { .. }
            | Event::Retrying { .. } => {}
        }
    }
}

/// Warning about listening beyond this host.
pub const EXPOSURE: &str = "with --allow-insecure the server admits everybody: whoever reaches this \
                            port can read and write the directory";
