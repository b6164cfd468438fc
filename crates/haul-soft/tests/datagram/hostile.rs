//! What should not come: counted, nothing placed, nothing ended.

use std::net::UdpSocket;

use haul_verbs::{
    AsyncEvent, DatagramInit, Peer, QpState, QpType, SendOp, Sources, WcOpcode, WcStatus,
};

use crate::support::{End, LOOPBACK, pattern};

/// An end whose whole memory has one value, with a receive over all of it.
fn target() -> End {
    let end = End::with(QpType::Ud, DatagramInit::default(), Sources::Validated);
    end.mr.region().fill(0, end.mr.len(), 0xee).unwrap();
    end.receive(1, 0, 1 << 20);
    end
}

fn is_untouched(end: &End) {
    assert_eq!(end.qp.state(), QpState::Rts);
    assert!(end.read(0, end.mr.len()).iter().all(|byte| *byte == 0xee));
    end.nothing();
}

#[test]
fn junk_is_counted_and_leaves_no_trace() {
    let far = target();
    let unknown = UdpSocket::bind(LOOPBACK).unwrap();
    for seed in 0..100 {
        let mut junk = pattern(1 + seed as usize * 14, seed);
        if seed % 2 == 0 {
            // This protocol's first octet, and nothing right behind it.
            junk[0] = 0xd1;
        }
        unknown.send_to(&junk, far.addr).unwrap();
    }
    far.counts(|counts| counts.malformed + counts.bad_checksum == 100);
    is_untouched(&far);
    let event = far.context.poll_async_event().unwrap();
    let qp_num = far.qp.qp_num();
    assert_eq!(event, Some(AsyncEvent::DatagramRefused { qp_num }));
    // Ten a second at most.
    assert_eq!(far.context.poll_async_event().unwrap(), None);
    still_works(&far);
}

fn still_works(far: &End) {
    let near = End::new();
    near.write(0, b"still here");
    near.post(1, SendOp::Send, 0, 10, far.peer());
    near.success(1, WcOpcode::Send);
    let wc = far.success(1, WcOpcode::Recv);
    assert_eq!((wc.byte_len, wc.src), (10, Some(near.peer())));
}

/// What an end sends, caught by a plain socket.
fn caught(post: impl Fn(&End, Peer)) -> Vec<Vec<u8>> {
    let near = End::new();
    let trap = UdpSocket::bind(LOOPBACK).unwrap();
    trap.set_read_timeout(Some(crate::support::PATIENCE))
        .unwrap();
    post(&near, Peer::new(trap.local_addr().unwrap(), 0));
    let count = near.statistics().sent;
    let mut buffer = vec![0; 2_000];
    (0..count)
        .map(|_| {
            let len = trap.recv(&mut buffer).unwrap();
            buffer[..len].to_vec()
        })
        .collect()
}

#[test]
fn a_datagram_that_is_changed_anywhere_is_not_taken() {
    let far = target();
    let qp_num = far.qp.qp_num();
    let sent = caught(|near, trap| {
        near.post(1, SendOp::Send, 0, 30, Peer::new(trap.addr, qp_num));
    });
    let unknown = UdpSocket::bind(LOOPBACK).unwrap();
    let datagram = &sent[0];
    for at in 0..datagram.len() {
        let mut bent = datagram.clone();
        bent[at] ^= 1 << (at % 8);
        unknown.send_to(&bent, far.addr).unwrap();
        if at % 16 == 0 {
            far.counts(|counts| counts.bad_checksum + counts.malformed > at as u64);
        }
    }
    let all = datagram.len() as u64;
    far.counts(|counts| counts.bad_checksum + counts.malformed == all);
    is_untouched(&far);
    // As it was, it is good: only the sender is somebody else.
    unknown.send_to(datagram, far.addr).unwrap();
    let wc = far.success(1, WcOpcode::Recv);
    assert_eq!(wc.src.map(|peer| peer.addr), unknown.local_addr().ok());
}

#[test]
fn a_spoofed_source_writes_nothing_where_sources_must_be_known() {
    let far = target();
    let (remote, qp_num) = (far.mr.remote(0), far.qp.qp_num());
    let sent = caught(|near, trap| {
        let open = Peer::new(trap.addr, qp_num);
        near.post(1, SendOp::RdmaWrite(remote), 0, 4_000, open);
    });
    let unknown = UdpSocket::bind(LOOPBACK).unwrap();
    for datagram in &sent {
        unknown.send_to(datagram, far.addr).unwrap();
    }
    is_untouched(&far);
}

#[test]
fn messages_nobody_waits_for_and_messages_too_long_are_counted() {
    let (near, far) = (End::new(), End::new());
    near.post(1, SendOp::Send, 0, 100, far.peer());
    near.success(1, WcOpcode::Send);
    far.counts(|counts| counts.no_receive == 1);
    far.receive(1, 0, 50);
    near.post(2, SendOp::Send, 0, 100, far.peer());
    near.success(2, WcOpcode::Send);
    far.counts(|counts| counts.too_long == 1);
    let elsewhere = Peer::new(far.addr, far.qp.qp_num() ^ 0x800);
    near.post(3, SendOp::Send, 0, 10, elsewhere);
    near.success(3, WcOpcode::Send);
    far.counts(|counts| counts.unknown_qp == 1);
    // The receive is still there.
    near.post(4, SendOp::Send, 0, 50, far.peer());
    far.success(1, WcOpcode::Recv);
}

#[test]
fn a_key_of_this_end_that_is_not_valid_fails_the_request_alone() {
    let (near, far) = (End::new(), End::new());
    far.receive(1, 0, 64);
    let mut bad = near.mr.sge(0, 32);
    bad.lkey ^= 0x100;
    let wr = haul_verbs::SendWr::new(1, SendOp::Send, bad).to(far.peer());
    near.qp.post_send(&[wr]).unwrap();
    let wc = near.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocProtErr));
    near.post(2, SendOp::Send, 0, 16, far.peer());
    near.success(2, WcOpcode::Send);
    assert_eq!(far.success(1, WcOpcode::Recv).byte_len, 16);
    assert_eq!(near.qp.state(), QpState::Rts);
}

#[test]
fn a_full_receive_buffer_shows_in_the_counts() {
    let mut options = haul_soft::rnic::Options::default();
    options.socket_buffer = Some(4_096);
    let devices = haul_soft::rnic::provider(options).devices().unwrap();
    let context = devices[2].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let mut init = haul_verbs::QpInit::new(&cq);
    init.qp_type = QpType::Ud;
    let qp = pd.create_qp(&init).unwrap();
    let addr = qp.bind(LOOPBACK).unwrap();
    let near = End::new();
    let mut posted = 0_u64;
    // Its engine may be quick: then it takes more.
    while qp.datagram_statistics().unwrap().kernel_drops == 0 {
        assert!(posted < 100_000);
        near.post(
            posted,
            SendOp::Send,
            0,
            60_000,
            Peer::new(addr, qp.qp_num()),
        );
        near.success(posted, WcOpcode::Send);
        posted += 1;
    }
    assert_eq!(qp.state(), QpState::Rts);
}
