//! What operators see of a server: an HTTP server for its page and metrics, and metrics as
//! OpenMetrics text. The crate does not know what is served.
//!
//! Map: [`server`] the thread and its connections · [`http`] requests and responses ·
//! [`openmetrics`] families of metrics.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod http;
pub mod openmetrics;
pub mod server;

/// Parses a request, for the fuzz target.
#[cfg(fuzzing)]
pub fn judge(bytes: &[u8]) {
    let _ = http::read(bytes, &http::Guard::new(&[]));
}
