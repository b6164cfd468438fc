//! The port that all services share: it tells connections apart, completes handshakes, and hands
//! admitted clients to the service that they ask for.
//!
//! A connection is *pending* until a service takes it over; its handshake takes at most ten
//! seconds. Connections without a complete first message and those in their handshake are counted
//! apart. If too many of one kind are pending, the oldest of the source that has most is closed:
//! silent and half-open connections never keep out a client that completes its handshake.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use haul_io::file::Limits;

use crate::SOFTWARE;
use crate::audit::{Audit, Entry};
use crate::cancel::Cancel;
use crate::connection::{Connection, Hello, is_tls};
use crate::fault::{Code, Fault};
use crate::frame::Greeting;
use crate::identity::PeerIdentity;
use crate::penalty::Penalties;
use crate::pending::{Pending, Place};
use crate::stream::Stream;
use crate::trust::{Rights, ServerConfig};
use crate::{abridged, lock, next, older};

/// Deadline of the handshake after a connection was accepted.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes that tell connections apart.
const FIRST: usize = 8;
/// How often the rights of served clients are examined again: a date may be over.
const REVIEW: Duration = Duration::from_secs(60);
/// Minimum time between log lines about clients that are refused for other reasons than their
/// identity: those cost an unknown client nothing.
const QUIET: Duration = Duration::from_secs(60);
/// Maximum number of pending connections of each kind. Together they take at most half of the
/// descriptors that the process may have.
const PENDING_MAX: usize = 256;
/// Range of the peer timeout that a client may choose, milliseconds.
const DEAD_AFTER: std::ops::RangeInclusive<u32> = 1_000..=600_000;

/// A client that has been admitted and has asked for a service.
#[derive(Debug)]
pub struct Client {
    /// Its connection.
    pub connection: Connection,
    /// Its greeting.
    pub greeting: Greeting,
    /// What it may do.
    pub rights: Rights,
    /// Its address, or how else it is connected.
    pub name: String,
    /// The peer timeout of both ends.
    pub dead_after: Duration,
}

/// A service of the port.
pub trait Service: Send + Sync {
    /// Returns the name by which greetings ask for it.
    fn name(&self) -> &'static str;

    /// Serves one client, on a thread of its own.
    fn serve(&self, client: Client);

    /// Ends clients that have nothing in flight: the port is shutting down. It does not block.
    fn drain(&self) {}
}

/// Takes a TCP connection whose first eight bytes are those of a data connection. Its deadline is
/// that of the handshake.
pub type TakeData = dyn Fn(Arc<TcpStream>, Instant) + Send + Sync;

/// Data connections that arrive at the port.
pub struct Data {
    /// Their first bytes, of which damage may have flipped two bits.
    pub preamble: [u8; FIRST],
    /// Takes them.
    pub take: Box<TakeData>,
}

/// Takes log lines.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A port's services.
pub struct Server {
    config: Mutex<ServerConfig>,
    services: Vec<Arc<dyn Service>>,
    data: Option<Data>,
    pending: Pending,
    /// Those of sources with a penalty have places of their own, half as many: a flood of failing
    /// logins keeps out none of another source.
    penalized: Pending,
    penalties: Penalties,
    live: Mutex<Live>,
    is_draining: AtomicBool,
    is_reviewing: AtomicBool,
    unlogged: Mutex<Unlogged>,
    refused: AtomicU64,
    audit: Audit,
    pub(crate) review_every: Duration,
}

/// Refused clients that have no line in the log.
#[derive(Default)]
struct Unlogged {
    since: Option<Instant>,
    count: u64,
}

/// Clients that a service serves now.
#[derive(Default)]
struct Live {
    entered: u64,
    clients: HashMap<u64, (PeerIdentity, Rights, Cancel)>,
}

