//! Sessions, each on a thread of its own that runs to completion: sockets, memory and data channels
//! around the state machines of `haul-xsp`.
//!
//! Map: `worker` the thread · `half` one end of one segment · `fabric` its data channels · `edges`
//! programs' connections · `channel` which data channels are tried · `setup` what a session is to
//! be · `dial` control connections to the next hop · `fill` how fast slabs can be filled, without
//! channels.

mod channel;
mod dial;
mod edges;
#[cfg(not(fuzzing))]
mod fabric;
#[cfg(fuzzing)]
pub(crate) mod fabric;
mod fill;
mod half;
mod setup;
mod worker;

pub(crate) use channel::LANES_MAX;
pub(crate) use fabric::{Accepted, Knock, Pipe, lane_bytes, prepare, udt_options};
pub use fill::{Filler, Taken};
pub(crate) use half::Meter;
pub(crate) use setup::Shape;
pub(crate) use worker::Worker;
