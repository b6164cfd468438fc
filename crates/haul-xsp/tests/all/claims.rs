//! A session requested more than once by its owner belongs to the newest claim, however long the
//! network delays older ones.

#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use crate::common;

use common::{endpoint, open, tcp};
use haul_xsp::bag::ConsumerConfig;
use haul_xsp::wire::{
    AuthMethod, Claim, ConnState, HEADER_LEN, Key, Metadata, NackStatus, Pdu, Proto, ProtoOffer,
    Record, SessAck, SessOpen, TICKET_LEN,
};
use haul_xsp::{
    AuthConfig, ConnId, Error, Event, Misuse, Relay, RelayEvent, Session, SessionConfig, SessionId,
    Side, SlabSeq, State, Time,
};

const SESSION: SessionId = SessionId([7; 16]);
const NOW: Time = Time::from_ns(1_000_000);
const TICKET: [u8; TICKET_LEN] = [1; TICKET_LEN];

fn config() -> SessionConfig {
    SessionConfig {
        protocols: vec![tcp()],
        auth: AuthConfig {
            methods: vec![AuthMethod::Anonymous],
            ..AuthConfig::default()
        },
        consumer: ConsumerConfig {
            arena_bytes: 1 << 20,
            ..ConsumerConfig::default()
        },
        conns_max: 4,
        ..SessionConfig::default()
    }
}

/// An incoming control connection, and the PDUs received on it.
fn heard(pdu: Pdu) -> Session {
    let mut session = Session::accept(config(), NOW, [3; 32]).unwrap();
    let methods = vec![AuthMethod::Anonymous];
    for (seq, pdu) in (1..).zip([Pdu::AuthType { methods }, pdu]) {
        session
            .handle_input(NOW, &pdu.emit(SESSION, 0, seq))
            .unwrap();
    }
    session
}

fn opening(hops: usize, way: u32) -> SessOpen {
    SessOpen {
        ticket: (way > 0).then_some(TICKET),
        claim: Claim { way, turn: 0 },
        ..open(hops, true)
    }
}

/// A terminus whose session was opened.
fn terminus() -> Session {
    let mut session = heard(Pdu::SessOpen(opening(1, 0)));
    session.accept_session(NOW, None, Some(TICKET)).unwrap();
    session
}

fn resume(session: &mut Session, way: u32, turn: u32) -> Result<(), Misuse> {
    let mut fresh = heard(Pdu::Resume {
        next: SlabSeq(0),
        ticket: TICKET,
        conns: Vec::new(),
        claim: Claim { way, turn },
    });
    let Some(Event::ResumeRequest(request)) = fresh.poll_event() else {
        panic!("nobody wants to resume");
    };
    session.adopt(NOW, &mut fresh, &request)
}

fn come_anew(session: &mut Session, way: u32) -> Result<(), Misuse> {
    let open = opening(1, way);
    let mut fresh = heard(Pdu::SessOpen(open.clone()));
    session.adopt_anew(NOW, &mut fresh, &open)
}

#[test]
fn a_delayed_resumption_has_no_effect() {
    let mut session = terminus();
    resume(&mut session, 0, 2).unwrap();
    for turn in [0, 1, 2] {
        assert_eq!(resume(&mut session, 0, turn), Err(Misuse::NoRequest));
    }
    assert_eq!(session.state(), State::Open);
    resume(&mut session, 0, 3).unwrap();
}

#[test]
fn a_session_that_is_not_accepted_is_not_resumed() {
    let mut session = heard(Pdu::SessOpen(opening(1, 1)));
    assert_eq!(session.state(), State::Opening);
    assert_eq!(resume(&mut session, 1, 1), Err(Misuse::NotOpen));
    assert_eq!(session.state(), State::Opening);
    session.accept_session(NOW, None, Some(TICKET)).unwrap();
}

#[test]
fn a_gateway_of_an_older_way_cannot_have_the_session_back() {
    let mut session = terminus();
    come_anew(&mut session, 2).unwrap();
    assert_eq!(resume(&mut session, 0, 9), Err(Misuse::NoRequest));
    assert_eq!(resume(&mut session, 3, 1), Err(Misuse::NoRequest));
    for way in [0, 1, 2] {
        assert_eq!(come_anew(&mut session, way), Err(Misuse::NoRequest));
    }
    assert_eq!(session.state(), State::Open);
    resume(&mut session, 2, 1).unwrap();
    come_anew(&mut session, 3).unwrap();
}

