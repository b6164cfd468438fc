//! Metadata of sessions and connections reaches every hop before any byte, and again after a loss.

use crate::common;

use haul_xsp::wire::{
    FIRSTS_MAX, HEADER_LEN, METADATA_PAIRS_MAX, METADATA_VALUE_MAX, Metadata, Pdu,
};
use haul_xsp::{ConnId, Event, RelayEvent, Session, SessionId, State};

use common::chain::{Chain, NOW, config};
use common::{endpoint, open};

fn metadata(pairs: &[&str]) -> Metadata {
    let mut made = Metadata::default();
    for pair in pairs {
        made.insert_pair(pair.as_bytes()).expect(pair);
    }
    made
}

/// The metadata at the terminus, of connections and of the session.
fn heard(chain: &Chain) -> (Vec<Metadata>, Vec<Metadata>) {
    let (mut conns, mut session) = (Vec::new(), Vec::new());
    for event in &chain.last_heard {
        match event {
            Event::ConnRequest { metadata, .. } => conns.push(metadata.clone()),
            Event::Metadata(metadata) => session.push(metadata.clone()),
            _ => {}
        }
    }
    (conns, session)
}

fn relayed(chain: &Chain) -> Vec<(Option<ConnId>, Metadata)> {
    let shown = chain.relayed.iter().filter_map(|event| match event {
        RelayEvent::Metadata { conn, metadata } => Some((*conn, metadata.clone())),
        _ => None,
    });
    shown.collect()
}

#[test]
fn what_is_said_about_a_connection_reaches_every_hop_with_it() {
    let mut chain = Chain::opened(open(3, true));
    let said = metadata(&["job=17", "user=é"]);
    let to = endpoint("server", 80);
    let conn = chain
        .opener
        .open_conn_with(to, said.clone(), Vec::new())
        .unwrap();
    let plain = chain.opener.open_conn(endpoint("server", 81)).unwrap();
    chain.pump();
    let there = vec![said.clone(), Metadata::default()];
    assert_eq!(heard(&chain), (there, Vec::new()));
    // Each of both gateways once, and nothing about the other connection.
    let shown = (Some(conn), said.clone());
    assert_eq!(relayed(&chain), [shown.clone(), shown]);
    assert_eq!(chain.last.conn_metadata(conn), Some(&said));
    assert!(chain.last.conn_metadata(plain).unwrap().is_empty());
}

#[test]
fn what_was_lost_with_a_control_connection_is_said_again() {
    let mut chain = Chain::opened(open(3, true));
    let (said, about) = (metadata(&["job=17"]), metadata(&["site=north"]));
    let to = endpoint("server", 80);
    let conn = chain
        .opener
        .open_conn_with(to, said.clone(), Vec::new())
        .unwrap();
    chain.opener.set_metadata(about.clone());
    // It has reached no hop.
    while chain.opener.poll_transmit(NOW).is_some() {}
    chain.lose(0);
    chain.resume(0);
    assert_eq!(heard(&chain), (vec![said], vec![about.clone()]));
    chain.last.accept_conn(conn).unwrap();
    chain.pump();
    // A gateway passes it on when its next hop is back.
    chain.last_heard.clear();
    chain.lose(2);
    chain.pump();
    let more = metadata(&["site=south"]);
    chain.opener.set_metadata(more.clone());
    chain.pump();
    assert_eq!(heard(&chain), Default::default());
    chain.resume(2);
    assert_eq!(heard(&chain), (Vec::new(), vec![more]));
}

#[test]
fn what_is_said_about_a_session_is_said_when_it_is_open() {
    let mut chain = Chain::new(open(2, false), [config(None), config(None)]);
    let about = metadata(&["site=north"]);
    chain.opener.set_metadata(about.clone());
    chain.pump();
    assert_eq!(heard(&chain), Default::default());
    chain.last.accept_session(NOW, None, Some([1; 56])).unwrap();
    chain.pump();
    assert_eq!(heard(&chain), (Vec::new(), vec![about.clone()]));
    assert_eq!(relayed(&chain), [(None, about)]);
}

