//! Which session has which name, route, cookie and queue pair.

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

/// Sessions of a route that get no more connections and are not over.
const RETIRED_MAX: usize = 2;

/// Maps that change as sessions come and go.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    /// Sessions by name.
    pub(crate) sessions: HashMap<SessionId, SessionHandle>,
    /// Sessions that this gateway has opened, by their route: after a reload the same one may have
    /// another number.
    pub(crate) openers: Vec<(Route, SessionHandle)>,
    /// Such sessions that get no more connections, for they are to end.
    retired: Vec<(Route, SessionHandle)>,
    /// Who expects a data connection that begins with this.
    pub(crate) cookies: HashMap<[u8; 16], SessionHandle>,
    /// Whose accepted queue pairs are which.
    qps: HashMap<(ChannelKind, u32), SessionHandle>,
    /// News of queue pairs that are accepted and not yet in `qps`.
    early: HashMap<(ChannelKind, u32), Vec<Accepted>>,
    /// What there is to show, by a number of its own.
    pub(crate) statuses: BTreeMap<u64, Arc<Mutex<Status>>>,
    pub(crate) next_status: u64,
    /// Threads that have a control connection and no session yet.
    pub(crate) pending_peers: PendingPeers,
    /// Sessions without their owner.
    pub(crate) abandoned: Abandoned,
    /// Sessions whose owner has not shown who it is.
    pub(crate) unauthenticated: Unauthenticated,
}

impl Registers {
    /// The session of a route.
    pub(crate) fn opener(&self, route: &Route) -> Option<&SessionHandle> {
        let found = self.openers.iter().find(|(known, _)| known == route);
        found.map(|(_, opener)| opener)
    }

    /// Whether an opener may get no more connections because a peer says so: of a route there are
    /// not more than so many that end, and take memory meanwhile.
    pub(crate) fn may_retire(&self, opener: &SessionHandle) -> bool {
        let own = self.openers.iter().find(|(_, other)| other.is(opener));
        let is_own = |route: &Route| own.is_some_and(|(own, _)| own == route);
        let ending = self.retired.iter().filter(|(route, _)| is_own(route));
        ending.count() < RETIRED_MAX
    }

    /// No more connections for this opener.
    pub(crate) fn retire(&mut self, opener: &SessionHandle) {
        let own = self.openers.iter().position(|(_, other)| other.is(opener));
        if let Some(own) = own {
            let retired = self.openers.swap_remove(own);
            self.retired.push(retired);
        }
    }

    /// From now on news of a queue pair go to `owner`, those that have come already first.
    pub(crate) fn adopt_qp(&mut self, kind: ChannelKind, qp_num: u32, owner: &SessionHandle) {
        for news in self.early.remove(&(kind, qp_num)).unwrap_or_default() {
            // Its owner is the caller.
            let _ = owner.send(SessionCommand::Accepted { kind, qp_num, news });
        }
        self.qps.insert((kind, qp_num), owner.clone());
    }

    /// News of a queue pair, for its owner.
    pub(crate) fn notify_qp(&mut self, kind: ChannelKind, qp_num: u32, news: Accepted) {
        match self.qps.get(&(kind, qp_num)) {
            Some(owner) => drop(owner.send(SessionCommand::Accepted { kind, qp_num, news })),
            None if matches!(news, Accepted::Up) => {
                self.early.entry((kind, qp_num)).or_default().push(news)
            }
            // Of one that is forgotten already; or its `Up` waits for its owner, and so does this.
            None => {
                if let Some(early) = self.early.get_mut(&(kind, qp_num)) {
                    early.push(news);
                }
            }
        }
    }

    /// Nobody wants news of a queue pair any more.
    pub(crate) fn forget_qp(&mut self, kind: ChannelKind, qp_num: u32) {
        self.qps.remove(&(kind, qp_num));
        self.early.remove(&(kind, qp_num));
    }

    /// Nobody is to find this thread any more.
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
        // When one of them is over there is room for another.
        registers.forget(&ending[0]);
        assert!(registers.may_retire(&last));
        // One whose peer has ended it gets nothing more, however many there are.
        registers.retire(&last);
        assert!(registers.opener(&config.routes[0]).is_none());
    }
}
