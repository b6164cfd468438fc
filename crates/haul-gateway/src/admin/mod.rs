//! The administration server: the live page, its data, the metrics.
//!
//! Map: `server` which path has which answer · `snapshot` the state of the gateway · `metrics` the
//! same as OpenMetrics · `page.html` the page.

mod metrics;
mod server;
mod snapshot;

pub(crate) use server::open;
