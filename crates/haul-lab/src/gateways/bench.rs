//! One path with two gateways, and the programs at its ends: host `a` reaches the servers of `b`
//! directly by the name `b`, and through the gateways by the name `ga`.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::traffic::{self, Server};
use crate::compare::runner::{Runner, Running, Stop, spawn};
use crate::lab::Lab;
use crate::scenario::Scenario;
use crate::sshd;

/// Ports on `b`, and of the near gateway: the server of this program, and others'.
const OWN_PORT: u16 = 5300;
pub(super) const POSTGRES_PORT: u16 = 5440;
pub(super) const REDIS_PORT: u16 = 6400;
const SESSIONS_PORT: u16 = 7400;
const PORTS: [u16; 4] = [OWN_PORT, sshd::PORT, POSTGRES_PORT, REDIS_PORT];
/// Time limit of a download.
const LIMIT: Duration = Duration::from_secs(120);

/// A lab whose gateways run, with nothing but defaults.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) runner: &'a Runner<'a>,
    pub(super) lab: Lab,
    _gateways: [Running; 2],
    _server: Server,
}

/// How `a` reaches `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Gateways,
}

impl Way {
    /// The host to which clients connect.
    pub(super) const fn host(self) -> &'static str {
        match self {
            Self::Direct => "b",
            Self::Gateways => "ga",
        }
    }
}

impl<'a> Bench<'a> {
    pub(super) fn start(
        runner: &'a Runner<'a>,
        rate: &str,
        rtt_ms: f64,
        loss: f64,
    ) -> Result<Self, Stop> {
        let text = format!(
            "topology = \"gateways\"\n[path]\nrate = \"{rate}\"\nrtt = \"{rtt_ms}ms\"\nloss = {loss:e}\n"
        );
        let lab = Lab::start(&Scenario::parse("gateways", &text)?)?;
        send_by_bbr(&lab)?;
        let b = lab.host("b")?;
        let address = b.addresses().v4;
        let server = Server::start(b.netns(), (address, OWN_PORT).into())?;
        let far = gateway(runner, &lab, "gb", &far(address), SESSIONS_PORT)?;
        let near = near(lab.host("gb")?.addresses().v4, address);
        let near = gateway(runner, &lab, "ga", &near, OWN_PORT)?;
        Ok(Self {
            runner,
            lab,
            _gateways: [near, far],
            _server: server,
        })
    }

    pub(super) fn address(&self, host: &str) -> Result<Ipv4Addr> {
        Ok(self.lab.host(host)?.addresses().v4)
    }

    /// Starts a server on `b` and waits until it listens.
    pub(super) fn serve(
        &self,
        line: &[OsString],
        port: u16,
        limit: Duration,
    ) -> Result<Running, Stop> {
        let mut running = self.spawn("b", line)?;
        self.runner
            .listening_within(&self.lab, "b", port, &mut running, limit)?;
        Ok(running)
    }

    pub(super) fn spawn(&self, host: &str, line: &[OsString]) -> Result<Running> {
        spawn(&self.lab, host, line)
    }

    fn target(&self, way: Way) -> Result<SocketAddr> {
        Ok((self.address(way.host())?, OWN_PORT).into())
    }

    /// So many downloads at once.
    pub(super) fn download(&self, way: Way, count: usize, len: u64) -> Result<f64, Stop> {
        let (netns, target) = (self.lab.host("a")?.netns(), self.target(way)?);
        Ok(traffic::download(netns, target, count, len, LIMIT)?)
    }

    /// Returns Jain's index of the bytes of so many downloads at once: 1 if all have the same.
    pub(super) fn fairness(&self, way: Way, count: usize, time: Duration) -> Result<f64, Stop> {
        let (netns, target) = (self.lab.host("a")?.netns(), self.target(way)?);
        Ok(jain(&traffic::shares(netns, target, count, time)?))
    }

    /// The 99th percentile of a ping-pong every 50 ms beside a download.
    pub(super) fn ping_pong(&self, way: Way, time: Duration) -> Result<f64, Stop> {
        let (netns, target) = (self.lab.host("a")?.netns(), self.target(way)?);
        let times = traffic::ping_pong(netns, target, Duration::from_millis(50), time)?;
        let at = (times.len() * 99).div_ceil(100) - 1;
        Ok(times[at])
    }
}

/// Jain's fairness index (RFC 5166 §2.5): (Σx)² / (n Σx²).
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Has `a` and `b` send by BBR to each other. The gateways are neighbours of theirs: towards them
/// the default stays.
fn send_by_bbr(lab: &Lab) -> Result<()> {
    for host in ["a", "b"] {
        let line = "ip route replace $(ip route show default) congctl bbr";
        let output = lab.command(host, "sh")?.args(["-c", line]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "cannot let host {host} send by BBR: {} (modprobe tcp_bbr)",
            said.trim()
        );
    }
    Ok(())
}

/// Starts a gateway and waits until it listens.
fn gateway(
    runner: &Runner<'_>,
    lab: &Lab,
    host: &str,
    config: &str,
    port: u16,
) -> Result<Running, Stop> {
    let file: PathBuf = lab.scratch().join(format!("{host}.toml"));
    std::fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
    let haul = runner.programs.haul.clone().into_os_string();
    let mut running = spawn(
        lab,
        host,
        &[haul, "gateway".into(), "run".into(), file.into()],
    )?;
    runner.listening_at(lab, host, port, false, &mut running)?;
    Ok(running)
}

/// The configuration of the near gateway.
fn near(far: Ipv4Addr, b: Ipv4Addr) -> String {
    let listeners = PORTS.map(|port| {
        format!(
            "[[listener]]\nkind = \"forward\"\nlisten = \"0.0.0.0:{port}\"\nto = \"{b}:{port}\"\n"
        )
    });
    format!(
        "name = \"ga\"\nanonymous = true\n{}[[route]]\nto = [\"*\"]\nvia = [\"{far}:{SESSIONS_PORT}\"]\n",
        listeners.concat()
    )
}

/// The configuration of the far gateway.
fn far(b: Ipv4Addr) -> String {
    let channel =
        |kind, port| format!("[[channel]]\nkind = \"{kind}\"\nlisten = \"0.0.0.0:{port}\"\n");
    format!(
        "name = \"gb\"\nlisten = \"0.0.0.0:{SESSIONS_PORT}\"\nanonymous = true\nexit = [\"{b}/32\"]\n{}{}",
        channel("iwarp/udt", 7401),
        channel("tcp", 7402)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_have_the_index_1_and_one_of_n_has_a_nth() {
        assert!((jain(&[7, 7, 7, 7]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0, 0]) - 0.25).abs() < 1e-9);
    }
}
