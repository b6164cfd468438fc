//! What the next minor version adds to control connections, in builds for tests
//! ([`crate::next`]).

use crate::SessionId;
use crate::next::is_minor;
use crate::wire::{FLAG_OPTIONAL, HEADER_LEN, Header};

/// A type that no version has.
const ADDED_PDU: u16 = 0x3fff;
/// An element that no version has, not critical, with a value of three bytes.
const ADDED_ELEMENT: [u8; 8] = [0x3f, 0xff, 0, 3, 1, 2, 3, 0];
/// AUTH_TOKEN and APP_DATA: bytes up to the end of the body, so that nothing can follow.
const UNBOUNDED: [u16; 2] = [6, 12];

/// Adds an element to a PDU.
pub(super) fn extend(pdu: &mut Vec<u8>) {
    let header = pdu.first_chunk().and_then(|head| Header::parse(head).ok());
    let Some(header) = header.filter(|header| is_minor() && !UNBOUNDED.contains(&header.kind))
    else {
        return;
    };
    pdu.extend(ADDED_ELEMENT);
    let len = u32::try_from(pdu.len() - HEADER_LEN).unwrap_or(u32::MAX);
    pdu[..HEADER_LEN].copy_from_slice(&Header { len, ..header }.emit());
}

/// Makes a PDU of a type that this version does not know.
pub(super) fn added(session: Option<SessionId>, seq: u32) -> Option<Vec<u8>> {
    let header = Header {
        flags: FLAG_OPTIONAL,
        kind: ADDED_PDU,
        len: 5,
        session: session.filter(|_| is_minor())?,
        chan: 0,
        seq,
    };
    Some([&header.emit()[..], b"added"].concat())
}
