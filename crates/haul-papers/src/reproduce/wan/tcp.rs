//! Figures 2 to 5: TCP, its congestion controls and its windows.

use super::profile::{
    FAR, NEAR, PLACES, PROFILE, STREAMS, deviation, kept, miles, most, places, profile,
    profile_charts, rate, repetitions, show, streams_option,
};
use crate::reproduce::bench::Context;
use crate::reproduce::cells::{Cell, How, Net, lasts};
use crate::reproduce::experiment::Experiment;
use crate::reproduce::record::{Along, Chart, Claim, Figure, chart};
use haul_lab::compare::tool::no_congestion_control;

/// The smallest window that explains TCP's goodput on the paper's long connections is 1 MB for each
/// stream (0.50 Gbit/s by 10 streams in 163 ms); the largest 3.6 MB. A twentieth of the middle of
/// them:
const SMALL_BUFFER: &str = "128KiB";
/// The buffer size from which the kernel makes a window of 54 KB, as the paper's hosts had: with 64
/// KiB it had 84 KB in flight.
const OLD_BUFFER: &str = "42KiB";
/// Figure 5's goodput of one stream and of 10, Mbit/s.
const OLD: [(u32, f64, f64); 3] = [
    (1400, 16.32, 176.30),
    (6600, 3.42, 33.50),
    (8600, 2.56, 25.78),
];

const BIC: &str = "bic";
const HTCP: &str = "htcp";

/// Figures 2 to 5.
pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        Experiment {
            lasts: |context| lasts(context, &tcp_cells(context, BIC)),
            run: |context, figure| profile(context, figure, &tcp_cells(context, BIC)),
            about: || {
                tcp_figure(
                    2,
                    "BIC: goodput over distance and streams, and its stability",
                    [
                        |figure| one_stream_claim(figure, 0.78),
                        |figure| {
                            kept_claim(
                                figure,
                                "paper: BIC keeps 5 % of its goodput from 0.2 to 8600 miles (9.12 to 0.50 Gbit/s)",
                                50.0,
                            )
                        },
                        |figure| {
                            deviation_claim(
                                figure,
                                "paper: on a long connection goodput of BIC deviates by 3 to 4 % (25 of 760 Mbit/s, 21 of 500)",
                                3.0,
                            )
                        },
                    ],
                )
            },
        },
        Experiment {
            lasts: |context| lasts(context, &tcp_cells(context, HTCP)),
            run: |context, figure| profile(context, figure, &tcp_cells(context, HTCP)),
            about: || {
                tcp_figure(
                    3,
                    "HTCP: goodput over distance and streams, and its stability",
                    [
                        |figure| one_stream_claim(figure, 0.85),
                        |figure| {
                            kept_claim(
                                figure,
                                "paper: HTCP keeps 19 % of its goodput from 0.2 to 8600 miles (9.21 to 1.79 Gbit/s)",
                                50.0,
                            )
                        },
                        |figure| {
                            deviation_claim(
                                figure,
                                "paper: on a long connection goodput of HTCP deviates by 2 to 7 % (19 of 1220 Mbit/s, 128 of \
                                 1790)",
                                2.0,
                            )
                        },
                    ],
                )
            },
        },
        controls(),
        old_hosts(),
    ]
}

fn tcp_figure(number: u32, title: &'static str, judges: [fn(&Figure) -> Claim; 3]) -> Figure {
    let surface = Chart {
        heat: true,
        ..chart(
            "Goodput T(d, n) by miles and streams",
            "Mbit/s",
            Along::Connections,
        )
    };
    Figure {
        number,
        title,
        about: "Memory to memory over an emulated path of 500 Mbit/s (the paper: 10 Gbit/s) without loss, with a queue of one \
                bandwidth-delay product. The window is the control's own: memory does not limit it, as it seems to have done \
                in the paper (see figure 4).",
        charts: profile_charts(surface, "10 streams"),
        judges: judges.to_vec(),
        ..Figure::default()
    }
}

/// The implementation of TCP's control of this name: the kernel, if it has it, or UDT with ours.
fn carried(control: &str) -> &'static str {
    match no_congestion_control(control) {
        None => "tcp",
        Some(_) => "udt",
    }
}

fn tcp_cells(context: &Context<'_>, control: &'static str) -> Vec<Cell> {
    let streams: &[u32] = if context.quick {
        &[1, STREAMS]
    } else {
        &[1, 2, 4, 6, 8, STREAMS, 12, 16, 20]
    };
    let mut cells = Vec::new();
    for (at, net) in places(context) {
        cells.extend(streams.iter().map(|&streams| {
            let how = How::Run(carried(control), streams_option(control, streams));
            let again = if streams == STREAMS {
                repetitions(context)
            } else {
                0
            };
            Cell::new(PROFILE, miles(at), streams, how)
                .over(net)
                .times(again)
        }));
    }
    cells
}

