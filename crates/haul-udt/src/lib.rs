//! UDT4-compatible reliable transport over datagrams, as a state machine.
//!
//! No I/O, no clock, no threads, no payload, no cryptography: callers pass `now` and datagrams, of
//! which only headers and control bodies are read; the core answers with placements. See
//! docs/protocol/udt.md for the wire and for what Longhaul ends add.
//!
//! Contract: after every `handle_*` or command on a [`Connection`], drain
//! [`Connection::poll_transmit`] and [`Connection::poll_event`], then ask
//! [`Connection::poll_timeout`], before the next one.
//!
//! Map: [`wire`] bytes to headers · [`Listener`] cookies · `handshake` opening · `send`, `gaps`
//! packets in flight · `recv`, `holes`, `slots` arrived packets · `plain`, `estimate` feedback to
//! plain UDT4 peers · `numbering` of sealed datagrams · [`Connection`] ties them together.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod config;
mod connection;
mod error;
mod estimate;
mod gaps;
mod handshake;
mod holes;
mod joiner;
mod listener;
mod numbering;
mod plain;
mod recv;
mod send;
mod seq;
mod slots;
pub mod wire;

pub use config::{Config, Params, WINDOW_BYTES_MIN};
pub use connection::{Connection, Event, PayloadRange, Stats, Transmit};
pub use error::{Error, Misbehaviour, SendError};
pub use handshake::{Identity, SealContext};
pub use joiner::Joiner;
pub use listener::{Listener, Reaction, Request};
pub use numbering::{Opener, Refused};
pub use recv::{Placement, Received};
pub use send::SendTotals;
pub use seq::Seq;
pub use slots::{Message, Piece};
