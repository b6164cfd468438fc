//! The server: one directory, many sessions, one thread per session.
//!
//! A connection is *pending* until its first message has arrived, for at most ten seconds. Any
//! other bytes close it without an answer. If too many connections are pending, the oldest is
//! closed.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use haul_io::address::listen_address;
use haul_io::file::Dir;
use haul_soft::udt::Listener;

use crate::SOFTWARE;
use crate::channel::tcp::{STREAM_HEADER_REST, parse_stream_header};
use crate::channel::{Acceptors, Opening, Setup, udt};
use crate::fault::{Code, Fault, plain};
use crate::link::{self, Handshake, Link, agree};
use crate::name::{Name, relative_path};
use crate::pending::{self, Pending};
use crate::report::{Event, Observer};
use crate::session::{bench, receiver, sender};
use crate::source::SourceFile;
use crate::text::printable;
use crate::wire::{
    self, Bench, CONTROL_PREAMBLE, DATA_PREAMBLE, FILES_MAX, Get, Hello, Message, Put, WireError,
    binding, is_preamble,
};

mod table;

use table::{Table, Ticket};

/// Deadline of the handshake after a connection was accepted.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Deadline of the client's `Hello`, which arrives in one piece, after its preamble.
const HELLO: Duration = Duration::from_secs(4);
/// Maximum number of pending connections; beyond it the oldest is closed.
const PENDING_MAX: usize = 256;
/// Default of [`Config::sessions_max`].
pub const SESSIONS_DEFAULT: usize = 64;
/// Range of the peer timeout that a client may choose, milliseconds.
const DEAD_AFTER: std::ops::RangeInclusive<u32> = 1_000..=600_000;

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory to serve; nothing outside it is reachable.
    pub root: PathBuf,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Refuse to receive files.
    pub read_only: bool,
    /// Maximum number of concurrent sessions.
    pub sessions_max: usize,
}

/// A server that listens and does not accept yet.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    datagrams: Vec<Listener>,
}

/// Receives the log lines about sessions.
pub type Log = Box<dyn Fn(&str) + Send + Sync>;

impl Server {
    /// Opens the directory and the ports.
    ///
    /// # Errors
    /// [`Code::DirectoryNotFound`], [`Code::Denied`], or [`Code::Other`] for an address that cannot
    /// be used.
    pub fn bind(config: &Config, log: Log) -> Result<Self, Fault> {
        let root = open_root(&config.root)?;
        let pairs = config.listen.iter().map(|address| listen_twice(*address));
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let (listeners, datagrams) = pairs.into_iter().unzip();
        let shared = Arc::new(Shared {
            root,
            read_only: config.read_only,
            acceptors: Arc::default(),
            pending: Pending::new(PENDING_MAX),
            table: Table::new(config.sessions_max),
            log,
        });
        Ok(Self {
            shared,
            listeners,
            datagrams,
        })
    }

