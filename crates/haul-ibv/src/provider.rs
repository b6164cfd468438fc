//! The objects of `haul_verbs::provider` for devices, contexts and protection domains.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use haul_verbs::provider::{
    CompletionChannelOps, ContextOps, CqOps, DeviceOps, EventChannelOps, ListenerOps, MrOps, PdOps,
    QpOps, SrqOps,
};
use haul_verbs::{AsyncEvent, Device, DeviceAttributes, Error, MrInit, QpInit, Result, SrqInit};

use crate::cm::{self, Handle, Listener};
use crate::completion::{CompletionChannel, Cq, token_of};
use crate::context::{Context, downcast};
use crate::device::name_of;
use crate::ffi::verbs::{self, event};
use crate::library::{Library, Raw};
use crate::memory::{Mr, Pd};
use crate::queue::{Qp, Srq, probe_inline};

/// The provider's name.
pub(crate) const NAME: &str = "ibv";

/// A device of the list, by name.
#[derive(Debug)]
struct IbvDevice {
    library: Arc<Library>,
    name: String,
}

/// The devices that libibverbs has a driver for.
///
/// # Errors
/// The list cannot be read.
pub(crate) fn list(library: &Arc<Library>) -> Result<Vec<Device>> {
    let list = List::new(library)?;
    let devices = list.iter().map(|device| {
        Device::from_ops(Arc::new(IbvDevice {
            library: Arc::clone(library),
            name: name_of(library, device),
        }))
    });
    Ok(devices.collect())
}

impl DeviceOps for IbvDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn provider(&self) -> &'static str {
        NAME
    }

    fn attributes(&self) -> Result<DeviceAttributes> {
        self.open_context()?.attributes()
    }

    fn open(&self) -> Result<Arc<dyn ContextOps>> {
        let context = self.open_context()?;
        Ok(Arc::new(context))
    }
}

impl IbvDevice {
    fn open_context(&self) -> Result<Context> {
        let list = List::new(&self.library)?;
        let device = list
            .iter()
            .find(|device| name_of(&self.library, *device) == self.name)
            .ok_or_else(|| Error::Os {
                what: "device",
                source: std::io::ErrorKind::NotFound.into(),
            })?;
        // SAFETY: the device is of a list that lives; an open device does not need it any more.
        let context = unsafe { (self.library.verbs.ibv_open_device)(device) };
        let context = Raw::made("device", context)?;
        Context::new(Arc::clone(&self.library), context, self.name.clone())
    }
}

/// `ibv_get_device_list`, freed on drop.
struct List<'a> {
    library: &'a Library,
    start: Raw<*mut verbs::Device>,
    len: usize,
}

impl<'a> List<'a> {
    fn new(library: &'a Library) -> Result<Self> {
        let mut len: c_int = 0;
        // SAFETY: the count is written to a variable of ours.
        let start = unsafe { (library.verbs.ibv_get_device_list)(&raw mut len) };
        let start = Raw::made("list of devices", start).map_err(|error| match error {
            Error::Os { source, .. } if source.kind() == std::io::ErrorKind::Unsupported => {
                Error::Os {
                    what: "the kernel has no RDMA, or the module ib_uverbs is not loaded",
                    source,
                }
            }
            error => error,
        })?;
        Ok(Self {
            library,
            start,
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    fn iter(&self) -> impl Iterator<Item = *mut verbs::Device> {
        // SAFETY: the list has that many devices.
        let devices = unsafe { std::slice::from_raw_parts(self.start.ptr(), self.len) };
        devices.iter().copied()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once.
        unsafe { (self.library.verbs.ibv_free_device_list)(self.start.ptr()) };
    }
}

impl ContextOps for Context {
    fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attributes = self.description.attributes.clone();
        attributes.max_inline = *self.max_inline.get_or_init(|| probe_inline(self));
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
        Ok(Arc::new(Handle(cm::open_channel(self)?)))
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
            match take_async_event(self) {
                Some(None) => {}
                Some(said) => return Ok(said),
                None => return Ok(None),
            }
        }
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(Self::async_fd(self))
    }
}

/// Takes the next event, as the library has it, and gives back what haul has for it.
fn take_async_event(context: &Context) -> Option<Option<AsyncEvent>> {
    let verbs = &context.library.verbs;
    let mut event = verbs::AsyncEvent {
        element: std::ptr::null_mut(),
        event_type: 0,
    };
    // SAFETY: the context is open, its descriptor does not block, the event is ours.
    let returned = unsafe { (verbs.ibv_get_async_event)(context.raw.ptr(), &raw mut event) };
    if returned != 0 {
        return None;
    }
    let said = translate(&event);
    // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
    unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
    if let Some(AsyncEvent::QpFatal { qp_num } | AsyncEvent::QpAccessError { qp_num }) = said
        && let Some(qp) = context.find_qp(qp_num)
    {
        qp.on_async_error();
    }
    Some(said)
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

impl PdOps for Pd {
    fn reg_mr(self: Arc<Self>, init: MrInit) -> Result<Arc<dyn MrOps>> {
        Ok(Arc::new(Mr::new(self, init)?))
    }

    fn create_qp(self: Arc<Self>, init: &QpInit<'_>) -> Result<Arc<dyn QpOps>> {
        let qp: Arc<dyn QpOps> = Qp::new(self, init)?;
        Ok(qp)
    }

    fn create_srq(self: Arc<Self>, init: &SrqInit) -> Result<Arc<dyn SrqOps>> {
        Ok(Arc::new(Srq::new(self, init)?))
    }
}
