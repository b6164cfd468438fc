//! What a dry run finds: a line for each step on stdout, or JSON.

use std::io::Write;
use std::process::ExitCode;

use haul::fault::{Code, Fault};
use haul::fs::entry::Entry;
use haul::listing::client::Room;
use haul::printable;
use haul::sync::{Finding, Plan, Step};
use serde_json::{Value, json};

use super::failures::PathText;
use super::human::{binary, count_of};
use super::list::kind_of;
use super::{error, merge, not_empty, print_fault, print_line, tell};
use crate::args;

const SCHEMA: &str = "haul.plan/1";

/// The output of a dry run.
#[derive(Debug)]
pub(crate) struct PlanOutput {
    options: args::OutputArgs,
    sum: Plan,
    is_examined: bool,
    /// For `--json`, which prints them at the end.
    steps: Vec<Value>,
}

impl PlanOutput {
    pub(crate) fn new(options: args::OutputArgs) -> Self {
        Self {
            options,
            sum: Plan::default(),
            is_examined: false,
            steps: Vec::new(),
        }
    }

    /// Shows a finding about a source of this name.
    pub(crate) fn finding(&mut self, name: &[u8], finding: &Finding<'_>) {
        let options = self.options;
        let is_text = !options.json && !options.json_stream;
        match finding {
            Finding::Step(step, entry) => {
                let path = shown(name, entry);
                if is_text {
                    // As in `print_line`.
                    let line = format!("{:8} {}", word(*step), printable(&path));
                    let _ = writeln!(std::io::stdout().lock(), "{line}");
                    return;
                }
                let object = step_object(*step, &path, entry);
                if options.json_stream {
                    print_line(&object);
                }
                if options.json {
                    self.steps.push(object);
                }
            }
            Finding::Failed(text) => {
                if options.json_stream {
                    print_line(&json!({ "schema": SCHEMA, "event": "failed", "text": text }));
                }
                tell(text);
            }
            Finding::Note(text) if !options.quiet => tell(text),
            Finding::Note(_) => {}
        }
    }

    /// Takes what is free at the destination.
    pub(crate) fn note_room(&mut self, room: Option<Room>) {
        self.sum.room = room;
    }

    /// Adds the numbers of one source.
    pub(crate) fn add(&mut self, plan: &Plan) {
        self.is_examined = true;
        for path in plan.full.iter().filter(|_| !self.options.quiet) {
            tell(&not_empty(path.as_bytes()));
        }
        let sum = &mut self.sum;
        sum.make += plan.make;
        sum.replace += plan.replace;
        sum.conflicts += plan.conflicts;
        sum.bytes = sum.bytes.saturating_add(plan.bytes);
        sum.same += plan.same;
        sum.special += plan.special;
        sum.extra_count += plan.extra_count;
        sum.protected += plan.protected;
        sum.failures += plan.failures;
    }

    /// Prints the sum and returns the exit code: that of `result`, or 1 if something would fail.
    pub(crate) fn finish(self, result: Result<(), Fault>) -> ExitCode {
        let sum = &self.sum;
        let result = result.and_then(|()| sum.check_room()).and_then(|()| {
            let partial =
                |count, one, many| Err(Fault::new(Code::FileError, count_of(count, one, many)));
            match (sum.failures, sum.conflicts) {
                (0, 0) => Ok(()),
                (0, count) => partial(
                    count,
                    "entry cannot be replaced",
                    "entries cannot be replaced",
                ),
                (count, _) => partial(
                    count,
                    "entry cannot be examined",
                    "entries cannot be examined",
                ),
            }
        });
        if !self.options.quiet && self.is_examined {
            tell(&format!(
                "dry run: {} to copy, {} to replace, {}, {} to delete; {} the same",
                sum.make,
                sum.replace,
                binary(sum.bytes),
                sum.extra_count,
                sum.same,
            ));
        }
        let fault = result.err();
        let mut object = json!({
            "schema": SCHEMA, "event": "end", "ok": fault.is_none(), "copy": sum.make,
            "replace": sum.replace, "conflicts": sum.conflicts, "delete": sum.extra_count,
            "same": sum.same, "special": sum.special, "protected": sum.protected,
            "failures": sum.failures, "bytes": sum.bytes,
        });
        if let Some(fault) = &fault {
            print_fault(fault);
            merge(&mut object, &json!({ "error": error(fault) }));
        }
        if self.options.json_stream {
            print_line(&object);
        }
        if self.options.json {
            object["steps"] = Value::from(self.steps);
            print_line(&object);
        }
        fault.map_or(ExitCode::SUCCESS, |fault| ExitCode::from(fault.exit()))
    }
}

/// Returns the path of an entry below the destination.
fn shown(name: &[u8], entry: &Entry) -> Vec<u8> {
    match (name, entry.path.as_bytes()) {
        (b"", path) => path.to_vec(),
        (name, b"") => name.to_vec(),
        (name, path) => [name, b"/", path].concat(),
    }
}

const fn word(step: Step) -> &'static str {
    match step {
        Step::Make => "copy",
        Step::Replace => "replace",
        Step::Conflict => "conflict",
        Step::Delete => "delete",
    }
}

fn step_object(step: Step, path: &[u8], entry: &Entry) -> Value {
    let kind = kind_of(entry);
    json!({
        "schema": SCHEMA, "event": "step", "step": word(step), "path": PathText::new(path),
        "kind": kind, "bytes": entry.stat.size,
    })
}
