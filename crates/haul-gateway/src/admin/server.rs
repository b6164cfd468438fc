//! The administration server of a gateway: which path has which answer.

use std::sync::Arc;

use haul_admin::http::{Request, Response};
use haul_admin::openmetrics;
use haul_admin::server::Admin;

use super::snapshot::Snapshots;
use crate::config;
use crate::log::Level;
use crate::shared::Shared;

/// Opens the server. It has no authentication, so it listens on loopback unless the operator allows
/// more.
///
/// # Errors
/// States in one line that the address is in use, or is not loopback without `allow_remote`.
pub(crate) fn open(shared: &Arc<Shared>, config: &config::Admin) -> Result<Admin, String> {
    let listen = config.listen;
    if !listen.ip().is_loopback() && !config.allow_remote {
        return Err(format!(
            "[admin] listen = \"{listen}\" would show this gateway's traffic to everybody who reaches it, without authentication; set \
             allow_remote = true if that is intended"
        ));
    }
    let mut snapshots = Snapshots::new(shared);
    let shared = Arc::clone(shared);
    Admin::open(
        listen,
        &config.names,
        Box::new(move |request| answer(&mut snapshots, request)),
        Box::new(move |error| {
            let text = format!("the administration server has stopped: {error}");
            shared.log(Level::Error, text);
        }),
    )
    .map_err(|error| format!("cannot listen at {listen}: {error}"))
}

fn answer(snapshots: &mut Snapshots, request: &Request) -> Response {
    match request.path.as_str() {
        "/" => page(),
        "/icon.svg" => Response::new("image/svg+xml", ICON),
        "/api/status" => snapshots.take().json(),
        "/metrics" => openmetrics::response(Box::new(snapshots.take())),
        _ => Response::refusal(404, "not found; try /, /api/status or /metrics"),
    }
}

const ICON: &str = include_str!("icon.svg");

fn page() -> Response {
    let Ok(nonce) = haul_io::random::bytes::<16>() else {
        return Response::refusal(503, "the system has no random numbers");
    };
    Response::page(include_str!("page.html"), &crate::host::hex(&nonce))
}
