//! The default control: a model of the path, in the manner of BBR.
//!
//! It keeps two figures, the arrival rate that the path has shown and its base round-trip time, and
//! sends what they multiply to. Random loss does not enter. It differs from BBR
//! (draft-cardwell-iccrg-bbr-congestion-control) where bulk transfers on long paths are hurt by it:
//!
//! * **Start.** The dispersion of the first back-to-back packets yields a first rate after one
//!   round trip; a longer paced train confirms it after the second. Doubling per round trip needs 9
//!   round trips for 1 Gb/s x 100 ms and then overshoots by a whole bandwidth-delay product.
//! * **Probe.** A burst of bounded length at 125 %, repaid at once, instead of a full round trip:
//!   what it shows arrives a round trip later either way, and the queue that it costs no longer
//!   grows with distance.
//! * **Queue.** While no other flow keeps the bottleneck's queue filled, a standing queue means
//!   that the model is too high, and the rate yields until the queue is gone. If the queue does not
//!   fall although the flow yields, another flow fills it (a flow of this kind would yield too, and
//!   the queue would fall). Then the flow takes the window that CUBIC would have, which neither
//!   starves such a neighbour nor is starved by it, until the queue empties (Copa's competitive
//!   mode). It does the same if a shallow queue that the flow did not fill overflows repeatedly,
//!   see [`competition`].
//!   Where a queue stands and less arrives than leaves, a newcomer sends too: the rate is then what
//!   arrives. A host that stalls delays packets as a queue does, but its delay is gone at once;
//!   while it is expected to stall again, only what stands longer than a stall is a queue.
//! * **A short queue** that no delay tells from noise is given away by loss that lasts: bursts come
//!   less often, and the pace falls by up to 2 %, see [`ease`].
//! * **A queue shorter than a batch** loses a part of each: batches become shorter, where that
//!   helps, see [`batches`].
//! * **Loss** counts as congestion only in that mode, or where it comes with a queue and exceeds
//!   [`CONGESTION_LOSS_PERCENT`].
//! * **Marks** of a router show that its queue fills, before any delay does. They count as
//!   congestion above [`CONGESTION_MARK_PERCENT`], so that those of a short burst do not.

mod batches;
mod competition;
mod ease;

use crate::controller::{Ack, Controller, Loss, Marks, Rate, RateSample, Remembered, Snapshot};
use crate::filter::WindowedMax;
use crate::pacer::BATCH_BYTES;
use crate::resume::CarefulResume;
use crate::time::{MILLISECOND_NS, SECOND_NS, Time};
use crate::window::{Cubic, Window};
use batches::Batches;
use competition::{Competition, Overflow};
use ease::{Ease, Ended};

/// Model-based control. See the module's text.
#[derive(Debug)]
pub struct Model {
    packet_bytes: u64,
    state: State,
    /// Arrival rates shown by the path, bytes per second, over the last [`BANDWIDTH_WINDOW_RTTS`].
    bandwidth: WindowedMax,
    /// Those of the last [`Model::delivered_ns`]: what the path delivers at present.
    delivered: WindowedMax,
    base: BaseRtt,
    queue: Queue,
    round: Round,
    smoothed_rtt_ns: u64,
    competition: Competition,
    /// The window among flows that fill the queue, while there are any.
    contest: Option<Window<Cubic>>,
    /// The window with which a contest was left to see whether the queue empties.
    left_contest_with: Option<u64>,
    last_round: Round,
    ease: Ease,
    batches: Batches,
    /// Its pace now, thousandths of the rate.
    eased: u64,
    /// How many times longer than usual to wait between bursts.
    patience: u64,
    /// The rate before the latest burst.
    grown_from: Option<Rate>,
    /// Nothing is received: hold back until the path answers again.
    stalled: bool,
    /// While the rate of an earlier connection helps to start.
    resume: Option<CarefulResume>,
    /// Wire bytes that left since the climb began; counted while [`Model::resume`] is there.
    sent_bytes: u64,
    random: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first packets, back to back: their dispersion is the first estimate.
    Train {
        answered_at: Option<Time>,
        best: Rate,
        /// The peer has reported on the whole train.
        told: bool,
    },
    /// A paced train of bounded size, longer each time, until arrivals fall behind departures.
    Climb {
        pace: Rate,
        cap_bytes: u64,
        started: Time,
        best: Rate,
    },
    /// Hold the rate.
    Cruise { until: Time },
    /// A burst above the rate to see whether the path carries more.
    Up { until: Time, started: Time },
    /// Repay the burst.
    Down { until: Time },
    /// Half a window in flight so that the queue empties and the base round-trip time shows.
    Drain { until: Time },
}

