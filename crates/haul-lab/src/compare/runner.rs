//! One run: a fresh lab, a server on host `b`, a client on host `a`, and all counters.

use std::ffi::OsString;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use haul_io::netns::NetNs;
use haul_io::netns::child::{Caught, Signals};
use haul_io::process::{Ended, Process};
use haul_report::machine;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::process::Signal;

use super::arrivals::Arrivals;
use super::cell::Cell;
use super::plan::{Load, Plan, Reported};
use super::programs::Resolved;
use super::record::{Figures, Measured, PathCounts, RunRecord, Skipped};
use super::tool::Tool;
use crate::lab::topology::WAN;
use crate::lab::{Engine, Lab};
use crate::report::Report;

/// Timeout for a server to listen.
const READY: Duration = Duration::from_secs(5);
/// Timeout for a process to end after a signal, or after its peer has ended.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for a run beyond its sending time: connecting, and a queue that drains.
const SLACK: Duration = Duration::from_secs(20);

/// The common parameters of all runs.
#[derive(Debug)]
pub struct Runner<'a> {
    /// The programs that runs start.
    pub programs: Resolved,
    /// Signals that end a run early.
    pub signals: &'a Signals,
    /// How much each run sends.
    pub load: Load,
    /// Maximum wait for an idle machine before each run.
    pub settle: Duration,
}

/// The outcome of a run.
#[derive(Debug)]
pub enum Outcome {
    /// It ran, or failed.
    Ran(Box<RunRecord>),
    /// This process received this signal to end.
    Interrupted(i32),
}

/// Why there are no figures.
#[derive(Debug)]
pub enum Stop {
    /// This process received this signal to end.
    Interrupted(i32),
    /// Something failed.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A server and a client that have ended, and the counters meanwhile.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) server: Running,
    client: Running,
    pub(crate) arrivals: Arrivals,
    a: Ended,
    b: Ended,
    machine_s: f64,
}

/// A process in the lab and where its output goes.
#[derive(Debug)]
pub struct Running {
    process: Process,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Runner<'_> {
    /// Returns the tools that can run here, and prints why the others cannot.
    pub(crate) fn available(&self, tools: Vec<Tool>) -> (Vec<Tool>, Vec<Skipped>) {
        let mut skipped = Vec::new();
        let mut found = Vec::new();
        for tool in tools {
            match tool.missing(&self.programs, self.load) {
                None => found.push(tool),
                Some(reason) => {
                    eprintln!("{} is left out: {reason}", tool.name);
                    skipped.push(Skipped {
                        tool: tool.name,
                        reason,
                    });
                }
            }
        }
        (found, skipped)
    }

    /// Why a tool cannot run here, if so.
    pub fn missing(&self, tool: &Tool) -> Option<String> {
        tool.missing(&self.programs, self.load)
    }

    /// Runs a tool once. A tool that fails is an outcome.
    ///
    /// # Errors
    /// If there can be no lab.
    pub fn run(&self, cell: &Cell, tool: &Tool, repetition: u16) -> Result<Outcome> {
        let load_before = machine::settle(self.settle);
        let mut scenario = cell.scenario.clone();
        scenario.seed = scenario.seed.wrapping_add(repetition.into());
        let lab = Lab::start_with(&scenario, cell.engine)?;
        let mut run = RunRecord::new(repetition, load_before);
        match self.measure(&lab, cell, tool) {
            Ok(measured) => run.figures = Some(Figures::new(cell, tool, &measured)),
            Err(Stop::Interrupted(signal)) => return Ok(Outcome::Interrupted(signal)),
            Err(Stop::Failed(error)) => run.error = Some(crate::line(&error)),
        }
        let report = Report::from(lab.stats());
        if cell.engine != Engine::None {
            run.warnings = report.warnings();
        }
        if load_before > machine::IDLE_SHARE {
            let percent = load_before * 100.0;
            run.warnings.push(format!(
                "others kept {percent:.0} % of the processors busy just before"
            ));
        }
        run.path = PathCounts::new(&report);
        Ok(Outcome::Ran(Box::new(run)))
    }

    fn measure(&self, lab: &Lab, cell: &Cell, tool: &Tool) -> Result<Measured, Stop> {
        let dir = lab.scratch();
        let plan = tool.plan(&self.programs, cell, self.load, dir, 0)?;
        let watched = self.watch(lab, &plan, WAN, cell.rtt_s(), self.limit(cell))?;
        let (server, client) = (watched.server.stdout(), watched.client.stdout());
        let reported = tool.reported(&server, &client, cell)?;
        Ok(Measured {
            reported,
            arrivals: watched.arrivals,
            a: watched.a,
            b: watched.b,
            machine_s: watched.machine_s,
            sends_s: match self.load {
                Load::Seconds(seconds) => Some(seconds.into()),
                Load::Bytes(_) => None,
            },
        })
    }