#[test]
fn what_is_asked_for_along_with_the_session_has_its_metadata() {
    let said = metadata(&["job=17"]);
    let mut firsts = vec![(endpoint("server", 80), said.clone())];
    firsts.push((endpoint("server", 81), Metadata::default()));
    let (id, way) = (SessionId([7; 16]), open(1, true));
    let opened = Session::open_with(config(None), NOW, id, way, &firsts, [1; 32]);
    let (mut opener, conns) = opened.unwrap();
    let mut last = Session::accept(config(None), NOW, [2; 32]).unwrap();
    while let Some(octets) = opener.poll_transmit(NOW) {
        last.handle_input(NOW, &octets).unwrap();
    }
    last.accept_session(NOW, None, Some([1; 56])).unwrap();
    let events: Vec<Event> = std::iter::from_fn(|| last.poll_event()).collect();
    let asked = |conn, (to, metadata): &(_, Metadata)| Event::ConnRequest {
        conn,
        to: haul_xsp::wire::Endpoint::clone(to),
        metadata: metadata.clone(),
        early: Vec::new(),
    };
    let firsts = [asked(conns[0], &firsts[0]), asked(conns[1], &firsts[1])];
    assert!(events.ends_with(&firsts), "{events:?}");
}

/// As a peer's that exceeds a bound: the element states a longer value than it has.
fn forged(conn: u32) -> Vec<u8> {
    let pdu = Pdu::ConnOpen {
        conn: ConnId(conn),
        credit: 0,
        to: endpoint("server", 80),
        metadata: metadata(&["job=17"]),
        early: Vec::new(),
    };
    let mut octets = pdu.emit(SessionId([7; 16]), 0, 1);
    let at = octets.windows(4).rposition(|four| four == b"\x02job");
    octets[at.expect("its length and its key")] = 255;
    octets
}

#[test]
fn what_exceeds_a_bound_is_dropped_and_its_connection_is_not() {
    let octets = forged(1);
    let parsed = Pdu::parse(20, &octets[HEADER_LEN..]).unwrap();
    let Pdu::ConnOpen { metadata: said, .. } = &parsed else {
        panic!("{parsed:?}");
    };
    assert!(said.is_dropped() && said.is_empty());
    let again = parsed.emit(SessionId([7; 16]), 0, 1);
    assert_eq!(Pdu::parse(20, &again[HEADER_LEN..]), Ok(parsed.clone()));
    // Through a gateway, which does not pass it on.
    let mut chain = Chain::opened(open(2, true));
    let to = endpoint("server", 80);
    let conn = chain
        .opener
        .open_conn_with(to, said.clone(), Vec::new())
        .unwrap();
    chain.opener.send_app(1, b"nonsense".to_vec()).unwrap();
    chain.opener.send_app(2, b"nonsense".to_vec()).unwrap();
    chain.pump();
    assert_eq!(heard(&chain), (vec![Metadata::default()], Vec::new()));
    let shown = relayed(&chain);
    assert_eq!(shown.len(), 1, "its opener says no such thing: {shown:?}");
    assert!(shown[0].1.is_dropped() && shown[0].0.is_none());
    let other = |event: &Event| matches!(event, Event::App { option: 2, .. });
    assert!(chain.last_heard.iter().any(other));
    chain.last.accept_conn(conn).unwrap();
    assert_eq!(chain.last.state(), State::Open);
}

#[test]
fn of_more_than_is_kept_no_more_is_kept_until_connections_are_gone() {
    let mut most = Metadata::default();
    for index in 0..METADATA_PAIRS_MAX {
        let value = "v".repeat(METADATA_VALUE_MAX);
        most.insert(&format!("{index:0>64}"), &value).unwrap();
    }
    let mut chain = Chain::opened(open(1, true));
    // Each pair takes 128 bytes beside its own.
    let fit = (4 << 20) / (METADATA_PAIRS_MAX * (128 + 64 + METADATA_VALUE_MAX));
    let ask = |chain: &mut Chain| {
        let to = endpoint("server", 80);
        let conn = chain
            .opener
            .open_conn_with(to, most.clone(), Vec::new())
            .unwrap();
        chain.pump();
        let is_dropped = heard(chain).0.last().unwrap().is_dropped();
        (conn, is_dropped)
    };
    let asked: Vec<_> = (0..=fit).map(|_| ask(&mut chain)).collect();
    assert!(asked[..fit].iter().all(|(_, is_dropped)| !is_dropped));
    assert!(asked[fit].1);
    chain.last.refuse_conn(asked[0].0, 5).unwrap();
    assert!(!ask(&mut chain).1);
    // As many as may come along with a session are no body that is too long.
    const { assert!(FIRSTS_MAX * METADATA_PAIRS_MAX * (64 + 3 + METADATA_VALUE_MAX) < 1 << 20) };
}
