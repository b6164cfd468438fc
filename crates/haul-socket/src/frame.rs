//! A datagram as a datagram-iWARP Send of one segment: shim, DDP header, payload, CRC32C (haul-iwarp has the layouts).
//!
//! One segment a datagram: a socket's peer has either all of a message or nothing, and a datagram that does not fit is the
//! kernel's to fragment, as it would have been.

use haul_iwarp::wire::ddp::{self, Model};
use haul_iwarp::wire::rdmap::Opcode;
use haul_iwarp::{CRC_LEN, Stag};

use crate::table::Named;

const SHIM_LEN: usize = 32;
const PROTOCOL: u8 = 0xd1;
const DATA: u8 = 0;
const LAST: u16 = 0x8000;
/// Octets before the payload of a Send.
pub(crate) const SEND_HEAD: usize = SHIM_LEN + ddp::UNTAGGED_LEN;
/// Octets around the payload of a Send.
pub(crate) const OVERHEAD: usize = SEND_HEAD + CRC_LEN;
/// The longest payload: a UDP datagram over IPv4 (RFC 768, RFC 791) less the overhead. IPv6 has a little more room.
pub(crate) const PAYLOAD_MAX: usize = 65_507 - OVERHEAD;
/// RDMAP's control octet of Write-Record: version 1, opcode 0xc.
const WRITE_RECORD: u8 = 0x4c;
/// Every speaking socket offers a window of slots to Write-Records, a datagram each: its tag is the epoch that the agents
/// exchange, and behind a slot is the buffer of whichever receive takes the datagram.
const SLOTS: u32 = 256;
const SLOT_LEN: u64 = 1 << 16;

/// Where a good datagram's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Octets before the payload.
    pub(crate) len: usize,
    /// Octets of payload; the CRC follows.
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
    let message = number.wrapping_add(1);
    (out[0], out[1]) = (PROTOCOL, DATA);
    out[2..4].copy_from_slice(&LAST.to_be_bytes());
    for (at, word) in [
        (4, to.qpn),
        (8, from.qpn),
        (12, from.epoch),
        (16, from.epoch.wrapping_add(number)),
        (20, message),
        (24, len),
        (28, 0),
    ] {
        out[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    let (control, model) = if write_record {
        let model = Model::Tagged {
            stag: Stag(to.epoch),
            to: u64::from(number % SLOTS) * SLOT_LEN,
        };
        (WRITE_RECORD, model)
    } else {
        let model = Model::Untagged {
            ulp: 0,
            qn: ddp::QN_SEND,
            msn: message,
            mo: 0,
        };
        (Opcode::Send.emit(), model)
    };
    let header = ddp::Header {
        last: true,
        control,
        model,
    };
    SHIM_LEN + header.emit(&mut out[SHIM_LEN..])
}

/// Whether a datagram of `len` octets that begins with `start` is framed, for `own`. `None` is anything else, to be delivered as
/// it is; the CRC is still to be compared.
pub(crate) fn parse(start: &[u8], len: usize, own: Named) -> Option<Head> {
    let shim = start.first_chunk::<SHIM_LEN>()?;
    let word = |at: usize| u32::from_be_bytes([shim[at], shim[at + 1], shim[at + 2], shim[at + 3]]);
    let is_ours = shim[..2] == [PROTOCOL, DATA]
        && shim[2..4] == LAST.to_be_bytes()
        && word(4) == own.qpn
        && own.epoch != 0
        && word(28) == 0;
    if !is_ours {
        return None;
    }
    let header = ddp::Header::parse(&start[SHIM_LEN..]).ok()?;
    let is_known = match header.model {
        Model::Untagged { ulp, qn, msn, mo } => {
            header.control == Opcode::Send.emit()
                && (ulp, qn, msn, mo) == (0, ddp::QN_SEND, word(20), 0)
        }
        Model::Tagged { stag, to } => {
            header.control == WRITE_RECORD
                && stag.0 == own.epoch
                && to.is_multiple_of(SLOT_LEN)
                && to < u64::from(SLOTS) * SLOT_LEN
        }
    };
    let head = SHIM_LEN + header.wire_len();
    let payload = len.checked_sub(head + CRC_LEN)?;
    (is_known && header.last && payload as u64 == u64::from(word(24)))
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
        // Number 0 has the packet number that the epoch gives; the reference has 1, so the octets 16..20 are put there.
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
            // Source, epoch and packet number are the sender's affair; so are the bits that DDP reserves.
            for at in (0..8).chain(24..SHIM_LEN).chain([SHIM_LEN + 1]) {
                let mut changed = head;
                changed[at] ^= 1;
                assert_eq!(parse(&changed, whole, B), None, "octet {at}");
            }
        }
    }
}
