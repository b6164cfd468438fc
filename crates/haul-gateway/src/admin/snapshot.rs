//! A snapshot of the gateway, with rates since the previous one.

use std::collections::HashMap;
use std::sync::Arc;

use haul_admin::http::Response;
use haul_xsp::SECOND_NS;
use serde::Serialize;

use crate::log::Level;
use crate::rates::ClassTotal;
use crate::shared::{Shared, WayHealth};
use crate::status::{Role, Status, Totals};
use crate::sync::lock;

/// Shortest span of a rate, ns. A client that asks more often gets the same rate again.
const SPAN_NS: u64 = SECOND_NS * 9 / 10;
/// How often a session updates its status while it is active, ns.
const SNAPSHOT_NS: u64 = SECOND_NS / 4;

/// The state of a gateway.
#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    pub(super) name: String,
    pub(super) version: &'static str,
    pub(super) uptime_s: f64,
    pub(super) is_draining: bool,
    /// Slab memory, bytes: all of it, and what no session has taken.
    pub(super) memory: u64,
    pub(super) memory_left: u64,
    pub(super) sessions_max: usize,
    /// Control connections that have not asked for a session.
    #[serde(rename = "guests")]
    pub(super) pending_peers: usize,
    pub(super) totals: Totals,
    /// The rate limit of all sessions together, bits per second.
    pub(super) most_bps: Option<u64>,
    /// Bytes sent by each class, and its limits.
    pub(super) classes: Vec<ClassTotal>,
    /// The ways of routes with several, as they were checked last.
    pub(super) ways: Vec<Way>,
    pub(super) sessions: Vec<Shown>,
    log: Vec<Line>,
}

/// A session, with its age.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    number: u64,
    #[serde(flatten)]
    pub(super) status: Status,
    pub(super) age_s: f64,
    /// Time until a suspended session ends.
    ends_in_s: Option<f64>,
}

/// A way of a route, with the time since when it is up or down.
#[derive(Debug, Serialize)]
pub(super) struct Way {
    #[serde(flatten)]
    pub(super) health: WayHealth,
    age_s: f64,
}

#[derive(Debug, Serialize)]
struct Line {
    age_s: f64,
    level: Level,
    text: String,
    times: u64,
}

/// Takes snapshots, and keeps what rates need.
#[derive(Debug)]
pub(super) struct Snapshots {
    shared: Arc<Shared>,
    /// When rates were computed last, ns.
    at_ns: u64,
    /// The counters at that time, by session number.
    counted: HashMap<u64, Counted>,
    /// Bytes sent by each class at that time, and its rate, bytes per second.
    classes: Vec<(u64, f64)>,
}

#[derive(Debug, Clone, Default)]
struct Counted {
    at_ns: u64,
    /// Bytes in and out of each segment.
    octets: Vec<(u64, u64)>,
    /// Bytes per second.
    rates: Vec<(f64, f64)>,
}

