//! The engine: threads that own transports and join the protocol cores to sockets.
//!
//! A connection has a socket of its own and is driven by the thread that uses it: no lock,
//! hand-over or wake-up stands between a packet and its place, and a server's connections share
//! nothing.
//!
//! A program that wants RDMA names this crate alone: [`verbs`] is `haul-verbs`, [`rnic::provider`]
//! the devices. What blocks, and which thread sends and receives, is on the front page of
//! [`verbs`].
//!
//! Map: [`bulk`] what a channel moves · [`udt`] UDT connections over UDP · [`rnic`] RDMA verbs over
//! kernel sockets.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    reason = "the engine is where threads wait"
)]

pub use haul_verbs as verbs;

pub mod bulk;
pub mod rnic;
pub mod udt;

#[cfg(test)]
#[path = "../../../tests/pages/hex.rs"]
mod hex;
