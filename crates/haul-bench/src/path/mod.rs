//! The path between two hosts, measured by every engine there is, in one plan and one record.
//!
//! Map: [`plan`] what is measured · [`measure`] the client's door · [`record`] figures ·
//! [`document`] runs of one occasion, in JSON · [`show`] the same as text, HTML and CSV ·
//! [`verdict`] what limits a run · `session` what both ends do · `engine` what every engine does,
//! `failure` why it ended early; `tcp`, `udp`, `udt` · `store` where bytes come from and go ·
//! `tally`, `meter`, [`account`] what is counted.

pub mod account;
mod client;
pub mod compare;
pub mod document;
mod engine;
mod failure;
pub mod meter;
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
pub use plan::{Engine, Plan};
pub use session::Progress;
pub use store::Files;