#[test]
fn a_session_that_both_ends_have_ended_is_over_with_its_control_connection() {
    let close = Pdu::SessClose {
        reason: NackStatus::Done,
        abort: false,
    };
    let mut session = terminus();
    session.close(NackStatus::Done, false);
    session
        .handle_input(NOW, &close.emit(SESSION, 0, 3))
        .unwrap();
    // Possibly nothing that this end sends arrives.
    session.handle_lost(NOW);
    assert_eq!(session.state(), State::Closed);
    let last = std::iter::from_fn(|| session.poll_event()).last();
    assert!(
        matches!(last, Some(Event::Closed(Error::Closed))),
        "{last:?}"
    );
}

#[test]
fn a_way_whose_last_segment_has_no_protocol_in_common_leaves_the_session_where_it_is() {
    let mut session = terminus();
    let mut open = opening(1, 1);
    open.hops[0].offers = vec![ProtoOffer {
        proto: Proto::Udt,
        ..tcp()
    }];
    let mut fresh = heard(Pdu::SessOpen(open.clone()));
    let adopted = session.adopt_anew(NOW, &mut fresh, &open);
    assert_eq!(adopted, Err(Misuse::NoProtocol));
    assert_eq!(session.state(), State::Open);
    // The reply can be sent.
    fresh
        .refuse_session(NackStatus::NoProtocol, 0, "no common protocol")
        .unwrap();
    come_anew(&mut session, 1).unwrap();
}

/// The records that it announces.
fn announces(session: &mut Session) -> Vec<Record> {
    while let Some(seq) = session.producer().poll_sealed(NOW) {
        session.producer().announce(seq, |_| Key::default());
    }
    let said = std::iter::from_fn(|| session.poll_transmit(NOW));
    let slabs = said.filter_map(|octets| {
        let kind = u16::from_be_bytes([octets[2], octets[3]]);
        match Pdu::parse(kind, &octets[HEADER_LEN..]).unwrap() {
            Pdu::SlabAnnounce(slab) => Some(slab.records),
            _ => None,
        }
    });
    slabs.flatten().collect()
}

/// A terminus with a connection.
fn terminus_with(conn: ConnId) -> Session {
    let mut session = terminus();
    let to = endpoint("server", 1);
    let credit = 100;
    // After the method and the opening.
    let asked = Pdu::ConnOpen {
        conn,
        credit,
        to,
        metadata: Metadata::default(),
        early: Vec::new(),
    };
    session
        .handle_input(NOW, &asked.emit(SESSION, 0, 3))
        .unwrap();
    session.accept_conn(conn).unwrap();
    session
}

#[test]
fn a_connection_that_the_opener_no_longer_has_is_lost_unless_it_was_reset_here() {
    let conn = ConnId(1);
    for (was_reset, told) in [
        (false, Event::ConnLost(conn)),
        (true, Event::ConnClosed(conn)),
    ] {
        let mut session = terminus_with(conn);
        if was_reset {
            session.reset_conn(conn, 104);
        }
        come_anew(&mut session, 1).unwrap();
        let mut events = std::iter::from_fn(|| session.poll_event());
        let ends = |event: &Event| matches!(event, Event::ConnLost(_) | Event::ConnClosed(_));
        assert_eq!(events.find(ends), Some(told));
    }
}

#[test]
fn a_reset_on_an_unanswered_way_is_repeated_on_the_next() {
    let conn = ConnId(1);
    let mut session = terminus_with(conn);
    session.producer().reserve(NOW, conn, 30).unwrap();
    session.producer().commit(NOW, conn, 30, None);
    assert_eq!(announces(&mut session).len(), 1);
    session.reset_conn(conn, 104);
    for (way, delivered) in [(1, 10), (2, 20)] {
        let conns = vec![ConnState {
            conn,
            delivered,
            finished: false,
        }];
        let open = SessOpen {
            conns,
            ..opening(1, way)
        };
        let mut fresh = heard(Pdu::SessOpen(open.clone()));
        session.adopt_anew(NOW, &mut fresh, &open).unwrap();
        let told = announces(&mut session);
        let ends: Vec<_> = told.iter().map(|end| (end.offset, end.reset)).collect();
        assert_eq!(ends, [(delivered, Some(104))], "way {way}");
    }
}

