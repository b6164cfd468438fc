//! What `haul bench run` and `haul profile` print.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use haul::fault::Fault;
use haul_bench::path::document::{Document, SCHEMA};
use haul_bench::path::record::Run;
use haul_bench::path::{Plan, Progress, show};
use serde::Serialize;
use serde_json::{Value, json};

use super::human::{rate, rate_bps};
use super::{error, merge, print_fault, print_line, tell};
use crate::args;

/// The output of one command.
#[derive(Debug)]
pub(crate) struct PathOutput {
    options: args::Output,
    begun: Instant,
    /// Until when the last progress of this run was told.
    last: Cell<Duration>,
}

impl PathOutput {
    pub(crate) fn new(options: args::Output) -> Self {
        Self {
            options,
            begun: Instant::now(),
            last: Cell::new(Duration::ZERO),
        }
    }

    /// A run begins.
    pub(crate) fn begin(&self, label: &str, repetition: u32, plan: &Plan, several: bool) {
        self.last.set(Duration::ZERO);
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
        let span = progress
            .until
            .saturating_sub(self.last.replace(progress.until));
        let bps = rate_bps(progress.bytes, span);
        let until_s = progress.until.as_secs_f64();
        self.event(
            "interval",
            &json!({ "until_s": until_s, "bytes": progress.bytes, "goodput_bps": bps }),
        );
        self.note(&format!("{until_s:>7.1} s  {:>14}", rate(bps)));
    }

    /// A run is over.
    pub(crate) fn run(&self, run: &Run) {
        self.event("run", run);
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

    /// Text that was asked for: on stdout, unless JSON was.
    pub(crate) fn result(&self, line: &str) {
        if self.options.json || self.options.json_stream {
            self.note(line);
        } else {
            // Whoever reads stdout may have gone.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    /// Something for people, beside the result.
    pub(crate) fn note(&self, line: &str) {
        if !self.options.quiet {
            tell(line);
        }
    }

    /// How far a long occasion is: one line that is written over on a terminal, lines of their own elsewhere.
    pub(crate) fn status(&self, line: &str) {
        if self.options.quiet {
            return;
        }
        let mut stderr = std::io::stderr().lock();
        // Whoever reads it may have gone.
        let _ = if stderr.is_terminal() {
            write!(stderr, "\r\x1b[Khaul: {line}")
        } else {
            writeln!(stderr, "haul: {line}")
        };
    }

    /// What came of it, behind that line.
    pub(crate) fn status_add(&self, words: &str) {
        if self.options.quiet {
            return;
        }
        let mut stderr = std::io::stderr().lock();
        // As above.
        let _ = if stderr.is_terminal() {
            write!(stderr, ": {words}")
        } else {
            writeln!(stderr, "haul:         {words}")
        };
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
        if let Some(comparison) = &document.comparison {
            let (a, b) = (&comparison.a, &comparison.b);
            self.result(&format!("goodput {a}/{b} {}", comparison.goodput.words()));
            if let Some(cpu) = &comparison.cpu_per_gb {
                self.result(&format!("CPU s/GB {a}/{b} {}", cpu.words()));
            }
        }
        self.end(&serde_json::to_value(document).unwrap_or_default());
        ExitCode::SUCCESS
    }

    /// It did not.
    pub(crate) fn fault(&self, fault: &Fault) -> ExitCode {
        self.status_over();
        print_fault(fault);
        self.event("error", &error(fault));
        self.end(&json!({ "schema": SCHEMA, "ok": false, "error": error(fault) }));
        ExitCode::from(fault.exit())
    }

    fn end(&self, object: &Value) {
        self.event("end", object);
        if self.options.json {
            print_line(object);
        }
    }

    pub(crate) fn event(&self, name: &str, body: &impl Serialize) {
        if self.options.json_stream {
            let mut object = json!({ "event": name, "time_s": self.begun.elapsed().as_secs_f64() });
            merge(&mut object, body);
            print_line(&object);
        }
    }
}
