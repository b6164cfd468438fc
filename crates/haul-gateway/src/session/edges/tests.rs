#![expect(
    clippy::panic,
    reason = "what is not there where it must be fails the test"
)]

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use haul_io::hole::Hole;
use haul_io::poller::Events;
use haul_xsp::{Event, State};

use super::super::ingest::Pair;
use super::*;
use crate::log::Log;

/// A session whose far end is asked for a connection, and connects.
struct Far {
    pair: Pair,
    edges: Edges,
    poller: Poller,
    conn: ConnId,
    begun: Time,
}

impl Far {
    /// Begins to connect to the first of `addresses`.
    fn connect(addresses: &[SocketAddr]) -> Self {
        let mut pair = Pair::new(8 << 20, Log::new(|_, _| {}), Arc::default()).unwrap();
        let begun = pair.shared.now();
        let mut asked = None;
        let wanted = loop {
            if pair.near.session.state() == State::Open && asked.is_none() {
                asked = Some(pair.near.session.open_conn(endpoint()).unwrap());
            }
            pair.near.talk(&mut pair.far, begun).unwrap();
            match pair.far.session.poll_event() {
                Some(Event::OpenRequest(_)) => {
                    let session = &mut pair.far.session;
                    session.accept_session(begun, None, None).unwrap();
                }
                Some(Event::ConnRequest { conn, .. }) => break conn,
                _ => {}
            }
            pair.far.talk(&mut pair.near, begun).unwrap();
        };
        let mut far = Self {
            pair,
            edges: Edges::default(),
            poller: Poller::new().unwrap(),
            conn: wanted,
            begun,
        };
        far.edges
            .resolve(wanted, &endpoint(), false, "session".to_owned(), Vec::new());
        far.with_edges(0, |edges, tools| {
            edges.connect(tools, wanted, addresses.to_vec());
        });
        far
    }

    /// So many seconds after the beginning.
    fn with_edges(&mut self, seconds: u64, act: impl FnOnce(&mut Edges, &mut Tools<'_>)) {
        let mut tools = Tools {
            session: &mut self.pair.far.session,
            segment: &mut self.pair.far.segment,
            poller: &self.poller,
            now: self.begun.after(seconds * SECOND_NS),
            verifies: false,
            shared: &self.pair.shared,
        };
        act(&mut self.edges, &mut tools);
    }

    /// When the edge has something to do, in seconds after the beginning.
    fn due(&self) -> Option<u64> {
        let due = self.edges.poll_timeout()?;
        Some(due.since(self.begun) / SECOND_NS)
    }

    /// The near end's view of it.
    fn answer(&mut self) -> Option<Event> {
        let Pair { near, far, .. } = &mut self.pair;
        far.talk(near, self.begun).unwrap();
        let is_answer =
            |event: &Event| matches!(event, Event::ConnAccepted(_) | Event::ConnRefused { .. });
        std::iter::from_fn(|| near.session.poll_event()).find(is_answer)
    }
}

fn endpoint() -> Endpoint {
    crate::host::endpoint((Ipv4Addr::LOCALHOST, 1).into())
}

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() {
    let hole = Hole::v4().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut far = Far::connect(&[hole.address(), server.local_addr().unwrap()]);
    assert_eq!(far.due(), Some(5));
    far.with_edges(4, |edges, tools| edges.handle_timeout(tools));
    assert!(far.answer().is_none());
    far.with_edges(5, |edges, tools| edges.handle_timeout(tools));
    let mut events = Events::with_capacity(1);
    let until = far.pair.shared.now().after(10 * SECOND_NS).as_ns();
    let clock = far.pair.shared.clock;
    far.poller.wait(&mut events, Some(until), clock).unwrap();
    let conn = far.conn;
    far.with_edges(5, |edges, tools| edges.serve(tools, conn));
    assert!(matches!(far.answer(), Some(Event::ConnAccepted(_))));
    server.accept().unwrap();
}

#[test]
fn a_connection_is_refused_as_late_once_every_address_had_its_time() {
    let holes = [Hole::v4().unwrap(), Hole::v4().unwrap()];
    let mut far = Far::connect(&holes.each_ref().map(Hole::address));
    far.with_edges(5, |edges, tools| edges.handle_timeout(tools));
    assert_eq!(far.due(), Some(10));
    far.with_edges(10, |edges, tools| edges.handle_timeout(tools));
    match far.answer() {
        Some(Event::ConnRefused { status, .. }) => {
            assert_eq!(status, code(NackStatus::TimedOut));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((far.due(), far.edges.len()), (None, 0));
}
