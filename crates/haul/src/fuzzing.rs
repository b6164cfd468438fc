//! Parsers of bytes that come from outside, for the targets in `fuzz/`.

use crate::{journal, wire};

/// A control message: what is read must be read the same after it was written.
///
/// # Panics
/// If it is not.
pub fn control_message(body: &[u8]) {
    let Ok(Some(message)) = wire::decode(body) else {
        return;
    };
    if let Ok(frame) = wire::encode(&message) {
        let again = wire::decode(&frame[4..]);
        assert_eq!(again.ok().flatten(), Some(message));
    }
}

/// A resume journal: any header, any records behind it.
pub fn resume_journal(key: &[u8; 32], bytes: &[u8]) {
    let _ = bytes.get(..journal::HEADER).and_then(journal::parse_header);
    let (blocks, end) = journal::parse_records(bytes, key);
    assert!(end <= bytes.len() && blocks.len() <= bytes.len());
}
