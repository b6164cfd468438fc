//! Work requests and completions as entries of rings.
//!
//! What comes from the other process is a copy by now. A number that means nothing is [`Wrong`].

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use haul_verbs::{
    Data, Peer, RecvWr, Remote, SGE_MAX, SendFlags, SendOp, SendWr, Sge, SgeList, WcData, WcOpcode,
    WcStatus, WorkCompletion,
};

/// Words of a request.
pub(crate) const REQUEST: usize = 16;
/// Words of a completion.
pub(crate) const COMPLETION: usize = 8;
/// Inline bytes of an entry that follows its request.
const INLINE: u32 = 128;
const _: () = assert!(INLINE as usize == 8 * REQUEST);

/// An entry that means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wrong;

pub(crate) type Request = [u64; REQUEST];
pub(crate) type Completion = [u64; COMPLETION];

/// Entries of a request with so many inline bytes.
pub(crate) fn entries(inline: u32) -> u32 {
    1 + inline.div_ceil(INLINE)
}

// The first words of a request: its number; operation, flags, pieces, and bytes of inline data and
// whether they are; remote address; remote key and immediate or key to invalidate; two words for
// each piece. Then compare or add, swap; address, port and number of a peer.
const PIECES: usize = 4;
const OPERANDS: usize = PIECES + 2;
const PEER: usize = PIECES + 2 * SGE_MAX;
const _: () = assert!(PEER + 4 == REQUEST);

const IS_INLINE: u64 = 1 << 24;

/// A send request without its inline bytes.
pub(crate) fn of_send(wr: &SendWr<'_>) -> Option<Request> {
    let mut entry = [0; REQUEST];
    let (op, remote, value) = match wr.op {
        SendOp::Send => (0, None, 0),
        SendOp::SendWithImm(imm) => (1, None, imm),
        SendOp::SendWithInv(rkey) => (2, None, rkey),
        SendOp::RdmaWrite(remote) => (3, Some(remote), 0),
        SendOp::RdmaWriteWithImm(remote, imm) => (4, Some(remote), imm),
        SendOp::WriteRecord(remote) => (5, Some(remote), 0),
        SendOp::WriteRecordWithImm(remote, imm) => (6, Some(remote), imm),
        SendOp::RdmaRead(remote) => (7, Some(remote), 0),
        SendOp::CompareSwap { remote, .. } => (8, Some(remote), 0),
        SendOp::FetchAdd { remote, .. } => (9, Some(remote), 0),
        SendOp::LocalInv(rkey) => (10, None, rkey),
        _ => return None,
    };
    let remote = remote.unwrap_or_default();
    let (pieces, inline) = match wr.data {
        Data::Sges(list) => {
            put_pieces(&mut entry, list.as_slice());
            (list.as_slice().len() as u64, 0)
        }
        Data::Inline(bytes) => (0, IS_INLINE | (bytes.len() as u64) << 32),
    };
    // Atomics have one piece.
    match wr.op {
        SendOp::CompareSwap { compare, swap, .. } => {
            entry[OPERANDS..OPERANDS + 2].copy_from_slice(&[compare, swap]);
        }
        SendOp::FetchAdd { add, .. } => entry[OPERANDS] = add,
        _ => {}
    }
    entry[0] = wr.wr_id;
    entry[1] = op | u64::from(wr.flags.bits()) << 8 | pieces << 16 | inline;
    entry[2] = remote.addr;
    entry[3] = u64::from(remote.rkey) | u64::from(value) << 32;
    put_peer(&mut entry[PEER..], wr.peer);
    Some(entry)
}

/// The inline bytes of a request, as entries.
pub(crate) fn of_inline(bytes: &[u8]) -> impl Iterator<Item = Request> + '_ {
    bytes.chunks(INLINE as usize).map(|chunk| {
        let mut entry = [0; REQUEST];
        for (word, bytes) in entry.iter_mut().zip(chunk.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        entry
    })
}

