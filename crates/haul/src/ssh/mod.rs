//! Reaching a host by ssh: the system's `ssh` starts an agent there, keys cross over ssh both ways,
//! and the data goes beside ssh where the path allows it.
//!
//! Map: `greeting` what client and agent tell each other over ssh · [`agent`] the other host's side
//! · `mux` byte streams through ssh itself, if nothing else passes · `probe` which ports pass. The
//! client's side is here.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use haul_control::identity::{Identity, PrivateKey, PublicKey};
use haul_control::trust::{ClientConfig, Trust};

use crate::channel::ChannelKind;
use crate::client::{Access, Config, Say};
use crate::dial::Dialer;
use crate::fault::{Code, Fault, plain};
use crate::lock;
use crate::ports::Ports;
use crate::printable;

pub mod agent;
pub(crate) mod greeting;
pub(crate) mod mux;
mod probe;
#[cfg(test)]
mod tests;

use greeting::{Introduction, Welcome, skip_to_agent};
use mux::{Kind, Mux, read_frame, write_frame};
pub use probe::Reach;

/// Name of the program at the other host.
pub const REMOTE_HAUL: &str = "haul";
/// The agent's line must come within this time; a login may ask for passwords meanwhile.
const LOGIN: Duration = Duration::from_secs(120);
/// The agent's answer must come within this time of its line.
const ANSWER: Duration = Duration::from_secs(15);
/// Timeout of a TCP connection to the agent's port, before the data goes through ssh.
const REACH: Duration = Duration::from_secs(4);
/// Lines of ssh are held back for so long: if ssh fails, the last one is part of the failure.
const HOLD: Duration = Duration::from_millis(200);
/// How long ssh may take to end.
const GOODBYE: Duration = Duration::from_secs(2);
/// The agent may name a port below this only if the user has named it too.
const UNPRIVILEGED: u16 = 1024;
/// Options of ssh, as scp has them: nothing beside the command itself.
const OPTIONS: [&str; 7] = [
    "-x",
    "-T",
    "-oForwardAgent=no",
    "-oPermitLocalCommand=no",
    "-oClearAllForwardings=yes",
    "-oRemoteCommand=none",
    "-oRequestTTY=no",
];

/// How to reach a host by ssh.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The ssh command and its first arguments.
    pub command: Vec<OsString>,
    /// `[USER@]HOST`, as ssh takes it.
    pub destination: String,
    /// The command that starts haul there.
    pub remote_haul: String,
    /// The ports that the agent may listen on, unless its environment names others.
    pub ports: Option<Ports>,
    /// The host or address of the data, in place of the one that the agent names.
    pub data_address: Option<String>,
    /// Send the data through ssh, whatever the path allows.
    pub through_ssh: bool,
}

/// A host that is reached by ssh.
pub struct Ssh {
    settings: Settings,
    say: Say,
    login: Mutex<Option<Login>>,
    answer: Duration,
}

impl fmt::Debug for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ssh")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A login whose agent has answered.
struct Login {
    child: Child,
    mux: Mux,
    welcome: Welcome,
    /// The data goes beside ssh to this address, or through ssh.
    route: Option<(IpAddr, u16)>,
}

