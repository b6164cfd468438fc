//! What a provider implements.
//!
//! Applications never see these traits: the types of the crate's root wrap them. Every trait is
//! object safe, and objects of one provider are given back to it as they are (`ops()` of the
//! wrappers, then a downcast through [`Any`]; one of another provider is [`Error::Invalid`]).
//! Objects keep what they were made from alive. Methods that have a default body are optional.

use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::cm::{CmEvent, ConnParam};
use crate::completion::{Notify, WorkCompletion};
use crate::datagram::{DatagramStatistics, WriteRecord};
use crate::memory::MrInit;
use crate::queue::{Endpoint, QpCapacity, QpInit, QpState, QpStatistics, SrqInit};
use crate::work::{RecvWr, SendWr};
use crate::{AsyncEvent, Device, DeviceAttributes, Error, Failure, PostError, Result};

/// A way to RDMA: the software one, libibverbs.
pub trait Provider: Debug + Send + Sync {
    /// Its name, in lower case.
    fn name(&self) -> &'static str;

    /// Its devices now.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the machine lacks what the provider needs, with the reason.
    fn devices(&self) -> Result<Vec<Device>>;
}

/// Behind [`Device`].
pub trait DeviceOps: Any + Debug + Send + Sync {
    /// See [`Device::name`].
    fn name(&self) -> &str;
    /// See [`Device::provider`].
    fn provider(&self) -> &'static str;
    /// See [`Device::attributes`].
    ///
    /// # Errors
    /// As there.
    fn attributes(&self) -> Result<DeviceAttributes>;
    /// See [`Device::open`].
    ///
    /// # Errors
    /// As there.
    fn open(&self) -> Result<Arc<dyn ContextOps>>;
}

/// Behind [`Context`](crate::Context), whose methods say what each does and how it fails.
pub trait ContextOps: Any + Debug + Send + Sync {
    /// See [`Context::attributes`](crate::Context::attributes).
    fn attributes(&self) -> Result<DeviceAttributes>;
    /// See [`Context::alloc_pd`](crate::Context::alloc_pd).
    fn alloc_pd(self: Arc<Self>) -> Result<Arc<dyn PdOps>>;
    /// See [`Context::create_completion_channel`](crate::Context::create_completion_channel).
    fn create_completion_channel(self: Arc<Self>) -> Result<Arc<dyn CompletionChannelOps>>;
    /// See [`Context::create_cq`](crate::Context::create_cq).
    fn create_cq(
        self: Arc<Self>,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannelOps>>,
        token: u64,
    ) -> Result<Arc<dyn CqOps>>;
    /// See [`Context::create_event_channel`](crate::Context::create_event_channel).
    fn create_event_channel(self: Arc<Self>) -> Result<Arc<dyn EventChannelOps>>;
    /// See [`Context::listen`](crate::Context::listen).
    fn listen(
        self: Arc<Self>,
        address: SocketAddr,
        channel: &Arc<dyn EventChannelOps>,
        backlog: u32,
    ) -> Result<Arc<dyn ListenerOps>>;
    /// See [`Context::poll_async_event`](crate::Context::poll_async_event).
    fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        Err(Error::Unsupported("reporting asynchronous events"))
    }
    /// See [`Context::async_fd`](crate::Context::async_fd).
    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        Err(Error::Unsupported("reporting asynchronous events"))
    }
}

