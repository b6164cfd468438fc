//! Data channels, which move the slabs of one segment.
//!
//! A [`Fabric`] has channels of one kind. It opens memory to the peer, moves the data that the
//! session requests, and reports the outcome.
//!
//! Map: `fabric` the trait and its vocabulary · `network` the kinds that this gateway has · `open`
//! makes the fabric of a kind · `proto` kinds on the wire · `connected` reliable connections of
//! RDMA devices, with `work` their reads and writes · `streams` TCP connections, with `frame`
//! their frames, `ledger` the requests of both ends, `flow` the directions of a stream, `tcp` its
//! socket.

mod connected;
mod fabric;
mod flow;
mod frame;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod ledger;
mod network;
mod open;
mod proto;
mod streams;
mod tcp;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use fabric::{
    Accepted, BURST_MIN, DataConnection, Fabric, Guard, Lost, News, READS_MAX, Wanted, burst, limit,
};
pub(crate) use frame::GET_BYTES_MAX;
pub(crate) use network::{Means, Network};
pub(crate) use open::create_fabric;
pub(crate) use proto::{kind, proto};
pub(crate) use tcp::{UNSENT_BYTES, prepare};
