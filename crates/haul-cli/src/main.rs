//! The `haul` command: parse, resolve, run.
//!
//! Map: `args` what the command line may say · `quantity` and `operand` the values in it ·
//! `command` one module for each verb · `device` RDMA devices · `interrupt` signals that end a
//! client · `provider` the RDMA devices · `output` progress, text and JSON. Text for people goes to
//! stderr, results go to stdout.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "progress is shown by the clock")]

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

mod args;
mod command;
mod device;
mod interrupt;
mod operand;
mod output;
mod provider;
mod quantity;

fn main() -> ExitCode {
    let args = args::Args::parse();
    // What a program finds under `haul run` is what it would find without.
    if !matches!(args.command, args::Command::Run(_)) {
        haul::raise_open_file_limit();
        survive_file_size_limit();
    }
    match args.command {
        args::Command::Send(send) => command::transfer::send(send),
        args::Command::Get(get) => command::transfer::get(get),
        args::Command::Serve(serve) => command::serve::run(serve),
        args::Command::Bench(bench) => command::bench::run(bench),
        args::Command::Gateway(gateway) => command::gateway::run(gateway),
        args::Command::Profile(profile) => command::profile::run(&profile),
        args::Command::Doctor(doctor) => command::doctor::run(&doctor),
        args::Command::Report(report) => command::report::run(&report),
        args::Command::Run(run) => command::run::run(run),
        args::Command::Devices(devices) => command::devices::run(devices),
        args::Command::Lab(lab) => command::lab::run(lab),
    }
}

/// Makes a write beyond `ulimit -f` an error of one transfer (EFBIG). By default SIGXFSZ ends the
/// process with all its transfers. A handler, unlike an ignored signal, does not pass to a program
/// that is executed.
fn survive_file_size_limit() {
    // It fails only for signals that cannot be caught.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}
