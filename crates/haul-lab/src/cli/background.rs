//! `up` and `down`: labs in the background.
//!
//! `up` starts its own command line again, detached from the terminal, and waits until the lab stands. The process left behind holds the
//! lab until it is told to end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use haul_io::netns::child::{Caught, Signals};
use rustix::process::{Pid, Signal};

use super::{DownArgs, UpArgs};
use crate::lab::Lab;
use crate::report::Report;
use crate::state::{LabDir, State};

/// How the line begins with which the background process says that the lab stands.
const READY: &str = "ready: ";

/// And how the text begins with which it says that it does not.
const FAILED: &str = "failed: ";

/// How often a lab in the background writes its counters.
const STATS_EVERY: Duration = Duration::from_secs(1);

/// How long a lab may take to go down by itself.
const DOWN_PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn up(args: &UpArgs) -> Result<ExitCode> {
    if args.detached {
        if let Err(error) = hold(args) {
            println!("{FAILED}{error:#}");
            return Ok(ExitCode::FAILURE);
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
        LabDir::all()?
    } else {
        chosen(&args.names)?
    };
    for lab in &labs {
        take_down(lab)?;
        eprintln!("lab {} is down", lab.name());
    }
    Ok(ExitCode::SUCCESS)
}

/// The lab of this name, or the only one that is up.
pub(super) fn find(name: Option<&str>) -> Result<(LabDir, State)> {
    LabDir::sweep()?;
    let alive = LabDir::all()?
        .into_iter()
        .filter_map(|dir| dir.read_state().map(|state| (dir, state)));
    let mut alive: Vec<_> = alive.collect();
    let names = alive
        .iter()
        .map(|(dir, _)| dir.name().to_string())
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(name) = name {
        let found = alive.into_iter().find(|(dir, _)| dir.name() == name);
        return found.ok_or_else(|| match names.as_str() {
            "" => anyhow!("no lab is up: start one with `haul lab up SCENARIO`"),
            names => anyhow!("no lab {name} is up: there is {names}"),
        });
    }
    match alive.len() {
        0 => bail!("no lab is up: start one with `haul lab up SCENARIO`"),
        1 => Ok(alive.remove(0)),
        _ => bail!("several labs are up: choose with --name one of {names}"),
    }
}

fn chosen(names: &[String]) -> Result<Vec<LabDir>> {
    if names.is_empty() {
        return Ok(vec![find(None)?.0]);
    }
    names.iter().map(|name| Ok(find(Some(name))?.0)).collect()
}

/// Starts this command again in the background, and waits until it says that the lab stands.
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
    child.wait()?;
    bail!(
        "{}",
        said.strip_prefix(FAILED)
            .unwrap_or("the lab ended before it stood")
            .trim_end()
    )
}

/// Makes the lab and holds it until a signal comes.
fn hold(args: &UpArgs) -> Result<()> {
    let signals = Signals::block().context("cannot handle signals")?;
    let scenario = args.start.load()?;
    let name = args.name.as_deref().unwrap_or(&scenario.name);
    let lab = Lab::start_named(&scenario, name, args.start.emulator)?;
    LabDir::sweep()?;
    let hosts: Vec<String> = lab
        .hosts()
        .iter()
        .map(|host| format!("{} {}", host.name(), host.addresses().v4))
        .collect();
    let hosts = hosts.join(", ");
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

/// Tells the waiting command that the lab stands, and lets go of its terminal and directory.
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
        .filter(State::is_alive)
        .and_then(|state| Some((Pid::from_raw(state.pid)?, state)));
    if let Some((pid, state)) = holder {
        rustix::process::kill_process(pid, Signal::TERM)
            .map_err(io::Error::from)
            .with_context(|| format!("cannot end lab {}", lab.name()))?;
        let deadline = Instant::now() + DOWN_PATIENCE;
        while state.is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if state.is_alive() {
            rustix::process::kill_process(pid, Signal::KILL).map_err(io::Error::from)?;
        }
    }
    lab.clean_up();
    Ok(())
}
