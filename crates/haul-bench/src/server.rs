//! The server: takes part in measurements of clients, one at a time, because two would disturb each
//! other.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_control::audit::{Audit, Entry};
use haul_control::connection::Connection;
use haul_control::server::{self as control, Client, HANDSHAKE};
use haul_control::trust::ServerConfig;
use haul_verbs::Device;

use crate::control::{Asked, Control, Message, SERVICE, asked};
use crate::disk::Disk;
use crate::end::End;
use crate::path::server::Means;
use crate::path::{self, Files};
use crate::plan::{Connect, Plan, Service, Test, Wire};
use crate::session::Session;

/// Clients that may wait for the one that is measured.
const WAITING_MAX: usize = 16;
/// How long a client may take for each message before the measurement, which it has no reason to
/// delay.
const SETUP: Duration = Duration::from_secs(20);
/// Sessions beside the one that is measured.
const BESIDE_MAX: usize = 4;
/// A client is turned away after waiting so long for the one before it: that one's memory may still
/// be being given back.
const PATIENCE: Duration = Duration::from_secs(3);

/// Opens a device with the transport that a client requests.
pub type Devices = Box<dyn Fn(Service, &Wire) -> Result<Device, Fault> + Send + Sync>;
/// Takes lines about sessions.
pub use control::Log;

/// The configuration of a server.
pub struct Config {
    /// The port of the queue pairs' connections; any free one where it is zero.
    pub data_port: u16,
    /// This end's device.
    pub devices: Devices,
    /// The sink of a file that a client sends; `None` drops it.
    pub file: Option<PathBuf>,
    /// Files of measurements of the path.
    pub files: Files,
    /// End after one session.
    pub one_off: bool,
    /// A client that is silent for this long counts as gone.
    pub dead_after: Duration,
    /// Takes lines about sessions.
    pub log: Log,
    /// Takes the entries of sessions, in place of the log.
    pub audit: Option<Audit>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("data_port", &self.data_port)
            .finish_non_exhaustive()
    }
}

/// Takes part in measurements of clients, as a service of a port.
#[derive(Debug)]
pub struct Bench {
    config: Config,
    audit: Entries,
    /// A client is being served.
    busy: Mutex<bool>,
    free: Condvar,
    /// Clients that wait for the one that is measured.
    queued: AtomicUsize,
    beside: AtomicUsize,
    done: Sender<()>,
    waiting: Mutex<Option<Receiver<()>>>,
}

/// Takes the entries of sessions.
struct Entries(Audit);

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entries")
    }
}

/// The description of a session, for the audit log.
#[derive(Default)]
struct Record {
    what: String,
    /// Payload of completed measurements, in both directions, by both ends' counts.
    bytes: u64,
    /// A server for one session has served it.
    is_last: bool,
}

impl Bench {
    /// Makes the service.
    #[must_use]
    pub fn new(config: Config) -> Arc<Self> {
        let (done, waiting) = channel();
        let audit = config.audit.clone().unwrap_or_else(|| {
            let log = Arc::clone(&config.log);
            Arc::new(move |entry| log(&entry.to_string()))
        });
        Arc::new(Self {
            config,
            audit: Entries(audit),
            busy: Mutex::new(false),
            free: Condvar::new(),
            queued: AtomicUsize::new(0),
            beside: AtomicUsize::new(0),
            done,
            waiting: Mutex::new(Some(waiting)),
        })
    }
}

impl control::Service for Bench {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn serve(&self, client: Client) {
        let Client {
            mut connection,
            rights,
            name,
            ..
        } = client;
        let begun = Instant::now();
        let mut record = Record::default();
        connection.set_deadline(begun + HANDSHAKE);
        let request = if rights.bench {
            request(&mut connection)
        } else {
            let text = format!("{} may not measure here", rights.name);
            Err(Fault::new(Code::Refused, text).hint("have the server's operator allow it"))
        };
        let result = match request {
            Ok(asked) => self.take(connection, &asked, &mut record),
            Err(fault) => {
                connection.refuse(&fault);
                Err(fault)
            }
        };
        self.audit.0(&Entry {
            identity: &rights.name,
            address: &name,
            operation: "bench",
            path: &record.what,
            other_paths: 0,
            bytes: record.bytes,
            seconds: begun.elapsed().as_secs_f64(),
            fault: result.as_ref().err(),
        });
        if record.is_last {
            // The caller may have dropped the receiver.
            let _ = self.done.send(());
        }
    }
}

