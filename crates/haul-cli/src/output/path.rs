//! What `haul bench run` and `haul profile` print.

use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul::fault::Fault;
use haul_bench::path::document::{Document, SCHEMA};
use haul_bench::path::record::Run;
use haul_bench::path::{PathPlan, Progress, show};
use serde::Serialize;
use serde_json::{Value, json};

use super::human::{binary, count, rate, rate_bps, time};
use super::{MEASURE_AGAIN, error, merge, print_fault, print_line, tell};
use crate::args;
use crate::interrupt::{self, Ending, Interrupt};

/// The output of one command.
#[derive(Debug)]
pub(crate) struct PathOutput {
    options: args::OutputArgs,
    begun: Instant,
    state: Mutex<State>,
    ending: Ending,
}

/// What has been measured.
#[derive(Debug, Default)]
struct State {
    runs: Vec<Run>,
    /// Which run goes on, and how far it is.
    current: Option<Current>,
}

#[derive(Debug, Clone, Serialize)]
struct Current {
    setting: String,
    repetition: u32,
    /// How often the receiver reports its progress.
    #[serde(skip)]
    interval: Duration,
    /// Since its start, of the last progress.
    #[serde(rename = "until_s", serialize_with = "in_seconds")]
    until: Duration,
    bytes: u64,
}

fn in_seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

impl PathOutput {
    pub(crate) fn new(options: args::OutputArgs) -> Self {
        Self {
            options,
            begun: Instant::now(),
            state: Mutex::default(),
            ending: Ending::default(),
        }
    }

