//! Every operation does what it says.

use std::time::{Duration, Instant};

use haul_verbs::{
    Data, QpState, RateLimit, RecvWr, Remote, SendFlags, SendOp, SendWr, SgeList, WcData, WcOpcode,
    WcStatus,
};

use crate::support::{Wish, connected, connected_with, over_both, pattern};

fn a_send_arrives_in_the_posted_receive(wish: &Wish) {
    let (near, far) = connected(wish);
    assert_eq!(
        (near.qp.state(), far.qp.state()),
        (QpState::Rts, QpState::Rts)
    );
    for len in [0, 1, 63, 64, 1_000, 5_000, 70_000, 1_000_000] {
        let bytes = pattern(len, 1);
        near.write(0, &bytes);
        far.receive(7, 0, 1 << 20);
        near.post(1, SendOp::Send, 0, len as u32);
        assert_eq!(near.success(1).opcode, WcOpcode::Send);
        let wc = far.success(7);
        assert_eq!(
            (wc.opcode, wc.byte_len as usize, wc.data),
            (WcOpcode::Recv, len, WcData::None)
        );
        assert!(far.read(0, len) == bytes, "{len} bytes");
    }
}

fn a_write_arrives_where_it_was_sent_to(wish: &Wish) {
    let (near, far) = connected(wish);
    for (len, at) in [(1, 5), (64, 0), (4_096, 1), (65_536, 7), (3_000_000, 100)] {
        let bytes = pattern(len, 2);
        near.write(0, &bytes);
        near.post(1, SendOp::RdmaWrite(far.mr.remote(at)), 0, len as u32);
        near.success(1);
        far.receive(2, 0, 0);
        near.post(3, SendOp::Send, 0, 0);
        near.success(3);
        far.success(2);
        assert!(far.read(at as usize, len) == bytes, "{len} bytes");
    }
}

fn a_read_brings_what_is_there(wish: &Wish) {
    let (near, far) = connected(wish);
    for (len, at) in [
        (0, 0),
        (1, 5),
        (64, 0),
        (4_096, 1),
        (65_536, 7),
        (3_000_000, 100),
    ] {
        let bytes = pattern(len, 3);
        far.write(at as usize, &bytes);
        near.post(1, SendOp::RdmaRead(far.mr.remote(at)), 9, len as u32);
        let wc = near.success(1);
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaRead, len));
        assert!(near.read(9, len) == bytes, "{len} bytes");
    }
}

fn pieces_are_gathered_and_scattered(wish: &Wish) {
    let (near, far) = connected(wish);
    let bytes = pattern(100_000, 4);
    near.write(0, &bytes[..10]);
    near.write(1_000, &bytes[10..90_000]);
    near.write(200_000, &bytes[90_000..]);
    let from = [
        near.mr.sge(0, 10),
        near.mr.sge(1_000, 89_990),
        near.mr.sge(200_000, 10_000),
    ];
    let to = [
        far.mr.sge(500_000, 70_000),
        far.mr.sge(0, 1),
        far.mr.sge(3, 40_000),
    ];
    let wr = RecvWr::new(1, SgeList::new(&to).unwrap());
    far.qp.post_recv(&[wr]).unwrap();
    let wr = SendWr::new(2, SendOp::Send, SgeList::new(&from).unwrap());
    near.qp.post_send(&[wr]).unwrap();
    near.success(2);
    assert_eq!(far.success(1).byte_len, 100_000);
    let mut seen = far.read(500_000, 70_000);
    seen.extend(far.read(0, 1));
    seen.extend(far.read(3, 29_999));
    assert!(seen == bytes);
}

fn inline_data_may_be_reused_at_once(wish: &Wish) {
    let (near, far) = connected(wish);
    for number in 0..100_u8 {
        far.receive(number.into(), u64::from(number) * 256, 256);
    }
    let mut bytes = [0; 256];
    for number in 0..100 {
        bytes.fill(number);
        let wr = SendWr::new(number.into(), SendOp::Send, Data::Inline(&bytes));
        near.qp.post_send(&[wr]).unwrap();
        bytes.fill(0xff);
    }
    for number in 0..100_u8 {
        near.success(number.into());
        far.success(number.into());
        assert_eq!(far.read(usize::from(number) * 256, 256), [number; 256]);
    }
}

