//! `haul lab`: the lab reports its own errors; here they get the exit code and the one line of
//! every verb.

use std::process::ExitCode;

use haul::fault::Code;
use haul_lab::{Command, Usage};

/// Runs a command of the lab. A comparison measures this program, whatever its name is, unless it
/// is given another.
pub(crate) fn run(mut args: haul_lab::Args) -> ExitCode {
    let haul = match &mut args.command {
        Command::Compare(compare) => Some(&mut compare.programs.haul),
        Command::Gateways(gateways) => Some(&mut gateways.programs.haul),
        Command::Movers(movers) => Some(&mut movers.haul),
        _ => None,
    };
    if let Some(haul) = haul.filter(|haul| haul.is_none()) {
        *haul = std::env::current_exe().ok();
    }
    haul_lab::run(args).unwrap_or_else(|error| {
        eprintln!("haul: {}", haul_lab::line(&error));
        match error.is::<Usage>() {
            true => ExitCode::from(Code::Usage.exit()),
            false => ExitCode::FAILURE,
        }
    })
}
