//! Path MTU discovery without ICMP: sends probes to a queue pair of the host (RFC 8899;
//! [`haul_cc::path_mtu`]).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use haul_cc::path_mtu::{BASE, PathMtu};
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};

use super::sources::Keyed;
use super::wire::{ANY_QPN, Probe};
use crate::address::{Destination, Source};
use crate::time::Time;

/// Hosts that are remembered. Datagrams to others are sized by ICMP alone.
const HOSTS: usize = 1_024;
/// Hosts that are probed at once.
const ACTIVE: usize = 64;
/// How long an answer may take while no round trip was measured.
const ANSWER_NS: u64 = 300 * MILLISECOND_NS;
/// How long it may take at least: peers answer when they are scheduled.
const ANSWER_LEAST_NS: u64 = 20 * MILLISECOND_NS;
/// From one check of a path in use to the next. Nothing acknowledges unreliable datagrams, so only
/// probes find that a path became narrower.
const CHECK_NS: u64 = 5 * SECOND_NS;
/// Bytes of UDP payload that pass everywhere.
pub(super) const SHORT: u32 = 1_200;
/// Headers of IP and UDP.
const HEADERS_V4: u32 = 28;
const HEADERS_V6: u32 = 48;

/// The searches of a queue pair.
#[derive(Debug)]
pub(super) struct Searches {
    hosts: HashMap<IpAddr, Search, Keyed>,
    /// Hosts whose search is in progress.
    active: Vec<IpAddr>,
    /// The host that was used last, and until when there is nothing to do for it.
    recent: Option<(IpAddr, Time)>,
    /// Bytes between the headers of UDP and the datagram, where it is sealed.
    around: u32,
}

#[derive(Debug)]
struct Search {
    /// The queue pair that answers.
    to: Destination,
    path: PathMtu,
    /// Makes probe numbers unpredictable to off-path attackers.
    secret: u32,
    check_at: Time,
    /// When the first round of this search left, until it is answered.
    begun: Option<Time>,
    round_trip_ns: Option<u64>,
    /// A probe of the size in use has been answered. Before, datagrams are as long as any path
    /// carries.
    is_confirmed: bool,
}

/// The result of a search: the longest UDP payload that reaches the host, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) host: IpAddr,
    pub(super) datagram_max: u32,
}

impl Searches {
    /// None yet. `around`: bytes that sealing adds to each datagram.
    pub(super) fn new(key: [u8; 16], around: u32) -> Self {
        Self {
            hosts: HashMap::with_hasher(Keyed(key)),
            active: Vec::new(),
            recent: None,
            around,
        }
    }

    /// Returns the most bytes of UDP payload to `host`, at most `most`: the base size (RFC 8899
    /// §5.1.2) until probes have shown that longer ones pass.
    pub(super) fn datagram_max(&self, host: IpAddr, most: u32) -> u32 {
        let search = self.hosts.get(&host).filter(|search| search.is_confirmed);
        let size = search.map_or(BASE, |search| search.path.current());
        most.min(size - self.headers(host))
    }

    fn headers(&self, host: IpAddr) -> u32 {
        let headers = if host.to_canonical().is_ipv4() {
            HEADERS_V4
        } else {
            HEADERS_V6
        };
        headers + self.around
    }

    /// Call before sending to `to` with up to `octets` bytes of UDP payload, or `known` where ICMP
    /// reported a limit: checks from time to time that such datagrams arrive.
    pub(super) fn handle_use(&mut self, now: Time, to: Destination, octets: u32, known: u32) {
        let host = to.addr.ip();
        let rests = |(recent, until)| recent == host && now < until;
        let headers = self.headers(host);
        let size = octets + headers;
        let is_group = to.qpn == ANY_QPN;
        if size <= BASE || is_group || self.recent.is_some_and(rests) {
            return;
        }
        if !self.hosts.contains_key(&host) {
            if self.hosts.len() >= HOSTS {
                let active = &self.active;
                self.hosts
                    .retain(|host, search| search.check_at > now || active.contains(host));
            }
            if self.hosts.len() >= HOSTS {
                return;
            }
            let mut hasher = self.hosts.hasher().build_hasher();
            hasher.write_u64(now.as_ns());
            hasher.write_u32(to.qpn);
            let mut path = PathMtu::stated(size);
            path.handle_too_big(now, Some(known + headers));
            let search = Search {
                to,
                path,
                secret: u32::try_from(hasher.finish() >> 32).unwrap_or(0),
                check_at: now,
                begun: None,
                round_trip_ns: None,
                is_confirmed: false,
            };
            self.hosts.insert(host, search);
        }
        let is_full = self.active.len() >= ACTIVE;
        let Some(search) = self.hosts.get_mut(&host) else {
            return;
        };
        if now >= search.check_at && !is_full && !search.path.is_searching() {
            search.to = to;
            search.check_at = now.after(CHECK_NS);
            if search.path.due().is_some_and(|due| due <= now) {
                search.path.handle_time(now);
            } else {
                search.path.suspect(now);
            }
            if search.path.is_searching() {
                search.begun = None;
                self.active.push(host);
            }
        }
        self.recent = Some((host, search.check_at));
    }

