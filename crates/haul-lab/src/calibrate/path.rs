//! Checks the emulation against its scenario: each direction is measured by itself.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use haul_netem::{LinkConfig, LossModel};
use serde::Serialize;

use super::interval::{SIGMAS_95, SIGMAS_999, ratio, wilson};
use super::traffic::{self, Flow, Outcome};
use crate::lab::{Engine, Host, Lab};
use crate::report::Report;
use crate::scenario::{Direction, Scenario, unit};

/// Datagrams per second that measure the delay of an idle path.
const PROBES_PER_S: u64 = 1000;
const PROBE_WIRE_BYTES: u32 = 100;

/// A load must not overflow the queue; a flood is to keep it full.
const CATCH_UP: Duration = Duration::from_millis(2);
pub(super) const CATCH_UP_FLOOD: Duration = Duration::from_millis(50);

/// A delay may be off by this much, half of the time and 99 times of 100…
const DELAY_OFF_NS_P50: f64 = 200_000.0;
const DELAY_OFF_NS_P99: f64 = 1_000_000.0;

/// …and a rate by this share.
const RATE_OFF: f64 = 0.01;

/// The load on a path without a rate.
const UNSHAPED_BPS: u64 = 500_000_000;

/// A path that has been measured.
#[derive(Clone, Debug, Serialize)]
pub struct PathCheck {
    /// The scenario's name.
    pub scenario: String,
    /// From `a` to `b`.
    pub forward: DirectionCheck,
    /// From `b` to `a`.
    pub reverse: DirectionCheck,
    /// Packets that the emulator lost by its own fault.
    pub emulator_drops: u64,
    /// Nothing is off.
    pub honest: bool,
}

/// The measurement of one direction.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionCheck {
    /// The delay asked for, milliseconds; jitter goes this much up and down from it.
    pub delay_ms: f64,
    /// How much longer packets took on the idle path: half of them at most, microseconds.
    pub delay_over_us_p50: Check,
    /// 99 of 100 at most.
    pub delay_over_us_p99: Check,
    /// All of these delays.
    pub delays: Delays,
    /// The share of packets that got lost at 90 % of the rate.
    pub loss: Check,
    /// Between these the share lost lies with 95 % confidence.
    pub loss_interval: (f64, f64),
    /// How many packets that was counted over.
    pub loss_packets: u64,
    /// The rate that arrives of 120 % of it, bits per second; `None` if the path has no rate.
    pub rate_bps: Option<Check>,
    /// Datagrams that the measuring socket had no room for: a receiver too slow for the rate.
    pub receiver_drops: u64,
}

/// How long packets took on the idle path, one way, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// How many packets there were.
    pub packets: usize,
    /// The mean.
    pub mean_ms: f64,
    /// The standard deviation.
    pub deviation_ms: f64,
    /// The least, 1, 10, 50, 90 and 99 of 100 at most, and the most.
    pub quantiles_ms: [f64; 7],
}

impl Delays {
    fn of(outcome: &Outcome) -> Self {
        let ms = |ns: u64| float(ns) / 1e6;
        let all = || outcome.delays_ns.iter().copied().map(ms);
        let count = float(outcome.delays_ns.len() as u64).max(1.0);
        let mean_ms = all().sum::<f64>() / count;
        let squares: f64 = all().map(|delay| (delay - mean_ms).powi(2)).sum();
        Self {
            packets: outcome.delays_ns.len(),
            mean_ms,
            deviation_ms: (squares / count).sqrt(),
            quantiles_ms: [0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0]
                .map(|share| ms(outcome.delay_ns(share))),
        }
    }
}

/// A measured value, its expected value, and whether they agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The value of the scenario.
    pub asked: f64,
    /// The measured value.
    pub measured: f64,
    /// They agree.
    pub fine: bool,
}