/// A send request, and how many inline bytes follow it.
pub(crate) fn send(entry: &Request) -> Result<(SendWr<'static>, Option<u32>), Wrong> {
    let remote = Remote {
        addr: entry[2],
        rkey: low(entry[3]),
    };
    let value = high(entry[3]);
    let [compare, swap] = [entry[OPERANDS], entry[OPERANDS + 1]];
    let op = match entry[1] & 0xff {
        0 => SendOp::Send,
        1 => SendOp::SendWithImm(value),
        2 => SendOp::SendWithInv(value),
        3 => SendOp::RdmaWrite(remote),
        4 => SendOp::RdmaWriteWithImm(remote, value),
        5 => SendOp::WriteRecord(remote),
        6 => SendOp::WriteRecordWithImm(remote, value),
        7 => SendOp::RdmaRead(remote),
        8 => SendOp::CompareSwap {
            remote,
            compare,
            swap,
        },
        9 => SendOp::FetchAdd {
            remote,
            add: compare,
        },
        10 => SendOp::LocalInv(value),
        _ => return Err(Wrong),
    };
    let (data, inline) = if entry[1] & IS_INLINE == 0 {
        (Data::Sges(pieces(entry)?), None)
    } else {
        (Data::Inline(&[][..]), Some(high(entry[1])))
    };
    let flags = SendFlags::from_bits(low(entry[1]) >> 8 & 0xff).ok_or(Wrong)?;
    let mut wr = SendWr::new(entry[0], op, data).with_flags(flags);
    wr.peer = peer(&entry[PEER..])?;
    Ok((wr, inline))
}

/// The bytes of an entry that follows its request.
pub(crate) fn put_inline(entry: &Request, to: &mut Vec<u8>) {
    to.extend(entry.iter().flat_map(|word| word.to_ne_bytes()));
}

pub(crate) fn of_recv(wr: &RecvWr) -> Request {
    let mut entry = [0; REQUEST];
    let list = wr.sges.as_slice();
    put_pieces(&mut entry, list);
    entry[0] = wr.wr_id;
    entry[1] = (list.len() as u64) << 16;
    entry
}

pub(crate) fn recv(entry: &Request) -> Result<RecvWr, Wrong> {
    Ok(RecvWr::new(entry[0], pieces(entry)?))
}

fn put_pieces(entry: &mut Request, list: &[Sge]) {
    for (words, piece) in entry[PIECES..].chunks_exact_mut(2).zip(list) {
        words[0] = piece.addr;
        words[1] = u64::from(piece.len) | u64::from(piece.lkey) << 32;
    }
}

fn pieces(entry: &Request) -> Result<SgeList, Wrong> {
    let count = (entry[1] >> 16 & 0xff) as usize;
    let mut list = [Sge::default(); SGE_MAX];
    let list = list.get_mut(..count).ok_or(Wrong)?;
    for (piece, words) in list.iter_mut().zip(entry[PIECES..].chunks_exact(2)) {
        *piece = Sge {
            addr: words[0],
            len: low(words[1]),
            lkey: high(words[1]),
        };
    }
    SgeList::new(list).ok_or(Wrong)
}

/// Status, operation, kind of data, whether solicited, length; queue pair and data; error
/// of the provider; address, port and number of a peer.
pub(crate) fn of_completion(wc: &WorkCompletion) -> Completion {
    let mut entry = [0; COMPLETION];
    let number = |at: Option<usize>| at.unwrap_or(0xff) as u64;
    let status = number(STATUSES.iter().position(|status| *status == wc.status));
    let opcode = number(OPCODES.iter().position(|opcode| *opcode == wc.opcode));
    let (kind, data) = match wc.data {
        WcData::Imm(imm) => (1, imm),
        WcData::InvalidatedRkey(rkey) => (2, rkey),
        _ => (0, 0),
    };
    entry[0] = wc.wr_id;
    let solicited = u64::from(wc.solicited) << 24;
    entry[1] = status | opcode << 8 | kind << 16 | solicited | u64::from(wc.byte_len) << 32;
    entry[2] = u64::from(wc.qp_num) | u64::from(data) << 32;
    entry[3] = wc.vendor_err.into();
    put_peer(&mut entry[4..], wc.src);
    entry
}