fn immediate_data_follows_a_write_and_may_come_alone(wish: &Wish) {
    let (near, far) = connected(wish);
    near.write(0, b"written");
    far.receive(1, 1_000, 8);
    far.receive(2, 1_000, 8);
    near.post(
        3,
        SendOp::RdmaWriteWithImm(far.mr.remote(50), 0xdead_beef),
        0,
        7,
    );
    assert_eq!(near.success(3).opcode, WcOpcode::RdmaWrite);
    let wc = far.success(1);
    assert_eq!(
        (wc.opcode, wc.data),
        (WcOpcode::RecvRdmaWithImm, WcData::Imm(0xdead_beef))
    );
    assert_eq!(wc.byte_len, 7);
    assert_eq!(far.read(50, 7), b"written");
    near.post(4, SendOp::SendWithImm(5), 0, 0);
    near.success(4);
    let wc = far.success(2);
    assert_eq!((wc.opcode, wc.data), (WcOpcode::Recv, WcData::Imm(5)));
    assert_eq!((wc.byte_len, far.read(1_000, 8)), (0, vec![0; 8]));
}

fn a_send_may_have_immediate_data_and_payload(wish: &Wish) {
    let (near, far) = connected(wish);
    let bytes = pattern(90_000, 3);
    near.write(0, &bytes);
    far.receive(1, 200_000, 90_000);
    near.post(2, SendOp::SendWithImm(0x89ab_cdef), 0, 90_000);
    assert_eq!(near.success(2).opcode, WcOpcode::Send);
    let wc = far.success(1);
    assert_eq!(
        (wc.opcode, wc.data, wc.byte_len),
        (WcOpcode::Recv, WcData::Imm(0x89ab_cdef), 90_000)
    );
    assert_eq!(far.read(200_000, 90_000), bytes);
}

fn atomics_return_what_was_there(wish: &Wish) {
    let (near, far) = connected(wish);
    let word = |end: &crate::support::End, at: usize| {
        u64::from_ne_bytes(end.read(at, 8).try_into().unwrap())
    };
    far.write(64, &40_u64.to_ne_bytes());
    let remote = far.mr.remote(64);
    near.post(1, SendOp::FetchAdd { remote, add: 2 }, 0, 8);
    assert_eq!(near.success(1).opcode, WcOpcode::FetchAdd);
    assert_eq!((word(&near, 0), word(&far, 64)), (40, 42));
    for (compare, swap, then) in [(42, 7, 7), (42, 9, 7)] {
        let op = SendOp::CompareSwap {
            remote,
            compare,
            swap,
        };
        let before = word(&far, 64);
        near.post(2, op, 0, 8);
        near.success(2);
        assert_eq!((word(&near, 0), word(&far, 64)), (before, then));
    }
}

fn send_with_invalidate_ends_the_peers_region(wish: &Wish) {
    let (near, far) = connected(wish);
    let victim = far.pd.reg_mr(
        &far.mr.region().cut(0, 100).unwrap(),
        crate::support::all_access(),
    );
    let victim = victim.unwrap();
    far.receive(1, 0, 10);
    near.post(2, SendOp::SendWithInv(victim.rkey()), 0, 1);
    near.success(2);
    assert_eq!(far.success(1).data, WcData::InvalidatedRkey(victim.rkey()));
    near.post(3, SendOp::RdmaRead(victim.remote(0)), 0, 1);
    assert_ne!(near.completion().status, WcStatus::Success);
}

fn local_invalidation_ends_a_region_when_all_before_it_is_done(wish: &Wish) {
    let (near, far) = connected(wish);
    let bytes = pattern(1 << 20, 6);
    near.write(0, &bytes);
    let part = near.mr.region().cut(0, 1 << 20).unwrap();
    let lent = near.pd.reg_mr(&part, crate::support::all_access()).unwrap();
    far.receive(1, 0, 1 << 20);
    far.receive(2, 0, 0);
    let send = SendWr::new(3, SendOp::Send, lent.sge(0, 1 << 20));
    let end = SendWr::new(4, SendOp::LocalInv(lent.lkey()), SgeList::EMPTY);
    let after = SendWr::new(5, SendOp::Send, SgeList::EMPTY);
    near.qp.post_send(&[send, end, after]).unwrap();
    near.success(3);
    assert_eq!(near.success(4).opcode, WcOpcode::LocalInv);
    near.success(5);
    far.success(1);
    assert!(far.read(0, 1 << 20) == bytes);
    far.success(2);
    far.post(6, SendOp::RdmaRead(lent.remote(0)), 0, 1);
    assert_ne!(far.completion().status, WcStatus::Success);
}