const INITIAL_WINDOW_PACKETS: u64 = 64;
const WINDOW_PACKETS_MIN: u64 = 32;
const FLOOR_NS: u64 = 100 * MILLISECOND_NS;
const BANDWIDTH_WINDOW_RTTS: u64 = 10;
const BANDWIDTH_WINDOW_NS_MIN: u64 = 200 * MILLISECOND_NS;
const INITIAL_RTT_NS: u64 = 100 * MILLISECOND_NS;

const TRAIN_GAIN: u64 = 125;
const CLIMB_GAIN: u64 = 200;
/// Arrivals below this share of the pace mean that the path, not the pace, set them.
const SATURATED_PERCENT: u64 = 88;
/// Each train of the climb may be this much longer than the one before.
const CLIMB_FACTOR: u64 = 16;
/// … and lasts at least this long, so that its rate can be measured.
const CLIMB_NS_MIN: u64 = 3 * MILLISECOND_NS;
/// The climb resumes at this gain after a burst that passed whole.
const RESUME_GAIN: u64 = 150;

const UP_GAIN: u64 = 125;
const DOWN_GAIN: u64 = 75;
/// The reduction of the pace for a standing queue, at once and after each further round trip: two
/// flows that both overestimate their share slightly must together fall below the link's rate.
const YIELD_GAIN: u64 = 92;
const YIELD_STEP: u64 = 5;
const YIELD_GAIN_MIN: u64 = 65;
/// Less than this share of the pace arrives: the rest lengthens the queue.
const SHORT_PERCENT: u64 = 90;
/// On shorter paths a stalled thread looks the same: 3 of 11 loopback runs lost their rate.
const SHORTFALL_BASE_NS_MIN: u64 = 5 * MILLISECOND_NS;
/// The longest burst and its repayment; longer than most threads are late.
const DELIVERED_NS_MIN: u64 = 2 * UP_NS_MAX;
const YIELD_ROUND_NS_MIN: u64 = 20 * MILLISECOND_NS;
const UP_NS_MIN: u64 = 4 * MILLISECOND_NS;
const UP_NS_MAX: u64 = 20 * MILLISECOND_NS;
/// Growth shown by a burst that makes the next one follow at once.
const GROWTH_PERCENT: u64 = 108;
/// Growth that leaves no doubt: the burst passed whole.
const PASSED_PERCENT: u64 = 118;
const CRUISE_RTTS: u64 = 5;
const CRUISE_NS_MIN: u64 = 60 * MILLISECOND_NS;

const WINDOW_GAIN: u64 = 200;
/// Congestion: this share of a round's packets lost while a queue stands.
const CONGESTION_LOSS_PERCENT: u64 = 2;
/// This share of marked bytes in a round means the same without any loss.
const CONGESTION_MARK_PERCENT: u64 = 20;
/// Also what RFC 8511 takes off for a mark.
const CONGESTION_GAIN: u64 = 85;
const PATIENCE_MAX: u64 = 8;
/// A neighbour is remembered for so long at least.
const NEIGHBOUR_NS_MIN: u64 = 3 * SECOND_NS;
/// A queue that overflows after it has stood for so long is not a burst's.
const STOOD_RTTS: u64 = 2;
const STOOD_NS_MIN: u64 = 35 * MILLISECOND_NS;
/// A newcomer to a contest begins a little below what it had.
const CONTEST_ENTRY: u64 = 80;

const BASE_RTT_EXPIRES_NS: u64 = 10 * SECOND_NS;
const DRAIN_NS_MIN: u64 = 20 * MILLISECOND_NS;

/// The least round-trip time seen, and when it was last seen or nearly so.
#[derive(Debug)]
struct BaseRtt {
    ns: Option<u64>,
    confirmed: Time,
}

/// How long packets wait at the bottleneck: the least of each short epoch, so that scheduling noise
/// does not count.
#[derive(Debug, Default)]
struct Queue {
    epoch_start: Time,
    epoch_min_ns: Option<u64>,
    /// The least of the latest epochs, newest first.
    minima_ns: [u64; EPOCHS],
    /// A host has stalled: until then, only a delay that outlasts a stall counts as a queue.
    noisy_until: Time,
    delay_ns: u64,
    /// Since when the queue has been standing without a break.
    standing_since: Option<Time>,
    /// Its length when it last fell by an eighth, or has grown to since, and when it last fell.
    mark_ns: u64,
    fell: Time,
    /// Another flow keeps it standing.
    contested: bool,
}

/// Counters since the round began; a round is a smoothed round-trip time.
#[derive(Debug, Default)]
struct Round {
    started: Time,
    acked_bytes: u64,
    lost_bytes: u64,
    marked_bytes: u64,
    best: Rate,
    /// The longest that the queue was, and the shortest.
    queue_ns: u64,
    least_queue_ns: Option<u64>,
    /// The longest time for which it had been standing.
    stood_ns: u64,
}

