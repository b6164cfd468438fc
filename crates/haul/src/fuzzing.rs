//! Parsers of bytes that come from outside, for the targets in `fuzz/`.

use crate::{journal, link, wire};

/// A control message: what is read must be read the same after it was written.
///
/// # Panics
/// If it is not.
pub fn control_message(body: &[u8]) {
    let Ok(Some(message)) = wire::decode(body) else {
        return;
    };
    if let Ok(frame) = wire::encode(&message) {
        let body = wire::checked(&frame).unwrap_or_default();
        let again = wire::decode(body);
        assert_eq!(again.ok().flatten(), Some(message));
    }
}

/// What arrives on a control connection, in any pieces.
pub fn control_frames(mut bytes: &[u8]) {
    while let Ok(Some(frame)) = link::frame(bytes) {
        let _ = wire::checked(frame).map(wire::decode);
        let _ = wire::unchecked_hello(frame);
        bytes = &bytes[frame.len()..];
    }
}

/// A resume journal: any header, any records behind it.
pub fn resume_journal(key: &[u8; 32], bytes: &[u8]) {
    let _ = bytes.get(..journal::HEADER).and_then(journal::parse_header);
    let (blocks, end) = journal::parse_records(bytes, key);
    assert!(end <= bytes.len() && blocks.len() <= bytes.len());
}
