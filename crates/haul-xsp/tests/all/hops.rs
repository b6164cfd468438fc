//! Which of several hops is named when a session cannot be opened, or ends.

use crate::common;

use haul_xsp::wire::{NackStatus, Pdu, SessOpen};
use haul_xsp::{
    Admission, Directory, Error, Event, SECOND_NS, Session, SessionId, Side, State, Time,
};

use common::chain::{Chain, NOW, config};
use common::open;

/// Why the opener's session has ended.
fn blamed(chain: &Chain) -> (NackStatus, Option<u16>, &str) {
    match chain.heard.last() {
        Some(Event::Closed(Error::Ended {
            status,
            hop_index,
            text,
        })) => (*status, *hop_index, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_names_the_hop_that_refuses_whichever_it_is() {
    for last in 0..4 {
        let way = open(usize::from(last) + 1, false);
        let mut chain = Chain::new(way, [config(None), config(None)]);
        // As a gateway does that knows its place.
        let (status, text) = (NackStatus::Busy, "no memory");
        chain.last.refuse_session(status, last, text).unwrap();
        chain.pump();
        assert_eq!(blamed(&chain), (status, Some(last), text));
    }
}

#[test]
fn a_hop_that_does_not_know_its_place_is_named_by_the_one_before_it() {
    let mut chain = Chain::new(open(3, false), [config(None), config(None)]);
    let status = NackStatus::Busy;
    chain.last.refuse_session(status, 0, "no memory").unwrap();
    chain.pump();
    assert_eq!(blamed(&chain), (status, Some(2), "no memory"));
}

#[test]
fn a_failed_authentication_between_gateways_is_named_by_the_farther_one() {
    let keys = [Some(&b"one"[..]), Some(b"another")];
    for [own, theirs] in [keys, [None, keys[0]], [keys[0], None]] {
        let chain = Chain::new(open(3, false), [config(own), config(theirs)]);
        let (status, hop, text) = blamed(&chain);
        assert_eq!((status, hop), (NackStatus::NotAuthenticated, Some(2)));
        assert!(text.contains("not authenticated"), "{text}");
    }
}

#[test]
fn later_errors_name_the_hop_before_the_silent_one() {
    let once = SessOpen {
        resumable: false,
        ..open(3, false)
    };
    for segment in 1..3_u16 {
        let mut chain = Chain::opened(once.clone());
        chain.lose(usize::from(segment));
        chain.pump();
        let (_, hop, text) = blamed(&chain);
        assert_eq!(hop, Some(segment));
        assert!(text.contains("lost"), "{text}");
    }
    // The terminus reports the reason.
    let mut chain = Chain::opened(open(3, false));
    chain.last.fail_hop(NackStatus::Error, None, "a bad day");
    chain.pump();
    assert_eq!(
        blamed(&chain),
        (NackStatus::Error, Some(2), "a bad day"),
        "{:?}",
        chain.said
    );
    let mut chain = Chain::opened(open(3, false));
    chain.last.close(NackStatus::Closing, true);
    chain.pump();
    assert_eq!(blamed(&chain), (NackStatus::Closing, Some(2), ""));
}

#[test]
fn a_hop_cannot_blame_an_earlier_or_missing_hop() {
    for (said, taken) in [
        (Some(0), 1),
        (None, 1),
        (Some(1), 1),
        (Some(2), 2),
        (Some(900), 2),
    ] {
        let mut chain = Chain::opened(open(3, false));
        let near = chain.relays[1].side(Side::Near);
        near.fail_hop(NackStatus::Error, said, "");
        chain.pump();
        assert_eq!(blamed(&chain).1, Some(taken), "{said:?}");
        let is_told = |pdu: &Pdu| matches!(pdu, Pdu::Error { hop_index, .. } if *hop_index == said);
        assert!(chain.said.iter().any(is_told));
    }
}

#[test]
fn a_silent_hop_is_noticed_first_by_the_one_before_it() {
    for silent in 0..3_u16 {
        let hops = usize::from(silent) + 1;
        let mut chain = Chain::new(open(hops, false), [config(None), config(None)]);
        chain.is_silent = true;
        while !matches!(chain.heard.last(), Some(Event::Closed(_))) {
            chain.pass(SECOND_NS / 10);
            // Clients of the opener wait for that.
            assert!(chain.now < NOW.after(3 * SECOND_NS));
        }
        if silent == 0 {
            assert_eq!(chain.heard.last(), Some(&Event::Closed(Error::TimedOut)));
        } else {
            let (status, hop, _) = blamed(&chain);
            assert_eq!((status, hop), (NackStatus::TimedOut, Some(silent)));
        }
    }
}

#[test]
fn a_dry_run_reports_the_protocols_and_keeps_no_state() {
    for last in 0..3 {
        let way = SessOpen {
            dry_run: true,
            ..open(usize::from(last) + 1, true)
        };
        let mut chain = Chain::opened(way.clone());
        let [Event::Opened(ack), Event::Closed(Error::Closed)] = chain.heard.as_slice() else {
            panic!("{:?}", chain.heard);
        };
        assert_eq!(ack.segments.len(), usize::from(last) + 1);
        assert_eq!((ack.ticket, ack.resumable), (None, false));
        assert_eq!(chain.last_heard.last(), Some(&Event::Closed(Error::Closed)));
        let is_over = |session: &mut Session| session.state() == State::Closed;
        for relay in &mut chain.relays {
            assert!(is_over(relay.side(Side::Near)) && is_over(relay.side(Side::Far)));
        }
        // And the hop that would refuse it.
        let mut chain = Chain::new(way, [config(None), config(None)]);
        let status = NackStatus::Busy;
        chain.last.refuse_session(status, last, "full").unwrap();
        chain.pump();
        assert_eq!(blamed(&chain), (status, Some(last), "full"));
    }
}

#[test]
fn a_dry_run_is_not_kept_and_takes_over_no_session() {
    let mut directory = Directory::new(1, Vec::new(), [1; 32]);
    let (now, id) = (Time::from_ns(1), SessionId([7; 16]));
    let dry = SessOpen {
        dry_run: true,
        ..open(1, true)
    };
    assert_eq!(directory.admit(now, id, &dry), Admission::Terminus);
    assert_eq!(directory.admit(now, id, &dry), Admission::Terminus);
    assert_eq!(
        directory.admit(now, id, &open(1, true)),
        Admission::Terminus
    );
    let ticket = Some(directory.ticket(id, Time::from_ns(u64::MAX)));
    let owner = SessOpen { ticket, ..dry };
    let refused = Admission::Refused(NackStatus::Loop, 0);
    assert_eq!(directory.admit(now, id, &owner), refused);
}
