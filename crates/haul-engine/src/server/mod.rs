//! The engine: a socket, and a session for each client.

mod end;
mod limits;
mod objects;
mod requests;
mod session;
mod streams;
#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests of an engine wait, look at the clock, and open what no client would"
)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use haul_io::notify::{Signal, has_hung_up, wait_readable};
use haul_io::thread::start_on;
use haul_soft::rnic;
use haul_verbs::Error;
use rustix::net::{SocketAddrUnix, SocketType, UCred};
use rustix::process::{Gid, Pid, Uid};

use crate::lock::lock;
use crate::socket::{Packets, socket};
use end::End;
use limits::Limits;
use session::Session;

pub use limits::Counters;

/// What an engine allows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The devices that clients open. Engine threads alone drive them.
    pub device: rnic::Options,
    /// Whether users other than the engine's own may open devices: whom the permissions of the
    /// socket let in.
    pub all_users: bool,
    /// Clients at a time.
    pub clients: usize,
    /// Of these, clients of one user other than the engine's own.
    pub user_clients: usize,
    /// Bytes that one client may register.
    pub client_memory: u64,
    /// Objects that one client may have: each takes a mapping of the process, a completion queue up
    /// to three descriptors.
    pub client_objects: usize,
}

impl Options {
    /// Checks what a device would refuse.
    ///
    /// # Errors
    /// Processors that this process may not use.
    pub fn check(&self) -> Result<(), Error> {
        let devices = rnic::provider(self.device.clone()).devices()?;
        devices
            .iter()
            .try_for_each(|device| device.open().map(drop))
    }
}

impl Default for Options {
    fn default() -> Self {
        let mut device = rnic::Options::default();
        device.drive = rnic::Drive::Engine;
        Self {
            device,
            all_users: false,
            clients: 256,
            user_clients: 64,
            client_memory: 64 << 30,
            client_objects: 4_096,
        }
    }
}

/// Time until another attempt, where a client cannot be accepted.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;

/// Takes the rights of a user, for this thread and those that it starts: ports below 1024 and files
/// are then the kernel's to refuse. The real and saved user stay root, or the user could send
/// signals to these threads, and so to the engine.
fn become_user(peer: &UCred) -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    set_thread_groups(&[])?;
    set_thread_res_gid(Gid::ROOT, peer.gid, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, peer.uid, Uid::ROOT)?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Takes lines for people.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Ends an engine.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Signal>);

impl Stopper {
    /// Ends it: no further client is accepted.
    pub fn stop(&self) {
        self.0.set();
    }
}

/// An engine that listens.
#[derive(Debug)]
pub struct Server {
    socket: OwnedFd,
    stop: Arc<Signal>,
    /// To be removed at the end, if it is still this file.
    path: Option<(PathBuf, u64)>,
    options: Options,
    counters: Arc<Counters>,
    users: Arc<Users>,
}

/// How many clients each user has.
type Users = Mutex<BTreeMap<u32, usize>>;

