//! `haul profile`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul_bench::path::document::{Document, Kind};
use haul_bench::path::record::Run;
use haul_bench::profile::{LEAST, Observer, Options, Section, Step, steps};
use haul_report::axis::rate;
use serde_json::json;

use super::emulated;
use super::path::{command_line, make_directory, progress, with_server, write_report};
use crate::args::profile::Profile;
use crate::output::path::PathOutput;

/// Profiles.
pub(crate) fn run(args: &Profile) -> ExitCode {
    let output = Arc::new(PathOutput::new(args.output));
    // The profile that has started one inside a lab prints for both, and ends with its lab.
    let watched = if args.inside { Ok(()) } else { output.watch() };
    match watched.and_then(|()| profile(args, &output)) {
        Ok(document) if args.inside => output.finish(&document),
        Ok(document) => {
            for finding in &document.findings {
                output.result(&format!("{}: {}", finding.about, finding.text));
                if let Some(advice) = &finding.advice {
                    output.result(&format!("    to change: {advice}"));
                }
            }
            output.finish(&document)
        }
        Err(fault) => output.fault(&fault),
    }
}

fn profile(args: &Profile, output: &PathOutput) -> Result<Document, Fault> {
    check(args)?;
    if !args.inside {
        make_directory(&args.out)?;
    }
    let mut document = Document::new(Kind::Profile, command_line());
    let show = Show { output };
    let result = match (&args.host, &args.scenario) {
        (Some(host), _) => with_server(host, &args.server, |config| {
            haul_bench::profile::run(config, &options(args), &mut document, &show)
        }),
        (None, Some(scenario)) => emulated::scenario(args, scenario, &mut document),
        (None, None) => emulated::sweep(args, &mut document, output),
    };
    output.status_over();
    result?;
    if !args.inside {
        write_report(&args.out, &document, output)?;
    }
    Ok(document)
}

/// Whether there is something to measure, and time for some of it.
fn check(args: &Profile) -> Result<(), Fault> {
    if let Some((option, hint)) = args.misplaced() {
        let text = format!("{option} has no effect on this profile");
        return Err(Fault::new(Code::Usage, text).hint(hint));
    }
    if !args.emulate && steps(&options(args)).is_empty() {
        let text = "nothing to measure: the disk steps need --source-file or --sink";
        return Err(Fault::new(Code::Usage, text));
    }
    let least = if args.emulate { emulated::LEAST } else { LEAST };
    if args.max_time < least {
        let text = "--max-time is too short for a single run";
        let hint = format!(
            "give it {}s at least; what there is no time for is left out",
            least.as_millis().div_ceil(1000)
        );
        return Err(Fault::new(Code::Usage, text).hint(hint));
    }
    Ok(())
}

fn options(args: &Profile) -> Options {
    let sections = if args.only.is_empty() {
        Section::ALL.to_vec()
    } else {
        args.only.iter().map(|part| (*part).into()).collect()
    };
    Options {
        sections,
        engines: args.engines.iter().map(|engine| (*engine).into()).collect(),
        budget: args.max_time,
        repetitions: args.repetitions,
        source_file: args.server.source_file.is_some(),
        sink_file: args.sink,
        full: args.full,
    }
}

/// Tells how far it is.
struct Show<'a> {
    output: &'a PathOutput,
}

impl Observer for Show<'_> {
    fn step(&self, number: usize, count: usize, left: Duration, step: &Step) {
        let words = step.words();
        let event =
            json!({ "step": number, "steps": count, "left_s": left.as_secs_f64(), "what": words });
        self.output.event("step", &event);
        self.output.status(&progress(number, count, left, &words));
    }

    fn run(&self, run: &Run) {
        self.output.ran(run);
        self.output.status_add(&rate(run.goodput_bps));
    }

    fn left_out(&self, why: &str) {
        self.output.event("left_out", &json!({ "why": why }));
        self.output.status_over();
        self.output.note(&format!("left out: {why}"));
    }
}
