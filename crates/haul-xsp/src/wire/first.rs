//! Connections that are asked for along with a session.

use super::hop::TLV_ENDPOINT;
use super::octets::{Reader, Writer};
use super::{Endpoint, ParseError};
use crate::ConnId;

/// Connections that may be asked for along with a session.
pub const FIRSTS_MAX: usize = 64;

/// A connection that is asked for along with the session, as CONN_OPEN would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// Which.
    pub conn: ConnId,
    /// Octets that the asker takes of it.
    pub credit: u64,
    /// Where to.
    pub to: Endpoint,
}

impl First {
    pub(super) fn emit(&self, out: &mut Writer) {
        out.u32(self.conn.0).u32(0).u64(self.credit);
        self.to.emit(out);
    }

    pub(super) fn parse(value: &mut Reader<'_>) -> Result<Self, ParseError> {
        let conn = ConnId(value.u32()?);
        let (credit, to) = parse_wish(value)?;
        Ok(Self { conn, credit, to })
    }
}

/// What is said of a connection that is wanted, behind its number: credit, and where to.
pub(super) fn parse_wish(r: &mut Reader<'_>) -> Result<(u64, Endpoint), ParseError> {
    let (_zero, credit) = (r.u32()?, r.u64()?);
    let mut to = None;
    while let Some(mut tlv) = r.tlv()? {
        match tlv.kind {
            TLV_ENDPOINT => to = Some(Endpoint::parse(&mut tlv.value)?),
            _ => tlv.unknown()?,
        }
    }
    Ok((credit, to.ok_or(ParseError::Short("endpoint"))?))
}