pub(crate) fn completion(entry: &Completion) -> Result<WorkCompletion, Wrong> {
    let at = |shift: u32| (entry[1] >> shift & 0xff) as usize;
    let status = *STATUSES.get(at(0)).ok_or(Wrong)?;
    let opcode = *OPCODES.get(at(8)).ok_or(Wrong)?;
    let mut wc = WorkCompletion::new(entry[0], status, opcode, low(entry[2]));
    wc.data = match at(16) {
        0 => WcData::None,
        1 => WcData::Imm(high(entry[2])),
        2 => WcData::InvalidatedRkey(high(entry[2])),
        _ => return Err(Wrong),
    };
    wc.byte_len = high(entry[1]);
    wc.vendor_err = low(entry[3]);
    wc.solicited = at(24) != 0;
    wc.src = peer(&entry[4..])?;
    Ok(wc)
}

/// By the numbers that they have here.
const STATUSES: [WcStatus; 17] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::RemAbortErr,
    WcStatus::FatalErr,
    WcStatus::RespTimeoutErr,
    WcStatus::GeneralErr,
];
const OPCODES: [WcOpcode; 10] = [
    WcOpcode::Send,
    WcOpcode::RdmaWrite,
    WcOpcode::RdmaRead,
    WcOpcode::CompSwap,
    WcOpcode::FetchAdd,
    WcOpcode::LocalInv,
    WcOpcode::Recv,
    WcOpcode::RecvRdmaWithImm,
    WcOpcode::WriteRecord,
    WcOpcode::RecvWriteRecord,
];

