//! XSP and BAG as state machines: sessions over several hops with a transport of its own on each,
//! connections within them, and slabs of many connections' bytes that their receiver pulls.
//!
//! No I/O, no clock, no threads, no random numbers, no payload: callers pass `now`, seeds, and what
//! has arrived on control connections; the core deals in slab numbers, offsets and lengths, and
//! returns what is to be read from where to where. See docs/protocol/xsp.md for the wire.
//!
//! Contract: after every call that takes `&mut`, drain the `poll_*` methods, then ask for the
//! timeout, before the next.
//!
//! Map: [`wire`] version 2, octets to meaning · [`v1`] versions 0 and 1 · [`Session`] one end of
//! one segment · [`Relay`] a gateway between two · [`Directory`] all sessions of one end: loops,
//! tickets, hops allowed · [`bag`] slabs, sizes, pacing · [`AuthConfig`] who the peer is ·
//! [`Error`] who is to blame.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auth;
pub mod bag;
mod directory;
mod error;
mod id;
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
