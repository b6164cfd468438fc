//! Data channels: what moves the slabs of one segment.
//!
//! A [`Fabric`] has channels of one kind. It opens memory to the peer, moves what the session wants
//! moved, and reports the outcome.
//!
//! Map: `fabric` the trait and its vocabulary · `network` the kinds that this gateway has · `open`
//! makes the fabric of a kind · `proto` kinds on the wire · `connected` reliable connections of
//! RDMA devices · `datagram` reliable datagrams of RDMA devices · `work` the reads and writes of
//! both · `streams` byte streams, with `frame` their frames, `ledger` the requests of both ends,
//! `flow` the directions of a stream, `pipe` TCP and UDT.

mod connected;
mod datagram;
mod fabric;
mod flow;
mod frame;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod ledger;
mod network;
mod open;
mod pipe;
mod proto;
mod streams;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use fabric::{
    Accepted, BURST_MIN, DataConnection, Fabric, Guard, Lost, News, READS_MAX, Wanted, burst, limit,
};
pub(crate) use frame::GET_BYTES_MAX;
pub(crate) use network::{Means, Network};
pub(crate) use open::{create_fabric, lane_bytes};
pub(crate) use pipe::{Pipe, UNSENT_BYTES, prepare, udt_options};
pub(crate) use proto::{kind, proto};
