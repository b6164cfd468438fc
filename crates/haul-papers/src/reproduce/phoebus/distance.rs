//! Figure 6: TCP over the round trip, by `iperf3` and by GridFTP, directly and through gateways.

use super::transfer::{
    BBR, CUBIC, GATEWAYS, LINES, Line, RATE_BPS, SHARE, add, cpu, goodput_bps, least, lines, path,
    route, run,
};
use crate::reproduce::bench::Context;
use crate::reproduce::experiment::{Experiment, unknown};
use crate::reproduce::gateways::{Flow, Gateways, Program, Way};
use crate::reproduce::record::{Along, Claim, Figure, chart};
use haul_lab::compare::gridftp;
use haul_lab::compare::programs::in_path;
use haul_lab::compare::runner::Stop;

/// The lossy part of the path in figure 6: charts for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    /// Packets that the path between the gateways loses of a million.
    wan_ppm: u32,
    /// Packets that the edges, of [`EDGE`], lose of a million each; nothing where there are none,
    /// but cables.
    edge_ppm: Option<u32>,
    /// Round trips with `--quick`, ms.
    quick_rtts_ms: &'static [u32],
}

const fn wan(wan_ppm: u32, quick_rtts_ms: &'static [u32]) -> Loss {
    Loss {
        wan_ppm,
        edge_ppm: None,
        quick_rtts_ms,
    }
}

const fn edges(edge_ppm: u32, quick_rtts_ms: &'static [u32]) -> Loss {
    Loss {
        wan_ppm: 0,
        edge_ppm: Some(edge_ppm),
        quick_rtts_ms,
    }
}

const LOSSES: [Loss; 7] = [
    wan(0, &[20, 120]),
    wan(10, &[]),
    wan(100, &[20, 120]),
    wan(1000, &[]),
    edges(0, &[]),
    edges(10, &[]),
    edges(100, &[120]),
];
/// By GridFTP, the paper's.
const GRIDFTP_LOSSES: [Loss; 3] = [edges(0, &[120]), edges(10, &[]), edges(100, &[120])];
/// The paper's edges; twice as fast as the path, so that it limits.
const EDGE: &str = "rtt = \"2ms\"\nrate = \"1Gbit\"\n";

/// Figure 6.
pub(super) fn experiment() -> Experiment {
    Experiment {
        lasts: unknown,
        run: over_distance,
        about: || Figure {
            number: 6,
            title: "TCP over the round trip between gateways, directly and through them",
            about: "iperf3 with one and with 8 streams of unmodified TCP over a path of 500 Mbit/s: first the path loses \
                    packets, between edges without delay; then the edges do, of 1 Gbit/s and 2 ms each, as in the paper. What \
                    the receiver took, as a share of what packets full of TCP's payload can carry. Last the same by Debian's GridFTP, \
                    from memory to memory, whose control and data connections ga's kernel diverts to a transparent listener.",
            judges: vec![
                |figure| {
                    gain_claim(
                        figure,
                        Program::Iperf,
                        edges(0, &[]),
                        1.2,
                        "paper: one stream at 120 ms without loss gains 20 %",
                    )
                },
                |figure| {
                    gain_claim(
                        figure,
                        Program::Iperf,
                        edges(10, &[]),
                        3.0,
                        "paper: one stream at 120 ms has more than 3 times where edges lose 1e-5",
                    )
                },
                |figure| {
                    gain_claim(
                        figure,
                        Program::Iperf,
                        edges(100, &[]),
                        6.0,
                        "paper: one stream at 120 ms has more than 6 times where edges lose 1e-4",
                    )
                },
                |figure| {
                    share_claim(
                        figure,
                        Program::Iperf,
                        "project: one stream through gateways has at least 95 % of the goodput in every cell, once it has begun",
                    )
                },
                bbr_claim,
                |figure| {
                    gain_claim(
                        figure,
                        Program::Gridftp,
                        edges(0, &[]),
                        1.2,
                        "paper: one stream of GridFTP at 120 ms without loss gains 20 %",
                    )
                },
                |figure| {
                    gain_claim(
                        figure,
                        Program::Gridftp,
                        edges(10, &[]),
                        3.0,
                        "paper: one stream of GridFTP at 120 ms has more than 3 times where edges lose 1e-5",
                    )
                },
                |figure| {
                    gain_claim(
                        figure,
                        Program::Gridftp,
                        edges(100, &[]),
                        6.0,
                        "paper: one stream of GridFTP at 120 ms has more than 6 times where edges lose 1e-4",
                    )
                },
                |figure| {
                    share_claim(
                        figure,
                        Program::Gridftp,
                        "project: one stream of GridFTP through gateways has at least 95 % of the goodput in every cell, once it has begun",
                    )
                },
            ],
            ..Figure::default()
        },
    }
}

