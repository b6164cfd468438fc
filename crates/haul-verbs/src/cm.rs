//! Connections, as librdmacm makes them: listen, connect, accept, reject, disconnect, and events.
//!
//! The passive end listens; each [`ConnectRequest`] that appears on the listener's channel is
//! accepted with a queue pair, or rejected. The active end connects a queue pair. Both then see
//! [`CmEvent::Established`] on the channel they named, and [`CmEvent::Disconnected`] when it is
//! over, whoever ended it and however.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::provider::{EventChannelOps, ListenerOps, RequestOps};
use crate::queue::Qp;
use crate::{Failure, Result};

/// What an end offers or asks for (`rdma_conn_param`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// For the peer's application; as long as
    /// [`DeviceAttributes::max_private_data`](crate::DeviceAttributes::max_private_data) allows.
    pub private_data: &'a [u8],
    /// Reads and atomics of the peer that this end answers at once (IRD).
    pub responder_resources: u16,
    /// Reads and atomics that this end wants to have outstanding (ORD).
    pub initiator_depth: u16,
    /// How often to try again where the peer has posted no receive, 7 meaning for ever. Transports
    /// without this ignore it.
    pub rnr_retry_count: u8,
    /// How often to send again. Transports with time-outs of their own ignore it.
    pub retry_count: u8,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: 16,
            initiator_depth: 16,
            rnr_retry_count: 7,
            retry_count: 7,
        }
    }
}

/// What both ends have agreed on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Established {
    /// What the peer's application sent; empty at the passive end, which had it with the request.
    pub private_data: Vec<u8>,
    /// IRD as it is now.
    pub responder_resources: u16,
    /// ORD as it is now.
    pub initiator_depth: u16,
}

/// News of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// Somebody wants to connect to a listener. Dropping the request rejects it.
    ConnectRequest(ConnectRequest),
    /// The connection is there: sends may be posted.
    Established {
        /// The queue pair.
        qp_num: u32,
        /// What was agreed on.
        established: Established,
    },
    /// The peer's application does not want the connection.
    Rejected {
        /// The queue pair. It is in error and its receives are flushed; another attempt takes a new
        /// one.
        qp_num: u32,
        /// What the peer's application says.
        private_data: Vec<u8>,
    },
    /// There is no listener, no route, no answer, or an answer that makes no sense.
    Unreachable {
        /// The queue pair.
        qp_num: u32,
        /// Why.
        failure: Failure,
    },
    /// The connection is over; what was posted is flushed.
    Disconnected {
        /// The queue pair.
        qp_num: u32,
        /// None where an end disconnected in order.
        failure: Option<Failure>,
    },
}

/// Where events of connections arrive (`rdma_event_channel`). Clones are the same.
#[derive(Debug, Clone)]
pub struct EventChannel(Arc<dyn EventChannelOps>);

impl EventChannel {
    pub(crate) fn from_ops(ops: Arc<dyn EventChannelOps>) -> Self {
        Self(ops)
    }

    /// The provider's own object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn EventChannelOps> {
        &self.0
    }

    /// Readable while there are events.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Takes an event without waiting.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub fn poll(&self) -> Result<Option<CmEvent>> {
        self.0.poll()
    }

    /// Takes an event, waiting for it; none when `timeout` has passed.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        self.0.wait(timeout)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().as_raw_fd()
    }
}

/// A listener; dropping it ends it, not the connections that came of it.
#[derive(Debug)]
pub struct Listener(Arc<dyn ListenerOps>);

impl Listener {
    pub(crate) fn from_ops(ops: Arc<dyn ListenerOps>) -> Self {
        Self(ops)
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }
}

/// A peer that wants to connect.
#[derive(Debug)]
pub struct ConnectRequest {
    ops: Box<dyn RequestOps>,
    /// The peer.
    pub peer: SocketAddr,
    /// What its application says.
    pub private_data: Vec<u8>,
    /// Reads and atomics that the peer answers at once: the most that this end's ORD can be.
    pub responder_resources: u16,
    /// Reads and atomics that the peer wants to have outstanding: what this end's IRD should be.
    pub initiator_depth: u16,
}

impl ConnectRequest {
    /// For providers: a request of theirs.
    #[must_use]
    pub fn new(
        ops: Box<dyn RequestOps>,
        peer: SocketAddr,
        private_data: Vec<u8>,
        responder_resources: u16,
        initiator_depth: u16,
    ) -> Self {
        Self {
            ops,
            peer,
            private_data,
            responder_resources,
            initiator_depth,
        }
    }

    /// Connects `qp`, which must be new, of the listener's context. Post its receives first. The
    /// listener's channel gets its events.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) for a queue pair that is not new,
    /// [`Error::Invalid`](crate::Error::Invalid) for private data that is too long; the request is
    /// rejected then.
    pub fn accept(self, qp: &Qp, param: &ConnParam<'_>) -> Result<()> {
        self.ops.accept(qp.ops(), param)
    }

    /// Turns the peer away; its application gets `private_data`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for private data that is too long; the request is
    /// rejected without any then.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.ops.reject(private_data)
    }
}
