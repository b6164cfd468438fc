//! Queue pairs, and the events and requests of their connections.

use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::attributes::{
    ConnParam, Endpoint, Established, QpCapacity, QpState, QpStatistics, QpType, RateLimit,
};
use crate::completion::Cq;
use crate::datagram::{DatagramInit, DatagramStatistics, WriteRecord};
use crate::error::{Error, Failure, PostError, Result};
use crate::srq::Srq;
use crate::work::{RecvWr, SendWr};

/// A queue pair. Clones are the same; the last one ends the connection.
#[derive(Debug, Clone)]
pub struct Qp(Arc<dyn QpOps>);

/// Parameters of a new queue pair (`ibv_qp_init_attr`). Build it with [`QpInit::new`], then set
/// fields:
///
/// ```
/// # use haul_verbs::{Cq, Pd, QpInit, Result};
/// # fn create(pd: &Pd, cq: Cq) -> Result<()> {
/// let mut init = QpInit::new(&cq);
/// init.capacity.max_send_wr = 1_024;
/// init.remote_placement = true;
/// let qp = pd.create_qp(&init)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QpInit<'a> {
    /// Its service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// Where receives come from, if they are shared.
    pub srq: Option<&'a Srq>,
    /// Room.
    pub capacity: QpCapacity,
    /// Every send work request reports its completion (`sq_sig_all`).
    pub signal_all: bool,
    /// A signalled Send or Write is complete when its bytes are placed at the peer, not when they
    /// are handed to the transport. Costs iWARP a round trip per signalled request that is waited
    /// for: a zero-length Read goes behind it, and takes a place of ORD. Other transports have this
    /// always.
    pub remote_placement: bool,
    /// How fast it sends at most (RC, RD; of UD see [`DatagramInit::max_rate`]); a device without
    /// [`DeviceCaps::RATE_LIMIT`](crate::DeviceCaps::RATE_LIMIT) refuses it.
    pub rate_limit: Option<RateLimit>,
    /// What only datagram services need.
    pub datagram: DatagramInit,
}

impl<'a> QpInit<'a> {
    /// Describes a reliable connection that completes on `cq`.
    #[must_use]
    pub fn new(cq: &'a Cq) -> Self {
        Self {
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            capacity: QpCapacity::default(),
            signal_all: false,
            remote_placement: false,
            rate_limit: None,
            datagram: DatagramInit::default(),
        }
    }
}

impl Qp {
    /// Wraps a queue pair of a provider.
    #[must_use]
    pub fn from_ops(ops: Arc<dyn QpOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn QpOps> {
        &self.0
    }

    /// Returns its number: 24 bits, unique in its context.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// Returns its present state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.0.state()
    }

    /// Returns why it is in error, if that is known.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }

    /// Returns its capacity: at least what [`QpInit::capacity`] asked for.
    #[must_use]
    pub fn capacity(&self) -> QpCapacity {
        self.0.capacity()
    }

    /// Returns the counters of its connection.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::State`]
    /// without a connection.
    pub fn statistics(&self) -> Result<QpStatistics> {
        self.0.statistics()
    }

    /// Posts send work requests, in order. In error they are flushed with a completion each.
    ///
    /// # Errors
    /// [`PostError`] names the first that is not posted: [`Error::State`]
    /// before the connection is there, [`Error::Full`],
    /// [`Error::Invalid`] for more pieces or inline data than there is room
    /// for, [`Error::Unsupported`].
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.post_send(requests)
    }

    /// Posts receive work requests, in order; possible before the connection is there.
    ///
    /// # Errors
    /// As [`Qp::post_send`]; [`Error::Invalid`] with a shared receive queue.
    pub fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        self.0.post_recv(requests)
    }

    /// Requests a connection from the listener at `peer`. The result appears on `channel`:
    /// [`CmEvent::Established`],
    /// [`CmEvent::Rejected`] or
    /// [`CmEvent::Unreachable`], and later
    /// [`CmEvent::Disconnected`].
    ///
    /// # Errors
    /// [`Error::State`] unless it is new;
    /// [`Error::Invalid`] for private data that is too long.
    pub fn connect(
        &self,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &EventChannel,
    ) -> Result<()> {
        self.0.clone().connect(peer, param, channel.ops())
    }

    /// Binds a datagram service to `address` (port 0: any free port) and returns the bound address.
    /// From then on it receives datagrams, and work requests with a [`Peer`](crate::Peer) can be
    /// posted.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for connections;
    /// [`Error::State`] unless it is new; [`Error::Os`]: the
    /// address is in use or not of this machine.
    pub fn bind(&self, address: SocketAddr) -> Result<SocketAddr> {
        self.0.clone().bind(address)
    }

    /// Binds a datagram service to a bound UDP socket of the caller, as [`Qp::bind`].
    ///
    /// # Errors
    /// As [`Qp::bind`]; [`Error::Invalid`] for a socket of another kind.
    pub fn adopt(&self, socket: OwnedFd) -> Result<SocketAddr> {
        self.0.clone().adopt(socket)
    }

    /// Joins the multicast group at the interface with the address `interface`, or at the interface
    /// of the route to the group.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for connections and reliable datagrams;
    /// [`Error::State`] before [`Qp::bind`]; [`Error::Os`].
    pub fn attach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.0.attach_multicast(group, interface)
    }

    /// Leaves the multicast group.
    ///
    /// # Errors
    /// As [`Qp::attach_multicast`].
    pub fn detach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.0.detach_multicast(group, interface)
    }

    /// Takes the record that a completion with this `wr_id` announced. For a Write-Record the queue
    /// pair chose the number (its top bit is set); for a Read that arrived in part it is that of
    /// the work request. The last 1,024 records that nobody took are kept.
    #[must_use]
    pub fn take_record(&self, wr_id: u64) -> Option<WriteRecord> {
        self.0.take_record(wr_id)
    }

    /// Returns the records of the region with this key, open ones and those that nobody took, and
    /// leaves them.
    #[must_use]
    pub fn records(&self, rkey: u32) -> Vec<WriteRecord> {
        self.0.records(rkey)
    }

    /// Returns the counters of the datagram service.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for connections.
    pub fn datagram_statistics(&self) -> Result<DatagramStatistics> {
        self.0.datagram_statistics()
    }

    /// Ends the connection: what was handed to the transport still arrives, what is posted and not
    /// complete is flushed.
    ///
    /// # Errors
    /// [`Error::State`] where there is no connection.
    pub fn disconnect(&self) -> Result<()> {
        self.0.disconnect()
    }

    /// Returns what the peer needs for [`Qp::connect_endpoint`].
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn endpoint(&self) -> Result<Endpoint> {
        self.0.endpoint()
    }

    /// Connects to the queue pair that `peer` describes, which does the same with this one;
    /// `param`'s private data is not sent.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::Os`] with
    /// `TimedOut` where the peer does not come.
    pub fn connect_endpoint(
        &self,
        peer: &Endpoint,
        param: &ConnParam<'_>,
        timeout: Duration,
    ) -> Result<()> {
        self.0.clone().connect_endpoint(peer, param, timeout)
    }
}

