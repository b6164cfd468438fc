//! What `haul run` does beside starting the application: it joins the table, is the agent or waits
//! to be, and reports.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_io::netns::child::{self, Caught, Inside};
use haul_io::process::Process;

use rustix::process::Signal;

use crate::agent::{self, Standing, Status};
pub use crate::gateway::{Call, Calls, Failure};
use crate::supervisor::Prepared;
use crate::table::{Options, Protocol, Socket, Table, Why, address, is_alive, now_ms};

/// A `haul run` that has joined its table.
#[derive(Debug)]
pub struct Run {
    table: Arc<Table>,
    status: Arc<Status>,
    stop: Arc<AtomicBool>,
    /// None where nothing needs one.
    agent: Option<JoinHandle<io::Result<()>>>,
    pid: u32,
    has_left: bool,
}

/// How a `haul run` is to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// The discovery port.
    pub port: u16,
    /// What is carried.
    pub options: Options,
    /// The table's file; by default that of this user, network namespace and port.
    pub table: Option<PathBuf>,
}

impl Run {
    /// Joins the table, and starts to be the agent or to wait for it.
    ///
    /// # Errors
    /// Of the table's file; `ResourceBusy` with too many `haul run`s.
    pub fn start(config: &Config) -> io::Result<Self> {
        let path = match &config.table {
            Some(path) => path.clone(),
            None => Table::default_path(config.port)?,
        };
        let pid = std::process::id();
        let table = loop {
            let table = Table::create(&path)?;
            if !table.register(pid, config.options) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            // The last user may have removed the file meanwhile.
            if table.is_current() {
                break Arc::new(table);
            }
        };
        let (status, stop) = (
            Arc::new(Status::default()),
            Arc::new(AtomicBool::new(false)),
        );
        let needs_agent = config.options.datagram || config.options.stream;
        let start = || {
            let (table, status, stop) = (table.clone(), status.clone(), stop.clone());
            let port = config.port;
            std::thread::Builder::new()
                .name("agent".into())
                .spawn(move || agent::serve(&table, port, &stop, &status))
        };
        let agent = needs_agent.then(start).transpose()?;
        Ok(Self {
            table,
            status,
            stop,
            agent,
            pid,
            has_left: false,
        })
    }

    /// The variables that the application's environment must have.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, std::ffi::OsString); 2] {
        [
            ("HAUL_RUN_TABLE", self.table.path().into()),
            ("HAUL_RUN_ID", self.pid.to_string().into()),
        ]
    }

    /// The table's file.
    #[must_use]
    pub fn table(&self) -> &Path {
        self.table.path()
    }

    /// Which process is the agent here.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.status.standing()
    }

    /// Whether there is an agent for this table, this one or another.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        let agent = self.table.agent().load(Ordering::Acquire);
        agent != 0 && is_alive(agent)
    }

    /// Takes the connections that the applications want to make, where that was chosen: `deliver`
    /// gets each, on threads of its own.
    ///
    /// # Errors
    /// Of the system calls.
    pub fn take_calls(&self, deliver: impl Fn(Call) + Send + Sync + 'static) -> io::Result<Calls> {
        Calls::take(&self.table, self.pid, deliver)
    }

    /// Waits until there is an agent, if anything needs one, or there cannot be one.
    pub fn wait_ready(&self, patience: Duration) {
        if self.agent.is_none() {
            return;
        }
        let begun = now_ms();
        let waited = || Duration::from_millis(now_ms().wrapping_sub(begun).into());
        loop {
            let seen = self.table.asked();
            if self.has_agent() || self.standing() == Standing::PortTaken || waited() >= patience {
                return;
            }
            self.table.wait_asked(seen, Duration::from_millis(50));
        }
    }

    /// The sockets of the applications under this `haul run`.
    #[must_use]
    pub fn report(&self) -> Report {
        let own = |socket: &&Socket| socket.run.load(Ordering::Relaxed) == self.pid;
        let sockets = self.table.sockets().map(|(_, socket)| socket);
        let rows = sockets.filter(own).filter_map(Row::new).collect();
        Report {
            rows,
            left_out: self.table.overflow(),
            loaded: self.table.loaded(self.pid),
            supervised: self.table.is_supervised(self.pid),
        }
    }

    /// Ends: no socket of its applications is framed any more, and the agent announces it.
    ///
    /// # Errors
    /// What ended the agent before.
    pub fn end(mut self) -> io::Result<()> {
        self.leave()
    }

    fn leave(&mut self) -> io::Result<()> {
        self.has_left = true;
        for (_, socket) in self.table.sockets() {
            if socket.run.load(Ordering::Relaxed) == self.pid {
                socket.published.store(0, Ordering::Release);
                // An application that has gone into the background still uses its records.
                let is_shared = socket.shared.load(Ordering::Relaxed) != 0;
                if !is_shared && !is_alive(socket.pid.load(Ordering::Relaxed)) {
                    socket.state.store(Socket::CLOSED, Ordering::Release);
                }
            }
        }
        self.stop.store(true, Ordering::Release);
        self.table.wake_agents();
        let ended = match self.agent.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(io::Error::other("the agent panicked")),
            None => Ok(()),
        };
        if self.table.unregister(self.pid) && self.table.is_current() {
            std::fs::remove_file(self.table.path())?;
        }
        ended
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.has_left {
            // Only where `end` was not called, on the way out of a failure that is reported
            // already.
            let _ = self.leave();
        }
    }
}

