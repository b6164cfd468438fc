//! Connections that are asked for along with a session.

use super::codec::{Reader, Writer};
use super::hop::TLV_ENDPOINT;
use super::{Endpoint, Metadata, ParseError};
use crate::ConnId;

/// Connections that may be asked for along with a session.
pub const FIRSTS_MAX: usize = 64;

const TLV_METADATA: u16 = 0x36;

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
        emit_wish(out, self.conn, self.credit, &self.to, &self.metadata);
    }

    pub(super) fn parse(value: &mut Reader<'_>) -> Result<Self, ParseError> {
        let conn = ConnId(value.u32()?);
        let (credit, to, metadata) = parse_wish(value)?;
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
) {
    out.u32(conn.0).u32(0).u64(credit);
    to.emit(out);
    if *metadata != Metadata::default() {
        // A peer that does not know the block shows nothing.
        out.tlv(TLV_METADATA, |out| metadata.emit(out));
    }
}

/// The same after its number: credit, destination, and metadata.
pub(super) fn parse_wish(r: &mut Reader<'_>) -> Result<(u64, Endpoint, Metadata), ParseError> {
    let (_zero, credit) = (r.u32()?, r.u64()?);
    let (mut to, mut metadata) = (None, Metadata::default());
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_ENDPOINT => to = Some(Endpoint::parse(&mut tlv.value)?),
            TLV_METADATA => metadata = Metadata::parse(&mut tlv.value),
            _ => tlv.unknown()?,
        }
    }
    let to = to.ok_or(ParseError::Short("endpoint"))?;
    Ok((credit, to, metadata))
}