/// Receives the request of a client, until the connection's deadline.
fn request(connection: &mut Connection) -> Result<Asked, Fault> {
    loop {
        if let Some(asked) = asked(&connection.receive()?)? {
            return Ok(asked);
        }
    }
}

/// A server that measures and does nothing else.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<TcpListener>,
    bench: Arc<Bench>,
    control: Arc<control::Server>,
}

impl Server {
    /// Listens, having tried the device.
    ///
    /// # Errors
    /// There is no such device; an address is in use or not of this machine.
    pub fn bind(
        listen: &[SocketAddr],
        control: ServerConfig,
        config: Config,
    ) -> Result<Self, Fault> {
        let wire = Wire {
            crc: true,
            fpdu_max: None,
            strict: false,
            over: None,
        };
        (config.devices)(Service::Rc, &wire)?;
        let log = Arc::clone(&config.log);
        let bench = Bench::new(config);
        let listeners = listen.iter().map(|address| {
            haul_io::tcp::listen(*address).map_err(|error| {
                let text = match error.kind() {
                    io::ErrorKind::AddrInUse => "it is in use".to_owned(),
                    _ => error.to_string(),
                };
                Fault::new(Code::Other, format!("cannot listen on {address}: {text}"))
            })
        });
        let service: Arc<dyn control::Service> = Arc::clone(&bench) as _;
        Ok(Self {
            listeners: listeners.collect::<Result<_, _>>()?,
            control: Arc::new(control::Server::new(control, vec![service], None, log)),
            bench,
        })
    }

    /// Returns the address of its listener.
    ///
    /// # Errors
    /// That of `getsockname(2)`.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves: for ever, or until one session is over.
    pub fn run(self) {
        for listener in self.listeners {
            let control = Arc::clone(&self.control);
            std::thread::spawn(move || control.accept(&listener));
        }
        let waiting = self.bench.waiting.lock().map(|mut waiting| waiting.take());
        if let Ok(Some(waiting)) = waiting {
            // `bench` owns the sender, so this ends with a session only.
            let _ = waiting.recv();
        }
    }
}

impl Bench {
    fn take(
        &self,
        mut connection: Connection,
        asked: &Asked,
        record: &mut Record,
    ) -> Result<(), Fault> {
        record.what = what(asked);
        if asked.beside() {
            return self.take_beside(connection, asked, record);
        }
        if !self.take_turn() {
            let busy = Fault::new(
                Code::ServerBusy,
                "the server is measuring with somebody else",
            )
            .hint("try again in a moment");
            connection.refuse(&busy);
            return Err(busy);
        }
        let result = self.session(connection, asked, &mut record.bytes);
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.free.notify_one();
        record.is_last = self.config.one_off;
        result
    }

