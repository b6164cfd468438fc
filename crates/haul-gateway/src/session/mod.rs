//! Sessions, each on a thread of its own that runs to completion: sockets, memory and data channels
//! around the state machines of `haul-xsp`.
//!
//! Map: `worker` the thread · `side` one end of one segment · `edges` applications' connections ·
//! `attempts` which data channels are tried · `shape` sizes and rates of a session · `dial` control
//! connections to the next hop · `dispatch` which session takes a connection · `circuit` a path
//! that a session asks of the network · `ingest` how fast slabs can be filled, without channels.

mod attempts;
mod circuit;
mod dial;
mod dispatch;
mod edges;
mod ingest;
mod shape;
mod side;
mod worker;

pub(crate) use dispatch::{dispatch, open_route, open_session};
pub use ingest::{Filler, Taken};
pub(crate) use shape::Shape;
pub(crate) use worker::Worker;
