//! An open device and what hangs directly on it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use haul_verbs::provider::{
    CompletionChannelOps, ContextOps, CqOps, EventChannelOps, ListenerOps, PdOps,
};
use haul_verbs::{AsyncEvent, DeviceAttributes, Error, Result};

use crate::cm::{EventChannel, Handle, Listener};
use crate::completion::{CompletionChannel, Cq, token_of};
use crate::device::{self, Description};
use crate::ffi::verbs::{self, event};
use crate::library::{Library, Raw};
use crate::memory::Pd;
use crate::queue::Qp;

/// An open device. It outlives everything that is made from it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) library: Arc<Library>,
    pub(crate) raw: Raw<verbs::Context>,
    pub(crate) name: String,
    pub(crate) description: Description,
    max_inline: OnceLock<u32>,
    /// By number, to find the queue pair that a failed completion or an event speaks of.
    qps: Mutex<HashMap<u32, Weak<Qp>>>,
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
        crate::completion::set_nonblocking(context.async_fd()?)?;
        Ok(context)
    }

    pub(crate) fn enter_qp(&self, qp: &Arc<Qp>) {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.insert(qp.number, Arc::downgrade(qp));
    }

    pub(crate) fn forget_qp(&self, number: u32) {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.remove(&number);
    }

    pub(crate) fn find_qp(&self, number: u32) -> Option<Arc<Qp>> {
        let qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.get(&number)?.upgrade()
    }

    /// Takes the next event, as the library has it, and gives back what haul has for it.
    fn take_async_event(&self) -> Option<Option<AsyncEvent>> {
        let verbs = &self.library.verbs;
        let mut event = verbs::AsyncEvent {
            element: std::ptr::null_mut(),
            event_type: 0,
        };
        // SAFETY: the context is open, its descriptor does not block, the event is ours.
        let returned = unsafe { (verbs.ibv_get_async_event)(self.raw.ptr(), &raw mut event) };
        if returned != 0 {
            return None;
        }
        let said = translate(&event);
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        if let Some(AsyncEvent::QpFatal { qp_num } | AsyncEvent::QpAccessError { qp_num }) = said
            && let Some(qp) = self.find_qp(qp_num)
        {
            qp.on_async_error();
        }
        Some(said)
    }
}

fn close(library: &Library, raw: Raw<verbs::Context>) {
    // SAFETY: nothing made from the context is left; it is closed once.
    unsafe { (library.verbs.ibv_close_device)(raw.ptr()) };
}

/// The element of an event that is not acknowledged exists: destroying it waits for that.
fn translate(event: &verbs::AsyncEvent) -> Option<AsyncEvent> {
    let qp_num = || {
        // SAFETY: events of this kind are of a queue pair.
        unsafe { (*event.element.cast::<verbs::Qp>()).qp_num }
    };
    let said = match event.event_type {
        event::CQ_ERR => AsyncEvent::CqError {
            // SAFETY: events of this kind are of a completion queue.
            token: token_of(unsafe { (*event.element.cast::<verbs::Cq>()).cq_context }),
        },
        event::QP_FATAL | event::QP_REQ_ERR => AsyncEvent::QpFatal { qp_num: qp_num() },
        event::QP_ACCESS_ERR => AsyncEvent::QpAccessError { qp_num: qp_num() },
        event::COMM_EST => AsyncEvent::CommunicationEstablished { qp_num: qp_num() },
        event::SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached {
            // SAFETY: events of this kind are of a shared receive queue.
            token: token_of(unsafe { (*event.element.cast::<verbs::Srq>()).srq_context }),
        },
        event::DEVICE_FATAL => AsyncEvent::DeviceFatal,
        _ => return None,
    };
    Some(said)
}

impl ContextOps for Context {
    fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attributes = self.description.attributes.clone();
        attributes.max_inline = *self
            .max_inline
            .get_or_init(|| crate::queue::probe_inline(self));
        Ok(attributes)
    }

    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>> {
        Ok(Arc::new(Pd::new(self)?))
    }

    fn create_completion_channel(self: Arc<Self>) -> Result<Arc<dyn CompletionChannelOps>> {
        Ok(Arc::new(CompletionChannel::new(self)?))
    }

    fn create_cq(
        self: Arc<Self>,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannelOps>>,
        token: u64,
    ) -> Result<Arc<dyn CqOps>> {
        let channel = channel
            .map(|channel| downcast::<CompletionChannel>(channel.clone()))
            .transpose()?;
        Ok(Arc::new(Cq::new(self, entries, channel, token)?))
    }

    fn create_event_channel(self: Arc<Self>) -> Result<Arc<dyn EventChannelOps>> {
        Ok(Arc::new(Handle(EventChannel::new(self)?)))
    }

    fn listen(
        self: Arc<Self>,
        address: SocketAddr,
        channel: &Arc<dyn EventChannelOps>,
        backlog: u32,
    ) -> Result<Arc<dyn ListenerOps>> {
        let channel = &downcast::<Handle>(channel.clone())?.0;
        if !std::ptr::eq(channel.context(), Arc::as_ptr(&self)) {
            return Err(Error::Invalid("the event channel is of another context"));
        }
        Ok(Arc::new(Listener::new(channel, address, backlog)?))
    }

    fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        loop {
            match self.take_async_event() {
                Some(None) => {}
                Some(said) => return Ok(said),
                None => return Ok(None),
            }
        }
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.raw.ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the context.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }
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
