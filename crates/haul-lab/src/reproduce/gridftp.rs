//! "Enhancement of GridFTP through Hardware Offloading", Rashti, Sabin and Kettimuthu, 2014, §V.D and §VI.C to D; and of "Evaluating
//! High Performance Data Transfer with RDMA-based Protocols in Wide-Area Networks", Kissel and Swany, 2012, §V.B, whose figure 8
//! is as figure 3 here: throughput over distance, processor time, and the first seconds.
//!
//! Debian's unmodified servers and client, memory to memory; the tools are those of `haul lab compare`.

use super::bench::Context;
use super::record::{Along, Claim, Figure, Sample, Series, chart};
use super::{Experiment, unknown};
use crate::compare::session::{Session, Stop};
use crate::compare::tool::Load;
use crate::compare::{Once, Path, once};

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
const SHOWN_MS: [u32; 16] = [
    100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000,
];
/// Packets lost of a million.
const LOSSES_PPM: [u32; 3] = [10, 100, 1_000];
/// The share of a path's goodput that one stream of ours is to have.
const SHARE: f64 = 0.93;

/// The figures.
pub(super) fn experiments() -> Vec<Experiment> {
    vec![distance(), unshaped(), loss(), beginning()]
}

fn distance() -> Experiment {
    Experiment {
        lasts: unknown,
        run: |context, figure| {
            let rtts: &[u32] = if context.quick { &[1, 100] } else { &RTTS_MS };
            let paths = rtts.iter().map(|&rtt_ms| {
                (
                    rtt_ms,
                    Path::Emulated {
                        rate_bps: RATE_BPS,
                        rtt_ms,
                        loss_ppm: 0,
                    },
                )
            });
            over_paths(context, figure, &TOOLS, paths)
        },
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
        lasts: unknown,
        run: |context, figure| {
            let tools = SINGLE.into_iter().filter(|(series, _)| *series != UNTUNED);
            let tools: Vec<_> = tools.collect();
            over_paths(context, figure, &tools, std::iter::once((0, Path::Direct)))
        },
        about: || Figure {
            number: 4,
            title: "GridFTP throughput and processor time between hosts joined directly",
            about: "Memory to memory, one stream, over a veth pair: what the processors allow. Processor time is of the servers at \
                    both ends.",
            charts: vec![
                chart("Goodput", "Mbit/s", Along::Nothing),
                chart(
                    "Processor time of both ends for 10^9 bytes",
                    "s",
                    Along::Nothing,
                ),
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
        lasts: unknown,
        run: |context, figure| {
            let losses: &[u32] = if context.quick { &[100] } else { &LOSSES_PPM };
            let path = |loss_ppm| Path::Emulated {
                rate_bps: RATE_BPS,
                rtt_ms: RTT_MS,
                loss_ppm,
            };
            over_paths(
                context,
                figure,
                &TOOLS,
                losses.iter().map(|&ppm| (ppm, path(ppm))),
            )
        },
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
        lasts: unknown,
        run: first_seconds,
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

/// Every tool on every path in turn: goodput, and the share of the ceiling, or the processor time where there is none.
fn over_paths(
    context: &Context<'_>,
    figure: &mut Figure,
    tools: &[(&'static str, &'static str)],
    paths: impl Iterator<Item = (u32, Path)>,
) -> Result<(), Stop> {
    for (at, path) in paths {
        for repetition in 0..context.repeat {
            for (series, tool) in tools {
                let Some(found) = run(
                    context,
                    figure,
                    path,
                    tool,
                    repetition,
                    seconds(context, 10),
                )?
                else {
                    continue;
                };
                let sample = |value| Sample {
                    value,
                    cpu_s_per_gb: Some(found.cpu_s_per_gb),
                    messages: None,
                };
                figure.charts[0].add(series, at, sample(found.goodput_bps / 1e6));
                let second = found
                    .ceiling_share
                    .map_or(found.cpu_s_per_gb, |share| 100.0 * share);
                figure.charts[1].add(series, at, sample(second));
            }
        }
    }
    Ok(())
}

fn first_seconds(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let path = Path::Emulated {
        rate_bps: RATE_BPS,
        rtt_ms: RTT_MS,
        loss_ppm: 0,
    };
    for repetition in 0..context.repeat {
        for (series, tool) in SINGLE {
            let Some(found) = run(
                context,
                figure,
                path,
                tool,
                repetition,
                seconds(context, 20),
            )?
            else {
                continue;
            };
            let sample = |value| Sample {
                value,
                ..Sample::default()
            };
            let times = (100..).step_by(100).zip(&found.bits_by_100ms);
            for (at, bits) in times.filter(|(at, _)| SHOWN_MS.contains(at)) {
                figure.charts[0].add(series, at, sample(bits / 1e5));
            }
            if let Some(ramp) = found.ramp_ms {
                figure.charts[1].add(series, 0, sample(ramp));
            }
        }
    }
    Ok(())
}

fn seconds(context: &Context<'_>, usual: u32) -> u32 {
    if context.quick { 4 } else { usual }
}

/// One run; nothing where the tool is not here, which the figure says.
fn run(
    context: &Context<'_>,
    figure: &mut Figure,
    path: Path,
    tool: &str,
    repetition: u16,
    seconds: u32,
) -> Result<Option<Once>, Stop> {
    let session = Session {
        programs: context.session.programs.clone(),
        signals: context.session.signals,
        load: Load::Seconds(seconds),
        settle: context.session.settle,
    };
    let command = format!("haul lab compare {path} --time {seconds}s --tools {tool}");
    figure.command(command);
    match once(&session, path, tool, repetition)? {
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
