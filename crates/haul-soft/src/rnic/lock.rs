//! Mutexes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a thread that panicked has left is whole: no state spans a call that may panic on outside
/// input.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
