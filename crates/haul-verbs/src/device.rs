//! Devices, and what is made from an opened one.

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::cm::{Listener, ListenerOps};
use crate::completion::{CompletionChannel, CompletionChannelOps, Cq, CqOps};
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::memory::{Pd, PdOps};
use crate::queue::{EventChannel, EventChannelOps};

/// An RDMA device, not opened.
#[derive(Debug, Clone)]
pub struct Device(Arc<dyn DeviceOps>);

/// The transport of a device. It decides what the completion of a Send or Write means
/// (docs/verbs.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// iWARP over TCP (RFC 5040 to 5044): complete means that the transport has taken it.
    Iwarp,
    /// iWARP's DDP and RDMAP over UDT: as [`Transport::Iwarp`].
    IwarpUdt,
    /// iWARP's DDP and RDMAP in UDP datagrams (docs/protocol/datagram.md). Unreliable: complete
    /// means that it was handed to the network; reliable: that the peer has acknowledged it.
    IwarpUdp,
    /// RDMA over Converged Ethernet: complete means that the peer's device has acknowledged it.
    Roce,
    /// InfiniBand: as [`Transport::Roce`].
    InfiniBand,
}

bitflags::bitflags! {
    /// Optional abilities of a device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DeviceCaps: u32 {
        /// Compare-and-swap and fetch-and-add.
        const ATOMIC = 1;
        /// Shared receive queues.
        const SRQ = 1 << 1;
        /// Send with Invalidate, and local invalidation.
        const SEND_WITH_INVALIDATE = 1 << 2;
        /// RDMA Write with immediate data.
        const WRITE_WITH_IMM = 1 << 3;
        /// Send with immediate data and payload.
        const SEND_WITH_IMM = 1 << 4;
        /// Unreliable datagrams.
        const UD = 1 << 5;
        /// Memory regions that count from zero.
        const ZERO_BASED = 1 << 6;
        /// [`QpInit::remote_placement`](crate::QpInit::remote_placement) can be chosen; where it
        /// cannot, the transport always has it or never.
        const REMOTE_PLACEMENT = 1 << 7;
        /// [`Qp::connect_endpoint`](crate::Qp::connect_endpoint): connections without the
        /// connection manager.
        const ENDPOINTS = 1 << 8;
        /// Reliable datagrams.
        const RD = 1 << 9;
        /// Reliable connections.
        const RC = 1 << 10;
        /// RDMA Write-Record.
        const WRITE_RECORD = 1 << 11;
        /// [`QpInit::rate_limit`](crate::QpInit::rate_limit). The bits are those of
        /// `include/haul.h`, which has 1 << 12 for byte streams, and no device of this crate has
        /// those.
        const RATE_LIMIT = 1 << 13;
    }
}

/// Limits and abilities of a device (`ibv_device_attr`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Its transport.
    pub transport: Transport,
    /// Its optional abilities.
    pub caps: DeviceCaps,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Pieces of a work request; at most [`SGE_MAX`](crate::SGE_MAX).
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Bytes of a message.
    pub max_message: u64,
    /// Reads and atomics that a queue pair answers at once (IRD).
    pub max_rd_atomic: u32,
    /// Reads and atomics that a queue pair has outstanding (ORD).
    pub max_init_rd_atomic: u32,
    /// Private data of a connection request, bytes.
    pub max_private_data: u32,
}

impl DeviceAttributes {
    /// Describes a device that has no resources yet: the provider sets each limit.
    #[must_use]
    pub fn new(transport: Transport, caps: DeviceCaps) -> Self {
        Self {
            transport,
            caps,
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 0,
            max_inline: 0,
            max_cqe: 0,
            max_mr: 0,
            max_mr_size: 0,
            max_message: 0,
            max_rd_atomic: 0,
            max_init_rd_atomic: 0,
            max_private_data: 0,
        }
    }
}

impl Device {
    /// Wraps a device of a provider.
    #[must_use]
    pub fn from_ops(ops: Arc<dyn DeviceOps>) -> Self {
        Self(ops)
    }

    /// Returns its name: `soft-tcp`, `rxe0`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the provider's name: `soft`, `ibv`.
    #[must_use]
    pub fn provider(&self) -> &'static str {
        self.0.provider()
    }

    /// Returns the limits and abilities.
    ///
    /// # Errors
    /// [`Error::Os`] where a device does not answer.
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        self.0.attributes()
    }

    /// Returns what there is to know about the device beside its attributes, for people.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        self.0.note()
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Os`]: no permission, out of descriptors.
    pub fn open(&self) -> Result<Context> {
        self.0.open().map(Context)
    }
}

/// An opened device. Clones are the same; what was made from it keeps it open.
#[derive(Debug, Clone)]
pub struct Context(Arc<dyn ContextOps>);

impl Context {
    /// Wraps a context of a provider.
    #[must_use]
    pub fn from_ops(ops: Arc<dyn ContextOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn ContextOps> {
        &self.0
    }

    /// Returns the limits and abilities.
    ///
    /// # Errors
    /// [`Error::Os`] where a device does not answer.
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        self.0.attributes()
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.0.clone().alloc_pd().map(Pd::from_ops)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`Error::Os`]: out of descriptors.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel> {
        let ops = self.0.clone().create_completion_channel()?;
        Ok(CompletionChannel::from_ops(ops))
    }

    /// Creates a completion queue with room for at least `entries` completions. Events of it appear
    /// on `channel` as `token`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no or too many entries, or a channel of
    /// another context.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        token: u64,
    ) -> Result<Cq> {
        let ops = channel.map(CompletionChannel::ops);
        self.0
            .clone()
            .create_cq(entries, ops, token)
            .map(Cq::from_ops)
    }

    /// Creates a channel for events of connections.
    ///
    /// # Errors
    /// [`Error::Os`]: out of descriptors.
    pub fn create_event_channel(&self) -> Result<EventChannel> {
        let ops = self.0.clone().create_event_channel()?;
        Ok(EventChannel::from_ops(ops))
    }

    /// Listens for connections at `address` (port 0: any free one); requests appear on `channel`.
    /// At most `backlog` requests wait there for an answer; further ones are rejected.
    ///
    /// # Errors
    /// [`Error::Os`]: the address is in use or not of this machine.
    pub fn listen(
        &self,
        address: SocketAddr,
        channel: &EventChannel,
        backlog: u32,
    ) -> Result<Listener> {
        let ops = self.0.clone().listen(address, channel.ops(), backlog)?;
        Ok(Listener::from_ops(ops))
    }

    /// Takes the next asynchronous event, if there is one.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn poll_async_event(&self) -> Result<Option<AsyncEvent>> {
        self.0.poll_async_event()
    }

    /// Returns a descriptor that is readable while there are asynchronous events.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.0.async_fd()
    }
}

/// A provider's part of [`Device`].
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
    /// See [`Device::note`].
    fn note(&self) -> Option<String> {
        None
    }
    /// See [`Device::open`].
    ///
    /// # Errors
    /// As there.
    fn open(&self) -> Result<Arc<dyn ContextOps>>;
}

/// A provider's part of [`Context`], whose methods document what each does and how it fails.
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
