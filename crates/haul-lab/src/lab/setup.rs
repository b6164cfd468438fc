//! Creates the topology: devices with the `ip` program, kernel parameters by their files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use haul_io::netns::{NetNs, device, write_file};
use haul_io::tun::{TUN_DEVICE, Tun};

use super::inspect::CONGESTION_CONTROL;
use super::topology::{HostPlan, Plan, VethPair, WAN, plan};
use super::{Emulators, Engine, Host, Lab, kernel, privilege};
use crate::emulator::Emulator;
use crate::scenario::Scenario;
use crate::state::{self, LabDir};

/// Tuning of every host, so that the path limits a transfer.
const TUNING: [(&str, &str); 10] = [
    ("net.ipv4.tcp_rmem", "4096 131072 536870912"),
    ("net.ipv4.tcp_wmem", "4096 65536 536870912"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.ping_group_range", "0 0"),
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.all.accept_ra", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
];

const FORWARDING: [(&str, &str); 2] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
];

impl Lab {
    /// Creates the lab under a unique name and starts its path.
    ///
    /// # Errors
    /// One line that names the missing requirement: the right to create namespaces, the TUN device,
    /// the `ip` program.
    pub fn start(scenario: &Scenario) -> Result<Self> {
        Self::build(scenario, &state::free_name(), Engine::Tun, false)
    }

    /// As [`start`](Self::start), with a choice of the emulator.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(scenario: &Scenario, engine: Engine) -> Result<Self> {
        Self::build(scenario, &state::free_name(), engine, false)
    }

    /// Creates the lab under this name, for use by other commands.
    ///
    /// # Errors
    /// As [`start`](Self::start); or if a lab of this name is up.
    pub(crate) fn start_shared(scenario: &Scenario, name: &str, engine: Engine) -> Result<Self> {
        Self::build(scenario, name, engine, true)
    }

    fn build(scenario: &Scenario, name: &str, engine: Engine, shared: bool) -> Result<Self> {
        privilege::acquire()?;
        let id = format!("{name}.{}", rustix::process::getpid().as_raw_pid());
        let dir = LabDir::create(name)?;
        // From here on, dropping this cleans up after any failure.
        let mut lab = Self {
            scenario: scenario.clone(),
            hosts: Vec::new(),
            emulators: None,
            dir,
            id,
            shared,
        };
        lab.dir.write_state(&lab.state())?;
        let plan = plan(scenario);
        for host in &plan.hosts {
            let netns = NetNs::new().context("cannot make a network namespace")?;
            lab.hosts.push(Host {
                name: host.name.clone(),
                addresses: host.addresses,
                links: host.links.clone(),
                netns,
                emulated: host.emulated.clone(),
            });
        }
        lab.write_hosts_file()?;
        match engine {
            Engine::Tun => lab.emulators = Some(with_tun(&lab, &plan)?),
            Engine::Kernel => with_kernel(&lab, &plan)?,
            Engine::None => with_veth(&lab, &plan)?,
        }
        lab.dir.write_state(&lab.state())?;
        Ok(lab)
    }
}

/// Everything, with the path emulated here.
fn with_tun(lab: &Lab, plan: &Plan) -> Result<Emulators> {
    let open = |host: usize, device: &str| {
        lab.hosts[host]
            .netns
            .run(|| Tun::open(Path::new(TUN_DEVICE), device))?
            .map_err(|error| privilege::tun_error(&error))
    };
    let [a, b] = plan.wan;
    let path = (lab.scenario.clone(), open(a, WAN)?, open(b, WAN)?);
    let mut edges = Vec::new();
    for (index, pair) in plan.pairs.iter().enumerate() {
        let Some(scenario) = lab.scenario.of_edge(index) else {
            break;
        };
        let host = (pair.host, pair.host_device);
        let gateway = (pair.gateway, pair.gateway_device.as_str());
        // Hosts are numbered from the a side to the b side.
        let [a, b] = if pair.host < pair.gateway {
            [host, gateway]
        } else {
            [gateway, host]
        };
        edges.push((scenario, open(a.0, a.1)?, open(b.0, b.1)?));
    }
    let pairs: &[VethPair] = if edges.is_empty() { &plan.pairs } else { &[] };
    configure(lab, plan, pairs)?;
    let start = |(scenario, a, b)| Emulator::start(&scenario, a, b);
    Ok(Emulators {
        path: start(path)?,
        edges: edges.into_iter().map(start).collect::<Result<_>>()?,
    })
}

