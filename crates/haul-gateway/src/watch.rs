//! Listeners that are heeded while there is room for what comes to them.

use std::io;
use std::os::fd::AsFd;

use haul_io::poller::{Interest, Poller};

/// A listener that a poller watches now and then. What comes meanwhile waits in the kernel.
#[derive(Debug)]
pub(crate) struct Watch<L> {
    pub(crate) listener: L,
    token: u64,
    is_on: bool,
}

impl<L: AsFd> Watch<L> {
    /// Not watched yet.
    pub(crate) const fn new(listener: L, token: u64) -> Self {
        Self {
            listener,
            token,
            is_on: false,
        }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Has `poller`, always the same one, watch it or not.
    ///
    /// # Errors
    /// No memory for the kernel's entry: everything is as it was.
    pub(crate) fn set(&mut self, poller: &Poller, wanted: bool) -> io::Result<()> {
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