#[test]
fn an_opener_cannot_be_adopted() {
    let mut opener = Session::open(config(), NOW, SESSION, open(1, true), [1; 32]).unwrap();
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
    opener.handle_lost(NOW);
    assert_eq!(resume(&mut opener, 0, 1), Err(Misuse::NotOpen));
    assert!(!opener.is_superseded_by(&opening(1, 1)));
    assert!(matches!(opener.state(), State::Suspended(_)));
}

#[test]
fn a_session_that_is_being_resumed_still_has_its_end() {
    let mut opener = Session::open(config(), NOW, SESSION, open(1, true), [1; 32]).unwrap();
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
    assert_eq!(opener.suspended_until(), None);
    opener.handle_lost(NOW);
    let until = opener.suspended_until();
    assert!(until.is_some());
    opener.reattach(NOW).unwrap();
    assert!(matches!(opener.state(), State::Greeting));
    assert_eq!(opener.suspended_until(), until);
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(true)));
    assert!(matches!(opener.state(), State::Open));
    assert_eq!(opener.suspended_until(), None);
}

fn accepted(resumed: bool) -> SessAck {
    SessAck {
        resumable: true,
        end_to_end: true,
        resumed,
        segments: vec![tcp()],
        ticket: Some(TICKET),
        ..SessAck::default()
    }
}

/// Returns the peer's reply, after its choice of a method if that comes first.
fn answer(opener: &mut Session, seq: &mut u32, pdu: &Pdu) {
    let methods = vec![AuthMethod::Anonymous];
    let greeting = (*seq == 0).then_some(Pdu::AuthType { methods });
    for pdu in greeting.iter().chain([pdu]) {
        *seq += 1;
        opener
            .handle_input(NOW, &pdu.emit(SESSION, 0, *seq))
            .unwrap();
    }
}

/// The opener's request.
fn asks(opener: &mut Session) -> Claim {
    let said = std::iter::from_fn(|| opener.poll_transmit(NOW));
    let asked = said.filter_map(|octets| {
        let kind = u16::from_be_bytes([octets[2], octets[3]]);
        match Pdu::parse(kind, &octets[HEADER_LEN..]).unwrap() {
            Pdu::SessOpen(SessOpen { claim, .. }) | Pdu::Resume { claim, .. } => Some(claim),
            _ => None,
        }
    });
    asked.last().unwrap()
}

#[test]
fn an_opener_that_never_heard_whether_the_new_way_was_taken_goes_yet_another() {
    let mut opener = Session::open(config(), NOW, SESSION, open(1, true), [1; 32]).unwrap();
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
    assert_eq!(asks(&mut opener), Claim::default());
    let mut seq = 0;
    opener.handle_lost(NOW);
    opener.reattach(NOW).unwrap();
    let forgotten = Pdu::SessNack {
        status: NackStatus::UnknownSession,
        hop_index: 0,
        text: String::new(),
    };
    answer(&mut opener, &mut seq, &forgotten);
    assert_eq!(asks(&mut opener), Claim { way: 1, turn: 0 });
    // The answer to that is lost with the control connection.
    opener.handle_lost(NOW);
    opener.reattach(NOW).unwrap();
    let mut seq = 0;
    let greeting = Pdu::Ping {
        t_us: 0,
        echo_us: 0,
    };
    answer(&mut opener, &mut seq, &greeting);
    assert_eq!(asks(&mut opener), Claim { way: 2, turn: 0 });
    answer(&mut opener, &mut seq, &Pdu::SessAck(accepted(true)));
    assert_eq!(opener.state(), State::Open);
    // From here on that way is resumed.
    opener.handle_lost(NOW);
    opener.reattach(NOW).unwrap();
    answer(&mut opener, &mut 0, &greeting);
    assert_eq!(asks(&mut opener), Claim { way: 2, turn: 1 });
}

