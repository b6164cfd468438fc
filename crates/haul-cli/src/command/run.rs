//! `haul run`: starts a program with the socket interface before it, answers for it, and reports.

#![expect(clippy::disallowed_types, reason = "haul-io has made the stream")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use haul::fault::plain;
use haul_gateway::{Caller, Cause, Refusal};
use haul_socket::agent::Standing;
use haul_socket::run::{Call, Calls, Config, Failure, NotRun, Run, Signals, Supervision};
use haul_socket::table::Options;

use super::through::Through;
use crate::args;
use crate::output;

/// The name of the library that the dynamic linker puts before the program's own.
const LIBRARY: &str = "libhaul_preload.so";
/// How long the program's start waits until somebody answers for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the program's start waits for the session through the gateways.
const SESSION_PATIENCE: Duration = Duration::from_secs(20);
/// How long data in flight may stand still after the application has ended.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// As env(1): the program cannot be started, is not there, or something here failed.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;
const FAILED: u8 = 125;

/// Runs a program. The exit code is the program's, or 128 and the signal that ended it.
pub(crate) fn run(args: args::Run) -> ExitCode {
    match try_run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("haul run: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn try_run(args: &args::Run) -> Result<ExitCode> {
    let library = find_library(args.preload.as_deref())?;
    let goes_through = !args.through.gateway.is_empty();
    let options = Options {
        datagram: !args.stream && !goes_through,
        stream: !args.datagram && !args.write_record && !goes_through,
        write_record: args.write_record,
        gateway: goes_through,
    };
    let config = Config {
        port: args.port,
        options,
        table: None,
    };
    let report_file = open_report(args)?;
    // Before any thread: all of them leave signals to this one.
    let signals = Signals::block().context("cannot take signals")?;
    let run = Run::start(&config).context("cannot join the table of this user's haul runs")?;
    run.wait_ready(PATIENCE);
    let way = match Way::open(args, &run, &signals) {
        Ok(way) => way,
        Err(Unopened::Interrupted(signal)) => return Ok(ExitCode::from(of_signal(signal))),
        Err(Unopened::Failed(error)) => return Err(error),
    };
    if run.standing() == Standing::PortTaken {
        eprintln!(
            "haul run: UDP port {} is taken by another user or program, so nothing will be carried (--port)",
            args.port
        );
    }
    let calls = way.as_ref().map(|way| &way.calls);
    let status = start(
        args,
        &run,
        &library,
        &signals,
        calls.filter(|_| !args.allow_direct),
    );
    let interrupted = way.and_then(|way| way.finish(&signals));
    if args.report.is_some() || args.json {
        report(args.json, report_file, &run).context("cannot write the report")?;
    }
    run.end().context("the agent failed")?;
    match interrupted {
        Some(signal) => Ok(ExitCode::from(of_signal(signal))),
        None => status,
    }
}

/// The way through gateways, and the programs' calls that take it.
struct Way {
    through: Arc<Through>,
    calls: Calls,
}

/// Why there is no way.
enum Unopened {
    /// This signal asked to end.
    Interrupted(i32),
    Failed(anyhow::Error),
}

impl Way {
    /// None where the command line names no gateway.
    fn open(args: &args::Run, run: &Run, signals: &Signals) -> Result<Option<Self>, Unopened> {
        let mut signal = None;
        let goes_on = || {
            signal = signals.taken();
            signal.is_none()
        };
        Self::try_open(args, run, goes_on).map_err(|error| match signal {
            Some(signal) => Unopened::Interrupted(signal),
            None => Unopened::Failed(error),
        })
    }

    fn try_open(
        args: &args::Run,
        run: &Run,
        goes_on: impl FnMut() -> bool,
    ) -> Result<Option<Self>> {
        let say = |line: &str| eprintln!("haul run: warning: {line}");
        let through = Through::start(&args.through, SESSION_PATIENCE, goes_on, say);
        let through = through.map_err(|fault| match fault.hint {
            Some(hint) => anyhow!("{} ({hint})", fault.text),
            None => anyhow!("{}", fault.text),
        })?;
        let Some(through) = through.map(Arc::new) else {
            return Ok(None);
        };
        let own = Arc::clone(&through);
        let calls = run
            .take_calls(move |call| {
                // An address with its port is one.
                if let Ok(to) = call.to().to_string().parse() {
                    own.call(
                        &format!("process {}", call.pid()),
                        &to,
                        Box::new(Program(call)),
                    );
                }
            })
            .context("cannot take the program's connections")?;
        Ok(Some(Self { through, calls }))
    }

    /// What programs have sent arrives. The signal that asked to end before it had.
    fn finish(self, signals: &Signals) -> Option<i32> {
        let Self { through, calls } = self;
        drop(calls);
        // What ended the program came to this process, too, and is over.
        while signals.taken().is_some() {}
        let mut signal = None;
        let goes_on = || {
            signal = signals.taken();
            signal.is_none()
        };
        let is_done =
            Arc::into_inner(through).is_none_or(|through| through.finish(LAST_PATIENCE, goes_on));
        if !is_done {
            eprintln!("haul run: some connections did not end and are reset");
        }
        signal
    }
}

/// A program that waits in connect(2), or for it.
struct Program(Call);

impl Caller for Program {
    fn accepted(self: Box<Self>) -> io::Result<TcpStream> {
        self.0.accept()
    }

    fn refused(self: Box<Self>, why: &Refusal) {
        self.0.refuse(match why.cause {
            Cause::Gateway | Cause::Channel | Cause::Trust => Failure::NoWay,
            Cause::Forbidden => Failure::Forbidden,
            Cause::Refused => Failure::Refused,
            Cause::Unreachable | Cause::Unresolved => Failure::Unreachable,
            Cause::TimedOut => Failure::TimedOut,
        });
    }
}

/// Runs the program; through `calls` go also connections of programs that do not load the library.
fn start(
    args: &args::Run,
    run: &Run,
    library: &Path,
    signals: &Signals,
    calls: Option<&Calls>,
) -> Result<ExitCode> {
    let Some((program, arguments)) = args.program.split_first() else {
        bail!("no program");
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(run.environment());
    command.env("LD_PRELOAD", preloaded(library));
    let supervision = calls.map(|calls| Supervision {
        calls,
        say: Box::new(|line| eprintln!("haul run: warning: {line}")),
    });
    match signals.run(&mut command, supervision) {
        Ok(status) => Ok(ExitCode::from(code(status))),
        Err(NotRun::Supervision(error)) => bail!(
            "cannot carry connections of applications that do not load the library: the kernel refuses a seccomp \
             filter: {error}; start haul run outside the container or the other haul run that forbids it, or accept \
             with --allow-direct that such connections go past the gateway"
        ),
        Err(NotRun::Program(error)) => {
            eprintln!("haul run: {}: {error}", program.to_string_lossy());
            let code = match error.kind() {
                ErrorKind::NotFound => NOT_FOUND,
                _ => CANNOT_START,
            };
            Ok(ExitCode::from(code))
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(signal);
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(FAILED)
}

/// The exit code of who was ended by a signal.
fn of_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(FAILED)
}

/// The library, then what is preloaded already.
fn preloaded(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Beside this binary, where it is installed, or where the build leaves it.
fn find_library(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return given.canonicalize().map_err(|error| {
            anyhow!(
                "cannot preload '{}': {}; check --preload and HAUL_PRELOAD",
                given.display(),
                plain(&error)
            )
        });
    }
    let own = std::env::current_exe().context("cannot find this program itself")?;
    let folder = own.parent().unwrap_or_else(|| Path::new("/"));
    let places = ["", "../lib/haul", "../lib", "../c"];
    let found = places
        .iter()
        .find_map(|place| folder.join(place).join(LIBRARY).canonicalize().ok());
    found.with_context(|| {
        format!(
            "cannot find {LIBRARY}, neither beside {} nor in ../lib/haul or ../lib: install all files of the \
             package, or name the library with --preload or HAUL_PRELOAD",
            own.display()
        )
    })
}

/// Opens the file of the report, if it is to be one: before the application starts, so that it does
/// not run in vain.
fn open_report(args: &args::Run) -> Result<Option<File>> {
    let Some(path) = args.report.iter().flatten().next() else {
        return Ok(None);
    };
    let file = File::create(path);
    file.map(Some)
        .with_context(|| format!("cannot write the report to {}", path.display()))
}

fn report(is_json: bool, file: Option<File>, run: &Run) -> io::Result<()> {
    let report = run.report();
    let text = if is_json {
        output::run::json(&report)
    } else {
        output::run::table(&report)
    };
    match file {
        Some(mut file) => file.write_all(text.as_bytes()),
        None => io::stderr().write_all(text.as_bytes()),
    }
}