/// The share of the path that one stream has at best from 1400 miles on; the paper's had `gbps` of
/// 10.
fn one_stream_claim(figure: &Figure, gbps: f64) -> Claim {
    let far = PLACES[1..]
        .iter()
        .filter_map(|&(at, _)| figure.value(PROFILE, &miles(at), 1));
    let most = far.reduce(f64::max);
    Claim::new(
        format!(
            "paper: one stream has less than a tenth of the path from 1400 miles on ({gbps} of 10 Gbit/s)"
        ),
        most.map(|mbps| {
            let share = 100.0 * mbps * 1e6 / rate();
            (format!("{share:.0} % of the path at best"), share < 10.0)
        }),
    )
}

/// TCP keeps at most so much.
fn kept_claim(figure: &Figure, words: &str, most: f64) -> Claim {
    Claim::new(
        format!("{words}; agrees below {most} %"),
        kept(figure).map(|kept| (format!("{kept:.1} %"), kept < most)),
    )
}

fn deviation_claim(figure: &Figure, words: &str, least: f64) -> Claim {
    Claim::new(
        format!("{words}; agrees from {least} % on"),
        deviation(figure).map(|found| (format!("{found:.1} % at most"), found >= least)),
    )
}

fn controls() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &control_cells(context)),
        run: |context, figure| show(context, figure, &control_cells(context)),
        about: || Figure {
            number: 4,
            title: "Congestion controls beside each other, and TCP whose window is limited",
            about: "As figures 2 and 3, by all controls there are; with the kernel's TCP those that it has. What the paper's \
                    TCP got over long connections fits windows of 1 to 4 MB for each stream, whatever the control; the last \
                    chart has the kernel's TCP with buffers of 128 KiB for each stream, as much for a path of a twentieth, \
                    and ours without limit.",
            charts: vec![
                chart(
                    "Goodput by streams at 1400 miles",
                    "Mbit/s",
                    Along::Connections,
                ),
                chart(
                    "Goodput by streams at 8600 miles",
                    "Mbit/s",
                    Along::Connections,
                ),
                chart("Goodput of 10 streams by distance", "Mbit/s", Along::Miles),
            ],
            judges: vec![
                |figure| {
                    let both = most(figure, 1, &named(HTCP)).zip(most(figure, 1, &named(BIC)));
                    Claim::new(
                        "paper: at 8600 miles HTCP has more than BIC (2.59 against 0.96 Gbit/s at best)",
                        both.map(|(htcp, bic)| {
                            (format!("{:.2} times BIC", htcp / bic), htcp > 1.05 * bic)
                        }),
                    )
                },
                |figure| {
                    let least = [BIC, HTCP].map(|name| most(figure, 0, &named(name)));
                    let least = least[0].zip(least[1]).map(|(bic, htcp)| bic.min(htcp));
                    let both = most(figure, 0, &named("highspeed")).zip(least);
                    Claim::new(
                        "paper: at 1400 miles HSTCP has less than BIC and HTCP",
                        both.map(|(less, least)| {
                            (
                                format!("{:.2} times the lesser of them", less / least),
                                less < 0.95 * least,
                            )
                        }),
                    )
                },
                |figure| {
                    limited_claim(
                        figure,
                        1400,
                        (60.0, 90.0),
                        "paper: 10 streams keep 73 % of their goodput at 1400 miles",
                    )
                },
                |figure| {
                    limited_claim(
                        figure,
                        FAR,
                        (3.0, 30.0),
                        "paper: and 5 (BIC) to 19 % (HTCP) at 8600 miles",
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

const LIMITED: &str = "cubic (kernel), buffers of 128 KiB";
const UNLIMITED: &str = "model (haul)";

fn limited_claim(figure: &Figure, at: u32, within: (f64, f64), words: &str) -> Claim {
    let both = figure
        .value(2, LIMITED, at)
        .zip(figure.value(2, LIMITED, NEAR));
    Claim::new(
        format!(
            "{words}; here with buffers of 128 KiB, agrees from {} to {} %",
            within.0, within.1
        ),
        both.map(|(far, near)| {
            let kept = 100.0 * far / near;
            (
                format!("{kept:.0} %"),
                (within.0..=within.1).contains(&kept),
            )
        }),
    )
}

/// A control and its implementation.
fn named(control: &str) -> String {
    match carried(control) {
        "tcp" => format!("{control} (kernel)"),
        _ => format!("{control} (haul-cc)"),
    }
}

fn control_cells(context: &Context<'_>) -> Vec<Cell> {
    let (streams, charts): (&[u32], &[(usize, u32)]) = if context.quick {
        (&[1], &[(1, FAR)])
    } else {
        (&[1, 4, 10, 20], &[(0, 1400), (1, FAR)])
    };
    let names: &[&str] = if context.quick {
        &[BIC, HTCP, "cubic"]
    } else {
        &[
            BIC,
            HTCP,
            "highspeed",
            "scalable",
            "vegas",
            "reno",
            "cubic",
            "bbr",
        ]
    };
    let mut cells = Vec::new();
    let places = places(context);
    let net_at = |wanted: u32| {
        places
            .iter()
            .find(|(at, _)| *at == wanted)
            .map(|(_, net)| *net)
    };
    for &(chart, at) in charts {
        let Some(net) = net_at(at) else { continue };
        for &streams in streams {
            let cell = |series: String, how| Cell::new(chart, series, streams, how).over(net);
            cells.extend(names.iter().map(|name| {
                let how = How::Run(carried(name), streams_option(name, streams));
                cell(named(name), how)
            }));
            cells.push(cell(
                UNLIMITED.into(),
                How::Run("udt", format!("--streams {streams}")),
            ));
        }
    }
    for (at, net) in places {
        let limited = format!("--streams {STREAMS} --congestion cubic --buffer {SMALL_BUFFER}");
        cells.push(Cell::new(2, LIMITED, at, How::Run("tcp", limited)).over(net));
        if !context.quick {
            let ours = How::Run("udt", format!("--streams {STREAMS}"));
            cells.push(Cell::new(2, UNLIMITED, at, ours).over(net));
        }
    }
    cells
}

fn old_hosts() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &old_cells(context)),
        run: |context, figure| show(context, figure, &old_cells(context)),
        about: || Figure {
            number: 5,
            title: "Hosts whose TCP has a window of 54 KB",
            about: "What the paper's hosts III got over long connections fits a window of 54 KB for each stream, whatever the \
                    rate: so it can be compared as it is. Here the kernel's TCP is told to have no larger buffers (--buffer \
                    42KiB).",
            charts: vec![chart("Goodput by distance", "Mbit/s", Along::Miles)],
            judges: vec![|figure| old_claim(figure, 1), |figure| {
                old_claim(figure, 10)
            }],
            ..Figure::default()
        },
    }
}

fn old_series(streams: u32) -> &'static str {
    if streams == 1 {
        "1 stream"
    } else {
        "10 streams"
    }
}

