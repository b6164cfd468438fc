//! `run`: a lab for as long as its commands take.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use haul_io::netns::child::{Caught, Signals};

use super::args::RunArgs;
use super::notes::cannot_run;
use crate::lab::Lab;
use crate::out;
use crate::report::Report;
use crate::scenario::{Run, Scenario};
use crate::state::LabDir;

/// How long commands may take to end once they are asked to.
const PATIENCE: Duration = Duration::from_secs(2);

/// A shell's exit status for a command that a signal ended, less the signal's number.
const BY_SIGNAL: i32 = 128;

pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let signals = Signals::block().context("cannot handle signals")?;
    let scenario = args.start.load()?;
    let lab = Lab::start_with(&scenario, args.start.emulator)?;
    LabDir::sweep()?;
    if !args.quiet {
        super::notes::show_notes(&lab);
    }
    let mut session = Session {
        lab,
        signals,
        background: Vec::new(),
    };
    let code = session.run_all(&runs(&scenario, args), args)?;
    session.end();
    let report = Report::from(session.lab.stats());
    if !args.quiet {
        eprintln!("{report}");
    }
    for warning in report.warnings() {
        eprintln!("warning: {warning}");
    }
    if args.json {
        out::line(serde_json::to_string_pretty(&report)?);
    }
    Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)))
}

/// The commands to run: the scenario's; with a command from the command line, only the scenario's
/// background commands, and then this.
fn runs(scenario: &Scenario, args: &RunArgs) -> Vec<Job> {
    let own = |job: &Run| Job {
        host: job.host.clone(),
        words: ["sh", "-c", &job.command].map(OsString::from).to_vec(),
        background: job.background,
        after: Duration::from_nanos(job.after.ns),
    };
    let here = |words: Vec<OsString>| Job {
        host: args.host.clone(),
        words,
        background: false,
        after: Duration::ZERO,
    };
    let mut jobs: Vec<Job> = scenario.runs.iter().map(own).collect();
    if !args.command.is_empty() {
        jobs.retain(|job| job.background);
        jobs.push(here(args.command.clone()));
    } else if jobs.iter().all(|job| job.background) {
        jobs.push(here(vec![
            std::env::var_os("SHELL").unwrap_or_else(|| "sh".into()),
        ]));
    }
    jobs
}

struct Job {
    host: String,
    words: Vec<OsString>,
    background: bool,
    after: Duration,
}

/// A lab and its processes.
struct Session {
    lab: Lab,
    signals: Signals,
    background: Vec<Child>,
}

impl Session {
    /// Answers the exit code of the first command that fails, or 0.
    fn run_all(&mut self, jobs: &[Job], args: &RunArgs) -> Result<i32> {
        for job in jobs {
            if let Some(signal) = self.pause(job.after)? {
                return Ok(BY_SIGNAL + signal);
            }
            let mut child = self.start(job, args)?;
            if job.background {
                self.background.push(child);
                continue;
            }
            let code = self.wait(&mut child)?;
            if code != 0 {
                return Ok(code);
            }
        }
        Ok(0)
    }

    fn start(&self, job: &Job, args: &RunArgs) -> Result<Child> {
        let (program, arguments) = job.words.split_first().context("there is no command")?;
        let mut command = self.lab.command(&job.host, program)?;
        command.args(arguments);
        if job.background {
            command.stdin(Stdio::null());
        }
        if args.json {
            // Stdout carries the report alone.
            command.stdout(std::io::stderr());
        }
        command
            .spawn()
            .map_err(|error| cannot_run(program, &format!(" on host {}", job.host), &error))
    }

    /// Waits for a command, or ends it when a signal asks this process to end.
    fn wait(&mut self, child: &mut Child) -> Result<i32> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(exit_code(status));
            }
            if let Some(Caught::End(signal)) = self.signals.wait(Duration::from_secs(1))? {
                self.lab.end_processes(PATIENCE);
                child.wait()?;
                return Ok(BY_SIGNAL + signal);
            }
        }
    }

    /// Answers the signal that cut it short, if one did.
    fn pause(&self, time: Duration) -> Result<Option<i32>> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if let Some(Caught::End(signal)) = self.signals.wait(left)? {
                return Ok(Some(signal));
            }
        }
    }

    fn end(&mut self) {
        self.lab.end_processes(PATIENCE);
        for child in &mut self.background {
            // It has been ended above: this only lets the kernel forget it.
            let _ = child.wait();
        }
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or(0))
}
