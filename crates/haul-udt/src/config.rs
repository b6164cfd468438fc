//! Configuration of an end, and the parameters that both ends agreed on.

use haul_cc::{Algorithm, Rate};

use crate::error::Error;
use crate::wire::{HEADER_LEN, LOWER_LEN_V4, Offer, SEAL_LEN, SocketKind};

/// Every receiver that places takes this much before it has advertised a limit.
pub const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// Choices of the local user.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Stream or messages.
    pub kind: SocketKind,
    /// Largest IP packet, bytes; the lesser of both ends' counts.
    pub mtu: u32,
    /// Bytes of IP and UDP headers: 28 for IPv4, 48 for IPv6.
    pub lower_len: u32,
    /// Packets that this end takes in flight.
    pub flight_packets: u32,
    /// Payload bytes beyond the last one consumed that this end takes where packets are placed, at
    /// least [`WINDOW_BYTES_MIN`]; at most 1 GiB while the peer's packets carry 32 bits of their
    /// offset. Costs no memory here.
    pub receive_window_bytes: u64,
    /// Memory for packets that wait in slots (messages, and plain UDT peers), bytes.
    pub slot_memory_bytes: u64,
    /// Congestion control towards a Longhaul peer.
    pub control: Algorithm,
    /// Congestion control towards a plain UDT peer, whose feedback suits UDT's own best.
    pub control_plain: Algorithm,
    /// The most that the congestion control may use.
    pub rate_max: Rate,
    /// Offer Longhaul's features beyond UDT4.
    pub offer_placement: bool,
    /// Offer with it to count marks of congestion and to report them.
    pub offer_ecn: bool,
    /// Offer with it that headers and control packets carry a check: damage that UDP's checksum
    /// misses is loss then.
    pub offer_check: bool,
    /// Offer with it that datagrams are sealed, and refuse peers that do not agree. The engine
    /// must hold the keys.
    pub seal: bool,
    /// Datagrams that one direction seals under one key before the next, at most 2^23.
    pub rekey_packets: u64,
    /// Over any time no more leaves than the rate brings and this, wire bytes: for a policer on
    /// the way. `None`: no limit but the pacer's own.
    pub burst_bytes: Option<u64>,
    /// Time to connect, ns.
    pub connect_timeout_ns: u64,
    /// The peer counts as gone after this time without a packet from it, or, if it places packets,
    /// without an acknowledgement of data in flight, ns.
    pub idle_timeout_ns: u64,
    /// Time that unacknowledged data is still tried for after close, ns.
    pub linger_ns: u64,
}

const SECOND_NS: u64 = haul_cc::time::SECOND_NS;

impl Default for Config {
    fn default() -> Self {
        Self {
            kind: SocketKind::Stream,
            mtu: 1_500,
            lower_len: 28,
            flight_packets: 1 << 26,
            receive_window_bytes: 1 << 40,
            slot_memory_bytes: 32 << 20,
            control: Algorithm::Model,
            control_plain: Algorithm::Daimd,
            rate_max: Rate::UNLIMITED,
            offer_placement: true,
            offer_ecn: true,
            offer_check: true,
            seal: false,
            rekey_packets: 1 << 22,
            burst_bytes: None,
            connect_timeout_ns: 10 * SECOND_NS,
            idle_timeout_ns: 30 * SECOND_NS,
            linger_ns: 30 * SECOND_NS,
        }
    }
}

impl Config {
    /// Returns how many packets fit into the receive window when each takes a slot of its own
    /// (messages, and plain UDT peers).
    #[must_use]
    pub fn receive_slots(&self) -> u32 {
        let slot_len = u64::from(payload_len(self.mtu, LOWER_LEN_LEAST).max(1));
        let slots = self.slot_memory_bytes / slot_len;
        u32::try_from(slots)
            .unwrap_or(u32::MAX)
            .clamp(SLOTS_MIN, self.flight_packets.max(SLOTS_MIN))
    }

    /// This end's offer beyond UDT4.
    pub(crate) fn offer(&self) -> Offer {
        Offer {
            placement: self.offer_placement,
            ecn: self.offer_placement && self.offer_ecn,
            finish: self.offer_placement && self.kind == SocketKind::Stream,
            check: self.offer_placement && self.offer_check,
            path: self.offer_placement,
            seal: self.offer_placement && self.seal,
        }
    }

    /// Returns the bytes of payload in a full packet when the peer has `mtu` too.
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        payload_len(self.mtu, self.lower_len)
    }
}

/// libudt never advertises less than two packets; we keep room for a burst.
const SLOTS_MIN: u32 = 64;

/// Bytes of every UDT header.
#[expect(clippy::cast_possible_truncation, reason = "16")]
pub(crate) const HEADER: u32 = HEADER_LEN as u32;
/// Bytes that sealing adds to a packet: to everything above it, part of the layers below.
#[expect(clippy::cast_possible_truncation, reason = "20")]
pub(crate) const SEAL: u32 = SEAL_LEN as u32;

pub(crate) fn payload_len(mtu: u32, lower_len: u32) -> u32 {
    mtu.saturating_sub(lower_len + HEADER)
}

/// The smallest packet size a peer may ask for: below it headers outweigh payload, and a peer could
/// make us send millions of tiny packets.
pub(crate) const MTU_MIN: u32 = 576;

#[expect(clippy::cast_possible_truncation, reason = "28")]
const LOWER_LEN_LEAST: u32 = LOWER_LEN_V4 as u32;

/// The features that both ends agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Params {
    /// Bytes of payload in the longest packet that this end sends.
    pub payload_len: u32,
    /// Bytes of payload that the peer may put into a packet: it may count fewer headers than we do
    /// (libudt takes IPv6's to be as short as IPv4's).
    pub payload_len_max: u32,
    /// Packets that the peer takes in flight.
    pub peer_flight_packets: u32,
    /// Packets carry offsets, feedback is selective.
    pub placement: bool,
    /// Feedback reports marks of congestion.
    pub ecn: bool,
    /// Each direction of the stream may end by itself.
    pub finish: bool,
    /// Headers and control packets carry a check. Sealed ones need none.
    pub check: bool,
    /// The path's MTU is probed, and packets that are too long for it travel in pieces.
    pub path: bool,
    /// Every datagram but handshakes is sealed.
    pub seal: bool,
}

impl Params {
    pub(crate) fn negotiate(
        config: &Config,
        peer_mss: u32,
        flight: u32,
        offer: Offer,
    ) -> Result<Self, Error> {
        let mtu = config.mtu.min(peer_mss);
        if mtu < MTU_MIN {
            return Err(Error::Incompatible("its packets are too small"));
        }
        let seal = config.offer().seal;
        if seal && !offer.seal {
            return Err(Error::Incompatible("it does not seal datagrams"));
        }
        let seal_len = if seal { SEAL } else { 0 };
        Ok(Self {
            payload_len: payload_len(mtu, config.lower_len + seal_len),
            payload_len_max: payload_len(mtu, LOWER_LEN_LEAST + seal_len),
            peer_flight_packets: flight.clamp(2, 1 << 26),
            placement: offer.placement && config.offer().placement,
            ecn: offer.ecn && config.offer().ecn,
            finish: offer.finish && config.offer().finish,
            check: offer.check && config.offer().check && !seal,
            path: offer.path && config.offer().path,
            seal,
        })
    }
}