impl Drop for Login {
    fn drop(&mut self) {
        // If ssh reads no more, this blocks until ssh is killed. Without a thread for it, ssh is
        // killed as well.
        let mux = self.mux.clone();
        let builder = std::thread::Builder::new().name("haul-ssh-done".into());
        let _ = builder.spawn(move || mux.done());
        let deadline = Instant::now() + GOODBYE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // It has ended, or the kernel ends it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ssh {
    /// Makes the access to a host; [`Access::prepare`] logs in. `say` gets ssh's own lines, and a
    /// line for each fallback.
    #[must_use]
    pub fn new(settings: Settings, say: Say) -> Self {
        Self {
            settings,
            say,
            login: Mutex::default(),
            answer: ANSWER,
        }
    }

    /// Tries every port of the range, TCP and UDP. Returns the address that was tried as well.
    ///
    /// # Errors
    /// If there is no login, no agent or no address.
    pub fn check(&self) -> Result<(IpAddr, Ports, Vec<Reach>), Fault> {
        let login = self.log_in([0; 32], true)?;
        let (first, last) = login.welcome.range;
        let range = Ports::new(first, last)
            .ok_or_else(|| Fault::protocol("the agent names no range of ports"))?;
        let ip = self.data_ip(&login.welcome)?;
        let ports: Vec<u16> = range
            .iter()
            .filter(|port| login.welcome.ports.contains(port) && self.may_reach(*port))
            .collect();
        Ok((ip, range, probe::check(ip, &ports, login.welcome.token)))
    }

    /// Logs in and has the agent open a server for `key`, or the ports for a check.
    fn log_in(&self, key: [u8; 32], probe: bool) -> Result<Login, Fault> {
        let settings = &self.settings;
        let (program, first) = settings.command.split_first().ok_or_else(|| {
            Fault::new(Code::Usage, "the ssh command is empty").hint("see --ssh and HAUL_SSH")
        })?;
        let spawned = Command::new(program)
            .args(first)
            .args(OPTIONS)
            .arg("--")
            .arg(&settings.destination)
            .args([&settings.remote_haul, "agent", "--stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| {
            let shown = printable(program.as_encoded_bytes());
            Fault::new(
                Code::Unreachable,
                format!("cannot start '{shown}': {}", plain(&error)),
            )
            .hint("install OpenSSH's client, or name another command with --ssh")
        })?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Fault::new(Code::Other, "ssh has no pipes"));
        };
        let errors = Stderr::start(stderr, Arc::clone(&self.say))?;
        let introduction = Introduction {
            software: crate::SOFTWARE.to_owned(),
            key,
            ports: settings.ports.map(Ports::ends),
            probe,
        };
        let (answer, answered) = bounded(1);
        let (begin, begun) = bounded(1);
        let greet = move || {
            let mut input = BufReader::new(stdout);
            let skipped = skip_to_agent(&mut input);
            // Whoever waits takes it, or has given up.
            let _ = begin.send(());
            let greeted = skipped.and_then(|software| {
                let body = minicbor::to_vec(&introduction)
                    .map(haul_control::next::extend)
                    .map_err(|error| Fault::new(Code::Other, format!("cannot encode: {error}")))?;
                let lost = |error| Fault::connection(&error);
                write_frame(&mut stdin, Kind::Greeting, 0, &body).map_err(lost)?;
                let (header, body) = read_frame(&mut input).map_err(lost)?;
                let welcome = match header.kind {
                    Kind::Greeting => minicbor::decode::<Welcome>(&body).ok(),
                    _ => None,
                };
                let welcome = welcome
                    .ok_or_else(|| Fault::protocol(format!("{software} sent no welcome")))?;
                Ok((welcome, input, stdin))
            });
            // Whoever waited may have given up.
            let _ = answer.send(greeted);
        };
        std::thread::Builder::new()
            .name("haul-ssh-greet".into())
            .spawn(greet)
            .map_err(|error| Fault::system(&error))?;
        let late = |what: &str, limit: Duration| {
            let text = format!("{what} through ssh within {} s", limit.as_secs());
            Fault::new(Code::Unreachable, text)
        };
        let greeted = match begun.recv_timeout(LOGIN) {
            Err(_) => Err(late("no haul answered", LOGIN)),
            Ok(()) => answered
                .recv_timeout(self.answer)
                .unwrap_or_else(|_| Err(late("haul's agent opened no port", self.answer))),
        };
        let (welcome, input, output) = greeted.map_err(|fault| {
            let status = end(&mut child);
            self.failure(&fault, status, &errors.last())
        })?;
        errors.release();
        if let Some(failure) = &welcome.failure {
            drop((input, output));
            end(&mut child);
            let text = format!(
                "haul at {}: {}",
                settings.destination,
                printable(failure.as_bytes())
            );
            return Err(Fault::new(Code::Unreachable, text).hint(
                "agents of transfers that broke off hold a port for up to 10 minutes: try again \
                 then, end the 'haul agent' processes there, or set HAUL_PORT_RANGE to free ports, \
                 at either end",
            ));
        }
        let mux = Mux::start(input, output, None).map_err(|error| Fault::system(&error))?;
        Ok(Login {
            child,
            mux,
            welcome,
            route: None,
        })
    }

    /// Returns the failure that the user sees, from how ssh ended and its last line.
    fn failure(&self, fault: &Fault, status: Option<ExitStatus>, last: &str) -> Fault {
        let host = &self.settings.destination;
        let remote = &self.settings.remote_haul;
        let said = if last.is_empty() {
            String::new()
        } else {
            format!(": {last}")
        };
        if fault.code == Code::Version {
            return fault.clone();
        }
        let install = format!(
            "install haul there (README, Install), the version of this host, {}; or name its place \
             with --remote-haul PATH",
            crate::SOFTWARE
        );
        let refused = [
            "Permission denied",
            "Host key verification failed",
            "Too many authentication failures",
            "no matching host key",
        ];
        match status.and_then(|status| status.code()) {
            Some(255) => {
                let code = match refused.iter().any(|text| last.contains(text)) {
                    true => Code::NotAuthenticated,
                    false => Code::Unreachable,
                };
                Fault::new(code, format!("ssh cannot log in to {host}{said}")).hint(format!(
                    "check that 'ssh {host}' logs in; a server of haul serve is haul://HOST/PATH"
                ))
            }
            Some(126 | 127) => Fault::new(
                Code::NotHaul,
                format!("{host} cannot start '{remote}'{said}"),
            )
            .hint(install),
            Some(2) if last.contains("--help") => Fault::new(
                Code::Version,
                format!(
                    "haul at {host} is older than {} and knows no 'agent'",
                    crate::SOFTWARE
                ),
            )
            .hint(install),
            _ => {
                let text = format!("{host}: {}{said}", fault.text);
                let fault = Fault::new(fault.code, text);
                fault.hint(format!(
                    "the account must be able to run exactly '{remote} agent --stdio': check its \
                     shell, its start files and a forced command"
                ))
            }
        }
    }

    /// Returns the address of the data. The other host may name an IP address only: a name could
    /// lead to any host that this one finds.
    fn data_ip(&self, welcome: &Welcome) -> Result<IpAddr, Fault> {
        const HINT: &str = "name the address of the data with --data-address";
        let unusable = |text: String| Fault::new(Code::Unreachable, text).hint(HINT);
        let Some(host) = &self.settings.data_address else {
            let Some(named) = &welcome.address else {
                let text = "the other host does not know its address (no SSH_CONNECTION)";
                return Err(unusable(text.to_owned()));
            };
            return named.parse().map_err(|_| {
                let shown = printable(named.as_bytes());
                unusable(format!("the other host names no IP address, but '{shown}'"))
            });
        };
        let shown = printable(host.as_bytes());
        let mut found = (host.as_str(), 0)
            .to_socket_addrs()
            .map_err(|_| unusable(format!("cannot find the address '{shown}'")))?;
        found
            .next()
            .map(|address| address.ip())
            .ok_or_else(|| Fault::new(Code::Unreachable, format!("'{shown}' has no address")))
    }

    /// Returns whether this host connects to a port that the other host names: only the user
    /// chooses a privileged one.
    fn may_reach(&self, port: u16) -> bool {
        let own = self.settings.ports.map(Ports::ends);
        port >= UNPRIVILEGED || own.is_some_and(|(first, last)| (first..=last).contains(&port))
    }

    /// Returns the port of the agent's server.
    fn agent_port(&self, welcome: &Welcome) -> Result<u16, Fault> {
        let &[port] = welcome.ports.as_slice() else {
            return Err(Fault::protocol("the agent names no port"));
        };
        let (first, last) = welcome.range;
        if !self.may_reach(port) || !(first..=last).contains(&port) {
            let text = format!(
                "the agent names port {port}: outside of its range {first}-{last}, or below \
                 {UNPRIVILEGED}"
            );
            return Err(Fault::protocol(text).hint("name the ports with --ports"));
        }
        Ok(port)
    }

    /// Returns the address at which the agent's port is reached.
    fn reach(&self, welcome: &Welcome, port: u16, timeout: Duration) -> Result<IpAddr, Fault> {
        let ip = self.data_ip(welcome)?;
        match TcpStream::connect_timeout(&(ip, port).into(), REACH.min(timeout)) {
            Ok(_) => Ok(ip),
            Err(error) => {
                let why = plain(&error);
                let text = format!("TCP port {port} of {ip} is not reached: {why}");
                Err(Fault::new(Code::Unreachable, text))
            }
        }
    }

    /// Logs in, and sets the way of the data in `config`.
    fn enter(&self, config: &mut Config, login: &mut Option<Login>) -> Result<(), Fault> {
        // The agent, before the message that it is done.
        *login = None;
        let key = PrivateKey::generate()?;
        let mut entered = self.log_in(*key.public().as_bytes(), false)?;
        let port = self.agent_port(&entered.welcome)?;
        let agent = PublicKey::from_bytes(entered.welcome.key);
        config.control = ClientConfig::new(Some(&Identity::Key(key)), &Trust::Keys(vec![agent]))?;
        let wants_port = !config.may_fall_back && config.channel == ChannelKind::Udt;
        config.sealed = true;
        let reached = match self.settings.through_ssh {
            true => Ok(None),
            false => self
                .reach(&entered.welcome, port, config.connect_timeout)
                .map(Some),
        };
        match reached {
            Ok(Some(ip)) => {
                entered.route = Some((ip, port));
                (config.host, config.port, config.dialer) = (ip.to_string(), port, None);
            }
            Ok(None) if wants_port => {
                let text = "the udt channel does not go through ssh";
                return Err(Fault::new(Code::Usage, text).hint("leave --channel or --via-ssh out"));
            }
            Err(why) if wants_port => {
                return Err(why.hint(
                    "the udt channel needs a port: leave --channel out, or see --data-address",
                ));
            }
            outcome => {
                if let Err(why) = outcome {
                    (self.say)(&format!(
                        "{why}; the data goes through ssh itself, which is slower (open the ports, \
                         or see --data-address and 'haul doctor {}:')",
                        self.settings.destination
                    ));
                }
                config.host.clone_from(&self.settings.destination);
                config.port = port;
                config.dialer = Some(Arc::new(Pipe(entered.mux.clone())));
                config.channel = ChannelKind::Tcp;
                config.congestion = None;
            }
        }
        *login = Some(entered);
        Ok(())
    }
}

