//! A seeded world of hosts and links on virtual time, for tests of the protocol cores.
//!
//! Time jumps from event to event, so ten seconds of a gigabit take about one second of processor,
//! and a seed repeats a run to the last packet. The links are those of the lab's emulator
//! (`haul-netem`); the hosts check UDP's checksum over real bytes, as kernels do, and keep what
//! arrives to compare it with what was sent.
//!
//! Map: [`World`] events and links · [`Cell`] one stream over one path, measured · [`Flow`] what a
//! connection carries · [`Host`] one connection with its send and receive memory · [`pattern`] the
//! payload · [`scenario`] ready-made paths and random ones · `sealing` sealed datagrams.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cell;
mod flow;
mod host;
pub mod pattern;
pub mod scenario;
mod sealing;
mod world;

pub use cell::{Cell, Figures};
pub use flow::{Flow, MessageOut, Stalls};
pub use host::{Host, ROOM_BYTES, Rx};
pub use world::{Attacks, Damage, Outcome, Path, World};
