//! The `haul` command: parse, resolve, run.
//!
//! Map: `args` what the command line may contain · `quantity`, `operand` and `timetable` the values
//! in it · `config` files that preset options · `command` one module for each verb · `device` RDMA
//! devices · `interrupt` signals that end a client · `provider` the RDMA devices · `trust` and
//! `place` identities and where they are · `output` progress, text and JSON. Text for people goes
//! to stderr, results go to stdout.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "progress is shown by the clock")]

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, FromArgMatches};
use haul::fault::{Code, Fault};

mod args;
mod command;
mod config;
mod device;
mod interrupt;
mod operand;
mod output;
mod place;
mod provider;
mod quantity;
mod timetable;
mod trust;

fn main() -> ExitCode {
    #[cfg(debug_assertions)]
    speak_next_version();
    if std::env::args_os().len() == 1 {
        eprint!("{}", args::FIRST_STEPS);
        return ExitCode::from(Code::Usage.exit());
    }
    let (args, presets) = match read_args() {
        Ok(read) => read,
        Err(fault) => {
            output::print_fault(&fault);
            return ExitCode::from(fault.exit());
        }
    };
    // What a program finds under `haul run` is what it would find without.
    if !matches!(args.command, args::Command::Run(_)) {
        haul::raise_open_file_limit();
        survive_file_size_limit();
    }
    if holds_keys(&args.command) {
        // A sandbox that forbids it limits dumps itself, or leaves them to the operator.
        let _ = haul::forbid_core_dumps();
    }
    match args.command {
        args::Command::Send(send) => command::transfer::send(send),
        args::Command::Get(get) => command::transfer::get(get),
        args::Command::Sync(sync) => command::sync::sync(&sync),
        args::Command::Ls(ls) => command::list::ls(&ls),
        args::Command::Verify(verify) => command::list::verify(&verify),
        args::Command::Serve(serve) => command::serve::run(serve),
        args::Command::Receive(receive) => command::receive::run(&receive),
        args::Command::Key(key) => command::key::run(key),
        args::Command::Agent(_) => command::agent::run(&presets),
        args::Command::Bench(bench) => command::bench::run(bench),
        args::Command::Gateway(gateway) => command::gateway::run(gateway),
        args::Command::Profile(profile) => command::profile::run(&profile),
        args::Command::Doctor(doctor) => command::doctor::run(&doctor),
        args::Command::Report(report) => command::report::run(&report),
        args::Command::Run(run) => command::run::run(run),
        args::Command::Engine(engine) => command::engine::run(&engine),
        args::Command::Devices(devices) => command::devices::run(devices),
        args::Command::Lab(lab) => command::lab::run(lab),
        args::Command::Config(config) => command::config::run(&config, &presets),
        args::Command::Completions(completions) => command::completions::run(&completions),
        args::Command::Api(api) => command::api::run(*api),
        args::Command::Man(man) => command::completions::manual(&man),
    }
}

/// Reads the command line, with the values of the configuration files behind it.
fn read_args() -> Result<(args::Args, config::Presets), Fault> {
    let (presets, unread) = match config::Presets::read() {
        Ok(presets) => (presets, None),
        Err(fault) => (config::Presets::default(), Some(fault)),
    };
    let mut command = presets.preset(args::Args::command());
    let mut matches = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => {
            return Err(presets
                .blame(&error)
                .unwrap_or_else(|| args::explain(error, &args::Args::command()).exit()));
        }
    };
    if let Some((name, of_command)) = matches.subcommand() {
        config::note_given(of_command);
        // The others start without: they mend it, or have nothing to do with it.
        if let Some(fault) = unread.filter(|_| config::is_read_by(name)) {
            return Err(fault);
        }
    }
    let args = args::Args::from_arg_matches_mut(&mut matches);
    Ok((
        args.unwrap_or_else(|error| {
            args::explain(error.format(&mut command), &args::Args::command()).exit()
        }),
        presets,
    ))
}

/// Returns whether a command has private keys or codes in its memory.
const fn holds_keys(command: &args::Command) -> bool {
    use args::Command::{
        Agent, Api, Bench, Gateway, Get, Key, Ls, Profile, Receive, Send, Serve, Sync, Verify,
    };
    matches!(
        command,
        Send(_)
            | Get(_)
            | Sync(_)
            | Ls(_)
            | Verify(_)
            | Serve(_)
            | Receive(_)
            | Key(_)
            | Agent(_)
            | Api(_)
            | Bench(_)
            | Gateway(_)
            | Profile(_)
    )
}

/// Makes a write beyond `ulimit -f` an error of one transfer (EFBIG). By default SIGXFSZ ends the
/// process with all its transfers. A handler, unlike an ignored signal, does not pass to a program
/// that is executed.
fn survive_file_size_limit() {
    // It fails only for signals that cannot be caught.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Makes a build for tests speak the next version of every protocol, if HAUL_NEXT is set: the next
/// minor version, or one that this version does not understand (docs/adr/0054-versions.md).
#[cfg(debug_assertions)]
fn speak_next_version() {
    if let Some(next) = std::env::var_os("HAUL_NEXT") {
        let is_incompatible = next == "incompatible";
        haul_control::next::pretend(is_incompatible);
        haul_gateway::pretend_next(is_incompatible);
        if !is_incompatible {
            haul_socket::pretend_next();
        }
    }
}
