//! The border against a provider that says what the test wants; connections are tested by
//! c/examples.

mod datagram;
mod mock;

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_verbs::{
    Peer, Remote, SendFlags, SendOp, Sge, WcData, WcOpcode, WcStatus, WorkCompletion,
};

use crate::abi::*;
use crate::*;
use mock::{Script, Sent};

/// Objects of the mock, made through the C functions.
struct World {
    script: Arc<Script>,
    context: Box<haul_context>,
    pd: Box<haul_pd>,
    cq: Box<haul_cq>,
    qp: Box<haul_qp>,
}

fn make<T>(create: impl FnOnce(Option<&mut MaybeUninit<*mut T>>) -> c_int) -> Box<T> {
    let mut out = MaybeUninit::uninit();
    assert_eq!(create(Some(&mut out)), HAUL_OK);
    // SAFETY: a function that returns HAUL_OK has put an object there.
    let object = unsafe { out.assume_init() };
    // SAFETY: and gives it away.
    unsafe { Box::from_raw(object) }
}

impl World {
    fn new() -> Self {
        let script = Arc::new(Script::default());
        let context = Box::new(haul_context::open(&mock::device(&script), 0, None, None).unwrap());
        let pd = make(|out| haul_pd_create(Some(&context), out));
        let cq = make(|out| haul_cq_create(Some(&context), 8, None, 0, out));
        let init = haul_qp_init {
            size: u32::try_from(size_of::<haul_qp_init>()).unwrap(),
            r#type: HAUL_QPT_RC,
            flags: 0,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            send_cq: &raw const *cq,
            recv_cq: &raw const *cq,
            srq: std::ptr::null(),
            datagram: std::ptr::null(),
            max_rate_bps: 0,
            max_burst: 0,
        };
        // SAFETY: the structure is whole, its handles live.
        let qp = make(|out| unsafe { haul_qp_create(Some(&pd), &init, out) });
        Self {
            script,
            context,
            pd,
            cq,
            qp,
        }
    }

    fn last_error(&self) -> String {
        let mut text: [c_char; 512] = [0; 512];
        // SAFETY: the buffer is as long as it is said to be.
        unsafe { haul_last_error(Some(&self.context), text.as_mut_ptr(), text.len()) };
        // SAFETY: the function ends it with a NUL.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        text.to_str().unwrap().to_owned()
    }

    fn poll(&self, len: u32) -> (c_int, Vec<haul_wc>) {
        let mut out = Vec::<haul_wc>::with_capacity(len as usize);
        // SAFETY: there is room for so many.
        let found = unsafe { haul_cq_poll(Some(&self.cq), out.as_mut_ptr(), len) };
        // SAFETY: so many were written.
        unsafe { out.set_len(usize::try_from(found).unwrap_or(0)) };
        (found, out)
    }

    fn send(&self, requests: &[haul_send_wr]) -> (c_int, usize) {
        let mut posted = MaybeUninit::new(usize::MAX);
        let (start, len) = (requests.as_ptr(), requests.len());
        // SAFETY: requests and what they point to live.
        let result = unsafe { haul_post_send(Some(&self.qp), start, len, Some(&mut posted)) };
        // SAFETY: it was initialised here.
        (result, unsafe { posted.assume_init() })
    }
}

fn write(wr_id: u64, pieces: &[haul_sge]) -> haul_send_wr {
    haul_send_wr {
        wr_id,
        opcode: HAUL_WR_RDMA_WRITE,
        flags: HAUL_SEND_SIGNALED,
        sges: pieces.as_ptr(),
        num_sge: u32::try_from(pieces.len()).unwrap(),
        data: 5,
        remote_addr: 6,
        compare_add: 7,
        swap: 8,
        rkey: 9,
        reserved: 0,
    }
}

#[test]
fn a_panic_becomes_an_error_and_the_next_call_works() {
    let world = World::new();
    let mut out = MaybeUninit::uninit();
    world.script.panics.store(true, Ordering::Relaxed);
    assert_eq!(
        haul_pd_create(Some(&world.context), Some(&mut out)),
        HAUL_ERR_INTERNAL
    );
    // SAFETY: a function that fails puts NULL there.
    assert!(unsafe { out.assume_init() }.is_null());
    let text = world.last_error();
    assert!(
        text.starts_with("haul_pd_create: internal error: alloc_pd; this is a bug"),
        "{text}"
    );
    drop(make(|out| haul_pd_create(Some(&world.context), out)));
    assert_eq!(world.last_error(), text, "successes do not erase it");
}

#[test]
fn a_panic_at_the_end_of_an_object_stays_inside() {
    let World {
        script,
        context,
        qp,
        ..
    } = World::new();
    script.panics.store(true, Ordering::Relaxed);
    haul_qp_destroy(Some(qp));
    assert_eq!(haul_last_errno(Some(&context)), libc::EIO);
}

