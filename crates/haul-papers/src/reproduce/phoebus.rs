//! "Evaluating High Performance Data Transfer with RDMA-based Protocols in Wide-Area Networks",
//! Kissel and Swany, 2012, §V.A and C: figures 5, 6, 7 and 9; of §VI figure 10; and the latency
//! that gateways add, which the paper does not measure.
//!
//! Claims of the project beyond the paper are listed beside the paper's and marked.

mod distance;
mod transfer;

use std::time::Duration;

use super::bench::Context;
use super::cells::{Cell, How, lasts, measure};
use super::experiment::{Experiment, unknown};
use super::gateways::{ECHO_PORT, Flow, Gateways, Listener, Program, Route, Way};
use super::record::{Along, Claim, Figure, Sample, chart};
use haul_lab::compare::runner::Stop;
use haul_report::stats::median;
use transfer::{
    CUBIC, GATEWAYS, LINES, RATE_BPS, SHARE, add, bdp_bytes, cpu, goodput_bps, least, lines, most,
    once, path, route, run,
};

/// The paper.
pub(super) const TITLE: &str = "Evaluating High Performance Data Transfer with RDMA-based Protocols in Wide-Area Networks \
                                (Kissel, Swany, 2012), section V: gateways";

/// Figure 9: the policer has half of the path's rate; the round trip is the paper's.
const POLICED_BPS: u64 = RATE_BPS / 2;
const POLICED_RTT_MS: u32 = 120;

const CHANNELS: [&str; 2] = ["iwarp/udt", "tcp"];

const DIRECTLY: &str = "directly";
const FILLED: &str = "slabs filled and dropped";
const THROUGH: &str = "through two gateways";

/// The figures.
pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        channels(),
        distance::experiment(),
        rings(),
        policer(),
        sending(),
        egress(),
        latency(),
    ]
}