impl Server {
    /// Listens at a path. A socket that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if another engine listens there, `AlreadyExists` if a file is there that is no
    /// socket; else of the system calls.
    pub fn bind(path: &Path, options: Options) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let listener = socket()?;
        if let Err(error) = rustix::net::bind(&listener, &address) {
            if error != rustix::io::Errno::ADDRINUSE {
                return Err(error.into());
            }
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if Packets::connect(path).is_ok() {
                return Err(error.into());
            }
            std::fs::remove_file(path)?;
            rustix::net::bind(&listener, &address)?;
        }
        rustix::net::listen(&listener, 128)?;
        let mut server = Self::new(listener, options)?;
        server.path = Some((path.to_owned(), std::fs::symlink_metadata(path)?.ino()));
        Ok(server)
    }

    /// Takes a socket of the kind `SOCK_SEQPACKET` that somebody else has made to listen.
    ///
    /// # Errors
    /// `InvalidInput` if it is none; out of descriptors.
    pub fn new(socket: OwnedFd, options: Options) -> io::Result<Self> {
        let listens = rustix::net::sockopt::socket_acceptconn(&socket)?;
        let kind = rustix::net::sockopt::socket_type(&socket)?;
        if !listens || kind != SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A client may be gone again before it is accepted.
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            stop: Arc::new(Signal::new()?),
            path: None,
            options,
            counters: Arc::default(),
            users: Arc::default(),
        })
    }

    /// What ends [`Server::run`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Serves clients until it is stopped. Sessions go on until their clients or the process end.
    /// `tell` gets a line about each client that is refused or whose session ends by its fault.
    ///
    /// # Errors
    /// Of the listening socket.
    pub fn run(&self, tell: &Tell) -> io::Result<()> {
        let stop = &self.stop;
        loop {
            wait_readable([stop.as_fd(), self.socket.as_fd()], None)?;
            if wait_readable([stop.as_fd()], Some(0))? {
                return Ok(());
            }
            match rustix::net::accept_with(&self.socket, rustix::net::SocketFlags::CLOEXEC) {
                // So many are not even told.
                Ok(_) if self.counters.clients.load(Ordering::Relaxed) >= self.crowd() => {
                    self.counters.refused.fetch_add(1, Ordering::Relaxed);
                }
                Ok(client) => self.admit(client, tell),
                Err(
                    rustix::io::Errno::CONNABORTED
                    | rustix::io::Errno::INTR
                    | rustix::io::Errno::AGAIN,
                ) => {}
                Err(error) => {
                    tell(&format!("a client cannot be accepted: {error}"));
                    // Descriptors may be free again then.
                    wait_readable([stop.as_fd()], Some(ACCEPT_AGAIN_NS))?;
                }
            }
        }
    }

    /// Clients, and those that are being refused.
    fn crowd(&self) -> u64 {
        2 * self.options.clients as u64
    }

    fn admit(&self, client: OwnedFd, tell: &Tell) {
        let admitted = self.check(&client);
        let user = admitted.as_ref().ok().map(|(_, peer)| peer.uid.as_raw());
        let here = Present::new(&self.counters, &self.users, user);
        let (options, counters) = (self.options.device.clone(), Arc::clone(&self.counters));
        let to = Arc::clone(tell);
        let work = move || {
            let client = Packets::new(client);
            let limits = admitted.and_then(|(limits, peer)| enter(&peer, limits));
            let end = match limits {
                Ok(limits) => {
                    counters.accepted.fetch_add(1, Ordering::Relaxed);
                    Session::open(client, &options, limits, &counters)
                        .map_or_else(|end| end, Session::run)
                }
                // One that only looked whether an engine answers.
                Err(_) if has_hung_up(client.as_fd()).unwrap_or(false) => End::Gone,
                Err(why) => {
                    counters.refused.fetch_add(1, Ordering::Relaxed);
                    to(&format!("a client was refused: {why}"));
                    session::refuse(&client, &why)
                }
            };
            let why = match end {
                End::Gone => None,
                End::Refused(why) => Some(why.to_owned()),
                End::System(error) => Some(error.to_string()),
            };
            if let Some(why) = why {
                counters.ended.fetch_add(1, Ordering::Relaxed);
                to(&format!("a client's session ended: {why}"));
            }
            drop(here);
        };
        let thread = std::thread::Builder::new().name("haul-client".to_owned());
        let cpus = self.options.device.engine_cpus.as_ref();
        if let Err(error) = start_on(cpus, || thread.spawn(work)) {
            tell(&format!("no thread for a client: {error}"));
        }
    }

    /// What this client may have, and who it is.
    fn check(&self, client: &OwnedFd) -> Result<(Limits, UCred), Error> {
        let options = &self.options;
        let peer = rustix::net::sockopt::socket_peercred(client)
            .map_err(|error| Error::os("credentials of a client")(error.into()))?;
        let own = rustix::process::geteuid();
        let is_trusted = peer.uid == own || peer.uid.is_root();
        if !is_trusted && !options.all_users {
            return Err(Error::Unsupported("a client of another user (--all-users)"));
        }
        if self.counters.clients.load(Ordering::Relaxed) >= options.clients as u64 {
            return Err(Error::Exhausted("clients of the engine"));
        }
        let count = lock(&self.users).get(&peer.uid.as_raw()).copied();
        if peer.uid != own && count.unwrap_or(0) >= options.user_clients {
            return Err(Error::Exhausted("clients of this user"));
        }
        let limits = Limits {
            memory: options.client_memory,
            objects: options.client_objects,
            has_rights: peer.uid == own || own.is_root(),
        };
        Ok((limits, peer))
    }
}

/// Makes this thread one of the client's, with its rights; refuses a client in another network
/// namespace. Its namespace can be asked with its rights, without any more.
fn enter(peer: &UCred, limits: Limits) -> Result<Limits, Error> {
    let own = rustix::process::geteuid();
    if own.is_root() && peer.uid != own {
        become_user(peer).map_err(Error::os("taking the rights of a client"))?;
    }
    // The kernel has no number for a process of a namespace that this one does not see.
    let pid = Pid::as_raw(Some(peer.pid));
    let theirs = (pid > 0).then(|| namespace(&pid.to_string())).flatten();
    if theirs.is_none() || theirs != namespace("thread-self") {
        return Err(Error::Unsupported("a client in another network namespace"));
    }
    Ok(limits)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((path, inode)) = &self.path
            && std::fs::symlink_metadata(path).is_ok_and(|about| about.ino() == *inode)
        {
            // It may be gone by now.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The network namespace of a process. None if it may not be asked.
fn namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Counts a client as long as it lives.
struct Present {
    counters: Arc<Counters>,
    users: Arc<Users>,
    user: Option<u32>,
}

impl Present {
    fn new(counters: &Arc<Counters>, users: &Arc<Users>, user: Option<u32>) -> Self {
        counters.clients.fetch_add(1, Ordering::Relaxed);
        if let Some(user) = user {
            *lock(users).entry(user).or_default() += 1;
        }
        Self {
            counters: Arc::clone(counters),
            users: Arc::clone(users),
            user,
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.counters.clients.fetch_sub(1, Ordering::Relaxed);
        let Some(user) = self.user else { return };
        let mut users = lock(&self.users);
        if let Some(count) = users.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&user);
            }
        }
    }
}
