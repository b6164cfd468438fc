//! One measurement: `haul bench rdma` or `haul bench run` between hosts of a lab.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use haul_report::machine;
use serde_json::Value;

use super::record::{Figure, Messages, Sample};
use crate::compare::once::arriving;
use haul_lab::compare::plan::Plan;
use haul_lab::compare::runner::{Runner, Running, Stop, spawn};
use haul_lab::lab::{Engine, Lab};
use haul_lab::report::Report;
use haul_lab::scenario::Scenario;

/// Where `haul bench serve` listens; for other traffic there is a server of its own.
const PORT: u16 = 4726;
const BESIDE_PORT: u16 = 4727;
/// Lead time of other traffic.
const LEAD: Duration = Duration::from_secs(1);
/// Time limit of a measurement.
const PATIENCE: Duration = Duration::from_secs(180);

/// The common parameters of all experiments.
pub(super) struct Context<'a> {
    pub(super) runner: &'a Runner<'a>,
    pub(super) quick: bool,
    pub(super) repeat: u16,
    /// The duration for each size.
    pub(super) time_ms: u64,
    /// The approximate time of the remaining figures.
    pub(super) later: Duration,
}

/// A lab with a server on host `b`.
pub(super) struct Bench<'a> {
    context: &'a Context<'a>,
    lab: Lab,
    plan: Plan,
    server: Running,
    /// The server of other traffic.
    beside: Option<(Plan, Running)>,
    /// Whether the processors were busy at the start.
    busy: bool,
}

impl Context<'_> {
    /// Starts a fresh lab: hosts joined directly, or by the described path.
    pub(super) fn bench(&self, path: Option<&str>, seed: u64) -> Result<Bench<'_>, Stop> {
        self.bench_with(path, seed, "")
    }

    /// The same, whose server has these options: `haul bench rdma` needs the same `--channel` at
    /// both ends.
    pub(super) fn bench_with(
        &self,
        path: Option<&str>,
        seed: u64,
        options: &str,
    ) -> Result<Bench<'_>, Stop> {
        let busy = machine::settle(self.runner.settle) > machine::IDLE_SHARE;
        let text = path.unwrap_or("rtt = \"0ms\"\n");
        let mut scenario = Scenario::parse("reproduce", &format!("[path]\n{text}"))?;
        scenario.seed = scenario.seed.wrapping_add(seed);
        let engine = match path {
            Some(_) => Engine::Tun,
            None => Engine::None,
        };
        let lab = Lab::start_with(&scenario, engine)?;
        let plan = self.plan(PORT, options);
        let server = self.runner.serve(&lab, &plan)?;
        Ok(Bench {
            context: self,
            lab,
            plan,
            server,
            beside: None,
            busy,
        })
    }

    /// A server of `haul bench`.
    fn plan(&self, port: u16, options: &str) -> Plan {
        let flags =
            format!("serve --listen 0.0.0.0 --allow-insecure --quiet --port {port} {options}");
        Plan {
            server: self.words(&flags),
            client: Vec::new(),
            port,
            udp: false,
            server_ends: false,
        }
    }

    /// `haul bench` and these words.
    fn words(&self, flags: &str) -> Vec<OsString> {
        let mut words = vec![self.runner.programs.haul.clone().into_os_string()];
        let rest = ["bench"].into_iter().chain(flags.split_whitespace());
        words.extend(rest.map(OsString::from));
        words
    }
}

