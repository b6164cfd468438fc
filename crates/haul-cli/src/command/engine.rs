//! `haul engine`.

use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use haul::fault::{Code, Fault, plain};
use haul_admin::http::{Request, Response};
use haul_admin::openmetrics::{self, Family, Labels, info};
use haul_admin::server::Admin;
use haul_engine::{Counters, Options, Server, default_path};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::fail;
use crate::args::engine::{Engine, EngineRun};
use crate::interrupt::not_ignored;
use crate::output::note;

/// Runs an engine until a signal ends it.
pub(crate) fn run(engine: &Engine) -> ExitCode {
    let Engine::Run(args) = engine;
    match try_run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn try_run(args: &EngineRun) -> Result<(), Fault> {
    let mut options = Options::default();
    options.device.engine_cpus = args.cpus.clone();
    options.all_users = args.all_users;
    options.clients = args.clients as usize;
    options.user_clients = args.user_clients as usize;
    options.client_memory = args.client_memory;
    options.check().map_err(|error| {
        Fault::new(Code::Usage, format!("cannot run an engine: {error}")).hint("see --cpus")
    })?;
    let (server, place) = bind(args, options)?;
    let counters = server.counters();
    // Until the engine ends.
    let _metrics = match args.metrics {
        Some(address) => Some(open(address, &args.metrics_name, &counters)?),
        None => None,
    };
    let stop = server.stopper();
    let failed =
        |error: std::io::Error| Fault::new(Code::Other, format!("cannot take signals: {error}"));
    let mut signals = Signals::new(not_ignored(&[SIGHUP, SIGINT, SIGTERM])).map_err(failed)?;
    std::thread::Builder::new()
        .name("haul-signals".into())
        .spawn(move || {
            if signals.forever().next().is_some() {
                stop.stop();
            }
        })
        .map_err(failed)?;
    note(&format!("engine at {place}"));
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        note(&format!(
            "warning: cannot notify the service manager: {error}"
        ));
    }
    let quiet = args.quiet;
    server
        .run(
            &(Arc::new(move |text: &str| {
                if !quiet {
                    note(text);
                }
            }) as _),
        )
        .map_err(|error| Fault::new(Code::Other, format!("the engine ends: {error}")))
}

/// Listens; where, in words.
fn bind(args: &EngineRun, options: Options) -> Result<(Server, String), Fault> {
    let given = args.listen.as_deref();
    if given == Some(Path::new("-")) {
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let server = socket.and_then(|socket| Server::new(socket, options));
        let server = server.map_err(|error| {
            Fault::new(
                Code::Usage,
                format!("stdin is no socket to listen at: {error}"),
            )
            .hint("--listen - is for services that systemd starts by a socket")
        })?;
        return Ok((server, "the socket on stdin".to_owned()));
    }
    let path = given.map_or_else(default_path, PathBuf::from);
    let shown = haul::printable(path.as_os_str().as_encoded_bytes());
    let refused = |error: std::io::Error| {
        let text = format!("cannot listen at '{shown}': {}", plain(&error));
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => "another engine runs there",
            std::io::ErrorKind::AlreadyExists => "a file is there that is no socket",
            _ => "name a socket that this user may make, with --listen PATH",
        };
        Fault::new(Code::Other, text).hint(hint)
    };
    if let Some(folder) = path.parent().filter(|_| given.is_none()) {
        let mode = if args.all_users { 0o755 } else { 0o700 };
        let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
        made.map_err(refused)?;
    }
    let server = Server::bind(&path, options).map_err(refused)?;
    // The engine looks at who comes; without --all-users others need not come that far.
    let mode = if args.all_users { 0o666 } else { 0o600 };
    fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(refused)?;
    Ok((server, shown.clone()))
}

/// Starts to serve metrics.
fn open(address: SocketAddr, names: &[String], counters: &Arc<Counters>) -> Result<Admin, Fault> {
    let (counters, begun) = (Arc::clone(counters), Instant::now());
    let snapshot = move || Snapshot {
        counters: Arc::clone(&counters),
        uptime_s: begun.elapsed().as_secs_f64(),
    };
    let answer = move |request: &Request| match request.path.as_str() {
        "/metrics" => openmetrics::response(Box::new(snapshot())),
        _ => Response::refusal(404, "not found; try /metrics"),
    };
    let admin = Admin::open(
        address,
        names,
        Box::new(answer),
        Box::new(|error| note(&format!("metrics are served no more: {}", plain(error)))),
    );
    let admin = admin.map_err(|error| {
        let text = format!("cannot serve metrics at {address}: {}", plain(&error));
        Fault::new(Code::Other, text).hint("choose another address with --metrics")
    })?;
    note(&format!("metrics at http://{}/metrics", admin.local_addr()));
    Ok(admin)
}

/// The state of an engine.
#[derive(Debug)]
struct Snapshot {
    counters: Arc<Counters>,
    uptime_s: f64,
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
fn families() -> [Family<Snapshot>; 7] {
    type Of = Family<Snapshot>;
    macro_rules! count {
        ($name:ident) => {
            |it: &Snapshot| it.counters.$name.load(Ordering::Relaxed) as f64
        };
    }
    [
        Of::gauge("engine_uptime", "Time since the start", |it| it.uptime_s).seconds(),
        Of::gauge(
            "engine_clients_active",
            "Clients at present",
            count!(clients),
        ),
        Of::counter("engine_clients", "Clients accepted", count!(accepted)),
        Of::counter("engine_clients_refused", "Clients refused", count!(refused)),
        Of::counter(
            "engine_clients_ended",
            "Clients whose session ended because of what they did",
            count!(ended),
        ),
        Of::counter("engine_requests", "Work requests taken", count!(requests)),
        Of::counter(
            "engine_completions",
            "Completions given",
            count!(completions),
        ),
    ]
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        info(encoder, "engine", "The engine", &[version])?;
        let none = Labels::new();
        for family in families() {
            family.encode(encoder, [(&none, self)])?;
        }
        Ok(())
    }
}
