//! Datagrams without payload, and the numbers that all files of this module use.

use std::net::SocketAddr;

use super::work::{RdConfig, RdTransmit};
use crate::datagram::wire::{Flags, Kind, MsgId, Psn, Shim};
use crate::qp::Payload;

/// A peer, by its place.
pub(super) type PeerId = u32;

#[derive(Debug)]
pub(super) struct Control {
    pub(super) to: SocketAddr,
    pub(super) len: usize,
    pub(super) octets: [u8; CONTROL_SHORT],
}

/// Bytes of the longest datagram in the outbox.
pub(super) const CONTROL_SHORT: usize = 80;
pub(super) const OUTBOX_MAX: usize = 256;
/// The reasons of a CLOSE: another peer needs the memory; the user closed.
pub(super) const CLOSE_ROOM: u16 = 0;
pub(super) const CLOSE_USER: u16 = 1;
/// The shortest `datagram_max` that makes sense: the longest request fits.
pub(super) const DATAGRAM_MIN: u16 = 256;
/// Bytes of a datagram of data beside its segment: shim, time stamp, CRC.
pub(super) const AROUND_SEGMENT: u32 = 40;

pub(super) fn whole(to: SocketAddr, len: usize) -> RdTransmit {
    RdTransmit {
        to,
        header_len: len,
        payload: Payload::None,
        payload_len: 0,
        needs_crc: false,
    }
}

/// The shim of datagrams other than data. Its last field, which is otherwise unused there, carries
/// the receiver's epoch, so that an off-path attacker cannot forge it.
pub(super) fn control_shim(config: &RdConfig, dst_qpn: u32, dst_epoch: u32) -> Shim {
    Shim {
        kind: Kind::Ack,
        flags: Flags::RD,
        dst_qpn,
        src_qpn: config.qpn,
        epoch: config.epoch,
        psn: Psn(0),
        msg_id: MsgId(0),
        msg_len: 0,
        seg_off: dst_epoch,
    }
}

/// The 32 bits that are on the wire.
#[expect(clippy::cast_possible_truncation, reason = "that is the purpose")]
pub(super) const fn low(number: u64) -> u32 {
    number as u32
}

/// The upper and the lower half.
pub(super) const fn halves(number: u64) -> [u32; 2] {
    [low(number >> 32), low(number)]
}
