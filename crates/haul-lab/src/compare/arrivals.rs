//! When bytes arrived: the receive counter of host `b`'s device, read again and again, for every
//! tool alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haul_io::netns::NetNs;

/// A control conversation sends less than this in a round trip; more means that the transfer has
/// begun.
const BEGUN_BYTES: u64 = 12_000;
/// "A round trip" is at least this long, s: samples are no closer than 1 ms.
const AHEAD_S_MIN: f64 = 0.005;
/// A packet with payload has more than this.
const SMALL_BYTES: u64 = 750;
/// A rate is taken over at least this time, s.
const WINDOW_S_MIN: f64 = 0.01;
/// "Has reached its rate" means this share of the final rate.
const REACHED: f64 = 0.9;
pub(crate) const DAY_S: f64 = 86_400.0;

/// The end of a transfer, if its tool reports a duration in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ends {
    /// That long after its first byte.
    Reported,
    /// With the last byte that comes, and not before: everything that is sent counts. A tool that
    /// sees its first byte late, because it reads in large pieces, gains nothing by it.
    LastByte,
    /// At this time of the machine's clock, seconds since midnight, UTC: the tool's own duration
    /// includes a control conversation before.
    At(f64),
}

/// The counter over time.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// When sampling began, seconds since midnight, UTC.
    clock_s: f64,
    /// Seconds since sampling began, and bytes counted by then.
    samples: Vec<(f64, u64)>,
}

impl Arrivals {
    /// Reads the counter of a device every `step` until `stop` is set.
    pub fn sample(netns: &NetNs, device: &str, step: Duration, stop: &AtomicBool) -> Self {
        let begin = Instant::now();
        let clock_s = seconds_of_day();
        let work = || {
            let mut samples = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Some(bytes) = received_bytes(device) {
                    samples.push((begin.elapsed().as_secs_f64(), bytes));
                }
                std::thread::sleep(step);
            }
            samples
        };
        Self {
            clock_s,
            samples: netns.run(work).unwrap_or_default(),
        }
    }

    /// How often to read on a path of this round-trip time.
    pub fn step(rtt_s: f64) -> Duration {
        Duration::from_secs_f64((rtt_s / 10.0).clamp(0.001, 0.005))
    }

    /// From the first payload on; `None` if nothing arrived. `reported_s`: the duration that its
    /// tool reports.
    pub fn transfer(&self, rtt_s: f64, reported_s: f64, ends: Ends) -> Option<Transfer<'_>> {
        let ahead = rtt_s.max(AHEAD_S_MIN);
        let begin = self.samples.windows(2).find(|pair| {
            let (at, before) = pair[0];
            has_payload(pair) && self.at(at + ahead) - f64_of(before) >= f64_of(BEGUN_BYTES)
        })?;
        let begin_s = begin[0].0;
        let seconds = match ends {
            Ends::Reported => reported_s,
            Ends::LastByte => {
                let last = self.samples.windows(2).rfind(|pair| has_payload(pair))?;
                reported_s.max(last[1].0 - begin_s)
            }
            Ends::At(clock_s) => (clock_s - self.clock_s).rem_euclid(DAY_S) - begin_s,
        };
        (seconds > 0.0).then_some(Transfer {
            arrivals: self,
            begin_s,
            seconds,
            window_s: rtt_s.max(WINDOW_S_MIN),
        })
    }

    /// Payload by time, `bytes` of them from a time of the machine's clock (seconds since midnight,
    /// UTC) on for `seconds`: as many for each counted byte, in spans of `step` seconds, the length
    /// of each and its bytes.
    pub(crate) fn spans(
        &self,
        begin_clock_s: f64,
        seconds: f64,
        step: f64,
        bytes: f64,
    ) -> Vec<(f64, f64)> {
        let begin_s = (begin_clock_s - self.clock_s).rem_euclid(DAY_S);
        let counted = |from: f64, to: f64| self.at(begin_s + to) - self.at(begin_s + from);
        let all = counted(0.0, seconds).max(1.0);
        let mut spans = Vec::new();
        let mut from = 0.0;
        while from < seconds {
            let to = seconds.min(from + step);
            spans.push((to - from, bytes * counted(from, to) / all));
            from = to;
        }
        spans
    }

    /// The count at a time, between samples in proportion.
    fn at(&self, time: f64) -> f64 {
        let after = self.samples.partition_point(|(at, _)| *at <= time);
        let before = after
            .checked_sub(1)
            .and_then(|index| self.samples.get(index));
        match (before, self.samples.get(after)) {
            (Some(&(t0, b0)), Some(&(t1, b1))) => {
                f64_of(b0) + f64_of(b1 - b0) * (time - t0) / (t1 - t0)
            }
            (Some(&(_, bytes)), None) | (None, Some(&(_, bytes))) => f64_of(bytes),
            (None, None) => 0.0,
        }
    }
}

/// The part of the arrivals that is the transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    arrivals: &'a Arrivals,
    begin_s: f64,
    seconds: f64,
    window_s: f64,
}

