//! Control connections that have not asked for a session, and which of them is evicted for a new
//! one.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::net::IpAddr;

use haul_io::address::source;
use haul_xsp::SECOND_NS;

use super::handle::SessionHandle;

/// Most pending peers, including those being evicted.
pub(crate) const PENDING_PEERS_MAX: usize = 64;
/// Most peers being evicted.
const LEAVING_MAX: usize = 16;
/// Most peers that stay.
const STAYING_MAX: usize = PENDING_PEERS_MAX - LEAVING_MAX;
/// Grace period before eviction, ns: a genuine peer sends at once.
const STAY_NS: u64 = SECOND_NS / 50;

/// How far a pending peer has identified itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It has sent nothing.
    Silent,
    /// It has sent something valid.
    Greeted,
    /// It has authenticated.
    Authenticated,
}

#[derive(Debug)]
struct PendingPeer {
    number: u64,
    handle: SessionHandle,
    from: IpAddr,
    since_ns: u64,
    standing: Standing,
    is_leaving: bool,
}

/// Pending peers. See the module.
#[derive(Debug, Default)]
pub(crate) struct PendingPeers {
    /// Oldest first. At most `STAYING_MAX` that stay, and `LEAVING_MAX` being evicted.
    there: VecDeque<PendingPeer>,
}

impl PendingPeers {
    pub(crate) fn len(&self) -> usize {
        self.there.len()
    }

    /// Adds a control connection, whose thread has this number.
    pub(crate) fn admit(&mut self, number: u64, handle: SessionHandle, from: IpAddr, now_ns: u64) {
        self.there.push_back(PendingPeer {
            number,
            handle,
            from: source(from),
            since_ns: now_ns,
            standing: Standing::Silent,
            is_leaving: false,
        });
    }

    /// Raises the standing of a peer.
    pub(crate) fn raise(&mut self, number: u64, standing: Standing) {
        let peer = self.there.iter_mut().find(|peer| peer.number == number);
        if let Some(peer) = peer {
            peer.standing = peer.standing.max(standing);
        }
    }

    /// The peer has asked for a session, or has left.
    pub(crate) fn remove(&mut self, number: u64) {
        self.there.retain(|peer| peer.number != number);
    }

    /// Whether another peer fits, if need be in place of one that is evicted.
    pub(crate) fn has_room(&self, now_ns: u64) -> bool {
        let staying = self.staying().count();
        let leaving = self.there.len() - staying;
        staying < STAYING_MAX || leaving < LEAVING_MAX && self.next_to_leave(now_ns).is_some()
    }

    /// Chooses the peer to evict for a new one, if the limit is reached. It is unauthenticated, and
    /// from the address with most pending peers. Among those it is the oldest silent one, or else
    /// the oldest.
    pub(crate) fn make_room(&mut self, now_ns: u64) -> Option<SessionHandle> {
        if self.staying().count() < STAYING_MAX {
            return None;
        }
        let number = self.next_to_leave(now_ns)?.number;
        let peer = self.there.iter_mut().find(|peer| peer.number == number)?;
        peer.is_leaving = true;
        Some(peer.handle.clone())
    }

    fn staying(&self) -> impl Iterator<Item = &PendingPeer> {
        self.there.iter().filter(|peer| !peer.is_leaving)
    }

    fn next_to_leave(&self, now_ns: u64) -> Option<&PendingPeer> {
        let unauthenticated = || {
            let staying = self.staying();
            staying.filter(|peer| peer.standing < Standing::Authenticated)
        };
        let neighbours = |peer: &PendingPeer| {
            unauthenticated()
                .filter(|other| other.from == peer.from)
                .count()
        };
        // Among equals, the first is the oldest.
        let next =
            unauthenticated().min_by_key(|peer| (Reverse(neighbours(peer)), peer.standing))?;
        let is_old = now_ns >= next.since_ns.saturating_add(STAY_NS);
        is_old.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Fills all places at 0 ns; the first peer has number 0.
    fn full() -> (PendingPeers, Vec<SessionHandle>) {
        let mut pending_peers = PendingPeers::default();
        let handles: Vec<SessionHandle> = (0..STAYING_MAX)
            .map(|_| SessionHandle::detached())
            .collect();
        for (number, handle) in (0..).zip(&handles) {
            assert!(pending_peers.has_room(0) && pending_peers.make_room(0).is_none());
            pending_peers.admit(number, handle.clone(), HERE, 0);
        }
        (pending_peers, handles)
    }

    #[test]
    fn the_oldest_that_is_silent_makes_room_and_then_the_next() {
        let (mut pending_peers, handles) = full();
        pending_peers.raise(0, Standing::Greeted);
        pending_peers.raise(1, Standing::Authenticated);
        for expected in [2, 3] {
            assert!(pending_peers.has_room(STAY_NS));
            let leaver = pending_peers.make_room(STAY_NS).unwrap();
            assert!(leaver.is(&handles[expected]));
            pending_peers.admit(100 + expected as u64, leaver, HERE, STAY_NS);
        }
    }

    #[test]
    fn a_client_that_has_sent_something_is_evicted_only_if_none_is_silent() {
        let (mut pending_peers, handles) = full();
        for number in 0..STAYING_MAX as u64 {
            pending_peers.raise(number, Standing::Greeted);
        }
        pending_peers.raise(0, Standing::Authenticated);
        let leaver = pending_peers.make_room(STAY_NS).unwrap();
        assert!(leaver.is(&handles[1]));
    }

    #[test]
    fn a_client_of_the_address_with_most_places_is_evicted_even_if_others_have_sent_less() {
        let (mut pending_peers, handles) = full();
        for number in 0..STAYING_MAX as u64 {
            pending_peers.raise(number, Standing::Greeted);
        }
        pending_peers.remove(0);
        let there = "2001:db8::1".parse().unwrap();
        pending_peers.admit(100, handles[0].clone(), there, 0);
        assert!(pending_peers.make_room(STAY_NS).unwrap().is(&handles[1]));
    }

    #[test]
    fn an_authenticated_client_is_never_evicted() {
        let (mut pending_peers, _handles) = full();
        for number in 0..STAYING_MAX as u64 {
            pending_peers.raise(number, Standing::Authenticated);
            // A lower standing does not replace it.
            pending_peers.raise(number, Standing::Greeted);
        }
        assert!(!pending_peers.has_room(u64::MAX));
        assert!(pending_peers.make_room(u64::MAX).is_none());
        pending_peers.remove(7);
        assert!(pending_peers.has_room(STAY_NS));
    }

    #[test]
    fn a_new_client_has_time_to_send_something() {
        let (mut pending_peers, _handles) = full();
        assert!(!pending_peers.has_room(STAY_NS - 1));
        assert!(pending_peers.make_room(STAY_NS - 1).is_none());
        assert!(pending_peers.has_room(STAY_NS));
    }

    #[test]
    fn there_are_never_more_than_the_limit_with_those_that_leave() {
        let (mut pending_peers, handles) = full();
        let mut next = 1_000;
        while pending_peers.has_room(STAY_NS) {
            let leaver = pending_peers.make_room(STAY_NS);
            assert!(leaver.is_some());
            pending_peers.admit(next, handles[0].clone(), HERE, 0);
            next += 1;
        }
        assert_eq!(pending_peers.len(), PENDING_PEERS_MAX);
        // A place is free once a peer has left.
        pending_peers.remove(0);
        assert!(pending_peers.has_room(STAY_NS));
    }
}
