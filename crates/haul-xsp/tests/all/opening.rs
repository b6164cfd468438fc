//! The RTTs that opening a session takes, and that early requests have no effect without their
//! proof.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is not there where it must be fails the test; counts are small"
)]

use crate::common;

use haul_xsp::wire::{
    AuthMethod, FIRSTS_MAX, FLAG_CHECK, First, HEADER_LEN, Header, Metadata, NackStatus,
    ParseError, Pdu, SessOpen,
};
use haul_xsp::{
    AuthConfig, ConnId, Error, Event, Misbehaviour, Session, SessionConfig, SessionId, SharedKey,
    State, Time,
};

use common::{endpoint, open, tcp};

const NOW: Time = Time::from_ns(1_000_000);

fn config(methods: &[AuthMethod], key: Option<&[u8]>) -> SessionConfig {
    SessionConfig {
        protocols: vec![tcp()],
        auth: AuthConfig {
            methods: methods.to_vec(),
            keys: key
                .map(|key| SharedKey::new("k", key))
                .into_iter()
                .collect(),
            binding: [0; 32],
            peer_below: Some("below".to_owned()),
        },
        ..SessionConfig::default()
    }
}

fn pair(opener: SessionConfig, acceptor: SessionConfig) -> [Session; 2] {
    let way = open(1, true);
    [
        Session::open(opener, NOW, SessionId([7; 16]), way, [1; 32]).unwrap(),
        Session::accept(acceptor, NOW, [2; 32]).unwrap(),
    ]
}

/// Delivers all pending messages of one end to the other.
fn carry(from: &mut Session, to: &mut Session) -> Result<Vec<Pdu>, Error> {
    carry_changed(from, to, |pdu| pdu)
}

/// The same, with something changed on the way.
fn carry_changed(
    from: &mut Session,
    to: &mut Session,
    mut change: impl FnMut(Pdu) -> Pdu,
) -> Result<Vec<Pdu>, Error> {
    let mut said = Vec::new();
    while let Some(octets) = from.poll_transmit(NOW) {
        let (head, body) = octets.split_first_chunk::<HEADER_LEN>().unwrap();
        let header = Header::parse(head).unwrap();
        let sent = Pdu::parse(header.kind, body).unwrap();
        let pdu = change(sent.clone());
        let octets = if pdu == sent {
            octets
        } else {
            pdu.emit(header.session, 0, header.seq)
        };
        said.push(pdu);
        assert_eq!(to.handle_input(NOW, &octets)?, octets.len());
    }
    Ok(said)
}

/// Round trips until the session is open at the opener.
fn round_trips(methods: &[AuthMethod]) -> u32 {
    let config = || config(methods, Some(b"secret"));
    let [mut opener, mut acceptor] = pair(config(), config());
    for round in 1..10 {
        carry(&mut opener, &mut acceptor).unwrap();
        while let Some(event) = acceptor.poll_event() {
            if matches!(event, Event::OpenRequest(_)) {
                acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
            }
        }
        carry(&mut acceptor, &mut opener).unwrap();
        if matches!(opener.poll_event(), Some(Event::Opened(_))) {
            return round;
        }
    }
    panic!("it is never open");
}

#[test]
fn a_session_is_open_after_as_few_round_trips_as_its_proofs_need() {
    assert_eq!(round_trips(&[AuthMethod::Anonymous]), 1);
    assert_eq!(round_trips(&[AuthMethod::Tls]), 1);
    assert_eq!(round_trips(&[AuthMethod::SharedKey]), 2);
    let all = [
        AuthMethod::SharedKey,
        AuthMethod::Tls,
        AuthMethod::Anonymous,
    ];
    assert_eq!(round_trips(&all), 2);
    // It must be known which is chosen.
    assert_eq!(round_trips(&[AuthMethod::Tls, AuthMethod::Anonymous]), 2);
}

