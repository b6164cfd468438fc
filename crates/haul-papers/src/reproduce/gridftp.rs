//! "Enhancement of GridFTP through Hardware Offloading", Rashti, Sabin and Kettimuthu, 2014, §V.D
//! and §VI.C to D; and of "Evaluating High Performance Data Transfer with RDMA-based Protocols in
//! Wide-Area Networks", Kissel and Swany, 2012, §V.B, whose figure 8 is as figure 3 here:
//! throughput over distance, processor time, and the first seconds.
//!
//! Debian's unmodified servers and client, memory to memory; the tools are those of `haul lab
//! compare`.

use std::time::{Duration, Instant};

use super::bench::Context;
use super::cells::left;
use super::experiment::Experiment;
use super::record::{Along, Claim, Figure, Sample, Series, chart};
use crate::compare::once::{Once, Path, once};
use haul_lab::compare::plan::Load;
use haul_lab::compare::runner::{Runner, Stop};

/// The papers.
pub(super) const TITLE: &str = "Enhancement of GridFTP through Hardware Offloading (Rashti, Sabin, Kettimuthu, 2014), sections V and VI";

/// Series and tools, in the order of their turns.
const TOOLS: [(&str, &str); 10] = [
    (TCP, "gridftp-tcp"),
    ("TCP, 4 streams", "gridftp-tcp-4"),
    ("TCP, 8 streams", "gridftp-tcp-8"),
    (UNTUNED, "gridftp-tcp-untuned"),
    ("TCP untuned, 4", "gridftp-tcp-untuned-4"),
    ("TCP untuned, 8", "gridftp-tcp-untuned-8"),
    (UDT, "gridftp-udt"),
    (HAUL, "gridftp-haul-udt"),
    (HAUL_UDT, "gridftp-haul-stream"),
    (HAUL_TCP, "gridftp-haul-tcp"),
];
/// Those of one stream.
const SINGLE: [(&str, &str); 6] = [TOOLS[0], TOOLS[3], TOOLS[6], TOOLS[7], TOOLS[8], TOOLS[9]];
const TCP: &str = "TCP, 1 stream";
const UNTUNED: &str = "TCP untuned, 1";
const UDT: &str = "Debian's UDT driver";
const HAUL: &str = "haul, iWARP/UDT";
const HAUL_UDT: &str = "haul, UDT";
const HAUL_TCP: &str = "haul, iWARP/TCP";
/// The emulated path, which this machine can carry.
const RATE_BPS: u64 = 500_000_000;
/// Round-trip times of figure 3, ms, and that of figures 8 and 9.
const RTTS_MS: [u32; 6] = [1, 20, 50, 80, 120, 200];
const RTT_MS: u32 = 100;
/// When the rate of figure 9 is shown, ms.
const SHOWN_MS: [u32; 19] = [
    100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000,
    40_000, 70_000, 99_000,
];
/// Packets lost of a million.
const LOSSES_PPM: [u32; 3] = [10, 100, 1_000];
/// Time of a measurement beyond its sending time: a lab, GridFTP's control conversation, data in
/// flight at the end.
const OVERHEAD: Duration = Duration::from_secs(2);
/// The share of a path's goodput that one stream of ours is to have.
const SHARE: f64 = 0.93;

/// The figures.
pub(super) fn experiments() -> Vec<Experiment> {
    vec![distance(), unshaped(), loss(), beginning()]
}