fn channels() -> Experiment {
    Experiment {
        lasts: unknown,
        run: over_channels,
        about: || Figure {
            number: 5,
            title: "Data channels between gateways",
            about: "iperf3 with 1 to 16 connections of TCP (cubic) through two gateways that are joined directly: what the \
                    processors allow, of which all the programs share the same few. Processor time is of both gateways. Beside \
                    it what one gateway takes into slabs, and drops (haul gateway fill): there are two programs then, not four.",
            charts: vec![
                chart("Goodput", "Mbit/s", Along::Connections),
                chart(
                    "Processor time of both gateways for 10^9 bytes",
                    "s",
                    Along::Connections,
                ),
                chart(
                    "Of it, the egress gateway (the paper's figure 11)",
                    "s",
                    Along::Connections,
                ),
            ],
            judges: vec![
                |figure| {
                    let best = |series: &str| most(figure, 0, series);
                    let both = best("iwarp/udt").zip(best("tcp"));
                    Claim::new(
                        "paper: RDMA carries more than the TCP channel (9.7 against 8.1 Gbit/s)",
                        both.map(|(rdma, tcp)| {
                            (format!("{:.2} times TCP", rdma / tcp), rdma > tcp)
                        }),
                    )
                },
                |figure| {
                    let best = CHANNELS
                        .into_iter()
                        .filter_map(|channel| Some((channel, most(figure, 0, channel)?)))
                        .max_by(|one, other| one.1.total_cmp(&other.1));
                    let both = best.zip(most(figure, 0, FILLED));
                    Claim::new(
                        "project: the best channel within 5 % of the rate at which slabs can merely be filled",
                        both.map(|((channel, rate), filled)| {
                            let told = format!("{channel}, {:.0} % of it", 100.0 * rate / filled);
                            (told, rate >= SHARE / 100.0 * filled)
                        }),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn rings() -> Experiment {
    Experiment {
        lasts: unknown,
        run: over_rings,
        about: || Figure {
            number: 7,
            title: "Size of the ring over the round trip",
            about: "One stream of TCP (cubic) through gateways whose rings have so many octets over a path of 500 Mbit/s: the share \
                    of the goodput once it has begun. What is pulled is in the ring for two round trips, announcement and read; \
                    of three regions a third is one round trip's octets when the ring has three times those. What is pushed is \
                    there for one, so that eight regions of four thirds of them are enough.",
            charts: RINGED
                .iter()
                .map(|(title, ..)| chart(title, "%", Along::Milliseconds))
                .collect(),
            judges: vec![|figure| ring_claim(figure, 0), |figure| {
                ring_claim(figure, 1)
            }],
            ..Figure::default()
        },
    }
}

fn policer() -> Experiment {
    Experiment {
        lasts: unknown,
        run: over_bursts,
        about: || Figure {
            number: 9,
            title: "A policer at half the path's rate",
            about: "A token bucket of 250 Mbit/s that drops, on a path of 500 Mbit/s and 120 ms, by the burst that it lets \
                    pass. The gateways are told its rate and burst; TCP is not. Share of what the policed rate can carry.",
            charts: vec![
                chart(
                    "Share of the policed goodput once it has begun",
                    "%",
                    Along::Burst,
                ),
                chart(
                    "Share of the policed goodput from the start",
                    "%",
                    Along::Burst,
                ),
            ],
            judges: vec![
                |figure| {
                    let found = least(figure, 0, GATEWAYS);
                    Claim::new(
                        "project: gateways have at least 95 % of the policed goodput at every burst from 64 KiB on",
                        found.map(|found| (format!("{found:.1} % in the worst"), found >= SHARE)),
                    )
                },
                |figure| {
                    let both = least(figure, 0, GATEWAYS).zip(most(figure, 0, CUBIC));
                    Claim::new(
                        "paper: paced RDMA saturates a policed path, TCP does not",
                        both.map(|(ours, tcp)| {
                            (
                                format!("{ours:.1} % at the least, one stream of cubic {tcp:.1} % at the most"),
                                ours > tcp,
                            )
                        }),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

/// Figure 7: what is measured, and of how many regions; the paper's has three.
const RINGED: [(&str, &str, u64); 2] = [
    ("Pulled, 3 regions: share of the path's goodput", "pull", 3),
    ("Pushed, 8 regions: share of the path's goodput", "push", 8),
];

/// Bytes that messages of 1 MiB go round in, figure 10.
const RINGS: [u32; 5] = [1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
const WRITE: &str = "TCP";
const SPLICE: &str = "TCP, splice";
const RDMA: &str = "RDMA, iWARP/TCP";

fn sending() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &sending_cells(context)),
        run: |context, figure| {
            let mut why = None;
            let measured = measure(
                context,
                figure,
                &sending_cells(context),
                |figure, cell, found, _| {
                    let [sender, _] = &found.ends;
                    for (chart, value) in [sender.cpu_s_per_gb, sender.cache_references]
                        .into_iter()
                        .enumerate()
                    {
                        if let Some(value) = value {
                            figure.charts[chart].add(&cell.series, cell.at, Sample::of(value));
                        }
                    }
                    why = why.take().or_else(|| sender.no_counters.clone());
                },
            );
            if let Some(why) = why {
                figure.warn(format!("accesses to the cache are not counted: {why}"));
            }
            figure.charts.retain(|chart| !chart.series.is_empty());
            measured
        },
        about: || Figure {
            number: 10,
            title: "What sending takes, by write, by splice and by RDMA",
            about: "haul bench run between hosts joined directly, messages of 1 MiB that go round in so much memory: what the \
                    sender's process takes. RDMA is software here; the paper's was a card.",
            charts: vec![
                chart("Sender's processor time for 10^9 bytes", "s", Along::Bytes),
                chart(
                    "Sender's accesses to the last level of cache for a byte",
                    "accesses",
                    Along::Bytes,
                ),
            ],
            judges: vec![
                |figure| {
                    sending_claim(
                        figure,
                        SPLICE,
                        0.8,
                        "paper: splice takes significantly less than write",
                    )
                },
                |figure| {
                    sending_claim(
                        figure,
                        RDMA,
                        0.05,
                        "paper: RDMA takes over 95 % less than write",
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn sending_cells(context: &Context<'_>) -> Vec<Cell> {
    let rings = RINGS.into_iter().step_by(if context.quick { 2 } else { 1 });
    let kinds = [
        (WRITE, "tcp", ""),
        (SPLICE, "tcp", " --send splice"),
        (RDMA, "iwarp-tcp", " --depth 16"),
    ];
    let cell = |bytes: u32, (series, engine, more): (&str, &'static str, &str)| {
        let options = format!("--message 1MiB --memory {bytes}{more}");
        Cell::new(0, series, bytes, How::Run(engine, options))
    };
    rings
        .flat_map(|bytes| kinds.map(|kind| cell(bytes, kind)))
        .collect()
}

/// The median of what it takes by what write takes, over all sizes.
fn sending_claim(figure: &Figure, series: &str, most: f64, words: &str) -> Claim {
    let ratio =
        |&bytes: &u32| Some(figure.value(0, series, bytes)? / figure.value(0, WRITE, bytes)?);
    let ratio = median(RINGS.iter().filter_map(ratio).collect());
    Claim::new(
        format!("{words} (processor time; agrees up to {most} times)"),
        ratio.map(|ratio| (format!("{ratio:.2} times"), ratio <= most)),
    )
}

fn egress() -> Experiment {
    Experiment {
        lasts: unknown,
        run: |_, figure| {
            figure.not_run = Some(
                "not run by itself: figure 5 has the processor time of the egress gateway by channel and connections; a \
                 gateway has no choice between splice and write, so that there is nothing to compare"
                    .into(),
            );
            Ok(())
        },
        about: || Figure {
            number: 11,
            title: "Processor time of the egress gateway",
            about: "In the paper splice takes 40 to 50 % off the processor time of the gateway that writes to the edge, and \
                    splice with RDMA leaves 6 to 7 % of a core.",
            ..Figure::default()
        },
    }
}

fn latency() -> Experiment {
    Experiment {
        lasts: unknown,
        run: request_and_response,
        about: || Figure {
            number: 12,
            title: "Latency that two gateways add (no figure of the paper)",
            about: "One byte there and back over one warm TCP connection, again and again, without an emulated path: \
                    forwarded by the kernels of the gateways' hosts, and through the gateways.",
            charts: vec![
                chart("Round trip, median", "µs", Along::Nothing),
                chart("Round trip, 99 of 100 are less", "µs", Along::Nothing),
            ],
            judges: vec![|figure| {
                let both = figure
                    .value(0, THROUGH, 0)
                    .zip(figure.value(0, DIRECTLY, 0));
                let added = both.map(|(through, direct)| through - direct);
                Claim::new(
                    "project: a request and its response take at most 200 µs more through two gateways (median)",
                    added.map(|added| (format!("{added:.0} µs more"), added <= 200.0)),
                )
            }],
            ..Figure::default()
        },
    }
}

fn over_channels(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let way = Way::default();
    let connections: &[u16] = if context.quick {
        &[1, 8]
    } else {
        &[1, 2, 4, 8, 16]
    };
    let routes: Vec<Route> = CHANNELS
        .into_iter()
        .map(|channel| Route {
            channel,
            ..route(0, 0)
        })
        .collect();
    let mut there = Vec::new();
    for route in &routes {
        match Gateways::start(context, &way, Some(route), Listener::Forward(ECHO_PORT), 0) {
            Ok(_) => there.push(route),
            Err(Stop::Failed(why)) => {
                figure.warn(format!("{} is left out: {why:#}", route.channel));
            }
            Err(stop) => return Err(stop),
        }
    }
    for &streams in connections {
        let flow = Flow {
            program: Program::Iperf,
            congestion: "cubic",
            streams,
        };
        let at = streams.into();
        for repetition in 0..context.repeat {
            if let Some(found) = run(context, figure, DIRECTLY, &way, None, flow, repetition)? {
                figure.charts[0].add(DIRECTLY, at, Sample::of(found.later_bps / 1e6));
            }
            let ring_bytes = route(0, 0).ring_bytes;
            let filled = once(context, figure, FILLED, |figure, seconds, ramp_s| {
                let lab = Gateways::start(context, &way, None, Listener::Forward(ECHO_PORT), 0)?;
                lab.fill(ring_bytes, streams, seconds, ramp_s, figure)
            })?;
            if let Some(found) = filled {
                add(figure, 0, FILLED, at, &found, found.later_bps / 1e6);
                figure.charts[1].add(FILLED, at, cpu(&found));
            }
            for &route in &there {
                let name = route.channel;
                let found = run(context, figure, name, &way, Some(route), flow, repetition)?;
                if let Some(found) = found {
                    add(figure, 0, name, at, &found, found.later_bps / 1e6);
                    figure.charts[1].add(name, at, cpu(&found));
                    if let Some([_, egress]) = found.cpu_s_per_gb {
                        figure.charts[2].add(name, at, Sample::of(egress));
                    }
                }
            }
        }
    }
    Ok(())
}

fn over_rings(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let (rtts, rings): (&[u32], &[u64]) = if context.quick {
        (&[20, 120], &[8, 32])
    } else {
        (&[20, 60, 120, 200, 300], &[8, 16, 32, 64, 128])
    };
    for &rtt_ms in rtts {
        let way = Way {
            path: Some(path(rtt_ms, 0)),
            edge: None,
        };
        for repetition in 0..context.repeat {
            for &mib in rings {
                for (chart, (_, mode, regions)) in RINGED.into_iter().enumerate() {
                    let route = Route {
                        ring_bytes: mib << 20,
                        more: format!("mode = \"{mode}\"\nregions = {regions}\n"),
                        ..route(rtt_ms, 0)
                    };
                    let name = ring_name(mib);
                    let told = format!("{mode}, {regions} regions of {name} in all, {rtt_ms} ms");
                    let flow = LINES[0].flow;
                    let found = run(context, figure, &told, &way, Some(&route), flow, repetition)?;
                    let Some(found) = found else { continue };
                    let share = 100.0 * found.later_bps / goodput_bps(RATE_BPS, 0);
                    add(figure, chart, &name, rtt_ms, &found, share);
                }
            }
        }
    }
    Ok(())
}

fn over_bursts(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let bursts: &[u32] = if context.quick {
        &[64, 1024]
    } else {
        &[64, 128, 256, 512, 1024, 2048, 4096]
    };
    let lines = lines(context, figure);
    // Through the gateways it makes no difference what their neighbours' TCP is.
    let lines = || {
        lines
            .iter()
            .filter(|line| !line.gateways || line.name == GATEWAYS)
    };
    for &kib in bursts {
        let policer =
            format!("policer = {{ rate = \"{POLICED_BPS}bit\", burst = \"{kib}KiB\" }}\n");
        let way = Way {
            path: Some(path(POLICED_RTT_MS, 0) + &policer),
            edge: None,
        };
        let route = Route {
            more: format!("rate = \"{POLICED_BPS}bit\"\nburst = \"{kib}KiB\"\n"),
            ..route(POLICED_RTT_MS, 0)
        };
        for repetition in 0..context.repeat {
            for line in lines() {
                let told = format!("{}, a burst of {kib} KiB", line.name);
                let route = line.gateways.then_some(&route);
                let found = run(context, figure, &told, &way, route, line.flow, repetition)?;
                let Some(found) = found else { continue };
                let share = |bps: f64| 100.0 * bps / goodput_bps(POLICED_BPS, 0);
                let at = kib << 10;
                add(figure, 0, line.name, at, &found, share(found.later_bps));
                add(figure, 1, line.name, at, &found, share(found.whole_bps));
            }
        }
    }
    Ok(())
}

fn request_and_response(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let time = Duration::from_millis(context.time_ms.min(2000));
    let through = route(0, 0);
    for repetition in 0..context.repeat {
        for (name, route) in [(DIRECTLY, None), (THROUGH, Some(&through))] {
            let lab = Gateways::start(
                context,
                &Way::default(),
                route,
                Listener::Forward(ECHO_PORT),
                repetition.into(),
            )?;
            let mut times = lab.round_trips(time, figure)?;
            times.sort_by(f64::total_cmp);
            let late = times.get(times.len() * 99 / 100).copied();
            if let Some((median, late)) = median(times).zip(late) {
                figure.charts[0].add(name, 0, Sample::of(median));
                figure.charts[1].add(name, 0, Sample::of(late));
            }
        }
    }
    Ok(())
}

fn ring_name(mib: u64) -> String {
    format!("{mib} MiB")
}

/// Full rate wherever the ring holds what is in flight, and the regions that are being filled and
/// drained.
fn ring_claim(figure: &Figure, chart: usize) -> Claim {
    let (_, mode, regions) = RINGED[chart];
    let mut worst: Option<(f64, String)> = None;
    let series = figure.charts.get(chart).map(|chart| &chart.series);
    for series in series.into_iter().flatten() {
        let Some(bytes) = ring_bytes(&series.name) else {
            continue;
        };
        let enough = |rtt_ms| bytes >= bdp_bytes(rtt_ms) * regions / (regions - 2);
        for point in series.points.iter().filter(|point| enough(point.at)) {
            if worst.as_ref().is_none_or(|(worst, _)| point.value < *worst) {
                let told = format!(
                    "{:.1} % in the worst: {}, {} ms",
                    point.value, series.name, point.at
                );
                worst = Some((point.value, told));
            }
        }
    }
    Claim::new(
        format!(
            "project: by {mode}, with N = {regions} regions, at least 95 % of the goodput wherever the ring is at least BDP × N / (N - 2)"
        ),
        worst.map(|(value, told)| (told, value >= SHARE)),
    )
}

fn ring_bytes(name: &str) -> Option<u64> {
    let mib: u64 = name.strip_suffix(" MiB")?.parse().ok()?;
    Some(mib << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_suits_its_path() {
        assert_eq!(route(0, 0).ring_bytes, 8 << 20);
        assert_eq!(route(20, 0).ring_bytes, 8 << 20);
        assert_eq!(route(120, 0).ring_bytes, 32 << 20);
        assert_eq!(route(300, 0).ring_bytes, 64 << 20);
        assert_eq!(route(120, 1000).ring_bytes, 64 << 20);
        assert_eq!(route(300, 1000).ring_bytes, 128 << 20);
        assert_eq!(ring_bytes(&ring_name(16)), Some(16 << 20));
    }

    #[test]
    fn sending_is_compared_size_by_size() {
        let mut figure = Figure {
            charts: vec![chart("", "s", Along::Bytes)],
            ..Figure::default()
        };
        assert_eq!(sending_claim(&figure, SPLICE, 0.8, "").holds, None);
        for (bytes, write, splice) in [
            (1 << 20, 1.0, 0.5),
            (64 << 20, 2.0, 1.2),
            (1 << 30, 1.0, 2.0),
        ] {
            figure.charts[0].add(WRITE, bytes, Sample::of(write));
            figure.charts[0].add(SPLICE, bytes, Sample::of(splice));
        }
        assert_eq!(
            sending_claim(&figure, SPLICE, 0.8, "").here.as_deref(),
            Some("0.60 times")
        );
        assert_eq!(sending_claim(&figure, SPLICE, 0.5, "").holds, Some(false));
    }

    #[test]
    fn only_rings_that_are_large_enough_must_be_full() {
        let mut figure = Figure {
            charts: RINGED
                .map(|(title, ..)| chart(title, "%", Along::Milliseconds))
                .into(),
            ..Figure::default()
        };
        figure.charts[0].add("16 MiB", 120, Sample::of(50.0));
        figure.charts[0].add("32 MiB", 120, Sample::of(97.0));
        assert_eq!(ring_claim(&figure, 0).holds, Some(true));
        assert_eq!(ring_claim(&figure, 1).holds, None);
        figure.charts[1].add("16 MiB", 120, Sample::of(50.0));
        assert_eq!(ring_claim(&figure, 1).holds, Some(false));
        figure.charts[0].add("8 MiB", 20, Sample::of(90.0));
        assert_eq!(ring_claim(&figure, 0).holds, Some(false));
    }
}