#[test]
fn objects_end_in_any_order() {
    let World {
        script,
        context,
        pd,
        cq,
        qp,
    } = World::new();
    let mr = make(|out| haul_mr_alloc(Some(&pd), 100, HAUL_ACCESS_LOCAL_WRITE, out));
    haul_close(Some(context));
    haul_pd_destroy(Some(pd));
    haul_cq_destroy(Some(cq));
    assert!(script.ended.lock().unwrap().is_empty());
    haul_qp_destroy(Some(qp));
    assert_eq!(haul_mr_dereg(Some(mr)), HAUL_OK);
    let ended = script.ended.lock().unwrap();
    assert_eq!(ended[..2], ["qp", "mr"]);
}

#[test]
fn every_failure_has_a_number_an_errno_and_advice() {
    let world = World::new();
    let context = Some(&*world.context);
    let expect = |result: c_int, wanted: c_int, errno: c_int, advice: &str| {
        assert_eq!((result, haul_last_errno(context)), (wanted, errno));
        let text = world.last_error();
        assert!(text.contains(advice), "{text}");
    };
    let (mut channel, mut events) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    expect(
        haul_comp_channel_create(context, Some(&mut channel)),
        HAUL_ERR_UNSUPPORTED,
        libc::EOPNOTSUPP,
        "a completion channel is not supported here; haul_query returns",
    );
    expect(
        haul_cm_channel_create(context, Some(&mut events)),
        HAUL_ERR_EXHAUSTED,
        libc::ENOMEM,
        "no more event channels can be made; destroy",
    );
    expect(
        haul_cq_arm(Some(&world.cq), 1),
        HAUL_ERR_STATE,
        libc::ENOTCONN,
        "haul_cq_arm: the queue pair is in state Sqd; ",
    );
    expect(
        haul_disconnect(Some(&world.qp)),
        HAUL_ERR_TIMED_OUT,
        libc::ETIMEDOUT,
        "whether the peer is running",
    );
    expect(
        haul_cm_channel_fd(None),
        HAUL_ERR_INVALID,
        libc::ETIMEDOUT,
        "haul_disconnect: ",
    );
}

#[test]
fn completions_come_over_whole_however_many_there_are() {
    let world = World::new();
    let completion = |number: u32| {
        let (status, opcode) = (WcStatus::RespTimeoutErr, WcOpcode::RecvRdmaWithImm);
        let mut wc = WorkCompletion::new(u64::from(number) << 40, status, opcode, 3);
        (wc.byte_len, wc.vendor_err) = (2, 5);
        wc.data = WcData::InvalidatedRkey(4);
        wc.src = Some(Peer::new(([127, 0, 0, 1], 6).into(), number));
        wc
    };
    *world.script.completions.lock().unwrap() = (0..100).map(completion).collect();
    let (found, all) = world.poll(90);
    assert_eq!(found, 90);
    for (number, wc) in (0_u32..).zip(&all) {
        assert_eq!((wc.wr_id, wc.src_qp), (u64::from(number) << 40, number));
        assert_eq!(
            (wc.status, wc.opcode),
            (HAUL_WC_RESP_TIMEOUT_ERR, HAUL_WC_RECV_RDMA_WITH_IMM)
        );
        assert_eq!((wc.byte_len, wc.qp_num, wc.vendor_err), (2, 3, 5));
        assert_eq!(
            (wc.flags, wc.data, wc.reserved),
            (HAUL_WC_WITH_INV | HAUL_WC_WITH_SRC, 4, 0)
        );
    }
    // What was taken before an overflow shows is not lost.
    world.script.overflowed.store(true, Ordering::Relaxed);
    *world.script.completions.lock().unwrap() = (0..32).map(completion).collect();
    assert_eq!(world.poll(64).0, 32);
    assert_eq!(world.poll(64).0, HAUL_ERR_CQ_OVERFLOW);
    assert!(
        world.last_error().contains("overflowed"),
        "{}",
        world.last_error()
    );
}

