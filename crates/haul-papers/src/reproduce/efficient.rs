//! "Efficient Data Transfer Protocols for Big Data", Tierney, Kissel, Swany and Pouyoul, e-Science
//! 2012, §V: TCP, zero-copy TCP, UDP, UDT and RDMA, with what the processors of both ends take;
//! beside other flows; and over paths with loss and reordering.
//!
//! Its paths had 10 to 40 Gbit/s; the emulated ones here have a twentieth of 10, and what depends
//! on the ratio of a window and a path (depths, windows of TCP) is a twentieth too. RoCE is iWARP
//! over UDT, a software RNIC: it cannot have the processor time of hardware.

use super::bench::Context;
use super::cells::{Cell, Found, How, Net, lasts, measure};
use super::experiment::Experiment;
use super::record::{Along, Chart, Claim, Figure, Sample, chart};
use haul_lab::compare::runner::Stop;
use haul_lab::compare::tool::no_congestion_control;

/// The paper.
pub(super) const TITLE: &str = "Efficient Data Transfer Protocols for Big Data (Tierney, Kissel, Swany, Pouyoul, e-Science \
2012), section V";

/// The emulated path, and the paper's round trips, ms: of table I and of figure 9.
const RATE_BPS: u64 = 500_000_000;
const RTT_MS: u32 = 49;
const LONG_RTT_MS: u32 = 94;
/// The rate for UDP: payload that fits the path with its headers.
const UDP: &str = "--rate 480Mbit";
/// TCP windows of figure 3: 16 MB of a path of 20 Gbit/s, and as much of this one.
const WINDOW: &str = "400KiB";

const TCP: &str = "TCP";
const SENDFILE: &str = "TCP, sendfile";
const SPLICE: &str = "TCP, splice";
const ZERO_COPY: &str = "TCP, MSG_ZEROCOPY";
const RDMA: &str = "RDMA, iWARP/UDT";
const RDMA_TCP: &str = "RDMA, iWARP/TCP";
const UDT: &str = "UDT";
const GRIDFTP_UDT: &str = "GridFTP, UDT";
const GRIDFTP_RDMA: &str = "GridFTP, haul iWARP/UDT";
const RDMA_64K: &str = "RDMA 64 KiB";
const RDMA_1M: &str = "RDMA 1 MiB";

/// Enough outstanding for the long path.
const DEEP: &str = "--message 1MiB --depth 32 --memory 32MiB";

/// Charts of the tables.
const GOODPUT: usize = 0;
const SENDER: usize = 1;
const RECEIVER: usize = 2;
const CPU: usize = 3;

/// The tables and the figures.
pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        baselines(),
        fastest(),
        two_flows(),
        beside_tcp(),
        beside_udp(),
        overhead(),
        clean(),
        lossy(),
        reordered(),
        over_time(),
    ]
}

fn bars(title: &str, unit: &'static str) -> Chart {
    chart(title, unit, Along::Nothing)
}

fn net(rtt_ms: u32) -> Net {
    Net {
        rate_bps: RATE_BPS,
        rtt_us: rtt_ms * 1000,
        ..Net::default()
    }
}

/// Of the path, percent.
fn share(mbps: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
    let rate = RATE_BPS as f64;
    100.0 * mbps * 1e6 / rate
}

/// Bars of the tables: goodput, and the processor time of each end.
fn table_charts() -> Vec<Chart> {
    vec![
        bars("Goodput", "Mbit/s"),
        bars("Sender's processor time, of one core", "percent"),
        bars("Receiver's processor time, of one core", "percent"),
        bars("Processor time of both ends for 10^9 bytes", "s"),
    ]
}

