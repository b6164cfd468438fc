//! Applications' requests for connections; new control connections to a host, and its replies.

use haul_xsp::wire::{Metadata, NackStatus, SessOpen};
use haul_xsp::{ConnId, Event, Relay, Session, Side, State};

use super::{Node, SESSION, TICKET, World, endpoint, pattern};

impl World {
    /// Opens a connection, often with its first bytes.
    pub(super) fn open_conn(&mut self, half: usize, app: usize) {
        let room = self.session(half).unwrap().early_room() as u64;
        let most = [0, 200, 2_000][self.random.below(3) as usize].min(room);
        let app = &mut self.apps[app];
        app.to_open -= 1;
        let from_opener = app.from_opener;
        let side = if from_opener { 0 } else { ConnId::BY_TERMINUS };
        let own = |conn: &ConnId| conn.is_by_terminus() != from_opener;
        let last = app.streams.keys().copied().filter(own).max();
        let conn = ConnId(last.map_or(side, |conn| conn.0) + 1);
        let stream = app.stream(&mut self.random, conn);
        stream.early = stream.reset_at.unwrap_or(stream.total).min(most);
        stream.written = stream.early;
        let early = (0..stream.early).map(|at| pattern(conn, from_opener, at));
        let (to, early) = (endpoint("server", 80), early.collect());
        let session = self.session(half).unwrap();
        session
            .open_conn_as(conn, to, Metadata::default(), early)
            .unwrap();
    }

    /// A session that was asked for on a new control connection goes where it belongs.
    pub(super) fn place_fresh(&mut self, segment: usize) {
        let now = self.now;
        let Some(event) = self.fresh[segment].as_mut().and_then(Session::poll_event) else {
            return;
        };
        let node = segment + 1;
        match event {
            Event::OpenRequest(open) if node == self.setup.segments => {
                let mut fresh = self.fresh[segment].take().unwrap();
                if let (Node::End(old), true) = (&mut self.nodes[node], open.ticket.is_some()) {
                    assert_eq!(open.ticket, Some(TICKET));
                    if old.adopt_anew(now, &mut fresh, &open).is_err() {
                        assert!(!old.is_superseded_by(&open), "seed {}", self.seed);
                        fresh
                            .refuse_session(NackStatus::Loop, open.hop_index, "older")
                            .unwrap();
                        self.fresh[segment] = Some(fresh);
                    }
                } else {
                    fresh.accept_session(now, None, Some(TICKET)).unwrap();
                    self.nodes[node] = Node::End(Box::new(fresh));
                }
            }
            Event::OpenRequest(open) => {
                let mut near = self.fresh[segment].take().unwrap();
                if let Node::Gateway(old) = &mut self.nodes[node]
                    && old.side(Side::Near).state() != State::Closed
                {
                    let status = match old.side(Side::Near).is_superseded_by(&open) {
                        true => NackStatus::Closing,
                        false => NackStatus::Loop,
                    };
                    if status == NackStatus::Closing {
                        old.supersede();
                    }
                    near.refuse_session(status, open.hop_index, "here already")
                        .unwrap();
                    self.fresh[segment] = Some(near);
                    return;
                }
                let next = SessOpen {
                    hop_index: open.hop_index + 1,
                    ..open
                };
                let far = Session::open(self.config(node), now, SESSION, next, [40; 32]).unwrap();
                // The one of a session that was there before ended with it.
                self.cut(node);
                self.nodes[node] = Node::Gateway(Box::new(Relay::new(near, far)));
                self.accept(node);
            }
            Event::ResumeRequest(request) => {
                let mut fresh = self.fresh[segment].take().unwrap();
                let own = self
                    .session(segment * 2 + 1)
                    .filter(|old| old.holds(&request.ticket));
                if own.is_none_or(|own| own.adopt(now, &mut fresh, &request).is_err()) {
                    let status = NackStatus::UnknownSession;
                    fresh
                        .refuse_session(status, segment as u16, "forgotten")
                        .unwrap();
                    self.fresh[segment] = Some(fresh);
                }
            }
            // It has been refused, and has received the refusal.
            Event::Closed(_) => self.fresh[segment] = None,
            event => panic!("seed {}: {event:?}", self.seed),
        }
    }
}