    /// Runs a plan's server and client, the client for at most `limit`, and counts what arrives at
    /// a device of host `b` meanwhile.
    pub(crate) fn watch(
        &self,
        lab: &Lab,
        plan: &Plan,
        device: &str,
        rtt_s: f64,
        limit: Duration,
    ) -> Result<Watched, Stop> {
        let mut server = self.serve(lab, plan)?;
        let stop = AtomicBool::new(false);
        let netns = lab.host("b")?.netns();
        let step = Arrivals::step(rtt_s);
        std::thread::scope(|scope| {
            let sampler = scope.spawn(|| Arrivals::sample(netns, device, step, &stop));
            let meter = machine::Meter::start();
            let ends = self.client_and_server(lab, plan, limit, &mut server);
            let machine_s = meter.busy_s();
            stop.store(true, Ordering::Relaxed);
            let arrivals = sampler
                .join()
                .map_err(|_| anyhow!("counting arrivals failed"))?;
            let (client, a, b) = ends?;
            Ok(Watched {
                server,
                client,
                arrivals,
                a,
                b,
                machine_s,
            })
        })
    }

    fn client_and_server(
        &self,
        lab: &Lab,
        plan: &Plan,
        limit: Duration,
        server: &mut Running,
    ) -> Result<(Running, Ended, Ended), Stop> {
        let mut client = spawn(lab, "a", &plan.client)?;
        let a = self.wait(&mut client, limit)?;
        if !a.status.success() {
            return Err(Stop::Failed(client.failure("the client", &a)));
        }
        let b = self.end_server(plan, server)?;
        Ok((client, a, b))
    }

    /// Starts a plan's server and waits until it listens.
    pub fn serve(&self, lab: &Lab, plan: &Plan) -> Result<Running, Stop> {
        let mut server = spawn(lab, "b", &plan.server)?;
        self.listening(lab, plan, &mut server)?;
        Ok(server)
    }

    /// Waits until a plan's server listens.
    pub fn listening(&self, lab: &Lab, plan: &Plan, server: &mut Running) -> Result<(), Stop> {
        self.listening_at(lab, "b", plan.port, plan.udp, server)
    }

    /// Waits until a process listens on a host's port.
    pub fn listening_at(
        &self,
        lab: &Lab,
        host: &str,
        port: u16,
        udp: bool,
        server: &mut Running,
    ) -> Result<(), Stop> {
        self.until(server, "the server", READY, |_| {
            Ok(listens(lab.host(host)?.netns(), port, udp)?.then_some(()))
        })
    }

    /// The same for TCP, at most for `limit`.
    pub(crate) fn listening_within(
        &self,
        lab: &Lab,
        host: &str,
        port: u16,
        server: &mut Running,
        limit: Duration,
    ) -> Result<(), Stop> {
        self.until(server, "the server", limit, |_| {
            Ok(listens(lab.host(host)?.netns(), port, false)?.then_some(()))
        })
    }

