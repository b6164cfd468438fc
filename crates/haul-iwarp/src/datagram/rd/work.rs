//! Requests, completions and events of a reliable-datagram queue pair.

use std::net::SocketAddr;

use haul_cc::Algorithm;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};

use crate::address::Destination;
use crate::datagram::wire::{MsgId, Psn};
use crate::memory::Placement;
use crate::operation::CompletionKind;
use crate::qp::{Payload, QpConfig};
use crate::stag::Stag;

/// A queue pair somewhere: the destination of a request, the source of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Remote {
    /// Address and port of UDP.
    pub addr: SocketAddr,
    /// The queue pair there, 24 bits.
    pub qpn: u32,
}

impl Remote {
    pub(super) const fn destination(&self) -> Destination {
        Destination {
            addr: self.addr,
            qpn: self.qpn,
        }
    }
}

/// Sizes and choices of a queue pair, fixed when it is made. Build it from
/// [`RdConfig::default`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RdConfig {
    /// Domain, name, depths, reads. The depth of the send queue counts the requests to all peers
    /// together.
    pub qp: QpConfig,
    /// Its number on the wire, 24 bits.
    pub qpn: u32,
    /// Random, not zero, another one at each activation.
    pub epoch: u32,
    /// Secret random seed of first packet numbers and cookies.
    pub secret: [u8; 16],
    /// The first numbers of packets and messages of every peer, for tests of their wrap-around.
    /// Otherwise packets begin anywhere, and messages with 1.
    pub first: Option<(Psn, MsgId)>,
    /// The longest datagram that this end sends or takes, bytes of UDP payload.
    pub datagram_max: u16,
    /// Bytes below the UDP payload, for the account of the congestion control: 28 over IPv4, 48
    /// over IPv6.
    pub lower_len: u32,
    /// Of these, bytes that sealing adds to each datagram.
    pub around: u32,
    /// Packets that may be in flight in each direction, 64..=65536. While packets are missing, each
    /// takes one bit of memory.
    pub window: u32,
    /// Most peers with state at once. A new peer replaces the one that has been idle for longest.
    pub peers_max: u32,
    /// Congestion control, one for each peer that is being sent to.
    pub control: Algorithm,
    /// The error of a peer is the error of the queue pair, as in the paper; otherwise only its own
    /// requests end.
    pub fail_whole: bool,
    /// Time-outs without an answer before a peer counts as dead.
    pub tries: u32,
    /// A message takes a receive only if no message before it is missing; one that arrived early is
    /// retransmitted. So a hostile peer cannot hold receives by withholding earlier messages.
    pub receives_in_order: bool,
    /// How long a message may find no receive before its request fails at the sender, ns;
    /// `u64::MAX` is for ever.
    pub receiver_not_ready_ns: u64,
    /// An ACK waits no longer than this for more to acknowledge, ns.
    pub ack_delay_ns: u64,
    /// Packets per ACK, while nothing is missing.
    pub ack_every: u32,
    /// How long the state of a peer's sending side (RTT, rate) is kept after the last packet, ns.
    pub linger_ns: u64,
}