/// An event of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// A peer requests a connection from a listener. Dropping the request rejects it.
    ConnectRequest(ConnectRequest),
    /// The connection is established: sends may be posted.
    Established {
        /// The queue pair.
        qp_num: u32,
        /// What was agreed on.
        established: Established,
    },
    /// The peer's application rejected the connection.
    Rejected {
        /// The queue pair. It is in error and its receives are flushed; another attempt takes a new
        /// one.
        qp_num: u32,
        /// The private data of the peer's application.
        private_data: Vec<u8>,
    },
    /// There is no listener, no route, no answer, or an invalid answer.
    Unreachable {
        /// The queue pair.
        qp_num: u32,
        /// Why.
        failure: Failure,
    },
    /// The connection has ended; posted work requests are flushed.
    Disconnected {
        /// The queue pair.
        qp_num: u32,
        /// None where an end disconnected in order.
        failure: Option<Failure>,
    },
}

/// A channel on which events of connections arrive (`rdma_event_channel`). Clones are the same.
///
/// It is [`AsFd`], so an event loop can wait for it. With tokio, which only watches the descriptor:
///
/// ```
/// use haul_verbs::Result;
/// use haul_verbs::cm::{CmEvent, EventChannel};
/// use tokio::io::unix::AsyncFd;
///
/// /// Takes the next event, and waits for it.
/// async fn next(channel: &AsyncFd<EventChannel>) -> std::io::Result<Result<CmEvent>> {
///     loop {
///         let mut readable = channel.readable().await?;
///         match channel.get_ref().poll().transpose() {
///             Some(event) => return Ok(event),
///             None => readable.clear_ready(),
///         }
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct EventChannel(Arc<dyn EventChannelOps>);

impl EventChannel {
    pub(crate) fn from_ops(ops: Arc<dyn EventChannelOps>) -> Self {
        Self(ops)
    }

    /// Returns the provider's object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn EventChannelOps> {
        &self.0
    }

    /// Returns a descriptor that is readable while there are events.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Takes an event without waiting.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn poll(&self) -> Result<Option<CmEvent>> {
        self.0.poll()
    }

    /// Waits for an event and takes it; none when `timeout` has passed, `None` waits for ever.
    ///
    /// # Errors
    /// [`Error::Os`].
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

/// A connection request of a peer.
#[derive(Debug)]
pub struct ConnectRequest {
    ops: Box<dyn RequestOps>,
    /// The peer.
    pub peer: SocketAddr,
    /// The private data of its application.
    pub private_data: Vec<u8>,
    /// Reads and atomics that the peer answers at once: the most that this end's ORD can be.
    pub responder_resources: u16,
    /// Reads and atomics that the peer wants to have outstanding: what this end's IRD should be.
    pub initiator_depth: u16,
}

impl ConnectRequest {
    /// Wraps a request of a provider.
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
    /// [`Error::State`] for a queue pair that is not new,
    /// [`Error::Invalid`] for private data that is too long; the request is
    /// rejected then.
    pub fn accept(self, qp: &Qp, param: &ConnParam<'_>) -> Result<()> {
        self.ops.accept(qp.ops(), param)
    }

    /// Rejects the request; the application of the peer receives `private_data`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for private data that is too long; the request is
    /// rejected without any then.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.ops.reject(private_data)
    }
}

/// A provider's part of [`Qp`].
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

/// A provider's part of [`EventChannel`].
pub trait EventChannelOps: Any + Debug + Send + Sync {
    /// See [`EventChannel::fd`](crate::cm::EventChannel::fd).
    fn fd(&self) -> BorrowedFd<'_>;
    /// See [`EventChannel::poll`](crate::cm::EventChannel::poll).
    fn poll(&self) -> Result<Option<CmEvent>>;
    /// See [`EventChannel::wait`](crate::cm::EventChannel::wait).
    fn wait(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>>;
}

/// A provider's part of [`ConnectRequest`]. Dropping it without an answer rejects the request.
pub trait RequestOps: Debug + Send + Sync {
    /// See [`ConnectRequest::accept`](crate::cm::ConnectRequest::accept).
    fn accept(self: Box<Self>, qp: &Arc<dyn QpOps>, param: &ConnParam<'_>) -> Result<()>;
    /// See [`ConnectRequest::reject`](crate::cm::ConnectRequest::reject).
    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()>;
}
