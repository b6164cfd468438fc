//! Files of running labs, by which other commands find them: one directory each, in the user's
//! runtime directory.
//!
//! `state.json` names the process that holds the lab and its file descriptors; that process keeps
//! `holder` locked, so that the kernel says whether it lives, also in another PID namespace.
//! `hosts` is the hosts' `/etc/hosts`; `stats.json` has the counters; `log` has the output of a lab
//! in the background.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::process;
use crate::usage::Usage;

/// A directory without a state belongs to a lab that is starting; after this time it is stale.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a lab that ends waits for processes that are just entering it.
const ENTRY_TIME_MAX: Duration = Duration::from_secs(2);

/// A lab that is up, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The mark of its processes.
    pub(crate) id: String,
    /// The process that holds it.
    pub(crate) pid: i32,
    /// That process's start time.
    pub(crate) started: u64,
    pub(crate) scenario: String,
    /// It runs in the background: `up` started it.
    pub(crate) shared: bool,
    pub(crate) hosts: Vec<HostState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
    /// The holder's file descriptor of the namespace.
    pub(crate) fd: i32,
    /// The namespace's number.
    pub(crate) inode: u64,
}

/// The directory of one lab.
#[derive(Debug)]
pub(crate) struct LabDir {
    name: String,
    path: PathBuf,
    /// The lock of the process that holds the lab.
    holder: Option<OwnedFd>,
}

impl State {
    /// Whether the process that holds it runs in the PID namespace of this one.
    pub(crate) fn is_here(&self) -> bool {
        process::start_time(self.pid) == Some(self.started)
    }

    pub(crate) fn inodes(&self) -> BTreeSet<u64> {
        self.hosts
            .iter()
            .map(|host| host.inode)
            .filter(|&inode| inode != 0)
            .collect()
    }
}

impl LabDir {
    /// Creates a directory for a lab of this name; first cleans up after an ended one.
    pub(crate) fn create(name: &str) -> Result<Self> {
        check_name(name)?;
        let root = root()?;
        let dir = Self {
            name: name.into(),
            path: root.join(name),
            holder: None,
        };
        match std::fs::create_dir(&dir.path) {
            Ok(()) => return dir.held(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", dir.path.display()));
            }
        }
        let state = dir.read_state();
        if state.is_none() && (dir.age() <= START_TIME_MAX || dir.is_held()) {
            bail!("lab {name} is being started or taken down: try again");
        }
        if let Some(state) = state.filter(|_| dir.is_held()) {
            bail!(
                "lab {name} is up already (process {}): take it down with `haul lab down {name}`",
                state.pid
            );
        }
        dir.clean_up();
        std::fs::create_dir(&dir.path)
            .with_context(|| format!("cannot make {}", dir.path.display()))?;
        dir.held()
    }

    /// Locks `holder` for as long as this value lives.
    fn held(mut self) -> Result<Self> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC;
        let holder = rustix::fs::open(self.holder_file(), flags, Mode::RUSR | Mode::WUSR);
        let holder = holder.map_err(io::Error::from)?;
        // Nobody else holds it for longer than a look.
        rustix::fs::flock(&holder, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        self.holder = Some(holder);
        Ok(self)
    }

