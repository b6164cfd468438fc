//! A path that drops what exceeds a rate and never queues it.
//!
//! What is lost without a queue is chance's or a policer's. Chance takes its share of whatever is sent; a policer lets pass the
//! same rate whatever is sent. So where much is lost and what arrives is steady, the flow tries to send no more than that. If
//! losses go on, they are chance's and nothing is made of them. If they end, the rate is the policer's: it is held, and
//! exceeded a little now and then to see whether it still is.

use crate::controller::Rate;
use crate::time::{MILLISECOND_NS, SECOND_NS, Time};

/// What is known of a policer on the path.
#[derive(Debug)]
pub(super) struct Policer {
    packet_bytes: u64,
    state: State,
    stretch: Stretch,
    /// The latest stretches, if much was lost in them and what arrived was steady.
    steady: Option<Steady>,
    hold_ns: u64,
    /// Before the next trial after one that failed.
    patience_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown {
        no_trial_before: Time,
    },
    /// No more is sent than has arrived.
    Trial {
        rate: Rate,
        /// What was lost before it, millionths.
        lost_ppm: u64,
        /// From then on what is told was sent since.
        shows_from: Time,
    },
    Held {
        rate: Rate,
        until: Time,
    },
    /// More is sent than the rate that was held, to see whether it arrives; `pace` for as long as nothing is lost.
    Lifted {
        rate: Rate,
        pace: Rate,
        until: Time,
    },
}

/// News of data that arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    pub(super) acked_bytes: u64,
    pub(super) rtt_ns: u64,
    /// The most that has arrived lately.
    pub(super) shown: Rate,
    /// The flow sent as it wanted to: what arrives and what is lost is the path's doing.
    pub(super) tells: bool,
    /// A queue is what limits the flow.
    pub(super) queued: bool,
}

#[derive(Debug, Clone, Copy)]
struct Stretch {
    started: Time,
    acked_bytes: u64,
    lost_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Steady {
    stretches: u32,
    since: Time,
    until: Time,
    acked_bytes: u64,
    /// Of the latest.
    rate: Rate,
}

/// A stretch is half a round trip, or so long: reports come late by some milliseconds.
const STRETCH_NS_MIN: u64 = 50 * MILLISECOND_NS;
/// What of a loss is known later than after a round trip.
const REPORT_NS: u64 = 20 * MILLISECOND_NS;
/// Losses worth a trial: this share of a stretch, and this many packets.
const LOST_PPM: u64 = 30_000;
const LOST_PACKETS: u64 = 8;
/// Stretches are steady where what arrived differs by no more than this share.
const STEADY_SHARE: u64 = 16;
/// Stretches before a trial. A receiver that pauses makes one, and what it costs to lower a rate that is held is more.
const STRETCHES: u32 = 2;
const STRETCHES_HELD: u32 = 4;
/// A bucket that is always empty would drop all jitter.
const HELD_PERCENT: u64 = 99;
const HOLD_NS_MIN: u64 = 2 * SECOND_NS;
const HOLD_NS_MAX: u64 = 16 * SECOND_NS;
const PATIENCE_NS_MIN: u64 = 2 * SECOND_NS;
const PATIENCE_NS_MAX: u64 = 32 * SECOND_NS;
/// First, for a second at least: a bucket that has filled meanwhile is to be emptied.
const LIFT_PERCENT: u64 = 112;
const LIFT_NS_MIN: u64 = SECOND_NS;
const LIFT_RTTS: u64 = 4;
/// Then.
const LIFT_STEP_PERCENT: u64 = 125;
/// With so much above the rate that was held there is no policer any more.
const RELEASED_PERCENT: u64 = 200;
const PPM: u64 = 1_000_000;

impl Policer {
    pub(super) fn new(packet_bytes: u64) -> Self {
        Self {
            packet_bytes: packet_bytes.max(1),
            state: State::Unknown {
                no_trial_before: Time::ZERO,
            },
            stretch: Stretch::new(Time::ZERO),
            steady: None,
            hold_ns: HOLD_NS_MIN,
            patience_ns: PATIENCE_NS_MIN,
        }
    }

    /// The rate to send at, where the path has shown `shown`.
    pub(super) fn limit(&self, shown: Rate) -> Rate {
        match self.state {
            State::Unknown { .. } => shown,
            State::Trial { rate, .. } | State::Held { rate, .. } => rate.min(shown),
            State::Lifted { pace, .. } => pace,
        }
    }

