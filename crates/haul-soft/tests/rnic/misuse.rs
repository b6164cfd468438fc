//! What a peer, or this program, has no right to do ends the connection and nothing else; nobody's
//! bytes change.

use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    AccessFlags, Blame, Data, Error, Mr, MrAddressing, MrInit, QpInit, QpState, RateLimit, RecvWr,
    Remote, SendOp, SendWr, Sge, SgeList, WcStatus,
};

use crate::support::{End, Wish, connected, connected_with, over_both};

/// The far end offers `mr`; the near end does `op` there, and both must find out.
#[track_caller]
fn is_refused(near: &End, far: &End, op: SendOp, len: u32) {
    near.mr.region().fill(0, 64, 0xaa).unwrap();
    near.post(1, op, 0, len);
    // A Write is complete when it is handed over; the next request shows that it was refused.
    let mut status = near.completion().status;
    if status == WcStatus::Success {
        match near.event() {
            CmEvent::Disconnected { failure, .. } => {
                assert_eq!(failure.unwrap().blame, Blame::PeerComplains);
            }
            other => panic!("{other:?}"),
        }
        near.post(2, SendOp::Send, 0, 1);
        status = near.completion().status;
        assert_eq!(status, WcStatus::WrFlushErr);
    } else {
        assert_eq!(status, WcStatus::RemAccessErr);
    }
    assert_eq!(near.qp.state(), QpState::Err);
    assert_eq!(
        near.read(0, 64),
        [0xaa; 64],
        "a refused read brings nothing"
    );
    match far.event() {
        CmEvent::Disconnected { failure, .. } => assert_eq!(failure.unwrap().blame, Blame::Peer),
        other => panic!("{other:?}"),
    }
    assert_eq!(far.qp.failure().unwrap().blame, Blame::Peer);
}

fn offer(far: &End, access: AccessFlags) -> Mr {
    far.mr.region().fill(0, 4096, 0x11).unwrap();
    let part = far.mr.region().cut(1_000, 1_000).unwrap();
    far.pd.reg_mr(&part, access).unwrap()
}

#[track_caller]
fn is_untouched(far: &End) {
    assert_eq!(far.read(0, 4096), [0x11; 4096]);
}

fn a_key_that_nobody_gave_out_is_refused(wish: &Wish) {
    let guesses: [fn(u32) -> u32; 3] = [|key| key ^ 1, |key| key ^ 0x100, |_| 0];
    for (read, guess) in [false, true]
        .into_iter()
        .flat_map(|read| guesses.map(|guess| (read, guess)))
    {
        let (near, far) = connected(wish);
        let mr = offer(&far, AccessFlags::all());
        let remote = Remote {
            addr: 0,
            rkey: guess(mr.rkey()),
        };
        assert_ne!(remote.rkey, far.mr.rkey());
        let op = if read {
            SendOp::RdmaRead(remote)
        } else {
            SendOp::RdmaWrite(remote)
        };
        is_refused(&near, &far, op, 64);
        is_untouched(&far);
    }
}

fn a_region_of_another_protection_domain_is_refused(wish: &Wish) {
    for read in [false, true] {
        let (near, far) = connected(wish);
        far.mr.region().fill(0, 4096, 0x11).unwrap();
        let other = far.context.alloc_pd().unwrap();
        let mr = other.reg_mr(far.mr.region(), AccessFlags::all()).unwrap();
        let op = if read {
            SendOp::RdmaRead(mr.remote(0))
        } else {
            SendOp::RdmaWrite(mr.remote(0))
        };
        is_refused(&near, &far, op, 64);
        is_untouched(&far);
    }
}

fn nothing_is_reached_outside_a_region(wish: &Wish) {
    for addr in [937, 1_000, u64::MAX - 10, 1 << 40] {
        for read in [false, true] {
            let (near, far) = connected(wish);
            let mr = offer(&far, AccessFlags::all());
            let remote = Remote {
                addr,
                rkey: mr.rkey(),
            };
            let op = if read {
                SendOp::RdmaRead(remote)
            } else {
                SendOp::RdmaWrite(remote)
            };
            is_refused(&near, &far, op, 64);
            is_untouched(&far);
        }
    }
}

