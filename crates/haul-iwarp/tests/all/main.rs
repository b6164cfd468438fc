//! Every integration test of this crate in one program, which is linked once.

mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod datagram_read;
mod datagram_record;
mod datagram_send;
mod datagram_service;
mod datagram_simulation;
mod datagram_wire;
mod message;
mod rd;
mod rd_goodput;
mod rd_simulation;
mod simulation;
mod spec;
mod startup;
mod stream;
mod tshark;
mod vectors;
mod wire;