#[test]
fn an_opener_and_its_terminus_show_the_hops_of_the_present_way() {
    let mut opener = Session::open(config(), NOW, SESSION, open(2, true), [1; 32]).unwrap();
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
    let other = common::hops(3);
    assert_eq!(opener.reopen(NOW, other.clone()), Err(Misuse::NotOpen));
    opener.handle_lost(NOW);
    assert_eq!(opener.reopen(NOW, Vec::new()), Err(Misuse::Hops));
    opener.reopen(NOW, other.clone()).unwrap();
    let greeting = Pdu::Ping {
        t_us: 0,
        echo_us: 0,
    };
    let mut seq = 0;
    answer(&mut opener, &mut seq, &greeting);
    assert_eq!(asks(&mut opener), Claim { way: 1, turn: 0 });
    assert_eq!(opener.hops(), other);
    answer(&mut opener, &mut seq, &Pdu::SessAck(accepted(true)));
    assert_eq!(opener.state(), State::Open);

    let mut terminus = terminus();
    let open = SessOpen {
        hop_index: 2,
        ..opening(3, 1)
    };
    let mut fresh = heard(Pdu::SessOpen(open.clone()));
    terminus.adopt_anew(NOW, &mut fresh, &open).unwrap();
    assert_eq!((terminus.hops(), terminus.hop_index()), (&other[..], 2));
}

#[test]
fn a_session_without_acknowledgement_from_end_to_end_cannot_go_another_way() {
    let mut opener = Session::open(config(), NOW, SESSION, open(2, false), [1; 32]).unwrap();
    let ack = SessAck {
        end_to_end: false,
        ..accepted(false)
    };
    answer(&mut opener, &mut 0, &Pdu::SessAck(ack));
    opener.handle_lost(NOW);
    let other = common::hops(3);
    assert_eq!(opener.reopen(NOW, other), Err(Misuse::NotOpen));
    opener.reattach(NOW).unwrap();
}

#[test]
fn a_postponed_opener_gets_the_reason_and_may_retry() {
    let mut opener = Session::open(config(), NOW, SESSION, open(2, true), [1; 32]).unwrap();
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
    opener.handle_lost(NOW);
    opener.reopen(NOW, common::hops(2)).unwrap();
    while opener.poll_event().is_some() {}
    let gone = Pdu::SessNack {
        status: NackStatus::CannotConnect,
        hop_index: 1,
        text: "gone".to_owned(),
    };
    answer(&mut opener, &mut 0, &gone);
    let put_off = Event::PutOff {
        status: NackStatus::CannotConnect,
        hop_index: 1,
        text: "gone".to_owned(),
    };
    assert_eq!(opener.poll_event(), Some(put_off));
    assert_eq!(opener.poll_event(), Some(Event::Suspended));
    opener.reopen(NOW, common::hops(3)).unwrap();
}

#[test]
fn another_way_that_may_not_be_gone_ends_no_session() {
    let refusals = [NackStatus::Forbidden, NackStatus::NotAuthenticated];
    for (status, elsewhere) in refusals.into_iter().flat_map(|s| [(s, true), (s, false)]) {
        let mut opener = Session::open(config(), NOW, SESSION, open(2, true), [1; 32]).unwrap();
        answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
        opener.handle_lost(NOW);
        match elsewhere {
            true => opener.reopen(NOW, common::hops(2)).unwrap(),
            false => opener.reattach(NOW).unwrap(),
        }
        let refused = Pdu::SessNack {
            status,
            hop_index: 1,
            text: String::new(),
        };
        answer(&mut opener, &mut 0, &refused);
        let is_there = matches!(opener.state(), State::Suspended(_));
        assert_eq!(is_there, elsewhere, "{status:?}");
    }
    // Nor one without authentication.
    let mut opener = Session::open(config(), NOW, SESSION, open(2, true), [1; 32]).unwrap();
    answer(&mut opener, &mut 0, &Pdu::SessAck(accepted(false)));
    opener.handle_lost(NOW);
    opener.reopen(NOW, common::hops(2)).unwrap();
    let methods = vec![AuthMethod::Tls];
    let octets = Pdu::AuthType { methods }.emit(SESSION, 0, 1);
    opener.handle_input(NOW, &octets).unwrap();
    assert!(matches!(opener.state(), State::Suspended(_)));
    opener.reopen(NOW, common::hops(2)).unwrap();
}

