//! A lock in shared memory, for one direction of a stream: whoever waits in a system call has it. A
//! holder that died, or that left without unlocking (`siglongjmp`, a cancelled thread), does not
//! keep it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::sys;
use crate::table::is_alive;

/// Somebody waits. Thread numbers are below 2^22.
const WAITED: u32 = 1 << 31;
/// How often the holder is looked for.
const LOOK: Duration = Duration::from_millis(100);

thread_local! {
    static SELF: Cell<u32> = const { Cell::new(0) };
}

/// After `fork`: the thread is another one.
pub(crate) fn forked() {
    SELF.set(0);
}

fn this_thread() -> u32 {
    if SELF.get() == 0 {
        SELF.set(sys::thread_id());
    }
    SELF.get()
}

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Guard<'a>(&'a AtomicU32);

/// Takes the lock, or `None` if somebody has it.
pub(crate) fn try_lock(word: &AtomicU32) -> Option<Guard<'_>> {
    let taken = word.compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed);
    // Not `then_some`: a guard that is made is dropped, and that unlocks.
    taken.is_ok().then(|| Guard(word))
}

/// Waits for the lock.
pub(crate) fn lock(word: &AtomicU32) -> Guard<'_> {
    let own = this_thread();
    loop {
        if let Some(guard) = try_lock(word) {
            return guard;
        }
        let seen = word.load(Ordering::Relaxed);
        let holder = seen & !WAITED;
        if holder == own || holder != 0 && !is_alive(holder) {
            let taken =
                word.compare_exchange(seen, own | WAITED, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return Guard(word);
            }
            continue;
        }
        let waited = seen | WAITED;
        let marked = seen != 0
            && word
                .compare_exchange(seen, waited, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if marked && let Ok(timeout) = LOOK.try_into() {
            let _ = futex::wait(word, futex::Flags::empty(), waited, Some(&timeout));
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.0.swap(0, Ordering::Release) & WAITED != 0 {
            let _ = futex::wake(self.0, futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_are_never_in_it_at_once() {
        let (word, inside) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let _guard = lock(&word);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(try_lock(&word).is_some());
    }

    #[test]
    fn who_does_not_get_it_leaves_it_locked() {
        let word = AtomicU32::new(0);
        let _guard = lock(&word);
        assert!(try_lock(&word).is_none());
        assert!(try_lock(&word).is_none());
    }

    #[test]
    fn a_dead_holder_does_not_keep_it() {
        // No thread has so high a number.
        let word = AtomicU32::new((1 << 22) + 1);
        drop(lock(&word));
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}
