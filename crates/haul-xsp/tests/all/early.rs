//! First bytes of a stream that go with the request for its connection.
#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use crate::common;

use haul_xsp::bag::Breach;
use haul_xsp::wire::{AuthMethod, EARLY_MAX, Metadata, NackStatus, Pdu, SessOpen};
use haul_xsp::{ConnId, Error, Event, Misbehaviour, Misuse, Session, SessionId};

use common::chain::{Chain, NOW, config};
use common::{endpoint, open};

/// First bytes that may wait for answers in one direction.
const UNANSWERED_MAX: usize = 2 << 20;

fn ask(session: &mut Session, early: &[u8]) -> Result<ConnId, Misuse> {
    session.open_conn_with(endpoint("server", 80), Metadata::default(), early.to_vec())
}

/// The requests that have come to the terminus, with their first bytes.
fn requests(events: &[Event]) -> Vec<(ConnId, &[u8])> {
    let requests = events.iter().filter_map(|event| match event {
        Event::ConnRequest { conn, early, .. } => Some((*conn, early.as_slice())),
        _ => None,
    });
    requests.collect()
}

#[test]
fn they_come_with_the_request_over_every_hop_and_the_stream_goes_on_behind_them() {
    let mut chain = Chain::opened(open(3, true));
    let conn = ask(&mut chain.opener, b"first").unwrap();
    chain.pump();
    assert_eq!(requests(&chain.last_heard), [(conn, b"first".as_slice())]);
    chain.last.accept_conn(conn).unwrap();
    chain.pump();
    assert!(chain.heard.contains(&Event::ConnAccepted(conn)));
    let fill = chain.opener.producer().reserve(NOW, conn, 3).unwrap();
    chain.opener.producer().commit(NOW, conn, fill.len, None);
    chain.opener.producer().pack(NOW, u64::MAX);
    let seq = chain.opener.producer().poll_sealed(NOW).unwrap();
    let records = chain.opener.producer().records(seq);
    let offsets: Vec<u64> = records.map(|(record, _)| record.offset).collect();
    assert_eq!(offsets, [5]);
}

#[test]
fn a_refusal_makes_room_for_others() {
    let mut chain = Chain::opened(open(2, true));
    let whole = [7; EARLY_MAX];
    let mut conns = Vec::new();
    while chain.opener.early_room() == EARLY_MAX {
        conns.push(ask(&mut chain.opener, &whole).unwrap());
        chain.pump();
    }
    assert_eq!(conns.len(), UNANSWERED_MAX / EARLY_MAX);
    assert_eq!(chain.opener.early_room(), 0);
    assert_eq!(ask(&mut chain.opener, b"x"), Err(Misuse::TooLarge));
    assert_eq!(requests(&chain.last_heard).len(), conns.len());
    chain.last.refuse_conn(conns[0], 111).unwrap();
    chain.last.accept_conn(conns[1]).unwrap();
    chain.pump();
    assert_eq!(chain.opener.early_room(), EARLY_MAX);
    assert_eq!(
        ask(&mut chain.opener, &[7; EARLY_MAX + 1]),
        Err(Misuse::TooLarge)
    );
    ask(&mut chain.opener, &whole).unwrap();
    ask(&mut chain.opener, &whole).unwrap();
    assert_eq!(chain.opener.early_room(), 0);
    chain.pump();
    assert_eq!(requests(&chain.last_heard).len(), conns.len() + 2);
}

#[test]
fn a_request_that_may_be_lost_is_repeated_with_them() {
    let mut chain = Chain::opened(open(2, true));
    let conn = ask(&mut chain.opener, b"first").unwrap();
    // It has reached no hop.
    while chain.opener.poll_transmit(NOW).is_some() {}
    chain.lose(0);
    chain.resume(0);
    chain.pump();
    assert_eq!(requests(&chain.last_heard), [(conn, b"first".as_slice())]);
}

