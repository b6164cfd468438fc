//! Connections of queue pairs: a socket and the protocol on it.
//!
//! Map: `rnic_link` what either kind does · `tcp`, `udt` the two kinds · `env` what they work with
//! · `batch` FPDUs that leave together over TCP · `announced` messages that UDT is about to send.

mod announced;
mod batch;
mod env;
mod rnic_link;
mod tcp;
mod udt;

pub(super) use env::{Env, Scratch, Watched};
pub(super) use rnic_link::RnicLink;
pub(super) use tcp::TcpLink;
pub(super) use udt::{UdtLink, UdtTransport, options as udt_options};
