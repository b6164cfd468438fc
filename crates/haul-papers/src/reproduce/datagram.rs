//! "RDMA Capable iWARP over Datagrams", Grant, Rashti, Afsahi and Balaji, IPDPS 2011, §VI.
//!
//! Claims of the project beyond the paper are listed beside the paper's and marked.

use std::time::Duration;

use super::bench::{Bench, Context, rows, sample};
use super::experiment::{Experiment, unknown};
use super::programs::Carrier;
use super::record::{Along, Chart, Claim, Figure, Sample, Series, announce};
use super::{ceiling, sipp, vlc};
use haul_lab::compare::runner::Stop;

/// The paper.
pub(super) const TITLE: &str =
    "RDMA Capable iWARP over Datagrams (Grant, Rashti, Afsahi, Balaji, IPDPS 2011), section VI";

const UD_SEND: &str = "UD send/recv";
const UD_RECORD: &str = "UD Write-Record";
const RC_SEND: &str = "RC send/recv";
const RC_WRITE: &str = "RC Write";
const PLAIN_UDP: &str = "plain UDP, GSO and GRO";

/// The lines of figures 5 and 6, in the order of their turns.
const SERIES: [(&str, &str); 4] = [
    (UD_SEND, "--qp ud --op send"),
    (UD_RECORD, "--qp ud --op write-record"),
    (RC_SEND, "--qp rc --op send"),
    (RC_WRITE, "--qp rc --op write"),
];

/// Shares of packets lost.
const LOSSES: [(f64, &str); 4] = [
    (0.001, "0.1 %"),
    (0.005, "0.5 %"),
    (0.01, "1 %"),
    (0.05, "5 %"),
];
/// The emulated path of figures 7 and 8, bits per second. The service has no congestion control and
/// sends at a fixed rate, so that missing data was lost at random, not dropped by a queue.
const PATH_BPS: u64 = 1_000_000_000;
/// Of which so much is used, and packets per second at most, which the emulator carries.
const USED_BPS: u64 = 900_000_000;
const PACKETS_PER_S: u64 = 60_000;
/// Payload of a full packet of the path.
const PAYLOAD: u64 = 1400;

/// The figures of §VI.
pub(super) fn experiments() -> Vec<Experiment> {
    let programs = vec![vlc_buffer(), sipp_response(), sipp_memory()];
    [verbs(), under_loss(), programs]
        .into_iter()
        .flatten()
        .collect()
}

/// §VI.A.1: latency and bandwidth.
fn verbs() -> Vec<Experiment> {
    vec![
        Experiment {
            lasts: unknown,
            run: latency,
            about: || Figure {
                number: 5,
                title: "Latency of the verbs",
                about: "Half a round trip of one message at a time, between two hosts joined directly (veth, MTU 1500).",
                judges: vec![
                    |figure| {
                        latency_claim(
                            figure,
                            UD_RECORD,
                            RC_WRITE,
                            24.4,
                            "Write-Record against RC Write",
                        )
                    },
                    |figure| {
                        latency_claim(
                            figure,
                            UD_SEND,
                            RC_SEND,
                            18.1,
                            "UD send/recv against RC send/recv",
                        )
                    },
                ],
                ..Figure::default()
            },
        },
        Experiment {
            lasts: unknown,
            run: bandwidth,
            about: || Figure {
                number: 6,
                title: "Bandwidth of the verbs",
                about: "Back-to-back messages one way, between two hosts joined directly (veth, MTU 1500). Of UD it is what was \
                        valid at the receiver.",
                judges: vec![
                    |figure| bandwidth_claim(figure, UD_RECORD, RC_WRITE, 512 << 10, 256.0),
                    |figure| bandwidth_claim(figure, UD_RECORD, RC_WRITE, 1 << 10, 188.8),
                    |figure| bandwidth_claim(figure, UD_SEND, RC_SEND, 1 << 10, 193.0),
                    |figure| bandwidth_claim(figure, UD_SEND, RC_SEND, 256 << 10, 33.4),
                    ceiling_claim,
                ],
                ..Figure::default()
            },
        },
    ]
}