impl Round {
    fn is_marked(&self) -> bool {
        self.marked_bytes * 100 > self.acked_bytes * CONGESTION_MARK_PERCENT
    }
}

impl Model {
    /// Makes a control for packets of `packet_bytes` wire bytes; `seed` keeps competing flows from
    /// probing in step.
    #[must_use]
    pub fn new(packet_bytes: u64, seed: u64) -> Self {
        Self {
            packet_bytes,
            state: State::Train {
                answered_at: None,
                best: Rate::default(),
                told: false,
            },
            bandwidth: WindowedMax::new(SECOND_NS),
            delivered: WindowedMax::new(DELIVERED_NS_MIN),
            base: BaseRtt {
                ns: None,
                confirmed: Time::ZERO,
            },
            queue: Queue::default(),
            round: Round::default(),
            smoothed_rtt_ns: INITIAL_RTT_NS,
            competition: Competition::new(),
            contest: None,
            left_contest_with: None,
            last_round: Round::default(),
            ease: Ease::new(),
            batches: Batches::default(),
            eased: 1_000,
            patience: 1,
            grown_from: None,
            stalled: false,
            resume: None,
            sent_bytes: 0,
            random: seed | 1,
        }
    }

    fn base_ns(&self) -> u64 {
        self.base.ns.unwrap_or(self.smoothed_rtt_ns)
    }

    fn rate(&self) -> Rate {
        Rate::from_bytes_per_second(self.bandwidth.value().unwrap_or(0))
    }

    fn bdp_bytes(&self) -> u64 {
        self.rate().bytes_in(self.base_ns())
    }

    /// A delay beyond this is a queue and not noise.
    fn queue_threshold_ns(&self) -> u64 {
        (self.base_ns() / 24).max(3 * MILLISECOND_NS / 2)
    }

    /// The bottleneck's queue is longer than noise, or its router marks packets.
    fn fills_queue(&self) -> bool {
        self.queue.delay_ns > self.queue_threshold_ns() || self.round.is_marked()
    }

    fn is_starting(&self) -> bool {
        matches!(self.state, State::Train { .. } | State::Climb { .. })
    }

    fn take_rtt(&mut self, now: Time, rtt_ns: u64) {
        let threshold_ns = self.queue_threshold_ns();
        let base = self.base.ns.get_or_insert(rtt_ns);
        if rtt_ns <= *base + threshold_ns / 2 {
            *base = rtt_ns.min(*base);
            self.base.confirmed = now;
        }
        let over_base_ns = rtt_ns - (*base).min(rtt_ns);
        let round_ns = self.smoothed_rtt_ns;
        self.queue.take(now, over_base_ns, threshold_ns, round_ns);
        let delay_ns = self.queue.delay_ns;
        self.round.queue_ns = self.round.queue_ns.max(delay_ns);
        let least = self.round.least_queue_ns.get_or_insert(delay_ns);
        *least = delay_ns.min(*least);
        self.round.stood_ns = self.round.stood_ns.max(self.queue.stood_ns());
    }

    /// The longest queue of this round and the one before: losses are known later than the queue
    /// that they came from.
    fn recent_queue_ns(&self) -> u64 {
        self.round.queue_ns.max(self.last_round.queue_ns)
    }

    fn take_arrival(&mut self, now: Time, sample: RateSample) {
        let window_ns = (BANDWIDTH_WINDOW_RTTS * self.smoothed_rtt_ns).max(BANDWIDTH_WINDOW_NS_MIN);
        self.bandwidth.set_window(window_ns);
        self.round.best = self.round.best.max(sample.rate);
        let (base_ns, delivered_ns) = (self.base_ns(), self.delivered_ns());
        match &mut self.state {
            State::Train {
                answered_at,
                best,
                told,
            } => {
                answered_at.get_or_insert(now);
                *best = sample.rate.max(*best);
                *told |= sample.whole_train;
            }
            // Packets that arrive within the first round trip left before the climb began: a sample
            // that reaches back there includes time in which nothing was sent. Samples limited by
            // the application are no measurement of the path.
            State::Climb { best, started, .. }
                if now.since(*started) >= base_ns + sample.interval_ns && !sample.app_limited =>
            {
                *best = sample.rate.max(*best);
            }
            State::Climb { .. } => {}
            _ => {
                let limited = sample.app_limited || sample.late;
                if !limited || sample.rate > self.rate() {
                    self.bandwidth.update(now, sample.rate.bytes_per_second());
                    self.delivered.set_window(delivered_ns);
                    self.delivered.update(now, sample.rate.bytes_per_second());
                    self.follow_shortfall(now);
                }
            }
        }
    }

