//! How long each run of a profile sends, and which there is time for.

use std::time::Duration;

use super::Step;

/// A run takes so much longer than it sends, where it is not known better.
const OVERHEAD: Duration = Duration::from_millis(400);
/// Round trips of a run, and the fewest.
const ROUND_TRIPS: u32 = 60;
const ROUND_TRIPS_MIN: u32 = 40;
/// Round trips until a flow has found its rate and repaired its losses.
const RAMP: u32 = 25;
/// A run of fewer is a ramp, for the most part.
pub(super) const ALL_RAMP: u32 = 20;
/// The longest and the shortest run that is long enough; where the time is short, runs are shorter.
const ENOUGH: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(10);
pub(super) const SHORTEST: Duration = Duration::from_millis(800);
/// The part of the time that is planned with: the rest is for steps that take longer than thought.
const PLANNED: f64 = 0.92;

/// The beginning of a run that does not count: its first quarter, and the ramp, as far as half of
/// the run remains.
#[must_use]
pub fn omitted(time: Duration, rtt: Option<Duration>) -> Duration {
    let ramp = rtt.unwrap_or_default() * RAMP;
    ramp.min(time / 2).max(time / 4)
}

/// How long runs send, so that all fit into the budget.
#[derive(Debug)]
pub(super) struct Schedule {
    budget: Duration,
    /// A shorter run is less accurate.
    least: Duration,
    /// A longer one is no more accurate.
    most: Duration,
    /// The recent overhead of a run beyond its sending time.
    overhead: Duration,
    /// The part of the next step that there is time for; it is taken once it is whole.
    credit: f64,
    /// The sending time of the latest run; `None` before the first, which is always taken.
    latest: Option<Duration>,
}

impl Schedule {
    /// For a path of this round trip, on which the first run took so much longer than it sent.
    pub(super) fn new(budget: Duration, rtt: Option<Duration>, overhead: Duration) -> Self {
        let trips =
            |count: u32, most: Duration| rtt.map_or(most, |rtt| (rtt * count).clamp(ENOUGH, most));
        let most = trips(ROUND_TRIPS, LONGEST);
        Self {
            budget: budget.mul_f64(PLANNED),
            least: trips(ROUND_TRIPS_MIN, LONGEST).min(most),
            most,
            overhead: overhead.max(OVERHEAD),
            credit: 1.0,
            latest: None,
        }
    }

    /// The steps that there is time for, and in words which are not among them. Steps of the last
    /// rank are left out first, those of the first rank never.
    pub(super) fn choose(&self, steps: Vec<Step>, spent: Duration) -> (Vec<Step>, Option<String>) {
        let left = self.budget.saturating_sub(spent);
        let cost = |step: &Step| self.least + self.beyond(step);
        let of_rank = |rank: u8| -> Duration {
            let steps = steps.iter().filter(|step| step.rank <= rank);
            steps.map(cost).sum()
        };
        let last = steps.iter().map(|step| step.rank).max().unwrap_or(0);
        let mut ranks = (0..=last).rev();
        let rank = ranks.find(|rank| of_rank(*rank) <= left).unwrap_or(0);
        let minutes = (spent + of_rank(last)).div_f64(PLANNED).as_secs() / 60 + 1;
        let count = steps.len();
        let (taken, without): (Vec<_>, Vec<_>) =
            steps.into_iter().partition(|step| step.rank <= rank);
        let why = (!without.is_empty()).then(|| {
            let words: Vec<String> = without.iter().map(Step::words).collect();
            format!(
                "{} of {count} steps, which tell the least, for which --max-time {minutes}m would do: {}",
                without.len(),
                words.join("; ")
            )
        });
        (taken, why)
    }

    /// The overhead of a step beyond its sending time.
    fn beyond(&self, step: &Step) -> Duration {
        let (count, more) = step.overheads();
        self.overhead * count + more
    }