/// §VI.A.2: packet loss.
fn under_loss() -> Vec<Experiment> {
    vec![
        Experiment {
            lasts: unknown,
            run: |context, figure| lossy(context, figure, "--qp ud --op send"),
            about: || Figure {
                number: 7,
                title: "UD send/recv under packet loss",
                about: LOSSY,
                judges: vec![|figure| {
                    let valid = figure.value(1, "0.1 %", 1 << 20);
                    Claim::new(
                        "paper: the loss of a packet loses the message, so large ones suffer from 0.1 % on (1 MiB at 0.1 %: under 90 % valid)",
                        valid.map(|valid| (format!("{valid:.1} %"), valid < 90.0)),
                    )
                }],
                ..Figure::default()
            },
        },
        Experiment {
            lasts: unknown,
            run: |context, figure| lossy(context, figure, "--qp ud --op write-record"),
            about: || Figure {
                number: 8,
                title: "UD Write-Record under packet loss",
                about: LOSSY,
                judges: vec![
                    |figure| {
                        let valid = figure.value(1, "5 %", 512 << 10);
                        Claim::new(
                            "paper: throughput collapses at 5 % and large messages; project: at 5 % and 512 KiB at least 90 % of the bytes are valid",
                            valid.map(|valid| (format!("{valid:.1} %"), valid >= 90.0)),
                        )
                    },
                    |figure| {
                        let point = figure.point(1, "5 %", 512 << 10);
                        let lost =
                            point.and_then(|point| point.lost_messages.zip(point.sent_messages));
                        Claim::new(
                            "project: at 5 % and 512 KiB no message is lost entirely",
                            lost.map(|(lost, sent)| (format!("{lost} of {sent}"), lost == 0)),
                        )
                    },
                ],
                ..Figure::default()
            },
        },
    ]
}