    /// The window of [`Model::delivered`]: its greatest arrival rate is what the path delivers at
    /// present.
    fn delivered_ns(&self) -> u64 {
        (self.base_ns() / 2).max(DELIVERED_NS_MIN)
    }

    /// A queue stands, and less arrives than leaves: the rest lengthens it, so the path has less
    /// left than it has shown.
    fn follow_shortfall(&mut self, now: Time) {
        let cruises = matches!(self.state, State::Cruise { .. }) && self.contest.is_none();
        let delivered = Rate::from_bytes_per_second(self.delivered.value().unwrap_or(0));
        if cruises
            && self.base_ns() >= SHORTFALL_BASE_NS_MIN
            && self.queue.stood_ns() > self.delivered_ns()
            && delivered < self.pacing_rate().percent(SHORT_PERCENT)
        {
            self.bandwidth.reset(now, delivered.bytes_per_second());
        }
    }

    /// Ends the round when its time has come: loss together with a queue means congestion, and so
    /// do marks.
    fn turn_round(&mut self, now: Time) {
        if now.since(self.round.started) < self.smoothed_rtt_ns {
            return;
        }
        let sent = self.round.acked_bytes + self.round.lost_bytes;
        let overflows = self.round.lost_bytes * 100 > sent * CONGESTION_LOSS_PERCENT
            && self.queue.delay_ns > self.queue_threshold_ns();
        let congested = self.contest.is_none() && (overflows || self.round.is_marked());
        if congested && !self.is_starting() && self.round.best > Rate::default() {
            let yielded = self.round.best.min(self.rate()).percent(CONGESTION_GAIN);
            self.bandwidth.reset(now, yielded.bytes_per_second());
        }
        self.note_cost(now, sent);
        self.judge_competition(now, sent);
        self.judge_ease(now, sent);
        let free = !self.is_starting() && self.contest.is_none();
        if self.queue.is_noisy(now) || self.recent_queue_ns() > self.queue_threshold_ns() / 2 {
            self.batches.handle_queue();
        } else if free {
            self.batches.handle_round(self.round.lost_bytes, sent);
        }
        let next = Round {
            started: now,
            ..Round::default()
        };
        self.last_round = std::mem::replace(&mut self.round, next);
    }

    fn judge_competition(&mut self, now: Time, sent_bytes: u64) {
        let packets = |bytes: u64| bytes / self.packet_bytes.max(1);
        let (lost_packets, sent_packets) = (packets(self.round.lost_bytes), packets(sent_bytes));
        let (queue_ns, threshold_ns) = (self.recent_queue_ns(), self.queue_threshold_ns());
        self.competition.handle_round(lost_packets, sent_packets);
        let growing = self.contest.is_some();
        let stood_ns = self.round.stood_ns.max(self.last_round.stood_ns);
        let own_burst = stood_ns < (STOOD_RTTS * self.smoothed_rtt_ns).max(STOOD_NS_MIN);
        if queue_ns <= threshold_ns || self.is_starting() || (own_burst && !growing) {
            return;
        }
        let overflow = Overflow {
            lost_packets,
            sent_packets,
            rtt_ns: self.smoothed_rtt_ns,
            growing,
        };
        if self.competition.handle_overflow(now, &overflow) {
            self.queue.forget_standing();
        }
    }

    /// Another flow fills the queue, permanently or from time to time.
    fn is_contested(&self, now: Time) -> bool {
        let memory_ns = self
            .contest
            .as_ref()
            .map_or(0, |contest| contest.law().regain_ns())
            * 3
            / 2;
        let remembered = memory_ns.max(NEIGHBOUR_NS_MIN);
        self.queue.contested || self.competition.has_neighbour(now, remembered)
    }

