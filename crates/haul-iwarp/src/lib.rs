//! iWARP: RDMA over byte streams (MPA, DDP, RDMAP: RFC 5044, 5041, 5040, with 6581 and 7306), over
//! messages and over datagrams, as state machines.
//!
//! No I/O, no clock, no threads, no payload: callers pass `now` and what has arrived; the core
//! reads headers and answers with placements. What is to be sent comes as header bytes and the
//! name of a payload. Memory is behind [`Memory`], which the caller hands in: the core knows tags,
//! bounds and rights, never addresses. See docs/protocol/iwarp.md for the wire.
//!
//! Contract: after every call that takes `&mut`, drain the `poll_*` methods, then ask for the
//! time-out, before the next.
//!
//! Map: [`wire`] bytes to headers · [`StreamConnection`] over TCP · [`MessageConnection`] over
//! messages · [`datagram`] without connections, over UDP · `qp` the queue pair that connections
//! share: requests to segments, checks, completions · [`Memory`], [`Stag`] memory that the caller
//! has registered · [`Crc32c`] the checksum, computed by the holder of the payload · [`Error`],
//! [`TermCode`] who is to blame, and the code on the wire.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
pub mod datagram;
mod error;
mod llp;
mod memory;
mod operation;
mod qp;
mod stag;
pub mod wire;

use haul_cc::{crc, time};

pub use crc::{CRC_LEN, Crc32c};
pub use error::{Error, Incompatible, PostError};
pub use llp::message::{Arrived, Datagram, MessageConfig, MessageConnection, Repeat};
pub use llp::stream::{
    Fpdu, Next, Piece, Pieces, Received, StreamConfig, StreamConnection, Trailer,
};
pub use llp::{HEADER_MAX, Params, ReliableConnection, Segment, TRAILER_MAX};
pub use memory::{AtomicAccess, Memory, Placement, Target};
pub use operation::{CompletionKind, Operation, RecvWr};
pub use qp::{Completion, Event, Payload, QpConfig, SendWr, State, Status};
pub use stag::{Pd, QpNum, RegionId, Rights, Stag, StagEntry};
pub use time::{SECOND_NS, Time};
pub use wire::TermCode;
