//! Connections begin, end, and are told about; queues that are shared, armed or too small.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::Duration;

use haul_io::stream::Stream;
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    AsyncEvent, Blame, Error, Notify, QpInit, QpState, RecvWr, Remote, SendFlags, SendOp, SendWr,
    SrqInit, WcStatus, WorkCompletion,
};

use crate::support::{
    End, LOOPBACK, PATIENCE, Wish, capacity, connect, connected, make_qp, over_both, pattern,
};

fn private_data_and_depths_reach_both_applications(wish: &Wish) {
    let (near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    let question = pattern(500, 1);
    let mut param = ConnParam::default();
    param.private_data = &question;
    param.responder_resources = 5;
    param.initiator_depth = 9;
    near.qp
        .connect(listener.local_addr(), &param, &near.events)
        .unwrap();
    let CmEvent::ConnectRequest(request) = far.event() else {
        panic!("no request");
    };
    assert!(request.private_data == question);
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (5, 9)
    );
    let mut param = ConnParam::default();
    param.private_data = b"welcome";
    param.responder_resources = 7;
    param.initiator_depth = 4;
    request.accept(&far.qp, &param).unwrap();
    let (theirs, ours) = (far.established(), near.established());
    assert_eq!((theirs.responder_resources, theirs.initiator_depth), (7, 4));
    assert_eq!(
        (ours.initiator_depth, &ours.private_data[..]),
        (7, &b"welcome"[..])
    );
}