    /// Bursts that overflow the queue and show nothing come less often: also where the queue is too
    /// short to be told from noise otherwise, unless hosts stall, which looks like it.
    fn note_cost(&mut self, now: Time, sent_bytes: u64) {
        let threshold_ns = self.queue_threshold_ns();
        let is_filled = if self.queue.is_noisy(now) {
            self.queue.delay_ns > threshold_ns / 2
        } else {
            self.recent_queue_ns() > threshold_ns / 4
        };
        // Random loss is not the bursts'.
        let chance_bytes = self.competition.lost_by_chance(sent_bytes);
        let by_burst = self.round.lost_bytes.saturating_sub(chance_bytes);
        if is_filled && by_burst * 100 > sent_bytes * CONGESTION_LOSS_PERCENT {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
    }

    fn judge_ease(&mut self, now: Time, sent_bytes: u64) {
        let ended = Ended {
            rtt_ns: self.smoothed_rtt_ns,
            delay_ns: self.round.least_queue_ns.unwrap_or(0),
            lost_bytes: self.round.lost_bytes,
            sent_bytes,
        };
        let cruises = matches!(self.state, State::Cruise { .. }) && self.contest.is_none();
        let may = cruises
            && !self.yields()
            && !self.queue.is_noisy(now)
            && ended.delay_ns > self.queue_threshold_ns() / 4;
        self.ease.handle_round(now, &ended, may);
    }

    fn advance(&mut self, now: Time, in_flight_bytes: u64) {
        self.eased = self.ease.gain(now);
        match self.state {
            State::Train {
                answered_at: Some(at),
                best,
                told,
            } => {
                // Packets that follow the train within its window are acknowledged a round trip
                // later.
                let answered =
                    told || in_flight_bytes < INITIAL_WINDOW_PACKETS / 4 * self.packet_bytes;
                if best > Rate::default() && (answered || now.since(at) > self.smoothed_rtt_ns / 4)
                {
                    if let Some(resume) = &mut self.resume {
                        resume.handle_train(best);
                    }
                    self.climb(
                        now,
                        best.percent(TRAIN_GAIN),
                        INITIAL_WINDOW_PACKETS * self.packet_bytes,
                    );
                }
            }
            State::Train { .. } => {}
            State::Climb {
                pace,
                cap_bytes,
                started,
                best,
            } => {
                let train_ns = pace.time_for(cap_bytes).min(self.smoothed_rtt_ns);
                let judged = now.since(started) > self.smoothed_rtt_ns + train_ns + MILLISECOND_NS;
                // A delay alone may be a late thread's.
                let is_sure = self.round.is_marked() || best > Rate::default();
                let passed_rtt = now.since(started) > self.smoothed_rtt_ns;
                if judged || passed_rtt && is_sure && self.fills_queue() {
                    self.judge_climb(now, pace, cap_bytes, best);
                }
            }
            State::Cruise { .. } if self.base_expired(now) && self.contest.is_none() => {
                let drain_ns = self.smoothed_rtt_ns.max(DRAIN_NS_MIN) + DRAIN_NS_MIN;
                self.state = State::Drain {
                    until: now.after(drain_ns),
                };
            }
            // A burst into a queue that stands would only make it overflow.
            State::Cruise { until }
                if now >= until && self.contest.is_none() && !self.queue.stands() =>
            {
                self.probe(now);
            }
            State::Up { until, started } if now >= until => {
                // A flow that fell silent during the burst has repaid it already.
                let longest_ns = until.since(started) + self.smoothed_rtt_ns;
                self.state = State::Down {
                    until: now.after(now.since(started).min(longest_ns)),
                };
            }
            State::Down { until } if now >= until => self.cruise(now),
            State::Drain { until } if now >= until => {
                self.base.confirmed = now;
                self.queue.contested = false;
                self.cruise(now);
            }
            State::Cruise { .. } | State::Up { .. } | State::Down { .. } | State::Drain { .. } => {}
        }
    }

    fn climb(&mut self, now: Time, pace: Rate, last_cap_bytes: u64) {
        let wanted = pace.bytes_in(self.base_ns() * 5 / 4) + self.slack_bytes(pace);
        let longer = last_cap_bytes
            .saturating_mul(CLIMB_FACTOR)
            .max(pace.bytes_in(CLIMB_NS_MIN));
        let cap_bytes = wanted.min(longer);
        self.sent_bytes = 0;
        self.state = State::Climb {
            pace,
            cap_bytes,
            started: now,
            best: Rate::default(),
        };
    }

    fn judge_climb(&mut self, now: Time, pace: Rate, cap_bytes: u64, best: Rate) {
        self.resume = None;
        let fills = self.fills_queue();
        // Arrivals so far are better evidence than another train into a queue would be.
        let best = if best == Rate::default() && fills {
            self.round.best.max(self.last_round.best)
        } else {
            best
        };
        let saturated = best < pace.percent(SATURATED_PERCENT);
        if best == Rate::default() {
            self.climb(now, pace, cap_bytes);
        } else if saturated || fills {
            self.bandwidth.reset(now, best.bytes_per_second());
            self.cruise(now);
        } else {
            self.climb(now, best.percent(CLIMB_GAIN), cap_bytes);
        }
    }

    fn base_expired(&self, now: Time) -> bool {
        now.since(self.base.confirmed) > BASE_RTT_EXPIRES_NS
    }

    fn cruise(&mut self, now: Time) {
        let rtts = CRUISE_RTTS * 16 + self.random_below(2 * 16);
        let length_ns = (self.base_ns() * rtts / 16).max(CRUISE_NS_MIN) * self.patience;
        self.state = State::Cruise {
            until: now.after(length_ns),
        };
    }

    fn probe(&mut self, now: Time) {
        let length_ns = (2 * self.base_ns()).clamp(UP_NS_MIN, UP_NS_MAX);
        self.state = State::Up {
            until: now.after(length_ns),
            started: now,
        };
    }

    /// Enters, follows or leaves the competition with flows that keep the queue filled.
    fn follow_contest(&mut self, now: Time, ack: &Ack) {
        if self.is_starting() {
            return;
        }
        let contested = self.is_contested(now);
        match (&mut self.contest, contested) {
            (None, true) => {
                let recent = self.round.best.max(self.last_round.best).min(self.rate());
                let held = recent.percent(CONTEST_ENTRY).bytes_in(self.smoothed_rtt_ns);
                let window = self.left_contest_with.take().unwrap_or(held);
                self.contest = Some(Window::resume(self.packet_bytes, window));
                self.cruise(now);
            }
            (Some(contest), true) => contest.handle_ack(now, ack),
            (Some(contest), false) => {
                let share = Rate::of(contest.window_bytes(), self.smoothed_rtt_ns);
                self.bandwidth.reset(now, share.bytes_per_second());
                self.left_contest_with = Some(contest.window_bytes());
                self.contest = None;
            }
            (None, false) if !self.queue.stands() => self.left_contest_with = None,
            (None, false) => {}
        }
    }

    /// A burst has shown more than was known: look further without waiting for the next turn.
    fn follow_growth(&mut self, now: Time, known: Rate) {
        self.grown_from = self
            .grown_from
            .filter(|_| !matches!(self.state, State::Climb { .. }));
        let from = *self.grown_from.get_or_insert(known);
        if !matches!(self.state, State::Cruise { .. }) {
            return;
        }
        if self.contest.is_some() || self.queue.stands() {
            self.grown_from = None;
        } else if self.rate() > from.percent(PASSED_PERCENT) {
            let in_flight = self.bdp_bytes();
            self.climb(now, self.rate().percent(RESUME_GAIN), in_flight);
            self.grown_from = None;
        } else if self.rate() > from.percent(GROWTH_PERCENT) {
            self.probe(now);
            self.patience = 1;
            self.ease.forget();
            self.grown_from = None;
        }
    }

    fn random_below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// The pace behind a paced train of `train_bytes` that has left.
    fn pace_behind(&self, train_bytes: u64) -> Option<Rate> {
        let resume = self.resume.as_ref()?;
        let rate = resume.rate()?.max(self.floor());
        (self.sent_bytes >= train_bytes).then_some(rate)
    }

    /// Bytes that may be in flight after a train.
    fn behind_bytes(&self) -> u64 {
        self.resume.as_ref().map_or(0, CarefulResume::window_bytes)
    }

    /// A slower rate could not be measured; the window still limits a slower path.
    fn floor(&self) -> Rate {
        let window = WINDOW_PACKETS_MIN * self.packet_bytes;
        Rate::of(window, self.base_ns().max(FLOOR_NS))
    }

    /// Extra bytes in flight, beyond the bandwidth-delay product, that delayed feedback and
    /// batching need.
    fn slack_bytes(&self, rate: Rate) -> u64 {
        rate.bytes_in(2 * MILLISECOND_NS) + WINDOW_PACKETS_MIN * self.packet_bytes
    }

    fn yield_gain(&self) -> u64 {
        let rounds = self.queue.stood_ns() / self.smoothed_rtt_ns.max(YIELD_ROUND_NS_MIN);
        YIELD_GAIN
            .saturating_sub(YIELD_STEP * rounds)
            .max(YIELD_GAIN_MIN)
    }

    /// The model is too high, and no other flow causes the queue.
    fn yields(&self) -> bool {
        self.contest.is_none() && self.queue.delay_ns > self.queue_threshold_ns()
    }
}

impl Queue {
    fn stands(&self) -> bool {
        self.standing_since.is_some()
    }

