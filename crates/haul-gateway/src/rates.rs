//! Rate limits of what sessions send to other gateways, and how classes share them.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996) over slabs as they are packed. Among
//! waiting classes, the one that has sent least for its share goes first. An idle class costs the
//! others nothing.

use std::sync::{Arc, Mutex, MutexGuard};

use haul_xsp::bag::Producer;
use haul_xsp::{SECOND_NS, Session, Time};
use serde::Serialize;

use crate::config::{Class, Config};
use crate::sync::lock;

/// How long before its bytes can be sent a slab is packed, ns: no session's thread is later than
/// that.
const AHEAD_NS: u64 = SECOND_NS / 100;
/// How long others wait for a class that was held back, ns.
const PATIENCE_NS: u64 = AHEAD_NS / 4;
/// Smallest slab at a low rate, bytes.
const SLAB_BYTES_MIN: u64 = 16 << 10;

/// The name of the class of everything that is in no other.
pub(crate) const REST: &str = "rest";

/// The rate limits, which all sessions share.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The limit of all classes together.
    link: Bucket,
    /// The first holds what is in no other. Classes that leave the configuration stay, because
    /// sessions know them by number.
    classes: Vec<Entry>,
    /// The tag of the last slab.
    tag: u64,
}

/// A rate limit, and the time until which it is used up.
#[derive(Debug, Default)]
struct Bucket {
    bps: Option<u64>,
    used_until: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// Percent.
    share: u64,
    own: Bucket,
    /// Bytes sent, scaled by its share.
    tag: u64,
    /// It was held back, and others let it go first until then.
    waits_until: u64,
    bytes: u64,
}

/// The number of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassId(usize);

/// Bytes sent by a class, for the page and the metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ClassTotal {
    pub(crate) name: String,
    /// Percent.
    pub(crate) share: u64,
    /// Its rate limit, bits per second.
    pub(crate) most_bps: Option<u64>,
    /// Bytes sent.
    pub(crate) bytes: u64,
    /// Recent rate, bytes per second; computed when it is shown.
    pub(crate) rate: f64,
}

impl Rates {
    pub(crate) fn new(config: &Config) -> Self {
        let rates = Self::default();
        rates.set(config);
        rates
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// Applies a configuration.
    pub(crate) fn set(&self, config: &Config) {
        let mut inner = self.inner();
        inner.link.bps = config.rate.map(|rate| rate.0);
        let left = config.classes.iter().map(|class| u64::from(class.share));
        inner.set(REST, 100_u64.saturating_sub(left.sum()), None);
        for Class { name, share, rate } in &config.classes {
            inner.set(name, u64::from(*share), rate.map(|rate| rate.0));
        }
    }

    /// Returns the class of this name, or the rest.
    pub(crate) fn class(&self, name: Option<&str>) -> ClassId {
        let inner = self.inner();
        let found = inner
            .classes
            .iter()
            .position(|class| Some(class.name.as_str()) == name);
        ClassId(found.unwrap_or(0))
    }

    /// Returns the most bytes of the next slab of this class.
    ///
    /// # Errors
    /// The time at which to ask again.
    pub(crate) fn ask(&self, class: ClassId, now: Time) -> Result<u64, Time> {
        self.inner()
            .ask(class.0, now.as_ns())
            .map_err(Time::from_ns)
    }

    /// Counts the bytes of a slab.
    pub(crate) fn take(&self, class: ClassId, now: Time, bytes: u64) {
        self.inner().take(class.0, now.as_ns(), bytes);
    }

    pub(crate) fn totals(&self) -> Vec<ClassTotal> {
        let inner = self.inner();
        let total = |class: &Entry| ClassTotal {
            name: class.name.clone(),
            share: class.share,
            most_bps: class.own.bps,
            bytes: class.bytes,
            rate: 0.0,
        };
        inner.classes.iter().map(total).collect()
    }
}

impl Inner {
    fn set(&mut self, name: &str, share: u64, bps: Option<u64>) {
        let share = share.max(1);
        match self.classes.iter_mut().find(|class| class.name == name) {
            Some(class) => (class.share, class.own.bps) = (share, bps),
            None => self.classes.push(Entry {
                name: name.to_owned(),
                share,
                own: Bucket { bps, used_until: 0 },
                tag: self.tag,
                waits_until: 0,
                bytes: 0,
            }),
        }
    }

