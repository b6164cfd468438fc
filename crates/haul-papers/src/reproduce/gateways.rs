//! One measurement through two gateways, or beside them: hosts `a` and `b` behind `ga` and `gb`,
//! which forward packets as routers do, and run `haul gateway` if requested.

#![expect(
    clippy::disallowed_types,
    reason = "a client and a server of the latency figure, of a few bytes"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use haul_io::process::Ended;
use haul_io::tcp::set_congestion;
use haul_report::machine;
use serde_json::Value;

use super::bench::Context;
use super::programs::tried;
use super::record::Figure;
use haul_lab::compare::plan::Load;
use haul_lab::compare::runner::{Running, Stop, spawn};
use haul_lab::compare::tool::{IPERF_PORT, iperf_spans, plan_iperf};
use haul_lab::compare::transfer::transfer;
use haul_lab::lab::{Engine, Lab};
use haul_lab::report::Report;
use haul_lab::scenario::Scenario;

/// The port of `gb` for sessions.
const SESSIONS_PORT: u16 = 4790;
/// The port of `gb` for data channels, which it announces to its peer.
const CHANNELS_PORT: u16 = 4791;
/// The port of a transparent listener.
const TRANSPARENT_PORT: u16 = 7410;
/// The port of the server of [`Gateways::round_trips`].
pub(super) const ECHO_PORT: u16 = 5202;
/// The port of `haul gateway fill`.
const FILL_PORT: u16 = 5203;
/// Bytes of a call of [`pour`]: those of `iperf3`.
const POUR_BYTES: usize = 128 << 10;
/// Time for a run beyond its sending time.
const SLACK: Duration = Duration::from_secs(30);
/// Idle timeout of the programs.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a gateway may take to finish its connections, s; then it resets them.
const DRAIN_S: u64 = 1;

/// The paths between the gateways, and at the edges.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    /// The keys of `[path]`; nothing where the gateways are joined directly.
    pub(super) path: Option<String>,
    /// The keys of `[edge]`; nothing where hosts and gateways are joined directly.
    pub(super) edge: Option<String>,
}

/// The configuration of the gateways.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The data channel, as configurations call it.
    pub(super) channel: &'static str,
    /// Bytes of the ring: a power of two.
    pub(super) ring_bytes: u64,
    /// More keys of the route.
    pub(super) more: String,
}

/// How applications on `a` reach the near gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// They connect to `ga`, which forwards this port to `b`.
    Forward(u16),
    /// They connect to `b`, and the kernel of `ga` diverts them.
    Transparent,
}

/// The transferring tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Iperf,
    /// Debian's GridFTP.
    Gridftp,
}

/// The applications at the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) program: Program,
    /// TCP's congestion control.
    pub(super) congestion: &'static str,
    pub(super) streams: u16,
}

/// The result of a transfer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Payload that the receiver took in the time of the transfer, bits per second.
    pub(super) whole_bps: f64,
    /// The same without the beginning.
    pub(super) later_bps: f64,
    /// Processor time of each gateway for each 10^9 bytes received, from its start to its end;
    /// nothing without gateways.
    pub(super) cpu_s_per_gb: Option<[f64; 2]>,
}

/// A lab with or without running gateways.
pub(super) struct Gateways<'a> {
    context: &'a Context<'a>,
    lab: Lab,
    /// `ga` and `gb`.
    running: Option<[Running; 2]>,
    listener: Listener,
    busy: bool,
    /// The scenario, and the route.
    told: String,
}

