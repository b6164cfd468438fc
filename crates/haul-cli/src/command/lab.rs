//! `haul lab`: the lab reports its own errors; here they get the exit code and the one line of
//! every verb.

use std::process::ExitCode;

/// Runs a command of the lab.
pub(crate) fn run(args: haul_lab::Args) -> ExitCode {
    haul_lab::run(args).unwrap_or_else(|error| {
        eprintln!("haul: {error:#}");
        ExitCode::FAILURE
    })
}
