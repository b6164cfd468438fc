//! Prints progress and errors for people on stderr, and JSON on stdout.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault, RESUME};
use haul::listing::delete::Outcome;
use haul::report::{BenchSummary, Event, Observer, Summary};
use haul::sync::Plan;
use haul_gateway::config::{ChannelKind, Problem, RouteWays, Severity};
use haul_gateway::{MemoryPlan, Reach};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args;
use crate::device::Found;
use crate::interrupt::{Ending, Interrupt};

pub(crate) mod failures;
mod human;
mod line;
pub(crate) mod list;
pub(crate) mod path;
pub(crate) mod plan;
mod progress;
pub(crate) mod rdma;
pub(crate) mod run;
mod so_far;

use failures::Failures;
use human::{binary, percent};
pub(crate) use line::{dropped_lines, log_line, note, tell};
use progress::Progress;
use so_far::SoFar;

/// Schema of the final object of a transfer, and of its events.
const TRANSFER_SCHEMA: &str = "haul.transfer/1";
/// Schema of the final object of a bench.
const BENCH_SCHEMA: &str = "haul.bench/1";
/// Schema of the list of devices.
const DEVICES_SCHEMA: &str = "haul.devices/1";
/// Schema of what is wrong with a gateway's configuration.
const GATEWAY_CHECK_SCHEMA: &str = "haul.gateway-check/1";
const MEASURE_AGAIN: &str = "run the same command again; a measurement starts over";
/// `--json-stream` reports the rate this often.
const INTERVAL: Duration = Duration::from_secs(1);

/// What became of the deletion after a transfer.
#[derive(Debug)]
pub(crate) enum Deletion {
    /// None was asked for.
    Unwanted,
    /// It took place.
    Done(Plan, Outcome),
    /// Nothing was deleted.
    Refused(Fault),
}

impl Deletion {
    /// Returns the failure, if not everything was deleted.
    fn fault(&self) -> Option<Fault> {
        match self {
            Self::Refused(fault) => Some(fault.clone()),
            Self::Done(_, outcome) if !outcome.failures.is_empty() => {
                let count = outcome.failures.len() as u64;
                let text =
                    human::count_of(count, "entry was not deleted", "entries were not deleted");
                Some(Fault::new(Code::FileError, text))
            }
            Self::Unwanted | Self::Done(..) => None,
        }
    }

    /// Prints what became of it, and adds it to the final object.
    fn show(&self, output: &Output, object: &mut Value) {
        let Self::Done(plan, outcome) = self else {
            return;
        };
        let path = |path: &[u8]| haul::printable(path);
        for (at, why) in &outcome.failures {
            tell(&format!("not deleted: {}: {why}", path(at)));
        }
        for at in &outcome.not_empty {
            output.say(&not_empty(at));
        }
        let kept = plan.protected + outcome.not_empty.len() as u64;
        let kept = if kept > 0 {
            format!("; {kept} kept")
        } else {
            String::new()
        };
        let deleted = human::count_of(outcome.deleted, "entry deleted", "entries deleted");
        output.say(&format!("{deleted}{kept}"));
        let failed = outcome
            .failures
            .iter()
            .map(|(at, why)| json!({ "path": failures::PathText::new(at), "text": why }));
        object["deletion"] = json!({
            "deleted": outcome.deleted,
            "protected": plan.protected,
            "not_empty": outcome.not_empty.iter().map(|at| failures::PathText::new(at)).collect::<Vec<_>>(),
            "failed": failed.collect::<Vec<_>>(),
        });
    }
}

/// Formats why a directory that only the destination has stays.
fn not_empty(path: &[u8]) -> String {
    let path = haul::printable(path);
    format!(
        "not deleted: {path}: the directory is not empty: it has what is excluded, new or incomplete"
    )
}

/// The output of one command.
#[derive(Debug)]
pub(crate) struct Output {
    schema: &'static str,
    /// How to go on after an interrupt.
    resume: &'static str,
    options: args::OutputArgs,
    begun: Instant,
    state: Mutex<State>,
    ending: Ending,
}