impl<'a> Gateways<'a> {
    /// A fresh lab, and gateways that listen.
    pub(super) fn start(
        context: &'a Context<'a>,
        way: &Way,
        route: Option<&Route>,
        listener: Listener,
        seed: u64,
    ) -> Result<Self, Stop> {
        let busy = machine::settle(context.runner.settle) > machine::IDLE_SHARE;
        let mut scenario = Scenario::parse("reproduce", &way.scenario())?;
        scenario.seed = scenario.seed.wrapping_add(seed);
        let told = way.scenario().trim_end().replace('\n', "; ");
        let told = match (route, listener) {
            (Some(route), Listener::Forward(_)) => format!("{told}: {}", route.told()),
            (Some(route), Listener::Transparent) => {
                format!("{told}: a transparent listener, {}", route.told())
            }
            (None, _) => told,
        };
        let engine = way.path.as_ref().map_or(Engine::None, |_| Engine::Tun);
        let mut started = Self {
            context,
            lab: Lab::start_with(&scenario, engine)?,
            running: None,
            listener,
            busy,
            told,
        };
        if let Some(route) = route {
            let far = started.gateway("gb", &far(route, started.address("b")?), SESSIONS_PORT)?;
            let near = near(
                route,
                listener,
                started.address("gb")?,
                started.address("b")?,
            );
            let near = started.gateway("ga", &near, listener.port())?;
            if listener == Listener::Transparent {
                started.divert()?;
            }
            started.running = Some([near, far]);
        }
        Ok(started)
    }

    fn address(&self, host: &str) -> Result<Ipv4Addr> {
        Ok(self.lab.host(host)?.addresses().v4)
    }

    /// Runs a gateway and waits until it listens.
    fn gateway(&self, host: &str, config: &str, port: u16) -> Result<Running, Stop> {
        let file: PathBuf = self.lab.scratch().join(format!("{host}.toml"));
        std::fs::write(&file, config)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let runner = self.context.runner;
        let drain = DRAIN_S.to_string();
        let mut line = vec![runner.programs.haul.clone().into_os_string()];
        line.extend(["gateway", "run", "--patience", &drain].map(Into::into));
        line.push(file.into_os_string());
        let mut running = spawn(&self.lab, host, &line)?;
        runner.listening_at(&self.lab, host, port, false, &mut running)?;
        Ok(running)
    }

    /// Lets the kernel of `ga` divert all TCP of `a` to `b` (docs/gateway-reference.md).
    fn divert(&self) -> Result<()> {
        let (a, b) = (self.address("a")?, self.address("b")?);
        let rules = format!(
            "table ip haul {{\n  chain prerouting {{\n    type nat hook prerouting priority dstnat; policy accept;\n    \
             ip saddr {a} ip daddr {b} meta l4proto tcp redirect to :{TRANSPARENT_PORT}\n  }}\n}}\n"
        );
        let file = self.lab.scratch().join("ga.nft");
        std::fs::write(&file, rules).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = self.lab.command("ga", "nft")?;
        let output = command.arg("-f").arg(&file).output()?;
        // Its first line has the reason, those after it the rule.
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().next().unwrap_or("failed");
        ensure!(
            output.status.success(),
            "nft cannot divert connections: {why}"
        );
        Ok(())
    }

