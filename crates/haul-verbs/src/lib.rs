//! RDMA verbs: the types that applications use, and the traits that providers implement.
//!
//! The words are those of IBTA and libibverbs: a [`Device`] is opened as a [`Context`]; it makes
//! protection domains ([`Pd`]), memory regions ([`Mr`]), completion queues ([`Cq`]), shared receive
//! queues ([`Srq`]) and queue pairs ([`Qp`]); work requests ([`SendWr`], [`RecvWr`]) are posted in
//! batches and come back as [`WorkCompletion`]s. Connections are made as librdmacm makes them
//! ([`cm`]). Everything that waits can be polled, waited for with a timeout, or watched through a
//! file descriptor.
//!
//! Memory: a region that a peer may write is a [`Region`] of `haul-slab`, never a slice. From the
//! posting of a work request to its completion its bytes belong to the request. Reading them
//! earlier gives old and new bytes mixed.
//!
//! Order and completion: work requests of a queue pair start in the order of posting and complete
//! in that order. What a completion proves depends on the transport: see [`Transport`] and
//! docs/verbs.md: over iWARP a Write or Send is complete when the transport has taken it, not when
//! it has reached the peer, unless the queue pair was made with [`QpInit::remote_placement`].
//!
//! Threads: every object is `Send` and `Sync`, its clones are the same object, and every method may
//! be called from several threads at once. What waits: [`Cq::wait`],
//! [`CompletionChannel::wait_event`], [`cm::EventChannel::wait`] and [`Qp::connect_endpoint`], no
//! longer than they are told; dropping an [`Mr`] waits for a copy that is in progress. Nothing else
//! waits for a peer. The software provider sends and receives in the thread that posts, polls or
//! waits; while none does, in a thread of its own. For an event loop there are file descriptors:
//! the channels are `AsFd` and `AsRawFd` ([`CompletionChannel`], [`cm::EventChannel`]), and
//! [`Context::async_fd`].
//!
//! This crate knows no provider. One implements [`provider::Provider`] and what hangs below it; an
//! operation that it does not have returns [`Error::Unsupported`], which is what the traits'
//! default methods do.
//!
//! Map: `device` [`Device`], [`Context`] · `memory` [`Pd`], [`Mr`] · `work` requests · `completion`
//! [`Cq`], [`CompletionChannel`], [`WorkCompletion`] · `queue` [`Qp`], `srq` [`Srq`] · [`cm`]
//! connections · `attributes`, `address` plain data · `event` what happens without being asked for
//! · [`provider`] the other side.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod attributes;
pub mod cm;
mod completion;
mod datagram;
mod device;
mod error;
mod event;
mod memory;
pub mod provider;
mod queue;
mod seal;
mod srq;
mod work;

pub use address::{Peer, Remote};
pub use attributes::{Endpoint, QpCapacity, QpState, QpStatistics, QpType, RateLimit};
pub use completion::{CompletionChannel, Cq, Notify, WcData, WcOpcode, WcStatus, WorkCompletion};
pub use datagram::{
    DatagramInit, DatagramStatistics, RecordMode, RecordStatus, Sources, WriteRecord,
};
pub use device::{Context, Device, DeviceAttributes, DeviceCaps, Transport};
pub use error::{Blame, Error, Failure, PostError, Result};
pub use event::AsyncEvent;
pub use memory::{Mr, MrAddressing, MrInit, Pd};
pub use queue::{Qp, QpInit};
pub use seal::SealKey;
pub use srq::{Srq, SrqInit};
pub use work::{Data, RecvWr, SGE_MAX, SendFlags, SendOp, SendWr, Sge, SgeList};

pub use haul_slab::{AccessFlags, Arena, OutOfBounds, Region};
