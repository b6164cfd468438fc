//! An open device.

use std::collections::HashMap;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use haul_verbs::{Error, Result, WorkCompletion};

use crate::device::{self, Description};
use crate::ffi::verbs;
use crate::library::{Library, Raw};
use crate::wait::set_nonblocking;

/// What the device reports of a queue pair by its number.
pub(crate) trait QpEvents: Debug + Send + Sync {
    /// A work request of the queue pair has failed.
    fn on_failed(&self, completion: &WorkCompletion);
    /// The device has put the queue pair into error for what the peer sent.
    fn on_async_error(&self);
}

/// An open device. It outlives everything that is made from it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) library: Arc<Library>,
    pub(crate) raw: Raw<verbs::Context>,
    pub(crate) name: String,
    pub(crate) description: Description,
    pub(crate) max_inline: OnceLock<u32>,
    /// By number, to find the queue pair that a failed completion or an event speaks of.
    qps: Mutex<HashMap<u32, Weak<dyn QpEvents>>>,
}

impl Context {
    pub(crate) fn new(
        library: Arc<Library>,
        raw: Raw<verbs::Context>,
        name: String,
    ) -> Result<Self> {
        let description = device::describe(&library, raw);
        let description = description.inspect_err(|_| close(&library, raw))?;
        let context = Self {
            library,
            raw,
            name,
            description,
            max_inline: OnceLock::new(),
            qps: Mutex::default(),
        };
        set_nonblocking(context.async_fd())?;
        Ok(context)
    }

    /// Readable while there are asynchronous events.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.raw.ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(crate) fn enter_qp(&self, number: u32, qp: Weak<dyn QpEvents>) {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.insert(number, qp);
    }

    pub(crate) fn forget_qp(&self, number: u32) {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.remove(&number);
    }

    pub(crate) fn find_qp(&self, number: u32) -> Option<Arc<dyn QpEvents>> {
        let qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.get(&number)?.upgrade()
    }
}

fn close(library: &Library, raw: Raw<verbs::Context>) {
    // SAFETY: nothing made from the context is left; it is closed once.
    unsafe { (library.verbs.ibv_close_device)(raw.ptr()) };
}

impl Drop for Context {
    fn drop(&mut self) {
        close(&self.library, self.raw);
    }
}

/// An object of this provider.
///
/// # Errors
/// [`Error::Invalid`] for one of another provider.
pub(crate) fn downcast<T: Send + Sync + 'static>(
    ops: Arc<dyn std::any::Any + Send + Sync>,
) -> Result<Arc<T>> {
    ops.downcast()
        .map_err(|_| Error::Invalid("an object of another provider"))
}