/// Starts the scenario's path, emulated by `engine`, and measures it; `time` is that of each of
/// three measurements for each direction.
///
/// # Errors
/// If the lab cannot be started or a socket fails.
pub fn check_path(scenario: &Scenario, engine: Engine, time: Duration) -> Result<PathCheck> {
    let lab = Lab::start_with(scenario, engine)?;
    let (a, b) = (lab.host("a")?, lab.host("b")?);
    let forward = check_direction(&lab, a, b, &scenario.forward, time)?;
    let reverse = check_direction(&lab, b, a, &scenario.reverse, time)?;
    let emulator_drops = Report::from(lab.stats()).emulator_drops;
    let honest = forward.is_fine() && reverse.is_fine() && emulator_drops == 0;
    Ok(PathCheck {
        scenario: scenario.name.clone(),
        forward,
        reverse,
        emulator_drops,
        honest,
    })
}

impl DirectionCheck {
    fn is_fine(&self) -> bool {
        self.delay_over_us_p50.fine
            && self.delay_over_us_p99.fine
            && self.loss.fine
            && self.rate_bps.is_none_or(|rate| rate.fine)
    }
}

fn check_direction(
    lab: &Lab,
    from: &Host,
    to: &Host,
    direction: &Direction,
    time: Duration,
) -> Result<DirectionCheck> {
    let link = &direction.link;
    let probes = Flow {
        wire_bytes: PROBE_WIRE_BYTES,
        rate_bps: PROBES_PER_S * u64::from(PROBE_WIRE_BYTES) * 8,
        time,
        one_by_one: true,
        catch_up: CATCH_UP,
    };
    let idle = traffic::send(lab, from, to, probes)?;
    let load = Flow {
        wire_bytes: lab.scenario().mtu.into(),
        rate_bps: bottleneck_bps(link).unwrap_or(UNSHAPED_BPS) / 10 * 9,
        time,
        one_by_one: false,
        catch_up: CATCH_UP,
    };
    let loaded = traffic::send(lab, from, to, load)?;
    let rate = match bottleneck_bps(link) {
        None => None,
        Some(rate_bps) => {
            let flood = Flow {
                rate_bps: rate_bps / 5 * 6,
                catch_up: CATCH_UP_FLOOD,
                ..load
            };
            Some((rate_bps, traffic::send(lab, from, to, flood)?))
        }
    };
    let overhead = direction.overhead_bytes;
    Ok(judge(
        link,
        overhead,
        &idle,
        &loaded,
        rate.as_ref().map(|(bps, outcome)| (*bps, outcome)),
        load.wire_bytes,
    ))
}

fn judge(
    link: &LinkConfig,
    overhead_bytes: u32,
    idle: &Outcome,
    loaded: &Outcome,
    flood: Option<(u64, &Outcome)>,
    wire_bytes: u32,
) -> DirectionCheck {
    let on_wire_ns = link.rate.map_or(0.0, |shaper| {
        f64::from((PROBE_WIRE_BYTES + overhead_bytes) * 8) * 1e9 / float(shaper.rate_bps)
    });
    let asked_ns = float(link.delay_ns) + on_wire_ns;
    // Packets that are held back, and those that jitter delays, are late by right.
    let held_ns = link.reorder.map_or(0.0, |reorder| {
        if reorder.probability > 0.005 {
            float(reorder.delay_ns)
        } else {
            0.0
        }
    });
    let jitter_ns = float(link.jitter_ns);
    let over = |share: f64, by_right_ns: f64, off_ns: f64| {
        let over_ns = float(idle.delay_ns(share)) - asked_ns;
        let fine =
            over_ns <= by_right_ns + off_ns && over_ns >= -jitter_ns - off_ns && idle.arrived > 0;
        Check {
            asked: 0.0,
            measured: over_ns / 1000.0,
            fine,
        }
    };
    let (asked_loss, correlation) = expected_loss(link.loss);
    let counted = loaded.sent.saturating_sub(loaded.socket_drops);
    let lost = counted.saturating_sub(loaded.arrived);
    let effective = float(counted) * (1.0 - correlation) / (1.0 + correlation);
    let shown = wilson(lost, counted, effective, SIGMAS_95);
    let judged = wilson(lost, counted, effective, SIGMAS_999);
    let arrival_share = (1.0 - asked_loss) * (1.0 + link.duplicate) * (1.0 - link.corrupt);
    let net = f64::from(wire_bytes) / f64::from(wire_bytes + overhead_bytes);
    DirectionCheck {
        delay_ms: float(link.delay_ns) / 1e6,
        delay_over_us_p50: over(0.5, jitter_ns, DELAY_OFF_NS_P50),
        delay_over_us_p99: over(0.99, jitter_ns + held_ns, DELAY_OFF_NS_P99),
        delays: Delays::of(idle),
        loss: Check {
            asked: asked_loss,
            measured: ratio(lost, counted),
            fine: judged.low <= asked_loss + link.corrupt && asked_loss <= judged.high,
        },
        loss_interval: (shown.low, shown.high),
        loss_packets: counted,
        rate_bps: flood.map(|(rate_bps, outcome)| {
            let asked = float(rate_bps) * net;
            let expected = asked * arrival_share;
            let off = (outcome.arrival_bps / expected - 1.0).abs();
            Check {
                asked,
                measured: outcome.arrival_bps / arrival_share,
                fine: off <= RATE_OFF,
            }
        }),
        receiver_drops: idle.socket_drops
            + loaded.socket_drops
            + flood.map_or(0, |(_, outcome)| outcome.socket_drops),
    }
}

