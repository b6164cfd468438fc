//! Attributes of queue pairs and connections: plain data.

use std::net::{IpAddr, SocketAddr};

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

/// Capacity of a queue pair. Build it from [`QpCapacity::default`], then set fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Bytes of inline data.
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

/// The rate limit of a queue pair (`ibv_qp_rate_limit_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimit {
    /// Bits per second on the wire, with the headers from IP up; more than none.
    pub bits_per_second: u64,
    /// Over any time no more data leaves than the rate brings and so many bytes, and a packet, for
    /// a policer on the way; none: as it suits the device. Acknowledgements are not counted. Where
    /// the kernel sends (TCP) the burst is the kernel's.
    pub max_burst_bytes: Option<u64>,
}

impl RateLimit {
    /// Limits to a rate, with a burst as it suits the device.
    #[must_use]
    pub const fn new(bits_per_second: u64) -> Self {
        Self {
            bits_per_second,
            max_burst_bytes: None,
        }
    }

    /// Sets the burst, bytes; with `None` the device chooses one.
    #[must_use]
    pub const fn with_burst(self, max_burst_bytes: Option<u64>) -> Self {
        Self {
            max_burst_bytes,
            ..self
        }
    }
}

/// The values that two applications exchange to connect queue pairs without the connection manager.
/// [`Endpoint::new`] builds it from what the peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Describes a queue pair by all its fields, in their order.
    #[must_use]
    pub const fn new(qp_num: u32, psn: u32, lid: u16, gid: [u8; 16], port: u16) -> Self {
        Self {
            qp_num,
            psn,
            lid,
            gid,
            port,
        }
    }

    /// Returns the address in `gid` with `port`.
    #[must_use]
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::from(self.gid).to_canonical(), self.port)
    }
}

/// Counters of a connection; zero where the transport does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QpStatistics {
    /// Segments retransmitted.
    pub resent_segments: u64,
    /// Bytes retransmitted.
    pub resent_bytes: u64,
    /// Segments that were placed before one that had been sent before them.
    pub early_segments: u64,
    /// Segments that arrived more than once.
    pub duplicate_segments: u64,
    /// Round-trip time, smoothed, ns.
    pub round_trip_ns: u64,
}

/// The parameters that an end offers or requests (`rdma_conn_param`). Build it from
/// [`ConnParam::default`], then set fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
    /// How often to retransmit. Transports with timeouts of their own ignore it.
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

/// The parameters that both ends agreed on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Established {
    /// What the peer's application sent; empty at the passive end, which had it with the request.
    pub private_data: Vec<u8>,
    /// IRD as it is now.
    pub responder_resources: u16,
    /// ORD as it is now.
    pub initiator_depth: u16,
}