    /// Whether the process that made the lab still runs, in whatever PID namespace.
    pub(crate) fn is_held(&self) -> bool {
        let Ok(file) = haul_io::file::open_source(&self.holder_file()) else {
            return false;
        };
        let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        lock == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// Returns the directory of every lab, running or ended.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(root()?)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.push(Self {
                    name,
                    path: entry.path(),
                    holder: None,
                });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn hosts_file(&self) -> PathBuf {
        self.path.join("hosts")
    }

    fn holder_file(&self) -> PathBuf {
        self.path.join("holder")
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(crate) fn stats_file(&self) -> PathBuf {
        self.path.join("stats.json")
    }

    pub(crate) fn read_state(&self) -> Option<State> {
        let text = std::fs::read_to_string(self.path.join("state.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Written under another name first, so that readers never see half of it.
    pub(crate) fn write_state(&self, state: &State) -> Result<()> {
        let temporary = self.path.join("state.json.new");
        std::fs::write(&temporary, serde_json::to_string_pretty(state)?)?;
        std::fs::rename(&temporary, self.path.join("state.json"))
            .context("cannot write the lab's state")
    }

    /// Cleans up after every lab of this user whose process is gone.
    pub(crate) fn sweep() -> Result<()> {
        for dir in Self::all()? {
            // The lock is older than the state, so it is looked at later.
            let has_stood = dir.read_state().is_some() || dir.age() > START_TIME_MAX;
            if has_stood && !dir.is_held() {
                dir.clean_up();
            }
        }
        Ok(())
    }

    /// Returns the time since the last change in it; zero if it is gone.
    fn age(&self) -> Duration {
        let made = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        made.ok()
            .and_then(|made| made.elapsed().ok())
            .unwrap_or_default()
    }

    /// Keeps a lab from ending its processes until this one is inside: the lock ends with exec.
    pub(crate) fn enter(&self, state: &State) -> Result<OwnedFd> {
        let lock = self.lock(FlockOperation::NonBlockingLockShared);
        // A lab that has ended holds no lock either.
        let is_up = self.read_state().is_some_and(|now| now.id == state.id);
        match lock {
            Ok(lock) if is_up => Ok(lock),
            _ => bail!("lab {} has just ended", self.name),
        }
    }

    /// From now on nobody enters, while the lock is held. Waits for those that are entering.
    pub(crate) fn close(&self) -> Option<OwnedFd> {
        let deadline = Instant::now() + ENTRY_TIME_MAX;
        loop {
            match self.lock(FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                lock => return lock.ok(),
            }
        }
    }

    fn lock(&self, operation: FlockOperation) -> rustix::io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.path, flags, Mode::empty())?;
        rustix::fs::flock(&dir, operation)?;
        Ok(dir)
    }

    /// Ends processes that an ended lab has left running, and removes its files.
    pub(crate) fn clean_up(&self) {
        let _closed = self.close();
        if let Some(state) = self.read_state() {
            process::end_orphans(&state.inodes(), &state.id);
        }
        self.remove();
    }

    pub(crate) fn remove(&self) {
        // The next command finds and removes what remains.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A name that no other lab of this user has.
pub(crate) fn free_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("run-{}-{number}", rustix::process::getpid().as_raw_pid())
}

/// The directory of all labs of this user: in `XDG_RUNTIME_DIR`, or `/run` for root, or `/tmp`. It
/// belongs to the user alone.
fn root() -> Result<PathBuf> {
    let uid = real_uid();
    let path = match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => PathBuf::from(dir).join("haul-lab"),
        None if uid == 0 => PathBuf::from("/run/haul-lab"),
        None => PathBuf::from(format!("/tmp/haul-lab-{uid}")),
    };
    match std::fs::create_dir(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", path.display()));
        }
        _ => {}
    }
    let stat = rustix::fs::lstat(&path).map_err(io::Error::from)?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
        || stat.st_uid != rustix::process::getuid().as_raw()
    {
        bail!(
            "{} does not belong to you: remove it, or set XDG_RUNTIME_DIR",
            path.display()
        );
    }
    rustix::fs::chmod(&path, rustix::fs::Mode::RWXU).map_err(io::Error::from)?;
    Ok(path)
}

/// The user outside of a user namespace that maps one user: the second number of the map's line.
fn real_uid() -> u32 {
    let own = rustix::process::getuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut numbers = map.split_whitespace().map(str::parse::<u32>);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(inside)), Some(Ok(outside)), Some(Ok(1))) if inside == own => outside,
        _ => own,
    }
}

/// Checks a name for a lab: it must be valid as a directory, and not look like an option.
fn check_name(name: &str) -> Result<()> {
    let plain = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !plain || name.is_empty() || name.len() > 64 || name.starts_with(['-', '.']) {
        let text =
            format!("`{name}` cannot name a lab: use up to 64 letters, digits, `-`, `_` and `.`");
        return Err(Usage(text).into());
    }
    Ok(())
}
