//! The path between two hosts, measured by every engine there is, in one plan and one record.
//!
//! Map: [`plan`] the plan of a measurement · [`measure`] the client's entry point · [`record`]
//! figures · [`document`] series of measurements, in JSON · [`show`] the same as text, HTML and CSV
//! · [`verdict`] the limit of a run · `session` the work of both ends · `engine` the interface of
//! engines, `failure` why a run ended early, `patience` how long a server waits for streams; `tcp`,
//! `udp`, `udt` · `store` sources and sinks · `tally`, `meter`, [`account`] counters.

pub mod account;
mod client;
pub mod compare;
pub mod document;
mod engine;
mod failure;
pub mod meter;
mod patience;
pub mod plan;
pub mod record;
pub(crate) mod server;
mod session;
pub mod show;
mod store;
pub(crate) mod tally;
mod tcp;
mod udp;
mod udt;
pub mod verdict;

pub use client::{Config, Devices, Found, measure};
pub use plan::{Engine, PathPlan};
pub use session::Progress;
pub use store::Files;