/// Two words for the address, then port, kind and scope, then the number of the queue pair.
fn put_peer(words: &mut [u64], peer: Option<Peer>) {
    let Some(peer) = peer else { return };
    let (kind, ip, scope) = match peer.addr {
        SocketAddr::V4(v4) => (1, v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (2, *v6.ip(), v6.scope_id()),
    };
    let octets = ip.octets();
    let half = |from: usize| u64::from_be_bytes(std::array::from_fn(|at| octets[from + at]));
    words[0] = half(0);
    words[1] = half(8);
    words[2] = u64::from(peer.addr.port()) | kind << 16 | u64::from(scope) << 32;
    words[3] = peer.qp_num.into();
}

fn peer(words: &[u64]) -> Result<Option<Peer>, Wrong> {
    let [first, second, about, qp_num] = words else {
        return Err(Wrong);
    };
    let ip = Ipv6Addr::from_bits(u128::from(*first) << 64 | u128::from(*second));
    let port = (about & 0xffff) as u16;
    let addr = match (about >> 16 & 0xffff, ip.to_ipv4_mapped()) {
        (0, _) => return Ok(None),
        (1, Some(v4)) => SocketAddr::new(IpAddr::V4(v4), port),
        (2, _) => SocketAddrV6::new(ip, port, 0, high(*about)).into(),
        _ => return Err(Wrong),
    };
    Ok(Some(Peer::new(addr, low(*qp_num))))
}

fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peers() -> impl Strategy<Value = Option<Peer>> {
        let v4 = any::<([u8; 4], u16, u32)>()
            .prop_map(|(ip, port, qp)| Some(Peer::new((ip, port).into(), qp)));
        let v6 = any::<([u8; 16], u16, u32, u32)>().prop_map(|(ip, port, qp, scope)| {
            let addr = SocketAddrV6::new(ip.into(), port, 0, scope);
            Some(Peer::new(addr.into(), qp))
        });
        prop_oneof![Just(None), v4, v6]
    }

    fn lists() -> impl Strategy<Value = SgeList> {
        let piece = any::<(u64, u32, u32)>().prop_map(|(addr, len, lkey)| Sge { addr, len, lkey });
        prop::collection::vec(piece, 0..=SGE_MAX)
            .prop_map(|pieces| SgeList::new(&pieces).unwrap_or_default())
    }

    fn ops() -> impl Strategy<Value = SendOp> {
        any::<(u8, u64, u32, u32, u64, u64)>().prop_map(
            |(kind, addr, rkey, value, compare, swap)| {
                let remote = Remote { addr, rkey };
                match kind % 11 {
                    0 => SendOp::Send,
                    1 => SendOp::SendWithImm(value),
                    2 => SendOp::SendWithInv(value),
                    3 => SendOp::RdmaWrite(remote),
                    4 => SendOp::RdmaWriteWithImm(remote, value),
                    5 => SendOp::WriteRecord(remote),
                    6 => SendOp::WriteRecordWithImm(remote, value),
                    7 => SendOp::RdmaRead(remote),
                    8 => SendOp::CompareSwap {
                        remote,
                        compare,
                        swap,
                    },
                    9 => SendOp::FetchAdd {
                        remote,
                        add: compare,
                    },
                    _ => SendOp::LocalInv(value),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_send_is_the_same_at_the_other_end(
            wr_id: u64,
            op in ops(),
            flags in 0..8_u32,
            list in lists(),
            peer in peers(),
        ) {
            let is_atomic = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
            let list = if is_atomic { SgeList::from(Sge::default()) } else { list };
            let mut wr = SendWr::new(wr_id, op, list)
                .with_flags(SendFlags::from_bits_truncate(flags));
            wr.peer = peer;
            let (seen, inline) = send(&of_send(&wr).unwrap()).unwrap();
            prop_assert_eq!(inline, None);
            prop_assert_eq!(format!("{seen:?}"), format!("{wr:?}"));
        }

        #[test]
        fn inline_bytes_follow(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            let wr = SendWr::new(1, SendOp::Send, Data::Inline(&bytes));
            let (_, inline) = send(&of_send(&wr).unwrap()).unwrap();
            prop_assert_eq!(inline.unwrap() as usize, bytes.len());
            let mut seen = Vec::new();
            let mut count = 1;
            for entry in of_inline(&bytes) {
                put_inline(&entry, &mut seen);
                count += 1;
            }
            prop_assert_eq!(count, entries(inline.unwrap()));
            prop_assert_eq!(&seen[..bytes.len()], &bytes[..]);
        }

        #[test]
        fn a_receive_is_the_same(wr_id: u64, list in lists()) {
            let wr = RecvWr::new(wr_id, list);
            prop_assert_eq!(format!("{:?}", recv(&of_recv(&wr)).unwrap()), format!("{wr:?}"));
        }

        #[test]
        fn a_completion_is_the_same(
            ids in any::<(u64, u32, u32, u32)>(),
            status in 0..STATUSES.len(),
            opcode in 0..OPCODES.len(),
            data in any::<(u8, u32)>(),
            src in peers(),
        ) {
            let mut wc = WorkCompletion::new(ids.0, STATUSES[status], OPCODES[opcode], ids.1);
            wc.data = match data.0 % 3 {
                0 => WcData::None,
                1 => WcData::Imm(data.1),
                _ => WcData::InvalidatedRkey(data.1),
            };
            (wc.byte_len, wc.vendor_err, wc.src) = (ids.2, ids.3, src);
            wc.solicited = data.1 % 2 == 1;
            prop_assert_eq!(completion(&of_completion(&wc)), Ok(wc));
        }

        #[test]
        fn any_words_are_an_entry_or_wrong(words in any::<[u64; REQUEST]>()) {
            let _ = send(&words);
            let _ = recv(&words);
            let mut few = [0; COMPLETION];
            few.copy_from_slice(&words[..COMPLETION]);
            let _ = completion(&few);
        }
    }
}