    fn stood_ns(&self) -> u64 {
        self.standing_since
            .map_or(0, |at| self.epoch_start.since(at))
    }

    /// A host has stalled, and is expected to do so again.
    fn is_noisy(&self, now: Time) -> bool {
        now < self.noisy_until
    }

    fn forget_standing(&mut self) {
        self.standing_since = None;
        self.contested = false;
    }

    fn take(&mut self, now: Time, over_base_ns: u64, threshold_ns: u64, round_ns: u64) {
        let epoch_ns = (round_ns / 8).clamp(EPOCH_NS_MIN, EPOCH_NS_MAX);
        let least = self
            .epoch_min_ns
            .map_or(over_base_ns, |min| min.min(over_base_ns));
        self.epoch_min_ns = Some(least);
        let elapsed_ns = now.since(self.epoch_start);
        if elapsed_ns < epoch_ns {
            return;
        }
        // Whatever stood before a silence has drained, or others keep it standing, which will show.
        if elapsed_ns > SILENT_RTTS * round_ns + EPOCH_NS_MAX {
            self.forget_standing();
        }
        // No queue empties so fast while anybody sends: a host has stalled.
        if self.minima_ns[0].saturating_sub(least) > elapsed_ns / 2 {
            self.noisy_until = now.after(NOISY_NS);
        }
        self.minima_ns.rotate_right(1);
        self.minima_ns[0] = least;
        self.epoch_start = now;
        self.epoch_min_ns = None;
        // Only the newest, unless a host is expected to stall.
        let epochs = match self.is_noisy(now) {
            true => EPOCH_NS_MAX.div_ceil(epoch_ns),
            false => 1,
        };
        let recent = self.minima_ns.iter().zip(0..epochs);
        let least = recent.fold(least, |least, (&ns, _)| least.min(ns));
        self.delay_ns = least;
        if least <= threshold_ns {
            self.forget_standing();
            return;
        }
        let since = *self.standing_since.get_or_insert(now);
        if least * 8 < self.mark_ns * 7 {
            self.fell = now;
            self.mark_ns = least;
        }
        self.mark_ns = self.mark_ns.max(least);
        let outlasted = now.since(since) > (CONTESTED_RTTS * round_ns).max(CONTESTED_NS_MIN);
        if outlasted && now.since(self.fell) > FALLING_RTTS * round_ns {
            self.contested = true;
        }
    }
}

const EPOCH_NS_MIN: u64 = 4 * MILLISECOND_NS;
/// Longer than a host stalls, as a rule.
const EPOCH_NS_MAX: u64 = 20 * MILLISECOND_NS;
const EPOCHS: usize = 5;
/// After so long without an acknowledgement, a flow has been silent.
const SILENT_RTTS: u64 = 4;
/// How long a host that has stalled is expected to do so again.
const NOISY_NS: u64 = SECOND_NS;
/// A queue that outlasts this much yielding, and has not fallen lately, is caused by another flow.
const CONTESTED_RTTS: u64 = 8;
const CONTESTED_NS_MIN: u64 = 150 * MILLISECOND_NS;
const FALLING_RTTS: u64 = 2;

impl Controller for Model {
    fn handle_ack(&mut self, now: Time, ack: &Ack) {
        self.smoothed_rtt_ns = ack.smoothed_rtt_ns;
        self.stalled = false;
        self.round.acked_bytes += ack.acked_bytes;
        self.competition
            .handle_ack(now, ack.acked_bytes, ack.smoothed_rtt_ns);
        if let Some(rtt_ns) = ack.rtt_ns {
            self.take_rtt(now, rtt_ns);
            if let Some(resume) = &mut self.resume {
                resume.handle_rtt(rtt_ns);
            }
        }
        if let Some(sample) = ack.arrival {
            let known = self.rate();
            self.take_arrival(now, sample);
            if known > Rate::default() {
                self.follow_growth(now, known);
            }
        }
        self.turn_round(now);
        self.follow_contest(now, ack);
        self.advance(now, ack.in_flight_bytes);
    }

