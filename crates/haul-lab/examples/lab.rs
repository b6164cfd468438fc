//! `haul lab` without `haul`: for trying the lab while the rest is being built.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: haul_lab::Args,
}

fn main() -> anyhow::Result<ExitCode> {
    haul_lab::run(Cli::parse().args)
}
