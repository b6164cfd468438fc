//! What is known of the way to a peer: which of this machine's addresses it asked, and whether the
//! host was asked how long packets may be.

use std::cell::Cell;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, SocketAddr};

use haul_iwarp::{SECOND_NS, Time};

/// Peers that are remembered. A later one takes the place of one with the same hash: then the
/// route's own choice is asked again.
const PLACES: usize = 4_096;
/// How long the host's answer is good; its own memory of paths lasts as long.
const ASKED_NS: u64 = 600 * SECOND_NS;

/// Headers of IP and UDP.
const HEADERS_V4: u32 = 28;
const HEADERS_V6: u32 = 48;
/// Bytes of an IP packet where nothing else is known: Ethernet's.
pub(super) const PATH_MTU: u16 = 1_500;

/// See the module. Without memory until something is noted.
#[derive(Debug, Default)]
pub(super) struct Routes {
    places: Vec<Option<Route>>,
    asked: Vec<Option<(IpAddr, Time)>>,
    keys: RandomState,
    /// The peer that was looked up last, as long as nothing was noted since: in a train of
    /// datagrams that is all of them but the first.
    recent: Cell<Option<(SocketAddr, Option<SocketAddr>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    peer: SocketAddr,
    source: SocketAddr,
}

impl Routes {
    fn place(&self, key: impl Hash) -> usize {
        let mask = PLACES as u64 - 1;
        usize::try_from(self.keys.hash_one(key) & mask).unwrap_or(0)
    }

    /// Whether this was asked before, not long ago.
    pub(super) fn is_asked(&mut self, now: Time, host: IpAddr) -> bool {
        if self.asked.is_empty() {
            self.asked.resize(PLACES, None);
        }
        let place = self.place(host);
        match self.asked[place] {
            Some((known, at)) if known == host && now < at.after(ASKED_NS) => true,
            _ => {
                self.asked[place] = Some((host, now));
                false
            }
        }
    }

    /// `peer` has sent to `source`, which is one of this machine's addresses: what is sent to it
    /// comes from there.
    pub(super) fn note(&mut self, peer: SocketAddr, source: SocketAddr) {
        if self.places.is_empty() {
            self.places.resize(PLACES, None);
        }
        let place = self.place(peer);
        self.places[place] = Some(Route { peer, source });
        self.recent.set(None);
    }

    /// Which of this machine's addresses `peer` has sent to, if that is known.
    pub(super) fn source(&self, peer: &SocketAddr) -> Option<SocketAddr> {
        if let Some((recent, source)) = self.recent.get()
            && recent == *peer
        {
            return source;
        }
        let route = self.places.get(self.place(peer)).copied().flatten();
        let source = route.filter(|route| route.peer == *peer);
        let source = source.map(|route| route.source);
        self.recent.set(Some((*peer, source)));
        source
    }
}

/// Bytes of the headers of IP and UDP.
pub(super) fn headers(local: SocketAddr) -> u32 {
    if local.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_for_once_in_ten_minutes() {
        let at = |seconds: u64| Time::default().after(seconds * SECOND_NS);
        let host = |last| IpAddr::from([192, 0, 2, last]);
        let mut routes = Routes::default();
        assert!(!routes.is_asked(at(0), host(1)));
        assert!(!routes.is_asked(at(0), host(2)));
        assert!(routes.is_asked(at(599), host(1)));
        assert!(!routes.is_asked(at(600), host(1)));
        assert!(routes.is_asked(at(600), host(1)));
    }

    #[test]
    fn a_peer_is_answered_from_the_address_it_asked_last() {
        let peer = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let own = |last| SocketAddr::from(([198, 51, 100, last], 0));
        let mut routes = Routes::default();
        assert_eq!(routes.source(&peer(1)), None);
        routes.note(peer(1), own(1));
        assert_eq!(routes.source(&peer(1)), Some(own(1)));
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
