//! Messages that open and close a connection over messages, which has no MPA
//! (docs/protocol/iwarp.md).
//!
//! ```text
//!   0  4  "LHIW"            no DDP version 1, so a hello is never taken for a segment
//!   4  1  version, 1
//!   5  1  kind: 1 request, 2 reply, 3 refusal, 4 ready, 5 finish
//!   6  2  capabilities, [`super::Features`]: 1 atomics, 2 immediate data, 4 Send with immediate
//!         data, 16 segments without CRC; 8 is for streams
//!   8  2  IRD
//!  10  2  ORD
//!  12  4  largest segment accepted, bytes
//!  16  2  bytes of private data, 0..=512
//!  18  n  private data
//!     4  CRC32C over what precedes, least significant byte first
//! ```
//! A `ready` ends after its kind and CRC. A `finish` has one field:
//!
//! ```text
//!   6  8  messages received: all below this number have arrived at the end that finishes
//!     4  CRC32C
//! ```

use super::{Features, ParseError, be16, be32, be64, put16, put32};
use crate::crc::{CRC_LEN, Crc32c};

/// Bytes of a hello before its private data.
pub const HELLO_LEN: usize = 18;
/// Bytes of a `ready`, CRC included.
pub const READY_LEN: usize = 6 + CRC_LEN;
/// Bytes of a `finish`, CRC included.
pub const FINISH_LEN: usize = READY_LEN + 8;

const MAGIC: &[u8; 4] = b"LHIW";
const VERSION: u8 = 1;

/// The content of a request, reply or refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms<'a> {
    /// Capabilities of the sender.
    pub features: Features,
    /// Inbound reads.
    pub ird: u16,
    /// Outbound reads.
    pub ord: u16,
    /// The largest segment that is accepted, bytes.
    pub segment_max: u32,
    /// For the user.
    pub private: &'a [u8],
}

/// A message that is not a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hello<'a> {
    /// The initiator's offer.
    Request(Terms<'a>),
    /// The responder's answer.
    Reply(Terms<'a>),
    /// The responder's other answer.
    Refusal(Terms<'a>),
    /// The initiator has the reply: the responder may send.
    Ready,
    /// Nothing follows.
    Finish {
        /// Messages of the other direction below this number have arrived: a connection may end
        /// before the lower layer has acknowledged them.
        received: u64,
    },
}

impl<'a> Hello<'a> {
    /// Returns whether a message is a hello and no segment.
    #[must_use]
    pub fn is_hello(message: &[u8]) -> bool {
        message.starts_with(MAGIC)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// Not a hello of version 1, or one whose lengths or CRC do not fit.
    pub fn parse(message: &'a [u8]) -> Result<Self, ParseError> {
        let short = ParseError::Short {
            what: "hello",
            len: message.len(),
        };
        let (body, crc) = message.split_last_chunk::<CRC_LEN>().ok_or(short)?;
        if body.len() < 6 {
            return Err(short);
        }
        let mut wanted = Crc32c::new();
        wanted.update(body);
        if &body[..4] != MAGIC || *crc != wanted.to_wire() {
            return Err(ParseError::Key);
        }
        if body[4] != VERSION {
            return Err(ParseError::Revision(body[4]));
        }
        match body[5] {
            1 => Terms::parse(body).map(Self::Request),
            2 => Terms::parse(body).map(Self::Reply),
            3 => Terms::parse(body).map(Self::Refusal),
            4 if message.len() == READY_LEN => Ok(Self::Ready),
            5 if message.len() == FINISH_LEN => Ok(Self::Finish {
                received: be64(body, 6),
            }),
            _ => Err(ParseError::Role),
        }
    }

    /// Writes the message to the end of `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, terms) = match self {
            Self::Request(terms) => (1, Some(terms)),
            Self::Reply(terms) => (2, Some(terms)),
            Self::Refusal(terms) => (3, Some(terms)),
            Self::Ready => (4, None),
            Self::Finish { .. } => (5, None),
        };
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, kind]);
        if let Some(terms) = terms {
            terms.emit(out);
        }
        if let Self::Finish { received } = self {
            out.extend_from_slice(&received.to_be_bytes());
        }
        let mut crc = Crc32c::new();
        crc.update(&out[start..]);
        out.extend_from_slice(&crc.to_wire());
    }
}

impl<'a> Terms<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let short = ParseError::Short {
            what: "hello",
            len: body.len(),
        };
        let (head, private) = body.split_at_checked(HELLO_LEN).ok_or(short)?;
        let private_len = be16(head, 16);
        let fits = usize::from(private_len) == private.len()
            && private.len() <= super::mpa::PRIVATE_DATA_MAX;
        if !fits {
            return Err(ParseError::PrivateData(private_len));
        }
        Ok(Self {
            features: Features::parse(be16(head, 6)),
            ird: be16(head, 8),
            ord: be16(head, 10),
            segment_max: be32(head, 12),
            private,
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let mut head = [0; HELLO_LEN - 6];
        put16(&mut head, 0, self.features.emit());
        put16(&mut head, 2, self.ird);
        put16(&mut head, 4, self.ord);
        put32(&mut head, 6, self.segment_max);
        put16(
            &mut head,
            10,
            u16::try_from(self.private.len()).unwrap_or(u16::MAX),
        );
        out.extend_from_slice(&head);
        out.extend_from_slice(self.private);
    }
}
