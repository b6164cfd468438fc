//! How two ends come to agree, or do not (RFC 5044 §7.1, RFC 6581).

use crate::common;

use common::{config, ends, pair, settle};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::ParseError;
use haul_iwarp::wire::ddp::Header;
use haul_iwarp::wire::mpa::{FRAME_LEN, FrameHead, FrameKind, RtrKinds};
use haul_iwarp::wire::rdmap::{Opcode, Terminate};
use haul_iwarp::{
    Error, Event, Incompatible, Operation, PostError, State, StreamConnection, TermCode, Time,
};

const SEND: Operation = Operation::Send {
    solicited: false,
    invalidate: None,
};

const fn kinds(send: bool, write: bool, read: bool) -> Option<RtrKinds> {
    Some(RtrKinds { send, write, read })
}

#[test]
fn private_data_reaches_the_other_end_and_only_that() {
    for extensions in [true, false] {
        let mut initiator = config();
        initiator.extensions = extensions;
        let (mut a, mut b) = ends(initiator, config(), b"from the initiator");
        settle(&mut a, &mut b);
        assert_eq!(b.connection.private_data(), b"from the initiator");
        b.connection.accept(b.now, b"from the responder").unwrap();
        settle(&mut a, &mut b);
        assert_eq!(a.connection.private_data(), b"from the responder");
        assert_eq!(a.connection.params().unwrap().extended, extensions);
    }
}

#[test]
fn private_data_has_a_limit() {
    let connect = |len| StreamConnection::connect(Time::default(), config(), &vec![0; len]);
    assert!(
        connect(500).is_ok(),
        "512, less RFC 6581's four and our eight"
    );
    assert_eq!(connect(501).err(), Some(PostError::PrivateData));
    let (mut a, mut b) = ends(config(), config(), b"");
    settle(&mut a, &mut b);
    let refused = b.connection.accept(b.now, &[0; 501]);
    assert_eq!(refused, Err(PostError::PrivateData));
    assert_eq!(b.connection.accept(b.now, &[0; 500]), Ok(()));
}

#[test]
fn a_rejection_is_reported_with_its_private_data() {
    let (mut a, mut b) = ends(config(), config(), b"");
    settle(&mut a, &mut b);
    b.connection.reject(b.now, b"not today").unwrap();
    assert_eq!(b.connection.accept(b.now, b""), Err(PostError::NoRequest));
    settle(&mut a, &mut b);
    assert_eq!(a.connection.error(), Some(Error::Rejected));
    assert_eq!(a.connection.private_data(), b"not today");
    assert!(a.has(Event::Disconnect) && b.shut_down);
    b.connection.handle_eof(b.now);
    b.drain();
    assert!(b.has(Event::Disconnect));
    assert_eq!(b.connection.error(), None);
}

#[test]
fn the_responder_is_silent_until_it_has_heard_the_initiator() {
    let (mut a, mut b) = pair(config(), config());
    a.post_receive(1, 8);
    b.post_receive(1, 8);
    b.post_send(1, SEND, b"late".to_vec());
    settle(&mut a, &mut b);
    assert!(a.completions.is_empty());
    assert_eq!(b.connection.state(), State::Waiting);
    a.post_send(1, SEND, b"early".to_vec());
    settle(&mut a, &mut b);
    assert_eq!(a.ram.receives[&1][..4], *b"late");
}

#[test]
fn a_peer_to_peer_connection_opens_itself() {
    for (offered, able, wanted) in [
        (kinds(true, true, true), None, Opcode::Write),
        (kinds(true, false, true), None, Opcode::ReadRequest),
        (kinds(true, false, false), None, Opcode::Send),
        (
            kinds(false, true, true),
            kinds(false, false, true),
            Opcode::ReadRequest,
        ),
        (
            kinds(true, true, true),
            kinds(true, false, false),
            Opcode::Send,
        ),
    ] {
        let mut initiator = config();
        initiator.peer_to_peer = offered;
        let mut responder = config();
        responder.peer_to_peer = able;
        let (mut a, mut b) = pair(initiator, responder);
        let header = Header::parse(&a.fpdus[0][2..]).unwrap();
        assert_eq!(Opcode::parse(header.control), Ok(wanted));
        a.post_receive(1, 8);
        b.post_receive(1, 8);
        b.post_send(1, SEND, b"first".to_vec());
        settle(&mut a, &mut b);
        a.post_send(1, SEND, b"second".to_vec());
        settle(&mut a, &mut b);
        assert_eq!(a.ram.receives[&1][..5], *b"first", "{wanted:?}");
        assert_eq!(b.ram.receives[&1][..6], *b"second", "{wanted:?}");
        assert_eq!(
            (a.completions.len(), b.completions.len()),
            (2, 2),
            "it is invisible"
        );
    }
}

