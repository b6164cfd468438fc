//! Data connections of a session: they carry the transfer space from one end to the other.
//!
//! The client opens the channel in both directions, because servers are easier to reach than
//! clients. The ticket in `OpenChannel` binds it to the session. Opening runs beside the control
//! handshake, so it costs no round trip of its own.

pub(crate) mod chunk;
mod opening;
mod sealed;
mod setup;
pub(crate) mod tcp;
pub(crate) mod udt;

pub(crate) use opening::{Acceptors, Opening};
pub use setup::{
    Channel, ChannelError, ChannelKind, ChannelStats, RATE_BPS_MIN, STREAMS_MAX, Setup, Ticket,
};
