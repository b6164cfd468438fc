//! Threads that wait at a poller until they are dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::poller::{Poller, Waker};

/// A thread. Dropping it stops it and waits for its end.
#[derive(Debug)]
pub struct Thread {
    stop: Stop,
    waker: Waker,
    handle: Option<JoinHandle<()>>,
}

/// Whether a thread is to stop; it asks each time its poller wakes.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns whether the thread is to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Thread {
    /// Starts a thread that waits at `poller`.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn spawn(
        name: &str,
        poller: Poller,
        run: impl FnOnce(Poller, Stop) + Send + 'static,
    ) -> io::Result<Self> {
        Self::spawn_woken(name, poller.waker(), move |stop| run(poller, stop))
    }

    /// Starts a thread whose wait `waker` ends.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn spawn_woken(
        name: &str,
        waker: Waker,
        run: impl FnOnce(Stop) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Stop::default();
        let own = stop.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let handle = Some(thread.spawn(move || run(own))?);
        Ok(Self {
            stop,
            waker,
            handle,
        })
    }
}

impl Thread {
    /// Returns whether the thread has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|handle| !handle.is_finished())
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(handle) = self.handle.take() {
            // A panic has been reported already.
            let _ = handle.join();
        }
    }
}
