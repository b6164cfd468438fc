//! Sessions by name, route, cookie and queue pair.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use haul_xsp::SessionId;

use super::abandoned::Abandoned;
use super::handle::{SessionCommand, SessionHandle};
use super::peers::PendingPeers;
use super::unauthenticated::Unauthenticated;
use crate::channel::Accepted;
use crate::config::{ChannelKind, Route};
use crate::status::Status;

/// Most retired sessions of a route.
const RETIRED_MAX: usize = 2;

/// Maps that change as sessions open and end.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    /// Sessions by identifier.
    pub(crate) sessions: HashMap<SessionId, SessionHandle>,
    /// Sessions that this gateway opened, by route. A reload may renumber routes, so the key is the
    /// route itself.
    pub(crate) openers: Vec<(Route, SessionHandle)>,
    /// Retired sessions: they get no new connections, and end.
    retired: Vec<(Route, SessionHandle)>,
    /// The session that expects a data connection with this cookie.
    pub(crate) cookies: HashMap<[u8; 16], SessionHandle>,
    /// The session that owns an accepted queue pair.
    qps: HashMap<(ChannelKind, u32), SessionHandle>,
    /// Events of accepted queue pairs that are not yet in `qps`.
    early: HashMap<(ChannelKind, u32), Vec<Accepted>>,
    /// The status of each session, by a number of its own.
    pub(crate) statuses: BTreeMap<u64, Arc<Mutex<Status>>>,
    pub(crate) next_status: u64,
    /// Control connections that have not asked for a session.
    pub(crate) pending_peers: PendingPeers,
    /// Sessions without their owner.
    pub(crate) abandoned: Abandoned,
    /// Sessions whose owner has not authenticated.
    pub(crate) unauthenticated: Unauthenticated,
}

impl Registers {
    /// Returns the session of a route.
    pub(crate) fn opener(&self, route: &Route) -> Option<&SessionHandle> {
        let found = self.openers.iter().find(|(known, _)| known == route);
        found.map(|(_, opener)| opener)
    }

    /// Whether a peer's notice may retire this session. The number of retired sessions of a route
    /// is limited, because they hold memory.
    pub(crate) fn may_retire(&self, opener: &SessionHandle) -> bool {
        let own = self.openers.iter().find(|(_, other)| other.is(opener));
        let is_own = |route: &Route| own.is_some_and(|(own, _)| own == route);
        let ending = self.retired.iter().filter(|(route, _)| is_own(route));
        ending.count() < RETIRED_MAX
    }

    /// Retires a session.
    pub(crate) fn retire(&mut self, opener: &SessionHandle) {
        let own = self.openers.iter().position(|(_, other)| other.is(opener));
        if let Some(own) = own {
            let retired = self.openers.swap_remove(own);
            self.retired.push(retired);
        }
    }

    /// Registers the owner of a queue pair, and delivers earlier events to it.
    pub(crate) fn adopt_qp(&mut self, kind: ChannelKind, qp_num: u32, owner: &SessionHandle) {
        for news in self.early.remove(&(kind, qp_num)).unwrap_or_default() {
            // The owner is the caller.
            let _ = owner.send(SessionCommand::Accepted { kind, qp_num, news });
        }
        self.qps.insert((kind, qp_num), owner.clone());
    }

    /// Delivers an event of a queue pair to its owner.
    pub(crate) fn notify_qp(&mut self, kind: ChannelKind, qp_num: u32, news: Accepted) {
        match self.qps.get(&(kind, qp_num)) {
            Some(owner) => drop(owner.send(SessionCommand::Accepted { kind, qp_num, news })),
            None if matches!(news, Accepted::Up) => {
                self.early.entry((kind, qp_num)).or_default().push(news)
            }
            // The queue pair is forgotten, or its `Up` still waits for an owner and this event
            // waits behind it.
            None => {
                if let Some(early) = self.early.get_mut(&(kind, qp_num)) {
                    early.push(news);
                }
            }
        }
    }

    /// Forgets a queue pair.
    pub(crate) fn forget_qp(&mut self, kind: ChannelKind, qp_num: u32) {
        self.qps.remove(&(kind, qp_num));
        self.early.remove(&(kind, qp_num));
    }

    /// Forgets a session's thread.
    pub(crate) fn forget(&mut self, handle: &SessionHandle) {
        self.openers.retain(|(_, opener)| !opener.is(handle));
        self.retired.retain(|(_, opener)| !opener.is(handle));
        self.abandoned.remove(handle);
        self.unauthenticated.remove(handle);
        self.cookies.retain(|_, owner| !owner.is(handle));
        self.qps.retain(|_, owner| !owner.is(handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn peers_cannot_have_more_sessions_of_a_route_end_than_so_many() {
        let text = "name = 'g'\n[[route]]\nto = ['a']\nvia = ['b:1']\n[[route]]\nto = ['*']\nvia = ['c:1']\n";
        let config = Config::parse(text).unwrap();
        let mut registers = Registers::default();
        let open = |registers: &mut Registers, route: usize| {
            let opener = SessionHandle::detached();
            let route = config.routes[route].clone();
            registers.openers.push((route, opener.clone()));
            opener
        };
        let mut ending = Vec::new();
        for _ in 0..RETIRED_MAX {
            let opener = open(&mut registers, 0);
            assert!(registers.may_retire(&opener));
            registers.retire(&opener);
            ending.push(opener);
        }
        let (last, other) = (open(&mut registers, 0), open(&mut registers, 1));
        assert!(!registers.may_retire(&last) && registers.may_retire(&other));
        assert!(registers.opener(&config.routes[0]).unwrap().is(&last));
        // One place is free once a session has ended.
        registers.forget(&ending[0]);
        assert!(registers.may_retire(&last));
        // A session that its peer has ended gets no connections, whatever the limit.
        registers.retire(&last);
        assert!(registers.opener(&config.routes[0]).is_none());
    }
}
