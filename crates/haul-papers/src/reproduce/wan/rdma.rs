//! Figures 6 to 10: RDMA, alone and beside other traffic.

use super::profile::{
    FAR, NEAR, PER_MILE, PROFILE, RATE_BPS, STREAMS, deviation, kept, least, mbps, miles, places,
    profile, profile_charts, rate, repetitions, show, streams_option,
};
use crate::reproduce::bench::Context;
use crate::reproduce::cells::{Cell, How, Net, lasts, measure};
use crate::reproduce::experiment::{Experiment, unknown};
use crate::reproduce::record::{Along, Claim, Figure, Sample, chart};

/// The factor from the emulated rate to the paper's.
const SCALE: f64 = 20.0;
/// The longest message, bytes.
const LONG: u32 = 8 << 20;
/// Memory that messages go round in, and how many may be outstanding.
const OUTSTANDING_BYTES: u32 = 64 << 20;

const RDMA: &str = "RDMA";
const TCP: &str = "TCP (cubic), 10 streams";

/// Figures 6 to 10.
pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        managers(),
        messages(),
        both_ways(),
        cross_traffic(),
        beside_rdma(),
    ]
}

fn managers() -> Experiment {
    Experiment {
        lasts: unknown,
        run: |_, figure| {
            figure.not_run = Some(
                "not run: iWARP is always connected by its connection manager; with a device that can do both, between 'haul \
                 bench rdma serve --provider ibv:NAME' and 'haul bench rdma HOST --provider ibv:NAME --all', with and without \
                 --exchange"
                    .into(),
            );
            Ok(())
        },
        about: || Figure {
            number: 6,
            title: "RDMA connected by the connection manager, and without",
            about: "In the paper queue pairs whose parameters were exchanged over a socket got less over long connections \
                    than those of the connection manager, and less steadily.",
            ..Figure::default()
        },
    }
}

