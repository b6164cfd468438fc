//! XSP versions 0 and 1, as the original implementation sends them: a codec for interworking
//! (docs/protocol/xsp.md).
//!
//! One block per message: the original writer overwrites the first with the second, and its readers
//! stop after one. Numbers that it writes with `htons` into 32 bits stand here as it writes them,
//! `0001 0000` for 1, and are read the same way. Lists are bounded by the block that holds them.

use crate::SessionId;
use crate::wire::ParseError;

mod block;
mod field;

pub use block::{Block, Hop, SlabRecord};
pub use field::Kind;
use field::{array_at, u16_at};

/// Bytes of a header of version 0.
pub const HEADER_LEN_V0: usize = 20;
/// Bytes of a header of version 1.
pub const HEADER_LEN: usize = 168;
/// Bytes before a block's data.
pub const BLOCK_HEADER_LEN: usize = 8;
/// Bytes of an endpoint identifier.
const EID_LEN: usize = 72;
/// Most bytes of a block taken: lengths in the header end there, and longer ones are never
/// written.
pub const BLOCK_MAX: usize = 0xfffe;

/// A message of version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Flags of the header; the original sends 0.
    pub flags: u8,
    /// Its type.
    pub kind: Kind,
    /// Source and destination; the original leaves them zero.
    pub eids: [[u8; EID_LEN]; 2],
    /// The session.
    pub session: SessionId,
    /// Its content.
    pub block: Option<Block>,
}

/// The outcome of parsing the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed<T> {
    /// At least this many bytes, counted from the message's first, are needed.
    Need(usize),
    /// A message of so many bytes.
    Whole(T, usize),
}

impl Message {
    /// A message without endpoint identifiers, as the original sends.
    #[must_use]
    pub const fn new(kind: Kind, session: SessionId, block: Option<Block>) -> Self {
        Self {
            flags: 0,
            kind,
            eids: [[0; EID_LEN]; 2],
            session,
            block,
        }
    }

    /// Reads the message at the beginning of `octets`.
    ///
    /// # Errors
    /// It is not one of version 1, or has more than one block.
    pub fn parse(octets: &[u8]) -> Result<Parsed<Self>, ParseError> {
        if let Some(version) = octets.first().filter(|version| **version != 1) {
            return Err(ParseError::Version(*version));
        }
        let Some((head, rest)) = octets.split_at_checked(HEADER_LEN) else {
            return Ok(Parsed::Need(HEADER_LEN));
        };
        let mut message = Self::new(
            Kind::from_code(u16_at(head, 2))?,
            SessionId(array_at(head, 152)),
            None,
        );
        message.flags = head[1];
        message.eids = [array_at(head, 8), array_at(head, 8 + EID_LEN)];
        match u16_at(head, 4) {
            0 => return Ok(Parsed::Whole(message, HEADER_LEN)),
            1 => {}
            _ => return Err(ParseError::TooMany("blocks")),
        }
        let Some((block_head, rest)) = rest.split_at_checked(BLOCK_HEADER_LEN) else {
            return Ok(Parsed::Need(HEADER_LEN + BLOCK_HEADER_LEN));
        };
        let len = usize::from(u16_at(block_head, 4));
        if len > BLOCK_MAX {
            return Err(ParseError::Value("length of a block"));
        }
        let whole = HEADER_LEN + BLOCK_HEADER_LEN + len;
        let Some(data) = rest.get(..len) else {
            return Ok(Parsed::Need(whole));
        };
        let (kind, sport) = (u16_at(block_head, 0), u16_at(block_head, 2));
        message.block = Some(Block::parse(message.kind, kind, sport, data)?);
        Ok(Parsed::Whole(message, whole))
    }

    /// Writes it. Data beyond [`BLOCK_MAX`] bytes is cut.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![1, self.flags];
        out.extend((self.kind as u16).to_be_bytes());
        out.extend(u16::from(self.block.is_some()).to_be_bytes());
        out.extend([0; 2]);
        self.eids.iter().for_each(|eid| out.extend(eid));
        out.extend(self.session.0);
        if let Some(block) = &self.block {
            let (kind, sport, mut data) = block.emit();
            data.truncate(BLOCK_MAX);
            out.extend(kind.to_be_bytes());
            out.extend(sport.to_be_bytes());
            out.extend(u16::try_from(data.len()).unwrap_or(u16::MAX).to_be_bytes());
            out.extend([0; 2]);
            out.extend(data);
        }
        out
    }
}

/// A message of version 0, which pings have in sessions of version 1 too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageV0 {
    /// Its type.
    pub kind: Kind,
    /// The session.
    pub session: SessionId,
    /// Its data, uninterpreted.
    pub data: Vec<u8>,
}

impl MessageV0 {
    /// Reads the message at the beginning of `octets`.
    ///
    /// # Errors
    /// It is not one of version 0.
    pub fn parse(octets: &[u8]) -> Result<Parsed<Self>, ParseError> {
        if let Some(version) = octets.first().filter(|version| **version != 0) {
            return Err(ParseError::Version(*version));
        }
        let Some((head, rest)) = octets.split_at_checked(HEADER_LEN_V0) else {
            return Ok(Parsed::Need(HEADER_LEN_V0));
        };
        let len = usize::from(u16_at(head, 2));
        let Some(data) = rest.get(..len) else {
            return Ok(Parsed::Need(HEADER_LEN_V0 + len));
        };
        let message = Self {
            kind: Kind::from_code(u16::from(head[1]))?,
            session: SessionId(array_at(head, 4)),
            data: data.to_vec(),
        };
        Ok(Parsed::Whole(message, HEADER_LEN_V0 + len))
    }

    /// Writes it. Data beyond 65,535 bytes is cut.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let len = u16::try_from(self.data.len()).unwrap_or(u16::MAX);
        let mut out = vec![0, self.kind as u8];
        out.extend(len.to_be_bytes());
        out.extend(self.session.0);
        out.extend(&self.data[..usize::from(len)]);
        out
    }
}
