//! Sends and receives, one peer and several.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use haul_verbs::{
    Data, DatagramInit, Error, Peer, QpInit, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr,
    SgeList, Sources, SrqInit, WcData, WcOpcode, WcStatus,
};

use crate::support::{End, LOOPBACK, capacity, context, next, pattern};

#[test]
fn a_message_arrives_with_its_sender_and_can_be_answered() {
    let (near, far) = (End::new(), End::new());
    far.receive(7, 100, 1_000);
    near.receive(8, 0, 1_000);
    let text = pattern(64, 1);
    near.write(0, &text);
    near.post(1, SendOp::Send, 0, 64, far.peer());
    near.success(1, WcOpcode::Send);
    let wc = far.success(7, WcOpcode::Recv);
    assert_eq!((wc.byte_len, wc.src), (64, Some(near.peer())));
    assert_eq!(wc.qp_num, far.qp.qp_num());
    assert_eq!(far.read(100, 64), text);
    far.post(2, SendOp::Send, 100, 64, wc.src.unwrap());
    far.success(2, WcOpcode::Send);
    assert_eq!(near.success(8, WcOpcode::Recv).src, Some(far.peer()));
}

#[test]
fn a_small_send_is_complete_when_the_post_returns() {
    if !crate::over::IS_DIRECT {
        return println!("SKIPPED: this device has threads and queues between");
    }
    let (near, far) = (End::new(), End::new());
    near.post(1, SendOp::Send, 0, 64, far.peer());
    let mut out = [haul_verbs::WorkCompletion::default()];
    assert_eq!(near.cq.poll(&mut out).unwrap(), 1);
    assert_eq!((out[0].wr_id, out[0].status), (1, WcStatus::Success));
}

#[test]
fn messages_of_every_size_arrive_whole() {
    // A rate that small receive buffers bear, on a machine that has time for this; if it has not, a
    // message is retransmitted.
    let mut limited = DatagramInit::default();
    limited.max_rate = Some(50_000_000);
    let near = End::with(QpType::Ud, limited, Sources::Any);
    let far = End::new();
    let bytes = pattern(1 << 20, 2);
    near.write(0, &bytes);
    let edges = [
        0_usize, 1, 63, 1_413, 1_414, 1_415, 1_418, 1_419, 2_836, 2_837,
    ];
    let bulk = [65_536, 100_000, 1 << 20];
    for (wr_id, len) in (0..).zip(edges.into_iter().chain(bulk)) {
        far.mr.region().fill(0, (1 << 20) + 1, 0xee).unwrap();
        far.receive(wr_id, 0, 1 << 20);
        let wc = (0..20).find_map(|_| {
            near.post(wr_id, SendOp::Send, 0, len as u32, far.peer());
            near.success(wr_id, WcOpcode::Send);
            far.completion_within(Duration::from_secs(4))
        });
        let wc = wc.expect("one of twenty arrives whole");
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        assert_eq!(wc.byte_len as usize, len);
        assert!(far.read(0, len) == bytes[..len], "{len}");
        assert_eq!(far.read(len, 1), [0xee], "{len}");
    }
}

#[test]
fn pieces_inline_data_and_immediates_are_as_with_connections() {
    let (near, far) = (End::new(), End::new());
    near.write(0, &pattern(4_000, 3));
    let pieces = [near.mr.sge(3_000, 1_000), near.mr.sge(0, 2_000)];
    let places = [far.mr.sge(5_000, 1_500), far.mr.sge(0, 1_500)];
    let wr = RecvWr::new(1, SgeList::new(&places).unwrap());
    far.qp.post_recv(&[wr]).unwrap();
    let data = Data::Sges(SgeList::new(&pieces).unwrap());
    let send = SendWr::new(1, SendOp::Send, data).to(far.peer());
    near.qp.post_send(&[send]).unwrap();
    far.success(1, WcOpcode::Recv);
    let mut sent = near.read(3_000, 1_000);
    sent.extend(near.read(0, 2_000));
    let mut came = far.read(5_000, 1_500);
    came.extend(far.read(0, 1_500));
    assert!(sent == came);

    far.receive(2, 0, 100);
    let inline = SendWr::new(2, SendOp::Send, Data::Inline(b"inline")).to(far.peer());
    near.qp.post_send(&[inline]).unwrap();
    far.success(2, WcOpcode::Recv);
    assert_eq!(far.read(0, 6), b"inline");

    far.receive(3, 0, 100);
    let imm = SendWr::new(3, SendOp::SendWithImm(0xfeed_f00d), SgeList::EMPTY).to(far.peer());
    near.qp.post_send(&[imm]).unwrap();
    assert_eq!(far.completion().data, WcData::Imm(0xfeed_f00d));
}

