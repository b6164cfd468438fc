//! What the figures share: the places, profiles over distance, and their conclusions.

use haul_report::stats::Spread;

use crate::reproduce::bench::Context;
use crate::reproduce::cells::{Cell, Found, Net, measure};
use crate::reproduce::record::{Along, Chart, Figure, Sample, chart};
use haul_lab::compare::runner::Stop;

/// The emulated path: a twentieth of the paper's.
pub(super) const RATE_BPS: u64 = 500_000_000;
/// Connections of table II: miles (0 stands for 0.2), and round trips, µs.
pub(super) const PLACES: [(u32, u32); 4] =
    [(0, 280), (1400, 26_800), (6600, 128_000), (8600, 163_000)];
pub(super) const NEAR: u32 = 0;
pub(super) const FAR: u32 = 8600;
/// Streams whose goodput is measured again and again; the paper takes the mean of 5 to 15.
pub(super) const STREAMS: u32 = 10;

/// Charts of a distance profile.
pub(super) const PROFILE: usize = 0;
const STABILITY: usize = 1;
const MEAN: usize = 2;
pub(super) const PER_MILE: usize = 3;
const PER_MS: usize = 4;

/// Charts of a distance profile; the first one is what it is over.
pub(super) fn profile_charts(first: Chart, again: &str) -> Vec<Chart> {
    vec![
        first,
        chart(
            &format!("{again}, again and again"),
            "Mbit/s",
            Along::Repetition,
        ),
        chart(
            "Mean and standard deviation of these",
            "Mbit/s",
            Along::Miles,
        ),
        chart(
            "Decrease of the mean for each mile, from 0.2 miles on",
            "kbit/s",
            Along::Miles,
        ),
        chart(
            "Decrease of the mean for each ms of round trip",
            "Mbit/s",
            Along::Miles,
        ),
    ]
}

pub(super) fn places(context: &Context<'_>) -> Vec<(u32, Net)> {
    let net = |rtt_us| Net {
        rate_bps: RATE_BPS,
        rtt_us,
        ..Net::default()
    };
    let wanted = |&&(miles, _): &&(u32, u32)| !context.quick || miles != 6600;
    PLACES
        .iter()
        .filter(wanted)
        .map(|&(miles, rtt_us)| (miles, net(rtt_us)))
        .collect()
}

pub(super) fn miles(at: u32) -> String {
    match at {
        NEAR => "0.2 miles".into(),
        _ => format!("{at} miles"),
    }
}

/// Repetitions of a stability profile.
pub(super) fn repetitions(context: &Context<'_>) -> u16 {
    if context.quick { 2 } else { 10 }
}

pub(super) fn streams_option(control: &str, streams: u32) -> String {
    format!("--streams {streams} --congestion {control}")
}

/// Measures a distance profile; what is measured again and again is its stability.
pub(super) fn profile(
    context: &Context<'_>,
    figure: &mut Figure,
    cells: &[Cell],
) -> Result<(), Stop> {
    let measured = measure(context, figure, cells, |figure, cell, found, turn| {
        figure.charts[PROFILE].add(&cell.series, cell.at, mbps(found));
        if cell.times > 0 {
            figure.charts[STABILITY].add(&cell.series, u32::from(turn) + 1, mbps(found));
        }
    });
    spread(figure);
    measured
}

pub(super) fn mbps(found: &Found) -> Sample {
    Sample {
        cpu_s_per_gb: found.cpu_s_per_gb,
        ..Sample::of(found.goodput_bps / 1e6)
    }
}