/// The share lost in the long run, and how strongly a packet's loss goes with that of the one
/// before it.
pub(super) fn expected_loss(model: LossModel) -> (f64, f64) {
    match model {
        LossModel::None => (0.0, 0.0),
        LossModel::Random(p) => (p, 0.0),
        LossModel::GilbertElliott {
            p,
            r,
            loss_good,
            loss_bad,
        } => {
            let bad = if p + r > 0.0 { p / (p + r) } else { 0.0 };
            (
                (1.0 - bad) * loss_good + bad * loss_bad,
                (1.0 - p - r).max(0.0),
            )
        }
    }
}

/// The slower of rate and policer.
fn bottleneck_bps(link: &LinkConfig) -> Option<u64> {
    let rates = [
        link.rate.map(|shaper| shaper.rate_bps),
        link.policer.map(|policer| policer.rate_bps),
    ];
    rates.into_iter().flatten().min()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates, times and counts of a lab are far below 2^53"
)]
fn float(value: u64) -> f64 {
    value as f64
}

impl fmt::Display for PathCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "path {}", self.scenario)?;
        for (way, direction) in [("a → b", &self.forward), ("b → a", &self.reverse)] {
            direction.write_rows(f, way)?;
        }
        if self.emulator_drops > 0 {
            writeln!(
                f,
                "  the emulator itself lost {} packets",
                self.emulator_drops
            )?;
        }
        write!(
            f,
            "  {}",
            if self.honest {
                "the path meets its description"
            } else {
                "the path does NOT meet its description"
            }
        )
    }
}

impl DirectionCheck {
    fn write_rows(&self, f: &mut fmt::Formatter<'_>, way: &str) -> fmt::Result {
        let mark = |fine: bool| if fine { "ok" } else { "OFF" };
        let (half, most) = (self.delay_over_us_p50, self.delay_over_us_p99);
        writeln!(
            f,
            "  {way}  delay  {:>12}  {:+.0} µs at the median, {:+.0} µs at 99 %  {}",
            format!("{} ms", self.delay_ms),
            half.measured,
            most.measured,
            mark(half.fine && most.fine)
        )?;
        writeln!(
            f,
            "  {way}  loss   {:>12}  {:.3e} ({:.1e} to {:.1e} with 95 % confidence, {} packets)  {}",
            format!("{:.3e}", self.loss.asked),
            self.loss.measured,
            self.loss_interval.0,
            self.loss_interval.1,
            self.loss_packets,
            mark(self.loss.fine)
        )?;
        if let Some(rate) = self.rate_bps {
            writeln!(
                f,
                "  {way}  rate   {:>12}  {} ({:+.2} %)  {}",
                rate_text(rate.asked),
                rate_text(rate.measured),
                (rate.measured / rate.asked - 1.0) * 100.0,
                mark(rate.fine)
            )?;
        }
        Ok(())
    }
}

