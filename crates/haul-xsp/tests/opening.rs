//! How many round trips it takes to open a session, and that what is said early is good for nothing without its proof.

#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

mod common;

use haul_xsp::wire::{AuthMethod, HEADER_LEN, Header, Pdu};
use haul_xsp::{AuthConfig, Error, Event, Session, SessionConfig, SessionId, SharedKey, Time};

use common::{open, tcp};

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

/// Everything that one end has to say at this moment, to the other.
fn carry(from: &mut Session, to: &mut Session) -> Result<Vec<Pdu>, Error> {
    let mut said = Vec::new();
    while let Some(octets) = from.poll_transmit(NOW) {
        let (head, body) = octets.split_first_chunk::<HEADER_LEN>().unwrap();
        said.push(Pdu::parse(Header::parse(head).unwrap().kind, body).unwrap());
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
    // Numbered as if the proof had never been.
    answer[28..32].copy_from_slice(&proof[28..32]);
    let error = opener.handle_input(NOW, &answer).unwrap_err();
    assert!(matches!(error, Error::NotAuthenticated(_)), "{error}");
    assert!(
        !std::iter::from_fn(|| opener.poll_event()).any(|event| matches!(event, Event::Opened(_)))
    );
}

#[test]
fn a_ticket_is_told_to_nobody_who_has_not_proved_who_they_are() {
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