    /// Returns the addresses that it listens on.
    ///
    /// # Errors
    /// That of `getsockname(2)`.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
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
            let acceptors = Arc::clone(&self.shared.acceptors);
            let serve = move || acceptors.udt.serve(&mut listener);
            threads.push(spawn("haul-udp", Box::new(serve))?);
        }
        for listener in self.listeners {
            let shared = Arc::clone(&self.shared);
            let accept = move || accept(&shared, &listener);
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

struct Shared {
    root: Arc<Dir>,
    read_only: bool,
    acceptors: Arc<Acceptors>,
    pending: Pending,
    table: Table,
    log: Log,
}

fn open_root(path: &Path) -> Result<Arc<Dir>, Fault> {
    let shown = printable(path.as_os_str().as_encoded_bytes());
    match Dir::open(path) {
        Ok(dir) => Ok(Arc::new(dir)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Err(Fault::new(
                Code::DirectoryNotFound,
                format!("'{shown}' is not a directory"),
            )
            .hint("make it first, or name another"))
        }
        Err(error) => Err(Fault::file(&format!("cannot open '{shown}'"), &error)),
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

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok((stream, peer)) = listener.accept() else {
            // No descriptor or memory, or the connection was reset: retry, not too fast.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let place = shared.pending.enter(&stream, |_| {});
        let server = Arc::clone(shared);
        let builder = std::thread::Builder::new().name("haul-session".into());
        // Without a thread for it the connection is closed.
        let _ = builder.spawn(move || {
            let deadline = Instant::now() + HANDSHAKE;
            serve_connection(&server, stream, peer, deadline, place);
        });
    }
}

fn serve_connection(
    shared: &Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    deadline: Instant,
    place: pending::Place,
) {
    let mut handshake = Handshake::new(&stream, deadline);
    let mut preamble = [0; 8];
    if !handshake
        .read(&mut preamble)
        .is_ok_and(|got| got == preamble.len())
    {
        return;
    }
    if is_preamble(preamble, DATA_PREAMBLE) {
        let mut rest = [0; STREAM_HEADER_REST];
        if handshake.read(&mut rest).is_ok_and(|got| got == rest.len())
            && let Some((token, index)) = parse_stream_header(rest)
        {
            shared.acceptors.tcp.deliver(token, index, stream, deadline);
        }
        drop(place);
        return;
    }
    if !is_preamble(preamble, CONTROL_PREAMBLE) {
        return;
    }
    // A damaged length may demand more than will arrive: answer while the client still waits.
    let end_of_hello = deadline.min(Instant::now() + HELLO);
    let hello = match Handshake::new(&stream, end_of_hello).message() {
        Ok(Some(Message::Hello(hello))) => hello,
        Ok(_) => return,
        Err(fault) => {
            // A client that reads the reason retries.
            if fault.code == Code::PeerGone && handshake.write(CONTROL_PREAMBLE).is_ok() {
                refuse(shared, &mut handshake, stream.try_clone(), peer, &fault);
            }
            return;
        }
    };
    match admit(shared, &stream, &mut handshake, &hello, peer) {
        Ok(ticket) => {
            drop(place);
            let dead_after = hello
                .dead_after_ms
                .clamp(*DEAD_AFTER.start(), *DEAD_AFTER.end());
            let dead_after = Duration::from_millis(dead_after.into());
            if let Ok(link) = Link::start(stream, "the client", dead_after) {
                serve(shared, &link, &ticket, peer, dead_after);
            }
        }
        Err(fault) => refuse(shared, &mut handshake, stream.try_clone(), peer, &fault),
    }
}

/// Answers the `Hello` and takes a place for the session.
fn admit<'a>(
    shared: &'a Shared,
    stream: &TcpStream,
    handshake: &mut Handshake<'_>,
    hello: &Hello,
    peer: SocketAddr,
) -> Result<Ticket<'a>, Fault> {
    let mut answer = CONTROL_PREAMBLE.to_vec();
    let ours = link::hello(hello.transfer, Duration::ZERO);
    answer.extend(wire::encode(&Message::Hello(ours))?);
    handshake
        .write(&answer)
        .map_err(|error| Fault::connection(&error))?;
    agree(SOFTWARE, hello, &format!("the client at {peer}"))?;
    // If that is unknown, the client counts as connected.
    let has_left = || haul_io::notify::has_hung_up(stream.as_fd()).unwrap_or(false);
    shared.table.enter(hello.transfer, has_left)
}

fn refuse(
    shared: &Shared,
    handshake: &mut Handshake<'_>,
    stream: io::Result<TcpStream>,
    peer: SocketAddr,
    fault: &Fault,
) {
    (shared.log)(&format!("{peer}: refused: {fault}"));
    let Ok(frame) = wire::encode(&Message::Error(WireError::from(fault))) else {
        return;
    };
    if handshake.write(&frame).is_err() {
        return;
    }
    // The client may still be sending; closing with unread data would discard the answer.
    if let Ok(stream) = stream {
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut scratch = [0; 4096];
        let mut rest = Handshake::new(&stream, Instant::now() + Duration::from_secs(1));
        while rest
            .read(&mut scratch)
            .is_ok_and(|got| got == scratch.len())
        {}
    }
}

fn serve(
    shared: &Shared,
    link: &Link,
    ticket: &Ticket<'_>,
    peer: SocketAddr,
    dead_after: Duration,
) {
    ticket.hold(link.cancel());
    let begun = Instant::now();
    let log = |what: &str| (shared.log)(&format!("{peer}: {what}"));
    let (what, result) = converse(shared, link, ticket, dead_after, &|note| log(note));
    let seconds = begun.elapsed().as_secs_f64();
    match result {
        Ok(()) => log(&format!("{what}: done in {seconds:.1} s")),
        Err(fault) => {
            link.report(&fault);
            log(&format!("{what}: failed after {seconds:.1} s: {fault}"));
        }
    }
}

/// Runs the session that the client requests; returns its kind.
fn converse(
    shared: &Shared,
    link: &Link,
    ticket: &Ticket<'_>,
    dead_after: Duration,
    log: &(dyn Fn(&str) + Sync),
) -> (&'static str, Result<(), Fault>) {
    let asked = next(link).and_then(|message| match message {
        Message::OpenChannel(open) => {
            let setup = Setup::from_message(&open, dead_after)?;
            let opening = Opening::accept(&setup, &shared.acceptors, HANDSHAKE)?;
            Ok((next(link)?, opening))
        }
        other => Err(other.misplaced()),
    });
    ticket.note_asked();
    match asked {
        Err(fault) => ("session", Err(fault)),
        Ok((Message::Put(put), opening)) => {
            ("put", receive_files(shared, link, &put, opening, log))
        }
        Ok((Message::Get(get), opening)) => ("get", send_files(shared, link, &get, opening, log)),
        Ok((Message::Bench(bench), opening)) => ("bench", measure(link, &bench, opening, log)),
        Ok((other, _)) => ("session", Err(other.misplaced())),
    }
}