    /// How long the first of `steps`, which remain, is to send; none where there is no time for it.
    /// Where not all fit even if they are short, some of every part are left out rather than the
    /// last parts.
    pub(super) fn time(&mut self, spent: Duration, steps: &[Step]) -> Option<Duration> {
        let left = self.budget.saturating_sub(spent);
        let beyond: Duration = steps.iter().map(|step| self.beyond(step)).sum();
        let count = u32::try_from(steps.len()).unwrap_or(u32::MAX).max(1);
        let first = steps
            .first()
            .map_or(SHORTEST, |step| SHORTEST + self.beyond(step));
        if left < first && self.latest.is_some() {
            return None;
        }
        let fit = left.as_secs_f64() / (SHORTEST * count + beyond).as_secs_f64();
        self.credit += fit.min(1.0);
        if self.credit < 1.0 {
            return None;
        }
        self.credit = (self.credit - 1.0).min(1.0);
        let sends = left.saturating_sub(beyond) / count;
        self.latest = Some(sends.min(self.most).max(SHORTEST));
        self.latest
    }

    /// The approximate time of the remaining steps.
    pub(super) fn left(&self, spent: Duration, steps: &[Step]) -> Duration {
        let sends = self.latest.unwrap_or(self.most);
        let all: Duration = steps.iter().map(|step| sends + self.beyond(step)).sum();
        all.min(self.budget.saturating_sub(spent))
    }

    /// A step that was to send for `time` took so long.
    pub(super) fn took(&mut self, step: &Step, time: Duration, all: Duration) {
        let (count, more) = step.overheads();
        // A stuck step is no estimate for the others.
        let overhead = (all.saturating_sub(time + more) / count).min(self.overhead * 2);
        self.overhead = (self.overhead * 7 + overhead) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::{steps, tests::options};
    use super::*;

    /// Returns the sending time of each step taken, and the total time, if the overhead of a run is
    /// `slower` times the estimate.
    fn profile(
        rtt_ms: u64,
        budget: Duration,
        full: bool,
        slower: f64,
    ) -> (Vec<Duration>, Duration) {
        let rtt = Duration::from_millis(rtt_ms);
        let overhead = rtt * 9 + Duration::from_millis(100);
        let mut schedule = Schedule::new(budget, Some(rtt), overhead);
        let options = super::super::Options { full, ..options() };
        let mut spent = overhead;
        let (steps, _) = schedule.choose(steps(&options), spent);
        let mut taken = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            if let Some(time) = schedule.time(spent, &steps[index..]) {
                let (count, more) = step.overheads();
                let all = time + overhead.mul_f64(slower) * count + more;
                schedule.took(step, time, all);
                spent += all;
                taken.push(time);
            }
        }
        (taken, spent)
    }

    #[test]
    fn a_default_profile_fits_its_time_with_runs_that_are_long_enough() {
        let budget = Duration::from_secs(600);
        for (rtt_ms, fewest) in [(0, 90), (20, 90), (50, 90), (100, 80), (200, 30), (300, 25)] {
            for full in [false, true] {
                let (taken, spent) = profile(rtt_ms, budget, full, 1.0);
                assert!(spent <= budget.mul_f64(0.95), "{rtt_ms} ms: {spent:?}");
                assert!(taken.len() >= fewest, "{rtt_ms} ms: {}", taken.len());
                let least = taken.iter().min().unwrap();
                let trips = Duration::from_millis(rtt_ms) * (ROUND_TRIPS_MIN - 2);
                assert!(
                    *least >= trips.min(LONGEST.mul_f64(0.9)),
                    "{rtt_ms} ms: {least:?}"
                );
            }
        }
    }

    #[test]
    fn steps_that_take_longer_than_thought_make_the_others_shorter() {
        let budget = Duration::from_secs(600);
        let (_, spent) = profile(100, budget, false, 2.0);
        assert!(spent <= budget, "{spent:?}");
    }

    #[test]
    fn where_not_all_fit_some_of_every_part_are_left_out() {
        let (taken, spent) = profile(1, Duration::from_secs(25), false, 1.0);
        assert!(spent <= Duration::from_secs(25), "{spent:?}");
        assert!((10..30).contains(&taken.len()), "{}", taken.len());
    }

    #[test]
    fn the_ramp_does_not_count_unless_it_is_half_of_the_run() {
        let omit = |time, rtt| omitted(Duration::from_secs(time), Some(Duration::from_millis(rtt)));
        assert_eq!(omit(8, 1), Duration::from_secs(2));
        assert_eq!(omit(6, 100), Duration::from_millis(2500));
        assert_eq!(omit(10, 300), Duration::from_secs(5));
        assert_eq!(
            omitted(Duration::from_secs(8), None),
            Duration::from_secs(2)
        );
    }
}
