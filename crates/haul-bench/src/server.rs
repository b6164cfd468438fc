//! The end that takes part in what clients ask for, one at a time: two at once would measure each
//! other.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul::pending::Pending;
use haul_verbs::Device;

use crate::control::{self, Asked, Control, Message};
use crate::disk::Disk;
use crate::end::End;
use crate::path::server::Means;
use crate::path::{self, Files};
use crate::plan::{Connect, Plan, Service, Test, Wire};
use crate::session::Session;

/// Connections that may be without a request; one more, and the oldest of them is refused.
const PENDING_MAX: usize = 64;
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

/// Makes a device that speaks as a client asks.
pub type Devices = Box<dyn Fn(Service, &Wire) -> Result<Device, Fault> + Send + Sync>;
/// Takes lines about sessions.
pub type Log = Box<dyn Fn(&str) + Send + Sync>;

/// How to serve.
pub struct Config {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// The port of the queue pairs' connections; any free one where it is zero.
    pub data_port: u16,
    /// This end's device.
    pub devices: Devices,
    /// Where a file goes that a client sends; else it is dropped.
    pub file: Option<PathBuf>,
    /// Files of measurements of the path.
    pub files: Files,
    /// End after one session.
    pub one_off: bool,
    /// After this long without a word a client is taken for gone.
    pub dead_after: Duration,
    /// Takes lines about sessions.
    pub log: Log,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    /// Somebody is being served.
    busy: Mutex<bool>,
    free: Condvar,
    pending: Pending,
    /// Clients that wait for the one that is measured.
    queued: AtomicUsize,
    beside: AtomicUsize,
    done: Sender<()>,
    waiting: Mutex<Option<Receiver<()>>>,
}

impl Server {
    /// Listens, having tried the device.
    ///
    /// # Errors
    /// There is no such device; an address is in use or not of this machine.
    pub fn bind(config: Config) -> Result<Self, Fault> {
        let wire = Wire {
            crc: true,
            fpdu_max: None,
            strict: false,
            over: None,
        };
        (config.devices)(Service::Rc, &wire)?;
        let listen = |address: &SocketAddr| {
            haul_io::tcp::listen(*address).map_err(|error| {
                let text = match error.kind() {
                    io::ErrorKind::AddrInUse => "it is in use".to_owned(),
                    _ => error.to_string(),
                };
                Fault::new(Code::Other, format!("cannot listen on {address}: {text}"))
            })
        };
        let listeners = config.listen.iter().map(listen);
        let (done, waiting) = channel();
        Ok(Self {
            listeners: listeners.collect::<Result<_, _>>()?,
            shared: Arc::new(Shared {
                config,
                busy: Mutex::new(false),
                free: Condvar::new(),
                pending: Pending::new(PENDING_MAX),
                queued: AtomicUsize::new(0),
                beside: AtomicUsize::new(0),
                done,
                waiting: Mutex::new(Some(waiting)),
            }),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// That of `getsockname(2)`.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves: for ever, or until one session is over.
    pub fn run(self) {
        let shared = self.shared;
        for listener in self.listeners {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    match stream {
                        Ok(stream) => Shared::greet(&shared, stream),
                        // Out of descriptors, most likely: somebody else may give one back.
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            });
        }
        let waiting = shared.waiting.lock().map(|mut waiting| waiting.take());
        if let Ok(Some(waiting)) = waiting {
            // The sender lives in `shared`, so this ends with a session only.
            let _ = waiting.recv();
        }
    }
}

impl Shared {
    /// Reads a client's request on a thread of its own.
    fn greet(self: &Arc<Self>, stream: TcpStream) {
        let this = Arc::clone(self);
        let place = self.pending.enter(&stream, |oldest| {
            let text = "more clients connect than the server can listen to";
            let crowded = Fault::new(Code::ServerBusy, text);
            control::refuse(oldest, &crowded.hint("try again in a moment"));
        });
        // Without a thread for it the connection is closed.
        let _ = std::thread::Builder::new().spawn(move || {
            let asked = control::greeting(&stream);
            drop(place);
            match asked {
                Ok(asked) => this.serve(stream, &asked),
                Err(fault) => control::refuse(&stream, &fault),
            }
        });
    }

    fn serve(&self, stream: TcpStream, asked: &Asked) {
        if asked.beside() {
            self.serve_beside(stream, asked);
            return;
        }
        if !self.take_turn() {
            let busy = Fault::new(
                Code::ServerBusy,
                "the server is measuring with somebody else",
            );
            control::refuse(&stream, &busy.hint("try again in a moment"));
            return;
        }
        let peer = stream
            .peer_addr()
            .map_or_else(|_| "?".to_owned(), |peer| peer.to_string());
        let result = self.session(stream, asked);
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.free.notify_one();
        match result {
            Ok(()) => (self.config.log)(&format!("{peer}: {} done", what(asked))),
            Err(fault) => (self.config.log)(&format!("{peer}: {}: {fault}", what(asked))),
        }
        if self.config.one_off {
            // Whoever runs the server may have gone.
            let _ = self.done.send(());
        }
    }

    /// Traffic that a measurement is to meet does not wait for it.
    fn serve_beside(&self, stream: TcpStream, asked: &Asked) {
        if self.beside.fetch_add(1, Ordering::AcqRel) >= BESIDE_MAX {
            let busy = Fault::new(Code::ServerBusy, "there is as much other traffic as may be");
            control::refuse(&stream, &busy);
        } else if let Err(fault) = self.session(stream, asked) {
            (self.config.log)(&format!("other traffic, {}: {fault}", what(asked)));
        }
        self.beside.fetch_sub(1, Ordering::AcqRel);
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

    fn session(&self, stream: TcpStream, asked: &Asked) -> Result<(), Fault> {
        let gone = |error: io::Error| Fault::connection(&error);
        let own = stream.local_addr().map_err(gone)?;
        let from = stream.peer_addr().map_err(gone)?;
        let door = stream.try_clone().map_err(gone)?;
        let control = Control::start(stream, self.config.dead_after)?;
        let result = match asked {
            Asked::Verbs(plan) => self.converse(&control, (own, from), plan),
            Asked::Path(plan) => {
                let means = Means {
                    files: self.config.files.clone(),
                    data_port: self.config.data_port,
                };
                path::server::serve(&means, &control, &door, plan)
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
        let token = u64::from_be_bytes(random);
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
            token,
            place: end.place()?,
        })?;
        let peer = match control.receive_within(SETUP)? {
            Message::Join { place } => place,
            other => return Err(other.misplaced()),
        };
        match plan.connect {
            _ if plan.service != Service::Rc => end.meet_peers(&peer, from.ip()),
            Connect::Cm => end.accept_all(control, token),
            Connect::Exchange => end.connect_endpoints(&peer, from.ip()),
        }
        .map_err(|fault| control.account_of(fault))?;
        drop(listener);
        let mut session = Session::new(&end, &peer, control, &disk, self.config.dead_after);
        session.meet()?;
        if plan.test == Test::Idle {
            session.idle()?;
            return match control.receive_within(session.patience())? {
                Message::Memory { .. } => session.take_part(),
                other => Err(other.misplaced()),
            };
        }
        session.take_part()
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