#[test]
fn unsignalled_sends_leave_no_completion_and_no_trace() {
    let (near, far) = (End::new(), End::new());
    for round in 0..3 * u64::from(capacity().max_send_wr) {
        let wr = SendWr::new(round, SendOp::Send, near.mr.sge(0, 8)).to(far.peer());
        if round % 256 == 255 {
            near.qp.post_send(&[wr]).unwrap();
            near.success(round, WcOpcode::Send);
        } else {
            let wr = wr.with_flags(SendFlags::default());
            near.qp.post_send(&[wr]).unwrap();
        }
    }
    near.nothing();
    assert_eq!(near.statistics().sent, 3 * 256);
}

#[test]
fn many_peers_share_one_queue_pair() {
    let server = End::new();
    let clients: Vec<End> = (0..20).map(|_| End::new()).collect();
    for (wr_id, client) in (0..).zip(&clients) {
        server.receive(wr_id, wr_id * 64, 64);
        client.receive(0, 64, 64);
        client.write(0, &pattern(64, wr_id));
        client.post(1, SendOp::Send, 0, 64, server.peer());
    }
    let (mut received, mut sent) = (0, 0);
    while received < clients.len() || sent < clients.len() {
        let wc = server.completion();
        assert_eq!(wc.status, WcStatus::Success);
        if wc.opcode == WcOpcode::Recv {
            received += 1;
            server.post(wc.wr_id, SendOp::Send, wc.wr_id * 64, 64, wc.src.unwrap());
        } else {
            sent += 1;
        }
    }
    for (wr_id, client) in (0..).zip(&clients) {
        client.success(1, WcOpcode::Send);
        client.success(0, WcOpcode::Recv);
        assert_eq!(client.read(64, 64), pattern(64, wr_id));
    }
}

#[test]
fn one_post_reaches_different_peers_in_different_sizes() {
    let near = End::new();
    let peers: Vec<End> = (0..5).map(|_| End::new()).collect();
    near.write(0, &pattern(10_000, 9));
    let mut requests = Vec::new();
    for round in 0..8_u64 {
        for (at, peer) in (0..).zip(&peers) {
            let len = 1 + (round * 5 + at) as u32 * 200;
            peer.receive(round, round * 10_000, 10_000);
            requests.push(SendWr::new(round, SendOp::Send, near.mr.sge(0, len)).to(peer.peer()));
        }
    }
    near.qp.post_send(&requests).unwrap();
    for _ in &requests {
        assert_eq!(near.completion().status, WcStatus::Success);
    }
    for (at, peer) in (0..).zip(&peers) {
        let mut lengths: Vec<u32> = (0..8).map(|_| peer.completion().byte_len).collect();
        lengths.sort_unstable();
        let wanted: Vec<u32> = (0..8).map(|round| 1 + (round * 5 + at) * 200).collect();
        assert_eq!(lengths, wanted);
    }
}