/// §VI.B.1.
fn vlc_buffer() -> Experiment {
    Experiment {
        lasts: unknown,
        run: vlc::buffering,
        about: || Figure {
            number: 9,
            title: "VLC: time until the buffer is filled",
            about: "A VLC streams a film of 2 Mbit/s in real time, by UDP, or by HTTP over TCP, to another VLC that is started a second \
                    later, between two hosts joined directly; natively, and both under haul run. The time ends when the client's log says \
                    \"Stream buffering done\". The server streams in real time, so a buffer takes about as long to fill as it holds film: a second \
                    by today's VLC's default; when the paper was written 300 ms for UDP and 1200 ms for HTTP, which is 75 % less whatever \
                    carries it.",
            charts: vec![
                bars(
                    "From the start of the client until its buffer is full",
                    "ms",
                ),
                bars(
                    "VLC's own count: from the first time stamp in the stream",
                    "ms",
                ),
                bars(
                    "With the buffers of 2011: from the start of the client until its buffer is full",
                    "ms",
                ),
                bars("With the buffers of 2011: VLC's own count", "ms"),
            ],
            judges: vec![
                |figure| {
                    less_claim(
                        figure,
                        0,
                        (Carrier::Ud, Carrier::Rc),
                        74.1,
                        "time until the buffer is filled, UD send/recv against RC (HTTP)",
                    )
                },
                |figure| {
                    less_claim(
                        figure,
                        3,
                        (Carrier::Ud, Carrier::Rc),
                        74.1,
                        "the same by VLC's own count with the buffers of 2011",
                    )
                },
                |figure| {
                    less_claim(
                        figure,
                        3,
                        (Carrier::NativeUdp, Carrier::NativeTcp),
                        74.1,
                        "the same without iWARP, native UDP against native TCP",
                    )
                },
                |figure| {
                    overhead_claim(
                        figure,
                        0,
                        "paper: about 2 % more time to fill the buffer by UD than by native UDP",
                        1.0,
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

/// §VI.B.2, response time.
fn sipp_response() -> Experiment {
    Experiment {
        lasts: unknown,
        run: sipp::response,
        about: || Figure {
            number: 10,
            title: "SIPp: response time",
            about: "SIPp's client and server scenarios between two hosts joined directly, natively, and both under haul run. Light \
                    load: 200 calls per second over one socket; the median of the calls by the time stamps in SIPp's log of messages, \
                    with microseconds. Full speed: 20 calls at a time, as fast as they end, which SIPp's own timers limit more than the \
                    transport; so the processor time of both ends stands beside it.",
            charts: vec![
                bars("Light load: from the INVITE to the first answer", "µs"),
                bars(
                    "Light load: from the INVITE to the OK, with the server's own timers",
                    "µs",
                ),
                bars("Full speed: calls per second, 20 at a time", "1/s"),
                bars("Full speed: processor time of both ends for a call", "µs"),
            ],
            judges: vec![
                |figure| {
                    less_claim(
                        figure,
                        0,
                        (Carrier::Ud, Carrier::Rc),
                        43.1,
                        "response time, UD send/recv against RC",
                    )
                },
                |figure| {
                    overhead_claim(
                        figure,
                        2,
                        "project: at full speed UD makes at most 2 % fewer calls per second than native UDP",
                        -1.0,
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

/// §VI.B.2, memory.
fn sipp_memory() -> Experiment {
    Experiment {
        lasts: unknown,
        run: sipp::memory,
        about: || Figure {
            number: 11,
            title: "SIPp: memory of a server with many clients",
            about: "A SIPp server with so many calls that are taken, ask three questions and do not end, each of a client with a \
                socket of its own. By UDP the server has one socket, by TCP one for each client; in the paper it had a UDP \
                socket for each. Processes: proportional set size of everything on the server's host, haul run \
                included. Kernel: growth of the machine's objects that sockets are made of (/proc/slabinfo), by the server's \
                share of the sockets. Each measured once.",
            charts: vec![
                clients("All memory of the server"),
                clients("Of it, processes"),
                clients("Of it, sockets in the kernel"),
            ],
            judges: vec![|figure| {
                let less = less(figure, 0, (Carrier::Ud, Carrier::Rc), 10_000);
                Claim::new(
                    "paper: memory with 10,000 clients, UD against RC: 24.1 % less",
                    less.map(|less| (in_words(less), less >= 24.1)),
                )
            }],
            ..Figure::default()
        },
    }
}

fn bars(title: &str, unit: &'static str) -> Chart {
    Chart {
        along: Along::Nothing,
        ..chart(title, unit)
    }
}

fn clients(title: &str) -> Chart {
    Chart {
        along: Along::Clients,
        ..chart(title, "MiB")
    }
}

/// By how many percent one carrier's figure is less than another's.
fn less(figure: &Figure, chart: usize, pair: (Carrier, Carrier), at: u32) -> Option<f64> {
    let ours = figure.value(chart, pair.0.name(), at)?;
    let theirs = figure.value(chart, pair.1.name(), at)?;
    Some(100.0 * (1.0 - ours / theirs))
}

/// So many percent less, for people.
fn in_words(percent: f64) -> String {
    if percent < 0.0 {
        format!("{:.1} % more", -percent)
    } else {
        format!("{percent:.1} % less")
    }
}

/// How many percentage points less than the paper's count as the paper's: medians of three runs
/// differ by as many.
const NEAR: f64 = 1.0;

fn less_claim(
    figure: &Figure,
    chart: usize,
    pair: (Carrier, Carrier),
    percent: f64,
    words: &str,
) -> Claim {
    let less = less(figure, chart, pair, 0);
    Claim::new(
        format!("paper: {words}: {percent} % less, or {NEAR} point short of that"),
        less.map(|less| (in_words(less), less >= percent - NEAR)),
    )
}

/// Whether UD is at most 2 % worse than native UDP; `worse` is 1 where more is worse, and -1 where
/// less is.
fn overhead_claim(figure: &Figure, chart: usize, words: &str, worse: f64) -> Claim {
    let more = less(figure, chart, (Carrier::Ud, Carrier::NativeUdp), 0).map(|less| -less);
    Claim::new(
        words,
        more.map(|more| (format!("{more:+.1} %"), more * worse <= 2.0)),
    )
}

const LOSSY: &str = "Messages one way over an emulated path (1 Gbit/s, no delay, MTU 1500) that loses packets at random, sent below \
                     its rate. Small messages are limited to 60,000 packets per second.";

/// Sizes of figures 5 and 6.
fn sizes(context: &Context<'_>) -> &'static str {
    if context.quick {
        "1024..65536"
    } else {
        "1..1048576"
    }
}

fn latency(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    figure.charts = vec![chart("Latency by message size", "µs")];
    for repetition in 0..context.repeat {
        for (name, flags) in SERIES {
            let mut bench = context.bench(None, repetition.into())?;
            let flags = format!("{flags} --test lat --sizes {}", sizes(context));
            let json = bench.ask(&flags, figure)?;
            for (bytes, row) in rows(&json)? {
                figure.charts[0].add(name, bytes, sample(row, "latency", "typical_us", 1.0)?);
            }
            bench.end(figure)?;
            announce(repetition, name);
        }
    }
    Ok(())
}

fn bandwidth(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    figure.charts = vec![
        chart("Bandwidth by message size", "Gbit/s"),
        chart("Processor time of both ends by message size", "s/GB"),
    ];
    let mut level = Series {
        name: PLAIN_UDP.into(),
        level: true,
        ..Series::default()
    };
    for repetition in 0..context.repeat {
        for (name, flags) in SERIES {
            let mut bench = context.bench(None, repetition.into())?;
            let flags = format!("{flags} --post-list 16 --sizes {}", sizes(context));
            let json = bench.ask(&flags, figure)?;
            for (bytes, row) in rows(&json)? {
                let found = sample(row, "bandwidth", "bw_average_gbps", 1.0)?;
                figure.charts[0].add(name, bytes, found);
                if let Some(value) = found.cpu_s_per_gb {
                    let cpu = Sample {
                        value,
                        ..Sample::default()
                    };
                    figure.charts[1].add(name, bytes, cpu);
                }
            }
            bench.end(figure)?;
            announce(repetition, name);
        }
        let bench = context.bench(None, repetition.into())?;
        let time = Duration::from_millis(context.time_ms * 4);
        level.add(0, ceiling::measure(bench.lab(), time)?);
        bench.end(figure)?;
        announce(repetition, PLAIN_UDP);
    }
    // A level is the same for every size.
    let sizes = figure.charts[0].sizes();
    let measured = std::mem::take(&mut level.points);
    for (bytes, run) in sizes.into_iter().flat_map(|bytes| {
        let runs = measured.iter().flat_map(|point| &point.runs);
        runs.map(move |run| (bytes, *run))
    }) {
        level.add(bytes, run);
    }
    figure.charts[0].series.push(level);
    Ok(())
}

fn lossy(context: &Context<'_>, figure: &mut Figure, verb: &str) -> Result<(), Stop> {
    figure.charts = vec![
        chart("Bandwidth by message size", "Mbit/s"),
        Chart {
            percent: true,
            ..chart("Bytes that are valid at the receiver, of those sent", "%")
        },
    ];
    let exponents: Vec<u32> = if context.quick {
        vec![10, 19, 20]
    } else {
        (0..=20).collect()
    };
    let losses = if context.quick { &LOSSES[3..] } else { &LOSSES };
    for repetition in 0..context.repeat {
        for (loss, name) in losses {
            let path = format!(
                "rate = \"{PATH_BPS}bit\"\nrtt = \"0ms\"\nqueue = \"4MiB\"\n[path.forward]\nloss = {loss:?}\n"
            );
            let mut bench = context.bench(Some(&path), repetition.into())?;
            for exponent in &exponents {
                measure_lossy(&mut bench, figure, verb, name, 1 << exponent)?;
            }
            bench.end(figure)?;
            announce(repetition, &format!("loss {name}"));
        }
    }
    Ok(())
}

fn measure_lossy(
    bench: &mut Bench<'_>,
    figure: &mut Figure,
    verb: &str,
    name: &str,
    bytes: u32,
) -> Result<(), Stop> {
    let payload = PAYLOAD.min(bytes.into());
    let rate = (PACKETS_PER_S * payload * 8).min(USED_BPS);
    let flags = format!("{verb} --size {bytes} --max-rate {rate}bit --depth 16 --cq-mod 1");
    let json = bench.ask(&flags, figure)?;
    for (bytes, row) in rows(&json)? {
        let found = sample(row, "bandwidth", "bw_average_gbps", 1e3)?;
        figure.charts[0].add(name, bytes, found);
        let valid = sample(row, "datagram", "valid_percent", 1.0)?;
        figure.charts[1].add(name, bytes, valid);
    }
    Ok(())
}

pub(super) fn chart(title: &str, unit: &'static str) -> Chart {
    Chart {
        title: title.into(),
        unit,
        ..Chart::default()
    }
}

/// Latencies of messages up to 2 KiB, one against the other.
fn latency_claim(figure: &Figure, ours: &str, theirs: &str, percent: f64, words: &str) -> Claim {
    let sizes = figure.charts.first().map(Chart::sizes).unwrap_or_default();
    let lower = sizes.into_iter().filter(|bytes| *bytes <= 2048);
    let lower: Vec<f64> = lower
        .filter_map(|bytes| {
            let (ours, theirs) = (
                figure.value(0, ours, bytes)?,
                figure.value(0, theirs, bytes)?,
            );
            Some(100.0 * (1.0 - ours / theirs))
        })
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "a few sizes")]
    let mean = (!lower.is_empty()).then(|| lower.iter().sum::<f64>() / lower.len() as f64);
    Claim::new(
        format!("paper: {words}, up to 2 KiB: {percent} % less latency"),
        mean.map(|mean| (in_words(mean), mean >= percent)),
    )
}

/// Bandwidth at a size, one against the other.
fn bandwidth_claim(figure: &Figure, ours: &str, theirs: &str, bytes: u32, percent: f64) -> Claim {
    let values = figure
        .value(0, ours, bytes)
        .zip(figure.value(0, theirs, bytes));
    let more = values.map(|(ours, theirs)| 100.0 * (ours / theirs - 1.0));
    Claim::new(
        format!(
            "paper: {ours} against {theirs} at {} KiB: {percent} % more bandwidth",
            bytes >> 10
        ),
        more.map(|more| (format!("{more:+.1} %"), more >= percent)),
    )
}

/// The best of Write-Record against what UDP carries at all.
fn ceiling_claim(figure: &Figure) -> Claim {
    let best = |name: &str| {
        let series = figure.charts.first()?.series(name)?;
        series
            .points
            .iter()
            .map(|point| point.value)
            .reduce(f64::max)
    };
    let share = best(UD_RECORD)
        .zip(best(PLAIN_UDP))
        .map(|(ours, plain)| ours / plain);
    Claim::new(
        "project: UD Write-Record reaches 0.95 of plain UDP with GSO and GRO, measured in the same run",
        share.map(|share| (format!("{share:.2}"), share >= 0.95)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let mut latency = chart("", "µs");
        for (name, value) in [(UD_RECORD, 15.0), (RC_WRITE, 20.0)] {
            for bytes in [1, 2048] {
                let sample = Sample {
                    value,
                    ..Sample::default()
                };
                latency.add(name, bytes, sample);
            }
            // Beyond what the claim is about.
            let large = Sample {
                value: 100.0 / value,
                ..Sample::default()
            };
            latency.add(name, 4096, large);
        }
        Figure {
            charts: vec![latency],
            ..Figure::default()
        }
    }

    #[test]
    fn claims_are_computed_from_what_was_measured() {
        let claim = latency_claim(&figure(), UD_RECORD, RC_WRITE, 24.4, "one");
        assert_eq!(claim.here.as_deref(), Some("25.0 % less"));
        assert_eq!(in_words(-18.44), "18.4 % more");
        assert_eq!(claim.holds, Some(true));
        let claim = bandwidth_claim(&figure(), RC_WRITE, UD_RECORD, 1, 50.0);
        assert_eq!(claim.here.as_deref(), Some("+33.3 %"));
        assert_eq!(claim.holds, Some(false));
        let claim = bandwidth_claim(&figure(), RC_WRITE, UD_RECORD, 8, 50.0);
        assert_eq!((claim.here, claim.holds), (None, None));
        assert_eq!(ceiling_claim(&figure()).holds, None);
    }

    #[test]
    fn every_figure_has_its_number_once_and_something_to_say() {
        let all = experiments();
        let all: Vec<Figure> = all.iter().map(|one| (one.about)()).collect();
        let numbers: Vec<u32> = all.iter().map(|figure| figure.number).collect();
        assert_eq!(numbers, [5, 6, 7, 8, 9, 10, 11]);
        for figure in all {
            assert!(!figure.title.is_empty() && !figure.judges.is_empty());
        }
    }
}