    /// From now on a signal has the figures so far printed.
    ///
    /// # Errors
    /// Those of [`interrupt::watch`].
    pub(crate) fn watch(self: &Arc<Self>) -> Result<(), Fault> {
        let output = Arc::clone(self);
        interrupt::watch(move |by| output.interrupted(by))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run begins.
    pub(crate) fn begin(&self, label: &str, repetition: u32, plan: &PathPlan, several: bool) {
        self.state().current = Some(Current {
            setting: label.to_owned(),
            repetition,
            interval: Duration::from_millis(plan.interval_ms),
            until: Duration::ZERO,
            bytes: 0,
        });
        self.event(
            "run_start",
            &json!({ "setting": label, "repetition": repetition, "plan": plan }),
        );
        if several || repetition == 0 {
            let label = if several {
                format!("{label}: ")
            } else {
                String::new()
            };
            self.note(&format!("{label}{}", show::plan(plan)));
        }
    }

    /// How far it is.
    pub(crate) fn progress(&self, progress: &Progress) {
        let (mut last, mut interval) = (Duration::ZERO, Duration::ZERO);
        if let Some(current) = &mut self.state().current {
            interval = current.interval;
            last = std::mem::replace(&mut current.until, progress.until);
            current.bytes = current.bytes.saturating_add(progress.bytes);
        }
        let span = progress.until.saturating_sub(last);
        let bps = rate_bps(progress.bytes, span);
        let until_s = progress.until.as_secs_f64();
        self.event(
            "interval",
            &json!({ "until_s": until_s, "bytes": progress.bytes, "goodput_bps": bps }),
        );
        if is_meaningful(span, interval) {
            self.note(&format!("{until_s:>7.1} s  {:>14}", rate(bps)));
        }
    }

    /// A run is over.
    pub(crate) fn run(&self, run: &Run) {
        self.ran(run);
        let label = if run.setting == "A" && run.repetition == 0 {
            String::new()
        } else {
            format!("{} ", run.setting)
        };
        self.result(&format!("{label}{}", show::line(run)));
        self.note(&show::verdict(run));
        for warning in &run.warnings {
            self.note(&format!("warning: {warning}"));
        }
    }

    /// Keeps a run that is over, and its event.
    pub(crate) fn ran(&self, run: &Run) {
        self.event("run", run);
        let mut state = self.state();
        state.runs.push(run.clone());
        state.current = None;
    }

    /// Text that was asked for: on stdout, unless JSON was.
    pub(crate) fn result(&self, line: &str) {
        self.ending.before(|| self.print_result(line));
    }

    fn print_result(&self, line: &str) {
        if self.options.json || self.options.json_stream {
            self.print_note(line);
        } else {
            // Whoever reads stdout may have gone.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    /// Something for people, beside the result.
    pub(crate) fn note(&self, line: &str) {
        self.ending.before(|| self.print_note(line));
    }

    fn print_note(&self, line: &str) {
        if !self.options.quiet {
            tell(line);
        }
    }

    /// How far a long occasion is: one line that is written over on a terminal, lines of their own
    /// elsewhere.
    pub(crate) fn status(&self, line: &str) {
        if !self.options.quiet {
            self.ending.before(|| print_status(line));
        }
    }

    /// What came of it, behind that line.
    pub(crate) fn status_add(&self, words: &str) {
        if !self.options.quiet {
            self.ending.before(|| print_status_add(words));
        }
    }

    /// Ends the line of [`PathOutput::status`].
    pub(crate) fn status_over(&self) {
        let mut stderr = std::io::stderr().lock();
        if !self.options.quiet && stderr.is_terminal() {
            let _ = writeln!(stderr);
        }
    }

    /// All went well.
    pub(crate) fn finish(&self, document: &Document) -> ExitCode {
        self.ending.begin();
        if let Some(comparison) = &document.comparison {
            let (a, b) = (&comparison.a, &comparison.b);
            self.print_result(&format!("goodput {a}/{b} {}", comparison.goodput.words()));
            if let Some(cpu) = &comparison.cpu_per_gb {
                self.print_result(&format!("CPU s/GB {a}/{b} {}", cpu.words()));
            }
        }
        self.end(&serde_json::to_value(document).unwrap_or_default());
        ExitCode::SUCCESS
    }

    /// It did not.
    pub(crate) fn fault(&self, fault: &Fault) -> ExitCode {
        self.status_over();
        self.ending.begin();
        print_fault(fault);
        self.print_event("error", &error(fault));
        let mut object = json!({ "schema": SCHEMA, "ok": false, "error": error(fault) });
        self.add_figures(&mut object);
        self.end(&object);
        ExitCode::from(fault.exit())
    }

    fn add_figures(&self, object: &mut Value) {
        let state = self.state();
        object["so_far"] = json!({ "runs": state.runs, "run": state.current });
    }

    /// A signal ends it. Runs that are over have been printed; of the one that goes on this is the
    /// place for its figures.
    fn interrupted(&self, by: Interrupt) {
        self.status_over();
        self.ending.begin();
        let mut object = json!({ "schema": SCHEMA });
        merge(&mut object, &by.fields(MEASURE_AGAIN));
        self.print_event("error", &object["error"]);
        let (current, runs) = {
            let state = self.state();
            (state.current.clone(), state.runs.len())
        };
        if let Some(current) = current {
            let (setting, seconds) = (&current.setting, current.until.as_secs_f64());
            let bps = rate_bps(current.bytes, current.until);
            self.print_result(&format!(
                "{setting} for {seconds:.1} s so far: {}, {}",
                binary(current.bytes),
                rate(bps)
            ));
        }
        let after = time(self.begun.elapsed());
        let runs = count(runs, "run is", "runs are");
        self.print_note(&format!(
            "interrupted by {} after {after}: {runs} complete ({MEASURE_AGAIN})",
            by.name()
        ));
        self.add_figures(&mut object);
        self.end(&object);
    }

    fn end(&self, object: &Value) {
        self.print_event("end", object);
        if self.options.json {
            print_line(object);
        }
    }

    pub(crate) fn event(&self, name: &str, body: &impl Serialize) {
        self.ending.before(|| self.print_event(name, body));
    }

    fn print_event(&self, name: &str, body: &impl Serialize) {
        if self.options.json_stream {
            let mut object = json!({ "event": name, "time_s": self.begun.elapsed().as_secs_f64() });
            merge(&mut object, body);
            print_line(&object);
        }
    }
}

/// Returns whether a rate over `span` is worth a line. The last report of a run may follow the one
/// before at once.
fn is_meaningful(span: Duration, interval: Duration) -> bool {
    span >= interval / 10
}

fn print_status(line: &str) {
    let mut stderr = std::io::stderr().lock();
    // Whoever reads it may have gone.
    let _ = if stderr.is_terminal() {
        write!(stderr, "\r\x1b[Khaul: {line}")
    } else {
        writeln!(stderr, "haul: {line}")
    };
}

fn print_status_add(words: &str) {
    let mut stderr = std::io::stderr().lock();
    // As above.
    let _ = if stderr.is_terminal() {
        write!(stderr, ": {words}")
    } else {
        writeln!(stderr, "haul:         {words}")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_shorter_than_a_tenth_of_the_interval_is_no_progress_line() {
        let interval = Duration::from_secs(1);
        assert!(is_meaningful(interval, interval));
        assert!(is_meaningful(interval / 10, interval));
        assert!(!is_meaningful(interval / 11, interval));
        assert!(!is_meaningful(Duration::ZERO, interval));
    }
}
