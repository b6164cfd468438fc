//! Queue pairs and shared receive queues.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::cm::{ConnParam, EventChannel};
use crate::completion::Cq;
use crate::datagram::{DatagramInit, DatagramStatistics, WriteRecord};
use crate::provider::{QpOps, SrqOps};
use crate::work::{RecvWr, SendWr};
use crate::{Failure, PostError, Result};

/// A queue pair. Clones are the same; the last one ends the connection.
#[derive(Debug, Clone)]
pub struct Qp(Arc<dyn QpOps>);

/// The service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable datagram.
    Ud,
    /// Reliable datagram.
    Rd,
}

/// State of a queue pair (IBTA 1.4 §10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QpState {
    /// New.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Receives are carried out: the connection is being made.
    Rtr,
    /// Connected.
    Rts,
    /// The send queue drains.
    Sqd,
    /// The send queue is in error.
    Sqe,
    /// In error: everything posted is flushed.
    Err,
}

/// Room in a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapacity {
    /// Send work requests that are posted and whose completions have not been polled; see
    /// [`SendFlags::SIGNALED`](crate::SendFlags::SIGNALED).
    pub max_send_wr: u32,
    /// Receive work requests that are posted and whose completions have not been polled. Not used
    /// with a shared receive queue.
    pub max_recv_wr: u32,
    /// Pieces of a send work request.
    pub max_send_sge: u32,
    /// Pieces of a receive work request.
    pub max_recv_sge: u32,
    /// Octets of inline data.
    pub max_inline: u32,
}

impl Default for QpCapacity {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        }
    }
}

/// How to make a queue pair (`ibv_qp_init_attr`).
#[derive(Debug, Clone)]
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
    /// A reliable connection that completes on `cq`.
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

/// How fast a queue pair sends at most (`ibv_qp_rate_limit_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits per second on the wire, with the headers from IP up; more than none.
    pub bits_per_second: u64,
    /// Over any time no more data leaves than the rate brings and so many octets, and a packet, for
    /// a policer on the way; none: as it suits the device. Acknowledgements are not counted. Where
    /// the kernel sends (TCP) the burst is the kernel's.
    pub max_burst_bytes: Option<u64>,
}

/// What two programs tell each other to connect queue pairs without the connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair's number.
    pub qp_num: u32,
    /// First packet sequence number (24 bits), chosen by the owner.
    pub psn: u32,
    /// Port's local identifier; zero on Ethernet.
    pub lid: u16,
    /// Port's global identifier: on IP networks the address, IPv4 mapped into IPv6. The software
    /// provider listens at all of the host's addresses and names none: put one there that the peer
    /// reaches.
    pub gid: [u8; 16],
    /// Transport port that the software provider listens at; zero for devices.
    pub port: u16,
}

impl Endpoint {
    /// The address in `gid` with `port`.
    #[must_use]
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from(self.gid).to_canonical(), self.port)
    }
}

/// What a connection has gone through. Transports that do not know say zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpStatistics {
    /// Segments sent more than once.
    pub resent_segments: u64,
    /// Octets sent more than once.
    pub resent_bytes: u64,
    /// Segments that were placed before one that had been sent before them.
    pub early_segments: u64,
    /// Segments that arrived once more.
    pub duplicate_segments: u64,
    /// Round-trip time, smoothed, ns.
    pub round_trip_ns: u64,
}

impl Qp {
    /// For providers: a queue pair of theirs.
    #[must_use]
    pub fn from_ops(ops: Arc<dyn QpOps>) -> Self {
        Self(ops)
    }

