//! The ways of routes that are checked, and whether they are up.

use std::collections::BTreeMap;
use std::sync::Mutex;

use haul_xsp::Time;
use serde::Serialize;

use crate::sync::lock;

/// The ways that have been checked, by their gateways.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<BTreeMap<String, WayHealth>>);

/// The outcome of the last check of a way.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WayHealth {
    pub(crate) way: String,
    pub(crate) is_up: bool,
    /// Why it is down.
    pub(crate) why: String,
    /// Since when it is up, or down; monotonic ns.
    #[serde(skip)]
    pub(crate) since_ns: u64,
}

impl Health {
    /// Whether the last check of a way has failed.
    pub(crate) fn is_down(&self, way: &str) -> bool {
        lock(&self.0).get(way).is_some_and(|known| !known.is_up)
    }

    /// Returns the outcomes of the last checks.
    pub(crate) fn ways(&self) -> Vec<WayHealth> {
        lock(&self.0).values().cloned().collect()
    }

    /// Notes that a session has failed on a way, before the next check. Returns whether the way was
    /// up. A way that is not checked is not noted: nothing would find it up again.
    pub(crate) fn note_failed(&self, way: &str, why: &str, now: Time) -> bool {
        let is_checked = lock(&self.0).contains_key(way);
        is_checked && self.note(way, Err(why.to_owned()), now)
    }

    /// Notes an outcome. Returns whether it differs from the last one; a first success does not.
    pub(crate) fn note(&self, way: &str, outcome: Result<(), String>, now: Time) -> bool {
        let mut ways = lock(&self.0);
        let (is_up, why) = (outcome.is_ok(), outcome.err().unwrap_or_default());
        let earlier = ways.get_mut(way);
        let was_up = earlier.as_ref().is_none_or(|known| known.is_up);
        match earlier {
            Some(known) if known.is_up == is_up => known.why = why,
            _ => {
                let known = WayHealth {
                    way: way.to_owned(),
                    is_up,
                    why,
                    since_ns: now.as_ns(),
                };
                ways.insert(way.to_owned(), known);
            }
        }
        was_up != is_up
    }

    /// Forgets the ways that are no longer checked.
    pub(crate) fn keep(&self, is_checked: impl Fn(&str) -> bool) {
        lock(&self.0).retain(|way, _| is_checked(way));
    }
}

#[cfg(test)]
mod tests {
    use haul_xsp::SECOND_NS;

    use super::*;

    #[test]
    fn a_way_is_down_from_its_first_failure_to_its_next_success() {
        let health = Health::default();
        let at = |seconds: u64| Time::from_ns(seconds * SECOND_NS);
        assert!(!health.is_down("a"), "not checked yet");
        assert!(!health.note("a", Ok(()), at(1)));
        let fails = |why: &str| Err(why.to_owned());
        assert!(health.note("a", fails("refused"), at(2)));
        assert!(!health.note("a", fails("no route"), at(3)));
        assert!(health.is_down("a"));
        let known = &health.ways()[0];
        assert_eq!((known.since_ns, &*known.why), (2 * SECOND_NS, "no route"));
        assert!(health.note("a", Ok(()), at(4)));
        assert!(!health.is_down("a"));
        assert!(health.note("b", fails("refused"), at(5)), "a first failure");
        assert!(health.note_failed("a", "lost", at(6)) && !health.note_failed("a", "lost", at(7)));
        assert!(!health.note_failed("c", "lost", at(7)) && !health.is_down("c"));
        health.keep(|way| way == "a");
        assert_eq!(health.ways().len(), 1);
    }
}
