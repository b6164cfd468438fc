//! UDT's own rate control: additive increase by the estimated spare bandwidth, decrease by 1/9
//! (UDT4 draft §6.1, libudt 4.11 `ccc.cpp`). The period is kept in nanoseconds; libudt's
//! microseconds halve the rate beyond 8 Gb/s.

use crate::controller::{Ack, Controller, Loss, Rate, Snapshot};
use crate::time::{MILLISECOND_NS, SECOND_NS, Time};

/// Rate control of UDT4.
#[derive(Debug)]
pub struct Daimd {
    packet_bytes: u64,
    /// Interval between packets, ns.
    period_ns: f64,
    window_packets: f64,
    slow_start: bool,
    last_update: Time,
    loss_since_update: bool,
    last_decrease_period_ns: f64,
    last_decrease_packet: u64,
    loss_reports: u32,
    loss_reports_average: f64,
    decreases_this_period: u32,
    decrease_every: u32,
    receive_rate_pps: f64,
    capacity_pps: f64,
    rtt_ns: u64,
    random: u64,
}

/// UDT's constant rate-control interval.
const SYN_NS: u64 = 10 * MILLISECOND_NS;
const SLOW_START_WINDOW: f64 = 16.0;
const WINDOW_CEILING: f64 = 1e7;
const DECREASE: f64 = 1.125;
const INCREASE_MIN: f64 = 0.01;
const DECREASES_PER_PERIOD_MAX: u32 = 5;
const PERIOD_NS_MIN: f64 = 10.0;

impl Daimd {
    /// Makes a control for packets of `packet_bytes`; `seed` spreads the decreases of competing
    /// flows.
    #[must_use]
    pub fn new(packet_bytes: u64, seed: u64) -> Self {
        Self {
            packet_bytes,
            period_ns: 1_000.0,
            window_packets: SLOW_START_WINDOW,
            slow_start: true,
            last_update: Time::ZERO,
            loss_since_update: false,
            last_decrease_period_ns: 1_000.0,
            last_decrease_packet: 0,
            loss_reports: 1,
            loss_reports_average: 1.0,
            decreases_this_period: 1,
            decrease_every: 1,
            receive_rate_pps: 0.0,
            capacity_pps: 0.0,
            rtt_ns: 100 * MILLISECOND_NS,
            random: seed | 1,
        }
    }

    fn leave_slow_start(&mut self) {
        self.slow_start = false;
        self.period_ns = if self.receive_rate_pps > 0.0 {
            1e9 / self.receive_rate_pps
        } else {
            float(self.rtt_ns + SYN_NS) / self.window_packets
        };
    }

    /// Packets more per interval, by orders of magnitude of the spare bandwidth.
    fn increase(&self) -> f64 {
        let rate_pps = 1e9 / self.period_ns;
        let mut spare_pps = self.capacity_pps - rate_pps;
        if self.period_ns > self.last_decrease_period_ns && self.capacity_pps / 9.0 < spare_pps {
            spare_pps = self.capacity_pps / 9.0;
        }
        if spare_pps <= 0.0 {
            return INCREASE_MIN;
        }
        let packet_bits = float(self.packet_bytes) * 8.0;
        let magnitude = 10f64.powf((spare_pps * packet_bits).log10().ceil());
        (magnitude * 1.5e-6 / float(self.packet_bytes)).max(INCREASE_MIN)
    }

    fn decrease(&mut self, next_packet: u64) {
        self.period_ns *= DECREASE;
        self.last_decrease_packet = next_packet;
    }

    fn random_below(&mut self, bound: f64) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = float(self.random >> 11) / float(1 << 53);
        whole((bound * unit).ceil()).max(1)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates, sizes and times are far below 2^52"
)]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates"
)]
fn whole(value: f64) -> u32 {
    value as u32
}