    fn handle_loss(&mut self, now: Time, loss: &Loss) {
        self.round.lost_bytes += loss.lost_bytes;
        if let Some(resume) = &mut self.resume {
            resume.handle_loss(loss.lost_bytes);
        }
        let overflow = self.recent_queue_ns() > self.queue_threshold_ns();
        if let Some(contest) = self.contest.as_mut().filter(|_| overflow) {
            contest.handle_loss(now, loss);
            // The queue has just overflowed, for everybody: the moment to see whether it empties
            // when the flow yields. It does where the neighbours yield too.
            self.queue.forget_standing();
        }
    }

    fn handle_marks(&mut self, now: Time, marks: &Marks) {
        self.round.marked_bytes += marks.marked_bytes;
        self.resume = None;
        if let Some(contest) = &mut self.contest {
            contest.handle_marks(now, marks);
        }
    }

    fn handle_sent(&mut self, bytes: u64) {
        if let Some(resume) = &mut self.resume {
            resume.handle_sent(bytes);
            self.sent_bytes += bytes;
        }
    }

    fn resume(&mut self, remembered: Remembered, rtt_ns: Option<u64>) {
        let mut resume = CarefulResume::new(remembered);
        if let Some(rtt_ns) = rtt_ns {
            resume.handle_rtt(rtt_ns);
        }
        self.resume = Some(resume);
    }

    fn shown(&self) -> Option<Remembered> {
        let rate = self.rate();
        let is_known = !self.is_starting() && rate > Rate::default();
        is_known.then(|| Remembered {
            rate,
            rtt_ns: self.base_ns(),
        })
    }

    fn handle_timeout(&mut self, _now: Time) {
        self.stalled = true;
        self.resume = None;
    }