    /// Returns the address to which `a` connects, to reach `b`.
    fn target(&self) -> &'static str {
        match self.listener {
            Listener::Forward(_) if self.running.is_some() => "ga",
            _ => "b",
        }
    }

    /// From `a` to `b` for `seconds`; [`Found::later_bps`] leaves the first `ramp_s` out.
    pub(super) fn transfer(
        mut self,
        flow: Flow,
        seconds: u32,
        ramp_s: f64,
        figure: &mut Figure,
    ) -> Result<Found, Stop> {
        let spans = match flow.program {
            Program::Iperf => self.iperf(flow, seconds, figure)?,
            Program::Gridftp => self.gridftp(flow, seconds, figure)?,
        };
        let bytes: f64 = spans.iter().map(|(_, bytes)| bytes).sum();
        if bytes <= 0.0 {
            return Err(Stop::Failed(anyhow!("nothing arrived")));
        }
        let seconds = f64::from(seconds);
        let rate = |from: f64, to: f64| bytes_between(&spans, from, to) * 8.0 / (to - from);
        let cpu = self.end(figure)?;
        Ok(Found {
            whole_bps: rate(0.0, seconds),
            later_bps: rate(ramp_s, seconds),
            cpu_s_per_gb: cpu.map(|ends| ends.map(|end| cpu_s(&end) / (bytes / 1e9))),
        })
    }

    /// Bytes received by `iperf3` on `b`, by time.
    fn iperf(
        &self,
        flow: Flow,
        seconds: u32,
        figure: &mut Figure,
    ) -> Result<Vec<(f64, f64)>, Stop> {
        let runner = self.context.runner;
        let options = ["-C", flow.congestion].map(Into::into);
        let load = Load::Seconds(seconds);
        let plan = plan_iperf(
            &runner.programs,
            self.target(),
            flow.streams,
            &options,
            load,
            IPERF_PORT,
        );
        let words: Vec<_> = plan
            .client
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        figure.command(format!("{}: a: {}", self.told, words.join(" ")));
        let mut server = runner.serve(&self.lab, &plan)?;
        let mut client = spawn(&self.lab, "a", &plan.client)?;
        let limit = Duration::from_secs(seconds.into()) + SLACK;
        let ended = runner.wait(&mut client, limit)?;
        if !ended.status.success() {
            return Err(Stop::Failed(client.failure("iperf3", &ended)));
        }
        runner.end_server(&plan, &mut server)?;
        let told: Value =
            serde_json::from_str(&client.stdout()).context("cannot understand iperf3")?;
        Ok(iperf_spans(&told)?)
    }

    /// Bytes received by the GridFTP server on `b`, by time, for `seconds` at least.
    fn gridftp(
        &self,
        flow: Flow,
        seconds: u32,
        figure: &mut Figure,
    ) -> Result<Vec<(f64, f64)>, Stop> {
        // Its programs have no option for it, and not every kernel lets a host of a lab have
        // another default than the machine's.
        let route = "ip route replace $(ip route show default) congctl \"$0\"";
        let mut command = self.lab.command("a", "sh")?;
        tried(command.args(["-c", route, flow.congestion]))
            .with_context(|| format!("cannot let host a send by {}", flow.congestion))?;
        let Flow {
            congestion,
            streams,
            ..
        } = flow;
        figure.command(format!(
            "{}: a, which sends by {congestion}: globus-url-copy -p {streams} from a server on a to one on b, /dev/zero to /dev/null",
            self.told
        ));
        let spans = transfer(self.context.runner, &self.lab, streams, seconds)?;
        let lasted: f64 = spans.iter().map(|(length, _)| length).sum();
        if lasted < f64::from(seconds) {
            return Err(Stop::Failed(anyhow!(
                "the transfer lasted for {lasted:.1} s instead of {seconds}: its client took long to begin it"
            )));
        }
        Ok(spans)
    }

    /// Ingest-only benchmark: `ga` fills slabs from so many connections of `a` and drops them, for
    /// `seconds` (`haul gateway fill`). No gateways run.
    pub(super) fn fill(
        self,
        ring_bytes: u64,
        streams: u16,
        seconds: u32,
        ramp_s: f64,
        figure: &mut Figure,
    ) -> Result<Found, Stop> {
        let runner = self.context.runner;
        let ring = ring_bytes.to_string();
        let listen = format!("0.0.0.0:{FILL_PORT}");
        let mut line = vec![runner.programs.haul.clone().into_os_string()];
        line.extend(["gateway", "fill", "--ring", &ring, &listen].map(Into::into));
        let mut filler = spawn(&self.lab, "ga", &line)?;
        runner.listening_at(&self.lab, "ga", FILL_PORT, false, &mut filler)?;
        figure.command(format!(
            "ga: haul gateway fill --ring {ring} {listen}; a: {streams} connections that send by cubic"
        ));
        let target = SocketAddr::from((self.address("ga")?, FILL_PORT));
        let (seconds, a) = (f64::from(seconds), self.lab.host("a")?);
        let sent = AtomicU64::new(0);
        let begin = Instant::now();
        let until = |at: f64| begin + Duration::from_secs_f64(at);
        let (early, all) = std::thread::scope(|scope| {
            let senders: Vec<_> = (0..streams)
                .map(|_| scope.spawn(|| a.netns().run(|| pour(target, until(seconds), &sent))?))
                .collect();
            std::thread::sleep(Duration::from_secs_f64(ramp_s));
            let early = sent.load(Ordering::Relaxed);
            for sender in senders {
                sender.join().map_err(|_| anyhow!("a sender panicked"))??;
            }
            anyhow::Ok((early, sent.load(Ordering::Relaxed)))
        })?;
        let ended = runner.end(&mut filler, SLACK)?;
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let [early, all] = [early, all].map(|octets| octets as f64);
        Ok(Found {
            whole_bps: all * 8.0 / seconds,
            later_bps: (all - early) * 8.0 / (seconds - ramp_s),
            cpu_s_per_gb: Some([cpu_s(&ended) / (all / 1e9), 0.0]),
        })
    }

    /// Exchanges single bytes for this time and returns each round trip in µs, without the first
    /// tenth, in which the connection warms up.
    pub(super) fn round_trips(
        mut self,
        time: Duration,
        figure: &mut Figure,
    ) -> Result<Vec<f64>, Stop> {
        let target = SocketAddr::from((self.address(self.target())?, ECHO_PORT));
        let (a, b) = (self.lab.host("a")?, self.lab.host("b")?);
        let own = SocketAddr::from((b.addresses().v4, ECHO_PORT));
        let listener = b.netns().run(|| TcpListener::bind(own))??;
        let times = std::thread::scope(|scope| {
            let echo = scope.spawn(|| echo(&listener));
            let asked = a.netns().run(|| ask(target, time))?;
            if asked.is_err() {
                // A program that was not reached would wait for ever.
                let _ = b.netns().run(|| TcpStream::connect(own))?;
            }
            echo.join().map_err(|_| anyhow!("the server panicked"))??;
            asked
        })?;
        self.end(figure)?;
        let warm = times.len() / 10;
        Ok(times[warm..].to_vec())
    }

    /// Ends the gateways, and returns warnings about the path.
    fn end(&mut self, figure: &mut Figure) -> Result<Option<[Ended; 2]>, Stop> {
        let limit = Duration::from_secs(DRAIN_S) + SLACK;
        let mut ended = None;
        if let Some([mut near, mut far]) = self.running.take() {
            let near = self.context.runner.end(&mut near, limit)?;
            ended = Some([near, self.context.runner.end(&mut far, limit)?]);
        }
        let stats = self.lab.stats();
        if stats.path.is_some() {
            for warning in Report::from(stats).warnings() {
                figure.warn(warning);
            }
        }
        if self.busy && !self.context.quick {
            figure.warn("others kept the processors busy before a measurement".into());
        }
        Ok(ended)
    }
}

