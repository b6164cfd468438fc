//! Penalties of sources whose logins fail. A source may be many hosts behind one address, so that
//! a penalty keeps out no client with a key that is admitted: the source's handshakes have a few
//! places of their own, and its failed logins no lines of their own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// What one failed login costs.
const STEP: Duration = Duration::from_secs(5);
/// A source has a penalty while its sum is above this: people mistype.
const FREE: Duration = Duration::from_secs(30);
/// Maximum sum.
const MOST: Duration = Duration::from_secs(600);
/// Maximum number of sources that are remembered; beyond it the one that ends first is forgotten.
const SOURCES_MAX: usize = 4096;

/// A host of IPv4, a network of IPv6 (/64), which one host has to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Source([u8; 16]);

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => {
                let mut bytes = ip.octets();
                bytes[8..].fill(0);
                Self(bytes)
            }
        }
    }
}

/// The penalties of a server's sources.
#[derive(Debug, Default)]
pub struct Penalties(Mutex<HashMap<Source, Instant>>);

impl Penalties {
    /// Notes a failed login.
    pub fn add(&self, ip: IpAddr, now: Instant) {
        let mut sources = lock(&self.0);
        let source = Source::from(ip);
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source) {
            sources.retain(|_, end| *end > now);
            let first = sources.iter().min_by_key(|(_, end)| **end);
            if let Some(first) = first.map(|(source, _)| *source)
                && sources.len() >= SOURCES_MAX
            {
                sources.remove(&first);
            }
        }
        let end = sources.entry(source).or_insert(now);
        *end = (*end).max(now).min(now + MOST - STEP) + STEP;
    }

    /// Returns how long a source still has a penalty.
    #[must_use]
    pub fn left(&self, ip: IpAddr, now: Instant) -> Option<Duration> {
        let sources = lock(&self.0);
        let left = sources.get(&ip.into())?.checked_duration_since(now)?;
        left.checked_sub(FREE).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_fails_again_and_again_has_a_penalty_for_a_while() {
        let penalties = Penalties::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let (bad, good) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for _ in 0..6 {
            penalties.add(bad, begin);
            assert_eq!(penalties.left(bad, begin), None);
        }
        penalties.add(bad, begin);
        assert_eq!(penalties.left(bad, begin), Some(STEP));
        assert_eq!(penalties.left(good, begin), None);
        assert_eq!(penalties.left(bad, at(5)), None);
        for _ in 0..1000 {
            penalties.add(bad, begin);
        }
        assert_eq!(penalties.left(bad, begin), Some(MOST - FREE));
        assert_eq!(penalties.left(bad, at(600)), None);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_their_number_is_bounded() {
        let penalties = Penalties::default();
        let now = Instant::now();
        for host in 0..10u16 {
            penalties.add([0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into(), now);
        }
        assert!(
            penalties
                .left([0x2001, 0xdb8, 0, 0, 9, 9, 9, 9].into(), now)
                .is_some()
        );
        assert!(
            penalties
                .left([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1].into(), now)
                .is_none()
        );
        for network in 0..10_000u16 {
            penalties.add([0x2001, 0xdb8, 1, network, 0, 0, 0, 1].into(), now);
        }
        assert!(lock(&penalties.0).len() <= SOURCES_MAX);
        // The longest penalty stays.
        assert!(
            penalties
                .left([0x2001, 0xdb8, 0, 0, 9, 9, 9, 9].into(), now)
                .is_some()
        );
    }
}