/// From what was measured again and again: means, deviations, and the decrease from the shortest
/// connection on.
fn spread(figure: &mut Figure) {
    let spreads: Vec<(u32, f64, Spread)> = PLACES
        .iter()
        .filter_map(|&(at, rtt_us)| {
            let series = figure.charts[STABILITY].series(&miles(at))?;
            let values: Vec<f64> = series.points.iter().map(|point| point.value).collect();
            Some((at, f64::from(rtt_us) / 1e3, Spread::of(&values)?))
        })
        .collect();
    for (at, _, spread) in &spreads {
        figure.charts[MEAN].add("mean", *at, Sample::of(spread.mean));
        if spread.count > 1 {
            figure.charts[MEAN].add("standard deviation", *at, Sample::of(spread.deviation));
        }
    }
    let Some((NEAR, near_ms, near)) = spreads.first() else {
        return;
    };
    for (at, ms, spread) in &spreads[1..] {
        let less = near.mean - spread.mean;
        let per_mile = less * 1e3 / (f64::from(*at) - 0.2);
        figure.charts[PER_MILE].add("decrease", *at, Sample::of(per_mile));
        figure.charts[PER_MS].add("decrease", *at, Sample::of(less / (ms - near_ms)));
    }
}

/// The share of the goodput at 0.2 miles that is kept at 8600, percent.
pub(super) fn kept(figure: &Figure) -> Option<f64> {
    let both = figure
        .value(MEAN, "mean", FAR)
        .zip(figure.value(MEAN, "mean", NEAR));
    both.map(|(far, near)| 100.0 * far / near)
}

/// Deviations beyond the shortest connection, as percent of the mean: the largest.
pub(super) fn deviation(figure: &Figure) -> Option<f64> {
    let of = |&(at, _): &(u32, u32)| {
        let both = figure
            .value(MEAN, "standard deviation", at)
            .zip(figure.value(MEAN, "mean", at));
        both.map(|(deviation, mean)| 100.0 * deviation / mean)
    };
    PLACES[1..].iter().filter_map(of).reduce(f64::max)
}

pub(super) fn rate() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
    let rate = RATE_BPS as f64;
    rate
}

/// Measures, and shows goodput.
pub(super) fn show(context: &Context<'_>, figure: &mut Figure, cells: &[Cell]) -> Result<(), Stop> {
    measure(context, figure, cells, |figure, cell, found, _| {
        figure.charts[cell.chart].add(&cell.series, cell.at, mbps(found));
    })
}

pub(super) fn most(figure: &Figure, chart: usize, series: &str) -> Option<f64> {
    let series = figure.charts.get(chart)?.series(series)?;
    series
        .points
        .iter()
        .map(|point| point.value)
        .reduce(f64::max)
}

pub(super) fn least(figure: &Figure, chart: usize, series: &str) -> Option<f64> {
    let series = figure.charts.get(chart)?.series(series)?;
    series
        .points
        .iter()
        .map(|point| point.value)
        .reduce(f64::min)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A figure with means at 0.2 and 8600 miles, measured twice.
    pub(in crate::reproduce::wan) fn measured(near: [f64; 2], far: [f64; 2]) -> Figure {
        let mut figure = Figure {
            charts: profile_charts(chart("", "Mbit/s", Along::Connections), ""),
            ..Figure::default()
        };
        for (at, values) in [(NEAR, near), (FAR, far)] {
            for (turn, value) in (1..).zip(values) {
                figure.charts[STABILITY].add(&miles(at), turn, Sample::of(value));
            }
        }
        spread(&mut figure);
        figure
    }

    #[test]
    fn a_decrease_is_that_of_the_paper() {
        // BIC at 8600 miles: 9.12 to 0.50 Gbit/s, 1.00 Mbit/s for each mile.
        let figure = measured([9120.0; 2], [500.0; 2]);
        let per_mile = figure.value(PER_MILE, "decrease", FAR).unwrap();
        assert!((per_mile - 1002.3).abs() < 0.1, "{per_mile}");
        let per_ms = figure.value(PER_MS, "decrease", FAR).unwrap();
        assert!((per_ms - 52.97).abs() < 0.01, "{per_ms}");
    }

    #[test]
    fn deviations_count_beyond_the_shortest_connection() {
        let figure = measured([100.0, 50.0], [101.0, 99.0]);
        assert!((deviation(&figure).unwrap() - 2.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(deviation(&Figure::default()), None);
    }
}