impl Way {
    /// The scenario.
    pub(super) fn scenario(&self) -> String {
        let path = self.path.as_deref().unwrap_or("rtt = \"0ms\"\n");
        let edge = self
            .edge
            .as_ref()
            .map_or_else(String::new, |edge| format!("[edge]\n{edge}"));
        format!("topology = \"gateways\"\n[path]\n{path}{edge}")
    }
}

impl Listener {
    /// Where it listens.
    fn port(self) -> u16 {
        match self {
            Self::Forward(port) => port,
            Self::Transparent => TRANSPARENT_PORT,
        }
    }
}

impl Program {
    /// How often a run that fails is tried again. When the client aborts at the end of its time,
    /// Globus' server takes at least one in ten for a failure, and does not count it.
    pub(super) fn again(self) -> u16 {
        match self {
            Self::Iperf => 0,
            Self::Gridftp => 2,
        }
    }

    /// The listener that takes all its connections.
    pub(super) fn listener(self) -> Listener {
        match self {
            Self::Iperf => Listener::Forward(IPERF_PORT),
            Self::Gridftp => Listener::Transparent,
        }
    }
}

impl Route {
    /// Its special settings, on one line.
    fn told(&self) -> String {
        let more = self.more.trim_end().replace('\n', "; ");
        format!(
            "gateways by {}, ring = {}; {more}",
            self.channel, self.ring_bytes
        )
    }
}

