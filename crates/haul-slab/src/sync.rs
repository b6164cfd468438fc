//! Atomics and cells: the standard library's, or loom's when its model checker runs the tests.

/// For what the model checker has nothing to do with.
pub(crate) use std::sync::Arc as PlainArc;

#[cfg(not(loom))]
mod primitive {
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use std::thread::yield_now;

    /// As loom's: access goes through a closure.
    #[derive(Debug, Default)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
            look(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            change(self.0.get())
        }
    }
}

#[cfg(loom)]
mod primitive {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use loom::thread::yield_now;
}

pub(crate) use primitive::{Arc, AtomicU64, Ordering, UnsafeCell, yield_now};

/// Alone on its cache lines: two, for adjacent ones are fetched together.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
