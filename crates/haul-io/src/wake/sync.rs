//! The standard library's primitives and `eventfd(2)`, or loom's when its model checker runs the
//! tests.

#[cfg(not(loom))]
pub(super) use crate::notify::Signal;
#[cfg(not(loom))]
pub(super) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

pub(super) use std::sync::PoisonError;

#[cfg(loom)]
pub(super) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(loom)]
pub use model::Signal;

#[cfg(loom)]
mod model {
    use std::io;

    use loom::sync::{Condvar, Mutex};

    /// An eventfd as loom can run it: a counter that is set or not, and threads that sleep until it
    /// is.
    #[derive(Debug)]
    pub struct Signal {
        is_set: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self {
                is_set: Mutex::new(false),
                changed: Condvar::new(),
            })
        }

        pub(crate) fn set(&self) {
            *self.is_set.lock().unwrap() = true;
            self.changed.notify_all();
        }

        pub(crate) fn clear(&self) -> bool {
            std::mem::take(&mut *self.is_set.lock().unwrap())
        }

        #[cfg(test)]
        pub(crate) fn is_set(&self) -> bool {
            *self.is_set.lock().unwrap()
        }

        /// As `poll(2)` without a timeout.
        #[cfg(test)]
        pub(crate) fn sleep(&self) {
            let mut is_set = self.is_set.lock().unwrap();
            while !*is_set {
                is_set = self.changed.wait(is_set).unwrap();
            }
        }
    }
}