fn a_rejected_application_learns_why(wish: &Wish) {
    let (near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    near.receive(1, 0, 8);
    near.qp
        .connect(listener.local_addr(), &ConnParam::default(), &near.events)
        .unwrap();
    let CmEvent::ConnectRequest(request) = far.event() else {
        panic!("no request");
    };
    request.reject(b"not today").unwrap();
    match near.event() {
        CmEvent::Rejected { private_data, .. } => assert_eq!(private_data, b"not today"),
        other => panic!("{other:?}"),
    }
    assert_eq!(near.completion().status, WcStatus::WrFlushErr);
}

fn a_rejected_queue_pair_is_in_error_and_another_attempt_takes_a_new_one(wish: &Wish) {
    let (mut near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    near.receive(1, 0, 8);
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    let ask = |near: &End| {
        near.qp
            .connect(listener.local_addr(), &wish.param(), &near.events)
    };
    ask(&near).unwrap();
    let CmEvent::ConnectRequest(request) = far.event() else {
        panic!("no request");
    };
    request.reject(b"").unwrap();
    assert!(matches!(near.event(), CmEvent::Rejected { .. }));
    assert_eq!(near.qp.state(), QpState::Err);
    assert!(near.qp.failure().is_some());
    assert_eq!(near.completion().status, WcStatus::WrFlushErr);
    let again = ask(&near).unwrap_err();
    assert!(matches!(again, Error::State(QpState::Err)), "{again}");
    near.qp = make_qp(&near.pd, &near.cq, wish);
    near.receive(1, 0, 8);
    drop(listener);
    connect(&near, &far, wish);
    far.post(2, SendOp::Send, 0, 8);
    far.success(2);
    near.success(1);
}

fn a_request_that_is_dropped_is_rejected(wish: &Wish) {
    let (near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    near.qp
        .connect(listener.local_addr(), &ConnParam::default(), &near.events)
        .unwrap();
    drop(far.event());
    assert!(matches!(near.event(), CmEvent::Rejected { .. }));
}

fn nobody_listening_is_told(wish: &Wish) {
    let near = End::new(&wish.options(), wish);
    let far = End::new(&wish.options(), wish);
    let address = far
        .context
        .listen(LOOPBACK, &far.events, 8)
        .unwrap()
        .local_addr();
    near.qp
        .connect(address, &ConnParam::default(), &near.events)
        .unwrap();
    match near.event() {
        CmEvent::Unreachable { failure, .. } => assert_eq!(failure.blame, Blame::Network),
        other => panic!("{other:?}"),
    }
    assert_eq!(near.qp.state(), QpState::Err);
}

fn a_disconnect_in_order_delivers_what_was_sent_and_tells_both(wish: &Wish) {
    let (near, far) = connected(wish);
    let bytes = pattern(2_000_000, 3);
    near.write(0, &bytes);
    far.receive(1, 0, 2_000_000);
    far.receive(2, 0, 8);
    near.post(1, SendOp::Send, 0, 2_000_000);
    near.qp.disconnect().unwrap();
    far.success(1);
    assert!(far.read(0, 2_000_000) == bytes);
    assert_eq!(far.completion().status, WcStatus::WrFlushErr);
    for end in [&near, &far] {
        match end.event() {
            CmEvent::Disconnected { failure, .. } => assert_eq!(failure, None),
            other => panic!("{other:?}"),
        }
        assert_eq!(end.qp.state(), QpState::Err);
    }
    near.success(1);
}

fn a_disconnect_in_order_flushes_what_the_other_end_is_sending(wish: &Wish) {
    // Half a gigabyte: a thread that does not run for a while does not let all of it arrive.
    const WRITES: u64 = 256;
    let (near, far) = connected(wish);
    let remote = Remote {
        addr: near.mr.addr(),
        rkey: near.mr.rkey(),
    };
    for number in 0..WRITES {
        far.post(number, SendOp::RdmaWrite(remote), 0, 2_000_000);
    }
    near.qp.disconnect().unwrap();
    for end in [&far, &near] {
        match end.event() {
            CmEvent::Disconnected { failure, .. } => assert_eq!(failure, None),
            other => panic!("{other:?}"),
        }
    }
    let statuses: Vec<_> = (0..WRITES).map(|_| far.completion().status).collect();
    let written = statuses
        .iter()
        .filter(|status| **status == WcStatus::Success);
    let count = written.count();
    assert!(count < statuses.len(), "all was written before the end");
    let flushed = |status: &WcStatus| *status == WcStatus::WrFlushErr;
    assert!(statuses[count..].iter().all(flushed), "{statuses:?}");
}

fn a_dropped_queue_pair_ends_the_connection_in_order(wish: &Wish) {
    let (near, far) = connected(wish);
    let End { qp, mr, cq, .. } = near;
    far.receive(1, 0, 1 << 20);
    qp.post_send(&[SendWr::new(1, SendOp::Send, mr.sge(0, 1 << 20))])
        .unwrap();
    let mut out = [WorkCompletion::default()];
    assert_eq!(cq.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
    drop(qp);
    far.success(1);
    assert!(matches!(
        far.event(),
        CmEvent::Disconnected { failure: None, .. }
    ));
}

fn in_error_everything_posted_is_flushed(wish: &Wish) {
    let (near, far) = connected(wish);
    far.qp.disconnect().unwrap();
    assert!(matches!(near.event(), CmEvent::Disconnected { .. }));
    near.post(1, SendOp::Send, 0, 8);
    near.receive(2, 0, 8);
    for wr_id in [1, 2] {
        let wc = near.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WrFlushErr));
    }
}

fn an_armed_queue_puts_one_event_on_its_channel(wish: &Wish) {
    let (near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    let channel = far.context.create_completion_channel().unwrap();
    let cq = far.context.create_cq(16, Some(&channel), 77).unwrap();
    let far = End {
        qp: make_qp(&far.pd, &cq, wish),
        cq,
        ..far
    };
    for number in 0..4 {
        far.receive(number, 0, 8);
    }
    connect(&near, &far, wish);
    far.cq.arm(Notify::Any).unwrap();
    assert_eq!(channel.poll_event().unwrap(), None);
    near.post(1, SendOp::Send, 0, 8);
    near.post(2, SendOp::Send, 0, 8);
    assert_eq!(channel.wait_event(Some(PATIENCE)).unwrap(), Some(77));
    far.success(0);
    far.success(1);
    assert_eq!(
        channel.wait_event(Some(Duration::from_millis(20))).unwrap(),
        None
    );
    far.cq.arm(Notify::Solicited).unwrap();
    near.post(3, SendOp::Send, 0, 8);
    far.success(2);
    assert_eq!(channel.poll_event().unwrap(), None);
    let wr = SendWr::new(4, SendOp::Send, near.mr.sge(0, 8));
    near.qp
        .post_send(&[wr.with_flags(SendFlags::SIGNALED | SendFlags::SOLICITED)])
        .unwrap();
    // The file descriptor alone is enough: the engine drives while nobody else does.
    let ready = haul_io::notify::wait_readable([channel.fd().as_fd()], Some(20_000_000_000));
    assert!(ready.unwrap());
    assert_eq!(channel.poll_event().unwrap(), Some(77));
    far.success(3);
}

fn an_overflowing_completion_queue_ends_its_queue_pairs(wish: &Wish) {
    let (near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    let cq = far.context.create_cq(2, None, 5).unwrap();
    let far = End {
        qp: make_qp(&far.pd, &cq, wish),
        cq,
        ..far
    };
    for number in 0..8 {
        far.receive(number, 0, 8);
    }
    connect(&near, &far, wish);
    for number in 0..4 {
        near.post(number, SendOp::Send, 0, 8);
    }
    assert!(matches!(
        near.event(),
        CmEvent::Disconnected {
            failure: Some(_),
            ..
        }
    ));
    assert!(matches!(far.event(), CmEvent::Disconnected { .. }));
    let mut out = [WorkCompletion::default(); 8];
    assert_eq!(far.cq.poll(&mut out).unwrap(), 2);
    assert!(matches!(far.cq.poll(&mut out), Err(Error::CqOverflow)));
    let event = far.context.poll_async_event().unwrap();
    assert_eq!(event, Some(AsyncEvent::CqError { token: 5 }));
}

fn a_shared_receive_queue_serves_all_its_queue_pairs(wish: &Wish) {
    let far = End::new(&wish.options(), wish);
    let mut init = SrqInit::default();
    init.max_wr = 64;
    init.token = 9;
    let srq = far.pd.create_srq(&init).unwrap();
    let receives: Vec<_> = (0..30)
        .map(|number| RecvWr::new(number, far.mr.sge(number * 100, 100)))
        .collect();
    srq.post_recv(&receives).unwrap();
    srq.arm_limit(5).unwrap();
    let make = |context: &End| {
        let mut init = QpInit::new(&context.cq);
        init.srq = Some(&srq);
        init.capacity = capacity(wish);
        context.pd.create_qp(&init).unwrap()
    };
    let mut seen = Vec::new();
    for round in 0..3_u8 {
        let near = End::new(&wish.options(), wish);
        let far_qp = make(&far);
        let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
        near.qp
            .connect(listener.local_addr(), &ConnParam::default(), &near.events)
            .unwrap();
        let CmEvent::ConnectRequest(request) = far.event() else {
            panic!("no request");
        };
        request.accept(&far_qp, &ConnParam::default()).unwrap();
        far.established();
        near.established();
        for number in 0..9_u8 {
            near.write(0, &[round * 9 + number; 100]);
            near.post(1, SendOp::Send, 0, 100);
            near.success(1);
            let wc = far.completion();
            assert_eq!((wc.status, wc.qp_num), (WcStatus::Success, far_qp.qp_num()));
            seen.push(wc.wr_id);
            assert_eq!(
                far.read(wc.wr_id as usize * 100, 100),
                [round * 9 + number; 100]
            );
        }
        drop(far_qp);
        assert!(matches!(near.event(), CmEvent::Disconnected { .. }));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..27).collect::<Vec<_>>());
    let event = far.context.poll_async_event().unwrap();
    assert_eq!(event, Some(AsyncEvent::SrqLimitReached { token: 9 }));
}

fn endpoints_that_know_each_other_connect_without_events(wish: &Wish) {
    let (near, far) = (
        End::new(&wish.options(), wish),
        End::new(&wish.options(), wish),
    );
    let local = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let tell = |end: &End| {
        let mut endpoint = end.qp.endpoint().unwrap();
        endpoint.gid = local;
        endpoint
    };
    let (ours, theirs) = (tell(&near), tell(&far));
    assert_eq!(ours, tell(&near), "it stays the same");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| far.qp.connect_endpoint(&ours, &wish.param(), PATIENCE));
        near.qp
            .connect_endpoint(&theirs, &wish.param(), PATIENCE)
            .unwrap();
        other.join().unwrap().unwrap();
    });
    far.receive(1, 0, 8);
    near.post(2, SendOp::Send, 0, 8);
    near.success(2);
    far.success(1);
    let lonely = End::new(&wish.options(), wish);
    let soon = Duration::from_millis(30);
    let error = lonely
        .qp
        .connect_endpoint(&ours, &wish.param(), soon)
        .unwrap_err();
    assert!(matches!(error, Error::Os { .. }), "{error}");
}