impl Controller for Daimd {
    fn handle_ack(&mut self, now: Time, ack: &Ack) {
        self.rtt_ns = ack.smoothed_rtt_ns;
        if let Some(arrival) = ack.arrival {
            self.receive_rate_pps =
                float(arrival.rate.bytes_per_second()) / float(self.packet_bytes);
        }
        if let Some(capacity) = ack.link_capacity_pps {
            self.capacity_pps = float(capacity);
        }
        if self.slow_start {
            self.window_packets += float(ack.acked_bytes) / float(self.packet_bytes);
            if self.window_packets > WINDOW_CEILING {
                self.leave_slow_start();
            }
            return;
        }
        if now.since(self.last_update) < SYN_NS {
            return;
        }
        self.last_update = now;
        let per_round = self.receive_rate_pps * float(self.rtt_ns + SYN_NS) / float(SECOND_NS);
        self.window_packets = (per_round + SLOW_START_WINDOW).min(WINDOW_CEILING);
        if std::mem::take(&mut self.loss_since_update) {
            return;
        }
        let interval = float(SYN_NS);
        let increase = self.increase();
        self.period_ns =
            (self.period_ns * interval / (self.period_ns * increase + interval)).max(PERIOD_NS_MIN);
    }

    fn handle_loss(&mut self, _now: Time, loss: &Loss) {
        if self.slow_start {
            self.leave_slow_start();
            if self.receive_rate_pps > 0.0 {
                return;
            }
        }
        self.loss_since_update = true;
        if loss.first_packet >= self.last_decrease_packet {
            self.last_decrease_period_ns = self.period_ns;
            self.loss_reports_average =
                (0.875 * self.loss_reports_average + 0.125 * f64::from(self.loss_reports)).ceil();
            self.loss_reports = 1;
            self.decreases_this_period = 1;
            self.decrease_every = self.random_below(self.loss_reports_average);
            self.decrease(loss.next_packet);
        } else {
            self.loss_reports += 1;
            if self.decreases_this_period < DECREASES_PER_PERIOD_MAX
                && self.loss_reports.is_multiple_of(self.decrease_every)
            {
                self.decreases_this_period += 1;
                self.decrease(loss.next_packet);
            }
        }
    }

    fn handle_timeout(&mut self, _now: Time) {
        if self.slow_start {
            self.leave_slow_start();
        }
    }

    fn pacing_rate(&self) -> Rate {
        if self.slow_start {
            return Rate::UNLIMITED;
        }
        let bytes_per_second = float(self.packet_bytes) * 1e9 / self.period_ns;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, saturates"
        )]
        Rate::from_bytes_per_second(bytes_per_second as u64)
    }

    fn window_bytes(&self) -> u64 {
        u64::from(whole(self.window_packets)) * self.packet_bytes
    }

    fn snapshot(&self) -> Snapshot {
        let state = if self.slow_start {
            "daimd/slow-start"
        } else {
            "daimd"
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
    use crate::controller::RateSample;

    fn ack(pps: u64, capacity: u64) -> Ack {
        Ack {
            acked_bytes: 1_500,
            smoothed_rtt_ns: 50 * MILLISECOND_NS,
            arrival: Some(RateSample {
                rate: Rate::from_bytes_per_second(pps * 1_500),
                interval_ns: SYN_NS,
                bytes: 1_500,
                app_limited: false,
                late: false,
                whole_train: false,
            }),
            link_capacity_pps: Some(capacity),
            ..Ack::default()
        }
    }

    #[test]
    fn loss_ends_slow_start_at_the_receive_rate() {
        let mut daimd = Daimd::new(1_500, 1);
        daimd.handle_ack(Time::ZERO, &ack(10_000, 80_000));
        daimd.handle_loss(
            Time::ZERO,
            &Loss {
                first_packet: 1,
                next_packet: 9,
                ..Loss::default()
            },
        );
        assert_eq!(daimd.pacing_rate().bytes_per_second(), 15_000_000);
    }

    #[test]
    fn spare_bandwidth_raises_the_rate_and_loss_cuts_it_by_a_ninth() {
        let mut daimd = Daimd::new(1_500, 1);
        daimd.handle_ack(Time::ZERO, &ack(10_000, 80_000));
        daimd.handle_loss(
            Time::ZERO,
            &Loss {
                first_packet: 1,
                next_packet: 9,
                ..Loss::default()
            },
        );
        let mut now = Time::ZERO;
        for _ in 0..20 {
            now = now.after(SYN_NS);
            daimd.handle_ack(now, &ack(10_000, 80_000));
        }
        let raised = daimd.pacing_rate().bytes_per_second();
        assert!(raised > 15_300_000, "{raised}");
        daimd.handle_loss(
            now,
            &Loss {
                first_packet: 10,
                next_packet: 99,
                ..Loss::default()
            },
        );
        let cut = daimd.pacing_rate().bytes_per_second();
        assert!(cut.abs_diff(raised * 8 / 9) < 1_000, "{cut} {raised}");
    }
}
