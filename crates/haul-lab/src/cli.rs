//! The commands of `haul lab`. Parsing is here; each command has a module.

mod background;
mod calibrate;
mod exec;
mod list;
mod run;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::calibrate::Ceilings;
use crate::lab::{Engine, Lab};
use crate::scenario::Scenario;

/// An emulated WAN on this machine
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What a lab can do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start a lab in the background
    Up(UpArgs),
    /// Run a command on a host of a lab that is up
    Exec(ExecArgs),
    /// Start a lab, run commands in it, and take it down
    ///
    /// Without a command, runs what the scenario asks for; if it asks for nothing, opens a shell on
    /// host `a`. In the lab, hosts know each other by name (`ping b`), and LAB_A, LAB_B … hold
    /// their addresses.
    Run(RunArgs),
    /// Show the labs that are up, and clean up after those that died
    List(ListArgs),
    /// Take labs down
    Down(DownArgs),
    /// Measure whether the emulator does what it is asked for
    ///
    /// With a scenario: whether its path has the delay, the loss and the rate that it says. Without
    /// one, an example is checked, and then the highest rate is searched for that this machine
    /// carries honestly; `up` and `run` refuse more.
    Calibrate(CalibrateArgs),
    /// Measure tools side by side on one path
    Compare(crate::compare::CompareArgs),
    /// Show the scenarios that come along, or the text of one
    Scenarios(ScenariosArgs),
}

/// How a lab is started.
#[derive(Clone, Debug, clap::Args)]
pub struct StartArgs {
    /// A scenario: a TOML file, or the name of one that comes along (see `scenarios`)
    pub scenario: String,
    /// Who emulates the path
    #[arg(long, value_enum, default_value = "tun")]
    pub emulator: Engine,
    /// Start even if this machine cannot carry the rate honestly
    #[arg(long)]
    pub force: bool,
}

impl StartArgs {
    /// The scenario, if this machine can emulate it honestly or `--force` was given.
    pub(crate) fn load(&self) -> Result<Scenario> {
        let scenario = Scenario::load(&self.scenario)?;
        if self.emulator == Engine::Tun {
            // Without a place for a calibration there is none.
            let known = Ceilings::load().unwrap_or(None);
            Ceilings::judge(known.as_ref(), &scenario).enforce(self.force)?;
        }
        Ok(scenario)
    }
}

/// Arguments of `up`.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// How to start.
    #[command(flatten)]
    pub start: StartArgs,
    /// What to call it [default: the scenario's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Stay in the foreground until interrupted
    #[arg(long)]
    pub foreground: bool,
    /// Set by `up` for the process that it leaves in the background
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Arguments of `exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecArgs {
    /// Which lab [default: the only one that is up]
    #[arg(long)]
    pub name: Option<String>,
    /// Which host
    pub host: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Arguments of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// How to start.
    #[command(flatten)]
    pub start: StartArgs,
    /// The host that the command runs on
    #[arg(long, default_value = "a")]
    pub host: String,
    /// Say of the path only what is wrong with it
    #[arg(long, short)]
    pub quiet: bool,
    /// Print at the end what happened on the path, as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// A command, which runs once those that the scenario starts in the background have been
    /// started
    #[arg(last = true)]
    pub command: Vec<OsString>,
}

/// Arguments of `list`.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `down`.
#[derive(Clone, Debug, clap::Args)]
pub struct DownArgs {
    /// Which labs [default: the only one that is up]
    pub names: Vec<String>,
    /// All of them
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `calibrate`.
#[derive(Clone, Debug, clap::Args)]
pub struct CalibrateArgs {
    /// A scenario: a TOML file, or the name of one that comes along
    pub scenario: Option<String>,
    /// Measure the kernel's netem with the same scenario as well, and whether both agree
    #[arg(long, requires = "scenario")]
    pub netem: bool,
    /// How long each of the measurements takes (six for a path; half of that for each rate that is
    /// tried)
    #[arg(long, default_value = "2")]
    pub seconds: f64,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `scenarios`.
#[derive(Clone, Debug, clap::Args)]
pub struct ScenariosArgs {
    /// Print this one
    pub name: Option<String>,
}

fn show_notes(lab: &Lab) {
    for note in lab.notes() {
        eprintln!("note: {note}");
    }
}

/// Does what was asked for. Call it before starting threads: without root, a lab must change the
/// process's user namespace.
///
/// # Errors
/// One line that says what happened and what to do about it.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Up(args) => background::up(&args),
        Command::Exec(args) => exec::exec(&args),
        Command::Run(args) => run::run(&args),
        Command::List(args) => list::list(&args),
        Command::Down(args) => background::down(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::Compare(args) => crate::compare::compare(&args),
        Command::Scenarios(args) => list::scenarios(&args),
    }
}
