//! What a stranger may say, for the target in `fuzz/`.

use crate::control::{self, Asked};

/// The greeting of a client: a plan that is let in has sizes and depths inside the limits, whatever
/// it says.
///
/// # Panics
/// If memory that is let in is more than may be registered or taken.
pub fn greeting(line: &[u8]) {
    // As it is, and with a good check, which anybody can add.
    let _ = control::asked(line);
    match control::asked(&control::seal(line.to_vec())) {
        Ok(Asked::Verbs(plan)) => {
            let layout = plan.layout();
            assert!(layout.is_ok_and(|layout| layout.len() <= 8 << 30));
        }
        Ok(Asked::Path(plan)) => {
            let memory = plan.round().checked_mul(plan.streams.into());
            assert!(memory.is_some_and(|bytes| bytes <= 4 << 30));
            if let Some(verbs) = plan.to_verbs() {
                let layout = verbs.layout();
                assert!(layout.map_or(true, |layout| layout.len() <= 8 << 30));
            }
        }
        Err(_) => {}
    }
}