#[test]
fn a_shared_receive_queue_feeds_several_services() {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let mr = crate::support::memory(&pd, Sources::Any);
    let srq = pd.create_srq(&SrqInit::default()).unwrap();
    let mut init = QpInit::new(&cq);
    init.qp_type = QpType::Ud;
    init.srq = Some(&srq);
    let services: Vec<_> = (0..3).map(|_| pd.create_qp(&init).unwrap()).collect();
    let near = End::new();
    for wr_id in 0..3 {
        srq.post_recv(&[RecvWr::new(wr_id, mr.sge(wr_id * 5_000, 5_000))])
            .unwrap();
    }
    for service in &services {
        assert!(service.post_recv(&[RecvWr::new(9, mr.sge(0, 1))]).is_err());
        let addr = service.bind(LOOPBACK).unwrap();
        let peer = Peer::new(addr, service.qp_num());
        near.post(1, SendOp::Send, 0, 4_000, peer);
        near.success(1, WcOpcode::Send);
    }
    let mut numbers: Vec<u32> = (0..3).map(|_| next(&cq).qp_num).collect();
    numbers.sort_unstable();
    let mut wanted: Vec<u32> = services.iter().map(haul_verbs::Qp::qp_num).collect();
    wanted.sort_unstable();
    assert_eq!(numbers, wanted);
}

#[test]
fn what_makes_no_sense_is_refused_when_it_is_posted() {
    let end = End::new();
    let whole = end.mr.sge(0, 8);
    let refused = |wr: SendWr<'_>| end.qp.post_send(&[wr]).unwrap_err().error;
    let nobody = refused(SendWr::new(1, SendOp::Send, whole));
    assert!(matches!(nobody, Error::Invalid(_)), "{nobody}");
    for op in [
        SendOp::SendWithInv(1),
        SendOp::SendWithImm(1),
        SendOp::LocalInv(1),
        SendOp::FetchAdd {
            remote: end.mr.remote(0),
            add: 1,
        },
    ] {
        let error = refused(SendWr::new(1, op, whole).to(end.peer()));
        assert!(matches!(error, Error::Unsupported(_)), "{op:?} {error}");
    }
    let long = vec![0; 257];
    let error = refused(SendWr::new(1, SendOp::Send, Data::Inline(&long)).to(end.peer()));
    assert_eq!(
        error.to_string(),
        "the length of inline data is 257, and must be at most 256"
    );
    end.nothing();
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn a_service_begins_once_and_not_as_a_connection() {
    let end = End::new();
    assert!(matches!(
        end.qp.bind(LOOPBACK),
        Err(Error::State(QpState::Rts))
    ));
    let init = QpInit::new(&end.cq);
    assert!(matches!(
        end.pd.create_qp(&init),
        Err(Error::Unsupported(_))
    ));
    let mut init = init;
    init.qp_type = QpType::Ud;
    let qp = end.pd.create_qp(&init).unwrap();
    assert!(matches!(qp.bind(end.addr), Err(Error::Os { .. })));
    assert_eq!(qp.state(), QpState::Reset);
    let wr = SendWr::new(1, SendOp::Send, SgeList::EMPTY).to(end.peer());
    let early = qp.post_send(&[wr]).unwrap_err().error;
    assert!(matches!(early, Error::State(QpState::Reset)), "{early}");
    qp.bind(LOOPBACK).unwrap();
}

#[test]
fn an_adopted_socket_keeps_its_address() {
    let far = End::new();
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let addr = socket.local_addr().unwrap();
    let mut init = QpInit::new(&far.cq);
    init.qp_type = QpType::Ud;
    let qp = far.pd.create_qp(&init).unwrap();
    let stream = std::net::TcpListener::bind(LOOPBACK).unwrap();
    assert!(matches!(qp.adopt(stream.into()), Err(Error::Invalid(_))));
    assert_eq!(qp.adopt(socket.into()).unwrap(), addr);
    far.receive(1, 0, 64);
    let wr = SendWr::new(2, SendOp::Send, far.mr.sge(64, 10)).to(far.peer());
    qp.post_send(&[wr]).unwrap();
    far.success(2, WcOpcode::Send);
    let wc = far.success(1, WcOpcode::Recv);
    assert_eq!(wc.src, Some(Peer::new(addr, qp.qp_num())));
}

#[test]
fn the_end_of_a_service_flushes_what_is_posted() {
    let end = End::new();
    for wr_id in 0..5 {
        end.receive(wr_id, 0, 64);
    }
    end.qp.disconnect().unwrap();
    assert_eq!(end.qp.state(), QpState::Err);
    for wr_id in 0..5 {
        let wc = end.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WrFlushErr));
    }
    end.post(9, SendOp::Send, 0, 8, end.peer());
    assert_eq!(end.completion().status, WcStatus::WrFlushErr);
    end.receive(10, 0, 8);
    assert_eq!(end.completion().status, WcStatus::WrFlushErr);
    // Its port is free.
    drop(UdpSocket::bind(end.addr).unwrap());
}

