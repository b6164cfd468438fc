//! `haul serve`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use haul::fault::{Code, Fault};
use haul::report::count_of;
use haul::server::{Config, EXPOSURE, Log, Root, Server};
use haul_control::audit::{Audit, Entry};
use haul_control::server::{self as control, Service};
use sd_notify::NotifyState;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::listen::Listen;
use super::{fail, metrics};
use crate::args::Serve;
use crate::interrupt::not_ignored;
use crate::output::{note, print_line};
use crate::trust::ServerFiles;

/// Schema of an entry of the audit.
const AUDIT_SCHEMA: &str = "haul.audit/1";
/// How often a draining server examines whether sessions run.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until it is ended.
pub(crate) fn run(args: Serve) -> ExitCode {
    match bind(&args).and_then(|server| serve(&args, server)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn serve(args: &Serve, server: Server) -> Result<(), Fault> {
    // Until the server ends.
    let _metrics = match args.metrics {
        Some(address) => Some(metrics::open(address, &args.metrics_name, &server)?),
        None => None,
    };
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        note(&format!(
            "warning: cannot notify the service manager: {error}"
        ));
    }
    server.run()
}

fn bind(args: &Serve) -> Result<Server, Fault> {
    let files = ServerFiles::open(&args.trust)?;
    let is_exposed = !files.authenticates();
    let listen = Listen::parse(
        &args.listen,
        args.port,
        args.trust.allow_insecure || !is_exposed,
        is_exposed.then_some(EXPOSURE),
    )?;
    let log = log(args.quiet);
    let audit = args.log_json.then(|| Arc::new(print_entry) as Audit);
    let bench: Arc<dyn Service> = super::rdma::service(Arc::clone(&log), audit.clone());
    let config = Config {
        read_only: args.read_only,
        sessions_max: args.max_sessions,
        services: vec![bench],
        audit,
        ..Config::new(Root::Directory(args.dir.clone()), files.config()?)
    };
    let server = listen.bind(|addresses| {
        let config = Config {
            listen: addresses.to_vec(),
            ..config.clone()
        };
        Server::bind(&config, Arc::clone(&log))
    })?;
    let addresses = server
        .addresses()
        .map_err(|error| Fault::new(Code::Other, format!("cannot tell the addresses: {error}")))?;
    let dir = haul::printable(args.dir.as_os_str().as_encoded_bytes());
    let key = files.public();
    // Who reads the next line may send a signal.
    watch(files, Arc::clone(server.port()), args.patience)?;
    note(&format!("serving '{dir}' on {}", listen.shown(&addresses)));
    if let Some(key) = key {
        note(&format!(
            "the server's key is {key} ({})",
            key.fingerprint()
        ));
    }
    Ok(server)
}

/// From now on SIGHUP reads the authorised keys again, and the first SIGTERM drains.
fn watch(
    files: ServerFiles,
    server: Arc<control::Server>,
    patience: Duration,
) -> Result<(), Fault> {
    let failed =
        |error: std::io::Error| Fault::new(Code::Other, format!("cannot take signals: {error}"));
    let signals = not_ignored(&[SIGHUP, SIGTERM]);
    let mut taken = Signals::new(&signals).map_err(failed)?;
    let handle = move || {
        let mut is_draining = false;
        for signal in taken.forever() {
            if signal == SIGHUP {
                reload(&files, &server);
            } else if is_draining || server.sessions() == 0 {
                end();
            } else {
                is_draining = true;
                drain(&server, patience);
            }
        }
    };
    std::thread::Builder::new()
        .name("haul-signals".into())
        .spawn(handle)
        .map(drop)
        .map_err(failed)
}

fn reload(files: &ServerFiles, server: &control::Server) {
    match files.config() {
        Ok(config) => {
            let ended = server.reconfigure(config);
            note(&format!(
                "read the authorised keys again; sessions ended: {ended}"
            ));
        }
        Err(fault) => note(&format!("keeps the authorised keys that it has: {fault}")),
    }
}

/// Refuses new clients, and ends the process when no session runs or the time is over.
fn drain(server: &Arc<control::Server>, patience: Duration) {
    server.drain();
    let sessions = count_of(server.sessions() as u64, "session runs", "sessions run");
    note(&format!(
        "draining: {sessions}; a second SIGTERM ends what runs"
    ));
    let server = Arc::clone(server);
    let wait = move || {
        let deadline = Instant::now() + patience;
        while server.sessions() > 0 && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        end();
    };
    // Without a thread for it, the second signal ends the process.
    let _ = std::thread::Builder::new()
        .name("haul-drain".into())
        .spawn(wait);
}

/// Ends the process as SIGTERM does by default.
fn end() {
    // It fails only for signals that have no default.
    let _ = emulate_default_handler(SIGTERM);
}

pub(super) fn log(quiet: bool) -> Log {
    if quiet {
        Arc::new(|_| {})
    } else {
        Arc::new(note)
    }
}

fn print_entry(entry: &Entry<'_>) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    print_line(&json!({
        "schema": AUDIT_SCHEMA,
        "time_unix_ms": now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
        "identity": entry.identity,
        "address": entry.address,
        "operation": entry.operation,
        "path": entry.path,
        "other_paths": entry.other_paths,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
        "ok": entry.fault.is_none(),
        "error": entry.fault.map(|fault| json!({
            "code": fault.code.name(), "text": fault.text, "hint": fault.hint,
        })),
    }));
}
