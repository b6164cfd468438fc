//! Data connections bound to a session: how the bytes of a transfer space get from one end to the
//! other.
//!
//! The client opens a channel, also when it receives, because servers are easier to reach than
//! clients; both ends know it by the token in `OpenChannel`. Opening runs beside the control
//! handshake, so it costs no round trip of its own.

mod opening;
mod setup;
pub(crate) mod tcp;
pub(crate) mod udt;

pub(crate) use opening::{Acceptors, Opening};
pub use setup::{
    Channel, ChannelError, ChannelStats, Kind, RATE_BPS_MIN, STREAMS_MAX, Setup, Token,
};