impl Access for Ssh {
    fn prepare(&self, config: &mut Config) -> Result<(), Fault> {
        self.enter(config, &mut lock(&self.login))
    }

    fn recover(&self, config: &mut Config, fault: &Fault) -> Result<bool, Fault> {
        let mut login = lock(&self.login);
        let is_gone = login.as_ref().is_none_or(|current| match current.route {
            // Refused: the host is there, and the agent is not.
            Some(route) => matches!(
                TcpStream::connect_timeout(&route.into(), REACH.min(config.connect_timeout)),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused
            ),
            None => current.mux.end().is_some(),
        });
        if is_gone {
            (self.say)(&format!(
                "the agent at {} has ended; logging in again by ssh",
                self.settings.destination
            ));
            return match self.enter(config, &mut login) {
                // A host that is not reached now may be later.
                Err(fault) if fault.code.passes() => Ok(false),
                Err(fault) => Err(fault),
                Ok(()) => Ok(false),
            };
        }
        let is_beside = login
            .as_ref()
            .is_some_and(|current| current.route.is_some());
        Ok(is_beside && config.fall_back(fault, &self.say))
    }
}

/// Ends ssh, and returns how it had ended by itself.
fn end(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + GOODBYE;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(Some(status)) => {
                // Its last line arrives with it.
                std::thread::sleep(HOLD / 4);
                return Some(status);
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return None,
        }
    }
    // It has ended, or the kernel ends it.
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Streams through ssh.
struct Pipe(Mux);

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pipe")
    }
}