fn rights_that_were_not_given_are_not_there(wish: &Wish) {
    let write = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (near, far) = connected(wish);
    let mr = offer(&far, write);
    is_refused(&near, &far, SendOp::RdmaRead(mr.remote(0)), 64);
    let (near, far) = connected(wish);
    let mr = offer(&far, AccessFlags::REMOTE_READ);
    is_refused(&near, &far, SendOp::RdmaWrite(mr.remote(0)), 64);
    is_untouched(&far);
    let (near, far) = connected(wish);
    let mr = offer(&far, write | AccessFlags::REMOTE_READ);
    let op = SendOp::FetchAdd {
        remote: mr.remote(0),
        add: 1,
    };
    is_refused(&near, &far, op, 8);
    is_untouched(&far);
    let (near, far) = connected(wish);
    let mr = offer(&far, write);
    far.receive(5, 3_000, 64);
    is_refused_send(&near, &far, SendOp::SendWithInv(mr.rkey()));
}

/// A Send that the peer cannot deliver.
#[track_caller]
fn is_refused_send(near: &End, far: &End, op: SendOp) {
    near.post(1, op, 0, 1);
    // Handed over, over TCP; over UDT it was to be acknowledged.
    near.completion();
    assert_eq!(far.completion().status, WcStatus::WrFlushErr);
    for end in [near, far] {
        assert!(matches!(
            end.event(),
            CmEvent::Disconnected {
                failure: Some(_),
                ..
            }
        ));
    }
}

fn a_deregistered_region_is_gone_at_once(wish: &Wish) {
    let (near, far) = connected(wish);
    let mr = offer(&far, AccessFlags::all());
    let remote = mr.remote(0);
    mr.dereg().unwrap();
    is_refused(&near, &far, SendOp::RdmaWrite(remote), 64);
    is_untouched(&far);
}

fn after_deregistration_in_the_midst_of_writes_no_byte_changes(wish: &Wish) {
    for round in 0..20 {
        let (near, far) = connected(wish);
        let part = far.mr.region().cut(0, 1 << 20).unwrap();
        let mr = far.pd.reg_mr(&part, AccessFlags::all()).unwrap();
        near.mr.region().fill(0, 1 << 20, 0x77).unwrap();
        let op = SendOp::RdmaWrite(mr.remote(0));
        let requests: Vec<_> = (0..8)
            .map(|number| SendWr::new(number, op, near.mr.sge(0, 1 << 20)))
            .collect();
        near.qp.post_send(&requests).unwrap();
        if round % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(round * 50));
        }
        drop(mr);
        far.mr.region().fill(0, 1 << 20, 0x11).unwrap();
        // Those before may have come too early to be refused; in error this one is flushed.
        let _ = near.qp.post_send(&requests[..1]);
        while !matches!(near.event(), CmEvent::Disconnected { .. }) {}
        assert!(
            far.read(0, 1 << 20).iter().all(|byte| *byte == 0x11),
            "round {round}"
        );
    }
}

fn a_send_without_a_receive_ends_the_connection(wish: &Wish) {
    let (near, far) = connected(wish);
    near.post(1, SendOp::Send, 0, 10);
    near.completion();
    for (end, blame) in [(&near, Blame::PeerComplains), (&far, Blame::Peer)] {
        match end.event() {
            CmEvent::Disconnected { failure, .. } => assert_eq!(failure.unwrap().blame, blame),
            other => panic!("{other:?}"),
        }
    }
}

fn a_message_longer_than_its_receive_is_refused(wish: &Wish) {
    let (near, far) = connected(wish);
    far.mr.region().fill(0, 4096, 0x11).unwrap();
    far.receive(1, 100, 9);
    near.post(1, SendOp::Send, 0, 10);
    near.completion();
    assert_ne!(far.completion().status, WcStatus::Success);
    assert_eq!(far.qp.failure().unwrap().blame, Blame::Peer);
    is_untouched(&far);
}

