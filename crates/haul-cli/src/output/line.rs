//! Lines on stderr.

use std::io::Write as _;

/// A line on stderr.
pub(crate) fn tell(text: &str) {
    // Whoever reads it may have gone; the work does not depend on it.
    let _ = writeln!(std::io::stderr().lock(), "haul: {text}");
}
