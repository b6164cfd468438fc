//! How many handshakes a listener completes: a budget for each source, and one for all of them.
//!
//! A handshake with a good cookie costs its client one packet, and this end a socket, a
//! connection's state and about a tenth of a millisecond. Without a limit, 1 MB/s of handshakes
//! takes the processor from connections that are open.

use std::collections::HashMap;
use std::net::IpAddr;

use haul_cc::Time;
use haul_cc::time::SECOND_NS;
use haul_io::address::source;

/// Handshakes a second in all: about a twentieth of a core.
const RATE: u64 = 512;
/// Handshakes at once, after a rest.
const BURST: u64 = 512;
/// Of these a source (an IPv4 address, an IPv6 /64) has at most so many.
const SOURCE_RATE: u64 = RATE / 2;
const SOURCE_BURST: u64 = BURST / 2;
/// Sources are swept when there are so many. Those that a sweep leaves have spent something: no
/// more than `BURST + RATE` handshakes of the last second.
const SOURCES_MAX: usize = 2_048;

/// What has been spent, and what may be.
#[derive(Debug, Default)]
pub(super) struct Budget {
    all: Spent,
    /// Only those that have spent more than the time since has given back, after a sweep.
    sources: HashMap<IpAddr, Spent>,
}

/// A bucket, as the time at which it is full again (the generic cell rate algorithm, ITU-T I.371).
#[derive(Debug, Clone, Copy, Default)]
struct Spent(Time);

impl Spent {
    /// What has been spent after one more; none where that is too much.
    fn one_more(self, now: Time, rate: u64, burst: u64) -> Option<Self> {
        let each_ns = SECOND_NS / rate;
        let full_at = self.0.max(now).after(each_ns);
        (full_at.since(now) <= burst * each_ns).then_some(Self(full_at))
    }
}

impl Budget {
    /// Spends one handshake of a client at `from`; whether there was one left.
    pub(super) fn take(&mut self, now: Time, from: IpAddr) -> bool {
        let from = source(from);
        let spent = self.sources.get(&from).copied().unwrap_or_default();
        let (Some(spent), Some(all)) = (
            spent.one_more(now, SOURCE_RATE, SOURCE_BURST),
            self.all.one_more(now, RATE, BURST),
        ) else {
            return false;
        };
        self.all = all;
        if self.sources.len() == SOURCES_MAX {
            self.sources.retain(|_, spent| spent.0 > now);
        }
        self.sources.insert(from, spent);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn v4(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    /// How many of these clients are admitted that ask at equal distances within a second.
    fn admitted(budget: &mut Budget, second: u64, clients: impl Iterator<Item = IpAddr>) -> u64 {
        let clients: Vec<IpAddr> = clients.collect();
        let start = Time::from_ns(second * SECOND_NS);
        let step_ns = SECOND_NS / clients.len() as u64;
        let mut now = start;
        let mut count = 0;
        for client in clients {
            count += u64::from(budget.take(now, client));
            now = now.after(step_ns);
        }
        count
    }

    #[test]
    fn a_source_has_its_budget_whatever_its_ports_and_addresses_and_others_have_theirs() {
        let mut budget = Budget::default();
        let flood = (0..15_000).map(|_| v4(1));
        let first = admitted(&mut budget, 10, flood.clone());
        assert!((SOURCE_BURST + SOURCE_RATE - 2..=SOURCE_BURST + SOURCE_RATE).contains(&first));
        let second = admitted(&mut budget, 11, flood);
        assert!(
            (SOURCE_RATE - 2..=SOURCE_RATE + 2).contains(&second),
            "{second}"
        );
        // Another source in the same second.
        assert!(budget.take(Time::from_ns(12 * SECOND_NS), v4(2)));
        let of_a_network = (0..15_000_u16).map(|at| Ipv6Addr::new(1, 2, 3, 4, 0, 0, 0, at).into());
        let network = admitted(&mut Budget::default(), 10, of_a_network);
        assert_eq!(network, first);
    }

    #[test]
    fn all_sources_together_have_a_budget_and_little_memory() {
        let mut budget = Budget::default();
        let mut number = 0;
        for second in 10..20 {
            let flood = (0..15_000).map(|_| {
                number += 1;
                v4(number)
            });
            let count = admitted(&mut budget, second, flood);
            let most = RATE + if second == 10 { BURST } else { 1 };
            assert!((most - 2..=most + 1).contains(&count), "{count}");
            assert!(budget.sources.len() <= SOURCES_MAX);
        }
    }

    #[test]
    fn who_rests_has_a_burst_again() {
        let mut budget = Budget::default();
        let at = |second| Time::from_ns(second * SECOND_NS);
        let mut burst = |second| -> u64 {
            (0..1_000)
                .map(|_| u64::from(budget.take(at(second), v4(1))))
                .sum()
        };
        assert_eq!(burst(10), SOURCE_BURST);
        assert_eq!(burst(10), 0);
        assert_eq!(burst(11), SOURCE_RATE);
        assert_eq!(burst(13), SOURCE_BURST);
    }
}