fn local_mistakes_are_the_local_users(wish: &Wish) {
    let (near, far) = connected(wish);
    let wrong = Sge {
        lkey: near.mr.lkey() ^ 1,
        ..near.mr.sge(0, 64)
    };
    far.receive(1, 0, 64);
    let wr = SendWr::new(9, SendOp::Send, wrong);
    near.qp.post_send(&[wr]).unwrap();
    let wc = near.completion();
    assert_eq!((wc.wr_id, wc.status), (9, WcStatus::LocProtErr));
    assert_eq!(near.qp.failure().unwrap().blame, Blame::Local);
    assert_eq!(far.completion().status, WcStatus::WrFlushErr);
}

fn a_refused_write_is_not_charged_to_the_read_behind_it(wish: &Wish) {
    for remote_placement in [false, true] {
        let wish = Wish {
            remote_placement,
            ..*wish
        };
        let (near, far) = connected(&wish);
        let wrong = Remote {
            rkey: far.mr.rkey() ^ 1,
            ..far.mr.remote(0)
        };
        let write = SendWr::new(1, SendOp::RdmaWrite(wrong), near.mr.sge(0, 64));
        let read = SendWr::new(2, SendOp::RdmaRead(far.mr.remote(0)), near.mr.sge(64, 64));
        near.qp.post_send(&[write, read]).unwrap();
        let status = near.completion().status;
        // Without proof it is complete when the transport has it.
        if remote_placement || status != WcStatus::Success {
            assert_eq!(status, WcStatus::RemAccessErr);
        }
        let wc = near.completion();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushErr));
        assert_eq!(near.qp.failure().unwrap().blame, Blame::PeerComplains);
    }
}

fn of_two_reads_the_one_that_is_refused_is_charged(wish: &Wish) {
    let (near, far) = connected(wish);
    let wrong = Remote {
        rkey: far.mr.rkey() ^ 1,
        ..far.mr.remote(0)
    };
    let reads = [far.mr.remote(0), wrong, far.mr.remote(0)];
    let reads: Vec<_> = (0..)
        .zip(reads)
        .map(|(number, from)| {
            let sink = near.mr.sge(number * 1_000_000, 1_000_000);
            SendWr::new(number, SendOp::RdmaRead(from), sink)
        })
        .collect();
    near.qp.post_send(&reads).unwrap();
    for number in 0..3 {
        let wc = near.completion();
        let wanted: &[WcStatus] = match number {
            0 => &[WcStatus::Success, WcStatus::WrFlushErr],
            1 => &[WcStatus::RemAccessErr],
            _ => &[WcStatus::WrFlushErr],
        };
        assert_eq!(wc.wr_id, number);
        assert!(wanted.contains(&wc.status), "{number}: {:?}", wc.status);
    }
}

fn memory_that_is_deregistered_in_the_midst_of_writes_is_the_local_users(wish: &Wish) {
    const LEN: u32 = 8 << 20;
    let (near, far) = connected(wish);
    let region = || near.pd.map(LEN as usize).unwrap();
    let source = near.pd.reg_mr(&region(), AccessFlags::all()).unwrap();
    let target = far.pd.reg_mr(&region(), AccessFlags::all()).unwrap();
    let op = SendOp::RdmaWrite(target.remote(0));
    let requests: Vec<_> = (0..16)
        .map(|number| SendWr::new(number, op, source.sge(0, LEN)))
        .collect();
    near.qp.post_send(&requests).unwrap();
    source.dereg().unwrap();
    let done: Vec<_> = (0..16).map(|_| near.completion()).collect();
    let charged = done
        .iter()
        .position(|wc| wc.status == WcStatus::LocProtErr)
        .expect("one is charged");
    for (number, wc) in done.iter().enumerate() {
        let wanted = match number.cmp(&charged) {
            std::cmp::Ordering::Less => WcStatus::Success,
            std::cmp::Ordering::Equal => WcStatus::LocProtErr,
            std::cmp::Ordering::Greater => WcStatus::WrFlushErr,
        };
        assert_eq!((wc.wr_id, wc.status), (number as u64, wanted));
    }
    assert_eq!(near.qp.failure().unwrap().blame, Blame::Local);
}