fn unsignalled_requests_complete_silently_and_in_order(wish: &Wish) {
    let (near, far) = connected(wish);
    for number in 0..50 {
        far.receive(number, number * 8, 8);
        near.write(0, &number.to_ne_bytes());
        let flags = if number % 10 == 9 {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let bytes = number.to_ne_bytes();
        let wr = SendWr::new(number, SendOp::Send, Data::Inline(&bytes)).with_flags(flags);
        near.qp.post_send(&[wr]).unwrap();
    }
    for number in [9, 19, 29, 39, 49] {
        near.success(number);
    }
    for number in 0..50 {
        far.success(number);
        assert_eq!(far.read(number as usize * 8, 8), number.to_ne_bytes());
    }
    assert_eq!(near.cq.poll(&mut [Default::default()]).unwrap(), 0);
}

fn batches_larger_than_the_socket_are_sent_in_order(wish: &Wish) {
    let (near, far) = connected(wish);
    let bytes = pattern(4_000_000, 5);
    near.write(0, &bytes);
    let piece = 20_000;
    let requests: Vec<_> = (0..200_u64)
        .map(|number| {
            let at = number * u64::from(piece);
            let op = SendOp::RdmaWrite(far.mr.remote(at));
            SendWr::new(number, op, near.mr.sge(at, piece))
        })
        .collect();
    near.qp.post_send(&requests).unwrap();
    for number in 0..200 {
        near.success(number);
    }
    far.receive(1, 0, 0);
    near.post(999, SendOp::Send, 0, 0);
    near.success(999);
    far.success(1);
    assert!(far.read(0, bytes.len()) == bytes);
}

fn with_remote_placement_a_completed_write_is_there(wish: &Wish) {
    let wish = Wish {
        remote_placement: true,
        ..*wish
    };
    let (near, far) = connected_with(&wish.options(), &wish);
    for round in 0..20 {
        let bytes = pattern(100_000, round);
        near.write(0, &bytes);
        near.post(round, SendOp::RdmaWrite(far.mr.remote(0)), 0, 100_000);
        near.success(round);
        assert!(far.read(0, 100_000) == bytes, "round {round}");
    }
    let imm = SendOp::RdmaWriteWithImm(Remote::default(), 3);
    far.receive(1, 0, 0);
    near.post(77, imm, 0, 0);
    near.success(77);
    far.success(1);
}

fn answers_to_reads_keep_the_rate_that_their_sender_is_limited_to(wish: &Wish) {
    const BYTES: u32 = 2_000_000;
    let wish = Wish {
        rate_limit: Some(RateLimit::new(40_000_000).with_burst(Some(32 << 10))),
        ..*wish
    };
    let (near, far) = connected_with(&wish.options(), &wish);
    let bytes = pattern(BYTES as usize, 8);
    far.write(0, &bytes);
    let start = Instant::now();
    near.post(1, SendOp::RdmaRead(far.mr.remote(0)), 0, BYTES);
    near.success(1);
    let took = start.elapsed();
    assert!(near.read(0, BYTES as usize) == bytes);
    // 0.4 s, but for what leaves at once: the kernel does not pace the first ten segments of TCP,
    // and those of loopback are long.
    assert!(took > Duration::from_millis(200), "{took:?}");
}

fn a_fenced_send_sees_the_read_before_it(wish: &Wish) {
    let (near, far) = connected(wish);
    let bytes = pattern(500_000, 6);
    far.write(1_000_000, &bytes);
    for _ in 0..10 {
        far.receive(1, 0, 500_000);
        near.mr.region().fill(0, 500_000, 0).unwrap();
        let read = SendOp::RdmaRead(far.mr.remote(1_000_000));
        let requests = [
            SendWr::new(2, read, near.mr.sge(0, 500_000)),
            SendWr::new(3, SendOp::Send, near.mr.sge(0, 500_000))
                .with_flags(SendFlags::SIGNALED | SendFlags::FENCE),
        ];
        near.qp.post_send(&requests).unwrap();
        near.success(2);
        near.success(3);
        far.success(1);
        assert!(far.read(0, 500_000) == bytes);
    }
}

fn memory_that_changes_while_it_is_read_does_not_end_the_connection(wish: &Wish) {
    let (near, far) = connected(wish);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0_u8;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                far.mr.region().fill(0, 1 << 20, byte).unwrap();
            }
        });
        for number in 0..50 {
            near.post(number, SendOp::RdmaRead(far.mr.remote(0)), 0, 1 << 20);
            near.success(number);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

over_both!(
    memory_that_changes_while_it_is_read_does_not_end_the_connection,
    a_send_arrives_in_the_posted_receive,
    a_write_arrives_where_it_was_sent_to,
    a_read_brings_what_is_there,
    pieces_are_gathered_and_scattered,
    inline_data_may_be_reused_at_once,
    immediate_data_follows_a_write_and_may_come_alone,
    a_send_may_have_immediate_data_and_payload,
    atomics_return_what_was_there,
    send_with_invalidate_ends_the_peers_region,
    local_invalidation_ends_a_region_when_all_before_it_is_done,
    unsignalled_requests_complete_silently_and_in_order,
    batches_larger_than_the_socket_are_sent_in_order,
    with_remote_placement_a_completed_write_is_there,
    answers_to_reads_keep_the_rate_that_their_sender_is_limited_to,
    a_fenced_send_sees_the_read_before_it,
);