#[test]
fn work_requests_arrive_as_they_were_meant() {
    let world = World::new();
    let bytes = [1_u8, 2, 3, 4];
    let (addr, lkey) = (bytes.as_ptr().expose_provenance() as u64, 77);
    let pieces = [
        haul_sge { addr, len: 1, lkey },
        haul_sge {
            addr: addr + 2,
            len: 2,
            lkey,
        },
    ];
    let remote = Remote { addr: 6, rkey: 9 };
    let (compare, swap) = (7, 8);
    let operations = [
        (HAUL_WR_SEND, SendOp::Send),
        (HAUL_WR_SEND_WITH_IMM, SendOp::SendWithImm(5)),
        (HAUL_WR_SEND_WITH_INV, SendOp::SendWithInv(5)),
        (HAUL_WR_RDMA_WRITE, SendOp::RdmaWrite(remote)),
        (
            HAUL_WR_RDMA_WRITE_WITH_IMM,
            SendOp::RdmaWriteWithImm(remote, 5),
        ),
        (HAUL_WR_RDMA_READ, SendOp::RdmaRead(remote)),
        (
            HAUL_WR_COMPARE_SWAP,
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            },
        ),
        (HAUL_WR_FETCH_ADD, SendOp::FetchAdd { remote, add: 7 }),
        (HAUL_WR_LOCAL_INV, SendOp::LocalInv(5)),
        (HAUL_WR_WRITE_RECORD, SendOp::WriteRecord(remote)),
        (
            HAUL_WR_WRITE_RECORD_WITH_IMM,
            SendOp::WriteRecordWithImm(remote, 5),
        ),
    ];
    let requests = operations.map(|(opcode, _)| haul_send_wr {
        opcode,
        ..write(opcode.into(), &pieces)
    });
    assert_eq!(world.send(&requests), (HAUL_OK, 11));
    let sge = |offset, len| Sge {
        addr: addr + offset,
        len,
        lkey,
    };
    let wanted = operations.map(|(opcode, op)| Sent {
        wr_id: opcode.into(),
        op,
        flags: SendFlags::SIGNALED,
        pieces: vec![sge(0, 1), sge(2, 2)],
        inline: Vec::new(),
        peer: None,
    });
    assert_eq!(*world.script.sent.lock().unwrap(), wanted);

    world.script.sent.lock().unwrap().clear();
    let flags = HAUL_SEND_INLINE | HAUL_SEND_FENCE | HAUL_SEND_SOLICITED;
    let inline = |pieces: &[haul_sge]| haul_send_wr {
        flags,
        ..write(0, pieces)
    };
    let requests = [inline(&pieces), inline(&pieces[..1]), inline(&[])];
    assert_eq!(world.send(&requests), (HAUL_OK, 3));
    let sent = world.script.sent.lock().unwrap();
    let texts: Vec<_> = sent.iter().map(|sent| &sent.inline[..]).collect();
    assert_eq!(texts, [&[1, 3, 4][..], &[1], &[]]);
    assert!(
        sent.iter()
            .all(|sent| sent.flags == SendFlags::FENCE | SendFlags::SOLICITED)
    );
}

#[test]
fn a_batch_of_any_length_says_where_it_stopped() {
    let world = World::new();
    let requests: Vec<_> = (0..50).map(|number| write(number, &[])).collect();
    for room in [0, 1, 15, 16, 17, 32, 49] {
        *world.script.room.lock().unwrap() = Some(room);
        assert_eq!(world.send(&requests), (HAUL_ERR_FULL, room));
    }
    *world.script.room.lock().unwrap() = None;
    let mut spoiled = requests;
    spoiled[33].opcode = 99;
    assert_eq!(world.send(&spoiled), (HAUL_ERR_INVALID, 33));
    let sent = world.script.sent.lock().unwrap();
    let last: Vec<_> = sent.iter().rev().take(33).map(|sent| sent.wr_id).collect();
    assert!(last.into_iter().rev().eq(0..33));
}

#[test]
fn receives_arrive_in_order_and_say_where_they_stopped() {
    let world = World::new();
    let piece = haul_sge {
        addr: 1,
        len: 2,
        lkey: 3,
    };
    let mut requests: Vec<_> = (0..40)
        .map(|wr_id| haul_recv_wr {
            wr_id,
            sges: &raw const piece,
            num_sge: 1,
            reserved: 0,
        })
        .collect();
    requests[20].num_sge = HAUL_SGE_MAX + 1;
    let pieces = [piece; 5];
    requests[20].sges = pieces.as_ptr();
    let mut posted = MaybeUninit::uninit();
    let (start, len) = (requests.as_ptr(), requests.len());
    // SAFETY: requests and what they point to live.
    let result = unsafe { haul_post_recv(Some(&world.qp), start, len, Some(&mut posted)) };
    // SAFETY: every call writes it.
    let posted = unsafe { posted.assume_init() };
    assert_eq!((result, posted), (HAUL_ERR_INVALID, 20));
    let received = world.script.received.lock().unwrap();
    assert!(received.iter().map(|(wr_id, _)| *wr_id).eq(0..20));
    assert!(received.iter().all(|(_, pieces)| pieces
        == &[Sge {
            addr: 1,
            len: 2,
            lkey: 3
        }]));
}

#[test]
fn limits_are_those_of_the_device_and_of_the_interface() {
    let world = World::new();
    // SAFETY: all zeros are a value of it.
    let mut info: haul_device_info = unsafe { std::mem::zeroed() };
    info.size = u32::try_from(size_of::<haul_device_info>()).unwrap();
    // SAFETY: the structure says its size.
    let result = unsafe { haul_query(Some(&world.context), &raw mut info) };
    assert_eq!(result, HAUL_OK);
    // SAFETY: names end with a NUL.
    assert_eq!(unsafe { CStr::from_ptr(info.name.as_ptr()) }, c"mock0");
    assert_eq!(
        info.caps,
        ((HAUL_CAP_WRITE_RECORD << 1) - 1) | HAUL_CAP_RATE_LIMIT
    );
    assert_eq!(
        (info.max_sge, info.max_inline),
        (HAUL_SGE_MAX, HAUL_INLINE_MAX)
    );
    assert_eq!((info.max_qp, info.max_private_data), (1, 11));
    assert_eq!(info.transport, HAUL_TRANSPORT_ROCE);
}
