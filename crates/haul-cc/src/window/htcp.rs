//! H-TCP (D. Leith, R. Shorten, "H-TCP: TCP for high-speed and long-distance networks", PFLDnet
//! 2004; draft-leith-tcp-htcp-06): grows faster the longer no loss has been seen, and takes off no
//! more than empties the queue.

use super::{Law, Progress, seconds};
use crate::time::{MILLISECOND_NS, Time};

/// Growth by the time since the last loss, decrease by the queue.
#[derive(Debug)]
pub struct Htcp {
    /// Since when the window has been growing again.
    epoch: Option<Time>,
    /// The factor of the last reduction.
    beta: f64,
    rtt_ns_min: Option<u64>,
    /// The longest round-trip time lately, ns.
    rtt_ns_max: u64,
    throughput: Throughput,
    /// The highest throughput before the last loss, packets per second.
    throughput_before: Option<f64>,
    /// It was about the same at the loss before.
    same: bool,
}

/// Packets per second over whole round trips, smoothed.
#[derive(Debug, Default)]
struct Throughput {
    round_started: Option<Time>,
    round_packets: f64,
    smoothed: Option<f64>,
    /// The highest since the last loss.
    highest: Option<f64>,
}

/// As Reno for so long after a loss, seconds (Δ_L of the draft).
const LOW_SPEED_S: f64 = 1.0;
/// The least factor of a reduction.
const BETA_MIN: f64 = 0.5;
/// The greatest factor of a reduction.
const BETA_MAX: f64 = 0.8;
/// A throughput that has changed by more than this since the last loss belongs to a path that has
/// changed.
const SAME_THROUGHPUT: f64 = 0.2;
/// Growth is per this time instead of per round trip, so that flows of different distances grow
/// alike.
const REFERENCE_RTT_S: f64 = 0.1;
/// … within these limits.
const RTT_SCALE: [f64; 2] = [0.1, 2.0];
/// A round-trip time that is longer than the longest by more than this is no queue's.
const RTT_STEP_NS: u64 = 20 * MILLISECOND_NS;
/// The part of the longest queue that a loss makes forgotten.
const QUEUE_FADES: u64 = 20;

impl Default for Htcp {
    fn default() -> Self {
        Self {
            epoch: None,
            beta: BETA_MIN,
            rtt_ns_min: None,
            rtt_ns_max: 0,
            throughput: Throughput::default(),
            throughput_before: None,
            same: false,
        }
    }
}

impl Htcp {
    /// Packets more per round trip: α of the draft, of whole packets before β comes in, as Linux
    /// has it.
    fn increase(&self, elapsed_s: f64) -> f64 {
        let late = (elapsed_s - LOW_SPEED_S).max(0.0);
        let [scale_min, scale_max] = RTT_SCALE;
        let scale = self.rtt_ns_min.map_or(1.0, |rtt_ns| {
            (seconds(rtt_ns) / REFERENCE_RTT_S).clamp(scale_min, scale_max)
        });
        let growth = (1.0 + 10.0 * late + (late / 2.0).powi(2)) * scale;
        // Two flows of one path have the same mean window whatever β is.
        2.0 * (1.0 - self.beta) * growth.floor().max(1.0)
    }

    /// The factor that just empties the queue, if the path was the same at the last two losses;
    /// otherwise one half.
    fn next_beta(&self, same: bool) -> f64 {
        match self.rtt_ns_min {
            Some(min_ns) if same && self.same => {
                (seconds(min_ns) / seconds(self.rtt_ns_max)).clamp(BETA_MIN, BETA_MAX)
            }
            _ => BETA_MIN,
        }
    }
}

impl Throughput {
    fn take(&mut self, progress: &Progress) {
        let started = *self.round_started.get_or_insert(progress.now);
        let elapsed_ns = progress.now.since(started);
        if elapsed_ns >= progress.smoothed_rtt_ns {
            let rate = self.round_packets / seconds(elapsed_ns).max(f64::MIN_POSITIVE);
            let smoothed = self.smoothed.map_or(rate, |old| (3.0 * old + rate) / 4.0);
            self.smoothed = Some(smoothed);
            self.highest = Some(self.highest.map_or(smoothed, |old| old.max(smoothed)));
            self.round_started = Some(progress.now);
            self.round_packets = 0.0;
        }
        self.round_packets += progress.acked;
    }
}

impl Law for Htcp {
    const SLOW_START: &'static str = "htcp/slow-start";
    const AVOIDANCE: &'static str = "htcp/avoidance";

    fn measure(&mut self, progress: &Progress, _window: f64) -> Option<f64> {
        if let Some(rtt_ns) = progress.rtt_ns {
            let min_ns = self.rtt_ns_min.map_or(rtt_ns, |min| min.min(rtt_ns));
            self.rtt_ns_min = Some(min_ns);
            self.rtt_ns_max = self.rtt_ns_max.max(min_ns);
            if rtt_ns <= self.rtt_ns_max + RTT_STEP_NS {
                self.rtt_ns_max = self.rtt_ns_max.max(rtt_ns);
            }
        }
        self.throughput.take(progress);
        None
    }

    fn grow(&mut self, progress: &Progress, window: f64) -> f64 {
        let started = *self.epoch.get_or_insert(progress.now);
        let elapsed_s = seconds(progress.now.since(started));
        window + self.increase(elapsed_s) * progress.acked / window
    }

    fn reduce(&mut self, window: f64) -> f64 {
        let throughput = self.throughput.highest;
        let same = throughput
            .zip(self.throughput_before)
            .is_some_and(|(now, before)| (now - before).abs() <= SAME_THROUGHPUT * before);
        self.beta = self.next_beta(same);
        self.same = same;
        self.epoch = None;
        let queue_ns = self.rtt_ns_max - self.rtt_ns_min.unwrap_or(self.rtt_ns_max);
        self.rtt_ns_max -= queue_ns / QUEUE_FADES;
        self.throughput_before = throughput;
        self.throughput = Throughput::default();
        window * self.beta
    }
}