fn table(context: &Context<'_>, figure: &mut Figure, cells: &[Cell]) -> Result<(), Stop> {
    measure(context, figure, cells, |figure, cell, found, _| {
        let mut add = |chart: usize, value: f64| {
            figure.charts[chart].add(&cell.series, cell.at, Sample::of(value))
        };
        add(GOODPUT, found.goodput_bps / 1e6);
        let [sender, receiver] = &found.ends;
        for (chart, value) in [
            (SENDER, sender.cpu_percent),
            (RECEIVER, receiver.cpu_percent),
            (CPU, found.cpu_s_per_gb),
        ] {
            if let Some(value) = value {
                add(chart, value);
            }
        }
    })
}

fn run(series: &str, engine: &'static str, options: &str) -> Cell {
    Cell::new(0, series, 0, How::Run(engine, options.into()))
}

fn tool(series: &str, tool: &'static str) -> Cell {
    Cell::new(0, series, 0, How::Tool(tool))
}

fn baselines() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &baseline_cells()),
        run: |context, figure| table(context, figure, &baseline_cells()),
        about: || Figure {
            number: 1,
            table: true,
            title: "One stream by each tool over a path of 49 ms",
            about: "Memory to memory over an emulated path of 500 Mbit/s (the paper: 10 Gbit/s) without loss. UDP is told 480 \
                    Mbit/s. GridFTP is Debian's server and client with Globus' TCP, Debian's UDT driver and the driver of \
                    Longhaul; of these there is only what both ends take together.",
            charts: table_charts(),
            judges: vec![
                |figure| share_claim(figure, TCP, 99.0),
                |figure| share_claim(figure, RDMA, 97.0),
                |figure| {
                    let both = figure.value(GOODPUT, GRIDFTP_UDT, 0).zip(figure.value(
                        GOODPUT,
                        "GridFTP, TCP",
                        0,
                    ));
                    Claim::new(
                        "paper: GridFTP by UDT has 0.36 times what it has by TCP (3.3 against 9.2 Gbit/s); agrees below 0.6",
                        both.map(|(udt, tcp)| (format!("{:.2} times", udt / tcp), udt < 0.6 * tcp)),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn baseline_cells() -> Vec<Cell> {
    let cells = [
        run(TCP, "tcp", ""),
        run("UDP", "udp", UDP),
        run(UDT, "udt", ""),
        run(RDMA, "iwarp-udt", DEEP),
        run(RDMA_TCP, "iwarp-tcp", DEEP),
        tool("GridFTP, TCP", "gridftp-tcp"),
        tool(GRIDFTP_UDT, "gridftp-udt"),
        tool(GRIDFTP_RDMA, "gridftp-haul-udt"),
    ];
    cells.map(|cell| cell.over(net(RTT_MS))).into()
}

/// It fills the path, as in the paper.
fn share_claim(figure: &Figure, series: &str, paper: f64) -> Claim {
    let share = figure.value(GOODPUT, series, 0).map(share);
    Claim::new(
        format!("paper: {series} has {paper} % of the path; agrees from 90 % on"),
        share.map(|share| (format!("{share:.1} %"), share >= 90.0)),
    )
}

fn fastest() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &fastest_cells()),
        run: |context, figure| table(context, figure, &fastest_cells()),
        about: || Figure {
            number: 2,
            table: true,
            title: "As fast as one stream goes, and what both ends take",
            about: "Memory to memory between hosts joined directly (veth): what the processors allow, which both ends share. \
                    The paper had 40 Gbit/s over 94 ms, and a processor of its own for each end.",
            charts: table_charts(),
            judges: vec![
                |figure| {
                    more_claim(
                        figure,
                        SENDFILE,
                        TCP,
                        1.2,
                        "paper: sendfile has 2.2 times what netperf's TCP has (39.5 against 17.9 Gbit/s)",
                    )
                },
                |figure| {
                    more_claim(
                        figure,
                        SPLICE,
                        TCP,
                        1.2,
                        "paper: splice has 1.8 times what TCP has (39.5 against 22 Gbit/s)",
                    )
                },
                |figure| {
                    let both = per_byte(figure, SENDFILE).zip(per_byte(figure, TCP));
                    Claim::new(
                        "paper: and its sender takes 0.15 of the processor time for a byte (34 % for 39.5, 100 % for 17.9); \
                         agrees below 0.6",
                        both.map(|(zero, copy)| {
                            (format!("{:.2} times", zero / copy), zero < 0.6 * copy)
                        }),
                    )
                },
                |figure| {
                    let both = per_byte(figure, RDMA).zip(per_byte(figure, TCP));
                    Claim::new(
                        "paper: RDMA in hardware takes 0.01 of TCP's processor time at the sender (2 %, 100 %); agrees below 0.1",
                        both.map(|(rdma, tcp)| {
                            (
                                format!("{:.2} times, by software", rdma / tcp),
                                rdma < 0.1 * tcp,
                            )
                        }),
                    )
                },
                |figure| {
                    more_claim(
                        figure,
                        GRIDFTP_RDMA,
                        GRIDFTP_UDT,
                        2.0,
                        "paper: GridFTP has 3.6 times as much by RDMA as by UDT (13 against 3.6 Gbit/s)",
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn fastest_cells() -> Vec<Cell> {
    vec![
        run(TCP, "tcp", ""),
        run(SENDFILE, "tcp", "--send sendfile --source ramdisk"),
        run(SPLICE, "tcp", "--send splice"),
        run(ZERO_COPY, "tcp", "--send zerocopy"),
        run("UDP", "udp", ""),
        run(UDT, "udt", ""),
        run(
            RDMA,
            "iwarp-udt",
            "--message 1MiB --depth 16 --memory 16MiB",
        ),
        run(
            RDMA_TCP,
            "iwarp-tcp",
            "--message 1MiB --depth 16 --memory 16MiB",
        ),
        tool("GridFTP, TCP", "gridftp-tcp"),
        tool(GRIDFTP_UDT, "gridftp-udt"),
        tool(GRIDFTP_RDMA, "gridftp-haul-udt"),
    ]
}

fn more_claim(figure: &Figure, one: &str, other: &str, least: f64, words: &str) -> Claim {
    let both = figure
        .value(GOODPUT, one, 0)
        .zip(figure.value(GOODPUT, other, 0));
    Claim::new(
        format!("{words}; agrees from {least} times on"),
        both.map(|(one, other)| (format!("{:.2} times", one / other), one >= least * other)),
    )
}

/// The sender's processor time for what it got through.
fn per_byte(figure: &Figure, series: &str) -> Option<f64> {
    let both = figure
        .value(SENDER, series, 0)
        .zip(figure.value(GOODPUT, series, 0));
    both.map(|(percent, mbps)| percent / mbps)
}

const ALONE: &str = "one, alone";
const SECOND: &str = "beside another one";

fn two_flows() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &two_cells()),
        run: |context, figure| {
            measure(context, figure, &two_cells(), |figure, cell, found, _| {
                figure.charts[0].add(&cell.series, 0, Sample::of(found.goodput_bps / 1e6));
            })
        },
        about: || Figure {
            number: 2,
            title: "Two RDMA flows on one path",
            about: "RDMA Write by iWARP over UDT over an emulated path of 500 Mbit/s and 49 ms: one flow alone, and one \
                    beside another that began a second earlier and lasts longer.",
            charts: vec![bars("Goodput", "Mbit/s")],
            judges: vec![|figure| {
                let both = figure.value(0, SECOND, 0).zip(figure.value(0, ALONE, 0));
                let share = both.map(|(beside, alone)| 100.0 * beside / alone);
                Claim::new(
                    "paper: two RDMA flows share a path evenly; agrees from 40 to 60 % of alone",
                    share.map(|share| {
                        (
                            format!("{share:.0} % of alone"),
                            (40.0..=60.0).contains(&share),
                        )
                    }),
                )
            }],
            ..Figure::default()
        },
    }
}

fn rdma() -> (&'static str, String) {
    ("iwarp-udt", DEEP.into())
}

fn two_cells() -> Vec<Cell> {
    let cells = [
        run(ALONE, "iwarp-udt", DEEP),
        Cell::new(0, SECOND, 0, How::Beside([rdma(), rdma()])),
    ];
    cells.map(|cell| cell.over(net(RTT_MS))).into()
}

/// RDMA as a share of the path.
fn add_share(figure: &mut Figure, cell: &Cell, found: &Found) {
    let share = |bps: f64| Sample::of(share(bps / 1e6));
    figure.charts[0].add(&cell.series, cell.at, share(found.goodput_bps));
    if let Some(bps) = found.beside_bps {
        figure.charts[1].add(&cell.series, cell.at, share(bps));
    }
}

fn beside_tcp() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &tcp_cells(context)),
        run: |context, figure| {
            measure(
                context,
                figure,
                &tcp_cells(context),
                |figure, cell, found, _| {
                    add_share(figure, cell, found);
                },
            )
        },
        about: || Figure {
            number: 3,
            title: "RDMA beside streams of TCP",
            about: "RDMA Write by iWARP over UDT beside 1 to 32 streams of the kernel's TCP, over an emulated path of 500 \
                    Mbit/s and 49 ms. The paper's RoCE had no congestion control, and a link below that paused who sent too \
                    much.",
            charts: vec![
                chart("What RDMA has of the path, beside", "%", Along::Connections),
                chart(
                    "What TCP has of the path, all streams together",
                    "%",
                    Along::Connections,
                ),
            ],
            judges: vec![
                |figure| {
                    let least = least(figure);
                    Claim::new(
                        "paper: RDMA keeps well over half of the path beside 1 to 32 streams of TCP",
                        least.map(|share| (format!("{share:.0} % in the worst"), share > 50.0)),
                    )
                },
                |figure| {
                    let few = |series: &str| {
                        figure.charts[0]
                            .series(series)?
                            .points
                            .first()
                            .map(|point| point.value)
                    };
                    let both = few(&limited("reno")).zip(few("reno"));
                    Claim::new(
                        "paper: a small window of TCP leaves more to RDMA while streams are few",
                        both.map(|(small, large)| {
                            (format!("{small:.0} % against {large:.0} %"), small > large)
                        }),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn limited(control: &str) -> String {
    format!("{control}, windows of {WINDOW}")
}

fn tcp_cells(context: &Context<'_>) -> Vec<Cell> {
    let streams: &[u32] = if context.quick {
        &[1, 8]
    } else {
        &[1, 2, 4, 8, 16, 32]
    };
    let controls = ["reno", "cubic", "htcp"];
    let there = controls
        .into_iter()
        .filter(|name| no_congestion_control(name).is_none());
    let mut cells = Vec::new();
    for control in there.filter(|name| !context.quick || *name != "htcp") {
        for (series, more) in [
            (control.to_owned(), String::new()),
            (limited(control), format!(" --buffer {WINDOW}")),
        ] {
            if context.quick && control == "cubic" && !more.is_empty() {
                continue;
            }
            cells.extend(streams.iter().map(|&streams| {
                let tcp = format!("--streams {streams} --congestion {control}{more}");
                let how = How::Beside([rdma(), ("tcp", tcp)]);
                Cell::new(0, series.clone(), streams, how).over(net(RTT_MS))
            }));
        }
    }
    cells
}

/// The least share that RDMA has.
fn least(figure: &Figure) -> Option<f64> {
    let points = figure.charts[0]
        .series
        .iter()
        .flat_map(|series| &series.points);
    points.map(|point| point.value).reduce(f64::min)
}

fn beside_udp() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &udp_cells(context)),
        run: |context, figure| {
            measure(
                context,
                figure,
                &udp_cells(context),
                |figure, cell, found, _| {
                    add_share(figure, cell, found);
                },
            )
        },
        about: || Figure {
            number: 4,
            title: "RDMA beside UDP without congestion control",
            about: "As figure 3, beside datagrams at 55 to 95 % of the path's rate.",
            charts: vec![
                chart("What RDMA has of the path", "%", Along::Cross),
                chart("What UDP has of the path", "%", Along::Cross),
            ],
            judges: vec![
                |figure| {
                    let points = figure.charts[1]
                        .series
                        .iter()
                        .flat_map(|series| &series.points);
                    let least = points
                        .map(|point| 100.0 * point.value / f64::from(point.at))
                        .reduce(f64::min);
                    Claim::new(
                        "paper: UDP takes as much as it asks for; agrees from 90 % of that on",
                        least.map(|share| (format!("{share:.0} % in the worst"), share >= 90.0)),
                    )
                },
                |figure| {
                    let points = figure.charts[0]
                        .series
                        .iter()
                        .flat_map(|series| &series.points);
                    let least = points
                        .filter(|point| point.at <= 75)
                        .map(|point| 100.0 * point.value / f64::from(100 - point.at))
                        .reduce(f64::min);
                    Claim::new(
                        "project: RDMA has at least 0.9 of what UDP leaves, up to UDP at 75 %",
                        least.map(|share| (format!("{share:.0} % in the worst"), share >= 90.0)),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn udp_cells(context: &Context<'_>) -> Vec<Cell> {
    let percents: &[u32] = if context.quick {
        &[55, 90]
    } else {
        &[55, 60, 65, 70, 75, 80, 85, 90, 95]
    };
    let cell = |&percent: &u32| {
        let udp = format!("--rate {}bit", RATE_BPS / 100 * u64::from(percent));
        Cell::new(0, RDMA, percent, How::Beside([rdma(), ("udp", udp)])).over(net(RTT_MS))
    };
    percents.iter().map(cell).collect()
}

const MEMORY: &str = "memory to memory";

fn overhead() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &overhead_cells()),
        run: |context, figure| {
            let mut why = None;
            let measured = measure(
                context,
                figure,
                &overhead_cells(),
                |figure, cell, found, _| {
                    for (chart, end) in found.ends.iter().enumerate() {
                        if let Some(value) = end.cpu_s_per_gb {
                            figure.charts[chart].add(&cell.series, 0, Sample::of(value));
                        }
                        if let Some(value) = end.cache_references {
                            figure.charts[2 + chart].add(&cell.series, 0, Sample::of(value));
                        }
                        why = why.take().or_else(|| end.no_counters.clone());
                    }
                },
            );
            if let Some(why) = why {
                figure.warn(format!("accesses to the cache are not counted: {why}"));
            }
            figure.charts.retain(|chart| !chart.series.is_empty());
            measured
        },
        about: || Figure {
            number: 5,
            title: "Processor time and cache accesses, from memory and from a file",
            about: "Between hosts joined directly, as fast as it goes; the file lies in memory. The paper counted loads of \
                    the data cache; here it is accesses to the last level of cache, where the machine counts them. RDMA from \
                    a file is 'haul bench rdma --file', which has no such counters.",
            charts: vec![
                bars("Sender's processor time for 10^9 bytes", "s"),
                bars("Receiver's processor time for 10^9 bytes", "s"),
                bars(
                    "Sender's accesses to the last level of cache for a byte",
                    "accesses",
                ),
                bars(
                    "Receiver's accesses to the last level of cache for a byte",
                    "accesses",
                ),
            ],
            judges: vec![
                |figure| {
                    let both = figure.value(0, &from_memory(RDMA_TCP), 0).zip(figure.value(
                        0,
                        &from_memory(TCP),
                        0,
                    ));
                    Claim::new(
                        "paper: RDMA in hardware takes a fiftieth of TCP's processor time; agrees below a tenth",
                        both.map(|(rdma, tcp)| {
                            (
                                format!("{:.2} times, by software", rdma / tcp),
                                rdma < 0.1 * tcp,
                            )
                        }),
                    )
                },
                |figure| {
                    let both = figure.value(0, "TCP, file to memory", 0).zip(figure.value(
                        0,
                        &from_memory(TCP),
                        0,
                    ));
                    Claim::new(
                        "paper: reading the file adds to the sender's processor time",
                        both.map(|(file, memory)| {
                            (format!("{:.2} times", file / memory), file > memory)
                        }),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn from_memory(engine: &str) -> String {
    format!("{engine}, {MEMORY}")
}

fn overhead_cells() -> Vec<Cell> {
    const VERBS: &str = "--message 1MiB --depth 16 --memory 16MiB";
    vec![
        run(&from_memory(TCP), "tcp", ""),
        run("TCP, file to memory", "tcp", "--source ramdisk"),
        run(
            "TCP, file by sendfile",
            "tcp",
            "--send sendfile --source ramdisk",
        ),
        run(&from_memory(UDT), "udt", ""),
        run("UDT, file to memory", "udt", "--source ramdisk"),
        run(&from_memory(RDMA), "iwarp-udt", VERBS),
        run(&from_memory(RDMA_TCP), "iwarp-tcp", VERBS),
    ]
}

/// Engines of figures 6 to 8. The paper had up to 250 messages outstanding on 10 Gbit/s.
const BY_DISTANCE: [(&str, &str, &str); 3] = [
    ("TCP (cubic)", "tcp", "--congestion cubic"),
    (
        RDMA_64K,
        "iwarp-udt",
        "--message 64KiB --depth 12 --memory 1MiB",
    ),
    (
        RDMA_1M,
        "iwarp-udt",
        "--message 1MiB --depth 12 --memory 16MiB",
    ),
];
const FAR_MS: u32 = 100;

fn by_distance(chart: usize, rtts: &[u32], change: impl Fn(Net) -> Net) -> Vec<Cell> {
    let cell = |rtt_ms: u32, (series, engine, options): (&str, &'static str, &str)| {
        let how = How::Run(engine, options.into());
        Cell::new(chart, series, rtt_ms, how).over(change(net(rtt_ms)))
    };
    rtts.iter()
        .flat_map(|&rtt| BY_DISTANCE.map(|one| cell(rtt, one)))
        .collect()
}

/// Measures, and shows the share of the path.
fn show(context: &Context<'_>, figure: &mut Figure, cells: &[Cell]) -> Result<(), Stop> {
    measure(context, figure, cells, |figure, cell, found, _| {
        let sample = Sample {
            cpu_s_per_gb: found.cpu_s_per_gb,
            ..Sample::of(found.goodput_bps / 1e6)
        };
        figure.charts[cell.chart].add(&cell.series, cell.at, sample);
    })
}

fn clean() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &clean_cells(context)),
        run: |context, figure| show(context, figure, &clean_cells(context)),
        about: || Figure {
            number: 6,
            title: "RDMA and TCP over a clean path",
            about: "One stream over an emulated path of 500 Mbit/s (the paper: 10 Gbit/s), RDMA Write of 64 KiB and 1 MiB \
                    with 12 messages outstanding (the paper: 250).",
            charts: vec![chart("Goodput", "Mbit/s", Along::Milliseconds)],
            judges: vec![
                |figure| {
                    let share = figure.value(0, RDMA_64K, FAR_MS).map(share);
                    Claim::new(
                        "paper: messages of 64 KiB, too few of them outstanding, have less than 20 % of the path at 100 ms",
                        share.map(|share| (format!("{share:.1} %"), share < 20.0)),
                    )
                },
                |figure| {
                    let share = figure.value(0, RDMA_1M, FAR_MS).map(share);
                    Claim::new(
                        "paper: of 1 MiB they have near all of it; agrees from 85 % on",
                        share.map(|share| (format!("{share:.1} %"), share >= 85.0)),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn clean_cells(context: &Context<'_>) -> Vec<Cell> {
    let rtts: &[u32] = if context.quick {
        &[1, FAR_MS]
    } else {
        &[0, 1, 10, 50, FAR_MS]
    };
    by_distance(0, rtts, |net| net)
}

/// Packets of a million that are impaired.
const IMPAIRED_PPM: [u32; 3] = [10, 100, 1000];

fn lossy() -> Experiment {
    const CHANGE: fn(u32, Net) -> Net = |loss_ppm, net| Net { loss_ppm, ..net };
    Experiment {
        lasts: |context| lasts(context, &impaired_cells(context, CHANGE)),
        run: |context, figure| show(context, figure, &impaired_cells(context, CHANGE)),
        about: || impaired_figure(7, "RDMA and TCP over a path that loses packets", "are lost"),
    }
}

fn reordered() -> Experiment {
    const CHANGE: fn(u32, Net) -> Net = |reorder_ppm, net| Net { reorder_ppm, ..net };
    Experiment {
        lasts: |context| lasts(context, &impaired_cells(context, CHANGE)),
        run: |context, figure| show(context, figure, &impaired_cells(context, CHANGE)),
        about: || {
            impaired_figure(
                8,
                "RDMA and TCP over a path that reorders packets",
                "are overtaken",
            )
        },
    }
}

fn impaired_figure(number: u32, title: &'static str, what: &str) -> Figure {
    let of = |ppm: u32| {
        chart(
            &format!("Goodput where {ppm} of a million {what}"),
            "Mbit/s",
            Along::Milliseconds,
        )
    };
    Figure {
        number,
        title,
        about: "As figure 6. A packet that is reordered waits a millisecond, while others pass it.",
        charts: IMPAIRED_PPM.map(of).into(),
        judges: vec![
            |figure| {
                let values = (0..IMPAIRED_PPM.len())
                    .filter_map(|chart| figure.value(chart, RDMA_1M, FAR_MS));
                let least = values.reduce(f64::min).map(share);
                Claim::new(
                    "paper: at 100 ms messages of 1 MiB break down by slight impairments; agrees below half of the path",
                    least.map(|least| (format!("{least:.0} % of it in the worst"), least < 50.0)),
                )
            },
            |figure| {
                let both =
                    figure
                        .value(2, RDMA_1M, FAR_MS)
                        .zip(figure.value(2, BY_DISTANCE[0].0, FAR_MS));
                Claim::new(
                    "project: RDMA has more than TCP (cubic) where 1000 of a million are impaired at 100 ms",
                    both.map(|(rdma, tcp)| (format!("{:.1} times", rdma / tcp), rdma > tcp)),
                )
            },
        ],
        ..Figure::default()
    }
}

fn impaired_cells(context: &Context<'_>, change: fn(u32, Net) -> Net) -> Vec<Cell> {
    let rtts: &[u32] = if context.quick {
        &[FAR_MS]
    } else {
        &[1, 10, FAR_MS]
    };
    let levels = IMPAIRED_PPM.iter().enumerate();
    levels
        .filter(|(_, ppm)| !context.quick || **ppm != 100)
        .flat_map(|(index, &ppm)| by_distance(index, rtts, move |net| change(ppm, net)))
        .collect()
}

fn over_time() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &over_time_cells()),
        run: |context, figure| {
            measure(
                context,
                figure,
                &over_time_cells(),
                |figure, cell, found, _| {
                    for &(at, bps) in &found.over_time {
                        figure.charts[0].add(&cell.series, at, Sample::of(bps / 1e6));
                    }
                },
            )
        },
        about: || Figure {
            number: 9,
            title: "The beginning of a transfer",
            about: "Memory to memory over an emulated path of 500 Mbit/s and 94 ms (the paper: 40 Gbit/s, 120 s), as it arrives.",
            charts: vec![chart("Rate", "Mbit/s", Along::Milliseconds)],
            judges: vec![|figure| {
                let reached = |series| reached_ms(figure, series).map(|ms| format!("{ms} ms"));
                let both = reached(RDMA).zip(reached(TCP));
                let sooner = reached_ms(figure, RDMA) < reached_ms(figure, TCP);
                Claim::new(
                    "paper: RDMA fills the path nearly at once, TCP within 20 s (here: 80 % of the path, in some 100 ms)",
                    both.map(|(rdma, tcp)| (format!("{rdma}, TCP {tcp}"), sooner)),
                )
            }],
            ..Figure::default()
        },
    }
}

/// When it first ran at 80 % of the path.
fn reached_ms(figure: &Figure, series: &str) -> Option<u32> {
    let mut points: Vec<_> = figure.charts[0].series(series)?.points.iter().collect();
    points.sort_by_key(|point| point.at);
    points
        .iter()
        .find(|point| share(point.value) >= 80.0)
        .map(|point| point.at)
}

fn over_time_cells() -> Vec<Cell> {
    let cells = [
        run(TCP, "tcp", ""),
        run(SPLICE, "tcp", "--send splice"),
        run("UDP", "udp", UDP),
        run(UDT, "udt", ""),
        run(RDMA, "iwarp-udt", DEEP),
    ];
    let over = |cell: Cell| cell.over(net(LONG_RTT_MS)).watched();
    cells.map(over).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(charts: Vec<Chart>) -> Figure {
        Figure {
            charts,
            ..Figure::default()
        }
    }

    #[test]
    fn the_paper_has_each_table_and_figure_once() {
        let labels: Vec<String> = experiments()
            .iter()
            .map(|one| (one.about)().label())
            .collect();
        let figures = (2..=9).map(|number| format!("figure {number}"));
        let tables = [1, 2].map(|number| format!("table {number}"));
        assert_eq!(
            labels,
            tables.into_iter().chain(figures).collect::<Vec<_>>()
        );
    }

    #[test]
    fn processor_time_is_by_what_was_sent() {
        let mut figure = of(table_charts());
        for (series, mbps, percent) in [(SENDFILE, 39_500.0, 34.0), (TCP, 17_900.0, 100.0)] {
            figure.charts[GOODPUT].add(series, 0, Sample::of(mbps));
            figure.charts[SENDER].add(series, 0, Sample::of(percent));
        }
        let ratio = per_byte(&figure, SENDFILE).unwrap() / per_byte(&figure, TCP).unwrap();
        assert!((ratio - 0.154).abs() < 0.001, "{ratio}");
        assert_eq!(
            more_claim(&figure, SENDFILE, TCP, 2.0, "").holds,
            Some(true)
        );
        assert_eq!(more_claim(&figure, SPLICE, TCP, 2.0, "").holds, None);
        assert_eq!(share_claim(&figure, UDT, 99.0).holds, None);
    }

    #[test]
    fn the_worst_share_decides() {
        let mut figure = of(vec![chart("", "%", Along::Connections)]);
        assert_eq!(least(&figure), None);
        figure.charts[0].add("reno", 1, Sample::of(80.0));
        figure.charts[0].add("cubic", 32, Sample::of(40.0));
        assert_eq!(least(&figure), Some(40.0));
    }

    #[test]
    fn the_first_span_that_is_fast_counts() {
        let mut figure = of(vec![chart("", "Mbit/s", Along::Milliseconds)]);
        for (at, mbps) in [(300, 480.0), (100, 10.0), (200, 401.0)] {
            figure.charts[0].add(RDMA, at, Sample::of(mbps));
        }
        assert_eq!(reached_ms(&figure, RDMA), Some(200));
        assert_eq!(reached_ms(&figure, TCP), None);
    }

    #[test]
    fn what_is_outstanding_is_an_eighth_of_the_path_as_in_the_paper() {
        // 12 messages of 64 KiB of 6.25 MB; in the paper 250 of 125 MB.
        let outstanding = 12.0 * f64::from(64 << 10) * 8.0 / 0.1 / 1e6;
        assert!((share(outstanding) - 12.6).abs() < 0.1);
    }
}
