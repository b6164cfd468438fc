//! Connections of queue pairs: a socket and the protocol on it.
//!
//! Map: `tcp`, `udt` the two kinds · `wire` either of them · `env` what they work with · `batch`
//! FPDUs that leave together over TCP.

mod batch;
mod env;
mod tcp;
mod udt;
mod wire;

pub(super) use env::{Env, Scratch};
pub(super) use tcp::{TcpLink, Watched};
pub(super) use udt::{Lower, UdtLink, options as udt_options};
pub(super) use wire::Wire;