/// The configuration of `ga`.
fn near(route: &Route, listener: Listener, far: Ipv4Addr, b: Ipv4Addr) -> String {
    let Route {
        channel,
        ring_bytes,
        more,
    } = route;
    let kind = match listener {
        Listener::Forward(port) => format!("kind = \"forward\"\nto = \"{b}:{port}\"\n"),
        Listener::Transparent => "kind = \"transparent\"\n".into(),
    };
    let port = listener.port();
    format!(
        "name = \"ga\"\nanonymous = true\n[[listener]]\nlisten = \"0.0.0.0:{port}\"\n{kind}\
         [[route]]\nto = [\"*\"]\nvia = [\"{far}:{SESSIONS_PORT}\"]\nchannels = [\"{channel}\"]\nring = {ring_bytes}\n{more}"
    )
}

/// The configuration of `gb`.
fn far(route: &Route, b: Ipv4Addr) -> String {
    let Route {
        channel,
        ring_bytes,
        ..
    } = route;
    format!(
        "name = \"gb\"\nlisten = \"0.0.0.0:{SESSIONS_PORT}\"\nanonymous = true\nexit = [\"{b}/32\"]\nring = {ring_bytes}\n\
         [[channel]]\nkind = \"{channel}\"\nlisten = \"0.0.0.0:{CHANNELS_PORT}\"\n"
    )
}

/// Returns the bytes that arrived between two times, interpolated within spans. Spans follow each
/// other from 0 on.
fn bytes_between(spans: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let mut begin = 0.0;
    let mut found = 0.0;
    for &(length, bytes) in spans {
        let end = begin + length;
        let overlap = end.min(to) - begin.max(from);
        if overlap > 0.0 {
            found += bytes * overlap / length;
        }
        begin = end;
    }
    found
}

fn cpu_s(ended: &Ended) -> f64 {
    (ended.user + ended.system).as_secs_f64()
}

/// Sends as much as possible until then, as `iperf3` does, and returns the count.
fn pour(target: SocketAddr, until: Instant, sent: &AtomicU64) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    set_congestion(&stream, "cubic")?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let octets = vec![0; POUR_BYTES];
    while Instant::now() < until {
        stream.write_all(&octets)?;
        sent.fetch_add(POUR_BYTES as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Echoes every byte of a client, until it closes.
fn echo(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

/// The time of each round trip, µs.
fn ask(target: SocketAddr, time: Duration) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let begin = Instant::now();
    let mut times = Vec::new();
    let mut byte = [0x5a];
    while begin.elapsed() < time {
        let sent = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte).context("no answer")?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    ensure!(!times.is_empty(), "there was no time for a round trip");
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_between_two_times() {
        let spans = [(1.0, 100.0), (1.0, 300.0), (2.0, 800.0)];
        let between = |from, to| bytes_between(&spans, from, to);
        assert!((between(0.0, 4.0) - 1200.0).abs() < 1e-9);
        assert!((between(0.5, 1.5) - 200.0).abs() < 1e-9);
        assert!((between(2.0, 3.0) - 400.0).abs() < 1e-9);
        assert!((between(4.0, 9.0)).abs() < 1e-9);
    }

    #[test]
    fn a_client_has_its_answers_and_its_end_ends_the_server() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| echo(&listener));
            let times = ask(target, Duration::from_millis(10)).unwrap();
            assert!(times.iter().all(|&time| time > 0.0));
            server.join().unwrap().unwrap();
        });
    }
}