fn a_wait_ends_when_its_time_is_over(wish: &Wish) {
    let (near, _far) = connected(wish);
    let mut out = [WorkCompletion::default()];
    let start = std::time::Instant::now();
    assert_eq!(
        near.cq
            .wait(&mut out, Some(Duration::from_millis(30)))
            .unwrap(),
        0
    );
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(
        near.events
            .wait(Some(Duration::from_millis(5)))
            .unwrap()
            .is_none()
    );
}

#[test]
fn connections_that_ask_for_nothing_keep_nobody_out() {
    let wish = Wish::default();
    let (near, far) = (
        End::new(&wish.options(), &wish),
        End::new(&wish.options(), &wish),
    );
    let listener = far.context.listen(LOOPBACK, &far.events, 4).unwrap();
    let silent = || Stream::connect(listener.local_addr(), PATIENCE).unwrap();
    let silent: Vec<Stream> = (0..4).map(|_| silent()).collect();
    near.qp
        .connect(listener.local_addr(), &wish.param(), &near.events)
        .unwrap();
    let CmEvent::ConnectRequest(request) = far.event() else {
        panic!("no request");
    };
    request.accept(&far.qp, &wish.param()).unwrap();
    near.established();
    // The oldest made room, and only that one.
    let is_ended = |stream: &Stream| {
        let read = stream.read(&mut [0]);
        !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let ended: Vec<bool> = silent.iter().map(is_ended).collect();
    assert_eq!(ended, [true, false, false, false]);
}

fn connections_that_have_asked_make_no_room(wish: &Wish) {
    let far = End::new(&wish.options(), wish);
    let listener = far.context.listen(LOOPBACK, &far.events, 2).unwrap();
    let connect = |end: &End| {
        end.qp
            .connect(listener.local_addr(), &wish.param(), &end.events)
            .unwrap();
    };
    let ends: Vec<End> = (0..2).map(|_| End::new(&wish.options(), wish)).collect();
    let ask = |end| {
        connect(end);
        match far.event() {
            CmEvent::ConnectRequest(request) => request,
            other => panic!("{other:?}"),
        }
    };
    let mut requests: Vec<_> = ends.iter().map(ask).collect();
    let late = End::new(&wish.options(), wish);
    connect(&late);
    let soon = Some(Duration::from_millis(300));
    assert!(far.events.wait(soon).unwrap().is_none());
    requests.remove(0).accept(&far.qp, &wish.param()).unwrap();
    ends[0].established();
}

over_both!(
    connections_that_have_asked_make_no_room,
    private_data_and_depths_reach_both_applications,
    a_rejected_application_learns_why,
    a_rejected_queue_pair_is_in_error_and_another_attempt_takes_a_new_one,
    a_request_that_is_dropped_is_rejected,
    nobody_listening_is_told,
    a_disconnect_in_order_delivers_what_was_sent_and_tells_both,
    a_disconnect_in_order_flushes_what_the_other_end_is_sending,
    a_dropped_queue_pair_ends_the_connection_in_order,
    in_error_everything_posted_is_flushed,
    an_armed_queue_puts_one_event_on_its_channel,
    an_overflowing_completion_queue_ends_its_queue_pairs,
    a_shared_receive_queue_serves_all_its_queue_pairs,
    a_wait_ends_when_its_time_is_over,
    endpoints_that_know_each_other_connect_without_events,
);
