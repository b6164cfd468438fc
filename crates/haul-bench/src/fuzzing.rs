//! Entry point for the target in `fuzz/`: input of unauthenticated clients.

use crate::control::{self, Asked};

/// Parses the greeting of a client: an accepted plan has sizes and depths within the limits,
/// whatever the input.
///
/// # Panics
/// If an accepted plan exceeds the limits of registered or allocated memory.
pub fn greeting(line: &[u8]) {
    match control::asked(line) {
        Ok(Some(Asked::Verbs(plan))) => {
            let layout = plan.layout();
            assert!(layout.is_ok_and(|layout| layout.len() <= 8 << 30));
        }
        Ok(Some(Asked::Path(plan))) => {
            let memory = plan.round().checked_mul(plan.streams.into());
            assert!(memory.is_some_and(|bytes| bytes <= 4 << 30));
            if let Some(verbs) = plan.to_verbs() {
                let layout = verbs.layout();
                assert!(layout.map_or(true, |layout| layout.len() <= 8 << 30));
            }
        }
        Ok(None) | Err(_) => {}
    }
}