    /// The most to send at even for a moment.
    pub(super) fn most(&self) -> Rate {
        match self.state {
            State::Unknown { .. } => Rate::UNLIMITED,
            State::Trial { rate, .. } | State::Held { rate, .. } => rate,
            State::Lifted { pace, .. } => pace,
        }
    }

    /// The rate to keep as much in flight as for. What was in flight when a trial began is mostly lost already, which is not yet known, and
    /// the trial is to go on meanwhile.
    pub(super) fn window_rate(&self, shown: Rate) -> Rate {
        match self.state {
            State::Trial { .. } => shown,
            _ => self.limit(shown),
        }
    }

    /// A policer is what limits the flow, or may be.
    pub(super) fn limits(&self) -> bool {
        !matches!(self.state, State::Unknown { .. })
    }

    pub(super) fn handle_loss(&mut self, lost_bytes: u64) {
        self.stretch.lost_bytes += lost_bytes;
    }

    pub(super) fn handle_ack(&mut self, now: Time, arrivals: &Arrivals) {
        if !arrivals.tells || arrivals.queued {
            self.forget(now, arrivals.queued);
            return;
        }
        self.stretch.acked_bytes += arrivals.acked_bytes;
        self.lift(now, arrivals);
        let waits = match self.state {
            State::Trial { shows_from, .. } => now < shows_from,
            // It begins with the first loss.
            _ => self.stretch.lost_bytes == 0,
        };
        if waits {
            self.stretch = Stretch::new(now);
            return;
        }
        if now.since(self.stretch.started) < (arrivals.rtt_ns / 2).max(STRETCH_NS_MIN) {
            return;
        }
        let stretch = std::mem::replace(&mut self.stretch, Stretch::new(now));
        self.judge(now, arrivals.rtt_ns, &stretch);
    }

    /// Nothing can be learnt now. What has been learnt may still be so, but where there is a queue.
    fn forget(&mut self, now: Time, queued: bool) {
        self.stretch = Stretch::new(now);
        self.steady = None;
        self.state = match self.state {
            State::Held { .. } | State::Lifted { .. } if queued => {
                self.hold_ns = HOLD_NS_MIN;
                State::Unknown {
                    no_trial_before: now,
                }
            }
            State::Trial { .. } => State::Unknown {
                no_trial_before: now,
            },
            State::Lifted { rate, .. } => State::Held {
                rate,
                until: now.after(self.hold_ns),
            },
            unchanged => unchanged,
        };
    }

    fn lift(&mut self, now: Time, arrivals: &Arrivals) {
        match self.state {
            State::Held { rate, until } if now >= until => {
                let rate = rate.min(arrivals.shown);
                let length_ns = (LIFT_RTTS * arrivals.rtt_ns).max(LIFT_NS_MIN);
                self.state = State::Lifted {
                    rate,
                    pace: rate.percent(LIFT_PERCENT),
                    until: now.after(length_ns),
                };
                self.stretch = Stretch::new(now);
            }
            State::Lifted { rate, pace, until } if now >= until => {
                let pace = pace.percent(LIFT_STEP_PERCENT);
                self.state = if pace > rate.percent(RELEASED_PERCENT) {
                    self.hold_ns = HOLD_NS_MIN;
                    State::Unknown {
                        no_trial_before: now,
                    }
                } else {
                    let until = now.after(arrivals.rtt_ns.max(STRETCH_NS_MIN));
                    State::Lifted { rate, pace, until }
                };
            }
            _ => {}
        }
    }

    fn judge(&mut self, now: Time, rtt_ns: u64, stretch: &Stretch) {
        let (lost_ppm, arrived) = (stretch.lost_ppm(), stretch.arrived(now));
        if let State::Trial {
            rate,
            lost_ppm: before_ppm,
            ..
        } = self.state
        {
            self.end_trial(now, rate, lost_ppm < before_ppm / 2);
            return;
        }
        let lossy = lost_ppm > LOST_PPM && stretch.lost_bytes > LOST_PACKETS * self.packet_bytes;
        let steady = self
            .steady
            .take()
            .filter(|steady| steady.goes_on(stretch, arrived));
        if !lossy {
            return;
        }
        let steady = Steady {
            stretches: steady.map_or(1, |steady| steady.stretches + 1),
            since: steady.map_or(stretch.started, |steady| steady.since),
            until: now,
            acked_bytes: stretch.acked_bytes + steady.map_or(0, |steady| steady.acked_bytes),
            rate: arrived,
        };
        let tries = match self.state {
            State::Unknown { no_trial_before } => {
                now >= no_trial_before && steady.stretches >= STRETCHES
            }
            State::Lifted { .. } => steady.stretches >= STRETCHES,
            State::Held { .. } | State::Trial { .. } => steady.stretches >= STRETCHES_HELD,
        };
        if !tries {
            self.steady = Some(steady);
            return;
        }
        let arrived = Rate::of(steady.acked_bytes, now.since(steady.since)).percent(HELD_PERCENT);
        self.state = if let State::Lifted { rate, .. } = self.state {
            // The policer is still there.
            self.hold_ns = (self.hold_ns * 2).min(HOLD_NS_MAX);
            State::Held {
                rate: rate.max(arrived),
                until: now.after(self.hold_ns),
            }
        } else {
            State::Trial {
                rate: arrived,
                lost_ppm,
                shows_from: now.after(rtt_ns * 5 / 4 + REPORT_NS),
            }
        };
    }

