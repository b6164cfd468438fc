//! `haul gateway`: runs a gateway in the foreground or as a service, and checks configurations.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul_gateway::config::{ChannelKind, Problem};
use haul_gateway::{Cause, Config, Gateway, Level, Log};
use haul_report::date;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args;
use crate::interrupt::not_ignored;
use crate::output;
use crate::provider;

/// Time between two looks at a gateway: its log then states how often lines have been repeated.
const LOOK: Duration = Duration::from_secs(10);
/// Timeout of each question to gateways of `check --reach`.
const REACH: Duration = Duration::from_secs(60);
/// Exit code after a second signal, as shells have it for Ctrl-C.
const INTERRUPTED: i32 = 130;

pub(crate) fn run(gateway: args::Gateway) -> ExitCode {
    match gateway {
        args::Gateway::Run(args) => match try_run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => super::fail(&fault),
        },
        args::Gateway::Check(args) => check(&args),
        args::Gateway::Fill(args) => super::fill::run(&args),
    }
}

fn check(args: &args::GatewayCheck) -> ExitCode {
    let (problems, plan, ways) = match Config::load(&args.file) {
        Ok(config) => {
            let mut problems = config.check();
            problems.extend(config.check_devices(|name| {
                provider::of_channel(ChannelKind::Verbs, Some(name)).map(drop)
            }));
            problems.sort_by_key(|problem| problem.line);
            (problems, Some(config.memory_plan()), config.ways())
        }
        Err(problems) => (problems, None, Vec::new()),
    };
    output::gateway_check(&args.file, &problems, plan.as_ref(), &ways, args.json);
    if problems.iter().any(Problem::is_error) {
        return ExitCode::from(Code::Usage.exit());
    }
    if !args.reach {
        return ExitCode::SUCCESS;
    }
    match reach(&args.file) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(code)) => ExitCode::from(code.exit()),
        Err(fault) => super::fail(&fault),
    }
}

/// Asks for the session and the data channels of each route, and prints the answers. Returns the
/// exit code of the first failure.
fn reach(file: &Path) -> Result<Option<Code>, Fault> {
    let log = Log::new(|_, _| {});
    let gateway = Gateway::start(load(file)?.outwards(), provider::of_channel, log)
        .map_err(|error| Fault::new(Code::Other, error.to_string()))?;
    let mut worst = None;
    for route in gateway.reach(REACH) {
        output::gateway_reach(file, &route);
        let failed = route
            .channels
            .into_iter()
            .find_map(|(_, opened)| opened.err());
        let code = route.hops.err().or(failed).map(|why| match why.cause {
            Cause::Trust => Code::NotAuthenticated,
            _ => Code::Unreachable,
        });
        worst = worst.or(code);
    }
    Ok(worst)
}

/// Reads a configuration that a gateway can be started with.
fn load(path: &Path) -> Result<Config, Fault> {
    Config::load_usable(path).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        let hint = format!("haul gateway check {}", path.display());
        Fault::new(Code::Usage, lines.join("; ")).hint(hint)
    })
}

/// What a signal asks for.
enum Wish {
    Reload,
    Stop,
}

/// Runs until a signal ends it.
fn try_run(args: &args::GatewayRun) -> Result<(), Fault> {
    let config = load(&args.config)?;
    let name = config.name.clone();
    // A sandbox may forbid it: the limit is then unchanged.
    let sockets = haul_gateway::raise_open_files();
    // Before any other thread, so that no signal is lost.
    let wishes = wishes()
        .map_err(|error| Fault::new(Code::Other, format!("cannot take signals: {error}")))?;
    let least = if args.quiet {
        Level::Error
    } else {
        Level::Info
    };
    let log = Log::new(move |level, line| {
        if level <= least {
            print(&format!("{}{line}", prefix(level)));
        }
    });
    let mut gateway = Gateway::start(config, provider::of_channel, log)
        .map_err(|error| Fault::new(Code::Other, error.to_string()))?;
    if !args.quiet {
        introduce(&name, &gateway, sockets.ok().flatten());
    }
    tell_manager(&[NotifyState::Ready]);
    serve(&mut gateway, &args.config, &wishes);
    finish(gateway, Duration::from_secs(args.patience));
    Ok(())
}

