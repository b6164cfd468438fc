//! A session that is to end when all is done, and loses its control connection before that.

#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use crate::common;

use haul_xsp::wire::{ChanParams, NackStatus, Params, Pdu, Proto};
use haul_xsp::{ChanId, ConnId, Error, Event, Misuse, Session, State};

use common::chain::{Chain, config};
use common::{endpoint, open};

/// A session with a connection, whose streams have not ended.
fn with_conn() -> (Chain, ConnId) {
    let mut chain = Chain::opened(open(1, false));
    let conn = chain.opener.open_conn(endpoint("server", 80)).unwrap();
    chain.pump();
    chain.last.accept_conn(conn).unwrap();
    chain.pump();
    assert_eq!(chain.heard.last(), Some(&Event::ConnAccepted(conn)));
    (chain, conn)
}

fn tcp_chan() -> ChanParams {
    ChanParams {
        chan: ChanId(0),
        proto: Proto::Tcp,
        role: 0,
        params: Params::default(),
        endpoints: Vec::new(),
        cookie: None,
    }
}

/// Both streams of its connection end, and with them the session at both ends.
fn assert_ends(mut chain: Chain, conn: ConnId) {
    let is_over = |session: &Session| session.state() == State::Closed;
    assert!(!is_over(&chain.opener) && !is_over(&chain.last));
    chain.opener.finish_conn(conn);
    chain.last.finish_conn(conn);
    chain.wait();
    for end in [&mut chain.opener, &mut chain.last] {
        end.consumer().read(conn, 1).unwrap();
    }
    chain.wait();
    for heard in [&chain.heard, &chain.last_heard] {
        let events = heard.iter().rev();
        let events: Vec<&Event> = events.take(2).collect();
        assert_eq!(
            events,
            [&Event::Closed(Error::Closed), &Event::ConnClosed(conn)]
        );
    }
}

#[test]
fn a_session_that_is_to_end_while_it_is_suspended_ends_when_what_there_is_has_finished() {
    for at_opener in [true, false] {
        let (mut chain, conn) = with_conn();
        chain.lose(0);
        let end = match at_opener {
            true => &mut chain.opener,
            false => &mut chain.last,
        };
        end.close(NackStatus::Done, false);
        assert!(matches!(end.state(), State::Suspended(_)));
        chain.resume(0);
        let end = match at_opener {
            true => &mut chain.opener,
            false => &mut chain.last,
        };
        assert_eq!(end.state(), State::Draining);
        assert_eq!(end.open_conn(endpoint("more", 80)), Err(Misuse::NotOpen));
        // The remaining data may need one.
        end.open_chan(tcp_chan()).unwrap();
        assert_ends(chain, conn);
    }
}

#[test]
fn a_session_that_is_to_end_while_it_is_being_resumed_ends_when_what_there_is_has_finished() {
    let (mut chain, conn) = with_conn();
    chain.lose(0);
    let now = chain.now;
    chain.opener.reattach(now).unwrap();
    chain.opener.close(NackStatus::Done, false);
    assert_eq!(chain.opener.state(), State::Greeting);
    chain.lose(0);
    chain.resume(0);
    assert_eq!(chain.opener.state(), State::Draining);
    assert_ends(chain, conn);
}

#[test]
fn a_session_that_is_ending_goes_on_ending_when_it_is_resumed() {
    for at_opener in [true, false] {
        let (mut chain, conn) = with_conn();
        match at_opener {
            true => chain.opener.close(NackStatus::Done, false),
            false => chain.last.close(NackStatus::Done, false),
        }
        chain.pump();
        for _ in 0..2 {
            chain.lose(0);
            chain.resume(0);
        }
        let end = match at_opener {
            true => &chain.opener,
            false => &chain.last,
        };
        assert_eq!(end.state(), State::Draining);
        assert_ends(chain, conn);
    }
}

#[test]
fn a_goodbye_that_was_lost_is_said_again() {
    let mut chain = Chain::opened(open(1, false));
    chain.opener.close(NackStatus::Done, false);
    let now = chain.now;
    let lost = std::iter::from_fn(|| chain.opener.poll_transmit(now)).count();
    assert_eq!(lost, 1);
    chain.lose(0);
    chain.resume(0);
    let goodbyes = chain.said.iter();
    let goodbyes = goodbyes.filter(|pdu| matches!(pdu, Pdu::SessClose { abort: false, .. }));
    assert_eq!(goodbyes.count(), 2, "one of each end");
    assert_eq!(chain.heard.last(), Some(&Event::Closed(Error::Closed)));
    assert_eq!(chain.last_heard.last(), Some(&Event::Closed(Error::Closed)));
}

#[test]
fn a_session_that_its_peer_has_ended_meanwhile_has_ended_in_order() {
    let mut chain = Chain::opened(open(1, false));
    chain.opener.close(NackStatus::Done, false);
    let now = chain.now;
    while chain.opener.poll_transmit(now).is_some() {}
    chain.opener.handle_lost(now);
    chain.opener.reattach(now).unwrap();
    chain.last = Session::accept(config(None), now, [9; 32]).unwrap();
    chain.pump();
    assert!(matches!(
        chain.last_heard.last(),
        Some(Event::ResumeRequest(_))
    ));
    let status = NackStatus::UnknownSession;
    chain.last.refuse_session(status, 0, "forgotten").unwrap();
    chain.pump();
    assert_eq!(chain.heard.last(), Some(&Event::Closed(Error::Closed)));
}

#[test]
fn a_session_that_is_to_end_does_not_outlive_a_peer_that_never_comes_back() {
    let (mut chain, _) = with_conn();
    chain.lose(0);
    chain.last.close(NackStatus::Done, false);
    let until = chain.last.poll_timeout().unwrap();
    chain.last.handle_timeout(until);
    chain.pump();
    let ended = Event::Closed(Error::TimedOut);
    assert_eq!(chain.last_heard.last(), Some(&ended));
}

#[test]
fn a_suspended_session_that_has_nothing_left_to_finish_ends_at_once() {
    let mut chain = Chain::opened(open(1, false));
    chain.lose(0);
    chain.opener.close(NackStatus::Done, false);
    assert_eq!(chain.opener.state(), State::Closed);
}