fn distance() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &distance_cells(context)),
        run: |context, figure| over_paths(context, figure, &distance_cells(context)),
        about: || Figure {
            number: 3,
            title: "GridFTP throughput over round-trip time",
            about: "Memory to memory between two servers over an emulated path of 500 Mbit/s. Goodput includes the beginning, which \
                    is the more of a run the longer the path is. TCP has buffers that hold any of these paths; untuned, those \
                    that Linux gives it.",
            charts: vec![
                chart("Goodput", "Mbit/s", Along::Milliseconds),
                chart(
                    "Share of the path's goodput once it has begun",
                    "%",
                    Along::Milliseconds,
                ),
            ],
            judges: vec![
                |figure| {
                    share_claim(
                        figure,
                        HAUL,
                        "project: one stream of iWARP/UDT has at least 93 % of the path's goodput at every distance",
                    )
                },
                |figure| share_claim(figure, HAUL_UDT, "project: and one of UDT"),
                |figure| {
                    let best = |series: &str| {
                        figure
                            .value(0, series, 100)
                            .or_else(|| figure.value(0, series, 120))
                    };
                    let both = best(HAUL).zip(best(TCP));
                    Claim::new(
                        "papers: beyond 60 ms TCP with one stream falls behind, RDMA and UDT do not",
                        both.map(|(ours, tcp)| {
                            (format!("{:.2} times TCP", ours / tcp), ours >= tcp)
                        }),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn unshaped() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &unshaped_cells(context)),
        run: |context, figure| joined(context, figure, &unshaped_cells(context)),
        about: || Figure {
            number: 4,
            title: "GridFTP throughput and processor time between hosts joined directly",
            about: "Memory to memory, one stream, over a veth pair: what the processors allow. Processor time is of the servers.",
            charts: vec![
                chart("Goodput", "Mbit/s", Along::Nothing),
                chart(
                    "Processor time of both ends for 10^9 bytes",
                    "s",
                    Along::Nothing,
                ),
                chart("Of the sending end", "s", Along::Nothing),
                chart("Of the receiving end", "s", Along::Nothing),
            ],
            judges: vec![
                |figure| {
                    ratio_claim(
                        figure,
                        0,
                        HAUL,
                        UDT,
                        "project: iWARP/UDT has at least 3 times the goodput of Debian's UDT driver",
                        |ratio| ratio >= 3.0,
                    )
                },
                |figure| {
                    ratio_claim(
                        figure,
                        0,
                        HAUL_UDT,
                        UDT,
                        "project: and so has UDT",
                        |ratio| ratio >= 3.0,
                    )
                },
                |figure| {
                    ratio_claim(
                        figure,
                        0,
                        HAUL_UDT,
                        TCP,
                        "project: UDT has at least 0.9 times the goodput of Globus' TCP",
                        |ratio| ratio >= 0.9,
                    )
                },
                |figure| {
                    ratio_claim(
                        figure,
                        1,
                        HAUL_UDT,
                        TCP,
                        "project: and takes no more processor time",
                        |ratio| ratio <= 1.0,
                    )
                },
                |figure| {
                    ratio_claim(
                        figure,
                        0,
                        HAUL_TCP,
                        TCP,
                        "project: iWARP/TCP has at least 0.9 times the goodput of Globus' TCP",
                        |ratio| ratio >= 0.9,
                    )
                },
                |figure| {
                    ratio_claim(
                        figure,
                        1,
                        HAUL_TCP,
                        TCP,
                        "project: and takes no more processor time",
                        |ratio| ratio <= 1.0,
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn loss() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &loss_cells(context)),
        run: |context, figure| over_paths(context, figure, &loss_cells(context)),
        about: || Figure {
            number: 8,
            title: "GridFTP on a long path that loses packets",
            about: "As figure 3, with a round trip of 100 ms and random loss, in packets of a million.",
            charts: vec![
                chart("Goodput", "Mbit/s", Along::PerMillion),
                chart(
                    "Share of the path's goodput once it has begun",
                    "%",
                    Along::PerMillion,
                ),
            ],
            judges: vec![
                |figure| {
                    share_claim(
                        figure,
                        HAUL,
                        "project: one stream of iWARP/UDT has at least 93 % of the path's goodput at every loss",
                    )
                },
                |figure| share_claim(figure, HAUL_UDT, "project: and one of UDT"),
            ],
            ..Figure::default()
        },
    }
}

fn beginning() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &beginning_cells(context)),
        run: |context, figure| first_seconds(context, figure, &beginning_cells(context)),
        about: || Figure {
            number: 9,
            title: "The first seconds of a transfer",
            about: "Bytes as they arrive in each 100 ms, over a round trip of 100 ms. The paper shows a window of 100 s.",
            charts: vec![
                chart("Rate", "Mbit/s", Along::Milliseconds),
                chart("Until nine tenths of the final rate", "ms", Along::Nothing),
            ],
            judges: vec![
                |figure| {
                    ramp_claim(
                        figure,
                        HAUL,
                        "paper: UDT takes 4 to 5 s until it runs at 90 %; project: iWARP/UDT less than 1 s",
                    )
                },
                |figure| ramp_claim(figure, HAUL_UDT, "project: and so does UDT"),
            ],
            ..Figure::default()
        },
    }
}

/// One tool on one path.
#[derive(Clone, Copy, Debug)]
struct Cell {
    series: &'static str,
    tool: &'static str,
    /// Where the charts have it.
    at: u32,
    path: Path,
    seconds: u32,
}

fn emulated(rtt_ms: u32, loss_ppm: u32) -> Path {
    Path::Emulated {
        rate_bps: RATE_BPS,
        rtt_ms,
        loss_ppm,
    }
}

/// Every tool at every place, the tools of a place in turns, `times` as long as the others are
/// measured.
fn cells(
    context: &Context<'_>,
    times: u64,
    tools: &[(&'static str, &'static str)],
    places: impl IntoIterator<Item = (u32, Path)>,
) -> Vec<Cell> {
    let seconds = (context.time_ms * times).div_ceil(1000);
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    let of = |(at, path)| {
        tools.iter().map(move |&(series, tool)| Cell {
            series,
            tool,
            at,
            path,
            seconds,
        })
    };
    places.into_iter().flat_map(of).collect()
}

fn distance_cells(context: &Context<'_>) -> Vec<Cell> {
    let rtts: &[u32] = if context.quick { &[1, 100] } else { &RTTS_MS };
    let places = rtts.iter().map(|&rtt_ms| (rtt_ms, emulated(rtt_ms, 0)));
    cells(context, 1, &TOOLS, places)
}

fn unshaped_cells(context: &Context<'_>) -> Vec<Cell> {
    let tools = SINGLE.into_iter().filter(|(series, _)| *series != UNTUNED);
    let tools: Vec<_> = tools.collect();
    cells(context, 1, &tools, [(0, Path::Direct)])
}

fn loss_cells(context: &Context<'_>) -> Vec<Cell> {
    let losses: &[u32] = if context.quick { &[100] } else { &LOSSES_PPM };
    let places = losses.iter().map(|&ppm| (ppm, emulated(RTT_MS, ppm)));
    cells(context, 1, &TOOLS, places)
}

fn beginning_cells(context: &Context<'_>) -> Vec<Cell> {
    let times = if context.quick { 2 } else { 10 };
    cells(context, times, &SINGLE, [(0, emulated(RTT_MS, 0))])
}

fn lasts(context: &Context<'_>, cells: &[Cell]) -> Duration {
    let each = |cell: &Cell| Duration::from_secs(cell.seconds.into()) + OVERHEAD;
    cells.iter().map(each).sum::<Duration>() * context.repeat.into()
}

/// Goodput, and the share of the ceiling.
fn over_paths(context: &Context<'_>, figure: &mut Figure, cells: &[Cell]) -> Result<(), Stop> {
    measure(context, figure, cells, |figure, cell, found| {
        let sample = |value| Sample {
            value,
            cpu_s_per_gb: Some(found.cpu_s_per_gb.iter().sum()),
            messages: None,
        };
        let goodput = sample(found.goodput_bps / 1e6);
        figure.charts[0].add(cell.series, cell.at, goodput);
        if let Some(share) = found.ceiling_share {
            figure.charts[1].add(cell.series, cell.at, sample(100.0 * share));
        }
    })
}

/// Goodput and processor time.
fn joined(context: &Context<'_>, figure: &mut Figure, cells: &[Cell]) -> Result<(), Stop> {
    measure(context, figure, cells, |figure, cell, found| {
        let [sender, receiver] = found.cpu_s_per_gb;
        let values = [found.goodput_bps / 1e6, sender + receiver, sender, receiver];
        for (chart, value) in figure.charts.iter_mut().zip(values) {
            chart.add(cell.series, cell.at, Sample::of(value));
        }
    })
}

fn first_seconds(context: &Context<'_>, figure: &mut Figure, cells: &[Cell]) -> Result<(), Stop> {
    measure(context, figure, cells, |figure, cell, found| {
        let times = (100..).step_by(100).zip(&found.bits_by_100ms);
        for (at, bits) in times.filter(|(at, _)| SHOWN_MS.contains(at)) {
            figure.charts[0].add(cell.series, at, Sample::of(bits / 1e5));
        }
        if let Some(ramp) = found.ramp_ms {
            figure.charts[1].add(cell.series, cell.at, Sample::of(ramp));
        }
    })
}

/// Takes all measurements in turns. One that fails is repeated once, which the figure notes; if it
/// fails again, it makes the figure a failure, and the others go on.
fn measure(
    context: &Context<'_>,
    figure: &mut Figure,
    cells: &[Cell],
    mut add: impl FnMut(&mut Figure, &Cell, &Once),
) -> Result<(), Stop> {
    let count = cells.len() * usize::from(context.repeat);
    let (begun, planned, mut done) = (Instant::now(), lasts(context, cells), 0_usize);
    for repetition in 0..context.repeat {
        for cell in cells {
            let expected = planned.mul_f64(share(done, count));
            let left = left(planned - expected, context.later, expected, begun.elapsed());
            done += 1;
            let path = cell.path;
            let what = format!(
                "  {done}/{count}, about {left} left: {} {path}",
                cell.series
            );
            let mut found = run(context, figure, cell, repetition);
            if let Err(Stop::Failed(why)) = &found {
                figure.warn(format!(
                    "{}, {path}: measured again, because {why:#}",
                    cell.tool
                ));
                found = run(context, figure, cell, repetition);
            }
            match found {
                Ok(Some(found)) => {
                    eprintln!("{what}: {:.1} Mbit/s", found.goodput_bps / 1e6);
                    add(figure, cell, &found);
                }
                Ok(None) => eprintln!("{what}: left out"),
                Err(Stop::Failed(why)) => {
                    eprintln!("{what}: failed: {why:#}");
                    figure.failed.get_or_insert_with(|| format!("{why:#}"));
                }
                Err(stop) => return Err(stop),
            }
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "numbers of measurements")]
fn share(done: usize, count: usize) -> f64 {
    done as f64 / count as f64
}

/// One run; `None` if the tool is missing, which the figure notes.
fn run(
    context: &Context<'_>,
    figure: &mut Figure,
    cell: &Cell,
    repetition: u16,
) -> Result<Option<Once>, Stop> {
    let Cell {
        tool,
        path,
        seconds,
        ..
    } = *cell;
    let runner = Runner {
        programs: context.runner.programs.clone(),
        signals: context.runner.signals,
        load: Load::Seconds(seconds),
        settle: context.runner.settle,
    };
    figure.command(format!(
        "haul-papers compare {path} --time {seconds}s --tools {tool}"
    ));
    match once(&runner, path, tool, repetition)? {
        Ok(found) => {
            for warning in &found.warnings {
                figure.warn(format!("{tool}, {path}: {warning}"));
            }
            Ok(Some(found))
        }
        Err(why) => {
            figure.warn(format!("{tool} is left out: {why}"));
            Ok(None)
        }
    }
}

/// One stream of ours at every place of the second chart.
fn share_claim(figure: &Figure, ours: &str, words: &str) -> Claim {
    let ours: Option<&Series> = figure.charts[1].series(ours);
    let least = ours.and_then(|series| {
        series
            .points
            .iter()
            .map(|point| point.value)
            .reduce(f64::min)
    });
    Claim::new(
        words,
        least.map(|least| (format!("{least:.1} %"), least >= 100.0 * SHARE)),
    )
}

/// Until the rate of the second chart.
fn ramp_claim(figure: &Figure, ours: &str, words: &str) -> Claim {
    let ramp = figure.value(1, ours, 0);
    Claim::new(
        words,
        ramp.map(|ramp| (format!("{ramp:.0} ms"), ramp < 1000.0)),
    )
}

fn ratio_claim(
    figure: &Figure,
    chart: usize,
    ours: &str,
    theirs: &str,
    words: &str,
    holds: fn(f64) -> bool,
) -> Claim {
    let both = figure
        .value(chart, ours, 0)
        .zip(figure.value(chart, theirs, 0));
    let ratio = both.map(|(ours, theirs)| ours / theirs);
    Claim::new(
        words,
        ratio.map(|ratio| (format!("{ratio:.2} times"), holds(ratio))),
    )
}
