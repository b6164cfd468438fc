//! Datagrams: RDMA without connections (docs/protocol/datagram.md).
//!
//! [`Ud`] is one queue pair. The engine finds it by [`wire::Shim::dst_qpn`] and then, for each
//! datagram:
//!
//! ```text
//!   Datagram::open(bytes)                        CRC and form          Err: Ud::handle_reject
//!   Ud::handle_datagram(now, memory, from, &d)   -> Action
//!     Drop(reason)    counted; nothing else to do
//!     Done            poll_control, poll_event
//!     Place(p)        copy the segment's payload to p.target, then
//!                     Ud::handle_placed(now, memory, true); false if the memory was gone after all
//! ```
//! Most segments of a long Write-Record differ in their numbers only. [`Ud::handle_alike`], between
//! [`wire::Datagram::check`] and [`wire::Datagram::parse`], accepts such a segment by comparing it
//! with the expected header; [`Ud::poll_alike`], after [`Ud::poll_transmit`], derives it from the
//! previous one. Both are optional: the result is the same without them.
//!
//! To send: [`Ud::post_send`], then [`Ud::poll_transmit`] until it has nothing: header bytes in the
//! caller's array, the payload by name, the CRC is the caller's. Datagrams of one message have one
//! length but for the last ([`Transmit::full_len`]). After that [`Ud::poll_control`], which returns
//! whole datagrams, [`Ud::poll_event`] and [`Ud::poll_timeout`], in this order.
//!
//! No datagram ends the queue pair, whatever its content.

mod access;
mod config;
mod control;
mod delivered;
mod lanes;
mod paths;
mod ranges;
pub mod rd;
mod read;
mod reassembly;
mod record;
mod search;
mod sources;
mod tx;
mod ud;
mod validate;
pub mod wire;
mod work;

pub use crate::address::{Destination, Source};
pub use config::{DATAGRAM_MIN, UdConfig};
pub use ud::Ud;
pub use validate::Cookies;
pub use work::{
    Action, Chunk, Counters, Reason, Record, RecordMode, RecordStatus, Transmit, UdCompletion,
    UdEvent, UdReceived, UdSendWr, UdStatus, ValidityMap,
};
