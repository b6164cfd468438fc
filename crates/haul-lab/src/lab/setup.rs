//! Creates the topology: devices with the `ip` program, kernel parameters by their files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use haul_io::netns::{NetNs, device, write_file};
use haul_io::tun::{TUN_DEVICE, Tun};

use super::topology::{HostPlan, Plan, VethPair, WAN};
use super::{Emulators, Host, Lab, kernel, privilege};
use crate::emulator::Emulator;

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

/// A common congestion control, whatever the machine's own default is.
const CONGESTION_CONTROL: (&str, &str) = ("net.ipv4.tcp_congestion_control", "cubic");

const FORWARDING: [(&str, &str); 2] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
];

/// Everything, with the path emulated here.
pub(super) fn with_tun(lab: &Lab, plan: &Plan) -> Result<Emulators> {
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
pub(super) fn with_kernel(lab: &Lab, plan: &Plan) -> Result<()> {
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
pub(super) fn with_veth(lab: &Lab, plan: &Plan) -> Result<()> {
    let [a, b] = plan.wan.map(|host| &lab.hosts[host].netns);
    join(a, WAN, b, WAN)?;
    for end in [a, b] {
        // If the kernel refuses, both ends work without it, with every emulator.
        let _ = end.run(|| device::set_gro(WAN, true))?;
    }
    configure(lab, plan, &plan.pairs)
}

/// Packets of this host dropped before the emulator.
pub(super) fn device_drops(netns: &NetNs, devices: &[String]) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let Ok(Ok(text)) = netns.run(read) else {
        return 0;
    };
    let drops = |line: &str| -> Option<u64> {
        let (device, counters) = line.trim_start().split_once(':')?;
        let counted = devices.iter().any(|emulated| emulated == device);
        // Eight columns of receive counters, then bytes, packets, errors and drops of transmission.
        let drops = counters.split_whitespace().nth(11)?;
        counted.then(|| drops.parse().ok()).flatten()
    };
    text.lines().filter_map(drops).sum()
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

/// The hosts' congestion control if the kernel does not let a namespace choose the lab's: only the
/// machine's own default, and what `net.ipv4.tcp_allowed_congestion_control` lists, can be one's
/// default.
pub(super) fn other_congestion_control(netns: &NetNs) -> Option<String> {
    let path = format!("/proc/sys/{}", CONGESTION_CONTROL.0.replace('.', "/"));
    let used = netns.run(|| std::fs::read_to_string(path)).ok()?.ok()?;
    (used.trim() != CONGESTION_CONTROL.1).then(|| used.trim().to_string())
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