/// Returns what signals ask for, in order. A second request to stop ends the process at once.
fn wishes() -> std::io::Result<Receiver<Wish>> {
    // SIGHUP asks for a reload, also where it was ignored at the start.
    let mut signals = Signals::new([vec![SIGHUP], not_ignored(&[SIGINT, SIGTERM])].concat())?;
    let (sender, wishes) = channel();
    std::thread::spawn(move || {
        let mut is_stopping = false;
        for signal in signals.forever() {
            let wish = match signal {
                SIGHUP => Wish::Reload,
                _ if is_stopping => std::process::exit(INTERRUPTED),
                _ => Wish::Stop,
            };
            is_stopping |= matches!(wish, Wish::Stop);
            // The receiver is gone once the gateway ends.
            let _ = sender.send(wish);
        }
    });
    Ok(wishes)
}

/// Serves until a signal asks to stop.
fn serve(gateway: &mut Gateway, config: &Path, wishes: &Receiver<Wish>) {
    loop {
        match wishes.recv_timeout(look_after()) {
            Ok(Wish::Reload) => reload(gateway, config),
            Ok(Wish::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => look(gateway),
        }
    }
}

fn reload(gateway: &mut Gateway, config: &Path) {
    let since = NotifyState::monotonic_usec_now();
    tell_manager(
        &[NotifyState::Reloading]
            .into_iter()
            .chain(since)
            .collect::<Vec<_>>(),
    );
    // The log states what is wrong, and the gateway continues unchanged.
    let _ = gateway.reload(config);
    tell_manager(&[NotifyState::Ready]);
}

fn finish(mut gateway: Gateway, patience: Duration) {
    tell_manager(&[NotifyState::Stopping]);
    let seconds = patience.as_secs();
    print(&format!(
        "haul gateway: draining connections, for {seconds} s at most"
    ));
    gateway.begin_drain();
    let mut left = patience;
    loop {
        let slice = left.min(look_after());
        if gateway.wait(slice) {
            return;
        }
        left -= slice;
        if left.is_zero() {
            break;
        }
        look(&gateway);
    }
    print("haul gateway: some connections did not finish and are reset");
}

/// Returns the time until the next look: half of the watchdog's interval at most.
fn look_after() -> Duration {
    sd_notify::watchdog_enabled().map_or(LOOK, |interval| LOOK.min(interval / 2))
}

/// Logs repetitions, and tells the watchdog that the gateway is alive, if it is.
fn look(gateway: &Gateway) {
    gateway.flush_log();
    if gateway.is_alive() {
        tell_manager(&[NotifyState::Watchdog]);
    }
}

/// Notifies the service manager, if there is one.
fn tell_manager(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        print(&format!(
            "haul gateway: warning: cannot notify the service manager: {error}"
        ));
    }
}

fn introduce(name: &str, gateway: &Gateway, sockets: Option<u64>) {
    let mib = gateway.memory_left() >> 20;
    print(&format!("haul gateway: {name}, {mib} MiB for slabs"));
    for line in gateway.memory_plan().lines() {
        print(&format!("haul gateway: {line}"));
    }
    if let Some(sockets) = sockets {
        print(&format!(
            "haul gateway: at most {sockets} sockets and files, one for each connection"
        ));
    }
    if let Some(listen) = gateway.listen_addr() {
        print(&format!("haul gateway: sessions at {listen}"));
    }
    for listener in gateway.listener_addrs() {
        print(&format!("haul gateway: listener at {listener}"));
    }
    if let Some(admin) = gateway.admin_addr() {
        print(&format!("haul gateway: page at http://{admin}/"));
    }
}

/// Prints a line of the log, with the date.
fn print(line: &str) {
    output::log_line(&format!("{} {line}", date::now()));
}

/// Returns the prefix of a line: the program, and its level if it is above normal.
const fn prefix(level: Level) -> &'static str {
    match level {
        Level::Error => "haul gateway: error: ",
        Level::Warning => "haul gateway: warning: ",
        Level::Info | Level::Debug => "haul gateway: ",
    }
}
