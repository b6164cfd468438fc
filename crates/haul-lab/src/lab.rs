//! A lab: namespaces joined by an emulated path, for the lifetime of the value.
//!
//! ```text
//!   pair:       a [wan] ═══ path ═══ [wan] b
//!   gateways:   a [lan]──[lan1] ga [wan] ═══ path ═══ [wan] gb [lan1]──[lan] b
//! ```
//!
//! Each host is a network namespace held by a file descriptor of this process, so nothing under a
//! name can be left behind. Hosts know each other's names: a process started inside sees an
//! `/etc/hosts` with them (`b`, and `b6` for IPv6; `gb-lan1` for a gateway's address behind it).
//!
//! Map: [`topology`] hosts, devices and addresses · `setup` creates them with `ip` · `inspect`
//! reads counters · [`privilege`] the required rights · `kernel` the path by kernel netem instead.

mod inspect;
mod kernel;
pub mod privilege;
mod setup;
pub mod topology;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use haul_io::netns::NetNs;
use haul_io::netns::child::Inside;

use crate::driver;
use crate::emulator::{Emulator, PathStats};
use crate::process;
use crate::scenario::Scenario;
use crate::state::{HostState, LabDir, State};
pub use topology::Addresses;

/// The emulator of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// This program, between two TUN devices.
    #[default]
    Tun,
    /// The kernel's netem queueing discipline on a veth pair, where the kernel has it.
    Kernel,
    /// Nothing: a veth pair as fast as this machine is.
    None,
}

/// A running lab. Dropping it ends every process inside and removes everything.
#[derive(Debug)]
pub struct Lab {
    scenario: Scenario,
    hosts: Vec<Host>,
    emulators: Option<Emulators>,
    dir: LabDir,
    id: String,
    /// It runs in the background for other commands.
    shared: bool,
}

/// The emulator of each path.
#[derive(Debug)]
struct Emulators {
    path: Emulator,
    /// Between hosts and gateways, where the scenario defines them.
    edges: Vec<Emulator>,
}

/// One host of a lab.
#[derive(Debug)]
pub struct Host {
    name: String,
    addresses: Addresses,
    /// A gateway's devices towards its hosts.
    links: Vec<(String, Addresses)>,
    netns: NetNs,
    /// Its devices towards an emulated link.
    emulated: Vec<String>,
}

/// Counters of the path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabStats {
    /// The emulator's counters; `None` where the kernel emulates.
    pub path: Option<PathStats>,
    /// Packets that the kernel dropped before the emulator could read them: the emulator was too
    /// slow.
    pub device_drops: u64,
    /// Packets that the emulators of the edges dropped for lack of memory.
    pub edge_overruns: u64,
}