    fn ask(&mut self, class: usize, now: u64) -> Result<u64, u64> {
        let own = &self.classes[class];
        // Other classes do not wait for a class that is held by its own limit.
        if own.own.opens_at() > now {
            return Err(own.own.opens_at());
        }
        let most = self.link.slab_bytes().min(own.own.slab_bytes());
        let again_at = if self.link.opens_at() > now {
            self.link.opens_at()
        } else if self.is_behind_others(class, now) {
            now + PATIENCE_NS
        } else {
            self.classes[class].waits_until = 0;
            return Ok(most);
        };
        self.classes[class].waits_until = again_at + PATIENCE_NS;
        Err(again_at)
    }

    /// Whether another class waits that has sent less.
    fn is_behind_others(&self, class: usize, now: u64) -> bool {
        let own = self.classes[class].tag.max(self.tag);
        let waits = |(index, other): &(usize, &Entry)| *index != class && other.waits_until > now;
        let mut others = self.classes.iter().enumerate().filter(waits);
        others.any(|(_, other)| other.tag.max(self.tag) < own)
    }

    fn take(&mut self, class: usize, now: u64, bytes: u64) {
        self.link.take(now, bytes);
        let own = &mut self.classes[class];
        own.own.take(now, bytes);
        self.tag = own.tag.max(self.tag);
        own.tag = self.tag + bytes * 100 / own.share;
        own.bytes += bytes;
    }
}

impl Bucket {
    fn opens_at(&self) -> u64 {
        self.used_until.saturating_sub(AHEAD_NS)
    }

    /// A slab holds at most what leaves while it is packed ahead, so that others get their turn.
    fn slab_bytes(&self) -> u64 {
        let bytes = |bps: u64| (bps / 8 / (SECOND_NS / AHEAD_NS)).max(SLAB_BYTES_MIN);
        self.bps.map_or(u64::MAX, bytes)
    }

    fn take(&mut self, now: u64, bytes: u64) {
        if let Some(bps) = self.bps {
            let ns = u128::from(bytes) * 8 * u128::from(SECOND_NS) / u128::from(bps.max(1));
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            self.used_until = self.used_until.max(now).saturating_add(ns);
        }
    }
}

/// The class of a session, which limits what it sends.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    pub(crate) rates: Arc<Rates>,
    pub(crate) class: ClassId,
}