fn over_distance(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    let lines = lines(context, figure);
    for loss in LOSSES {
        let rtts: &[u32] = if context.quick {
            loss.quick_rtts_ms
        } else {
            &[0, 20, 60, 120, 300]
        };
        for &rtt_ms in rtts {
            over_path(context, figure, Program::Iperf, &lines, (loss, rtt_ms))?;
        }
    }
    if let Some(why) = no_gridftp(context)? {
        figure.warn(format!("GridFTP is left out: {why}"));
        return Ok(());
    }
    let lines: Vec<_> = lines
        .into_iter()
        .filter(|line| line.flow.congestion == LINES[0].flow.congestion)
        .collect();
    for loss in GRIDFTP_LOSSES {
        let rtts: &[u32] = if context.quick {
            loss.quick_rtts_ms
        } else {
            &[20, 60, 120]
        };
        for &rtt_ms in rtts {
            over_path(context, figure, Program::Gridftp, &lines, (loss, rtt_ms))?;
        }
    }
    Ok(())
}

/// Why GridFTP cannot run here, directly and through gateways, if so.
fn no_gridftp(context: &Context<'_>) -> Result<Option<String>, Stop> {
    if let Some(why) = gridftp::missing() {
        return Ok(Some(why));
    }
    if in_path("nft").is_none() {
        return Ok(Some(
            "nft, which diverts its connections, is not installed".into(),
        ));
    }
    let listener = Program::Gridftp.listener();
    match Gateways::start(context, &Way::default(), Some(&route(0, 0)), listener, 0) {
        Ok(_) => Ok(None),
        Err(Stop::Failed(why)) => Ok(Some(format!("{why:#}"))),
        Err(stop) => Err(stop),
    }
}

/// Lines by a program over one path, in turns.
fn over_path(
    context: &Context<'_>,
    figure: &mut Figure,
    program: Program,
    lines: &[&Line],
    (loss, rtt_ms): (Loss, u32),
) -> Result<(), Stop> {
    let way = loss.way(rtt_ms);
    let route = route(rtt_ms, loss.wan_ppm);
    for repetition in 0..context.repeat {
        for line in lines {
            let by = prefix(program);
            let told = format!("{by}{}, {rtt_ms} ms, {}", line.name, loss.told());
            let route = line.gateways.then_some(&route);
            let flow = Flow {
                program,
                ..line.flow
            };
            let found = run(context, figure, &told, &way, route, flow, repetition)?;
            let Some(found) = found else { continue };
            let share = |bps: f64| 100.0 * bps / goodput_bps(RATE_BPS, loss.wan_ppm);
            let (later, whole) = (share(found.later_bps), share(found.whole_bps));
            let at = made(figure, &loss.begun_title(program), "%");
            add(figure, at, line.name, rtt_ms, &found, later);
            let at = made(figure, &loss.whole_title(program), "%");
            add(figure, at, line.name, rtt_ms, &found, whole);
            if line.gateways {
                let at = made(figure, &loss.processor_time(program), "s");
                figure.charts[at].add(line.name, rtt_ms, cpu(&found));
            }
        }
    }
    Ok(())
}

/// The prefix of series names; `iperf3` has none.
fn prefix(program: Program) -> &'static str {
    match program {
        Program::Iperf => "",
        Program::Gridftp => "GridFTP: ",
    }
}

impl Loss {
    /// In words.
    fn told(self) -> String {
        match self.edge_ppm {
            Some(ppm) => format!("each edge of 2 ms loses {ppm} of a million"),
            None => format!("the path loses {} of a million", self.wan_ppm),
        }
    }

    fn way(self, rtt_ms: u32) -> Way {
        let edge = |ppm| format!("{EDGE}loss = {:?}\n", f64::from(ppm) / 1e6);
        Way {
            path: Some(path(rtt_ms, self.wan_ppm)),
            edge: self.edge_ppm.map(edge),
        }
    }

    /// Titles of the charts.
    fn begun_title(self, program: Program) -> String {
        format!(
            "{}Goodput once it has begun, where {}",
            prefix(program),
            self.told()
        )
    }

