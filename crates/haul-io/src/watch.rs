//! Listeners that are watched only while there is room for new connections.

use std::io;
use std::os::fd::AsFd;

use crate::poller::{Interest, Poller};

/// A listener that a poller watches at times. Meanwhile connections wait in the kernel.
#[derive(Debug)]
pub struct Watch<L> {
    /// The listener.
    pub listener: L,
    token: u64,
    is_on: bool,
}

impl<L: AsFd> Watch<L> {
    /// Creates it unwatched.
    #[must_use]
    pub const fn new(listener: L, token: u64) -> Self {
        Self {
            listener,
            token,
            is_on: false,
        }
    }

    /// Returns whether the poller watches it.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Starts or stops watching. `poller` must always be the same one.
    ///
    /// # Errors
    /// The kernel has no memory for the entry; nothing has changed.
    pub fn set(&mut self, poller: &Poller, wanted: bool) -> io::Result<()> {
        if wanted != self.is_on {
            if wanted {
                poller.add(&self.listener, self.token, Interest::READ)?;
            } else {
                poller.remove(&self.listener)?;
            }
            self.is_on = wanted;
        }
        Ok(())
    }
}
