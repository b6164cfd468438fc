//! UDT's estimates of arrival speed and link capacity (libudt `window.cpp`): medians of recent
//! intervals, cleaned of outliers beyond a factor of eight.

use haul_cc::Time;

const ARRIVALS: usize = 16;
const PROBES: usize = 64;

/// Intervals between packets, and between the two packets of each pair.
#[derive(Debug)]
pub(crate) struct Estimator {
    arrivals_us: [f64; ARRIVALS],
    arrival_index: usize,
    last_arrival: Option<Time>,
    probes_us: [f64; PROBES],
    probe_index: usize,
    probe_started: Option<(u64, Time)>,
}

/// libudt's initial figures: one packet per second, one pair per millisecond.
impl Default for Estimator {
    fn default() -> Self {
        Self {
            arrivals_us: [1e6; ARRIVALS],
            arrival_index: 0,
            last_arrival: None,
            probes_us: [1e3; PROBES],
            probe_index: 0,
            probe_started: None,
        }
    }
}

impl Estimator {
    /// Packet `number`, with sequence number `seq`, arrived.
    pub(crate) fn take(&mut self, arrived: Time, number: u64, seq: u32) {
        if let Some(last) = self.last_arrival.replace(arrived) {
            self.arrivals_us[self.arrival_index] = micros(arrived.since(last));
            self.arrival_index = (self.arrival_index + 1) % ARRIVALS;
        }
        match seq & 0xf {
            0 => self.probe_started = Some((number, arrived)),
            1 => {
                let started = self.probe_started.take();
                if let Some((_, at)) = started.filter(|(first, _)| first + 1 == number) {
                    self.probes_us[self.probe_index] = micros(arrived.since(at));
                    self.probe_index = (self.probe_index + 1) % PROBES;
                }
            }
            _ => {}
        }
    }

    /// Packets per second; zero while too few intervals agree.
    pub(crate) fn arrival_pps(&self) -> u32 {
        let (mean_us, agreeing) = filtered_mean(&self.arrivals_us);
        if agreeing > ARRIVALS / 2 {
            per_second(mean_us)
        } else {
            0
        }
    }

    /// Packets per second that the narrowest link seems to carry.
    pub(crate) fn capacity_pps(&self) -> u32 {
        per_second(filtered_mean(&self.probes_us).0)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "intervals are far below 2^52 ns"
)]
fn micros(ns: u64) -> f64 {
    (ns as f64 / 1e3).max(1e-3)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, saturates"
)]
fn per_second(mean_us: f64) -> u32 {
    if mean_us > 0.0 {
        (1e6 / mean_us).ceil() as u32
    } else {
        0
    }
}

/// Mean of the values within a factor of eight of the median, and how many they are.
fn filtered_mean<const N: usize>(values: &[f64; N]) -> (f64, usize) {
    let mut sorted = *values;
    sorted.sort_unstable_by(f64::total_cmp);
    let median = sorted[N / 2];
    let near = sorted
        .iter()
        .filter(|&&value| value > median / 8.0 && value < median * 8.0);
    let (sum, count) = near.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (
        if count > 0 {
            sum / f64::from(count)
        } else {
            median
        },
        count as usize,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_arrival_gives_its_rate_and_its_pairs_the_capacity() {
        let mut estimator = Estimator::default();
        let mut at_us = 0;
        for number in 0..2_000_u32 {
            at_us += if number & 0xf == 1 { 10 } else { 106 };
            estimator.take(Time::from_ns(at_us * 1_000), u64::from(number), number);
        }
        let arrival = estimator.arrival_pps();
        assert!((9_000..11_000).contains(&arrival), "{arrival}");
        assert_eq!(estimator.capacity_pps(), 100_000);
    }

    #[test]
    fn silence_gives_no_arrival_rate() {
        assert!(Estimator::default().arrival_pps() <= 1);
    }
}