fn messages() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &message_cells(context)),
        run: |context, figure| profile(context, figure, &message_cells(context)),
        about: || Figure {
            number: 7,
            title: "RDMA: goodput over distance and message size, and its stability",
            about: "RDMA Write by iWARP over UDT, one queue pair, memory to memory, over an emulated path of 500 Mbit/s (the \
                    paper: InfiniBand over SONET, 7.5 Gbit/s). Of messages up to 64 KiB 1024 may be outstanding, of longer \
                    ones 64 MiB: a message of few bytes is limited by that.",
            charts: profile_charts(
                chart("Goodput T(d, s) by message size", "Mbit/s", Along::Bytes),
                "Messages of 8 MiB",
            ),
            judges: vec![
                |figure| {
                    Claim::new(
                        "paper: RDMA keeps 98 % of its goodput from 0.2 to 8600 miles (7.48 to 7.34 Gbit/s); agrees from 95 % on",
                        kept(figure).map(|kept| (format!("{kept:.1} %"), kept >= 95.0)),
                    )
                },
                |figure| {
                    let decrease = figure.value(PER_MILE, "decrease", FAR);
                    Claim::new(
                        "paper: RDMA loses at most 17 kbit/s for each mile, TCP 870 to 1740; of a path of a twentieth: agrees \
                         up to 2",
                        decrease.map(|kbps| {
                            (
                                format!("{kbps:.2} kbit/s, {:.1} scaled", kbps * SCALE),
                                kbps <= 2.0,
                            )
                        }),
                    )
                },
                |figure| {
                    Claim::new(
                        "paper: goodput of RDMA over long connections deviates by 0.001 % (0.09 Mbit/s); agrees up to 1 %",
                        deviation(figure)
                            .map(|found| (format!("{found:.2} % at most"), found <= 1.0)),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

/// RDMA Writes of this length, enough of them outstanding.
fn rdma_options(message: u32) -> String {
    let depth = (OUTSTANDING_BYTES / message).clamp(8, 1024);
    format!("--message {message} --depth {depth} --memory {OUTSTANDING_BYTES}")
}

fn message_cells(context: &Context<'_>) -> Vec<Cell> {
    let powers: Vec<u32> = if context.quick {
        vec![10, 16, 23]
    } else {
        (0..=22).step_by(2).chain([23]).collect()
    };
    let mut cells = Vec::new();
    for (at, net) in places(context) {
        cells.extend(powers.iter().map(|power| {
            let message = 1 << power;
            let again = if message == LONG {
                repetitions(context)
            } else {
                0
            };
            let how = How::Run("iwarp-udt", rdma_options(message));
            Cell::new(PROFILE, miles(at), message, how)
                .over(net)
                .times(again)
        }));
    }
    cells
}

fn both_ways() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &both_ways_cells(context)),
        run: |context, figure| show(context, figure, &both_ways_cells(context)),
        about: || Figure {
            number: 8,
            title: "RDMA one way and both ways",
            about: "As figure 7, with messages of 8 MiB; both ways is the sum. The paper's WAN-PHY differs from SONET in \
                    devices only, and here in nothing. A path of 500 Mbit/s has as much in each direction.",
            charts: vec![chart("Goodput by distance", "Mbit/s", Along::Miles)],
            judges: vec![|figure| {
                let both = figure
                    .value(0, BOTH_WAYS, FAR)
                    .zip(figure.value(0, BOTH_WAYS, NEAR));
                Claim::new(
                    "paper: both ways hold over distance as one way does (98 %); agrees from 95 % on",
                    both.map(|(far, near)| {
                        (format!("{:.1} %", 100.0 * far / near), far >= 0.95 * near)
                    }),
                )
            }],
            ..Figure::default()
        },
    }
}

const ONE_WAY: &str = "one way";
const BOTH_WAYS: &str = "both ways";

fn both_ways_cells(context: &Context<'_>) -> Vec<Cell> {
    let kinds = [(ONE_WAY, ""), (BOTH_WAYS, " --bidirectional")];
    let cell = |(at, net): (u32, Net), (name, more): (&str, &str)| {
        let how = How::Rdma(format!("--size {LONG} --depth 8{more}"));
        Cell::new(0, name, at, how).over(net)
    };
    let wanted = |place: &(u32, Net)| !context.quick || [NEAR, FAR].contains(&place.0);
    let places = places(context).into_iter().filter(wanted);
    places
        .flat_map(|place| kinds.map(|kind| cell(place, kind)))
        .collect()
}

fn cross_traffic() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &cross_cells(context)),
        run: |context, figure| {
            measure(
                context,
                figure,
                &cross_cells(context),
                |figure, cell, found, _| {
                    figure.charts[0].add(&cell.series, cell.at, mbps(found));
                    let left = rate() * f64::from(100 - cell.at) / 100.0;
                    figure.charts[1].add(
                        &cell.series,
                        cell.at,
                        Sample::of(100.0 * found.goodput_bps / left),
                    );
                    if let Some(bps) = found.beside_bps {
                        let asked = rate() * f64::from(cell.at) / 100.0;
                        let got = Sample::of(100.0 * bps / asked);
                        figure.charts[2].add(&format!("UDP beside {}", cell.series), cell.at, got);
                    }
                },
            )
        },
        about: || Figure {
            number: 9,
            title: "RDMA and TCP beside UDP without congestion control",
            about: "As figure 7, with messages of 64 KiB, beside datagrams at a tenth to four tenths of the path's rate; and \
                    ten streams of the kernel's TCP (cubic).",
            charts: vec![
                chart("Goodput", "Mbit/s", Along::Cross),
                chart(
                    "Goodput as a share of the rate that UDP leaves",
                    "%",
                    Along::Cross,
                ),
                chart("What UDP got of its rate", "%", Along::Cross),
            ],
            judges: vec![
                |figure| {
                    let worst = [1400, FAR]
                        .iter()
                        .filter_map(|&at| share_of_alone(figure, at, 10))
                        .reduce(f64::min);
                    Claim::new(
                        "paper: UDP of a tenth of the path takes nothing from RDMA (its link had room for it); agrees from 85 \
                         % of alone on",
                        worst.map(|share| (format!("{share:.0} % of alone"), share >= 85.0)),
                    )
                },
                |figure| collapse_claim(figure, 1400, 39.0),
                |figure| collapse_claim(figure, FAR, 13.0),
                |figure| {
                    let least = [1400, FAR]
                        .into_iter()
                        .filter_map(|at| least(figure, 1, &rdma_at(at)));
                    Claim::new(
                        "project: RDMA has at least 0.9 of what UDP leaves",
                        least
                            .reduce(f64::min)
                            .map(|share| (format!("{share:.0} % in the worst"), share >= 90.0)),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn rdma_at(at: u32) -> String {
    format!("{RDMA}, {}", miles(at))
}

/// RDMA's goodput beside this much UDP, percent of its goodput alone.
fn share_of_alone(figure: &Figure, at: u32, cross: u32) -> Option<f64> {
    let series = rdma_at(at);
    let both = figure
        .value(0, &series, cross)
        .zip(figure.value(0, &series, 0));
    both.map(|(beside, alone)| 100.0 * beside / alone)
}

/// In the paper RDMA fell to less than half of what UDP had left.
fn collapse_claim(figure: &Figure, at: u32, percent: f64) -> Claim {
    let share = share_of_alone(figure, at, 40);
    Claim::new(
        format!(
            "paper: beside UDP of 4 tenths RDMA falls to {percent} % of alone at {at} miles, where 60 % are left; agrees \
             below 40 %"
        ),
        share.map(|share| (format!("{share:.0} % of alone"), share < 40.0)),
    )
}

fn cross_cells(context: &Context<'_>) -> Vec<Cell> {
    let (percents, wanted): (&[u32], &[u32]) = if context.quick {
        (&[0, 40], &[FAR])
    } else {
        (&[0, 10, 20, 30, 40], &[1400, FAR])
    };
    let mut cells = Vec::new();
    for (at, net) in places(context)
        .into_iter()
        .filter(|(at, _)| wanted.contains(at))
    {
        let carriers = [
            (rdma_at(at), "iwarp-udt", rdma_options(64 << 10)),
            (
                format!("{TCP}, {}", miles(at)),
                "tcp",
                streams_option("cubic", STREAMS),
            ),
        ];
        for &percent in percents {
            for (series, engine, options) in &carriers {
                let own = (*engine, options.clone());
                let how = if percent == 0 {
                    How::Run(own.0, own.1)
                } else {
                    How::Beside([own, udp(percent)])
                };
                cells.push(Cell::new(0, series, percent, how).over(net));
            }
        }
    }
    cells
}

/// Datagrams at a part of the path's rate.
fn udp(percent: u32) -> (&'static str, String) {
    (
        "udp",
        format!("--rate {}bit", RATE_BPS / 100 * u64::from(percent)),
    )
}

fn beside_rdma() -> Experiment {
    Experiment {
        lasts: |context| lasts(context, &beside_cells(context)),
        run: |context, figure| show(context, figure, &beside_cells(context)),
        about: || Figure {
            number: 10,
            title: "Other traffic of a tenth of the path, beside RDMA",
            about: "The paper's devices carried a port of 1 Gbit/s beside RDMA on a share of the link that was kept for it. \
                    Here nothing is kept: UDP and one stream of TCP (cubic), both told 48 Mbit/s, share the path of 500 \
                    Mbit/s with RDMA at full speed.",
            charts: vec![chart(
                "Goodput of the other traffic by distance",
                "Mbit/s",
                Along::Miles,
            )],
            judges: vec![
                |figure| {
                    let least = least(figure, 0, UDP_BESIDE);
                    Claim::new(
                        "paper: UDP has 96 % of its port at every distance (962 Mbit/s), RDMA or not; agrees from 90 % of its \
                         rate on",
                        least.map(|mbps| {
                            (
                                format!("{:.0} % in the worst", 100.0 * mbps / 48.0),
                                mbps >= 0.9 * 48.0,
                            )
                        }),
                    )
                },
                |figure| {
                    let far = figure.value(0, TCP_BESIDE, FAR);
                    Claim::new(
                        "paper: one stream of TCP has 35 % of its port at 8600 miles (350 Mbit/s); agrees below 60 % of its rate",
                        far.map(|mbps| {
                            (format!("{:.0} %", 100.0 * mbps / 48.0), mbps < 0.6 * 48.0)
                        }),
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

const UDP_BESIDE: &str = "UDP at 48 Mbit/s";
const TCP_BESIDE: &str = "TCP (cubic) at 48 Mbit/s";

fn beside_cells(context: &Context<'_>) -> Vec<Cell> {
    let kinds = [
        (UDP_BESIDE, "udp", "--rate 48Mbit"),
        (TCP_BESIDE, "tcp", "--congestion cubic --rate 48Mbit"),
    ];
    let wanted = |place: &(u32, Net)| !context.quick || place.0 == FAR;
    let cell = |(at, net): (u32, Net), (series, engine, options): (&str, &'static str, &str)| {
        let rdma = ("iwarp-udt", rdma_options(64 << 10));
        let how = How::Beside([(engine, options.to_owned()), rdma]);
        Cell::new(0, series, at, how).over(net)
    };
    let places = places(context).into_iter().filter(wanted);
    places
        .flat_map(|place| kinds.map(|kind| cell(place, kind)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_what_rdma_has_alone() {
        let mut figure = Figure {
            charts: vec![chart("", "Mbit/s", Along::Cross)],
            ..Figure::default()
        };
        figure.charts[0].add(&rdma_at(FAR), 0, Sample::of(400.0));
        figure.charts[0].add(&rdma_at(FAR), 40, Sample::of(40.0));
        assert_eq!(collapse_claim(&figure, FAR, 13.0).holds, Some(true));
        assert_eq!(collapse_claim(&figure, 1400, 39.0).holds, None);
    }

    #[test]
    fn enough_is_outstanding() {
        let long = "--message 8388608 --depth 8 --memory 67108864";
        let short = "--message 1 --depth 1024 --memory 67108864";
        assert_eq!((&*rdma_options(LONG), &*rdma_options(1)), (long, short));
    }
}
