//! Vegas (L. Brakmo, S. O'Malley, L. Peterson, "TCP Vegas: New Techniques for Congestion Detection
//! and Avoidance", SIGCOMM 1994): keeps a few packets of its own in the queue, and knows how many
//! by the round-trip time. A loss counts as with Reno.

use super::{Law, Progress, seconds};
use crate::time::Time;

/// Control by delay.
#[derive(Debug, Default)]
pub struct Vegas {
    /// The least round-trip time ever, ns: the path without a queue.
    base_ns: Option<u64>,
    round: Round,
    /// Packets that waited in the queue in the round that has just ended.
    queued: Option<f64>,
}

#[derive(Debug, Default)]
struct Round {
    started: Option<Time>,
    /// The least round-trip time in it, ns.
    least_ns: Option<u64>,
}

/// With fewer packets in the queue, one more per round trip (§4.2 of the paper, with Linux'
/// default).
const ALPHA: f64 = 2.0;
/// With more, one less.
const BETA: f64 = 4.0;
/// With more, slow start ends.
const GAMMA: f64 = 1.0;

impl Vegas {
    /// At the end of a round, which is when a packet is acknowledged that left after its start: how
    /// many packets of `window` wait in the queue, and the window that would have none there.
    fn end_round(&mut self, progress: &Progress, window: f64) -> Option<(f64, f64)> {
        let rtt_ns = progress.rtt_ns?;
        let base_ns = self.base_ns.map_or(rtt_ns, |base| base.min(rtt_ns));
        let least_ns = self
            .round
            .least_ns
            .map_or(rtt_ns, |least| least.min(rtt_ns));
        let started = *self.round.started.get_or_insert(progress.now);
        self.base_ns = Some(base_ns);
        self.round.least_ns = Some(least_ns);
        if progress.now.since(started) < rtt_ns {
            return None;
        }
        self.round = Round {
            started: Some(progress.now),
            least_ns: None,
        };
        let stretch = seconds(least_ns) / seconds(base_ns);
        Some((window * (stretch - 1.0), window / stretch))
    }
}

impl Law for Vegas {
    const SLOW_START: &'static str = "vegas/slow-start";
    const AVOIDANCE: &'static str = "vegas/avoidance";

    /// Slow start ends with what leaves the queue empty, and a packet.
    fn measure(&mut self, progress: &Progress, window: f64) -> Option<f64> {
        let (queued, empty) = self.end_round(progress, window)?;
        self.queued = Some(queued);
        (queued > GAMMA).then(|| window.min(empty + 1.0))
    }

    fn grow(&mut self, _progress: &Progress, window: f64) -> f64 {
        match self.queued.take() {
            Some(queued) if queued > BETA => window - 1.0,
            Some(queued) if queued < ALPHA => window + 1.0,
            _ => window,
        }
    }

    fn reduce(&mut self, window: f64) -> f64 {
        self.round = Round::default();
        window / 2.0
    }
}
