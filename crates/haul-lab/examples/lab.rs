//! The lab's commands as a program of their own: `haul lab` without `haul`. The crate's tests run
//! it, since Cargo builds examples along with them and a crate above this one would not be there.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: haul_lab::Args,
}

fn main() -> ExitCode {
    haul_lab::run(Cli::parse().args).unwrap_or_else(|error| {
        eprintln!("lab: {error:#}");
        ExitCode::FAILURE
    })
}
