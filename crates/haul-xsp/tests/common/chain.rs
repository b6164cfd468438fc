//! An opener, gateways and a terminus whose control connections have no delay, to observe the
//! messages between them.

use haul_xsp::wire::{AuthMethod, HEADER_LEN, Header, Pdu, SessOpen};
use haul_xsp::{
    AuthConfig, Event, Relay, RelayEvent, Session, SessionConfig, SessionId, SharedKey, Side, Time,
};

use super::tcp;

pub const NOW: Time = Time::from_ns(1_000_000);
const SESSION: SessionId = SessionId([7; 16]);
pub const TICKET: [u8; 56] = [1; 56];

/// Ends with this key, or with none.
pub fn config(key: Option<&[u8]>) -> SessionConfig {
    let method = match key {
        Some(_) => AuthMethod::SharedKey,
        None => AuthMethod::Anonymous,
    };
    let keys = key.map(|key| SharedKey::new("k", key));
    SessionConfig {
        protocols: vec![tcp()],
        auth: AuthConfig {
            methods: vec![method],
            keys: keys.into_iter().collect(),
            ..AuthConfig::default()
        },
        ..SessionConfig::default()
    }
}

/// All of them, as far as they have come into being.
pub struct Chain {
    pub opener: Session,
    pub relays: Vec<Relay>,
    pub last: Session,
    /// Events of each of them.
    pub heard: Vec<Event>,
    pub relayed: Vec<RelayEvent>,
    pub last_heard: Vec<Event>,
    /// PDUs that arrived anywhere.
    pub said: Vec<Pdu>,
    pub now: Time,
    /// Nothing comes from the terminus any more, and nothing gets there.
    pub is_silent: bool,
}

impl Chain {
    /// Up to a terminus that has not answered. `last`: what both ends of the last segment are like.
    pub fn new(open: SessOpen, [before, last]: [SessionConfig; 2]) -> Self {
        let segments = open.hops.len();
        let opener = Session::open(config(None), NOW, SESSION, open, [1; 32]).unwrap();
        let mut chain = Self {
            opener,
            relays: Vec::new(),
            last: Session::accept(config(None), NOW, [2; 32]).unwrap(),
            heard: Vec::new(),
            relayed: Vec::new(),
            last_heard: Vec::new(),
            said: Vec::new(),
            now: NOW,
            is_silent: false,
        };
        for hop in 1..segments {
            chain.pump();
            let asked = chain.last_heard.pop();
            let Some(Event::OpenRequest(asked)) = asked else {
                panic!("hop {hop} has not been asked: {asked:?}");
            };
            let is_last = hop + 1 == segments;
            let (own, theirs) = match is_last {
                true => (before.clone(), last.clone()),
                false => (config(None), config(None)),
            };
            let between = SessionConfig {
                is_end: false,
                ..own
            };
            let next = SessOpen {
                hop_index: asked.hop_index + 1,
                ..asked
            };
            let fresh = Session::accept(theirs, NOW, [3 + hop as u8; 32]).unwrap();
            let mut near = std::mem::replace(&mut chain.last, fresh);
            near.set_relay();
            let far = Session::open(between, NOW, SESSION, next, [40 + hop as u8; 32]).unwrap();
            chain.relays.push(Relay::new(near, far));
        }
        chain.pump();
        chain
    }

    /// Of so many hops, open.
    pub fn opened(open: SessOpen) -> Self {
        let mut chain = Self::new(open, [config(None), config(None)]);
        let now = chain.now;
        chain.last.accept_session(now, None, Some(TICKET)).unwrap();
        chain.pump();
        chain
    }

    /// Delivers all pending messages.
    pub fn pump(&mut self) {
        let now = self.now;
        loop {
            let mut moved = 0;
            let last = self.relays.len();
            for segment in 0..=last {
                let (before, after) = self.relays.split_at_mut(segment);
                let near = match before.last_mut() {
                    Some(relay) => relay.side(Side::Far),
                    None => &mut self.opener,
                };
                let far = match after.first_mut() {
                    Some(relay) => relay.side(Side::Near),
                    None => &mut self.last,
                };
                if self.is_silent && segment == last {
                    while near.poll_transmit(now).is_some() {}
                    continue;
                }
                moved += carry(now, near, far, &mut self.said);
                moved += carry(now, far, near, &mut self.said);
            }
            for relay in &mut self.relays {
                flush(relay.side(Side::Near), now);
                flush(relay.side(Side::Far), now);
                while let Some(event) = relay.poll(now) {
                    moved += 1;
                    if let RelayEvent::HopFailed(error) = &event {
                        relay.give_up(error);
                    }
                    self.relayed.push(event);
                }
            }
            flush(&mut self.opener, now);
            flush(&mut self.last, now);
            self.heard
                .extend(std::iter::from_fn(|| self.opener.poll_event()));
            self.last_heard
                .extend(std::iter::from_fn(|| self.last.poll_event()));
            if moved == 0 {
                return;
            }
        }
    }

    /// Some time passes, in which slabs are sealed.
    pub fn wait(&mut self) {
        for _ in 0..4 {
            self.pass(10_000_000);
        }
    }

    /// So much time passes for all.
    pub fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        self.opener.handle_timeout(self.now);
        for relay in &mut self.relays {
            relay.side(Side::Near).handle_timeout(self.now);
            relay.side(Side::Far).handle_timeout(self.now);
        }
        self.last.handle_timeout(self.now);
        self.pump();
    }

    /// The segment has a control connection again.
    pub fn resume(&mut self, segment: usize) {
        let now = self.now;
        let (before, after) = self.relays.split_at_mut(segment);
        let near = match before.last_mut() {
            Some(relay) => relay.side(Side::Far),
            None => &mut self.opener,
        };
        let far = match after.first_mut() {
            Some(relay) => relay.side(Side::Near),
            None => &mut self.last,
        };
        near.reattach(now).unwrap();
        let mut fresh = Session::accept(config(None), now, [9; 32]).unwrap();
        carry(now, near, &mut fresh, &mut self.said);
        carry(now, &mut fresh, near, &mut self.said);
        carry(now, near, &mut fresh, &mut self.said);
        match fresh.poll_event() {
            Some(Event::ResumeRequest(request)) => far.adopt(now, &mut fresh, &request).unwrap(),
            other => panic!("{other:?}"),
        }
        self.pump();
    }

    /// Nothing is left of the control connection of a segment.
    pub fn lose(&mut self, segment: usize) {
        let now = self.now;
        match segment.checked_sub(1) {
            Some(before) => self.relays[before].side(Side::Far).handle_lost(now),
            None => self.opener.handle_lost(now),
        }
        match self.relays.get_mut(segment) {
            Some(relay) => relay.side(Side::Near).handle_lost(now),
            None => self.last.handle_lost(now),
        }
    }
}

/// Its slabs, of which none has bytes, need no data channel. Reading shows the end of streams.
fn flush(session: &mut Session, now: Time) {
    let producer = session.producer();
    while producer.poll_retired().is_some() {}
    while let Some(seq) = producer.poll_keyless(now) {
        producer.announce_inline(seq, Vec::new());
    }
}

fn carry(now: Time, from: &mut Session, to: &mut Session, said: &mut Vec<Pdu>) -> usize {
    let mut count = 0;
    while let Some(octets) = from.poll_transmit(now) {
        let (head, body) = octets.split_first_chunk::<HEADER_LEN>().unwrap();
        said.push(Pdu::parse(Header::parse(head).unwrap().kind, body).unwrap());
        count += 1;
        // An event reports its error.
        let _ = to.handle_input(now, &octets);
    }
    count
}