/// Behind [`Pd`](crate::Pd).
pub trait PdOps: Any + Debug + Send + Sync {
    /// See [`Pd::register`](crate::Pd::register). The rights do not contradict each other.
    fn reg_mr(self: Arc<Self>, init: MrInit) -> Result<Arc<dyn MrOps>>;
    /// See [`Pd::create_qp`](crate::Pd::create_qp).
    fn create_qp(self: Arc<Self>, init: &QpInit<'_>) -> Result<Arc<dyn QpOps>>;
    /// See [`Pd::create_srq`](crate::Pd::create_srq).
    fn create_srq(self: Arc<Self>, _init: &SrqInit) -> Result<Arc<dyn SrqOps>> {
        Err(Error::Unsupported("a shared receive queue"))
    }
}

/// Behind [`Mr`](crate::Mr).
pub trait MrOps: Any + Debug + Send + Sync {
    /// See [`Mr::lkey`](crate::Mr::lkey).
    fn lkey(&self) -> u32;
    /// See [`Mr::rkey`](crate::Mr::rkey).
    fn rkey(&self) -> u32;
    /// See [`Mr::addr`](crate::Mr::addr).
    fn addr(&self) -> u64;
    /// Takes the rights away; called at least once, a second call does nothing. When it has
    /// returned nobody touches the bytes.
    fn dereg(&self) -> Result<()>;
}

/// Behind [`Cq`](crate::Cq).
pub trait CqOps: Any + Debug + Send + Sync {
    /// See [`Cq::poll`](crate::Cq::poll).
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// See [`Cq::wait`](crate::Cq::wait).
    fn wait(&self, out: &mut [WorkCompletion], timeout: Option<Duration>) -> Result<usize>;
    /// See [`Cq::arm`](crate::Cq::arm).
    fn arm(&self, notify: Notify) -> Result<()>;
}

/// Behind [`CompletionChannel`](crate::CompletionChannel).
pub trait CompletionChannelOps: Any + Debug + Send + Sync {
    /// See [`CompletionChannel::fd`](crate::CompletionChannel::fd).
    fn fd(&self) -> BorrowedFd<'_>;
    /// See [`CompletionChannel::poll_event`](crate::CompletionChannel::poll_event).
    fn poll_event(&self) -> Result<Option<u64>>;
    /// See [`CompletionChannel::wait_event`](crate::CompletionChannel::wait_event).
    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>>;
}

/// Behind [`Qp`](crate::Qp).
pub trait QpOps: Any + Debug + Send + Sync {
    /// See [`Qp::qp_num`](crate::Qp::qp_num).
    fn qp_num(&self) -> u32;
    /// See [`Qp::state`](crate::Qp::state).
    fn state(&self) -> QpState;
    /// See [`Qp::failure`](crate::Qp::failure).
    fn failure(&self) -> Option<Failure>;
    /// See [`Qp::capacity`](crate::Qp::capacity).
    fn capacity(&self) -> QpCapacity;
    /// See [`Qp::statistics`](crate::Qp::statistics).
    fn statistics(&self) -> Result<QpStatistics> {
        Err(Error::Unsupported("statistics of a connection"))
    }
    /// See [`Qp::post_send`](crate::Qp::post_send).
    fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError>;
    /// See [`Qp::post_recv`](crate::Qp::post_recv).
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError>;
    /// See [`Qp::connect`](crate::Qp::connect).
    fn connect(
        self: Arc<Self>,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &Arc<dyn EventChannelOps>,
    ) -> Result<()>;
    /// See [`Qp::disconnect`](crate::Qp::disconnect).
    fn disconnect(&self) -> Result<()>;
    /// See [`Qp::bind`](crate::Qp::bind).
    fn bind(self: Arc<Self>, _address: SocketAddr) -> Result<SocketAddr> {
        Err(Error::Unsupported("a datagram service"))
    }
    /// See [`Qp::adopt`](crate::Qp::adopt).
    fn adopt(self: Arc<Self>, _socket: OwnedFd) -> Result<SocketAddr> {
        Err(Error::Unsupported("a datagram service"))
    }
    /// See [`Qp::attach_multicast`](crate::Qp::attach_multicast).
    fn attach_multicast(&self, _group: IpAddr, _interface: Option<IpAddr>) -> Result<()> {
        Err(Error::Unsupported("a multicast group"))
    }
    /// See [`Qp::detach_multicast`](crate::Qp::detach_multicast).
    fn detach_multicast(&self, _group: IpAddr, _interface: Option<IpAddr>) -> Result<()> {
        Err(Error::Unsupported("a multicast group"))
    }
    /// See [`Qp::take_record`](crate::Qp::take_record).
    fn take_record(&self, _wr_id: u64) -> Option<WriteRecord> {
        None
    }
    /// See [`Qp::records`](crate::Qp::records).
    fn records(&self, _rkey: u32) -> Vec<WriteRecord> {
        Vec::new()
    }
    /// See [`Qp::datagram_statistics`](crate::Qp::datagram_statistics).
    fn datagram_statistics(&self) -> Result<DatagramStatistics> {
        Err(Error::Unsupported("a datagram service"))
    }
    /// See [`Qp::endpoint`](crate::Qp::endpoint).
    fn endpoint(&self) -> Result<Endpoint> {
        Err(Error::Unsupported(
            "a connection without the connection manager",
        ))
    }
    /// See [`Qp::connect_endpoint`](crate::Qp::connect_endpoint).
    fn connect_endpoint(
        self: Arc<Self>,
        _peer: &Endpoint,
        _param: &ConnParam<'_>,
        _timeout: Duration,
    ) -> Result<()> {
        Err(Error::Unsupported(
            "a connection without the connection manager",
        ))
    }
}

/// Behind [`Srq`](crate::Srq).
pub trait SrqOps: Any + Debug + Send + Sync {
    /// See [`Srq::post_recv`](crate::Srq::post_recv).
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError>;
    /// See [`Srq::arm_limit`](crate::Srq::arm_limit).
    fn arm_limit(&self, _limit: u32) -> Result<()> {
        Err(Error::Unsupported("a limit event"))
    }
}

/// Behind [`EventChannel`](crate::cm::EventChannel).
pub trait EventChannelOps: Any + Debug + Send + Sync {
    /// See [`EventChannel::fd`](crate::cm::EventChannel::fd).
    fn fd(&self) -> BorrowedFd<'_>;
    /// See [`EventChannel::poll`](crate::cm::EventChannel::poll).
    fn poll(&self) -> Result<Option<CmEvent>>;
    /// See [`EventChannel::wait`](crate::cm::EventChannel::wait).
    fn wait(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>>;
}

/// Behind [`Listener`](crate::cm::Listener); dropping it ends it.
pub trait ListenerOps: Any + Debug + Send + Sync {
    /// See [`Listener::local_addr`](crate::cm::Listener::local_addr).
    fn local_addr(&self) -> SocketAddr;
}

/// Behind [`ConnectRequest`](crate::cm::ConnectRequest); dropping it without an answer rejects it.
pub trait RequestOps: Debug + Send + Sync {
    /// See [`ConnectRequest::accept`](crate::cm::ConnectRequest::accept).
    fn accept(self: Box<Self>, qp: &Arc<dyn QpOps>, param: &ConnParam<'_>) -> Result<()>;
    /// See [`ConnectRequest::reject`](crate::cm::ConnectRequest::reject).
    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()>;
}
