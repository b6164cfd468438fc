//! Benchmarks of the RDMA verbs, as perftest's users know them, over any provider of `haul-verbs`.
//!
//! A client tells a server over a TCP connection what is to be measured; queue pairs are connected beside it; then both
//! ends take one message size after another and tell each other what that cost them (docs/bench-rdma.md).
//!
//! Map: [`client`], [`server`] the doors · [`plan`] what is measured · [`report`] figures · `control` the conversation ·
//! `session` one size after another · `end` device, memory, queue pairs · `flow` bandwidth · `volley` bandwidth of what may be lost · `pingpong` latency ·
//! `pattern` bytes that are checked · `disk` files · `memory` what idle queue pairs take · `tag` numbers of work requests.
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
mod end;
mod flow;
mod memory;
mod pattern;
mod pingpong;
pub mod plan;
pub mod report;
pub mod server;
mod session;
mod tag;
mod volley;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

pub use plan::{Op, Plan, Service, Test};

/// The port that `haul bench rdma serve` listens on, unless told otherwise.
pub const DEFAULT_PORT: u16 = 4726;
