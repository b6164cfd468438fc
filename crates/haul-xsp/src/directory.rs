//! All sessions of an end or a gateway: their names (a second session of one name is a loop), the
//! permitted hops (others would make it an open relay), and their tickets.

use std::collections::BTreeSet;

use crate::SessionId;
use crate::auth::Ticketer;
use crate::time::Time;
use crate::wire::{Address, Hop, NackStatus, SessOpen, TICKET_LEN};

/// A hop that a gateway may go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Addresses: one, or all that begin with its first `prefix` bits. Names and numbers must be
    /// the same.
    pub address: Address,
    /// Bits of an IP address that count.
    pub prefix: u8,
    /// One port, or any.
    pub port: Option<u16>,
}

impl Allowed {
    fn covers(&self, hop: &Hop) -> bool {
        let port = self.port.is_none_or(|port| port == hop.endpoint.port);
        port && self.covers_address(&hop.endpoint.address)
    }

    /// Whether `wanted` is one of its addresses, whatever the port.
    #[must_use]
    pub fn covers_address(&self, wanted: &Address) -> bool {
        match (&self.address, wanted) {
            (Address::V4(own), Address::V4(wanted)) => begins(own, wanted, self.prefix),
            (Address::V6(own), Address::V6(wanted)) => begins(own, wanted, self.prefix),
            (own, wanted) => own == wanted,
        }
    }
}

fn begins(own: &[u8], wanted: &[u8], prefix: u8) -> bool {
    let bits = own
        .iter()
        .zip(wanted)
        .map(|(own, wanted)| (own ^ wanted).leading_zeros());
    let mut common = 0;
    for same in bits {
        common += same;
        if same < 8 {
            break;
        }
    }
    common >= u32::from(prefix)
}

/// The action for a requested session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// This is its terminus.
    Terminus,
    /// The next hop, by its index.
    Next(u16),
    /// A session of this name exists, and its owner may be back on a new way. At the terminus, if
    /// the ticket is valid: `adopt_anew`. At a gateway, ask the session whether it [is
    /// superseded](crate::Session::is_superseded_by); if so, it ends, and its owner is admitted
    /// when it repeats the request.
    Back(SessionId),
    /// No: for this reason, and because of this hop.
    Refused(NackStatus, u16),
}

/// The sessions of one end or gateway.
#[derive(Debug)]
pub struct Directory {
    sessions: BTreeSet<SessionId>,
    sessions_max: usize,
    allowed: Vec<Allowed>,
    ticketer: Ticketer,
}

impl Directory {
    /// A directory that admits so many sessions, and goes on to these hops only. `seed`: 32 random
    /// bytes.
    #[must_use]
    pub const fn new(sessions_max: usize, allowed: Vec<Allowed>, seed: [u8; 32]) -> Self {
        Self {
            sessions: BTreeSet::new(),
            sessions_max,
            allowed,
            ticketer: Ticketer::new(seed),
        }
    }

    /// From now on it admits so many sessions and goes on to these hops. Sessions that are here
    /// stay.
    pub fn set_rules(&mut self, sessions_max: usize, allowed: Vec<Allowed>) {
        (self.sessions_max, self.allowed) = (sessions_max, allowed);
    }

    /// Judges a session that is asked for. If it is admitted, [`Self::remove`] it when it is over;
    /// a dry run is not kept.
    pub fn admit(&mut self, now: Time, session: SessionId, open: &SessOpen) -> Admission {
        let known = open
            .ticket
            .and_then(|ticket| self.ticketer.check(now, &ticket));
        let is_last = usize::from(open.hop_index) + 1 == open.hops.len();
        if self.sessions.contains(&session) {
            let may_be_back = match is_last {
                true => known == Some(session),
                false => open.ticket.is_some(),
            };
            return if may_be_back && !open.dry_run {
                Admission::Back(session)
            } else {
                Admission::Refused(NackStatus::Loop, open.hop_index)
            };
        }
        if is_last && open.ticket.is_some() {
            return Admission::Refused(NackStatus::UnknownSession, open.hop_index);
        }
        let admission = if is_last {
            Admission::Terminus
        } else {
            self.next_hop(&open.hops, open.hop_index)
        };
        if matches!(admission, Admission::Refused(..)) {
            return admission;
        }
        if self.sessions.len() >= self.sessions_max {
            return Admission::Refused(NackStatus::Busy, open.hop_index);
        }
        if !open.dry_run {
            self.sessions.insert(session);
        }
        admission
    }

    /// The hop after `index`, or after that if it may be left out and is not allowed or, on a
    /// further call, was not reached.
    #[must_use]
    pub fn next_hop(&self, hops: &[Hop], index: u16) -> Admission {
        let next = index.saturating_add(1);
        match hops.get(usize::from(next)) {
            None => Admission::Refused(NackStatus::NoRoute, index),
            Some(hop) if self.allowed.iter().any(|allowed| allowed.covers(hop)) => {
                Admission::Next(next)
            }
            Some(hop) if hop.flags.optional && !hop.flags.last => self.next_hop(hops, next),
            Some(_) => Admission::Refused(NackStatus::Forbidden, next),
        }
    }

    /// Removes a session that is over.
    pub fn remove(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Issues a ticket for a session that ends here.
    #[must_use]
    pub fn ticket(&self, session: SessionId, expires: Time) -> [u8; TICKET_LEN] {
        self.ticketer.issue(session, expires)
    }

    /// The session that a request to resume is for, if it ends here. A gateway makes no tickets: it
    /// asks the session of the request's name whether it [`holds`](crate::Session::holds) this one.
    #[must_use]
    pub fn resumes(&self, now: Time, ticket: &[u8; TICKET_LEN]) -> Option<SessionId> {
        let session = self.ticketer.check(now, ticket)?;
        self.sessions.contains(&session).then_some(session)
    }

    /// Sessions that are here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether it has no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}
