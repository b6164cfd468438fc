//! Connections of queue pairs: a socket and the protocol on it.
//!
//! Map: `rnic_link` what either kind does · `tcp`, `udt` the two kinds · `env` what they work with
//! · `batch` FPDUs that leave together over TCP · `announced` messages that UDT is about to send ·
//! `sealed_stream` protects a TCP connection · `plain_peer` answers a peer that does not protect
//! its own.

mod announced;
mod batch;
mod env;
mod plain_peer;
mod rnic_link;
mod sealed_stream;
mod tcp;
mod udt;

pub(super) use env::{Env, Scratch, Watched};
pub(super) use rnic_link::RnicLink;
pub(super) use sealed_stream::SealedStream;
pub(super) use tcp::TcpLink;
pub(super) use udt::{UdtLink, UdtTransport, options as udt_options};
