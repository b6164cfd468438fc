//! Paths with a smaller MTU: the limits per host that the network reported by ICMP.

use std::collections::HashMap;
use std::net::IpAddr;

use super::sources::Keyed;
use crate::time::{SECOND_NS, Time};

/// How long it is remembered: then longer ones are tried again (RFC 8201 §4).
const KEPT_NS: u64 = 600 * SECOND_NS;
/// Most hosts remembered. ICMP can be forged, so the table is bounded; reports for further hosts
/// are ignored.
const HOSTS: usize = 1_024;

/// Paths by host; without memory while there are none.
#[derive(Debug)]
pub(super) struct Paths {
    hosts: HashMap<IpAddr, Path, Keyed>,
}

#[derive(Debug, Clone, Copy)]
struct Path {
    /// Bytes of UDP payload.
    datagram_max: u32,
    until: Time,
}

impl Paths {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self {
            hosts: HashMap::with_hasher(Keyed(key)),
        }
    }

    /// Datagrams to `host` may have this many bytes of payload.
    pub(super) fn note(&mut self, now: Time, host: IpAddr, datagram_max: u32) {
        if self.hosts.len() >= HOSTS {
            self.hosts.retain(|_, path| path.until > now);
        }
        if self.hosts.len() < HOSTS || self.hosts.contains_key(&host) {
            let until = now.after(KEPT_NS);
            self.hosts.insert(
                host,
                Path {
                    datagram_max,
                    until,
                },
            );
        }
    }

    /// How long datagrams to `host` may be: no longer than `most`.
    pub(super) fn datagram_max(&self, now: Time, host: IpAddr, most: u32) -> u32 {
        if self.hosts.is_empty() {
            return most;
        }
        let path = self.hosts.get(&host).filter(|path| path.until > now);
        path.map_or(most, |path| most.min(path.datagram_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: usize) -> IpAddr {
        let [.., a, b] = n.to_be_bytes();
        [10, 0, a, b].into()
    }

    #[test]
    fn a_path_is_remembered_for_a_while_and_no_more_than_so_many() {
        let at = |seconds: u64| Time::default().after(seconds * SECOND_NS);
        let mut paths = Paths::new([1; 16]);
        for n in 0..HOSTS + 10 {
            paths.note(at(0), host(n), 1_200);
        }
        let max = |paths: &Paths, now, n| paths.datagram_max(now, host(n), 1_472);
        assert_eq!(max(&paths, at(599), 5), 1_200);
        assert_eq!(max(&paths, at(599), HOSTS), 1_472, "there was no room");
        assert_eq!(max(&paths, at(601), 5), 1_472, "it may be better by now");
        paths.note(at(601), host(HOSTS), 1_300);
        assert_eq!(max(&paths, at(601), HOSTS), 1_300);
        assert_eq!(paths.datagram_max(at(601), host(HOSTS), 600), 600);
    }
}