    fn end_trial(&mut self, now: Time, rate: Rate, lost_less: bool) {
        self.state = if lost_less {
            self.patience_ns = PATIENCE_NS_MIN;
            State::Held {
                rate,
                until: now.after(self.hold_ns),
            }
        } else {
            let no_trial_before = now.after(self.patience_ns);
            self.patience_ns = (self.patience_ns * 2).min(PATIENCE_NS_MAX);
            State::Unknown { no_trial_before }
        };
    }
}

impl Stretch {
    fn new(now: Time) -> Self {
        Self {
            started: now,
            acked_bytes: 0,
            lost_bytes: 0,
        }
    }

    fn lost_ppm(&self) -> u64 {
        let sent = self.acked_bytes + self.lost_bytes;
        (self.lost_bytes * PPM).checked_div(sent).unwrap_or(0)
    }

    fn arrived(&self, now: Time) -> Rate {
        Rate::of(self.acked_bytes, now.since(self.started))
    }
}

impl Steady {
    fn goes_on(&self, stretch: &Stretch, arrived: Rate) -> bool {
        let bytes = |rate: Rate| rate.bytes_per_second();
        let off = bytes(self.rate).abs_diff(bytes(arrived));
        stretch.started == self.until && off <= bytes(self.rate) / STEADY_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 100 * MILLISECOND_NS;
    const STEP_NS: u64 = 10 * MILLISECOND_NS;
    const SENT: Rate = Rate::from_bps(1_000_000_000);

    /// Two seconds and a half on a path that lets pass what `passes` makes of the rate sent, reported a round trip later.
    fn watched(passes: impl Fn(Rate) -> Rate) -> Policer {
        let mut policer = Policer::new(1_500);
        let mut sent = [SENT; (RTT_NS / STEP_NS) as usize];
        for step in 1..250 {
            let slot = step % sent.len();
            let (acked, all) = (passes(sent[slot]), sent[slot]);
            let now = Time::from_ns(step as u64 * STEP_NS);
            let acked_bytes = acked.bytes_in(STEP_NS);
            policer.handle_loss(all.bytes_in(STEP_NS) - acked_bytes);
            let arrivals = Arrivals {
                acked_bytes,
                rtt_ns: RTT_NS,
                shown: SENT,
                tells: true,
                queued: false,
            };
            policer.handle_ack(now, &arrivals);
            sent[slot] = policer.limit(SENT);
        }
        policer
    }

    #[test]
    fn what_passes_a_policer_is_held() {
        let policed = Rate::from_bps(400_000_000);
        let policer = watched(|sent| sent.min(policed));
        assert!(matches!(policer.state, State::Held { .. }), "{policer:?}");
        let held = policer.limit(SENT);
        assert!(held < policed && held > policed.percent(97), "{held:?}");
    }

    #[test]
    fn what_chance_takes_limits_nothing() {
        let policer = watched(|sent| sent.percent(80));
        assert!(!policer.limits(), "{policer:?}");
        assert_eq!(policer.limit(SENT), SENT);
    }

    #[test]
    fn a_queue_that_appears_ends_what_was_held() {
        let mut policer = watched(|sent| sent.min(Rate::from_bps(400_000_000)));
        let arrivals = Arrivals {
            acked_bytes: 1_500,
            rtt_ns: RTT_NS,
            shown: SENT,
            tells: true,
            queued: true,
        };
        policer.handle_ack(Time::from_ns(3 * SECOND_NS), &arrivals);
        assert!(!policer.limits());
    }
}
