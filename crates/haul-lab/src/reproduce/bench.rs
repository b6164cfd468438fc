//! One measurement: `haul bench rdma` between hosts of a lab.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::Value;

use super::record::{Figure, Messages, Sample};
use crate::compare::machine;
use crate::compare::session::{Running, Session, Stop, spawn};
use crate::compare::tool::Plan;
use crate::lab::{Engine, Lab};
use crate::report::Report;
use crate::scenario::Scenario;

/// Where `haul bench rdma serve` listens.
const PORT: u16 = 4726;
/// A measurement that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(180);

/// What is the same for all experiments.
pub(super) struct Context<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) quick: bool,
    pub(super) repeat: u16,
    /// How long each size is measured.
    pub(super) time_ms: u64,
}

/// A lab with a server on host `b`.
pub(super) struct Bench<'a> {
    context: &'a Context<'a>,
    lab: Lab,
    plan: Plan,
    server: Running,
    /// The processors were busy when it began.
    busy: bool,
}

impl Context<'_> {
    /// A fresh lab: between hosts joined directly, or by the path that is described.
    pub(super) fn bench(&self, path: Option<&str>, seed: u64) -> Result<Bench<'_>, Stop> {
        let busy = machine::settle(self.session.settle) > machine::IDLE_SHARE;
        let text = path.unwrap_or("rtt = \"0ms\"\n");
        let mut scenario = Scenario::parse("reproduce", &format!("[path]\n{text}"))?;
        scenario.seed = scenario.seed.wrapping_add(seed);
        let engine = match path {
            Some(_) => Engine::Tun,
            None => Engine::None,
        };
        let lab = Lab::start_with(&scenario, engine)?;
        let plan = Plan {
            server: self.words("serve --listen 0.0.0.0 --allow-insecure --quiet"),
            client: Vec::new(),
            port: PORT,
            udp: false,
            server_ends: false,
        };
        let server = self.session.serve(&lab, &plan)?;
        Ok(Bench {
            context: self,
            lab,
            plan,
            server,
            busy,
        })
    }

    fn words(&self, flags: &str) -> Vec<OsString> {
        let mut words = vec![self.session.programs.haul.clone().into_os_string()];
        let rest = ["bench", "rdma"]
            .into_iter()
            .chain(flags.split_whitespace());
        words.extend(rest.map(OsString::from));
        words
    }
}

impl Bench<'_> {
    /// The lab.
    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Measures; what `--json` says. The command is noted once.
    pub(super) fn ask(&mut self, flags: &str, figure: &mut Figure) -> Result<Value, Stop> {
        let flags = format!("b --time {}ms {flags}", self.context.time_ms);
        let command = format!("haul bench rdma {flags}");
        if !figure.commands.contains(&command) {
            figure.commands.push(command.clone());
        }
        let line = self.context.words(&format!("{flags} --json --quiet"));
        let mut client = spawn(&self.lab, "a", &line)?;
        let ended = self.context.session.wait(&mut client, PATIENCE)?;
        if !ended.status.success() {
            return Err(Stop::Failed(
                client.failure("the client", &ended).context(command),
            ));
        }
        let json = serde_json::from_str(&client.stdout());
        Ok(json.with_context(|| format!("cannot understand what `{command}` printed"))?)
    }

    /// Ends the server, and says what was wrong with the path.
    pub(super) fn end(mut self, figure: &mut Figure) -> Result<(), Stop> {
        self.context
            .session
            .end_server(&self.plan, &mut self.server)?;
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

/// A figure of a row, with the processor time of both ends and what became of the messages.
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
