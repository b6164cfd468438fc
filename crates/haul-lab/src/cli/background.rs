//! `up` and `down`: labs in the background.
//!
//! `up` starts its own command line again, detached from the terminal, and waits until the lab
//! stands. The process left behind holds the lab until it receives a signal.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use haul_io::netns::child::{Caught, Signals};
use rustix::process::{Pid, Signal};

use super::args::{DownArgs, UpArgs};
use crate::lab::Lab;
use crate::report::Report;
use crate::state::{LabDir, State};
use crate::usage::Usage;

/// The start of the line by which the background process reports that the lab is up.
const READY: &str = "ready: ";

/// The start of the text by which it reports a failure.
const FAILED: &str = "failed: ";

/// Its exit code where the command line is wrong.
const USAGE: u8 = 2;

/// How often a lab in the background writes its counters.
const STATS_EVERY: Duration = Duration::from_secs(1);

/// How long a lab may take to go down by itself.
const DOWN_PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn up(args: &UpArgs) -> Result<ExitCode> {
    if args.detached {
        if let Err(error) = hold(args) {
            println!("{FAILED}{}", crate::line(&error));
            return Ok(match error.is::<Usage>() {
                true => ExitCode::from(USAGE),
                false => ExitCode::FAILURE,
            });
        }
    } else if args.foreground {
        hold(args)?;
    } else {
        detach()?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn down(args: &DownArgs) -> Result<ExitCode> {
    let labs = if args.all {
        let is_shared = |dir: &LabDir| dir.read_state().is_some_and(|state| state.shared);
        alive()?.into_iter().filter(is_shared).collect()
    } else if args.names.is_empty() {
        vec![find(None)?.0]
    } else {
        let found = args.names.iter().map(|name| Ok(find(Some(name))?.0));
        found.collect::<Result<Vec<_>>>()?
    };
    for lab in &labs {
        take_down(lab)?;
        eprintln!("lab {} is down", lab.name());
    }
    Ok(ExitCode::SUCCESS)
}

/// The lab of this name, or the only one that `up` has started: one that belongs to a running
/// command must be named.
pub(super) fn find(name: Option<&str>) -> Result<(LabDir, State)> {
    let labs = alive()?
        .into_iter()
        .filter_map(|dir| Some((dir.read_state()?, dir)));
    let fits = |(state, dir): &(State, LabDir)| match name {
        Some(name) => dir.name() == name,
        None => state.shared,
    };
    let mut found: Vec<_> = labs.filter(fits).collect();
    match (found.len(), name) {
        (1, _) => {
            let (state, dir) = found.remove(0);
            Ok((dir, state))
        }
        (0, Some(name)) => bail!("no lab {name} is up: `haul lab list` shows those that are"),
        (0, None) => bail!("no lab is up: start one with `haul lab up SCENARIO`"),
        _ => {
            let names: Vec<&str> = found.iter().map(|(_, dir)| dir.name()).collect();
            let names = names.join(" or ");
            Err(Usage(format!("several labs are up: say which, {names}")).into())
        }
    }
}

/// Returns labs whose process runs, and cleans up after the others.
fn alive() -> Result<Vec<LabDir>> {
    LabDir::sweep()?;
    LabDir::all()
}

/// Starts this command again in the background, and waits until it reports that the lab is up.
fn detach() -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the lab in the background")?;
    let mut output = BufReader::new(child.stdout.take().context("the lab has no output")?);
    let mut said = String::new();
    output.read_line(&mut said)?;
    if let Some(message) = said.trim_end().strip_prefix(READY) {
        eprintln!("{message}");
        return Ok(());
    }
    output.read_to_string(&mut said)?;
    let ended = child.wait()?;
    let why = said.strip_prefix(FAILED).map(str::trim_end);
    let why = why.unwrap_or("the lab ended before it stood");
    match ended.code() == Some(USAGE.into()) {
        true => Err(Usage(why.to_owned()).into()),
        false => bail!("{why}"),
    }
}

/// Makes the lab and holds it until a signal comes.
fn hold(args: &UpArgs) -> Result<()> {
    let signals = Signals::block().context("cannot handle signals")?;
    let scenario = args.start.load()?;
    let name = args.name.as_deref().unwrap_or(&scenario.name);
    let lab = Lab::start_shared(&scenario, name, args.start.emulator)?;
    LabDir::sweep()?;
    let hosts: Vec<String> = lab
        .hosts()
        .iter()
        .map(|host| format!("{} {}", host.name(), host.addresses().v4))
        .collect();
    let hosts = hosts.join(", ");
    super::notes::show_notes(&lab);
    if args.detached {
        announce(&lab, &hosts)?;
    } else {
        eprintln!("lab {name} is up ({hosts}); it ends with Ctrl-C");
    }
    let mut written = String::new();
    while !matches!(signals.wait(STATS_EVERY)?, Some(Caught::End(_))) {
        let text = serde_json::to_string_pretty(&Report::from(lab.stats()))?;
        if text != written {
            std::fs::write(lab.dir().stats_file(), &text)
                .context("cannot write the lab's counters")?;
            written = text;
        }
    }
    Ok(())
}

/// Notifies the waiting command that the lab is up, and releases its terminal and directory.
fn announce(lab: &Lab, hosts: &str) -> Result<()> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(lab.dir().log_file());
    let log = log.context("cannot make the lab's log")?;
    let name = lab.name();
    println!("{READY}lab {name} is up ({hosts}); try `haul lab exec a -- ping b`");
    io::stdout().flush()?;
    rustix::stdio::dup2_stdout(&log).map_err(io::Error::from)?;
    rustix::stdio::dup2_stderr(&log).map_err(io::Error::from)?;
    // It leads a session already if something else has put it into one.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/").map_err(io::Error::from)?;
    Ok(())
}

/// Asks the process that holds a lab to end, and cleans up if it is gone or does not.
fn take_down(lab: &LabDir) -> Result<()> {
    let holder = lab
        .read_state()
        .filter(State::is_here)
        .and_then(|state| Some((Pid::from_raw(state.pid)?, state)));
    if let Some((pid, state)) = holder {
        rustix::process::kill_process(pid, Signal::TERM)
            .map_err(io::Error::from)
            .with_context(|| format!("cannot end lab {}", lab.name()))?;
        let deadline = Instant::now() + DOWN_PATIENCE;
        while state.is_here() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if state.is_here() {
            rustix::process::kill_process(pid, Signal::KILL).map_err(io::Error::from)?;
        }
    } else if lab.is_held() {
        bail!(
            "lab {} belongs to another PID namespace: take it down there",
            lab.name()
        );
    }
    lab.clean_up();
    Ok(())
}