    fn pacing_rate(&self) -> Rate {
        if let (Some(contest), State::Cruise { .. }) = (&self.contest, self.state) {
            return contest.pacing_rate().max(self.floor());
        }
        let gain = match self.state {
            State::Train { .. } => return Rate::UNLIMITED,
            State::Climb {
                pace, cap_bytes, ..
            } => {
                return self
                    .pace_behind(cap_bytes)
                    .unwrap_or_else(|| pace.max(self.floor()));
            }
            State::Up { .. } => UP_GAIN,
            State::Down { .. } => DOWN_GAIN,
            State::Cruise { .. } if self.yields() => self.yield_gain(),
            State::Cruise { .. } => return self.rate().per_mille(self.eased).max(self.floor()),
            State::Drain { .. } => 100,
        };
        self.rate().percent(gain).max(self.floor())
    }

    fn window_bytes(&self) -> u64 {
        let initial = INITIAL_WINDOW_PACKETS * self.packet_bytes;
        if self.stalled {
            return initial;
        }
        if let (Some(contest), State::Cruise { .. }) = (&self.contest, self.state) {
            return contest.window_bytes();
        }
        match self.state {
            State::Train { .. } => initial,
            // A train whose acknowledgement was very late shows a rate of next to nothing. The
            // window that follows from it must still take a packet, or nothing would ever show
            // another rate.
            State::Climb { cap_bytes, .. } => {
                (cap_bytes + self.behind_bytes()).max(2 * self.packet_bytes)
            }
            State::Drain { .. } => {
                (self.bdp_bytes() / 2).max(WINDOW_PACKETS_MIN * self.packet_bytes)
            }
            State::Cruise { .. } | State::Up { .. } | State::Down { .. } => {
                self.bdp_bytes() * WINDOW_GAIN / 100 + self.slack_bytes(self.rate())
            }
        }
    }

    fn batch_bytes(&self) -> u64 {
        self.batches.limit(BATCH_BYTES)
    }

    fn sampling_interval_ns(&self) -> u64 {
        match self.state {
            State::Train { .. } => return 0,
            // Most of the train, so that stalls and bursts on the way average out.
            State::Climb {
                pace, cap_bytes, ..
            } => {
                let train_ns = pace.time_for(cap_bytes).min(self.smoothed_rtt_ns);
                return train_ns * 3 / 4;
            }
            _ => {}
        }
        (self.base_ns() / 2).clamp(UP_NS_MIN / 2, UP_NS_MAX / 2)
    }

    fn feedback_interval_ns(&self) -> u64 {
        // A train is short, and its report is needed at once.
        self.sampling_interval_ns() / if self.is_starting() { 8 } else { 2 }
    }

    fn snapshot(&self) -> Snapshot {
        let state = match self.state {
            State::Train { .. } => "model/train",
            State::Climb { .. } => "model/climb",
            State::Cruise { .. } if self.yields() => "model/yield",
            State::Cruise { .. } if self.contest.is_some() => "model/contest",
            State::Cruise { .. } => "model/cruise",
            State::Up { .. } => "model/up",
            State::Down { .. } => "model/down",
            State::Drain { .. } => "model/drain",
        };
        Snapshot {
            state,
            pacing: self.pacing_rate(),
            window_bytes: self.window_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledgements of a path of 10 ms, one each millisecond, whose delays grow by `slope_us`.
    fn feed(queue: &mut Queue, span_ms: std::ops::Range<u64>, first_us: i64, slope_us: i64) {
        for (at_ms, step) in span_ms.zip(0..) {
            let over_us = u64::try_from(first_us + slope_us * step).expect("no negative delay");
            let now = Time::from_ns(at_ms * MILLISECOND_NS);
            queue.take(now, over_us * 1_000, 1_500_000, 10 * MILLISECOND_NS);
        }
    }

    #[test]
    fn what_is_gone_at_once_is_no_queue_from_then_on() {
        let mut queue = Queue::default();
        feed(&mut queue, 1..40, 0, 0);
        feed(&mut queue, 40..50, 8_000, 0);
        assert!(queue.stands(), "the first is not told from a queue");
        feed(&mut queue, 50..100, 0, 0);
        feed(&mut queue, 100..114, 8_000, 0);
        assert!(!queue.stands() && queue.delay_ns == 0);
        feed(&mut queue, 114..130, 8_000, 0);
        assert!(queue.stands(), "it outlasts a stall");
    }

    #[test]
    fn a_queue_that_drains_is_no_stall() {
        let mut queue = Queue::default();
        feed(&mut queue, 1..40, 0, 250);
        feed(&mut queue, 40..68, 9_750, -350);
        feed(&mut queue, 68..80, 0, 0);
        assert!(!queue.stands());
        feed(&mut queue, 80..90, 8_000, 0);
        assert!(queue.stands());
    }
}