    /// Traffic that a measurement is to meet does not wait for it.
    fn take_beside(
        &self,
        mut connection: Connection,
        asked: &Asked,
        record: &mut Record,
    ) -> Result<(), Fault> {
        record.what += " beside another";
        let result = if self.beside.fetch_add(1, Ordering::AcqRel) >= BESIDE_MAX {
            let busy = Fault::new(Code::ServerBusy, "there is as much other traffic as may be");
            connection.refuse(&busy);
            Err(busy)
        } else {
            self.session(connection, asked, &mut record.bytes)
        };
        self.beside.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Waits for the client before to be done; false where that takes too long, or too many wait.
    fn take_turn(&self) -> bool {
        let is_next = self.queued.fetch_add(1, Ordering::AcqRel) < WAITING_MAX;
        let taken = is_next && self.wait_for_turn();
        self.queued.fetch_sub(1, Ordering::AcqRel);
        taken
    }

    fn wait_for_turn(&self) -> bool {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut busy, _) = self
            .free
            .wait_timeout_while(busy, PATIENCE, |busy| *busy)
            .unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *busy, true)
    }

    /// Measures, and adds the moved bytes to `bytes`.
    fn session(
        &self,
        mut connection: Connection,
        asked: &Asked,
        bytes: &mut u64,
    ) -> Result<(), Fault> {
        let gone = |error: io::Error| Fault::connection(&error);
        let Some(stream) = connection.stream().as_tcp() else {
            let fault = Fault::new(Code::Refused, "benches need a TCP control connection");
            connection.refuse(&fault);
            return Err(fault);
        };
        let own = stream.local_addr().map_err(gone)?;
        let from = stream.peer_addr().map_err(gone)?;
        let control = Control::start(connection, self.config.dead_after)?;
        let result = match asked {
            Asked::Verbs(plan) => self.converse(&control, (own, from), plan, bytes),
            Asked::Path(plan) => {
                let means = Means {
                    files: self.config.files.clone(),
                    data_port: self.config.data_port,
                    dead_after: self.config.dead_after,
                };
                path::server::serve(&means, &control, own.ip(), plan).map(|moved| *bytes = moved)
            }
        };
        if let Err(fault) = &result {
            control.fail(fault);
        }
        result
    }

    fn converse(
        &self,
        control: &Control,
        (own, from): (SocketAddr, SocketAddr),
        plan: &Plan,
        bytes: &mut u64,
    ) -> Result<(), Fault> {
        let disk = match (&self.config.file, plan.file) {
            (Some(path), Some(_)) => Disk::sink(path)?,
            _ => Disk::nowhere(),
        };
        let device = (self.config.devices)(plan.service, &plan.wire)?;
        let mut end = End::open(&device, plan)?;
        end.create_qps()?;
        let random = haul_io::random::bytes::<8>()
            .map_err(|error| Fault::new(Code::Other, format!("no random bytes: {error}")))?;
        let ticket = u64::from_be_bytes(random);
        let listener = match plan.connect {
            _ if plan.service != Service::Rc => {
                end.bind_all(own.ip(), self.config.data_port)?;
                None
            }
            Connect::Cm => Some(end.listen(SocketAddr::new(own.ip(), self.config.data_port))?),
            Connect::Exchange => None,
        };
        control.send(&Message::Welcome {
            software: haul::SOFTWARE.into(),
            port: listener
                .as_ref()
                .map_or(0, |listener| listener.local_addr().port()),
            ticket,
            place: end.place()?,
        })?;
        let peer = match control.receive_within(SETUP)? {
            Message::Join { place } => place,
            other => return Err(other.misplaced()),
        };
        match plan.connect {
            _ if plan.service != Service::Rc => end.meet_peers(&peer, from.ip()),
            Connect::Cm => end.accept_all(control, ticket),
            Connect::Exchange => end.connect_endpoints(&peer, from.ip()),
        }
        .map_err(|fault| control.account_of(fault))?;
        drop(listener);
        let mut session = Session::new(&end, &peer, control, &disk, self.config.dead_after);
        session.meet()?;
        if plan.test == Test::Idle {
            session.idle()?;
            return match control.receive_within(session.patience())? {
                Message::Memory { .. } => session.take_part(bytes),
                other => Err(other.misplaced()),
            };
        }
        session.take_part(bytes)
    }
}

fn what(asked: &Asked) -> String {
    let plan = match asked {
        Asked::Verbs(plan) => plan,
        Asked::Path(plan) => return plan.engine.name().to_owned(),
    };
    let text = |value: serde_json::Result<serde_json::Value>| {
        let value = value.unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    };
    let op = text(serde_json::to_value(plan.op));
    let test = text(serde_json::to_value(plan.test));
    format!("{op} {test}")
}