impl Dialer for Pipe {
    fn connect(&self, _: &str, _: u16, timeout: Duration) -> Result<TcpStream, Fault> {
        let (opened, open) = bounded(1);
        let mux = self.0.clone();
        // If ssh reads no more, this blocks until ssh ends.
        let work = move || {
            // Whoever waited may have given up: then the stream is closed again.
            let _ = opened.send(mux.open());
        };
        std::thread::Builder::new()
            .name("haul-ssh-open".into())
            .spawn(work)
            .map_err(|error| Fault::system(&error))?;
        let stream = open.recv_timeout(timeout).unwrap_or_else(|_| {
            let seconds = timeout.as_secs();
            let text = format!("ssh took no bytes for {seconds} s");
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
        });
        stream.map_err(|error| {
            Fault::new(
                Code::PeerGone,
                format!("the ssh connection is gone: {}", plain(&error)),
            )
            .hint(crate::fault::RESUME)
        })
    }
}

/// What ssh prints on its standard error: prompts at once, and the reason of a failure not twice.
struct Stderr(Arc<Held>);

struct Held {
    lines: Mutex<Vec<String>>,
    is_released: AtomicBool,
    say: Say,
}

impl Stderr {
    fn start(stderr: ChildStderr, say: Say) -> Result<Self, Fault> {
        let held = Arc::new(Held {
            lines: Mutex::default(),
            is_released: AtomicBool::new(false),
            say,
        });
        let builder = || std::thread::Builder::new().name("haul-ssh-lines".into());
        let (reading, passing) = (Arc::clone(&held), Arc::clone(&held));
        let (arrived, arrivals) = bounded(1);
        builder()
            .spawn(move || {
                let mut input = BufReader::new(stderr.take(1 << 20));
                let mut line = Vec::new();
                while matches!(input.read_until(b'\n', &mut line), Ok(1..)) {
                    let text = printable(line.trim_ascii());
                    if !text.is_empty() {
                        lock(&reading.lines).push(text);
                    }
                    line.clear();
                    // One that is there already has the same effect.
                    let _ = arrived.try_send(());
                }
                // ssh must not block on a pipe that nobody reads.
                let _ = std::io::copy(&mut input.into_inner().into_inner(), &mut std::io::sink());
            })
            .map_err(|error| Fault::system(&error))?;
        builder()
            .spawn(move || {
                while arrivals.recv().is_ok() {
                    if !passing.is_released.load(Ordering::Acquire) {
                        std::thread::sleep(HOLD);
                    }
                    passing.pass();
                }
            })
            .map_err(|error| Fault::system(&error))?;
        Ok(Self(held))
    }

    /// Returns the last line, and prints none of those held.
    fn last(&self) -> String {
        let mut lines = lock(&self.0.lines);
        std::mem::take(&mut *lines).pop().unwrap_or_default()
    }

    /// From now on lines pass at once.
    fn release(&self) {
        self.0.is_released.store(true, Ordering::Release);
        self.0.pass();
    }
}

impl Held {
    fn pass(&self) {
        for line in std::mem::take(&mut *lock(&self.lines)) {
            (self.say)(&format!("ssh: {line}"));
        }
    }
}
