//! The commands of `haul lab`. Parsing is here; each command has a module.

mod args;
mod background;
mod calibrate;
mod exec;
mod list;
mod notes;
mod run;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

pub use args::{
    CalibrateArgs, DownArgs, ExecArgs, ListArgs, RunArgs, ScenariosArgs, StartArgs, UpArgs,
};

/// Emulate a WAN on this machine
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `haul lab`.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start a lab in the background
    Up(UpArgs),
    /// Run a command on a host of a lab that is up
    Exec(ExecArgs),
    /// Start a lab, run commands in it, and take it down
    ///
    /// Without a command, runs the commands of the scenario; if it has none, opens a shell on host
    /// `a`. In the lab, hosts resolve each other's names (`ping b`), and LAB_A, LAB_B … hold their
    /// addresses.
    Run(RunArgs),
    /// List the labs that are up, and clean up after those that ended unexpectedly
    List(ListArgs),
    /// Take labs down
    Down(DownArgs),
    /// Verify the emulator: delay, loss and rate of a path
    ///
    /// With a scenario, checks the delay, the loss and the rate of its path. Without one, checks an
    /// example, then searches for the highest rate that this machine can emulate; `up` and `run`
    /// refuse higher rates.
    Calibrate(CalibrateArgs),
    /// Measure tools side by side on one path
    Compare(crate::compare::CompareArgs),
    /// Measure gateways with defaults beside direct connections
    Gateways(crate::gateways::GatewaysArgs),
    /// Measure haul send and get beside rsync, scp and others, on trees of files
    Movers(crate::movers::MoversArgs),
    /// List the built-in scenarios, or print one
    Scenarios(ScenariosArgs),
}

/// Runs a command. Call it before starting threads: without root, a lab must change the process's
/// user namespace.
///
/// # Errors
/// One line that names what failed and what to do about it.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Up(args) => background::up(&args),
        Command::Exec(args) => exec::exec(&args),
        Command::Run(args) => run::run(&args),
        Command::List(args) => list::list(&args),
        Command::Down(args) => background::down(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::Compare(args) => crate::compare::compare(&args),
        Command::Gateways(args) => crate::gateways::gateways(&args),
        Command::Movers(args) => crate::movers::movers(&args),
        Command::Scenarios(args) => list::scenarios(&args),
    }
}
