//! Cancelling from another thread: one handle for whatever a session waits for.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::lock;

type Action = Box<dyn FnOnce() + Send>;

/// Ends an operation from another thread. Clones cancel the same operation.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_cancelled: bool,
    action: Option<Action>,
}

impl Cancel {
    /// Makes a handle that cancels by `action`.
    pub fn by(action: impl FnOnce() + Send + 'static) -> Self {
        let cancel = Self::default();
        cancel.set(action);
        cancel
    }

    /// Cancels, once.
    pub fn cancel(&self) {
        let action = {
            let mut state = lock(&self.0);
            state.is_cancelled = true;
            state.action.take()
        };
        if let Some(action) = action {
            action();
        }
    }

    /// Replaces what cancelling does. If it was cancelled before, does that at once.
    pub fn set(&self, action: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0);
        if state.is_cancelled {
            drop(state);
            return action();
        }
        let before = state.action.replace(Box::new(action));
        // Dropped without the lock: it may hold anything.
        drop(state);
        drop(before);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_cancelled = lock(&self.0).is_cancelled;
        f.debug_tuple("Cancel").field(&is_cancelled).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn count(counter: &Arc<AtomicU32>) -> impl FnOnce() + Send + 'static {
        let counter = Arc::clone(counter);
        move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_latest_action_runs_once_and_a_later_one_at_once() {
        let counters: [Arc<AtomicU32>; 3] = Default::default();
        let cancel = Cancel::by(count(&counters[0]));
        cancel.set(count(&counters[1]));
        cancel.cancel();
        cancel.clone().cancel();
        let seen = || [0, 1, 2].map(|at: usize| counters[at].load(Ordering::Relaxed));
        assert_eq!(seen(), [0, 1, 0]);
        cancel.set(count(&counters[2]));
        assert_eq!(seen(), [0, 1, 1]);
    }
}
