//! What a link does with arriving payload.

use std::io::{self, IoSlice};

/// Takes arriving payload: position in the stream (or a slot), pieces in order.
pub(super) trait Place {
    fn place(&mut self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<()>;
}
