//! Keeps the sessions of `ready` routes open.

use std::io;
use std::sync::Arc;

use haul_io::poller::{Events, Poller};
use haul_xsp::Time;

use crate::config::Route;
use crate::log::Level;
use crate::session::open_route;
use crate::shared::Shared;
use crate::sync::lock;
use haul_io::thread::{Stop, Thread};

/// How often the thread looks for missing sessions, ns.
const LOOK_NS: u64 = 1_000_000_000;
/// First and longest wait between two attempts to open a session, ns.
const AGAIN_NS: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// When a route's session was last opened, and the wait until the next attempt.
struct Try {
    route: Route,
    at: Time,
    wait_ns: u64,
}

/// Starts the thread that opens the sessions of `ready` routes, and reopens them. A wake-up makes
/// it read the routes again.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Thread> {
    let shared = Arc::clone(shared);
    Thread::spawn("haul-ready", Poller::new()?, move |poller, stop| {
        keep(&shared, poller, &stop);
    })
}

fn keep(shared: &Arc<Shared>, mut poller: Poller, stop: &Stop) {
    let mut events = Events::with_capacity(1);
    let mut tries = Vec::new();
    while !stop.is_set() {
        let again = look(shared, &mut tries).then(|| shared.now().after(LOOK_NS).as_ns());
        if let Err(error) = poller.wait(&mut events, again, shared.clock) {
            shared.log(
                Level::Error,
                format!("the sessions of ready routes are no longer kept open: {error}"),
            );
            return;
        }
    }
}

/// Opens the sessions that are missing and due. Returns whether any route is `ready`.
fn look(shared: &Arc<Shared>, tries: &mut Vec<Try>) -> bool {
    let (config, now) = (shared.config(), shared.now());
    tries.retain(|one| config.routes.contains(&one.route));
    let mut any = false;
    for route in config.routes.iter().filter(|route| route.ready) {
        any = true;
        let before = tries.iter().position(|one| one.route == *route);
        let is_due = |one: &Try| now >= one.at.after(one.wait_ns);
        if before.is_some_and(|index| !is_due(&tries[index])) {
            continue;
        }
        let _opening = lock(&shared.opening);
        if shared.is_draining() || shared.registers().opener(route).is_some() {
            continue;
        }
        if let Err((_, why)) = open_route(shared, route) {
            shared.log(
                Level::Error,
                format!("cannot open the session of a ready route: {why}"),
            );
        }
        let wait_ns = before.map_or(AGAIN_NS.0, |index| {
            let last = tries.swap_remove(index);
            // A session that has lasted resets the wait.
            let held = now.since(last.at) > AGAIN_NS.1 + last.wait_ns;
            if held {
                AGAIN_NS.0
            } else {
                (last.wait_ns * 2).min(AGAIN_NS.1)
            }
        });
        tries.push(Try {
            route: route.clone(),
            at: now,
            wait_ns,
        });
    }
    any
}