impl Snapshots {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            at_ns: 0,
            counted: HashMap::new(),
            classes: Vec::new(),
        }
    }

    pub(super) fn take(&mut self) -> Snapshot {
        let shared = Arc::clone(&self.shared);
        let registers = shared.registers();
        let pending_peers = registers.pending_peers.len();
        let statuses: Vec<_> = registers
            .statuses
            .iter()
            .map(|(number, status)| (*number, Arc::clone(status)))
            .collect();
        drop(registers);
        let statuses = statuses
            .into_iter()
            .map(|(number, status)| (number, lock(&status).clone()))
            .filter(|(_, status)| status.role != Role::Pending)
            .collect();
        let now_ns = shared.clock.now_ns();
        let age = |at_ns: u64| seconds(now_ns.saturating_sub(at_ns));
        let log = shared.tail.lines().into_iter().map(|line| Line {
            age_s: age(line.at_ns),
            level: line.level,
            text: line.text,
            times: line.times,
        });
        let ways = shared.health.ways().into_iter().map(|health| Way {
            age_s: age(health.since_ns),
            health,
        });
        let config = shared.config();
        let mut classes = shared.rates.totals();
        let sessions = self.shown(statuses, &classes, now_ns);
        for (class, (_, rate)) in classes.iter_mut().zip(&self.classes) {
            class.rate = *rate;
        }
        Snapshot {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: age(shared.since_ns),
            is_draining: shared.is_draining(),
            memory: shared.memory_size,
            memory_left: shared.memory_left(),
            sessions_max: config.sessions,
            pending_peers,
            totals: shared.totals(),
            most_bps: config.rate.map(|rate| rate.0),
            classes,
            ways: ways.collect(),
            sessions,
            log: log.collect(),
        }
    }

    fn shown(
        &mut self,
        statuses: Vec<(u64, Status)>,
        classes: &[ClassTotal],
        now_ns: u64,
    ) -> Vec<Shown> {
        if now_ns.saturating_sub(self.at_ns) >= SPAN_NS {
            self.count_classes(classes, now_ns);
            self.count(&statuses, now_ns);
        }
        let show = |(number, mut status): (u64, Status)| {
            let counted = self.counted.get(&number);
            let rates = counted.iter().flat_map(|counted| &counted.rates);
            for (segment, rates) in status.segments.iter_mut().zip(rates) {
                (segment.rate_in, segment.rate_out) = *rates;
            }
            Shown {
                number,
                age_s: seconds(now_ns.saturating_sub(status.since_ns)),
                ends_in_s: status
                    .ends_at_ns
                    .map(|at_ns| seconds(at_ns.saturating_sub(now_ns))),
                status,
            }
        };
        statuses.into_iter().map(show).collect()
    }

    fn count_classes(&mut self, classes: &[ClassTotal], now_ns: u64) {
        let span = seconds(now_ns.saturating_sub(self.at_ns));
        let before = std::mem::take(&mut self.classes);
        let counted = classes.iter().enumerate().map(|(at, class)| {
            // A new class has no rate yet.
            let before = before.get(at).map_or(class.bytes, |(bytes, _)| *bytes);
            (
                class.bytes,
                class.bytes.saturating_sub(before) as f64 / span,
            )
        });
        self.classes = counted.collect();
    }

    fn count(&mut self, statuses: &[(u64, Status)], now_ns: u64) {
        let (before, before_ns) = (std::mem::take(&mut self.counted), self.at_ns);
        for (number, status) in statuses {
            let segments = status.segments.iter();
            let mut counted = Counted {
                at_ns: status.at_ns,
                octets: segments
                    .map(|segment| (segment.octets_in, segment.octets_out))
                    .collect(),
                rates: Vec::new(),
            };
            if let Some(before) = before.get(number) {
                counted.rates = rates(before, before_ns, &counted);
            }
            self.counted.insert(*number, counted);
        }
        self.at_ns = now_ns;
    }
}

/// Computes rates between two updates of a session, the earlier of which was seen at `before_ns`.
/// An idle session makes no updates, so the earlier one still held shortly before it was seen.
fn rates(before: &Counted, before_ns: u64, after: &Counted) -> Vec<(f64, f64)> {
    let from_ns = before.at_ns.max(before_ns.saturating_sub(SNAPSHOT_NS));
    let span = seconds(after.at_ns.saturating_sub(from_ns));
    let rate = |before: u64, after: u64| match after.saturating_sub(before) {
        0 => 0.0,
        octets => octets as f64 / span.max(seconds(SNAPSHOT_NS)),
    };
    let pairs = before.octets.iter().zip(&after.octets);
    pairs
        .map(|(before, after)| (rate(before.0, after.0), rate(before.1, after.1)))
        .collect()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Snapshot {
    pub(super) fn json(&self) -> Response {
        match serde_json::to_vec(self) {
            Ok(json) => Response::new("application/json", json),
            Err(error) => Response::refusal(503, &error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(at_ns: u64, octets: u64) -> Counted {
        Counted {
            at_ns,
            octets: vec![(octets, 0)],
            rates: Vec::new(),
        }
    }

    #[test]
    fn rates_are_between_pictures_and_a_rest_is_not_counted() {
        let rate =
            |before: &Counted, before_ns, after: &Counted| rates(before, before_ns, after)[0].0;
        let (before, after) = (counted(SECOND_NS, 1_000), counted(2 * SECOND_NS, 3_000));
        assert_eq!(rate(&before, SECOND_NS, &after), 2_000.0);
        // The session was idle from the first second to the tenth.
        let after = counted(10_750_000_000, 3_000);
        assert_eq!(rate(&before, 10 * SECOND_NS, &after), 2_000.0);
        assert_eq!(rate(&before, 10 * SECOND_NS, &before), 0.0);
        // A new data channel counts from zero.
        assert_eq!(rate(&before, SECOND_NS, &counted(2 * SECOND_NS, 10)), 0.0);
    }
}