    /// Takes the answer to a probe. None: it is not one of these.
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        from: &Source,
        probe: Probe,
    ) -> Option<Option<Found>> {
        let host = from.addr.ip();
        let headers = self.headers(host);
        let search = self.hosts.get_mut(&host)?;
        let number = probe.token ^ search.secret;
        let is_ours = number & 0xffff == probe.size.checked_add(headers)?;
        if search.to != from.destination() || !is_ours {
            return None;
        }
        let was_searching = search.path.is_searching();
        if let Some(begun) = search.begun.take() {
            search.round_trip_ns = Some(now.since(begun));
        }
        let mut is_news = search.path.handle_answer(now, number);
        if was_searching && !search.path.is_searching() {
            is_news |= !std::mem::replace(&mut search.is_confirmed, true);
            self.active.retain(|active| *active != host);
        }
        Some(is_news.then(|| self.found(host)).flatten())
    }

    /// The network reported that the path to `host` carries no more.
    pub(super) fn handle_too_big(&mut self, now: Time, host: IpAddr, octets: u32) {
        let size = octets + self.headers(host);
        if let Some(search) = self.hosts.get_mut(&host)
            && search.path.handle_too_big(now, Some(size))
        {
            // The reported limit is verified when the path is next used.
            search.check_at = now;
            self.recent = None;
            self.active.retain(|active| *active != host);
        }
    }

    /// Datagrams to `to` seem to get lost for their length: checks the path now.
    pub(super) fn suspect(&mut self, now: Time, to: Destination, octets: u32, known: u32) {
        self.recent = None;
        if let Some(search) = self.hosts.get_mut(&to.addr.ip()) {
            search.check_at = now;
        }
        self.handle_use(now, to, octets, known);
    }

    /// Runs a due timer; call again as long as it returns an event.
    pub(super) fn handle_time(&mut self, now: Time) -> Option<Found> {
        let mut fallen = None;
        for host in &self.active {
            if let Some(search) = self.hosts.get_mut(host)
                && search.path.is_searching()
                && search.path.due().is_some_and(|due| due <= now)
                && search.path.handle_time(now)
            {
                search.is_confirmed = true;
                fallen = Some(*host);
                break;
            }
        }
        let hosts = &self.hosts;
        self.active
            .retain(|host| hosts.get(host).is_some_and(|s| s.path.is_searching()));
        self.found(fallen?)
    }

    /// The next probe to send: destination and content.
    pub(super) fn poll(&mut self, now: Time) -> Option<(Destination, Probe)> {
        for at in 0..self.active.len() {
            let host = self.active[at];
            let headers = self.headers(host);
            let Some(search) = self.hosts.get_mut(&host) else {
                continue;
            };
            let timeout_ns = search
                .round_trip_ns
                .map_or(ANSWER_NS, |ns| (ns + ns / 4).max(ANSWER_LEAST_NS));
            if let Some((number, size)) = search.path.poll_probe(now, timeout_ns) {
                if search.round_trip_ns.is_none() {
                    search.begun.get_or_insert(now);
                }
                let probe = Probe {
                    token: number ^ search.secret,
                    size: size - headers,
                };
                return Some((search.to, probe));
            }
        }
        None
    }

    /// When [`Searches::handle_time`] or [`Searches::poll`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        let searches = self.active.iter().filter_map(|host| self.hosts.get(host));
        searches.filter_map(|search| search.path.due()).min()
    }

    fn found(&self, host: IpAddr) -> Option<Found> {
        let search = self.hosts.get(&host)?;
        Some(Found {
            host,
            datagram_max: search.path.current() - self.headers(host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::default().after(ms * MILLISECOND_NS)
    }

    fn peer() -> Source {
        Source {
            addr: ([192, 0, 2, 1], 4_791).into(),
            qpn: 7,
            epoch: 9,
        }
    }

    /// Uses the path from `from` to `until`, milliseconds, answers probes of up to `mtu` bytes
    /// after 40 ms, and returns the last size found and the number of probes sent.
    fn run(searches: &mut Searches, from: u64, until: u64, mtu: u32) -> (Option<Found>, u32) {
        let (mut found, mut sent) = (None, 0);
        let mut answers = std::collections::VecDeque::new();
        for ms in from..until {
            searches.handle_use(at(ms), peer().destination(), 1_472, 1_472);
            while let Some(fallen) = searches.handle_time(at(ms)) {
                found = Some(fallen);
            }
            while let Some((to, probe)) = searches.poll(at(ms)) {
                assert_eq!(to, peer().destination());
                sent += 1;
                if probe.size + HEADERS_V4 <= mtu {
                    answers.push_back((ms + 40, probe));
                }
            }
            while answers.front().is_some_and(|(due, _)| *due <= ms) {
                let (_, probe) = answers.pop_front().unwrap();
                if let Some(Some(risen)) = searches.handle_answer(at(ms), &peer(), probe) {
                    found = Some(risen);
                }
            }
        }
        (found, sent)
    }

    #[test]
    fn a_wide_path_costs_two_probes_in_five_seconds() {
        let mut searches = Searches::new([1; 16], 0);
        let host = peer().addr.ip();
        assert_eq!(
            searches.datagram_max(host, 1_472),
            1_252,
            "nothing is known"
        );
        let all = Some(Found {
            host,
            datagram_max: 1_472,
        });
        assert_eq!(run(&mut searches, 0, 4_999, 1_500), (all, 2));
        assert_eq!(searches.datagram_max(host, 1_472), 1_472);
        assert_eq!(run(&mut searches, 5_000, 9_999, 1_500), (None, 2));
        assert_eq!(searches.deadline(), None);
    }

    #[test]
    fn what_passes_is_found_from_the_start_and_where_a_path_narrows_later() {
        let mut searches = Searches::new([1; 16], 0);
        let is = |datagram_max| {
            Some(Found {
                host: peer().addr.ip(),
                datagram_max,
            })
        };
        assert_eq!(run(&mut searches, 0, 1_000, 1_400).0, is(1_400 - 28));
        assert_eq!(searches.datagram_max(peer().addr.ip(), 1_472), 1_372);
        // The check finds nothing new.
        assert_eq!(run(&mut searches, 5_001, 9_000, 1_400).0, None);
        assert_eq!(run(&mut searches, 10_002, 15_000, 1_300).0, is(1_300 - 28));
        // Once in ten minutes a longer one is tried.
        assert_eq!(run(&mut searches, 640_000, 660_000, 1_500).0, is(1_472));
    }

    #[test]
    fn sealed_datagrams_are_shorter_by_what_is_around_them() {
        let mut searches = Searches::new([1; 16], 36);
        let host = peer().addr.ip();
        assert_eq!(searches.datagram_max(host, 1_436), 1_280 - 28 - 36);
        searches.handle_use(at(0), peer().destination(), 1_436, 1_436);
        let sizes: Vec<u32> = std::iter::from_fn(|| searches.poll(at(0)))
            .map(|(_, probe)| probe.size + 28 + 36)
            .collect();
        assert_eq!(sizes, [1_500, 1_280]);
    }

    #[test]
    fn a_group_is_not_probed() {
        let mut searches = Searches::new([1; 16], 0);
        let group = Destination {
            addr: ([255, 255, 255, 255], 4_791).into(),
            qpn: ANY_QPN,
        };
        searches.handle_use(at(0), group, 1_472, 1_472);
        assert_eq!(searches.poll(at(0)), None);
    }

    #[test]
    fn a_silent_host_and_a_forged_answer_change_nothing() {
        let mut searches = Searches::new([1; 16], 0);
        let (found, sent) = run(&mut searches, 0, 4_000, 0);
        assert_eq!((found, sent), (None, 6));
        assert_eq!(searches.datagram_max(peer().addr.ip(), 1_472), 1_252);
        searches.handle_use(at(5_000), peer().destination(), 1_472, 1_472);
        let (_, probe) = searches.poll(at(5_000)).expect("a check");
        let forged = Probe {
            token: probe.token ^ 1 << 20,
            ..probe
        };
        let other = Source { qpn: 8, ..peer() };
        assert_eq!(searches.handle_answer(at(5_001), &other, probe), None);
        searches.handle_answer(at(5_001), &peer(), forged);
        assert!(searches.deadline().is_some(), "the search goes on");
        searches.handle_answer(at(5_001), &peer(), probe);
        assert_eq!(searches.deadline(), None);
    }
}
