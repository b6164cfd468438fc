//! The papers behind Longhaul, measured on this machine: their figures, and comparisons of tools
//! over a matrix of paths.
//!
//! The program makes labs by `haul-lab` and runs the `haul` beside it, `iperf3` and others there.
//!
//! Map: [`compare`] tools side by side, and two flows on one path · [`reproduce`] the figures.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "measurements are made in real time"
)]

mod compare;
mod reproduce;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Reproduce the papers' figures, and compare tools over a matrix of paths
#[derive(Parser)]
#[command(name = "haul-papers", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure tools side by side over a matrix of paths
    Compare(compare::CompareArgs),
    /// Measure how two flows share a bottleneck
    Fairness(compare::FairnessArgs),
    /// Reproduce a paper's figures on this machine, beside the values that the paper reports
    Reproduce(reproduce::ReproduceArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Compare(args) => compare::compare(&args),
        Command::Fairness(args) => compare::fairness::run(&args),
        Command::Reproduce(args) => reproduce::reproduce(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("haul-papers: {}", haul_lab::line(&error));
        ExitCode::FAILURE
    })
}