#[derive(Debug)]
struct State {
    progress: Progress,
    so_far: SoFar,
    failures: Failures,
    interval: Option<(Instant, u64)>,
}

impl Output {
    pub(crate) fn transfer(options: args::OutputArgs) -> Self {
        Self::new(TRANSFER_SCHEMA, RESUME, options)
    }

    pub(crate) fn bench(options: args::OutputArgs) -> Self {
        Self::new(BENCH_SCHEMA, MEASURE_AGAIN, options)
    }

    fn new(schema: &'static str, resume: &'static str, options: args::OutputArgs) -> Self {
        let begun = Instant::now();
        let state = State {
            progress: Progress::new(options.quiet),
            so_far: SoFar::new(begun),
            failures: Failures::new(options.quiet),
            interval: None,
        };
        Self {
            schema,
            resume,
            options,
            begun,
            state: Mutex::new(state),
            ending: Ending::default(),
        }
    }

    /// Prints the summary of a transfer and returns its exit code: 1 if entries failed, or if
    /// attributes were lost that `is_strict` about.
    pub(crate) fn summary(&self, summary: &Summary, is_strict: bool) -> ExitCode {
        self.synced(summary, is_strict, &Deletion::Unwanted)
    }

    /// Prints the summary of a transfer and of the deletion after it, and returns the exit code of
    /// both.
    pub(crate) fn synced(
        &self,
        summary: &Summary,
        is_strict: bool,
        deletion: &Deletion,
    ) -> ExitCode {
        self.ending.begin();
        let failed = {
            let mut state = self.state();
            state.progress.clear();
            state.failures.list().map(Value::from)
        };
        self.say(&human::summary(summary));
        let partial = match (summary.entries.failed, summary.lost.is_any() && is_strict) {
            (0, false) => None,
            (0, true) => Some("attributes were lost".to_owned()),
            (failed, _) => Some(human::count_of(failed, "entry failed", "entries failed")),
        };
        let partial = partial.map(|text| Fault::new(Code::FileError, text));
        let undeleted = deletion.fault();
        let mut object = self.object(partial.is_none() && undeleted.is_none(), summary);
        if let Some(failed) = failed {
            object["failed"] = failed;
        }
        deletion.show(self, &mut object);
        for fault in [&undeleted, &partial].into_iter().flatten() {
            object["error"] = error(fault);
            print_fault(fault);
        }
        self.finish(&object);
        let partial = partial.or(undeleted);
        partial.map_or(ExitCode::SUCCESS, |fault| ExitCode::from(fault.exit()))
    }

