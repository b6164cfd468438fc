//! The request for a connection, by itself or along with a session.

use super::codec::{CRITICAL, Reader, Writer};
use super::hop::TLV_ENDPOINT;
use super::{Endpoint, Metadata, ParseError};
use crate::ConnId;

/// Connections that may be asked for along with a session.
pub const FIRSTS_MAX: usize = 64;
/// First bytes of a connection that its request may have.
pub const EARLY_MAX: usize = 1_024;

const TLV_METADATA: u16 = 0x36;
const TLV_EARLY: u16 = 0x38;

/// A connection that is asked for along with the session, as CONN_OPEN would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// Which.
    pub conn: ConnId,
    /// Bytes that the asker takes of it.
    pub credit: u64,
    /// Where to.
    pub to: Endpoint,
    /// Metadata of its application.
    pub metadata: Metadata,
}

impl First {
    pub(super) fn emit(&self, out: &mut Writer) {
        emit_wish(out, self.conn, self.credit, &self.to, &self.metadata, &[]);
    }

    pub(super) fn parse(value: &mut Reader<'_>) -> Result<Self, ParseError> {
        let conn = ConnId(value.u32()?);
        let (credit, to, metadata, early) = parse_wish(value)?;
        if !early.is_empty() {
            return Err(ParseError::Value("first bytes along with a session"));
        }
        Ok(Self {
            conn,
            credit,
            to,
            metadata,
        })
    }
}

/// The request for a connection.
pub(super) fn emit_wish(
    out: &mut Writer,
    conn: ConnId,
    credit: u64,
    to: &Endpoint,
    metadata: &Metadata,
    early: &[u8],
) {
    out.u32(conn.0).u32(0).u64(credit);
    to.emit(out);
    if *metadata != Metadata::default() {
        // A peer that does not know the block shows nothing.
        out.tlv(TLV_METADATA, |out| metadata.emit(out));
    }
    if !early.is_empty() {
        out.tlv(CRITICAL | TLV_EARLY, |out| {
            out.bytes(early);
        });
    }
}

/// What [`parse_wish`] reads: credit, destination, metadata, first bytes of the stream.
type Wish = (u64, Endpoint, Metadata, Vec<u8>);

/// The same after its number.
pub(super) fn parse_wish(r: &mut Reader<'_>) -> Result<Wish, ParseError> {
    let (_zero, credit) = (r.u32()?, r.u64()?);
    let (mut to, mut metadata, mut early) = (None, Metadata::default(), Vec::new());
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_ENDPOINT => to = Some(Endpoint::parse(&mut tlv.value)?),
            TLV_METADATA => metadata = Metadata::parse(&mut tlv.value),
            TLV_EARLY => {
                early = tlv.value.rest().to_vec();
                if early.len() > EARLY_MAX {
                    return Err(ParseError::TooMany("first bytes of a connection"));
                }
            }
            _ => tlv.unknown()?,
        }
    }
    let to = to.ok_or(ParseError::Short("endpoint"))?;
    Ok((credit, to, metadata, early))
}