fn a_queue_pair_that_may_send_nothing_is_not_made(wish: &Wish) {
    let (near, _far) = connected(wish);
    let mut init = QpInit::new(&near.cq);
    init.rate_limit = Some(RateLimit::new(0));
    let error = near.pd.create_qp(&init).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rate_limit.bits_per_second is 0, and must be at least 1"
    );
}

fn a_request_that_cannot_be_is_named_with_its_limit(wish: &Wish) {
    let (near, _far) = connected(wish);
    let piece = near.mr.sge(0, 8);
    let huge = Sge {
        len: u32::MAX,
        ..piece
    };
    let mut init = QpInit::new(&near.cq);
    init.capacity.max_send_sge = 1;
    let small = near.pd.create_qp(&init).unwrap();
    let list = |pieces: &[Sge]| SgeList::new(pieces).unwrap();
    let remote = near.mr.remote(0);
    let add = SendOp::FetchAdd { remote, add: 1 };
    let long = [0; 300];
    for (qp, op, data, wanted) in [
        (
            &near.qp,
            SendOp::Send,
            Data::Inline(&long),
            "the length of inline data is 300, and must be at most 256",
        ),
        (
            &near.qp,
            SendOp::Send,
            list(&[huge, huge]).into(),
            "the length of all pieces is 8589934590, and must be at most 4294967295",
        ),
        (
            &near.qp,
            add,
            near.mr.sge(0, 7).into(),
            "the length of an atomic's result is 7, and must be at least 8",
        ),
        (
            &near.qp,
            add,
            near.mr.sge(0, 9).into(),
            "the length of an atomic's result is 9, and must be at most 8",
        ),
        (
            &near.qp,
            SendOp::LocalInv(near.mr.lkey()),
            piece.into(),
            "the length of a LocalInv's data is 8, and must be at most 0",
        ),
        (
            &near.qp,
            SendOp::RdmaRead(remote),
            list(&[piece, piece]).into(),
            "a Read over iWARP has more than 1 piece, or inline data",
        ),
        (
            &small,
            SendOp::Send,
            list(&[piece, piece]).into(),
            "the number of pieces is 2, and must be at most 1",
        ),
    ] {
        let error = qp.post_send(&[SendWr::new(1, op, data)]).unwrap_err();
        assert_eq!(error.error.to_string(), wanted);
    }
    let error = small.post_recv(&[RecvWr::new(1, list(&[piece, piece]))]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "work request 0 of the batch: the number of pieces is 2, and must be at most 1"
    );
    let mut param = ConnParam::default();
    param.private_data = &[0; 501];
    let error = small.connect(([127, 0, 0, 1], 1).into(), &param, &near.events);
    assert_eq!(
        error.unwrap_err().to_string(),
        "the length of private_data is 501, and must be at most 500"
    );
    let mut init = MrInit::new(near.mr.region().clone(), AccessFlags::LOCAL_WRITE);
    init.addressing = MrAddressing::At(u64::MAX);
    let len = near.mr.len() as u64;
    assert_eq!(
        near.pd.register(init).unwrap_err().to_string(),
        format!(
            "addressing is {}, and must be at most {}",
            u64::MAX,
            u64::MAX - len
        )
    );
}

fn a_capacity_that_cannot_be_is_named_with_its_limit(wish: &Wish) {
    let (near, _far) = connected(wish);
    let mut init = QpInit::new(&near.cq);
    init.capacity.max_recv_sge = 5;
    let error = near.pd.create_qp(&init).unwrap_err();
    assert_eq!(
        error.to_string(),
        "max_recv_sge is 5, and must be at most 4"
    );
    init.capacity.max_recv_sge = 1;
    init.capacity.max_send_wr = 100_000;
    let error = near.pd.create_qp(&init).unwrap_err();
    assert_eq!(
        error.to_string(),
        "max_send_wr is 100000, and must be at most 65536"
    );
    let error = near.context.create_cq(0, None, 0).unwrap_err();
    assert_eq!(error.to_string(), "entries is 0, and must be at least 1");
}