    /// The provider's own object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn QpOps> {
        &self.0
    }

    /// Its number, unique in its context; 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// Its state now.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.0.state()
    }

    /// Why it is in error, where that is known.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }

    /// Room as it was made, at least what was asked for.
    #[must_use]
    pub fn capacity(&self) -> QpCapacity {
        self.0.capacity()
    }

    /// What its connection has gone through.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported); [`Error::State`](crate::Error::State)
    /// without a connection.
    pub fn statistics(&self) -> Result<QpStatistics> {
        self.0.statistics()
    }

    /// Posts send work requests, in order. In error they are flushed with a completion each.
    ///
    /// # Errors
    /// [`PostError`] names the first that is not posted: [`Error::State`](crate::Error::State)
    /// before the connection is there, [`Error::Full`](crate::Error::Full),
    /// [`Error::Invalid`](crate::Error::Invalid) for more pieces or inline data than there is room
    /// for, [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.post_send(requests)
    }

    /// Posts receive work requests, in order; possible before the connection is there.
    ///
    /// # Errors
    /// As [`Qp::post_send`]; [`Error::Invalid`](crate::Error::Invalid) with a shared receive queue.
    pub fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        self.0.post_recv(requests)
    }

    /// Asks the listener at `peer` for a connection. What comes of it appears on `channel`:
    /// [`CmEvent::Established`](crate::cm::CmEvent::Established),
    /// [`CmEvent::Rejected`](crate::cm::CmEvent::Rejected) or
    /// [`CmEvent::Unreachable`](crate::cm::CmEvent::Unreachable), and later
    /// [`CmEvent::Disconnected`](crate::cm::CmEvent::Disconnected).
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) unless it is new;
    /// [`Error::Invalid`](crate::Error::Invalid) for private data that is too long.
    pub fn connect(
        &self,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        channel: &EventChannel,
    ) -> Result<()> {
        self.0.clone().connect(peer, param, channel.ops())
    }

    /// Begins a datagram service at `address` (port 0: any free one) and says where; from now on
    /// datagrams are received and work requests with a [`Peer`](crate::Peer) can be posted.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for connections;
    /// [`Error::State`](crate::Error::State) unless it is new; [`Error::Os`](crate::Error::Os): the
    /// address is in use or not of this machine.
    pub fn bind(&self, address: SocketAddr) -> Result<SocketAddr> {
        self.0.clone().bind(address)
    }

    /// The same on a bound UDP socket of the caller's.
    ///
    /// # Errors
    /// As [`Qp::bind`]; [`Error::Invalid`](crate::Error::Invalid) for a socket of another kind.
    pub fn adopt(&self, socket: OwnedFd) -> Result<SocketAddr> {
        self.0.clone().adopt(socket)
    }

    /// Hears what is sent to the multicast group, at the interface with the address `interface`, or
    /// where the route leads.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for connections and reliable datagrams;
    /// [`Error::State`](crate::Error::State) before [`Qp::bind`]; [`Error::Os`](crate::Error::Os).
    pub fn attach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.0.attach_multicast(group, interface)
    }

    /// Hears it no more.
    ///
    /// # Errors
    /// As [`Qp::attach_multicast`].
    pub fn detach_multicast(&self, group: IpAddr, interface: Option<IpAddr>) -> Result<()> {
        self.0.detach_multicast(group, interface)
    }

    /// Takes the record that a completion with this `wr_id` announced: of a Write-Record the number
    /// is the queue pair's own (its top bit is set), of a Read that came in part the work
    /// request's. The last 1 024 that nobody took are kept.
    #[must_use]
    pub fn take_record(&self, wr_id: u64) -> Option<WriteRecord> {
        self.0.take_record(wr_id)
    }

    /// The records of the region with this key, open ones and those that nobody took, without
    /// taking them.
    #[must_use]
    pub fn records(&self, rkey: u32) -> Vec<WriteRecord> {
        self.0.records(rkey)
    }

    /// What the datagram service has counted.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for connections.
    pub fn datagram_statistics(&self) -> Result<DatagramStatistics> {
        self.0.datagram_statistics()
    }

    /// Ends the connection: what was handed to the transport still arrives, what is posted and not
    /// complete is flushed.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) where there is no connection.
    pub fn disconnect(&self) -> Result<()> {
        self.0.disconnect()
    }

    /// What to tell the peer for [`Qp::connect_endpoint`].
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn endpoint(&self) -> Result<Endpoint> {
        self.0.endpoint()
    }

    /// Connects to the queue pair that `peer` describes, which does the same with this one;
    /// `param`'s private data is not sent.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported); [`Error::Os`](crate::Error::Os) with
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

/// How to make a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqInit {
    /// Receive work requests that are posted and whose completions have not been polled.
    pub max_wr: u32,
    /// Pieces of each.
    pub max_sge: u32,
    /// Names it in [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached).
    pub token: u64,
}

impl Default for SrqInit {
    fn default() -> Self {
        Self {
            max_wr: 1_024,
            max_sge: 1,
            token: 0,
        }
    }
}

/// A shared receive queue. Clones are the same.
#[derive(Debug, Clone)]
pub struct Srq(Arc<dyn SrqOps>);

impl Srq {
    pub(crate) fn from_ops(ops: Arc<dyn SrqOps>) -> Self {
        Self(ops)
    }

    /// The provider's own object.
    #[must_use]
    pub fn ops(&self) -> &Arc<dyn SrqOps> {
        &self.0
    }

    /// Posts receive work requests.
    ///
    /// # Errors
    /// As [`Qp::post_recv`].
    pub fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        self.0.post_recv(requests)
    }

    /// Reports once, as an asynchronous event, that fewer than `limit` work requests are left. Zero
    /// turns it off.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.0.arm_limit(limit)
    }
}