/// What became of the sockets.
#[derive(Debug, Clone)]
pub struct Report {
    /// In the order in which they were opened.
    pub rows: Vec<Row>,
    /// Sockets of all `haul run`s for which the table had no room, or that were forgotten to make
    /// some.
    pub left_out: u32,
    /// How many times a process has loaded the library.
    pub loaded: u32,
    /// Connections of applications that do not load it were seen, too.
    pub supervised: bool,
}

/// A socket.
#[derive(Debug, Clone)]
pub struct Row {
    /// The process that opened it.
    pub pid: u32,
    /// As which descriptor.
    pub descriptor: u32,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its own address, once it had one.
    pub local: Option<SocketAddr>,
    /// Its peer, if it was connected.
    pub remote: Option<SocketAddr>,
    /// It waits for connections.
    pub listening: bool,
    /// What its bytes went by.
    pub carrier: Carrier,
    /// Bytes of payload that were carried, out and in; `None` where nobody counted them, because
    /// the application did not load the library.
    pub carried: Option<(u64, u64)>,
    /// Bytes that went by the kernel's socket as they were, out and in; of TCP they are known when
    /// it is closed.
    pub plain: (u64, u64),
    /// Datagrams or segments that were refused.
    pub malformed: u32,
    /// Why something was not carried.
    pub why: Why,
}

/// By what bytes went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel's socket.
    Kernel,
    /// UD, Send.
    Send,
    /// UD, Write-Record.
    WriteRecord,
    /// RC.
    Rc,
    /// A connection through a gateway.
    Gateway,
}

impl Carrier {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Send => "UD send/recv",
            Self::WriteRecord => "UD Write-Record",
            Self::Rc => "RC",
            Self::Gateway => "gateway",
        }
    }
}

