//! Bytes of datagrams to meaning and back (docs/protocol/datagram.md).
//!
//! ```text
//!   SHIM 32 | EXT 4*n | DDP segment: header 14 or 18, data | CRC32C 4      DATA
//!   SHIM 32 | EXT 4*n | body                               | CRC32C 4      everything else
//! ```
//! [`Datagram::open`] checks the CRC and then everything that needs no state; what it returns needs
//! no further check of form. [`DataHeader`] and [`Body::emit`] write. `shim` the 32 bytes ·
//! `segment` DATA · `body` the other types · `datagram` all of them · `sealed` what is around
//! them where a service is sealed · `reject` why not.

mod body;
mod datagram;
mod reject;
mod sealed;
mod segment;
mod shim;

pub use body::{
    ACK_RANGES_MAX, Ack, Body, CONTROL_MAX, COOKIE_LEN, Close, Cookie, Hello, Notice, NoticeCode,
    PRIVATE_MAX, Probe, Rate, Terms,
};
pub use datagram::{DATAGRAM_MAX, Datagram, SENDER_LEN, sender};
pub use reject::Reject;
pub use sealed::{
    GREETING_LEN, Mark, SALT_LEN, SEALED_AROUND, SEALED_HEAD_LEN, SEALED_TAG_LEN, STALE_LEN, Salt,
    Sealed, reply_head,
};
pub use segment::{DATA_HEADER_MAX, DataHeader, Opcode, Segment};
pub use shim::{ANY_QPN, EXT_WORDS_MAX, Ext, Flags, Kind, MsgId, Psn, QPN_MAX, SHIM_LEN, Shim};