fn only_regions_of_the_queue_pairs_domain_can_be_invalidated(wish: &Wish) {
    let (near, far) = connected(wish);
    let other = near.context.alloc_pd().unwrap();
    let mr = other.reg_mr(near.mr.region(), AccessFlags::all()).unwrap();
    let with_data = SendWr::new(1, SendOp::LocalInv(mr.lkey()), near.mr.sge(0, 8));
    let error = near.qp.post_send(&[with_data]).unwrap_err();
    assert!(matches!(error.error, Error::Limit { limit: 0, .. }));
    let wr = SendWr::new(2, SendOp::LocalInv(mr.lkey()), SgeList::EMPTY);
    near.qp.post_send(&[wr]).unwrap();
    let wc = near.completion();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::LocProtErr));
    assert_eq!(near.qp.failure().unwrap().blame, Blame::Local);
    let CmEvent::Disconnected { failure, .. } = far.event() else {
        panic!("the connection goes on");
    };
    assert_eq!(failure.unwrap().blame, Blame::PeerComplains);
}

fn what_cannot_be_posted_says_why_and_what_is_posted_stays(wish: &Wish) {
    let wish = Wish { depth: 4, ..*wish };
    let (near, far) = connected_with(&wish.options(), &wish);
    for number in 0..4 {
        far.receive(number, 0, 64);
    }
    let full = far
        .qp
        .post_recv(&[RecvWr::new(4, far.mr.sge(0, 64))])
        .unwrap_err();
    assert!(matches!(full.error, Error::Full(_)));
    let good = SendWr::new(1, SendOp::Send, near.mr.sge(0, 8));
    let unsupported = SendWr::new(2, SendOp::WriteRecord(far.mr.remote(0)), near.mr.sge(0, 8));
    let error = near.qp.post_send(&[good, unsupported, good]).unwrap_err();
    assert_eq!(error.posted, 1);
    assert!(matches!(error.error, Error::Unsupported(_)));
    near.success(1);
    far.success(0);
}

fn nothing_is_sent_before_there_is_a_connection(wish: &Wish) {
    let end = End::new(&wish.options(), wish);
    let wr = SendWr::new(1, SendOp::Send, end.mr.sge(0, 8));
    let error = end.qp.post_send(&[wr]).unwrap_err();
    assert!(matches!(error.error, Error::State(QpState::Reset)));
}

fn more_reads_than_agreed_wait_for_their_turn(wish: &Wish) {
    let wish = Wish {
        ird: 1,
        ord: 2,
        ..*wish
    };
    let (near, far) = connected_with(&wish.options(), &wish);
    let bytes = crate::support::pattern(100_000, 9);
    far.write(0, &bytes);
    for number in 0..20 {
        near.post(
            number,
            SendOp::RdmaRead(far.mr.remote(number * 5_000)),
            number * 5_000,
            5_000,
        );
    }
    for number in 0..20 {
        near.success(number);
    }
    assert!(near.read(0, 100_000) == bytes);
}

over_both!(
    a_capacity_that_cannot_be_is_named_with_its_limit,
    a_refused_write_is_not_charged_to_the_read_behind_it,
    of_two_reads_the_one_that_is_refused_is_charged,
    memory_that_is_deregistered_in_the_midst_of_writes_is_the_local_users,
    a_queue_pair_that_may_send_nothing_is_not_made,
    a_request_that_cannot_be_is_named_with_its_limit,
    a_key_that_nobody_gave_out_is_refused,
    a_region_of_another_protection_domain_is_refused,
    nothing_is_reached_outside_a_region,
    rights_that_were_not_given_are_not_there,
    a_deregistered_region_is_gone_at_once,
    after_deregistration_in_the_midst_of_writes_no_byte_changes,
    a_send_without_a_receive_ends_the_connection,
    a_message_longer_than_its_receive_is_refused,
    local_mistakes_are_the_local_users,
    only_regions_of_the_queue_pairs_domain_can_be_invalidated,
    what_cannot_be_posted_says_why_and_what_is_posted_stays,
    nothing_is_sent_before_there_is_a_connection,
    more_reads_than_agreed_wait_for_their_turn,
);