impl Transfer<'_> {
    /// Its first `seconds`.
    pub fn cut(self, seconds: f64) -> Self {
        Self { seconds, ..self }
    }

    /// How long it took.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The share of all bytes that came later than `after` seconds into it; `None` where it was
    /// over by then.
    pub fn share_after(&self, after: f64) -> Option<f64> {
        let whole = self.bytes(0.0, self.seconds);
        (after < self.seconds && whole > 0.0).then(|| self.bytes(after, self.seconds) / whole)
    }

    /// Seconds until it ran, over a round trip, at nine tenths of the rate of its second half.
    pub fn ramp_s(&self) -> Option<f64> {
        let half = self.seconds / 2.0;
        let wanted = REACHED * self.bytes(half, self.seconds) / half * self.window_s;
        let samples = &self.arrivals.samples;
        let times = samples.iter().map(|(at, _)| at - self.begin_s);
        let mut within = times.filter(|at| (0.0..half).contains(at));
        within.find(|&at| wanted > 0.0 && self.bytes(at, at + self.window_s) >= wanted)
    }

    /// Bytes in each span of `step` seconds.
    pub fn by_step(&self, step: f64) -> Vec<u64> {
        let spans = (self.seconds / step).ceil().min(100_000.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "limited above, and bytes are positive"
        )]
        (0..spans as u32)
            .map(|index| {
                let from = f64::from(index) * step;
                self.bytes(from, from + step).round() as u64
            })
            .collect()
    }

    fn bytes(&self, from: f64, to: f64) -> f64 {
        self.arrivals.at(self.begin_s + to) - self.arrivals.at(self.begin_s + from)
    }
}

/// By the machine's clock, UTC.
fn seconds_of_day() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64().rem_euclid(DAY_S)
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn f64_of(bytes: u64) -> f64 {
    bytes as f64
}

fn has_payload(pair: &[(f64, u64)]) -> bool {
    pair[1].1 - pair[0].1 > SMALL_BYTES
}

fn received_bytes(device: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    text.lines().find_map(|line| {
        let columns = line.trim_start().strip_prefix(device)?.strip_prefix(':')?;
        columns.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation, then a rate that doubles every 100 ms up to 1 GB/s, for `seconds`.
    fn ramping(doublings: i32, seconds: f64) -> Arrivals {
        let mut samples = vec![(0.0, 0), (0.1, 400), (0.2, 800)];
        let (mut at, mut bytes): (f64, f64) = (0.3, 800.0);
        let begin = at;
        while at < begin + seconds + 0.3 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a test"
            )]
            samples.push((at, bytes as u64));
            let done = (at - begin) / 0.1;
            let slower = (f64::from(doublings) - done.floor()).max(0.0);
            if at < begin + seconds {
                bytes += 1e9 * 0.005 * 0.5_f64.powf(slower);
            }
            at += 0.005;
        }
        Arrivals {
            clock_s: DAY_S - 1.0,
            samples,
        }
    }

    #[test]
    fn a_transfer_begins_with_its_first_payload() {
        let arrivals = ramping(0, 2.0);
        let transfer = arrivals.transfer(0.1, 2.0, Ends::Reported).unwrap();
        assert!(
            (transfer.begin_s - 0.3).abs() < 0.006,
            "{}",
            transfer.begin_s
        );
        assert!(transfer.ramp_s().unwrap() < 0.006);
        assert!(
            Arrivals::default()
                .transfer(0.1, 1.0, Ends::Reported)
                .is_none()
        );
    }

    #[test]
    fn a_ramp_ends_when_nine_tenths_of_the_final_rate_are_reached() {
        let arrivals = ramping(4, 3.0);
        let ramp = arrivals
            .transfer(0.1, 3.0, Ends::Reported)
            .unwrap()
            .ramp_s()
            .unwrap();
        // The window that spans the last step holds nine tenths when it begins 80 ms into the one
        // before.
        assert!((0.35..=0.41).contains(&ramp), "{ramp}");
    }

    #[test]
    fn a_first_byte_seen_late_gains_nothing() {
        let arrivals = ramping(0, 2.0);
        let transfer = arrivals.transfer(0.1, 1.8, Ends::LastByte).unwrap();
        assert!(
            (transfer.seconds() - 2.0).abs() < 0.011,
            "{}",
            transfer.seconds()
        );
    }

    #[test]
    fn a_transfer_ends_by_the_clock_beyond_midnight_too() {
        let arrivals = ramping(0, 2.0);
        let ends = |clock_s| arrivals.transfer(0.1, 9.0, Ends::At(clock_s));
        let transfer = ends(1.0).unwrap();
        assert!((transfer.seconds() - 1.7).abs() < 0.011);
        assert!(ends(DAY_S - 0.9).is_none(), "before its first byte");
    }

    #[test]
    fn payload_is_spread_as_it_was_counted() {
        let arrivals = ramping(0, 2.0);
        // Half of it came before midnight and a tenth.
        let spans = arrivals.spans(DAY_S - 0.7, 1.6, 0.8, 1600.0);
        assert_eq!(spans.len(), 2);
        for (length, bytes) in spans {
            assert!((length - 0.8).abs() < 1e-9 && (bytes - 800.0).abs() < 20.0);
        }
    }

    #[test]
    fn what_comes_after_the_ramp_is_counted_by_itself() {
        let arrivals = ramping(0, 2.0);
        let transfer = arrivals.transfer(0.1, 2.0, Ends::Reported).unwrap();
        let share = transfer.share_after(0.5).unwrap();
        assert!((share - 0.75).abs() < 0.01, "{share}");
        assert_eq!(transfer.share_after(2.5), None);
        let steps = transfer.by_step(0.1);
        assert_eq!(steps.len(), 20);
        assert!(
            steps
                .iter()
                .all(|&bytes| (90_000_000..110_000_000).contains(&bytes))
        );
    }
}