#[test]
fn an_early_step_of_a_key_does_not_matter_where_another_method_is_chosen() {
    for method in [AuthMethod::Tls, AuthMethod::Anonymous] {
        let both = config(&[method, AuthMethod::SharedKey], Some(b"secret"));
        let [mut opener, mut acceptor] = pair(both, config(&[method], None));
        carry(&mut opener, &mut acceptor).unwrap();
        carry(&mut acceptor, &mut opener).unwrap();
        carry(&mut opener, &mut acceptor).unwrap();
        assert!(matches!(acceptor.poll_event(), Some(Event::OpenRequest(_))));
        // A second one is a violation.
        let both = config(&[method, AuthMethod::SharedKey], Some(b"secret"));
        let [mut opener, mut acceptor] = pair(both, config(&[method], None));
        carry(&mut opener, &mut acceptor).unwrap();
        let token = vec![1; 32];
        let again = Pdu::AuthToken { step: 1, token }.emit(SessionId([7; 16]), 0, 3);
        assert!(matches!(
            acceptor.handle_input(NOW, &again),
            Err(Error::PeerMisbehaved(Misbehaviour::OutOfTurn(6)))
        ));
    }
}

/// An opener that asks for two connections along with its session.
fn eager(methods: &[AuthMethod]) -> ([Session; 2], Vec<ConnId>) {
    let config = || config(methods, Some(b"secret"));
    let first = |port| (endpoint("server", port), Metadata::default());
    let firsts = [first(80), first(81)];
    let (id, way) = (SessionId([7; 16]), open(1, true));
    let (opener, conns) = Session::open_with(config(), NOW, id, way, &firsts, [1; 32]).unwrap();
    let acceptor = Session::accept(config(), NOW, [2; 32]).unwrap();
    ([opener, acceptor], conns)
}

fn events(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}

/// Hands in a few bytes.
fn write(session: &mut Session, conn: ConnId, len: u64) {
    let fill = session.producer().reserve(NOW, conn, len).expect("credit");
    assert!(fill.len >= len);
    session.producer().commit(NOW, conn, len, None);
}

