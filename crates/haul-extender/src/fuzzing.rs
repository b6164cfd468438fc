//! Frames of a hostile peer, for the target in `fuzz/`.

use crate::frame::Head;

/// Decodes each frame header in `bytes`.
///
/// # Panics
/// If a header that decodes does not encode to the same bytes.
pub fn rdma_frame(bytes: &[u8]) {
    let (heads, _) = bytes.as_chunks();
    for bytes in heads {
        if let Some(head) = Head::decode(*bytes) {
            assert_eq!(head.encode(), *bytes);
        }
    }
}
