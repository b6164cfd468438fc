//! What is known of the way to a peer: which of this machine's addresses it asked, and how long packets may be.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

/// Peers that are remembered. A later one takes the place of one with the same hash: then the route's own choice is asked
/// again.
const PLACES: usize = 4_096;

/// See the module. Without memory until something is noted.
#[derive(Debug, Default)]
pub(super) struct Routes {
    places: Vec<Option<Route>>,
    keys: RandomState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    peer: SocketAddr,
    source: SocketAddr,
}

impl Routes {
    fn place(&self, peer: &SocketAddr) -> usize {
        let mask = PLACES as u64 - 1;
        usize::try_from(self.keys.hash_one(peer) & mask).unwrap_or(0)
    }

    /// `peer` has sent to `source`, which is one of this machine's addresses: what is sent to it comes from there.
    pub(super) fn note(&mut self, peer: SocketAddr, source: SocketAddr) {
        if self.places.is_empty() {
            self.places.resize(PLACES, None);
        }
        let place = self.place(&peer);
        self.places[place] = Some(Route { peer, source });
    }

    /// Which of this machine's addresses `peer` has sent to, if that is known.
    pub(super) fn source(&self, peer: &SocketAddr) -> Option<SocketAddr> {
        let route = (*self.places.get(self.place(peer))?)?;
        (route.peer == *peer).then_some(route.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_answered_from_the_address_it_asked_last() {
        let peer = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let own = |last| SocketAddr::from(([198, 51, 100, last], 0));
        let mut routes = Routes::default();
        assert_eq!(routes.source(&peer(1)), None);
        routes.note(peer(1), own(1));
        routes.note(peer(2), own(2));
        routes.note(peer(1), own(3));
        assert_eq!(routes.source(&peer(1)), Some(own(3)));
        assert_eq!(routes.source(&peer(3)), None);
        for port in 0..u16::MAX {
            routes.note(peer(port), own(9));
        }
        assert_eq!(routes.places.len(), PLACES);
    }
}
