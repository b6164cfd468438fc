//! Health checks: whether sessions can be opened by the ways of routes that have several. New
//! sessions try the ways that are up first.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use haul_io::poller::{Events, Poller};
use haul_xsp::{SECOND_NS, Time};

use crate::config::{Config, Route, way_in_words};
use crate::log::Level;
use crate::probe::by_way;
use crate::session::Worker;
use crate::shared::Shared;
use haul_io::thread::{Stop, Thread};

/// Timeout of a check, ns.
const PATIENCE_NS: u64 = 5 * SECOND_NS;
/// How often a check asks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Starts the thread that checks ways. A wake-up makes it read the routes again.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Thread> {
    let shared = Arc::clone(shared);
    Thread::spawn("haul-health", Poller::new()?, move |poller, stop| {
        check_all(&shared, poller, &stop);
    })
}

fn check_all(shared: &Arc<Shared>, mut poller: Poller, stop: &Stop) {
    let mut events = Events::with_capacity(1);
    let mut due: BTreeMap<String, Time> = BTreeMap::new();
    while !stop.is_set() {
        let (config, now) = (shared.config(), shared.now());
        let ways = ways(&config);
        due.retain(|way, _| ways.contains_key(way));
        shared.health.keep(|way| ways.contains_key(way));
        let is_due = |way: &String| due.get(way).is_none_or(|at| *at <= now);
        let now_due = ways.iter().filter(|(way, _)| is_due(way));
        check(shared, now_due.map(|(way, (route, _))| (way, route)), stop);
        let now_due: Vec<String> = ways.keys().filter(|way| is_due(way)).cloned().collect();
        for way in now_due {
            if let Some((_, interval_ns)) = ways.get(&way) {
                due.insert(way, shared.now().after(*interval_ns));
            }
        }
        let next = due.values().min().map(|at| at.as_ns());
        if let Err(error) = poller.wait(&mut events, next, shared.clock) {
            let text = format!("the ways of routes are no longer checked: {error}");
            shared.log(Level::Error, text);
            return;
        }
    }
}

/// Returns the ways to be checked, each as a route with the interval, ns.
fn ways(config: &Config) -> BTreeMap<String, (Route, u64)> {
    let routes = config.routes.iter();
    let several = routes.filter(|route| route.health > 0 && !route.or_via.is_empty());
    let ways = several.flat_map(|route| {
        let interval_ns = u64::from(route.health) * SECOND_NS;
        let checked = move |way| (way_in_words(way), (by_way(route, way), interval_ns));
        route.written_ways().map(checked)
    });
    ways.collect()
}

/// Checks ways at the same time.
fn check<'a>(
    shared: &Arc<Shared>,
    ways: impl Iterator<Item = (&'a String, &'a Route)>,
    stop: &Stop,
) {
    let until = shared.now().after(PATIENCE_NS);
    let mut asked = Vec::new();
    for (way, route) in ways {
        let (sender, result) = bounded(1);
        match Worker::probe(shared, route, sender) {
            Ok(()) => asked.push((way, result)),
            // This gateway cannot start a thread: the state of the way is unknown.
            Err(why) => shared.log_shortage(format!("cannot check the way by {way}: {why}")),
        }
    }
    for (way, result) in asked {
        let outcome = loop {
            match result.recv_timeout(LOOK) {
                Ok(answer) => break answer.map(drop).map_err(|why| why.text),
                Err(RecvTimeoutError::Timeout) if stop.is_set() => return,
                Err(RecvTimeoutError::Timeout) if shared.now() < until => {}
                Err(_) => break Err("no answer came in time".to_owned()),
            }
        };
        let (why, is_up) = (outcome.clone().err().unwrap_or_default(), outcome.is_ok());
        if shared.health.note(way, outcome, shared.now()) {
            match is_up {
                true => shared.log(Level::Info, format!("the way by {way} is up again")),
                false => shared.log(Level::Warning, format!("the way by {way} is down: {why}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_routes_with_several_ways_are_checked() {
        let text = "name = 'g'\n[[route]]\nto = ['a']\nvia = ['a:1']\n\
                    [[route]]\nto = ['b']\nvia = ['b:1']\nor_via = [['c:1']]\nhealth = 3\n\
                    [[route]]\nto = ['d']\nvia = ['d:1']\nor_via = [['e:1']]\nhealth = 0\n";
        let ways = ways(&Config::parse(text).unwrap());
        let intervals: Vec<_> = ways.iter().map(|(way, (_, ns))| (&**way, *ns)).collect();
        assert_eq!(intervals, [("b:1", 3 * SECOND_NS), ("c:1", 3 * SECOND_NS)]);
        assert!(ways.values().all(|(route, _)| route.or_via.is_empty()));
    }
}