/// Blocks for the next message of a client that has no reason to wait.
fn next(link: &Link) -> Result<Message, Fault> {
    link.incoming()
        .recv_timeout(HANDSHAKE)
        .unwrap_or_else(|_| Err(Fault::new(Code::PeerGone, "the client sent no request")))
}

fn receive_files(
    shared: &Shared,
    link: &Link,
    put: &Put,
    opening: Opening,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    if shared.read_only {
        return Err(
            Fault::new(Code::Refused, "it is read-only and receives no files")
                .hint("start it without --read-only"),
        );
    }
    let path = relative_path(&put.directory)?;
    let shown = printable(&put.directory);
    // A path that ends in a slash can only be a directory: it is created if it is missing.
    let dir = if put.directory.ends_with(b"/") {
        shared.root.make_beneath(&path)
    } else {
        shared.root.open_beneath(&path)
    };
    let dir = dir.map_err(|error| named(&shown, &error, true))?;
    let offer = match next(link)? {
        Message::Offer(offer) => offer,
        other => return Err(other.misplaced()),
    };
    let mut outcome = receiver::ReceiverOutcome::default();
    let observer = Logger(log);
    let terms = receiver::Terms {
        policy: put.policy,
        binding: binding(&Message::Put(put.clone()))?,
    };
    receiver::run(
        link,
        &Arc::new(dir),
        &offer,
        terms,
        opening,
        &observer,
        &mut outcome,
    )
}

fn send_files(
    shared: &Shared,
    link: &Link,
    get: &Get,
    opening: Opening,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    if get.paths.len() > FILES_MAX {
        return Err(Fault::protocol("too many files were asked for"));
    }
    let open = |bytes: &minicbor::bytes::ByteVec| {
        let path = relative_path(bytes)?;
        let shown = printable(bytes);
        let name = Name::of_path(&path)?;
        let file = shared
            .root
            .open_file(&path)
            .map_err(|error| named(&shown, &error, false))?;
        SourceFile::new(name, file, &shown)
    };
    let files = get.paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let binding = binding(&Message::Get(get.clone()))?;
    for message in sender::offer(&files, &binding)? {
        link.send(&message)?;
    }
    let mut outcome = sender::SenderOutcome::default();
    sender::run(link, files, binding, opening, &Logger(log), &mut outcome)
}

fn measure(
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
    if request.reverse {
        bench::send(link, &request, opening, &Logger(log)).map(drop)
    } else {
        bench::receive(link, opening, &Logger(log)).map(drop)
    }
}

/// Maps an error of opening a path that the client named.
fn named(shown: &str, error: &io::Error, directory: bool) -> Fault {
    let fault = |code, text: &str| Fault::new(code, format!("'{shown}' {text}"));
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if directory => {
            fault(Code::DirectoryNotFound, "is not a directory of the server")
                .hint("put a / at its end to have it made")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            fault(Code::FileNotFound, "is not a file of the server").hint("check the name")
        }
        io::ErrorKind::CrossesDevices => fault(
            Code::Refused,
            "leads through a symbolic link or outside the directory served",
        )
        .hint("name the file itself"),
        _ => Fault::file(&format!("cannot open '{shown}'"), error),
    }
}

/// Writes the events of a session to the server's log.
struct Logger<'a>(&'a (dyn Fn(&str) + Sync));

impl Observer for Logger<'_> {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Planned {
                files,
                total,
                present,
            } => {
                (self.0)(&format!(
                    "{files} files, {total} bytes, {present} already present"
                ));
            }
            Event::FileDone(file) => {
                let hash = file.blake3.as_deref().unwrap_or("");
                (self.0)(&format!(
                    "complete: {} ({} bytes, {hash})",
                    file.name, file.bytes
                ));
            }
            Event::Note(note) => (self.0)(note),
            Event::Connected { .. }
            | Event::Progress { .. }
            | Event::Measured { .. }
            | Event::AttemptOver { .. }
            | Event::Retrying { .. } => {}
        }
    }
}

/// Warning about listening beyond this host.
pub const EXPOSURE: &str = "there is no authentication and no encryption yet: whoever reaches this \
                            port can read and write the directory";