/// Everything, with the path emulated by the kernel.
fn with_kernel(lab: &Lab, plan: &Plan) -> Result<()> {
    if lab.scenario.edge.is_some() {
        bail!("edges are not emulated by the kernel: leave out `--emulator kernel`");
    }
    let [a, b] = plan.wan.map(|host| &lab.hosts[host].netns);
    join(a, WAN, b, WAN)?;
    configure(lab, plan, &plan.pairs)?;
    kernel::shape(a, &lab.scenario.forward)?;
    kernel::shape(b, &lab.scenario.reverse)
}

/// Everything, with the two ends joined directly.
fn with_veth(lab: &Lab, plan: &Plan) -> Result<()> {
    let [a, b] = plan.wan.map(|host| &lab.hosts[host].netns);
    join(a, WAN, b, WAN)?;
    for end in [a, b] {
        // If the kernel refuses, both ends work without it, with every emulator.
        let _ = end.run(|| device::set_gro(WAN, true))?;
    }
    configure(lab, plan, &plan.pairs)
}

/// Parameters come first: devices made later begin with them. `pairs`: those that are to be laid.
fn configure(lab: &Lab, plan: &Plan, pairs: &[VethPair]) -> Result<()> {
    for (host, host_plan) in lab.hosts.iter().zip(&plan.hosts) {
        host.netns.run(|| {
            tune(&TUNING);
            tune(&[CONGESTION_CONTROL]);
            if host_plan.forwards {
                tune(&FORWARDING);
            }
        })?;
    }
    for pair in pairs {
        let (gateway, host) = (&lab.hosts[pair.gateway].netns, &lab.hosts[pair.host].netns);
        join(gateway, &pair.gateway_device, host, pair.host_device)?;
    }
    for (host, host_plan) in lab.hosts.iter().zip(&plan.hosts) {
        host.netns.run(|| bring_up(lab, host, host_plan))??;
    }
    Ok(())
}

/// Inside a host: addresses, routes, offloads, and the scenario's kernel settings.
fn bring_up(lab: &Lab, host: &Host, plan: &HostPlan) -> Result<()> {
    let name = &host.name;
    ip_batch(&plan.batch).with_context(|| format!("cannot set up host {name}"))?;
    for device in &plan.gro_devices {
        device::set_gro(device, true)
            .with_context(|| format!("cannot switch on GRO of {device}"))?;
    }
    for (parameter, value) in lab.scenario.sysctls.get(name).into_iter().flatten() {
        set_sysctl(parameter, value)
            .with_context(|| format!("cannot set {parameter} = {value} on host {name}"))?;
    }
    Ok(())
}

/// A veth pair with one end in each namespace.
fn join(near: &NetNs, near_device: &str, far: &NetNs, far_device: &str) -> Result<()> {
    let far_path = format!(
        "/proc/{}/fd/{}",
        rustix::process::getpid().as_raw_pid(),
        far.raw_fd()
    );
    let line = format!("link add {near_device} type veth peer name {far_device} netns {far_path}");
    near.run(|| ip_batch(&[line]))
        .context("cannot enter the namespace")?
        .context("cannot join two hosts")
}

/// Settings that do not exist, or that we may not change, stay as they are: this is only tuning.
fn tune(parameters: &[(&str, &str)]) {
    for (name, value) in parameters {
        let _ = set_sysctl(name, value);
    }
}

fn set_sysctl(name: &str, value: &str) -> Result<()> {
    if name.contains("..") || name.contains('/') {
        bail!("`{name}` is not the name of a kernel parameter");
    }
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Ok(write_file(Path::new(&path), value.as_bytes())?)
}

fn ip_batch(lines: &[String]) -> Result<()> {
    let mut command = Command::new("ip");
    command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow!("the program `ip` is missing: install iproute2"),
        _ => anyhow!("cannot run `ip`: {error}"),
    })?;
    let mut input = child.stdin.take().context("`ip` has no input")?;
    input.write_all((lines.join("\n") + "\n").as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`ip` failed: {}",
            message.lines().collect::<Vec<_>>().join("; ")
        );
    }
    Ok(())
}
