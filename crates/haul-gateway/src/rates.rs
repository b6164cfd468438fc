//! What sessions may send to other gateways: classes share a rate.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996) over slabs, as they are packed: of the
//! classes that wait, the one goes first that has had least for its share. A class that waits for
//! nothing costs the others nothing.

use std::sync::{Arc, Mutex, MutexGuard};

use haul_xsp::bag::Producer;
use haul_xsp::{SECOND_NS, Session, Time};
use serde::Serialize;

use crate::config::{Class, Config};
use crate::sync::lock;

/// Slabs are packed so long before their octets could have been sent, ns: no session's thread is
/// that late.
const AHEAD_NS: u64 = SECOND_NS / 100;
/// Who has waited is waited for so long, ns.
const PATIENCE_NS: u64 = AHEAD_NS / 4;
/// Least octets of a slab, where the rate is low.
const SLAB_BYTES_MIN: u64 = 16 << 10;

/// The name of what is in none of the operator's classes.
pub(crate) const REST: &str = "rest";

/// What all sessions share.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Of all classes together.
    link: Bucket,
    /// The first is for what is in no other. They stay when they are gone from the configuration:
    /// sessions know them by number.
    classes: Vec<Entry>,
    /// The tag of what was sent last.
    tag: u64,
}

/// A rate, and until when it is used up.
#[derive(Debug, Default)]
struct Bucket {
    bps: Option<u64>,
    used_until: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// Of a hundred.
    share: u64,
    own: Bucket,
    /// What it has had, by its share.
    tag: u64,
    /// It has been refused, and others let it go first until then.
    waits_until: u64,
    bytes: u64,
}

/// The number of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassId(usize);

/// What a class has sent, for the page and the metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ClassTotal {
    pub(crate) name: String,
    /// Of a hundred.
    pub(crate) share: u64,
    /// What it may send at most, bits per second.
    pub(crate) most_bps: Option<u64>,
    /// Octets.
    pub(crate) bytes: u64,
    /// Octets per second of late; whoever looks computes them.
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

    /// Takes what the operator wants from now on.
    pub(crate) fn set(&self, config: &Config) {
        let mut inner = self.inner();
        inner.link.bps = config.rate.map(|rate| rate.0);
        let left = config.classes.iter().map(|class| u64::from(class.share));
        inner.set(REST, 100_u64.saturating_sub(left.sum()), None);
        for Class { name, share, rate } in &config.classes {
            inner.set(name, u64::from(*share), rate.map(|rate| rate.0));
        }
    }

    /// The class of this name; without one, the rest.
    pub(crate) fn class(&self, name: Option<&str>) -> ClassId {
        let inner = self.inner();
        let found = inner
            .classes
            .iter()
            .position(|class| Some(class.name.as_str()) == name);
        ClassId(found.unwrap_or(0))
    }

    /// Whether a slab of this class may be packed, and how many octets it may have; otherwise when
    /// to ask again.
    pub(crate) fn ask(&self, class: ClassId, now: Time) -> Result<u64, Time> {
        self.inner()
            .ask(class.0, now.as_ns())
            .map_err(Time::from_ns)
    }

    /// So many octets were packed.
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
        // Who waits for its own limit is not waited for.
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

    /// Another that waits has had less.
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

    /// A slab is no more than what is sent in the time that it is packed ahead: others have their
    /// turn behind it.
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

/// What a session may send: its class's part.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    pub(crate) rates: Arc<Rates>,
    pub(crate) class: ClassId,
}

impl Meter {
    /// Has slabs packed, as many as may be, each of no more than there is `room` for.
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

    /// Sessions of these classes, each of which asks again as soon as it may, has so many octets to
    /// pack at a time, and rests so long after each: octets that each has had when `span_ns` are
    /// over.
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
                // Threads are late, each in its own way.
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
        // The rest wants 16 KiB ten milliseconds after it had the last, and waits for no more than
        // another ten.
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
