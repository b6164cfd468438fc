//! The metrics of `haul serve`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use haul::fault::{Code, Fault, plain};
use haul::server::{Counts, Server, Sessions};
use haul_admin::http::{Request, Response};
use haul_admin::openmetrics::{self, Family, Labels, flag, info};
use haul_admin::server::Admin;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::output::{dropped_lines, note};

/// What the metrics give to those who reach them.
const EXPOSURE: &str = "everybody who reaches this address sees how much the server transfers";

/// Starts to serve metrics at `address`, and prints where. They are served until the result is
/// dropped.
pub(crate) fn open(address: SocketAddr, names: &[String], server: &Server) -> Result<Admin, Fault> {
    if !address.ip().is_loopback() {
        note(&format!("warning: metrics at {address}: {EXPOSURE}"));
    }
    let counts = server.counts();
    let port = Arc::clone(server.port());
    let begun = Instant::now();
    let snapshot = move || Snapshot {
        counts: counts(),
        clients: port.sessions(),
        logins_refused: port.failed_logins(),
        lines_dropped: dropped_lines(),
        is_draining: port.is_draining(),
        uptime_s: begun.elapsed().as_secs_f64(),
    };
    let admin = Admin::open(
        address,
        names,
        Box::new(move |request| answer(request, &snapshot)),
        Box::new(|error| note(&format!("metrics are served no more: {}", plain(error)))),
    );
    let admin = admin.map_err(|error| {
        let text = format!("cannot serve metrics at {address}: {}", plain(&error));
        Fault::new(Code::Other, text).hint("choose another address with --metrics")
    })?;
    note(&format!("metrics at {}", url(admin.local_addr())));
    Ok(admin)
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/metrics")
}

fn answer(request: &Request, snapshot: impl Fn() -> Snapshot) -> Response {
    match request.path.as_str() {
        "/metrics" => openmetrics::response(Box::new(snapshot())),
        _ => Response::refusal(404, "not found; try /metrics"),
    }
}

/// The state of a server.
#[derive(Debug)]
struct Snapshot {
    counts: Counts,
    clients: usize,
    logins_refused: u64,
    lines_dropped: u64,
    is_draining: bool,
    uptime_s: f64,
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
fn families() -> [Family<Snapshot>; 12] {
    type Of = Family<Snapshot>;
    [
        Of::gauge("serve_uptime", "Time since the start", |it| it.uptime_s).seconds(),
        Of::gauge("serve_draining", "1 while the server drains", |it| {
            flag(it.is_draining)
        }),
        Of::gauge("serve_clients_active", "Clients at present", |it| {
            it.clients as f64
        }),
        Of::gauge("serve_transfers_active", "Transfers at present", |it| {
            it.counts.active as f64
        }),
        Of::gauge("serve_transfers_limit", "Most transfers at a time", |it| {
            it.counts.limit as f64
        }),
        Of::counter("serve_received", "Payload of files received", |it| {
            it.counts.received_bytes as f64
        })
        .bytes(),
        Of::counter("serve_sent", "Payload of files sent", |it| {
            it.counts.sent_bytes as f64
        })
        .bytes(),
        Of::counter("serve_files_received", "Files received", |it| {
            it.counts.received_files as f64
        }),
        Of::counter("serve_files_sent", "Files sent", |it| {
            it.counts.sent_files as f64
        }),
        Of::counter(
            "serve_transfers_refused",
            "Clients refused because all transfers were taken",
            |it| it.counts.refused as f64,
        ),
        Of::counter("serve_logins_refused", "Logins that failed", |it| {
            it.logins_refused as f64
        }),
        Of::counter(
            "serve_log_lines_dropped",
            "Log lines dropped because stderr was not read",
            |it| it.lines_dropped as f64,
        ),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
fn session_families() -> [Family<Sessions>; 2] {
    type Of = Family<Sessions>;
    [
        Of::counter("serve_sessions", "Sessions ended, by operation", |it| {
            it.ended as f64
        }),
        Of::counter(
            "serve_sessions_failed",
            "Sessions failed, by operation",
            |it| it.failed as f64,
        ),
    ]
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        info(encoder, "serve", "The server", &[version])?;
        let none = Labels::new();
        for family in families() {
            family.encode(encoder, [(&none, self)])?;
        }
        let sessions = self.counts.sessions.iter();
        let sessions: Vec<(Labels, &Sessions)> = sessions
            .map(|(operation, sessions)| (vec![("operation", (*operation).to_owned())], sessions))
            .collect();
        for family in session_families() {
            let samples = sessions
                .iter()
                .map(|(labels, sessions)| (labels, *sessions));
            family.encode(encoder, samples)?;
        }
        Ok(())
    }
}