#[test]
fn an_empty_send_that_was_not_agreed_on_takes_a_receive() {
    let (mut a, mut b) = pair(config(), config());
    b.post_receive(1, 8);
    a.post_send(1, SEND, vec![]);
    settle(&mut a, &mut b);
    assert_eq!(b.completions.len(), 1);
}

#[test]
fn without_a_common_kind_the_initiator_sends_a_terminate() {
    let mut initiator = config();
    initiator.peer_to_peer = kinds(false, true, false);
    let mut responder = config();
    responder.peer_to_peer = kinds(true, false, false);
    let (mut a, mut b) = ends(initiator, responder, b"");
    settle(&mut a, &mut b);
    b.connection.accept(b.now, b"").unwrap();
    settle(&mut a, &mut b);
    let error = Error::PeerIncompatible(Incompatible::ReadyToReceive);
    assert_eq!(a.connection.error(), Some(error));
    assert_eq!(
        b.connection.error(),
        Some(Error::Terminated(TermCode::MPA_RTR))
    );
    assert_eq!(
        Terminate::parse(&a.fpdus[0][20..]),
        Terminate::bare(TermCode::MPA_RTR)
    );
}

#[test]
fn a_responder_that_requires_more_reads_gets_a_terminate() {
    let mut initiator = config();
    initiator.qp.ird = 4;
    let (mut a, mut b) = ends(initiator, config(), b"");
    settle(&mut a, &mut b);
    b.connection.accept(b.now, b"").unwrap();
    b.drain();
    // As if the responder had not kept to the four.
    let at = FRAME_LEN + 3;
    assert_eq!(b.wire[at], 4);
    b.wire[at] = 5;
    settle(&mut a, &mut b);
    let error = Error::PeerIncompatible(Incompatible::Reads);
    assert_eq!(a.connection.error(), Some(error));
    assert_eq!(
        b.connection.error(),
        Some(Error::Terminated(TermCode::MPA_IRD))
    );
}

#[test]
fn reads_are_agreed_in_both_directions() {
    for (ird, ord, peer_ird, peer_ord, got) in [
        (16, 16, 16, 16, (16, 16, 16, 16)),
        (8, 2, 4, 32, (8, 2, 2, 8)),
        (1, 9, 3, 1, (1, 3, 3, 1)),
        (0x3fff, 5, 7, 6, (0x3fff, 5, 5, 6)),
    ] {
        let (mut initiator, mut responder) = (config(), config());
        (initiator.qp.ird, initiator.qp.ord) = (ird, ord);
        (responder.qp.ird, responder.qp.ord) = (peer_ird, peer_ord);
        let (a, b) = pair(initiator, responder);
        let (a, b) = (
            a.connection.params().unwrap(),
            b.connection.params().unwrap(),
        );
        assert_eq!((a.ird, a.ord, b.ird, b.ord), got);
    }
}

#[test]
fn revision_1_is_spoken_where_2_was_refused() {
    let (mut a, _) = ends(config(), config(), b"");
    a.drain();
    a.connection.handle_eof(a.now);
    a.drain();
    let error = Error::PeerIncompatible(Incompatible::Revision);
    assert_eq!(a.connection.error(), Some(error));
    let mut initiator = config();
    initiator.revision = 1;
    let (a, b) = pair(initiator, config());
    assert_eq!(a.connection.params().unwrap().revision, 1);
    assert_eq!(b.connection.params().unwrap().revision, 1);
}

#[test]
fn a_bad_frame_ends_the_connection_before_its_length_is_used() {
    let good = FrameHead {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        reject: false,
        enhanced: true,
        revision: 2,
        private_len: 4,
    };
    let reply = FrameHead {
        kind: FrameKind::Reply,
        ..good
    };
    let with = |at: usize, octet: u8| {
        let mut frame = good.emit();
        frame[at] = octet;
        frame
    };
    for (what, frame, error) in [
        ("key", with(3, b'x'), ParseError::Key),
        ("role", reply.emit(), ParseError::Role),
        ("revision 0", with(17, 0), ParseError::Revision(0)),
        ("revision 3", with(17, 3), ParseError::Revision(3)),
        (
            "too much private data",
            with(18, 3),
            ParseError::PrivateData(0x304),
        ),
        (
            "no room for the enhanced data",
            with(19, 3),
            ParseError::PrivateData(3),
        ),
    ] {
        let (_, mut b) = ends(config(), config(), b"");
        b.feed(&frame);
        assert_eq!(b.connection.error(), Some(Error::Startup(error)), "{what}");
        assert!(b.has(Event::Disconnect) && b.wire.is_empty(), "{what}");
    }
}