    /// Writes the path of each entry that failed to this file as well, one in a line.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn write_failures(&self, to: &args::FailedTo) -> Result<(), Fault> {
        self.state().failures.write_to(to)
    }

    /// Prints the summary of a successful bench.
    pub(crate) fn bench_summary(&self, summary: &BenchSummary) {
        self.ending.begin();
        self.state().progress.clear();
        self.say(&human::bench(summary));
        self.finish(&self.object(true, summary));
    }

    /// Prints a line for people while the command runs.
    pub(crate) fn note(&self, text: &str) {
        self.ending.before(|| self.show(&Event::Note(text)));
    }

    /// Prints a failure and returns its exit code.
    pub(crate) fn fault(&self, fault: &Fault) -> ExitCode {
        self.ending.begin();
        self.state().progress.clear();
        print_fault(fault);
        self.event("error", &error(fault));
        let mut object = self.object(false, &json!({ "error": error(fault) }));
        self.add_figures(&mut object);
        self.finish(&object);
        ExitCode::from(fault.exit())
    }

    /// Prints the figures so far of a command that a signal ends.
    pub(crate) fn interrupted(&self, by: Interrupt) {
        self.ending.begin();
        let text = {
            let mut state = self.state();
            state.progress.clear();
            state.so_far.text()
        };
        self.say(&format!(
            "interrupted by {} {text} ({})",
            by.name(),
            self.resume
        ));
        let mut object = self.object(false, &by.fields(self.resume));
        self.event("error", &object["error"]);
        self.add_figures(&mut object);
        self.finish(&object);
    }

    fn add_figures(&self, object: &mut Value) {
        if let Some(figures) = self.state().so_far.figures() {
            object["so_far"] = json!(figures);
        }
    }

    fn object(&self, ok: bool, body: &impl Serialize) -> Value {
        let mut object = json!({ "schema": self.schema, "ok": ok });
        merge(&mut object, body);
        object
    }

    fn finish(&self, object: &Value) {
        self.event("end", object);
        if self.options.json {
            print_line(object);
        }
    }

    fn event(&self, name: &str, body: &impl Serialize) {
        if !self.options.json_stream {
            return;
        }
        let mut object = json!({ "event": name, "time_s": self.begun.elapsed().as_secs_f64() });
        merge(&mut object, body);
        print_line(&object);
    }

    fn say(&self, text: &str) {
        if !self.options.quiet {
            tell(text);
        }
    }

    fn on_progress(&self, present: u64, total: u64) {
        let mut state = self.state();
        state.progress.advance(present);
        let now = Instant::now();
        let (since, bytes) = *state.interval.get_or_insert((now, present));
        let elapsed = now - since;
        if elapsed >= INTERVAL {
            let moved = present.saturating_sub(bytes);
            state.interval = Some((now, present));
            drop(state);
            let rate = human::rate_bps(moved, elapsed);
            self.event(
                "interval",
                &json!({
                    "seconds": elapsed.as_secs_f64(), "bytes": moved, "rate_bps": rate,
                    "present_bytes": present, "total_bytes": total,
                }),
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Output {
    fn event(&self, event: &Event<'_>) {
        self.ending.before(|| {
            self.state().so_far.note(event);
            self.show(event);
        });
    }
}

impl Output {
    fn show(&self, event: &Event<'_>) {
        match event {
            Event::Connected { peer, software } => {
                // Another attempt offers everything again.
                self.state().failures.clear();
                self.event(
                    "start",
                    &json!({ "schema": self.schema, "peer": peer, "software": software }),
                );
            }
            Event::Planned {
                files,
                total,
                present,
            } => {
                self.event(
                    "plan",
                    &json!({ "files": files, "total_bytes": total, "present_bytes": present }),
                );
                let mut state = self.state();
                state.progress.begin(*total, *present);
                state.interval = Some((Instant::now(), *present));
                if *present > 0 {
                    state.progress.say(&format!(
                        "{} of {} are already present ({})",
                        binary(*present),
                        binary(*total),
                        percent(*present, *total)
                    ));
                }
            }
            Event::Progress {
                present,
                total,
                files,
                is_scanned,
                ..
            } => {
                self.state().progress.scan(*total, *is_scanned, *files);
                self.on_progress(*present, *total);
            }
            Event::Failed { path, fault } => {
                self.state().failures.note(path, fault);
                let path = failures::PathText::new(path);
                self.event("failed", &json!({ "path": path, "error": error(fault) }));
            }
            Event::Measured { .. } | Event::AttemptOver { .. } => {}
            Event::FileDone(file) => self.event("file", file),
            Event::Note(text) => {
                self.state().progress.say(text);
                self.event("note", &json!({ "text": text }));
            }
            Event::Retrying { fault, after } => {
                let seconds = after.as_secs_f64();
                self.state()
                    .progress
                    .say(&format!("{fault}; trying again in {seconds} s"));
                self.event(
                    "retry",
                    &json!({ "error": error(fault), "after_s": seconds }),
                );
            }
        }
    }
}

/// Prints a failure on stderr: what happened and what to do, in one line.
pub(crate) fn print_fault(fault: &Fault) {
    match &fault.hint {
        Some(hint) => tell(&format!("{fault} ({hint})")),
        None => tell(&fault.to_string()),
    }
}

/// Prints the list of devices on stdout, as it is a result.
pub(crate) fn devices(found: &[Found], as_json: bool) {
    if as_json {
        print_line(&json!({ "schema": DEVICES_SCHEMA, "ok": true, "providers": found }));
    } else {
        // As in `print_line`.
        let _ = std::io::stdout()
            .lock()
            .write_all(human::devices(found).as_bytes());
    }
}

/// Prints that the benchmark of filling slabs has started.
pub(crate) fn fill_started(address: SocketAddr, ring_bytes: u64) {
    let ring = binary(ring_bytes);
    eprintln!(
        "haul gateway: takes connections at {address}, fills slabs of a ring of {ring}, drops them"
    );
}

/// Prints the rate of filling slabs and its processor time.
pub(crate) fn filled(octets: u64, elapsed: Duration, cpu: Duration) {
    let rate = human::rate(human::rate_bps(octets, elapsed));
    #[expect(
        clippy::cast_precision_loss,
        reason = "a figure for people, not a count"
    )]
    let gigabytes = octets as f64 / 1e9;
    let cpu = cpu.as_secs_f64() / gigabytes;
    eprintln!("haul gateway: {rate}, {cpu:.2} s of processor time for 10^9 bytes");
}

/// Prints the problems of a gateway's configuration on stdout, as they are a result.
pub(crate) fn gateway_check(
    file: &Path,
    problems: &[Problem],
    plan: Option<&MemoryPlan>,
    ways: &[RouteWays],
    as_json: bool,
) {
    let errors = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .count();
    let file = file.display().to_string();
    if as_json {
        let mut object = json!({
            "schema": GATEWAY_CHECK_SCHEMA, "ok": errors == 0, "file": file, "problems": problems,
        });
        if let Some(plan) = plan {
            object["memory"] = json!(plan);
            object["routes"] = json!(ways);
        }
        return print_line(&object);
    }
    let lines = problems
        .iter()
        .map(|problem| format!("{file}: {problem}\n"));
    let plan = plan.map_or_else(Vec::new, |plan| {
        let slabs = format!("{} MiB for slabs", plan.memory >> 20);
        [slabs].into_iter().chain(plan.lines()).collect()
    });
    let plan = plan.iter().map(|line| format!("{file}: {line}\n"));
    // Where there is one way only, it is as it is written.
    let ways = ways.iter().filter(|route| route.ways.len() > 1);
    let ways = ways.map(|route| format!("{file}: {route}\n"));
    let warnings = problems.len() - errors;
    let count =
        |number: usize, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let (errors, warnings) = (count(errors, "error"), count(warnings, "warning"));
    let sum = format!("{file}: {errors}, {warnings}\n");
    // As in `print_line`.
    let _ = std::io::stdout()
        .lock()
        .write_all((lines.chain(ways).chain(plan).collect::<String>() + &sum).as_bytes());
}

/// Prints whether a route's session and its data channels open, a line for each.
pub(crate) fn gateway_reach(file: &Path, route: &Reach) {
    let answer = match &route.hops {
        Ok(hops) => {
            let hop = |(gateway, kind): &(String, Option<ChannelKind>)| match kind {
                Some(kind) => format!("{gateway} by {kind}"),
                None => gateway.clone(),
            };
            let hops: Vec<String> = hops.iter().map(hop).collect();
            format!("ok: {}", hops.join(", "))
        }
        Err(why) => why.to_string(),
    };
    let start = format!("{}: route to {}", file.display(), route.to);
    let mut lines = format!("{start}: {answer}\n");
    for (kind, opened) in &route.channels {
        let answer = match opened {
            Ok(()) => "ok".to_owned(),
            Err(why) => why.to_string(),
        };
        lines += &format!("{start}: data channel {kind}: {answer}\n");
    }
    // As in `print_line`.
    let _ = std::io::stdout().lock().write_all(lines.as_bytes());
}

pub(crate) fn error(fault: &Fault) -> Value {
    json!({
        "code": fault.code.name(), "exit": fault.exit(), "text": fault.text, "hint": fault.hint,
    })
}

fn merge(object: &mut Value, body: &impl Serialize) {
    // Both are objects of plain fields, which always serialize.
    if let (Value::Object(into), Ok(Value::Object(from))) = (object, serde_json::to_value(body)) {
        into.extend(from);
    }
}

pub(crate) fn print_line(value: &Value) {
    // A closed stdout must not end the transfer.
    let _ = writeln!(std::io::stdout().lock(), "{value}");
}