impl Bench<'_> {
    /// The lab.
    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Measures the verbs by `haul bench rdma --json`. The command is noted once.
    pub(super) fn ask(&mut self, flags: &str, figure: &mut Figure) -> Result<Value, Stop> {
        let command = format!("rdma b --time {}ms {flags}", self.context.time_ms);
        figure.command(format!("haul bench {command}"));
        let client = self.client(&command)?;
        self.answer(client, &command)
    }

    /// Measures the path by `haul bench run --json`. The command is noted, with the path, once.
    pub(super) fn run(&self, flags: &str, path: &str, figure: &mut Figure) -> Result<Value, Stop> {
        let command = format!("run b {flags}");
        figure.command(format!("{path}: haul bench {command}"));
        let client = self.client(&command)?;
        self.answer(client, &command)
    }

    /// The same, with what arrived at the device of `b` in each 100 ms: the end of each, ms, and
    /// bits per second.
    pub(super) fn run_watched(
        &self,
        flags: &str,
        rtt_s: f64,
        path: &str,
        figure: &mut Figure,
    ) -> Result<(Value, Vec<(u32, f64)>), Stop> {
        let host = self.lab.host("b")?;
        let (found, arrived) = arriving(host.netns(), rtt_s, || self.run(flags, path, figure));
        let spans = (100..).step_by(100).zip(arrived);
        Ok((found?, spans.map(|(at, bits)| (at, bits * 10.0)).collect()))
    }

    /// The same, which sends for `time`, beside other traffic. That lasts twice as long and some
    /// round trips more, because connecting and draining data in flight take time; a measurement
    /// that outlasts it fails. Returns both reports. Each has a server of its own, because a server
    /// serves one at a time.
    pub(super) fn run_beside(
        &mut self,
        (flags, other): (&str, &str),
        (time, rtt): (Duration, Duration),
        path: &str,
        figure: &mut Figure,
    ) -> Result<(Value, Value), Stop> {
        let plan = self.context.plan(BESIDE_PORT, "");
        let server = self.context.runner.serve(&self.lab, &plan)?;
        self.beside = Some((plan, server));
        let ms = (2 * time + 3 * LEAD + 20 * rtt).as_millis();
        let other = format!("run b:{BESIDE_PORT} {other} --time {ms}ms");
        figure.command(format!("{path}: haul bench {other}, beside the next one"));
        let mut traffic = self.client(&other)?;
        self.context.runner.pause(LEAD)?;
        let found = self.run(flags, path, figure)?;
        if traffic.is_over()? {
            let why = "the other traffic was over before the measurement: the machine is too busy";
            return Err(Stop::Failed(anyhow!(why)));
        }
        let theirs = self.answer(traffic, &other)?;
        Ok((found, theirs))
    }

    fn client(&self, command: &str) -> Result<Running, Stop> {
        let line = self.context.words(&format!("{command} --json --quiet"));
        Ok(spawn(&self.lab, "a", &line)?)
    }

    fn answer(&self, mut client: Running, command: &str) -> Result<Value, Stop> {
        let ended = self.context.runner.wait(&mut client, PATIENCE)?;
        if !ended.status.success() {
            let why = client.failure("the client", &ended);
            return Err(Stop::Failed(why.context(format!("haul bench {command}"))));
        }
        let json = serde_json::from_str(&client.stdout());
        Ok(json.with_context(|| format!("cannot understand what `haul bench {command}` printed"))?)
    }

    /// Ends the server, and returns warnings about the path.
    pub(super) fn end(mut self, figure: &mut Figure) -> Result<(), Stop> {
        self.context
            .runner
            .end_server(&self.plan, &mut self.server)?;
        if let Some((plan, server)) = &mut self.beside {
            self.context.runner.end_server(plan, server)?;
        }
        let mut found = Report::from(self.lab.stats()).warnings();
        if self.lab.stats().path.is_none() {
            found.clear();
        }
        if self.busy && !self.context.quick {
            found.push("others kept the processors busy before a measurement".into());
        }
        for warning in found {
            if !figure.warnings.contains(&warning) {
                figure.warnings.push(warning);
            }
        }
        Ok(())
    }
}

/// The rows of an answer: bytes of a message, and the row.
pub(super) fn rows(json: &Value) -> Result<Vec<(u32, &Value)>, Stop> {
    let rows = json["rows"].as_array().context("there are no rows")?;
    let row = |row| -> anyhow::Result<(u32, &Value)> {
        let row: &Value = row;
        let bytes = row["bytes"]
            .as_u64()
            .and_then(|bytes| bytes.try_into().ok());
        Ok((bytes.context("a row without a size")?, row))
    };
    Ok(rows.iter().map(row).collect::<anyhow::Result<_>>()?)
}

/// Returns a figure of a row, with the processor time of both ends and the outcome of the messages.
pub(super) fn sample(row: &Value, kind: &str, name: &str, factor: f64) -> Result<Sample, Stop> {
    let value = row[kind][name].as_f64();
    let value = value.ok_or_else(|| anyhow!("a row without {kind} {name}"))?;
    let cpu = |end: &str| row[end]["cpu_s_per_gb"].as_f64();
    let found = &row["datagram"];
    let count = |name: &str| found[name].as_u64().unwrap_or(0);
    Ok(Sample {
        value: value * factor,
        cpu_s_per_gb: cpu("client").zip(cpu("server")).map(|(a, b)| a + b),
        messages: found.is_object().then(|| Messages {
            sent: count("sent_messages"),
            partial: count("partial_messages"),
            lost: count("lost_messages"),
        }),
    })
}