fn old_cells(context: &Context<'_>) -> Vec<Cell> {
    let cell = |(at, net): (u32, Net), streams: u32| {
        let options = format!("--streams {streams} --congestion cubic --buffer {OLD_BUFFER}");
        Cell::new(0, old_series(streams), at, How::Run("tcp", options)).over(net)
    };
    let places = places(context).into_iter();
    places
        .flat_map(|place| [1, STREAMS].map(|streams| cell(place, streams)))
        .collect()
}

/// The paper's figures, and what was found; within a half more or a third less they agree.
fn old_claim(figure: &Figure, streams: u32) -> Claim {
    let rows = OLD.map(|(at, one, ten)| {
        let paper = if streams == 1 { one } else { ten };
        (paper, figure.value(0, old_series(streams), at))
    });
    let said = rows.map(|(paper, _)| paper.to_string()).join(", ");
    let here = rows.map(|(_, here)| here.map_or_else(|| "-".into(), |here| format!("{here:.2}")));
    let ratios = || {
        rows.iter()
            .filter_map(|(paper, here)| Some((*here)? / paper))
    };
    let agrees = ratios().all(|ratio| (1.0 / 1.5..1.5).contains(&ratio));
    let kind = old_series(streams);
    Claim::new(
        format!(
            "paper: {kind} at 1400, 6600 and 8600 miles: {said} Mbit/s; agrees within a factor of 1.5"
        ),
        (ratios().count() > 0).then(|| (format!("{} Mbit/s", here.join(", ")), agrees)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::measured;
    use super::*;
    use crate::reproduce::record::Sample;

    #[test]
    fn who_keeps_the_path_differs_from_the_paper() {
        let of = |near, far| kept_claim(&measured([near; 2], [far; 2]), "", 50.0).holds;
        assert_eq!(of(9120.0, 500.0), Some(true));
        assert_eq!(of(480.0, 470.0), Some(false));
    }

    #[test]
    fn windows_agree_within_a_half() {
        let mut figure = Figure {
            charts: vec![chart("", "Mbit/s", Along::Miles)],
            ..Figure::default()
        };
        assert_eq!(old_claim(&figure, 1).holds, None);
        figure.charts[0].add(old_series(1), 8600, Sample::of(3.2));
        let claim = old_claim(&figure, 1);
        assert_eq!(
            (claim.here.as_deref(), claim.holds),
            (Some("-, -, 3.20 Mbit/s"), Some(true))
        );
        figure.charts[0].add(old_series(1), 1400, Sample::of(30.0));
        assert_eq!(old_claim(&figure, 1).holds, Some(false));
    }
}