    fn whole_title(self, program: Program) -> String {
        format!(
            "{}Goodput from the start, where {}",
            prefix(program),
            self.told()
        )
    }

    fn processor_time(self, program: Program) -> String {
        format!(
            "{}Processor time of both gateways for 10^9 bytes, where {}",
            prefix(program),
            self.told()
        )
    }
}

/// The number of a chart over round trips; it is made if there is none.
fn made(figure: &mut Figure, title: &str, unit: &'static str) -> usize {
    found(figure, title).unwrap_or_else(|| {
        figure.charts.push(chart(title, unit, Along::Milliseconds));
        figure.charts.len() - 1
    })
}

fn found(figure: &Figure, title: &str) -> Option<usize> {
    figure.charts.iter().position(|chart| chart.title == title)
}

/// One stream at 120 ms from the start, through gateways and directly.
fn gain_claim(figure: &Figure, program: Program, loss: Loss, times: f64, words: &str) -> Claim {
    let chart = found(figure, &loss.whole_title(program));
    let value = |series| figure.value(chart?, series, 120);
    let both = value(GATEWAYS).zip(value(CUBIC));
    Claim::new(
        words,
        both.map(|(ours, tcp)| (format!("{:.2} times", ours / tcp), ours >= times * tcp)),
    )
}

/// One stream of cubic through gateways in every cell, once it has begun.
fn share_claim(figure: &Figure, program: Program, words: &str) -> Claim {
    let charts = LOSSES
        .into_iter()
        .filter_map(|loss| found(figure, &loss.begun_title(program)));
    let least = charts.filter_map(|chart| least(figure, chart, GATEWAYS));
    Claim::new(
        words,
        least
            .reduce(f64::min)
            .map(|least| (format!("{least:.1} % in the worst"), least >= SHARE)),
    )
}

/// One stream of cubic through gateways against one stream of BBR directly, wherever packets are
/// lost or the round trip is 50 ms or more.
fn bbr_claim(figure: &Figure) -> Claim {
    let mut worst: Option<(f64, String)> = None;
    for loss in LOSSES {
        let Some(chart) = found(figure, &loss.whole_title(Program::Iperf)) else {
            continue;
        };
        let lossy = loss.wan_ppm > 0 || loss.edge_ppm.is_some_and(|ppm| ppm > 0);
        let rtts = figure.charts[chart].sizes();
        for rtt_ms in rtts.into_iter().filter(|&rtt_ms| lossy || rtt_ms >= 50) {
            let value = |series| figure.value(chart, series, rtt_ms);
            let Some((ours, bbr)) = value(GATEWAYS).zip(value(BBR)) else {
                continue;
            };
            let ratio = ours / bbr;
            if worst.as_ref().is_none_or(|(worst, _)| ratio < *worst) {
                let told = format!(
                    "{ratio:.2} times in the worst: {rtt_ms} ms, {}",
                    loss.told()
                );
                worst = Some((ratio, told));
            }
        }
    }
    Claim::new(
        "project: beats one stream of BBR, from the start, wherever packets are lost or the round trip is 50 ms or more",
        worst.map(|(ratio, told)| (told, ratio > 1.0)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::record::Sample;

    #[test]
    fn paths_are_scenarios() {
        for loss in LOSSES {
            let text = loss.way(120).scenario();
            haul_lab::scenario::Scenario::parse("test", &text).unwrap();
        }
    }

    #[test]
    fn the_worst_cell_decides() {
        let mut figure = Figure::default();
        for (loss, ours, bbr) in [(wan(0, &[]), 90.0, 80.0), (edges(100, &[]), 70.0, 75.0)] {
            let at = made(&mut figure, &loss.whole_title(Program::Iperf), "%");
            figure.charts[at].add(GATEWAYS, 120, Sample::of(ours));
            figure.charts[at].add(CUBIC, 120, Sample::of(ours / 4.0));
            figure.charts[at].add(BBR, 120, Sample::of(bbr));
        }
        assert_eq!(bbr_claim(&figure).holds, Some(false));
        assert_eq!(
            gain_claim(&figure, Program::Iperf, wan(0, &[]), 1.2, "").holds,
            Some(true)
        );
        assert_eq!(
            gain_claim(&figure, Program::Iperf, edges(100, &[]), 6.0, "").holds,
            Some(false)
        );
        assert_eq!(
            gain_claim(&figure, Program::Iperf, edges(10, &[]), 3.0, "").holds,
            None
        );
    }
}