pub(super) fn rate_text(bps: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates"
    )]
    let kilobits = (bps / 1000.0).round().max(0.0) as u64;
    unit::Rate {
        bps: kilobits * 1000,
    }
    .to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn outcome(delay_ns: u64, sent: u64, arrived: u64) -> Outcome {
        Outcome {
            sent,
            arrived,
            delays_ns: vec![delay_ns; 100],
            arrival_bps: 0.99e9,
            ..Outcome::default()
        }
    }

    fn judged(idle: &Outcome, loaded: &Outcome) -> DirectionCheck {
        let text = "[path]\nrate = \"1Gbit\"\nrtt = \"100ms\"\nloss = 0.01";
        let scenario = Scenario::parse("test", text).unwrap();
        judge(
            &scenario.forward.link,
            0,
            idle,
            loaded,
            Some((1_000_000_000, loaded)),
            1500,
        )
    }

    /// A direction whose packets all took so long, and of which so many arrived.
    pub(in crate::calibrate) fn direction(
        delay_ns: u64,
        sent: u64,
        arrived: u64,
    ) -> DirectionCheck {
        judged(
            &outcome(delay_ns, sent, arrived),
            &outcome(delay_ns, sent, arrived),
        )
    }

    #[test]
    fn a_path_that_is_what_it_says_is_fine() {
        let check = judged(
            &outcome(50_030_000, 1000, 990),
            &outcome(0, 100_000, 99_010),
        );
        assert!(check.is_fine(), "{check:?}");
        assert!(
            (check.delay_over_us_p50.measured - 29.2).abs() < 0.1,
            "{check:?}"
        );
    }

    #[test]
    fn delay_loss_and_rate_can_each_be_off() {
        let good = (outcome(50_030_000, 1000, 990), outcome(0, 100_000, 99_010));
        assert!(
            !judged(&outcome(50_300_000, 1000, 990), &good.1)
                .delay_over_us_p50
                .fine
        );
        assert!(
            !judged(&outcome(49_700_000, 1000, 990), &good.1)
                .delay_over_us_p50
                .fine
        );
        assert!(!judged(&good.0, &outcome(0, 100_000, 98_500)).loss.fine);
        let slow = Outcome {
            arrival_bps: 0.96e9,
            ..good.1.clone()
        };
        assert!(!judged(&good.0, &slow).rate_bps.unwrap().fine);
        assert!(
            !judged(&Outcome::default(), &good.1).is_fine(),
            "nothing arrived at all"
        );
    }

    #[test]
    fn delays_are_reported_from_the_least_to_the_most() {
        let outcome = Outcome {
            delays_ns: (0..=100).map(|ms| ms * 1_000_000).collect(),
            ..Outcome::default()
        };
        let delays = Delays::of(&outcome);
        assert_eq!(
            delays.quantiles_ms,
            [0.0, 1.0, 10.0, 50.0, 90.0, 99.0, 100.0]
        );
        // Of 0 to n the variance is n (n + 2) / 12.
        let deviation = (100.0_f64 * 102.0 / 12.0).sqrt();
        assert!(
            (delays.mean_ms - 50.0).abs() < 1e-9 && (delays.deviation_ms - deviation).abs() < 1e-9
        );
        assert_eq!(Delays::of(&Outcome::default()).mean_ms, 0.0);
    }

    #[test]
    fn bursts_make_a_count_worth_less() {
        let (share, correlation) = expected_loss(LossModel::GilbertElliott {
            p: 0.001,
            r: 0.099,
            loss_good: 0.0,
            loss_bad: 1.0,
        });
        assert!((share - 0.01).abs() < 1e-12 && (correlation - 0.9).abs() < 1e-12);
    }
}