#[test]
fn nothing_may_follow_a_request_before_its_reply() {
    let (mut a, mut b) = ends(config(), config(), b"");
    a.drain();
    a.wire.push(0);
    settle(&mut a, &mut b);
    assert_eq!(b.connection.error(), Some(Error::Startup(ParseError::Role)));
    let (mut a, mut b) = ends(config(), config(), b"");
    settle(&mut a, &mut b);
    b.feed(&[0]);
    assert_eq!(b.connection.error(), Some(Error::Startup(ParseError::Role)));
}

#[test]
fn a_responder_that_speaks_first_is_cut_off() {
    let (mut a, _) = pair(config(), config());
    let write = [
        0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xeb, 0xd3, 0x4c, 0x5f,
    ];
    a.feed(&write);
    let error = Error::PeerMisbehaved(TermCode::MPA_STARTUP);
    assert_eq!(a.connection.error(), Some(error));
    assert!(a.fpdus.is_empty() && a.has(Event::Disconnect));
}

#[test]
fn silence_in_start_up_is_not_waited_out() {
    let (mut a, mut b) = ends(config(), config(), b"");
    a.drain();
    for end in [&mut a, &mut b] {
        let deadline = end.connection.poll_timeout().expect("patience has an end");
        end.connection
            .handle_timeout(Time::from_ns(deadline.as_ns() - 1));
        assert_eq!(end.connection.error(), None);
        end.connection.handle_timeout(deadline);
        end.drain();
        assert_eq!(end.connection.error(), Some(Error::TimedOut));
        assert!(end.has(Event::Disconnect));
    }
    // A peer-to-peer initiator sends at once.
    let mut initiator = config();
    initiator.peer_to_peer = kinds(true, true, true);
    let (mut a, mut b) = ends(initiator, config(), b"");
    settle(&mut a, &mut b);
    assert_eq!(
        b.connection.poll_timeout(),
        None,
        "the user may take its time"
    );
    b.connection.accept(b.now, b"").unwrap();
    let deadline = b.connection.poll_timeout().expect("patience has an end");
    b.connection.handle_timeout(deadline);
    b.drain();
    assert_eq!(b.connection.error(), Some(Error::TimedOut));
    // Another may be idle for as long as it likes.
    let (_, b) = pair(config(), config());
    assert_eq!(b.connection.poll_timeout(), None);
}

#[test]
fn crcs_are_used_if_either_end_wants_them() {
    for (initiator, responder) in [(true, true), (true, false), (false, true), (false, false)] {
        let of = |crc| common::with(config(), |config| config.crc = crc);
        let (a, b) = pair(of(initiator), of(responder));
        let wanted = initiator || responder;
        assert_eq!(a.connection.params().unwrap().crc, wanted);
        assert_eq!(b.connection.params().unwrap().crc, wanted);
    }
}

#[test]
fn larger_fpdus_are_for_ends_that_agree_on_them() {
    let of = |fpdu_max| common::with(config(), |config| config.fpdu_max = fpdu_max);
    let (a, b) = pair(of(65_536), of(16_384));
    for params in [a.connection.params(), b.connection.params()] {
        assert_eq!(params.unwrap().ulpdu_max, 16_384 - 6);
    }
    let (a, _) = pair(of(65_536), of(65_536));
    assert_eq!(
        a.connection.params().unwrap().ulpdu_max,
        64_768,
        "RFC 5044's most"
    );
    let (a, _) = pair(of(512), of(65_536));
    assert_eq!(
        a.connection.params().unwrap().ulpdu_max,
        1_454,
        "the path's, if that is more"
    );
}

#[test]
fn a_responder_may_choose_its_queue_pair_when_it_knows_what_is_asked_for() {
    let mut initiator = config();
    (initiator.qp.ird, initiator.qp.ord) = (5, 6);
    let (mut a, mut b) = ends(initiator, config(), b"");
    assert_eq!(b.connection.requested(), None);
    settle(&mut a, &mut b);
    assert_eq!(b.connection.requested(), Some((5, 6)));
    let mut qp = config().qp;
    (qp.ird, qp.ord, qp.recv_depth) = (2, 3, 1);
    b.connection.set_queue_pair(qp);
    b.connection.accept(b.now, b"").unwrap();
    settle(&mut a, &mut b);
    let (a, params) = (
        a.connection.params().unwrap(),
        b.connection.params().unwrap(),
    );
    assert_eq!((params.ird, params.ord, a.ord), (2, 3, 2));
    b.post_receive(1, 8);
    let wr = haul_iwarp::RecvWr::new(2, 2, 8);
    assert_eq!(b.connection.post_receive(wr), Err(PostError::Full));
}