    /// Polls until there is an answer. Gives up when the process ends, at the timeout, and when
    /// this process receives a signal to end.
    pub fn until<T>(
        &self,
        running: &mut Running,
        who: &str,
        limit: Duration,
        mut ask: impl FnMut(&Running) -> Result<Option<T>>,
    ) -> Result<T, Stop> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = ask(running)? {
                return Ok(answer);
            }
            if let Some(ended) = running.process.try_wait()? {
                return Err(Stop::Failed(running.failure(who, &ended)));
            }
            if Instant::now() > deadline {
                let seconds = limit.as_secs();
                return Err(Stop::Failed(anyhow!(
                    "{who} is not ready after {seconds} s"
                )));
            }
            self.pause(Duration::from_millis(5))?;
        }
    }

    /// Waits, unless this process is asked to end.
    pub fn pause(&self, time: Duration) -> Result<(), Stop> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if let Some(Caught::End(signal)) = self.signals.wait(left)? {
                return Err(Stop::Interrupted(signal));
            }
        }
    }

    /// Asks a process to end and waits for it.
    pub fn end(&self, running: &mut Running, limit: Duration) -> Result<Ended, Stop> {
        running.process.signal(Signal::TERM)?;
        self.wait(running, limit)
    }

    /// Waits for a process, ends it at the timeout, and gives up when this process receives a
    /// signal to end.
    pub fn wait(&self, running: &mut Running, limit: Duration) -> Result<Ended, Stop> {
        self.wait_at_most(running, limit)?.ok_or_else(|| {
            Stop::Failed(anyhow!(
                "was ended because it took more than {} s",
                limit.as_secs()
            ))
        })
    }

    /// As [`wait`](Self::wait); `None` if it took too long and was ended.
    pub(crate) fn wait_at_most(
        &self,
        running: &mut Running,
        limit: Duration,
    ) -> Result<Option<Ended>, Stop> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(ended) = running.process.try_wait()? {
                return Ok(Some(ended));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                running.process.signal(Signal::KILL)?;
                return Ok(None);
            }
            // A child's end wakes this up; the limit is for those that ended before the wait began.
            let caught = self.signals.wait(left.min(Duration::from_millis(100)))?;
            if let Some(Caught::End(signal)) = caught {
                return Err(Stop::Interrupted(signal));
            }
        }
    }

    /// Ends a plan's server, unless it ends by itself, and waits for it.
    ///
    /// # Errors
    /// If it does not end in time, or if this process is asked to end.
    pub fn end_server(&self, plan: &Plan, server: &mut Running) -> Result<Ended, Stop> {
        if !plan.server_ends {
            server.process.signal(Signal::TERM)?;
        }
        self.wait(server, PATIENCE)
    }

    /// The most that a run may take.
    pub fn limit(&self, cell: &Cell) -> Duration {
        let sending = match (self.load, cell.rate_bps()) {
            (Load::Seconds(seconds), _) => Duration::from_secs(seconds.into()),
            // A tool that reaches a hundredth of the path's rate, or 10 Mb/s, may finish.
            (Load::Bytes(bytes), rate) => {
                Duration::from_secs(bytes * 8 / (rate.unwrap_or(0) / 100).max(10_000_000))
            }
        };
        sending + SLACK + Duration::from_secs_f64(cell.rtt_s() * 20.0)
    }
}

impl Running {
    /// Whether it has ended.
    pub fn is_over(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Its stdout so far.
    pub fn stdout(&self) -> String {
        contents(&self.stdout)
    }

    /// Its stderr so far.
    pub fn stderr(&self) -> String {
        contents(&self.stderr)
    }

    /// Its last line, or otherwise its exit status.
    pub fn failure(&self, who: &str, ended: &Ended) -> anyhow::Error {
        let said = contents(&self.stderr) + &contents(&self.stdout);
        let json: Option<serde_json::Value> = serde_json::from_str(&said).ok();
        let error = json.and_then(|json| Some(json.get("error")?.to_string()));
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        match error.or_else(|| last.map(str::to_string)) {
            Some(line) => anyhow!("{who} failed ({}): {line}", ended.status),
            None => anyhow!("{who} failed ({})", ended.status),
        }
    }
}

/// Starts a program on a host. `$LAB_…` words are replaced by addresses, for programs that resolve
/// no names.
pub fn spawn(lab: &Lab, host: &str, line: &[OsString]) -> Result<Running> {
    let [program, arguments @ ..] = line else {
        bail!("there is no command");
    };
    let (stdout, stderr) = (memory_file()?, memory_file()?);
    let b = lab.host("b")?.addresses().v4.to_string();
    let arguments = arguments.iter().map(|word| {
        if word == "$LAB_B" {
            OsString::from(&b)
        } else {
            word.clone()
        }
    });
    let mut command = lab.command(host, program)?;
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?);
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    Ok(Running {
        process: Process::new(child),
        stdout,
        stderr,
    })
}

fn memory_file() -> Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("output", MemfdFlags::CLOEXEC)?)
}

fn contents(file: &OwnedFd) -> String {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether a process listens on the port.
fn listens(netns: &NetNs, port: u16, udp: bool) -> Result<bool> {
    let files: &[&str] = if udp {
        &["udp", "udp6"]
    } else {
        &["tcp", "tcp6"]
    };
    let read = || {
        files
            .iter()
            .filter_map(|name| {
                std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).ok()
            })
            .collect::<String>()
    };
    let text = netns.run(read)?;
    let port = format!(":{port:04X}");
    // Local address, remote address, state: 0A is LISTEN.
    Ok(text.lines().any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_port = columns.get(1).is_some_and(|local| local.ends_with(&port));
        is_port && (udp || columns.get(3) == Some(&"0A"))
    }))
}

/// Reads the goodput that a tool printed itself, for the measurement of fairness.
pub fn reported_by(
    tool: &Tool,
    server: &Running,
    client: &Running,
    cell: &Cell,
) -> Result<Reported> {
    tool.reported(&server.stdout(), &client.stdout(), cell)
}