#[test]
fn a_gateway_leaves_out_a_hop_that_refuses_and_goes_to_the_next() {
    let mut near = heard(Pdu::SessOpen(opening(3, 0)));
    near.set_relay();
    let far = |hop_index: u16| {
        let between = SessionConfig {
            is_end: false,
            ..config()
        };
        let next = SessOpen {
            hop_index,
            ..opening(3, 0)
        };
        Session::open(between, NOW, SESSION, next, [4; 32]).unwrap()
    };
    let mut relay = Relay::new(near, far(1));
    let busy = Pdu::SessNack {
        status: NackStatus::Busy,
        hop_index: 1,
        text: String::new(),
    };
    answer(relay.side(Side::Far), &mut 0, &busy);
    let failed = std::iter::from_fn(|| relay.poll(NOW)).last();
    assert!(
        matches!(failed, Some(RelayEvent::HopFailed(_))),
        "{failed:?}"
    );
    relay.replace_far(far(2));
    let ack = Pdu::SessAck(accepted(false));
    answer(relay.side(Side::Far), &mut 0, &ack);
    let opened = std::iter::from_fn(|| relay.poll(NOW)).last();
    assert_eq!(opened, Some(RelayEvent::Opened));
    assert_eq!(relay.side(Side::Near).state(), State::Open);
}

#[test]
fn a_gateway_drops_an_older_way_silently() {
    let near = heard(Pdu::SessOpen(opening(2, 1)));
    let next = SessOpen {
        hop_index: 1,
        ..opening(2, 1)
    };
    let far = Session::open(config(), NOW, SESSION, next, [4; 32]).unwrap();
    let mut relay = Relay::new(near, far);
    while relay.poll(NOW).is_some() {}
    for side in [Side::Near, Side::Far] {
        while relay.side(side).poll_transmit(NOW).is_some() {}
    }
    let near = relay.side(Side::Near);
    assert!(!near.is_superseded_by(&opening(2, 1)), "its own opening");
    let unknown = SessOpen {
        ticket: Some([2; TICKET_LEN]),
        ..opening(2, 2)
    };
    assert!(!near.is_superseded_by(&unknown), "another ticket");
    assert!(near.is_superseded_by(&opening(2, 2)));
    relay.supersede();
    let events: Vec<RelayEvent> = std::iter::from_fn(|| relay.poll(NOW)).collect();
    assert!(events.contains(&RelayEvent::Closed(Side::Near, Error::Closed)));
    for side in [Side::Near, Side::Far] {
        assert_eq!(relay.side(side).poll_transmit(NOW), None);
    }
}

#[test]
fn where_the_next_hop_has_forgotten_the_session_its_owner_comes_anew() {
    let mut near = heard(Pdu::SessOpen(opening(2, 0)));
    near.set_relay();
    let next = SessOpen {
        hop_index: 1,
        ..opening(2, 0)
    };
    let is_end = false;
    let between = SessionConfig { is_end, ..config() };
    let far = Session::open(between, NOW, SESSION, next, [4; 32]).unwrap();
    let mut relay = Relay::new(near, far);
    answer(
        relay.side(Side::Far),
        &mut 0,
        &Pdu::SessAck(accepted(false)),
    );
    while relay.poll(NOW).is_some() {}
    relay.side(Side::Far).handle_lost(NOW);
    relay.side(Side::Far).reattach(NOW).unwrap();
    while relay.side(Side::Near).poll_transmit(NOW).is_some() {}
    let forgotten = Pdu::SessNack {
        status: NackStatus::UnknownSession,
        hop_index: 1,
        text: String::new(),
    };
    answer(relay.side(Side::Far), &mut 0, &forgotten);
    while relay.poll(NOW).is_some() {}
    let near = relay.side(Side::Near);
    assert_eq!(near.state(), State::Closed);
    assert_eq!(near.poll_transmit(NOW), None, "an error would end it");
}

#[test]
fn a_claim_without_a_ticket_is_no_claim() {
    let pdu = Pdu::Resume {
        next: SlabSeq(3),
        ticket: TICKET,
        conns: Vec::new(),
        claim: Claim { way: 5, turn: 6 },
    };
    let octets = pdu.emit(SESSION, 0, 1);
    assert_eq!(Pdu::parse(40, &octets[HEADER_LEN..]), Ok(pdu));
    // An element that is not there: the fixed part and the ticket are.
    let without = &octets[HEADER_LEN..HEADER_LEN + 12 + 4 + TICKET_LEN];
    assert!(Pdu::parse(40, without).is_err());
    let mut open = Pdu::SessOpen(opening(1, 4)).emit(SESSION, 0, 1);
    let ticket = open
        .windows(4)
        .position(|octets| octets == [0x80, 7, 0, 56])
        .unwrap();
    open.drain(ticket..ticket + 4 + TICKET_LEN);
    assert!(Pdu::parse(1, &open[HEADER_LEN..]).is_err());
}