impl Lab {
    /// The name under which `lab exec` finds it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.dir.name()
    }

    /// Returns the scenario.
    #[must_use]
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Its hosts, from the `a` side to the `b` side.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// One of its hosts.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn host(&self, name: &str) -> Result<&Host> {
        let found = self.hosts.iter().find(|host| host.name == name);
        found.with_context(|| {
            let names: Vec<&str> = self.hosts.iter().map(Host::name).collect();
            format!(
                "there is no host `{name}`: this lab has {}",
                names.join(", ")
            )
        })
    }

    /// A command that will run on a host. It is killed when the thread that starts it ends, and
    /// with the lab at the latest.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command> {
        let host = self.host(host)?;
        let mut command = Command::new(program);
        command.envs(environment(&self.state(), host.name()));
        let hosts_file = self.dir.hosts_file();
        let inside = Inside {
            network: Some(host.netns.as_fd()),
            binds: vec![(&hosts_file, Path::new("/etc/hosts"))],
            dies_with_parent: true,
            ..Inside::default()
        };
        inside
            .on(&mut command)
            .context("cannot prepare the command")?;
        Ok(command)
    }

    /// Returns the path's counters so far.
    #[must_use]
    pub fn stats(&self) -> LabStats {
        LabStats {
            path: self.emulators.as_ref().map(|all| all.path.stats()),
            device_drops: self
                .hosts
                .iter()
                .map(|host| inspect::device_drops(&host.netns, &host.emulated))
                .sum(),
            edge_overruns: self
                .edges()
                .map(|edge| edge.forward.overruns + edge.reverse.overruns)
                .sum(),
        }
    }

    /// Returns the counters of the emulated edges.
    fn edges(&self) -> impl Iterator<Item = PathStats> {
        let emulators = self.emulators.iter();
        emulators.flat_map(|all| all.edges.iter().map(Emulator::stats))
    }

    /// Returns warnings about the emulation, one line each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let other = self
            .hosts
            .first()
            .and_then(|host| inspect::other_congestion_control(&host.netns));
        other
            .map(|other| {
                format!("this kernel does not let hosts of a lab use TCP cubic by default: they use {other}, unless a program chooses")
            })
            .into_iter()
            .collect()
    }

    /// Ends every process inside: sends SIGTERM, and SIGKILL to those left after `patience`.
    pub fn end_processes(&self, patience: Duration) {
        process::end_all(&self.state().inodes(), patience);
    }

    /// The processes on a host, but for this one.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn processes(&self, host: &str) -> Result<Vec<rustix::process::Pid>> {
        let inode = self.host(host)?.netns.inode()?;
        Ok(process::inside(&[inode].into()))
    }

    /// The directory for files that processes in this lab read and write. It is removed with the
    /// lab.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn dir(&self) -> &LabDir {
        &self.dir
    }

    pub(crate) fn state(&self) -> State {
        let hosts = self.hosts.iter().map(|host| HostState {
            name: host.name.clone(),
            v4: host.addresses.v4,
            v6: host.addresses.v6,
            fd: host.netns.raw_fd(),
            inode: host.netns.inode().unwrap_or(0),
        });
        State {
            id: self.id.clone(),
            pid: rustix::process::getpid().as_raw_pid(),
            started: process::start_time(rustix::process::getpid().as_raw_pid()).unwrap_or(0),
            scenario: self.scenario.name.clone(),
            shared: self.shared,
            hosts: hosts.collect(),
        }
    }

    fn write_hosts_file(&self) -> Result<()> {
        let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
        let mut add = |name: &str, end: &str, addresses: Addresses| {
            text += &format!("{} {name}{end}\n", addresses.v4);
            if self.scenario.mtu >= topology::IPV6_MTU_MIN {
                // IPv6 has a name of its own: applications prefer it, and its larger headers would
                // change a path's ceiling.
                text += &format!("{} {name}6{end}\n", addresses.v6);
            }
        };
        for host in &self.hosts {
            add(&host.name, "", host.addresses);
            // Clients from there have a name, too: a server that resolves it would wait for DNS.
            for (device, addresses) in &host.links {
                add(&host.name, &format!("-{device}"), *addresses);
            }
        }
        let path = self.dir.hosts_file();
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _closed = self.dir.close();
        self.end_processes(Duration::from_millis(500));
        self.emulators = None;
        self.dir.remove();
    }
}

impl Host {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its addresses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }
}

/// The environment of a process inside: the lab, its host, the IPv4 address of every host (`LAB_A`,
/// `LAB_B`, …), and the path of the Globus XIO driver that was built beside this executable.
pub(crate) fn environment(state: &State, host: &str) -> Vec<(String, String)> {
    let mut variables = vec![
        (process::MARK.to_string(), state.id.clone()),
        ("HAUL_LAB_HOST".to_string(), host.to_string()),
    ];
    if std::env::var_os("HAUL_XIO_DRIVER").is_none()
        && let Some(folder) = driver::built_driver()
    {
        let folder = folder.to_string_lossy().into_owned();
        variables.push(("HAUL_XIO_DRIVER".to_string(), folder));
    }
    variables.extend(state.hosts.iter().map(|host| {
        (
            format!("LAB_{}", host.name.to_uppercase()),
            host.v4.to_string(),
        )
    }));
    variables
}
