//! The administration server: the live page, its data, the metrics.
//!
//! Map: `server` the thread and its connections · `http` requests and responses · `snapshot` the
//! state of the gateway · `metrics` the same as OpenMetrics · `page.html` the page.

mod http;
mod metrics;
mod server;
mod snapshot;

pub(crate) use server::Admin;
#[cfg(fuzzing)]
pub(crate) use server::judge;
