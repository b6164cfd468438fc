//! Work requests as C has them: chains, on the stack.

use std::ffi::c_int;

use haul_verbs::{Data, DeviceCaps, Error, PostError, RecvWr, SGE_MAX, SendFlags, SendOp, SendWr};
use haul_verbs::{Sge, SgeList};

use crate::ffi::verbs::{self, send_flag, wr};

/// Work requests posted in one call.
const BATCH: usize = 16;

/// Hands a batch over, `BATCH` at a time; `post` gets the chain's first and gives back the error
/// number and the request that it stopped at.
pub(crate) fn sends(
    requests: &[SendWr<'_>],
    caps: DeviceCaps,
    post: impl Fn(*mut verbs::SendWr) -> (c_int, *mut verbs::SendWr),
) -> Result<(), PostError> {
    if let [request] = requests {
        return send_chunk::<1>(std::slice::from_ref(request), 0, caps, &post);
    }
    let mut posted = 0;
    for chunk in requests.chunks(BATCH) {
        send_chunk::<BATCH>(chunk, posted, caps, &post)?;
        posted += chunk.len();
    }
    Ok(())
}

fn send_chunk<const N: usize>(
    requests: &[SendWr<'_>],
    before: usize,
    caps: DeviceCaps,
    post: &impl Fn(*mut verbs::SendWr) -> (c_int, *mut verbs::SendWr),
) -> Result<(), PostError> {
    let mut pieces = [NO_PIECES; N];
    let mut chain = [NO_SEND; N];
    // A request that C cannot express ends the chain; those before it are posted.
    let mut refused = None;
    let mut len = 0;
    for ((request, pieces), slot) in requests.iter().zip(&mut pieces).zip(&mut chain) {
        match send(request, caps, pieces) {
            Ok(send) => *slot = send,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
        len += 1;
    }
    link(&mut chain[..len], |request, next| request.next = next);
    if len > 0 {
        let first = chain.as_mut_ptr();
        let (number, bad) = post(first);
        if number != 0 {
            let posted = before + index_of(first, bad, len);
            let error = refusal(number, "send queue");
            return Err(PostError::new(posted, error));
        }
    }
    refused.map_or(Ok(()), |error| Err(PostError::new(before + len, error)))
}

/// As [`sends`].
pub(crate) fn recvs(
    requests: &[RecvWr],
    post: impl Fn(*mut verbs::RecvWr) -> (c_int, *mut verbs::RecvWr),
) -> Result<(), PostError> {
    if let [request] = requests {
        return recv_chunk::<1>(std::slice::from_ref(request), 0, &post);
    }
    let mut posted = 0;
    for chunk in requests.chunks(BATCH) {
        recv_chunk::<BATCH>(chunk, posted, &post)?;
        posted += chunk.len();
    }
    Ok(())
}

fn recv_chunk<const N: usize>(
    requests: &[RecvWr],
    before: usize,
    post: &impl Fn(*mut verbs::RecvWr) -> (c_int, *mut verbs::RecvWr),
) -> Result<(), PostError> {
    let mut pieces = [NO_PIECES; N];
    let mut chain = [NO_RECV; N];
    for ((request, pieces), slot) in requests.iter().zip(&mut pieces).zip(&mut chain) {
        let num_sge = copy(&request.sges, pieces);
        *slot = verbs::RecvWr {
            wr_id: request.wr_id,
            next: std::ptr::null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge,
        };
    }
    link(&mut chain[..requests.len()], |request, next| {
        request.next = next;
    });
    let first = chain.as_mut_ptr();
    let (number, bad) = post(first);
    if number != 0 {
        let posted = before + index_of(first, bad, requests.len());
        let error = refusal(number, "receive queue");
        return Err(PostError::new(posted, error));
    }
    Ok(())
}

type Pieces = [verbs::Sge; SGE_MAX];

const NO_PIECES: Pieces = [verbs::Sge {
    addr: 0,
    length: 0,
    lkey: 0,
}; SGE_MAX];

const NO_SEND: verbs::SendWr = verbs::SendWr {
    wr_id: 0,
    next: std::ptr::null_mut(),
    sg_list: std::ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    wr: verbs::RemoteWr {
        atomic: verbs::AtomicWr {
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            rkey: 0,
        },
    },
    unused: [0; 7],
};

const NO_RECV: verbs::RecvWr = verbs::RecvWr {
    wr_id: 0,
    next: std::ptr::null_mut(),
    sg_list: std::ptr::null_mut(),
    num_sge: 0,
};

fn link<T>(chain: &mut [T], mut set: impl FnMut(&mut T, *mut T)) {
    let first = chain.as_mut_ptr();
    for index in 1..chain.len() {
        set(&mut chain[index - 1], first.wrapping_add(index));
    }
}

/// Which of the chain `bad` is; the first, where the library does not name one.
fn index_of<T>(first: *const T, bad: *const T, len: usize) -> usize {
    let bytes = bad.addr().wrapping_sub(first.addr());
    Some(bytes / size_of::<T>())
        .filter(|index| *index < len)
        .unwrap_or(0)
}

fn refusal(number: c_int, queue: &'static str) -> Error {
    let source = std::io::Error::from_raw_os_error(number.abs());
    match source.kind() {
        std::io::ErrorKind::OutOfMemory => Error::Full(queue),
        std::io::ErrorKind::InvalidInput => Error::Invalid(
            "the device refuses the request: more pieces or inline data than Qp::capacity has, \
                 or a wrong state",
        ),
        _ => Error::Os {
            what: "ibv_post",
            source,
        },
    }
}

fn copy(list: &SgeList, pieces: &mut Pieces) -> c_int {
    let mut count = 0;
    for (Sge { addr, len, lkey }, piece) in list.as_slice().iter().zip(pieces) {
        *piece = verbs::Sge {
            addr: *addr,
            length: *len,
            lkey: *lkey,
        };
        count += 1;
    }
    count
}

fn send(
    request: &SendWr<'_>,
    caps: DeviceCaps,
    pieces: &mut Pieces,
) -> Result<verbs::SendWr, Error> {
    let mut send = NO_SEND;
    send.wr_id = request.wr_id;
    set_operation(&mut send, request.op, caps)?;
    for (flag, bit) in [
        (SendFlags::SIGNALED, send_flag::SIGNALED),
        (SendFlags::FENCE, send_flag::FENCE),
        (SendFlags::SOLICITED, send_flag::SOLICITED),
    ] {
        if request.flags.contains(flag) {
            send.send_flags |= bit;
        }
    }
    match request.data {
        Data::Sges(list) => send.num_sge = copy(&list, pieces),
        Data::Inline(_) if request.op.is_read_or_atomic() => {
            return Err(Error::Invalid("a Read or atomic has inline data"));
        }
        Data::Inline(bytes) => {
            let len = bytes.len() as u64;
            Error::at_most("the length of inline data", len, u32::MAX.into())?;
            pieces[0] = verbs::Sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                lkey: 0,
            };
            send.num_sge = 1;
            send.send_flags |= send_flag::INLINE;
        }
    }
    send.sg_list = pieces.as_mut_ptr();
    Ok(send)
}

fn set_operation(send: &mut verbs::SendWr, op: SendOp, caps: DeviceCaps) -> Result<(), Error> {
    let need = |cap, what| {
        let has = caps.contains(cap);
        has.then_some(()).ok_or(Error::Unsupported(what))
    };
    let rdma = |remote: haul_verbs::Remote| verbs::RemoteWr {
        rdma: verbs::RdmaWr {
            remote_addr: remote.addr,
            rkey: remote.rkey,
        },
    };
    let atomic = |remote: haul_verbs::Remote, compare_add, swap| verbs::RemoteWr {
        atomic: verbs::AtomicWr {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey,
        },
    };
    match op {
        SendOp::Send => send.opcode = wr::SEND,
        SendOp::SendWithImm(imm) => {
            need(DeviceCaps::SEND_WITH_IMM, "Send with immediate data")?;
            send.opcode = wr::SEND_WITH_IMM;
            send.imm_data = imm.to_be();
        }
        SendOp::SendWithInv(rkey) => {
            need(DeviceCaps::SEND_WITH_INVALIDATE, "Send with Invalidate")?;
            send.opcode = wr::SEND_WITH_INV;
            send.imm_data = rkey;
            // libsiw takes the key from here; nobody else looks.
            send.wr = rdma(haul_verbs::Remote { addr: 0, rkey });
        }
        SendOp::RdmaWrite(remote) => {
            send.opcode = wr::RDMA_WRITE;
            send.wr = rdma(remote);
        }
        SendOp::RdmaWriteWithImm(remote, imm) => {
            need(DeviceCaps::WRITE_WITH_IMM, "RDMA Write with immediate data")?;
            send.opcode = wr::RDMA_WRITE_WITH_IMM;
            send.imm_data = imm.to_be();
            send.wr = rdma(remote);
        }
        SendOp::RdmaRead(remote) => {
            send.opcode = wr::RDMA_READ;
            send.wr = rdma(remote);
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            need(DeviceCaps::ATOMIC, "an atomic operation")?;
            send.opcode = wr::ATOMIC_CMP_AND_SWP;
            send.wr = atomic(remote, compare, swap);
        }
        SendOp::FetchAdd { remote, add } => {
            need(DeviceCaps::ATOMIC, "an atomic operation")?;
            send.opcode = wr::ATOMIC_FETCH_AND_ADD;
            send.wr = atomic(remote, add, 0);
        }
        _ => return Err(Error::Unsupported("this operation")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use haul_verbs::Remote;

    use super::*;

    const PIECE: Sge = Sge {
        addr: 0x1000,
        len: 64,
        lkey: 5,
    };

    /// Follows a chain as a driver does.
    fn ids(mut request: *mut verbs::SendWr) -> Vec<u64> {
        let mut ids = Vec::new();
        while !request.is_null() {
            // SAFETY: the chain lives while it is posted.
            let copy = unsafe { *request };
            ids.push(copy.wr_id);
            request = copy.next;
        }
        ids
    }

    #[test]
    fn a_batch_of_any_length_arrives_in_order() {
        for len in [0, 1, 2, BATCH, BATCH + 1, 3 * BATCH - 1] {
            let requests: Vec<_> = (0..len as u64)
                .map(|id| SendWr::new(id, SendOp::Send, PIECE))
                .collect();
            let seen = RefCell::new(Vec::new());
            let posted = sends(&requests, DeviceCaps::all(), |first| {
                seen.borrow_mut().extend(ids(first));
                (0, std::ptr::null_mut())
            });
            posted.unwrap();
            assert!(seen.into_inner().into_iter().eq(0..len as u64));
        }
    }

    #[test]
    fn the_request_that_a_driver_stops_at_is_named() {
        let requests: Vec<_> = (0..20)
            .map(|id| SendWr::new(id, SendOp::Send, PIECE))
            .collect();
        let error = sends(&requests, DeviceCaps::all(), |first| {
            // SAFETY: the chain lives while it is posted.
            if ids(first)[0] == 0 {
                (0, std::ptr::null_mut())
            } else {
                (12, first.wrapping_add(3))
            }
        });
        let error = error.unwrap_err();
        assert_eq!(error.posted, BATCH + 3);
        assert!(matches!(error.error, Error::Full("send queue")));
    }

    #[test]
    fn what_a_device_lacks_is_refused_and_what_is_before_it_posted() {
        let requests = [
            SendWr::new(1, SendOp::Send, PIECE),
            SendWr::new(2, SendOp::SendWithImm(7), PIECE),
            SendWr::new(3, SendOp::Send, PIECE),
        ];
        let seen = RefCell::new(Vec::new());
        let error = sends(&requests, DeviceCaps::empty(), |first| {
            seen.borrow_mut().extend(ids(first));
            (0, std::ptr::null_mut())
        });
        assert_eq!(seen.into_inner(), [1]);
        let error = error.unwrap_err();
        assert_eq!(error.posted, 1);
        assert!(matches!(error.error, Error::Unsupported(_)));
    }

    #[test]
    fn inline_data_is_not_for_reads() {
        let read = SendOp::RdmaRead(Remote::default());
        let request = SendWr::new(1, read, SgeList::EMPTY);
        let mut inline = request;
        inline.data = Data::Inline(b"x");
        let caps = DeviceCaps::all();
        assert!(send(&request, caps, &mut NO_PIECES.clone()).is_ok());
        assert!(send(&inline, caps, &mut NO_PIECES.clone()).is_err());
    }
}
