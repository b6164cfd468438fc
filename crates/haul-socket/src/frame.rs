//! A datagram as a datagram-iWARP Send of one segment: shim, DDP header, payload, CRC32C
//! (haul-iwarp has the layouts).
//!
//! One segment a datagram: a socket's peer has either all of a message or nothing, and a datagram
//! that does not fit is the kernel's to fragment, as it would have been.

use haul_iwarp::datagram::wire::{DataHeader, Flags, Kind, MsgId, Opcode, Psn, SHIM_LEN, Shim};
use haul_iwarp::wire::ddp::{self, Model};
use haul_iwarp::wire::rdmap;
use haul_iwarp::{CRC_LEN, Stag};

use crate::table::Named;

/// Bytes before the payload of a Send.
pub(crate) const SEND_HEAD: usize = SHIM_LEN + ddp::UNTAGGED_LEN;
/// Bytes around the payload of a Send.
pub(crate) const OVERHEAD: usize = SEND_HEAD + CRC_LEN;
/// The longest payload: a UDP datagram over IPv4 (RFC 768, RFC 791) less the overhead. IPv6 has a
/// little more room.
pub(crate) const PAYLOAD_MAX: usize = 65_507 - OVERHEAD;
/// Every speaking socket offers a window of slots to Write-Records, a datagram each: its tag is the
/// epoch that the agents exchange, and behind a slot is the buffer of whichever receive takes the
/// datagram.
const SLOTS: u32 = 256;
const SLOT_LEN: u64 = 1 << 16;

/// Where a good datagram's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes before the payload.
    pub(crate) len: usize,
    /// Bytes of payload; the CRC follows.
    pub(crate) payload: usize,
}

/// Writes the head of message `number` (from 0) to a peer; returns its length.
pub(crate) fn emit(
    out: &mut [u8; SEND_HEAD],
    to: Named,
    from: Named,
    number: u32,
    len: u32,
    write_record: bool,
) -> usize {
    let shim = Shim {
        kind: Kind::Data,
        flags: Flags::LAST,
        dst_qpn: to.qpn,
        src_qpn: from.qpn,
        epoch: from.epoch,
        psn: Psn(from.epoch.wrapping_add(number)),
        msg_id: MsgId(number.wrapping_add(1)),
        msg_len: len,
        seg_off: 0,
    };
    let slot = write_record.then(|| u64::from(number % SLOTS) * SLOT_LEN);
    header(shim, to, slot).emit(out)
}

/// Of a Write-Record to this offset of the window, or of a Send.
fn header(shim: Shim, to: Named, slot: Option<u64>) -> DataHeader<'static> {
    let (opcode, model) = match slot {
        Some(offset) => {
            let stag = Stag(to.epoch);
            (Opcode::WriteRecord, Model::Tagged { stag, to: offset })
        }
        None => {
            let model = Model::Untagged {
                ulp: 0,
                qn: ddp::QN_SEND,
                msn: shim.msg_id.0,
                mo: 0,
            };
            (Opcode::Rdmap(rdmap::Opcode::Send), model)
        }
    };
    DataHeader {
        shim,
        ext: &[],
        opcode,
        model,
    }
}

/// Whether a datagram of `len` bytes that begins with `start` is framed, for `own`: its head is
/// the one that this side would have written. `None` is anything else, to be delivered as it is;
/// the CRC is still to be compared.
pub(crate) fn parse(start: &[u8], len: usize, own: Named) -> Option<Head> {
    let (shim, _) = Shim::parse(start.first_chunk()?).ok()?;
    let slot = match ddp::Header::parse(&start[SHIM_LEN..]).ok()?.model {
        Model::Untagged { .. } => None,
        Model::Tagged { to, .. } => Some(to),
    };
    let in_window = |to: u64| to.is_multiple_of(SLOT_LEN) && to < u64::from(SLOTS) * SLOT_LEN;
    if own.epoch == 0 || !slot.is_none_or(in_window) {
        return None;
    }
    let ours = Shim {
        kind: Kind::Data,
        flags: Flags::LAST,
        dst_qpn: own.qpn,
        seg_off: 0,
        ..shim
    };
    let mut expected = [0; SEND_HEAD];
    let head = header(ours, own, slot).emit(&mut expected);
    let payload = len.checked_sub(head + CRC_LEN)?;
    (start.get(..head)? == &expected[..head] && payload as u64 == u64::from(shim.msg_len))
        .then_some(Head { len: head, payload })
}

#[cfg(test)]
mod tests {
    use haul_iwarp::Crc32c;

    use super::*;

    const A: Named = Named {
        qpn: 0x34,
        epoch: 0xcafe_f00d,
    };
    const B: Named = Named {
        qpn: 0x12,
        epoch: 0x1122_3301,
    };

    #[test]
    fn a_send_is_the_octets_of_the_reference() {
        // Number 0 has the packet number that the epoch gives; the reference has 1, so the bytes
        // 16..20 are put there.
        let mut head = [0; SEND_HEAD];
        assert_eq!(emit(&mut head, B, A, 0, 4, false), SEND_HEAD);
        head[16..20].copy_from_slice(&[0, 0, 0, 1]);
        let mut crc = Crc32c::new();
        crc.update(&head);
        crc.update(b"ping");
        let expected = "d10080000000001200000034cafef00d00000001000000010000000400000000\
                        414300000000000000000000000100000000";
        let hex = |octets: &[u8]| -> String { octets.iter().map(|o| format!("{o:02x}")).collect() };
        assert_eq!(hex(&head), expected);
        assert_eq!(hex(&crc.to_wire()), "73f2050a");
    }

    #[test]
    fn what_is_written_is_taken_and_every_other_octet_is_not() {
        for write_record in [false, true] {
            let mut head = [0; SEND_HEAD];
            let len = emit(&mut head, B, A, 7, 100, write_record);
            let whole = len + 100 + CRC_LEN;
            let good = Head { len, payload: 100 };
            assert_eq!(parse(&head, whole, B), Some(good));
            assert_eq!(parse(&head, whole + 1, B), None);
            assert_eq!(parse(&head[..len - 1], whole, B), None);
            assert_eq!(parse(&head, whole, A), None);
            // Source, epoch and packet number are the sender's affair; so are the bits that DDP
            // reserves.
            for at in (0..8).chain(24..SHIM_LEN).chain([SHIM_LEN + 1]) {
                let mut changed = head;
                changed[at] ^= 1;
                assert_eq!(parse(&changed, whole, B), None, "octet {at}");
            }
        }
    }
}
