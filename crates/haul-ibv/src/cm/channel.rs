//! Event channels of librdmacm, their identifiers and their thread.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_verbs::cm::CmEvent;
use haul_verbs::provider::EventChannelOps;
use haul_verbs::{Blame, Error, Failure, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::context::Context;
use crate::device::name_of;
use crate::ffi::cm::{self, ConnParam};
use crate::library::{Raw, check};
use crate::queue::Qp;
use crate::wait::{Deadline, set_nonblocking, wait_readable};

/// What a channel's thread does about an event.
pub(super) type Handler = fn(&Arc<EventChannel>, Notice) -> Option<CmEvent>;

/// Requests of a listener that wait for an answer.
#[derive(Debug)]
pub(super) struct Pending {
    /// 0 <= waiting <= backlog
    pub(super) waiting: AtomicU32,
    pub(super) backlog: u32,
}

/// An event channel.
#[derive(Debug)]
pub(crate) struct EventChannel {
    raw: Raw<cm::EventChannel>,
    context: Arc<Context>,
    /// What the identifiers of this channel are, by address.
    roles: Mutex<HashMap<usize, Role>>,
    /// For the application, while it has the channel. No longer than the backlogs and the
    /// connections make it.
    events: Mutex<Option<VecDeque<CmEvent>>>,
    /// Counts `events`.
    ready: OwnedFd,
    /// Readable once the thread is to end.
    stop: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What an identifier is for.
#[derive(Debug, Clone)]
pub(super) enum Role {
    Listener(Arc<Pending>),
    Connection(Weak<Qp>),
}

/// The contents of an event: the event itself goes back to the library before anything is done
/// about it, for an identifier with an event that is not acknowledged cannot be destroyed.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) id: Raw<cm::Id>,
    pub(super) listen_id: *mut cm::Id,
    pub(super) event: c_int,
    pub(super) status: c_int,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u16,
    pub(super) initiator_depth: u16,
}

impl EventChannel {
    /// Opens a channel whose thread gives each event to `handle`; what that returns is for the
    /// application.
    pub(super) fn new(context: Arc<Context>, handle: Handler) -> Result<Arc<Self>> {
        // SAFETY: the library is loaded.
        let channel = unsafe { (context.library.cm.rdma_create_event_channel)() };
        let raw = Raw::made("event channel", channel)?;
        let counter = || {
            let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
            rustix::event::eventfd(0, flags).map_err(|error| Error::os("eventfd")(error.into()))
        };
        let channel = Arc::new(Self {
            raw,
            context,
            roles: Mutex::default(),
            events: Mutex::new(Some(VecDeque::new())),
            ready: counter()?,
            stop: counter()?,
            thread: Mutex::default(),
        });
        set_nonblocking(channel.library_fd())?;
        let owned = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(Error::os("dup"));
        let (library, stop) = (owned(channel.library_fd())?, owned(channel.stop.as_fd())?);
        let this = Arc::downgrade(&channel);
        let thread = std::thread::Builder::new()
            .name("haul-cm".to_owned())
            .spawn(move || run(&this, handle, &library, &stop))
            .map_err(Error::os("thread"))?;
        *channel
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(channel)
    }

    fn library_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives.
        let fd = unsafe { (*self.raw.ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn push(&self, event: CmEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(events) = &mut *events else {
            // Nobody will look: a request is turned away, which the lock must not wait for.
            return;
        };
        events.push_back(event);
        // It can only fail when 2^64 - 2 events wait.
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn cm(&self) -> &cm::Cm {
        &self.context.library.cm
    }

    pub(super) fn set_role(&self, id: Raw<cm::Id>, role: Role) {
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles.insert(id.ptr().addr(), role);
    }

    pub(super) fn role(&self, id: *mut cm::Id) -> Option<Role> {
        let roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles.get(&id.addr()).cloned()
    }

    /// Takes one event from the library.
    fn take(&self) -> Result<Option<Notice>> {
        let mut taken: *mut cm::Event = std::ptr::null_mut();
        // SAFETY: the channel lives, its descriptor does not block, the result is a variable of
        // ours.
        let returned = unsafe { (self.cm().rdma_get_cm_event)(self.raw.ptr(), &raw mut taken) };
        match check("rdma_get_cm_event", returned) {
            Ok(()) => {}
            Err(Error::Os { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let taken = Raw::made("event", taken)?;
        // SAFETY: the event is ours until it is acknowledged.
        let notice = Notice::read(unsafe { &*taken.ptr() });
        // SAFETY: it came from `rdma_get_cm_event` and is acknowledged once; nothing refers to it.
        check("rdma_ack_cm_event", unsafe {
            (self.cm().rdma_ack_cm_event)(taken.ptr())
        })?;
        notice.map(Some)
    }
}

impl Notice {
    fn read(from: &cm::Event) -> Result<Self> {
        let ConnParam {
            private_data,
            private_data_len,
            responder_resources,
            initiator_depth,
            ..
        } = from.conn;
        let private_data: *const u8 = private_data.cast();
        let private_data = if private_data.is_null() {
            Vec::new()
        } else {
            // SAFETY: an event that is not acknowledged keeps its private data, of the length that
            // it names.
            unsafe { std::slice::from_raw_parts(private_data, private_data_len.into()) }.to_vec()
        };
        Ok(Self {
            id: Raw::made("event", from.id)?,
            listen_id: from.listen_id,
            event: from.event,
            status: from.status,
            private_data,
            responder_resources: responder_resources.into(),
            initiator_depth: initiator_depth.into(),
        })
    }
}

/// The thread of a channel.
fn run(channel: &Weak<EventChannel>, handle: Handler, library: &OwnedFd, stop: &OwnedFd) {
    loop {
        let mut fds = [library, stop].map(|fd| PollFd::new(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if fds[1].revents().is_empty() => {}
            Err(Errno::INTR) => continue,
            _ => return,
        }
        let Some(channel) = channel.upgrade() else {
            return;
        };
        match channel.take() {
            Ok(Some(notice)) => {
                if let Some(event) = handle(&channel, notice) {
                    channel.push(event);
                }
            }
            Ok(None) => {}
            // The device is gone, and with it every connection: their queue pairs report it.
            Err(_) => return,
        }
    }
}

/// The application's hold of an event channel. Connections go on without it, requests are turned
/// away.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<EventChannel>);

impl EventChannelOps for Handle {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.ready.as_fd()
    }

    fn poll(&self) -> Result<Option<CmEvent>> {
        let channel = &self.0;
        let mut events = channel
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let event = events.as_mut().and_then(VecDeque::pop_front);
        if event.is_some() {
            // It was counted when it was pushed.
            let _ = rustix::io::read(&channel.ready, &mut [0; 8]);
        }
        Ok(event)
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            if !wait_readable(self.fd(), &deadline)? {
                return Ok(None);
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        let left = events.take();
        // The requests among them hold the channel, and are turned away now.
        drop(events);
        drop(left);
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        let thread = self.thread.get_mut();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It can only fail when 2^64 - 2 have done so.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
            // The thread itself may have held the channel last.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        // SAFETY: identifiers hold their channel, so none is left; it is destroyed once.
        unsafe { (self.cm().rdma_destroy_event_channel)(self.raw.ptr()) };
    }
}

/// An identifier of librdmacm.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) raw: Raw<cm::Id>,
    pub(super) channel: Arc<EventChannel>,
}

impl Id {
    pub(super) fn new(channel: &Arc<EventChannel>, role: Role) -> Result<Self> {
        let mut id: *mut cm::Id = std::ptr::null_mut();
        let null: *mut c_void = std::ptr::null_mut();
        // SAFETY: the channel lives as long as the identifier, which holds it; the result is a
        // variable of ours.
        let returned = unsafe {
            (channel.cm().rdma_create_id)(channel.raw.ptr(), &raw mut id, null, cm::PS_TCP)
        };
        check("rdma_create_id", returned)?;
        let id = Self::adopt(Arc::clone(channel), Raw::made("connection identifier", id)?);
        channel.set_role(id.raw, role);
        Ok(id)
    }

    pub(super) fn adopt(channel: Arc<EventChannel>, raw: Raw<cm::Id>) -> Self {
        Self { raw, channel }
    }

    pub(super) fn cm(&self) -> &cm::Cm {
        self.channel.cm()
    }

    /// The device that it has been bound to.
    pub(super) fn device(&self) -> Option<String> {
        // SAFETY: the identifier lives.
        let verbs = unsafe { (*self.raw.ptr()).verbs };
        if verbs.is_null() {
            return None;
        }
        // SAFETY: librdmacm keeps the context of a bound identifier open.
        let device = unsafe { (*verbs).device };
        Some(name_of(&self.channel.context.library, device))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let mut roles = self
            .channel
            .roles
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        roles.remove(&self.raw.ptr().addr());
        drop(roles);
        // SAFETY: the identifier is destroyed once, and every event of it that was taken has been
        // acknowledged.
        unsafe { (self.cm().rdma_destroy_id)(self.raw.ptr()) };
    }
}

pub(super) fn network(reason: String) -> Failure {
    Failure::new(Blame::Network, reason)
}
