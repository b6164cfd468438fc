//! Whether this process speaks the next version of the protocol, so that tests meet what a later
//! release may send. Builds for tests have it, released ones do not (docs/adr/0054-versions.md).

use std::sync::atomic::{AtomicU8, Ordering};

static NEXT: AtomicU8 = AtomicU8::new(0);

/// Makes this process speak the next minor version: an element more in every PDU, and a PDU more
/// behind others. If `is_incompatible`, it speaks the next version instead.
pub fn pretend(is_incompatible: bool) {
    NEXT.store(1 + u8::from(is_incompatible), Ordering::Relaxed);
}

pub(crate) fn is_minor() -> bool {
    NEXT.load(Ordering::Relaxed) == 1
}

pub(crate) fn is_incompatible() -> bool {
    NEXT.load(Ordering::Relaxed) == 2
}