impl Default for RdConfig {
    fn default() -> Self {
        Self {
            qp: QpConfig::default(),
            qpn: 1,
            epoch: 1,
            secret: [0; 16],
            first: None,
            datagram_max: 1_472,
            lower_len: 28,
            around: 0,
            window: 1_024,
            peers_max: 65_536,
            control: Algorithm::default(),
            fail_whole: false,
            receives_in_order: false,
            tries: 8,
            receiver_not_ready_ns: SECOND_NS,
            ack_delay_ns: MILLISECOND_NS,
            ack_every: 2,
            linger_ns: SECOND_NS,
        }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdStatus {
    /// Well.
    Success,
    /// Not done, or not known to be done.
    Flushed,
    /// The buffer of a receive is not valid.
    LocalProtection,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer could not take or understand the operation: its receive was too small, it asked too
    /// much.
    RemoteOperation,
    /// The peer had no receive for it for too long.
    ReceiverNotReady,
    /// The peer does not answer.
    Unreachable,
}

/// The end of an operation. From here on the core does not name its buffers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdCompletion {
    /// From the request or receive.
    pub id: u64,
    /// From the request or receive.
    pub slot: u32,
    /// How.
    pub status: RdStatus,
    /// What.
    pub kind: CompletionKind,
    /// Bytes of the message.
    pub len: u32,
    /// From the request; true for receives.
    pub signalled: bool,
    /// The other end; none for a receive that ends unused.
    pub peer: Option<Remote>,
}

/// Why a peer is not known any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// One of the two ends needed the memory, or closed.
    Closed,
    /// It has restarted: requests that it had not acknowledged may or may not have been executed.
    Restarted,
    /// The path to it takes shorter datagrams than were agreed on. As after [`Down::Restarted`].
    Path,
    /// It does not answer.
    Unreachable,
    /// It had no receive for too long.
    ReceiverNotReady,
    /// It refused a message.
    Refused,
    /// It broke a rule of the protocol, and received a NOTICE with the reason.
    Misbehaved,
}

/// An event. Drain all after every call that takes `&mut`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdEvent {
    /// An operation ended.
    Completion(RdCompletion),
    /// A Write-Record of a peer is placed, all of it.
    Record {
        /// Whose.
        peer: Remote,
        /// Into which memory.
        stag: Stag,
        /// Tagged offset of its first byte.
        to: u64,
        /// Bytes.
        len: u32,
        /// Data of the completion.
        immediate: Option<u64>,
        /// Its number.
        msg_id: MsgId,
    },
    /// Both ends know each other.
    Up(Remote),
    /// The peer is forgotten; comes before the completions that it flushes. The next request to it
    /// begins anew.
    Down(Remote, Down),
    /// The queue pair has failed ([`RdConfig::fail_whole`]) or is closed: nothing more is taken.
    Error,
}

/// Where to place the payload of a datagram. Call [`super::RdQp::handle_placed`] or
/// [`super::RdQp::handle_memory_gone`] afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdArrived {
    /// Where.
    pub placement: Placement,
    /// Bytes of the datagram.
    pub payload: std::ops::Range<usize>,
}

/// A datagram to be sent: header bytes in the caller's slot, payload by name, and behind both the
/// CRC32C of both. A datagram without payload has its CRC in the slot already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdTransmit {
    /// Where to.
    pub to: SocketAddr,
    /// Bytes in the header slot.
    pub header_len: usize,
    /// Where the payload lies.
    pub payload: Payload,
    /// Bytes of payload.
    pub payload_len: u32,
    /// The CRC is to be appended; otherwise the slot has all of it.
    pub needs_crc: bool,
}

/// Counters since the queue pair was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RdStats {
    /// Packets of data sent, retransmissions included.
    pub sent: u64,
    /// Of these, retransmissions.
    pub repeated: u64,
    /// Packets of data taken.
    pub received: u64,
    /// Packets of data that had come before.
    pub duplicate: u64,
    /// Packets of data refused for want of a receive.
    pub no_receive: u64,
    /// Data packets dropped because they overtook others, where receives are assigned in order.
    pub early: u64,
    /// Datagrams that are none of this protocol, damaged, or contradict themselves.
    pub malformed: u64,
    /// Datagrams from a peer, or an epoch of it, that is not known, or for another queue pair.
    pub unknown_peer: u64,
    /// Hellos whose cookie is not ours, or too old.
    pub bad_cookie: u64,
    /// Hellos refused because the table of peers is full, or the two ends have no common
    /// parameters.
    pub refused: u64,
    /// Messages refused because of a key, a right or bounds.
    pub denied: u64,
    /// Messages refused because they are longer than their receive.
    pub too_long: u64,
    /// Peers closed to free memory for others.
    pub evicted: u64,
    /// Time-outs.
    pub timeouts: u64,
}
