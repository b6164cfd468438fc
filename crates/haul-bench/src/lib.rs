//! Benchmarks of a path by every engine there is (docs/bench.md), and of the RDMA verbs, as
//! perftest's users know them, over any provider of `haul-verbs` (docs/bench.md).
//!
//! A client sends a server the plan over a TCP control connection; streams or queue pairs are
//! connected beside it; then both ends measure and exchange their figures.
//!
//! Map: [`path`] one measurement of the path · [`profile`] many measurements of it · [`doctor`] the
//! host · the verbs: [`client`], [`server`] the entry points · [`plan`] plans · [`report`] figures
//! · `control` the control connection · `session` one size after another · `end` device, memory,
//! queue pairs · `flow` bandwidth · `volley` bandwidth of unreliable messages · `pingpong` latency
//! · `pattern` bytes that are checked · `error` faults · `disk` files · `memory` memory of idle
//! queue pairs · `tag` identifiers of work requests.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate opens connections and files and runs on the clock; the cores do not"
)]

pub mod client;
mod control;
mod disk;
pub mod doctor;
mod end;
mod error;
mod flow;
mod memory;
pub mod path;
mod pattern;
mod pingpong;
pub mod plan;
pub mod profile;
pub mod report;
pub mod server;
mod session;
mod tag;
mod volley;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

use path::document::{Document, Kind};

pub use plan::{Op, Plan, Service, Test};

/// Renders a document as one HTML file.
#[must_use]
pub fn html(document: &Document) -> String {
    match document.kind {
        Kind::Run => path::show::page(document),
        Kind::Profile => profile::page::render(document),
    }
}

/// The default port of `haul bench serve`.
pub const DEFAULT_PORT: u16 = 4726;
