//! Parsers of bytes that come from outside, for the targets in `fuzz/`.

use crate::frame::{Frame, GREETING_MAX};
use crate::{older, tls};

/// What arrives on a control connection: a frame that is read must be read the same after it was
/// written. The text of a fault is cut and escaped when it is read.
///
/// # Panics
/// If it is not.
pub fn frames(mut bytes: &[u8]) {
    if let Some(first) = bytes.first_chunk() {
        let _ = older::answer(*first);
    }
    tls::fuzz(bytes);
    while let Ok(Some((frame, length))) = Frame::read(bytes, GREETING_MAX) {
        if let Some(frame) = frame.filter(|frame| !matches!(frame, Frame::Fault(_))) {
            let mut again = Vec::new();
            frame.write(&mut again).unwrap_or_default();
            let read = Frame::read(&again, again.len());
            assert_eq!(read.ok().flatten(), Some((Some(frame), again.len())));
        }
        bytes = &bytes[length..];
    }
}