impl Meter {
    /// Packs slabs while the class may send, each within `room`.
    pub(crate) fn pack(&self, session: &mut Session, now: Time, room: impl Fn(&Producer) -> u64) {
        let producer = session.producer();
        while producer.is_due(now) && room(producer) > 0 {
            match self.rates.ask(self.class, now) {
                Ok(most) => {
                    let bytes = producer.pack(now, most.min(room(producer)));
                    self.rates.take(self.class, now, bytes);
                }
                Err(until) => return producer.hold(until),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    fn rates(link: Option<u64>, classes: &[(&str, u64, Option<u64>)]) -> Inner {
        let mut inner = Inner::default();
        inner.link.bps = link;
        for (name, share, bps) in classes {
            inner.set(name, *share, *bps);
        }
        inner
    }

    /// Runs sessions that ask again as soon as they may. Each has a class, bytes to pack at a time,
    /// and a rest after each slab, ns. Returns the bytes that each has sent in `span_ns`.
    fn run(rates: &mut Inner, sessions: &[(usize, u64, u64)], span_ns: u64) -> Vec<u64> {
        let mut had = vec![0; sessions.len()];
        let mut due = vec![0_u64; sessions.len()];
        loop {
            let next = (0..due.len()).min_by_key(|index| due[*index]);
            let index = next.expect("there are sessions");
            let now = due[index];
            if now >= span_ns {
                return had;
            }
            let (class, bytes, rest_ns) = sessions[index];
            match rates.ask(class, now) {
                Ok(most) => {
                    let bytes = bytes.min(most);
                    rates.take(class, now, bytes);
                    had[index] += bytes;
                    due[index] = now + rest_ns;
                }
                // Threads run late, each differently.
                Err(at) => due[index] = at + 20_000 * (index as u64 + 1),
            }
        }
    }

    const BUSY: (u64, u64) = (u64::MAX, 0);

    fn share(had: &[u64], index: usize) -> f64 {
        had[index] as f64 / had.iter().sum::<u64>() as f64
    }

    #[test]
    fn classes_that_want_all_have_their_shares() {
        for percent in [1, 20, 50, 75] {
            let classes = [("rest", 100 - percent, None), ("bulk", percent, None)];
            let mut rates = rates(Some(100 * MEGABIT), &classes);
            let had = run(
                &mut rates,
                &[(0, BUSY.0, BUSY.1), (1, BUSY.0, BUSY.1)],
                20 * SECOND_NS,
            );
            let (bulk, expected) = (share(&had, 1), percent as f64 / 100.0);
            assert!((bulk - expected).abs() < 0.01, "{bulk} of {expected}");
            let all = had.iter().sum::<u64>() as f64 / (20.0 * 12.5e6);
            assert!((0.99..1.01).contains(&all), "{all} of the rate");
        }
    }

    #[test]
    fn many_sessions_of_a_class_have_no_more_than_one() {
        let classes = [("rest", 50, None), ("bulk", 50, None)];
        let mut rates = rates(Some(100 * MEGABIT), &classes);
        let mut sessions = vec![(0, BUSY.0, BUSY.1)];
        sessions.extend([(1, BUSY.0, BUSY.1); 8]);
        let had = run(&mut rates, &sessions, 20 * SECOND_NS);
        assert!((share(&had, 0) - 0.5).abs() < 0.02, "{had:?}");
    }

    #[test]
    fn what_a_class_does_not_want_others_have() {
        let classes = [("rest", 80, None), ("bulk", 20, None)];
        let mut rates = rates(Some(100 * MEGABIT), &classes);
        // The rest sends 16 KiB every 10 ms, and waits at most another 10 ms.
        let sessions = [(0, 16 << 10, SECOND_NS / 100), (1, BUSY.0, BUSY.1)];
        let had = run(&mut rates, &sessions, 10 * SECOND_NS);
        assert!(had[0] > (16 << 10) * 10 * 44, "{had:?}");
        let all = had.iter().sum::<u64>() as f64 / (10.0 * 12.5e6);
        assert!(all > 0.97, "{all} of the rate");
    }

    #[test]
    fn a_class_keeps_to_its_own_rate_and_one_alone_has_all_of_the_links() {
        let classes = [("rest", 80, None), ("bulk", 20, Some(30 * MEGABIT))];
        let mut limited = rates(None, &classes);
        let had = run(&mut limited, &[(1, BUSY.0, BUSY.1)], 10 * SECOND_NS);
        assert!(
            (had[0] as f64 / (10.0 * 3.75e6) - 1.0).abs() < 0.01,
            "{had:?}"
        );
        let mut alone = rates(
            Some(100 * MEGABIT),
            &[("rest", 80, None), ("bulk", 20, None)],
        );
        let had = run(&mut alone, &[(1, BUSY.0, BUSY.1)], 10 * SECOND_NS);
        assert!(
            (had[0] as f64 / (10.0 * 12.5e6) - 1.0).abs() < 0.01,
            "{had:?}"
        );
    }

    #[test]
    fn one_that_had_nothing_for_long_does_not_have_all_for_long() {
        let classes = [("rest", 50, None), ("bulk", 50, None)];
        let mut rates = rates(Some(100 * MEGABIT), &classes);
        run(&mut rates, &[(1, BUSY.0, BUSY.1)], 60 * SECOND_NS);
        rates.link.used_until = 0;
        let had = run(
            &mut rates,
            &[(0, BUSY.0, BUSY.1), (1, BUSY.0, BUSY.1)],
            SECOND_NS,
        );
        assert!((share(&had, 0) - 0.5).abs() < 0.05, "{had:?}");
    }

    #[test]
    fn without_a_rate_nothing_is_held() {
        let mut free = rates(None, &[("rest", 100, None)]);
        free.take(0, 0, u64::MAX / 200);
        assert_eq!(free.ask(0, 0), Ok(u64::MAX));
    }
}
