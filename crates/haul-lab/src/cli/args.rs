//! The arguments of each command.

use std::ffi::OsString;

use anyhow::Result;

use crate::calibrate::Ceilings;
use crate::lab::Engine;
use crate::scenario::Scenario;

/// How to start a lab.
#[derive(Clone, Debug, clap::Args)]
pub struct StartArgs {
    /// A scenario file (TOML), or the name of a built-in scenario (see `scenarios`)
    pub scenario: String,
    /// The emulator of the path
    #[arg(long, value_enum, default_value = "tun")]
    pub emulator: Engine,
    /// Start even if this machine cannot emulate the rate
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
    /// Name of the lab [default: the scenario's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Stay in the foreground until interrupted
    #[arg(long)]
    pub foreground: bool,
    /// Set by `up` for its background process
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Arguments of `exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecArgs {
    /// The lab [default: the only one that is up]
    #[arg(long)]
    pub name: Option<String>,
    /// The host
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
    /// Print only warnings about the path
    #[arg(long, short)]
    pub quiet: bool,
    /// Print the counters of the path at the end, as JSON to stdout
    #[arg(long)]
    pub json: bool,
    /// A command; it runs after the background commands of the scenario have started
    #[arg(last = true)]
    pub command: Vec<OsString>,
}

/// Arguments of `list`.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `down`.
#[derive(Clone, Debug, clap::Args)]
pub struct DownArgs {
    /// The labs [default: the only one that is up]
    pub names: Vec<String>,
    /// Take all labs down
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `calibrate`.
#[derive(Clone, Debug, clap::Args)]
pub struct CalibrateArgs {
    /// A scenario file (TOML), or the name of a built-in scenario
    pub scenario: Option<String>,
    /// Also measure the kernel's netem with the same scenario, and compare
    #[arg(long, requires = "scenario")]
    pub netem: bool,
    /// Duration of each measurement: six for a path; half as long for each rate tried
    #[arg(long, default_value = "2")]
    pub seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `scenarios`.
#[derive(Clone, Debug, clap::Args)]
pub struct ScenariosArgs {
    /// The scenario to print
    pub name: Option<String>,
}