#[test]
fn connections_are_asked_for_along_with_the_session() {
    for methods in [&[AuthMethod::Anonymous][..], &[AuthMethod::SharedKey]] {
        let ([mut opener, mut acceptor], conns) = eager(methods);
        if methods == [AuthMethod::SharedKey] {
            carry(&mut opener, &mut acceptor).unwrap();
            carry(&mut acceptor, &mut opener).unwrap();
        }
        carry(&mut opener, &mut acceptor).unwrap();
        assert!(matches!(
            events(&mut acceptor).as_slice(),
            [Event::OpenRequest(_)]
        ));
        acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
        let asked: Vec<ConnId> = events(&mut acceptor)
            .into_iter()
            .map(|event| match event {
                Event::ConnRequest { conn, .. } => conn,
                event => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(asked, conns);
        acceptor.accept_conn(conns[0]).unwrap();
        acceptor.refuse_conn(conns[1], 5).unwrap();
        // The server's first bytes may come with the answer.
        write(&mut acceptor, conns[0], 100);
        carry(&mut acceptor, &mut opener).unwrap();
        assert!(matches!(
            events(&mut opener).as_slice(),
            [
                Event::Opened(_),
                Event::ConnAccepted(there),
                Event::ConnRefused { conn: not, status: 5 },
            ] if [*there, *not] == conns[..]
        ));
        write(&mut opener, conns[0], 100);
        let said = carry(&mut opener, &mut acceptor).unwrap();
        let again = |pdu: &Pdu| matches!(pdu, Pdu::ConnOpen { .. });
        assert!(!said.iter().any(again), "{said:?}");
        // The numbers go on behind them.
        let next = opener.open_conn(endpoint("server", 82)).unwrap();
        assert!(!conns.contains(&next));
    }
}

#[test]
fn a_peer_that_passes_over_what_was_asked_for_along_is_asked_again() {
    let ([mut opener, mut acceptor], conns) = eager(&[AuthMethod::Anonymous]);
    let old = |pdu| match pdu {
        Pdu::SessOpen(open) => Pdu::SessOpen(SessOpen {
            firsts: Vec::new(),
            ..open
        }),
        pdu => pdu,
    };
    carry_changed(&mut opener, &mut acceptor, old).unwrap();
    acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
    carry(&mut acceptor, &mut opener).unwrap();
    let said = carry(&mut opener, &mut acceptor).unwrap();
    let asked: Vec<ConnId> = said
        .iter()
        .filter_map(|pdu| match pdu {
            Pdu::ConnOpen { conn, .. } => Some(*conn),
            _ => None,
        })
        .collect();
    assert_eq!(asked, conns);
    acceptor.accept_conn(conns[1]).unwrap();
    carry(&mut acceptor, &mut opener).unwrap();
    let is_there = |event: &Event| *event == Event::ConnAccepted(conns[1]);
    assert!(events(&mut opener).iter().any(is_there));
}

#[test]
fn a_refused_session_reports_nothing_about_its_connections() {
    let ([mut opener, mut acceptor], conns) = eager(&[AuthMethod::Anonymous]);
    carry(&mut opener, &mut acceptor).unwrap();
    acceptor
        .refuse_session(NackStatus::Busy, 0, "full")
        .unwrap();
    // Given up before that.
    opener.reset_conn(conns[0], 104);
    carry(&mut acceptor, &mut opener).unwrap();
    assert!(matches!(
        events(&mut opener).as_slice(),
        [Event::Closed(Error::Ended {
            status: NackStatus::Busy,
            ..
        })]
    ));
    let heard = events(&mut acceptor);
    let asked = |event: &Event| matches!(event, Event::ConnRequest { .. });
    assert!(!heard.iter().any(asked), "{heard:?}");
}

#[test]
fn a_connection_that_is_given_up_before_the_session_is_open_is_reset_when_it_is() {
    let ([mut opener, mut acceptor], conns) = eager(&[AuthMethod::Anonymous]);
    carry(&mut opener, &mut acceptor).unwrap();
    opener.reset_conn(conns[0], 104);
    acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
    acceptor.accept_conn(conns[0]).unwrap();
    carry(&mut acceptor, &mut opener).unwrap();
    let heard = events(&mut opener);
    assert!(matches!(heard.as_slice(), [Event::Opened(_)]), "{heard:?}");
    carry(&mut opener, &mut acceptor).unwrap();
    let heard = events(&mut acceptor);
    let stopped = |event: &Event| matches!(event, Event::Stopped { conn, .. } if *conn == conns[0]);
    assert!(heard.iter().any(stopped), "{heard:?}");
}

#[test]
fn connections_of_a_session_whose_answer_is_lost_end_with_it() {
    let ([mut opener, mut acceptor], conns) = eager(&[AuthMethod::Anonymous]);
    carry(&mut opener, &mut acceptor).unwrap();
    acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
    acceptor.accept_conn(conns[0]).unwrap();
    opener.handle_lost(NOW);
    assert_eq!(events(&mut opener), [Event::Closed(Error::Lost)]);
    acceptor.handle_lost(NOW);
    let until = acceptor.poll_timeout().unwrap();
    acceptor.handle_timeout(until);
    let heard = events(&mut acceptor);
    assert_eq!(heard.last(), Some(&Event::Closed(Error::TimedOut)));
}

#[test]
fn numbers_that_are_not_the_openers_end_a_session_that_asks_for_them_along() {
    for wrong in [ConnId(0), ConnId(ConnId::BY_TERMINUS | 1)] {
        let ([mut opener, mut acceptor], _) = eager(&[AuthMethod::Anonymous]);
        let forge = |pdu| match pdu {
            Pdu::SessOpen(mut open) => {
                open.firsts[1].conn = wrong;
                Pdu::SessOpen(open)
            }
            pdu => pdu,
        };
        carry_changed(&mut opener, &mut acceptor, forge).unwrap();
        acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
        assert_eq!(acceptor.state(), State::Closed);
    }
}

#[test]
fn what_is_asked_for_along_is_an_element_that_may_be_passed_over() {
    let first = |number| First {
        conn: ConnId(number),
        credit: 1 << 32 | 5,
        to: endpoint("gw1", 80),
        metadata: Metadata::default(),
    };
    let asked = |count| SessOpen {
        firsts: (1..=count).map(first).collect(),
        ..open(1, false)
    };
    let emit = |open| Pdu::SessOpen(open).emit(SessionId([7; 16]), 0, 1);
    let body = |octets: &[u8]| octets[HEADER_LEN..].to_vec();
    let octets = body(&emit(asked(1)));
    assert_eq!(
        octets[octets.len() - 36..],
        *b"\x00\x35\x00\x20\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x05\
           \x80\x05\x00\x0c\0\0\0\x50\x03\0\0\x03gw1\0"
    );
    assert_eq!(Pdu::parse(1, &octets), Ok(Pdu::SessOpen(asked(1))));
    let most = asked(FIRSTS_MAX as u32);
    assert_eq!(
        Pdu::parse(1, &body(&emit(most.clone()))),
        Ok(Pdu::SessOpen(most.clone()))
    );
    let one_more = [&body(&emit(most))[..], &octets[octets.len() - 36..]].concat();
    assert_eq!(
        Pdu::parse(1, &one_more),
        Err(ParseError::TooMany("connections along with a session"))
    );
    let with_ticket = SessOpen {
        ticket: Some([9; 56]),
        ..asked(1)
    };
    assert_eq!(
        Pdu::parse(1, &body(&emit(with_ticket))),
        Err(ParseError::Value("connections along with a ticket"))
    );
}

#[test]
fn nothing_is_asked_for_with_a_wrong_key() {
    let methods = [AuthMethod::SharedKey];
    let [mut opener, mut acceptor] = pair(
        config(&methods, Some(b"wrong")),
        config(&methods, Some(b"right")),
    );
    carry(&mut opener, &mut acceptor).unwrap();
    carry(&mut acceptor, &mut opener).unwrap();
    let refused = carry(&mut opener, &mut acceptor).unwrap_err();
    assert!(matches!(refused, Error::NotAuthenticated(_)), "{refused}");
    let asked = |event: &Event| matches!(event, Event::OpenRequest(_));
    assert!(!std::iter::from_fn(|| acceptor.poll_event()).any(|event| asked(&event)));
}

#[test]
fn an_answer_without_a_proof_opens_nothing() {
    let methods = [AuthMethod::SharedKey];
    let config = || config(&methods, Some(b"secret"));
    let [mut opener, mut acceptor] = pair(config(), config());
    carry(&mut opener, &mut acceptor).unwrap();
    carry(&mut acceptor, &mut opener).unwrap();
    let said = carry(&mut opener, &mut acceptor).unwrap();
    assert!(matches!(
        said.as_slice(),
        [Pdu::AuthToken { step: 3, .. }, Pdu::SessOpen(_)]
    ));
    acceptor.accept_session(NOW, None, Some([1; 56])).unwrap();
    let proof = acceptor.poll_transmit(NOW).unwrap();
    let mut answer = acceptor.poll_transmit(NOW).unwrap();
    // Numbered as if the proof had never been, and without a check, which anybody can do.
    answer[28..32].copy_from_slice(&proof[28..32]);
    answer[1] &= !FLAG_CHECK;
    answer[24..28].fill(0);
    let error = opener.handle_input(NOW, &answer).unwrap_err();
    assert!(matches!(error, Error::NotAuthenticated(_)), "{error}");
    assert!(
        !std::iter::from_fn(|| opener.poll_event()).any(|event| matches!(event, Event::Opened(_)))
    );
}

#[test]
fn a_ticket_is_sent_only_to_an_authenticated_peer() {
    let config = |methods: &[AuthMethod]| config(methods, Some(b"secret"));
    for method in [AuthMethod::SharedKey, AuthMethod::Anonymous] {
        let mut way = open(1, true);
        way.ticket = Some([9; 56]);
        let mut opener =
            Session::open(config(&[method]), NOW, SessionId([7; 16]), way, [1; 32]).unwrap();
        let mut acceptor = Session::accept(config(&[method]), NOW, [2; 32]).unwrap();
        let mut told = false;
        for _ in 0..4 {
            let said = carry(&mut opener, &mut acceptor).unwrap();
            told |= said.iter().any(|pdu| matches!(pdu, Pdu::SessOpen(_)));
            if told {
                break;
            }
            let answers = carry(&mut acceptor, &mut opener).unwrap();
            let last = answers.last();
            let is_last = match method {
                AuthMethod::SharedKey => matches!(last, Some(Pdu::AuthToken { step: 4, .. })),
                _ => matches!(last, Some(Pdu::AuthType { .. })),
            };
            if is_last {
                break;
            }
        }
        assert!(!told, "{method:?}");
        let said = carry(&mut opener, &mut acceptor).unwrap();
        assert!(matches!(said.as_slice(), [Pdu::SessOpen(_)]), "{method:?}");
    }
}