impl Row {
    fn new(socket: &Socket) -> Option<Self> {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let place = |words: [u32; 5]| (words[4] != 0).then(|| address(words));
        let protocol = socket.protocol()?;
        let carried = (number(&socket.carried_out), number(&socket.carried_in));
        let carrier = match protocol {
            Protocol::Tcp if socket.taken.load(Ordering::Relaxed) == 1 => Carrier::Rc,
            Protocol::Tcp if socket.gateway.load(Ordering::Relaxed) != 0 => Carrier::Gateway,
            Protocol::Udp if carried == (0, 0) => Carrier::Kernel,
            Protocol::Udp if socket.write_record.load(Ordering::Relaxed) == 1 => {
                Carrier::WriteRecord
            }
            Protocol::Udp => Carrier::Send,
            Protocol::Tcp => Carrier::Kernel,
        };
        Some(Self {
            pid: socket.pid.load(Ordering::Relaxed),
            descriptor: socket.descriptor.load(Ordering::Relaxed),
            protocol,
            local: place(socket.local.load()),
            remote: place(socket.remote.load()),
            listening: socket.listening.load(Ordering::Relaxed) == 1,
            carrier,
            carried: (socket.supervised.load(Ordering::Relaxed) == 0).then_some(carried),
            plain: (number(&socket.plain_out), number(&socket.plain_in)),
            malformed: socket.malformed.load(Ordering::Relaxed),
            why: Why::from_number(socket.why.load(Ordering::Relaxed)),
        })
    }
}

/// Has the TCP connections of applications that do not load the library carried, too.
pub struct Supervision<'a> {
    /// What takes their connections.
    pub calls: &'a Calls,
    /// Gets a line about each connection that cannot be carried, and fails.
    pub say: Box<dyn FnMut(&str) + Send>,
}

impl fmt::Debug for Supervision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Supervision")
    }
}

/// Why an application was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// The application cannot be started, or waited for.
    #[error("{0}")]
    Program(#[from] io::Error),
    /// Its connections cannot be supervised. It was not started.
    #[error("the kernel refuses a seccomp filter: {0}")]
    Supervision(io::Error),
}

/// The signals of a process that stands for another one.
#[derive(Debug)]
pub struct Signals(child::Signals);

impl Signals {
    /// Takes them, for this thread and those that it starts later.
    ///
    /// # Errors
    /// Of the system calls.
    pub fn block() -> io::Result<Self> {
        child::Signals::block_all().map(Self)
    }

    /// The number of the signal that asks this process to end, if one has come. There is nobody
    /// yet, or any more, whom the others are for.
    #[must_use]
    pub fn taken(&self) -> Option<i32> {
        // Where they cannot be read none has come.
        while let Ok(Some(caught)) = self.0.wait(Duration::ZERO) {
            if let Caught::End(number) = caught
                && number != Signal::WINCH.as_raw()
            {
                return Some(number);
            }
        }
        None
    }

    /// Runs an application to its end, supervised if that is asked for. Signals that a process
    /// sends go on to it; those of a terminal it has got itself.
    ///
    /// # Errors
    /// The application cannot be started or supervised, or `wait4` failed.
    pub fn run(
        &self,
        command: &mut Command,
        supervision: Option<Supervision<'_>>,
    ) -> Result<ExitStatus, NotRun> {
        Inside::default().on(command)?;
        let prepare = |one: Supervision<'_>| Prepared::new(one.calls, command, one.say);
        let prepared = supervision.map(prepare).transpose();
        let prepared = prepared.map_err(NotRun::Supervision)?;
        let spawned = command.spawn();
        // Until it has been started, what fails first is the filter.
        let supervisor = prepared.map(Prepared::begin).transpose();
        let (mut process, _supervisor) = match (spawned, supervisor) {
            (Ok(child), Ok(supervisor)) => (Process::new(child), supervisor),
            (Err(error), Ok(_)) => return Err(NotRun::Program(error)),
            (Err(error), Err(_)) => return Err(NotRun::Supervision(error)),
            (Ok(mut child), Err(error)) => {
                child.kill()?;
                child.wait()?;
                return Err(NotRun::Supervision(error));
            }
        };
        loop {
            if let Some(ended) = process.try_wait()? {
                return Ok(ended.status);
            }
            if let Some((Caught::End(number), true)) = self.0.wait_sent(Duration::from_secs(1))?
                && let Some(signal) = Signal::from_named_raw(number)
            {
                process.signal(signal)?;
            }
        }
    }
}