/// A client's place among the live ones; dropping it gives the place up.
struct Served<'a> {
    server: &'a Server,
    number: u64,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        lock(&self.server.live).clients.remove(&self.number);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Makes a server of these services.
    #[must_use]
    pub fn new(
        config: ServerConfig,
        services: Vec<Arc<dyn Service>>,
        data: Option<Data>,
        log: Log,
    ) -> Self {
        let files = Limits::of_this_process().open_files;
        let files = files.and_then(|files| usize::try_from(files).ok());
        let pending_max = PENDING_MAX.min(files.unwrap_or(usize::MAX) / 4);
        Self {
            config: Mutex::new(config),
            services,
            data,
            pending: Pending::new(pending_max),
            penalized: Pending::new(pending_max / 2),
            penalties: Penalties::default(),
            live: Mutex::default(),
            is_draining: AtomicBool::new(false),
            is_reviewing: AtomicBool::new(false),
            unlogged: Mutex::default(),
            refused: AtomicU64::new(0),
            review_every: REVIEW,
            audit: Arc::new(move |entry| log(&entry.to_string())),
        }
    }

    /// Sets what takes the entries of failed logins, in place of the log.
    #[must_use]
    pub fn with_audit(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// Replaces identities and admission, and ends the sessions of clients that have no longer the
    /// rights that they were admitted with; returns how many it ended.
    pub fn reconfigure(&self, config: ServerConfig) -> usize {
        *lock(&self.config) = config;
        self.review()
    }

    /// Ends the sessions of clients that have no longer the rights that they were admitted with;
    /// returns how many.
    fn review(&self) -> usize {
        let admission = Arc::clone(&lock(&self.config).admission);
        let ended: Vec<Cancel> = lock(&self.live)
            .clients
            .values()
            .filter(|(peer, rights, _)| admission(peer).as_ref() != Ok(rights))
            .map(|(_, _, cancel)| cancel.clone())
            .collect();
        for cancel in &ended {
            cancel.cancel();
        }
        ended.len()
    }

    /// From now on refuses new clients; those that have something in flight go on.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        for service in &self.services {
            service.drain();
        }
    }

    /// Returns how many clients are served now.
    #[must_use]
    pub fn sessions(&self) -> usize {
        lock(&self.live).clients.len()
    }

    /// Returns how many logins have failed.
    #[must_use]
    pub fn failed_logins(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns whether new clients are refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Notes a client that a service is about to serve.
    fn begin(&self, client: &Client) -> Served<'_> {
        let mut live = lock(&self.live);
        live.entered += 1;
        let number = live.entered;
        let connection = &client.connection;
        let rights = client.rights.clone();
        let entry = (connection.peer().clone(), rights, connection.closer());
        live.clients.insert(number, entry);
        Served {
            server: self,
            number,
        }
    }

    /// Accepts connections until the process ends.
    pub fn accept(self: &Arc<Self>, listener: &TcpListener) {
        if !self.is_reviewing.swap(true, Ordering::AcqRel) {
            let (server, every) = (Arc::downgrade(self), self.review_every);
            let builder = std::thread::Builder::new().name("haul-review".into());
            // Without a thread for it, rights are examined at the login and by `reconfigure`.
            let _ = builder.spawn(move || review_again(&server, every));
        }
        loop {
            let Ok((stream, peer)) = listener.accept() else {
                // No descriptor or memory: retry, not too fast.
                self.pending.make_room();
                self.penalized.make_room();
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            self.take(stream, peer.to_string());
        }
    }

    /// Serves a connection as if the port had accepted it. `peer` is its address in the log, or how
    /// else it is connected.
    pub fn take(self: &Arc<Self>, stream: TcpStream, peer: String) {
        let stream = Arc::new(stream);
        let place = match self.penalty(&peer) {
            // Others must not wait for one that has a penalty.
            Some(_) => self.penalized.try_enter(&stream),
            None => Some(self.pending.enter(&stream)),
        };
        let Some(place) = place else { return };
        let server = Arc::clone(self);
        let builder = std::thread::Builder::new().name("haul-session".into());
        // Without a thread for it the connection is closed.
        let _ = builder.spawn(move || {
            let deadline = Instant::now() + HANDSHAKE;
            server.tell_apart(stream, &peer, deadline, place);
        });
    }

    fn tell_apart(&self, stream: Arc<TcpStream>, peer: &str, deadline: Instant, place: Place) {
        let mut first = [0; FIRST];
        if read(&stream, &mut first, deadline).is_err() {
            return;
        }
        if let Some(data) = self.data.as_ref().filter(|data| data.is(first)) {
            (data.take)(stream, deadline);
            return;
        }
        if let Some(answer) = older::answer(first) {
            let text = "the client is an older haul without TLS; update it";
            self.refused_again(peer, &Fault::new(Code::Version, text));
            bid_farewell(&stream, &answer);
            return;
        }
        if !is_tls([first[0], first[1]]) {
            return;
        }
        if let Ok(stream) = Stream::tcp(stream) {
            self.serve(stream, &first, peer, deadline, Some(place));
        }
    }

    /// Serves a byte stream that is not TCP, such as the standard input and output of an ssh child.
    pub fn serve_stream(&self, stream: Stream, name: &str) {
        self.serve(stream, &[], name, Instant::now() + HANDSHAKE, None);
    }

    fn serve(
        &self,
        stream: Stream,
        first: &[u8],
        name: &str,
        deadline: Instant,
        place: Option<Place>,
    ) {
        match self.admit(stream, first, name, deadline, place) {
            Ok((service, client)) => {
                let served = self.begin(&client);
                // Its rights may have changed since it was admitted.
                let admission = Arc::clone(&lock(&self.config).admission);
                if admission(client.connection.peer()).as_ref() == Ok(&client.rights) {
                    service.serve(client);
                }
                drop(served);
            }
            Err(fault) if fault.code == Code::NotHaul => {}
            Err(mut fault) => {
                if fault.code == Code::NotAuthenticated {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
                let had_penalty = self.penalty(name).is_some();
                if fault.code == Code::NotAuthenticated
                    && let Ok(peer) = name.parse::<SocketAddr>()
                {
                    self.penalties.add(peer.ip(), Instant::now());
                }
                if fault.code != Code::NotAuthenticated || had_penalty {
                    return self.refused_again(name, &fault);
                }
                if let Some(left) = self.penalty(name) {
                    let seconds = left.as_secs_f64().ceil();
                    fault.text += &format!(
                        "; failed logins of this address are only counted for {seconds} s"
                    );
                }
                self.audit_refusal(name, &fault);
            }
        }
    }

    /// Returns how long the source of a client still has a penalty.
    fn penalty(&self, name: &str) -> Option<Duration> {
        let peer = name.parse::<SocketAddr>().ok()?;
        self.penalties.left(peer.ip(), Instant::now())
    }

    /// Logs a client that is refused for another reason than its identity, or whose source has a
    /// penalty. One minute has one line about all of them, which tells how many came before it.
    fn refused_again(&self, name: &str, fault: &Fault) {
        let mut fault = fault.clone();
        let mut unlogged = lock(&self.unlogged);
        if unlogged.since.is_some_and(|since| since.elapsed() < QUIET) {
            unlogged.count += 1;
            return;
        }
        unlogged.since = Some(Instant::now());
        let count = std::mem::take(&mut unlogged.count);
        drop(unlogged);
        if count > 0 {
            fault.text += &format!("; {count} others were refused since the last such line");
        }
        self.audit_refusal(name, &fault);
    }

    fn audit_refusal(&self, name: &str, fault: &Fault) {
        (self.audit)(&Entry {
            identity: "",
            address: name,
            operation: "login",
            path: "",
            other_paths: 0,
            bytes: 0,
            seconds: 0.0,
            fault: Some(fault),
        });
    }

    /// Completes the handshake and exchanges greetings.
    fn admit(
        &self,
        stream: Stream,
        first: &[u8],
        name: &str,
        deadline: Instant,
        place: Option<Place>,
    ) -> Result<(&Arc<dyn Service>, Client), Fault> {
        let peer = format!("the client at {name}");
        let mut hello = Hello::read(stream, first, &peer, deadline)?;
        if hello.stream().has_hung_up() {
            // A flood that is over costs no more signatures.
            return Err(Fault::new(Code::PeerGone, "the client has disconnected"));
        }
        if let Some(place) = &place {
            place.advance();
        }
        hello.place = place;
        let config = lock(&self.config).clone();
        let (mut connection, rights) = hello.complete(&config)?;
        connection.greet(
            &Greeting {
                software: SOFTWARE.to_owned(),
                service: String::new(),
                features: 0,
                dead_after_ms: 0,
                task: [0; 16],
            },
            &[],
        )?;
        let greeting = connection.greeting()?;
        if self.is_draining.load(Ordering::Acquire) {
            let fault = shutting_down();
            connection.refuse(&fault);
            return Err(fault);
        }
        let asked = greeting.service.as_str();
        let mut services = self.services.iter();
        let Some(service) = services.find(|service| next::service(service.name()) == asked) else {
            let fault = self.explain(&greeting);
            connection.refuse(&fault);
            return Err(fault);
        };
        let dead_after = greeting.dead_after_ms;
        let dead_after = dead_after.clamp(*DEAD_AFTER.start(), *DEAD_AFTER.end());
        let client = Client {
            connection,
            greeting,
            rights,
            name: name.to_owned(),
            dead_after: Duration::from_millis(dead_after.into()),
        };
        Ok((service, client))
    }
}

impl Server {
    /// Makes the fault of a client that asks for a service which is not here, or is in another
    /// version.
    fn explain(&self, greeting: &Greeting) -> Fault {
        let stem = |name: &str| name.split('/').next().map(str::to_owned);
        let mut names = self
            .services
            .iter()
            .map(|service| next::service(service.name()));
        let same = names.find(|name| stem(name) == stem(&greeting.service));
        let asked = crate::printable(abridged(&greeting.service).as_bytes());
        let Some(ours) = same else {
            let text = format!("it does not serve '{asked}'");
            return Fault::new(Code::Refused, text).hint("check the address and the port");
        };
        let (here, there) = (
            next::software(SOFTWARE),
            crate::printable(abridged(&greeting.software).as_bytes()),
        );
        let text = format!("{here} here speaks {ours}; the client, {there}, speaks {asked}");
        Fault::new(Code::Version, text).hint("update haul at the end with the older version")
    }
}

/// Makes the fault of a client that a server does not serve, or no longer, because it drains.
#[must_use]
pub fn shutting_down() -> Fault {
    Fault::new(Code::ServerBusy, "it is shutting down").hint("try again when it is back")
}

/// Reviews a server's clients at this interval until the server is dropped.
fn review_again(server: &Weak<Server>, every: Duration) {
    loop {
        std::thread::sleep(every);
        let Some(server) = server.upgrade() else {
            return;
        };
        server.review();
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Data")
            .field("preamble", &self.preamble)
            .finish_non_exhaustive()
    }
}

impl Data {
    /// Damage that TCP's checksum missed may have flipped a bit; what follows has its own check.
    fn is(&self, first: [u8; FIRST]) -> bool {
        (u64::from_be_bytes(first) ^ u64::from_be_bytes(self.preamble)).count_ones() <= 2
    }
}

/// Fills `bytes` from a blocking stream before the deadline.
///
/// # Errors
/// The stream ended or failed; `TimedOut` or `WouldBlock` at the deadline.
pub fn read(stream: &TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match (&mut &*stream).read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a last answer. The client may still be sending; closing with unread data would discard the
/// answer.
fn bid_farewell(stream: &TcpStream, answer: &[u8]) {
    let limit = Duration::from_secs(1);
    let sent = stream
        .set_write_timeout(Some(limit))
        .and_then(|()| (&mut &*stream).write_all(answer))
        .and_then(|()| stream.shutdown(Shutdown::Write));
    let deadline = Instant::now() + limit;
    if sent.is_ok() {
        let mut scratch = [0; 4096];
        while read(stream, &mut scratch, deadline).is_ok() {}
    }
}