#[test]
fn a_request_that_was_given_up_is_withdrawn() {
    let mut chain = Chain::opened(open(2, true));
    let [one, two] = [b"first", b"other"].map(|early| ask(&mut chain.opener, early).unwrap());
    chain.pump();
    // The terminus has the requests, and has not answered.
    chain.opener.refuse_asked(NackStatus::TimedOut);
    chain.pump();
    assert_eq!(requests(&chain.last_heard).len(), 2);
    for conn in [one, two] {
        assert!(chain.last_heard.contains(&Event::ConnLost(conn)));
        assert_eq!(chain.last.accept_conn(conn), Err(Misuse::NoConnection));
    }
    assert_eq!((chain.opener.conns(), chain.last.conns()), (0, 0));
    assert_eq!(chain.opener.early_room(), EARLY_MAX);
}

#[test]
fn a_request_that_was_given_up_is_not_repeated() {
    let mut chain = Chain::opened(open(1, true));
    ask(&mut chain.opener, b"first").unwrap();
    // It has not reached the terminus.
    while chain.opener.poll_transmit(NOW).is_some() {}
    chain.lose(0);
    chain.opener.refuse_asked(NackStatus::TimedOut);
    chain.resume(0);
    chain.pump();
    assert_eq!(requests(&chain.last_heard), []);
    assert_eq!((chain.opener.conns(), chain.last.conns()), (0, 0));
}

#[test]
fn an_older_peer_gets_none_and_sends_none() {
    let mut chain = Chain::new(
        SessOpen {
            takes_early: false,
            ..open(2, true)
        },
        [config(None), config(None)],
    );
    chain.last.accept_session(NOW, None, Some([1; 56])).unwrap();
    chain.pump();
    // The terminus would send them to the opener, which has not agreed.
    assert_eq!(chain.last.early_room(), 0);
    assert_eq!(ask(&mut chain.last, b"x"), Err(Misuse::TooLarge));
    assert_eq!(chain.opener.early_room(), EARLY_MAX);
}

/// A terminus with a session that is open, and the number of its opener's next PDU.
fn victim() -> (Session, u32) {
    let mut session = Session::accept(config(None), NOW, [3; 32]).unwrap();
    let methods = vec![AuthMethod::Anonymous];
    send(&mut session, 1, &Pdu::AuthType { methods }).unwrap();
    send(&mut session, 2, &Pdu::SessOpen(open(1, true))).unwrap();
    session.accept_session(NOW, None, Some([1; 56])).unwrap();
    (session, 3)
}

fn send(session: &mut Session, seq: u32, pdu: &Pdu) -> Result<(), Error> {
    let octets = pdu.emit(SessionId([7; 16]), 0, seq);
    session.handle_input(NOW, &octets).map(drop)
}

fn request(conn: u32, early: Vec<u8>) -> Pdu {
    Pdu::ConnOpen {
        conn: ConnId(conn),
        credit: 0,
        to: endpoint("server", 80),
        metadata: Metadata::default(),
        early,
    }
}

#[test]
fn more_than_was_agreed_on_ends_the_session() {
    let (mut session, seq) = victim();
    let too_long = send(&mut session, seq, &request(1, vec![0; EARLY_MAX + 1]));
    assert!(
        matches!(too_long, Err(Error::PeerMisbehaved(Misbehaviour::Parse(_)))),
        "{too_long:?}"
    );

    let (mut session, mut seq) = victim();
    let most = UNANSWERED_MAX / EARLY_MAX;
    for conn in 1..=most {
        let conn = u32::try_from(conn).unwrap();
        send(&mut session, seq, &request(conn, vec![0; EARLY_MAX])).unwrap();
        seq += 1;
        while session.poll_event().is_some() {}
    }
    // A repeated request counts once.
    send(&mut session, seq, &request(1, vec![0; EARLY_MAX])).unwrap();
    let conn = u32::try_from(most).unwrap() + 1;
    let too_many = send(&mut session, seq + 1, &request(conn, vec![0]));
    let breach = Misbehaviour::Slab(Breach::Early);
    assert_eq!(too_many, Err(Error::PeerMisbehaved(breach)));
}
