//! XSP and BAG as state machines: sessions over several hops with a transport of its own on each,
//! connections within them, and slabs of many connections' bytes that their receiver pulls.
//!
//! No I/O, no clock, no threads, no random numbers, no payload: callers pass `now`, seeds, and what
//! has arrived on control connections; the core deals in slab numbers, offsets and lengths, and
//! returns what is to be read from where to where. See docs/protocol/xsp.md for the wire.
//!
//! Contract: after every call that takes `&mut`, drain the `poll_*` methods, then ask for the
//! timeout, before the next. Memory is named, never touched: a region of the producer's ring, an
//! offset in the consumer's arena, or at a gateway *foreign* memory, the other segment's arena.
//!
//! | producer | the engine |
//! |---|---|
//! | `reserve`, `commit` | receives from the application into a region |
//! | `poll_sealed`, `announce` | opens each record's memory to the peer, announces it |
//! | `poll_keyless`, `is_inline`, `announce_inline` | announces a slab with its bytes |
//! | `poll_put`, `poll_mark`, `handle_put` | push: posts Writes and, behind those of a slab, its mark |
//! | `poll_retired` | closes the slab's memory to the peer, before any other call |
//!
//! | consumer | the engine |
//! |---|---|
//! | `poll_inline` | copies inline bytes to the arena, before any other call |
//! | `poll_get`, `handle_got` | posts Reads, reports each that is placed or has failed |
//! | `poll_verify`, `handle_verified` | computes a record's CRC32C |
//! | `read`, `release` | hands bytes to the application, releases their memory |
//! | `poll_grant`, `granted`, `poll_closed` | push: opens arena memory to the peer, closes it |
//! | `handle_written` | push: reports that a slab's marks have arrived |
//!
//! Map: [`wire`] version 2, bytes to meaning · [`v1`] versions 0 and 1 · [`Session`] one end of one
//! segment · [`Relay`] a gateway between two · [`Directory`] all sessions of one end: loops,
//! tickets, hops allowed · [`bag`] slabs, sizes, pacing · [`AuthConfig`] authentication · [`Error`]
//! who is to blame · `next` the next version, in builds for tests.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auth;
pub mod bag;
mod directory;
mod error;
mod id;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod next;
mod relay;
mod session;
pub mod v1;
pub mod wire;

use haul_cc::{crc, time};

pub use auth::{AuthConfig, AuthError, SharedKey, Ticketer};
pub use crc::{crc32c, crc32c_continued, crc32c_joined};
pub use directory::{Admission, Allowed, Directory};
pub use error::{Error, Misbehaviour, Misuse};
pub use id::{ChanId, ConnId, RegionId, SessionId, SlabSeq};
pub use relay::{Relay, RelayEvent, Side};
pub use session::{Event, ResumeRequest, Session, SessionConfig, State, negotiate};
pub use time::{SECOND_NS, Time};
