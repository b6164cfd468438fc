//! What a stranger may say, for the target in `fuzz/`.

use crate::control;

/// The greeting of a client: a plan that is let in has sizes and depths inside the limits, whatever it says.
///
/// # Panics
/// If memory that is let in is more than may be registered.
pub fn greeting(line: &[u8]) {
    if let Ok(plan) = control::plan_of(line) {
        let layout = plan.layout();
        assert!(layout.is_ok_and(|layout| layout.len() <= 8 << 30));
    }
}