#[test]
fn a_service_that_is_dropped_with_work_posted_is_gone() {
    let near = End::new();
    let far = End::new();
    for wr_id in 0..10 {
        near.receive(wr_id, 0, 64);
        near.post(wr_id, SendOp::Send, 0, 100_000, far.peer());
    }
    let End { qp, addr, cq, .. } = near;
    drop(qp);
    drop(UdpSocket::bind(addr).unwrap());
    let mut out = [haul_verbs::WorkCompletion::default(); 64];
    let count = cq.poll(&mut out).unwrap();
    assert!(out[..count].iter().all(|wc| wc.opcode == WcOpcode::Send));
}

#[test]
fn an_address_that_cannot_be_reached_fails_one_request_and_no_more() {
    let (near, far) = (End::new(), End::new());
    // A socket of IPv4 cannot send to IPv6.
    let away = Peer::new("[::1]:9".parse().unwrap(), 5);
    near.post(1, SendOp::Send, 0, 8, away);
    let wc = near.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::GeneralErr));
    assert_ne!(wc.vendor_err, 0);
    far.receive(1, 0, 8);
    near.post(2, SendOp::Send, 0, 8, far.peer());
    near.success(2, WcOpcode::Send);
    far.success(1, WcOpcode::Recv);
}

#[test]
fn a_closed_port_is_no_end() {
    let (near, far) = (End::new(), End::new());
    let gone = UdpSocket::bind(LOOPBACK).unwrap().local_addr().unwrap();
    for wr_id in 0..10 {
        near.post(wr_id, SendOp::Send, 0, 8, Peer::new(gone, 5));
        near.success(wr_id, WcOpcode::Send);
    }
    far.receive(1, 0, 8);
    near.post(10, SendOp::Send, 0, 8, far.peer());
    far.success(1, WcOpcode::Recv);
    assert_eq!(near.qp.state(), QpState::Rts);
}

#[test]
fn a_wildcard_answers_from_the_address_that_was_asked() {
    let anywhere = "0.0.0.0:0".parse().unwrap();
    let server = End::at(anywhere, QpType::Ud, DatagramInit::default(), Sources::Any);
    let client = End::new();
    let asked = ([127, 0, 0, 9], server.addr.port()).into();
    server.receive(1, 0, 64);
    client.receive(1, 0, 3_000);
    let peer = Peer::new(asked, server.qp.qp_num());
    client.post(2, SendOp::Send, 0, 64, peer);
    let from = server.success(1, WcOpcode::Recv).src.unwrap();
    server.post(2, SendOp::Send, 0, 3_000, from);
    client.success(2, WcOpcode::Send);
    assert_eq!(client.success(1, WcOpcode::Recv).src, Some(peer));
}

#[test]
fn a_rate_holds_back() {
    let mut limited = DatagramInit::default();
    limited.max_rate = Some(4_000_000);
    let near = End::with(QpType::Ud, limited, Sources::Any);
    let far = End::new();
    let before = Instant::now();
    near.post(1, SendOp::Send, 0, 1 << 20, far.peer());
    near.success(1, WcOpcode::Send);
    // One megabyte but for the first 64 KiB at four megabytes a second.
    assert!(before.elapsed() >= Duration::from_millis(200));
}
