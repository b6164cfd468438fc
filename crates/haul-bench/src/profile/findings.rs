//! The findings of a profile.

use std::collections::BTreeMap;

use haul_report::axis::{bytes, number, rate};
use haul_report::stats::Spread;

use super::Section;
use super::steps::{equal_share, residual};
use crate::path::document::{Document, Finding, Ratio};
use crate::path::plan::{Engine, Medium, PathPlan};
use crate::path::record::{Run, to_f64};
use crate::path::record::{Stage, Verdict};
use crate::plan::Connect;

/// A part of the best goodput that is as good.
const NEARLY: f64 = 0.9;
/// A part of the best goodput that differs by chance.
const SAME: f64 = 0.98;
/// A change over all distances by less than this part is none.
const HARDLY: f64 = 0.05;
/// Runs that differ more than this, the deviation by the mean, are not stable.
const STEADY: f64 = 0.05;
/// The round trip that a mile of distance adds, ms: 1.609 km there and back at 200 km/ms, the speed
/// of light in fibre.
pub(crate) const MS_PER_MILE: f64 = 2.0 * 1.609_344 / 200.0;

/// The runs of a section.
pub(crate) fn section(runs: &[Run], section: Section) -> impl Iterator<Item = &Run> {
    runs.iter().filter(move |run| run.section == section.name())
}

/// The engines of some runs, in the order of their first run.
pub(crate) fn engines<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<Engine> {
    let mut engines = Vec::new();
    for run in runs {
        if !engines.contains(&run.plan.engine) {
            engines.push(run.plan.engine);
        }
    }
    engines
}

/// The most that any run by itself got through, bits per second; zero where there was none.
#[must_use]
pub fn best_goodput(runs: &[Run]) -> f64 {
    best(runs).map_or(0.0, |run| run.goodput_bps)
}

fn best(runs: &[Run]) -> Option<&Run> {
    alone(runs).max_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps))
}

/// The runs without other traffic, by engines with congestion control.
fn alone(runs: &[Run]) -> impl Iterator<Item = &Run> {
    runs.iter()
        .filter(|run| run.beside.is_none() && run.plan.engine != Engine::Udp)
}

/// All findings.
#[must_use]
pub fn of(document: &Document) -> Vec<Finding> {
    let runs = &document.runs;
    let mut findings: Vec<Finding> = limit(runs).into_iter().collect();
    findings.extend(streams(runs));
    findings.extend(messages(runs));
    findings.extend(stability(runs));
    findings.extend(cross(runs));
    findings.extend(stages(runs));
    findings.extend(distance(runs));
    findings.extend(loss(runs));
    findings.extend(sweep(runs, LOSS_SWEEP, "loss"));
    findings.extend(sweep(runs, REORDER_SWEEP, "reordering"));
    findings.extend(connection_manager(runs));
    findings
}

fn finding(about: &str, text: String, advice: Option<String>) -> Finding {
    Finding {
        about: about.into(),
        text,
        advice,
    }
}

fn limit(runs: &[Run]) -> Option<Finding> {
    let best = best(runs)?;
    // A minimal gain of many streams is noise, and their limit is not the path's.
    let alike = || alone(runs).filter(|run| run.goodput_bps >= best.goodput_bps * SAME);
    let plainest = alike().min_by_key(|run| run.plan.streams)?;
    let who = |run: &Run| {
        let name = run.plan.engine.name();
        match run.plan.streams {
            1 => format!("{name} with one stream"),
            streams => format!("{name} with {streams} streams"),
        }
    };
    let mut text = format!("{} at best, by {}", rate(best.goodput_bps), who(best));
    if who(plainest) != who(best) {
        let plain = rate(plainest.goodput_bps);
        text += &format!(", and {plain} by {}", who(plainest));
    }
    let Verdict { stage, why, advice } = plainest.verdict.clone();
    text += &format!(". The limit is then the {}: {why}.", stage.name());
    let others: Vec<&str> = engines(alike())
        .into_iter()
        .filter(|engine| *engine != plainest.plan.engine)
        .map(Engine::name)
        .collect();
    let advice = if stage == Stage::Path && !others.is_empty() {
        text += &format!(" As much by {}.", others.join(", "));
        "only a faster path gets more".into()
    } else {
        advice
    };
    for doubt in &plainest.warnings {
        text += &format!(" But {doubt}.");
    }
    Some(finding("the limiting stage", text, Some(advice)))
}

fn streams(runs: &[Run]) -> Vec<Finding> {
    let found = |engine: Engine| {
        let of_engine =
            || section(runs, Section::Streams).filter(move |run| run.plan.engine == engine);
        let one = of_engine().find(|run| run.plan.streams == 1)?;
        let best = of_engine().max_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps))?;
        let enough = of_engine()
            .filter(|run| run.goodput_bps >= best.goodput_bps * NEARLY)
            .min_by_key(|run| run.plan.streams)?;
        let name = engine.name();
        let (text, advice) = if enough.plan.streams <= 1 {
            let text = format!(
                "{name}: one stream gets {} alone; more add less than a tenth.",
                rate(one.goodput_bps)
            );
            (text, None)
        } else {
            let text = format!(
                "{name}: one stream gets {}, {} streams {}. One alone was limited by the {}: {}.",
                rate(one.goodput_bps),
                enough.plan.streams,
                rate(enough.goodput_bps),
                one.verdict.stage.name(),
                one.verdict.why
            );
            (
                text,
                Some(format!(
                    "use {} streams of {name}, or: {}",
                    enough.plan.streams, one.verdict.advice
                )),
            )
        };
        Some(finding("parallel streams", text, advice))
    };
    engines(section(runs, Section::Streams))
        .into_iter()
        .filter_map(found)
        .collect()
}

fn messages(runs: &[Run]) -> Vec<Finding> {
    let found = |engine: Engine| {
        let of_engine =
            || section(runs, Section::Messages).filter(move |run| run.plan.engine == engine);
        let best = of_engine().map(|run| run.goodput_bps).fold(0.0, f64::max);
        let enough = of_engine()
            .filter(|run| run.goodput_bps >= best * NEARLY)
            .min_by_key(|run| run.plan.message)?;
        let text = format!(
            "{}: messages of {} and more get nine tenths of the most, {}.",
            engine.name(),
            bytes(enough.plan.message.into()),
            rate(best)
        );
        Some(finding("message size", text, None))
    };
    engines(section(runs, Section::Messages))
        .into_iter()
        .filter_map(found)
        .collect()
}

fn stability(runs: &[Run]) -> Vec<Finding> {
    let found = |engine: Engine| {
        let of_engine = section(runs, Section::Stability).filter(|run| run.plan.engine == engine);
        let values: Vec<f64> = of_engine.map(|run| run.goodput_bps).collect();
        let spread = Spread::of(&values).filter(|spread| spread.count > 1 && spread.mean > 0.0)?;
        let share = spread.deviation / spread.mean;
        let word = if share <= STEADY {
            "steady"
        } else {
            "not steady"
        };
        let text = format!(
            "{} is {word}: {} on average over {} runs, with a standard deviation of {} ({} %).",
            engine.name(),
            rate(spread.mean),
            spread.count,
            rate(spread.deviation),
            number(share * 100.0)
        );
        let advice =
            (share > STEADY).then(|| "judge other figures of it by this spread".to_owned());
        Some(finding("stability", text, advice))
    };
    engines(section(runs, Section::Stability))
        .into_iter()
        .filter_map(found)
        .collect()
}

/// The expected goodput of an engine beside other traffic, bits per second.
pub(crate) fn fair(run: &Run, capacity: f64) -> Option<f64> {
    let beside = run.beside.as_ref()?;
    Some(if is_datagrams(run) {
        residual(capacity, beside.level)
    } else {
        equal_share(capacity, beside.level)
    })
}

/// The other traffic is datagrams without congestion control.
pub(crate) fn is_datagrams(run: &Run) -> bool {
    run.beside
        .as_ref()
        .is_some_and(|beside| beside.what.starts_with("UDP"))
}

fn cross(runs: &[Run]) -> Vec<Finding> {
    let capacity = best_goodput(runs);
    let found = |engine: Engine| {
        let of_engine = section(runs, Section::Cross).filter(|run| run.plan.engine == engine);
        let datagrams: Vec<&Run> = of_engine.filter(|run| is_datagrams(run)).collect();
        let share = |run: &&&Run| fair(run, capacity).map(|fair| run.goodput_bps / fair.max(1.0));
        let worst = datagrams
            .iter()
            .min_by(|a, b| share(a).unwrap_or(0.0).total_cmp(&share(b).unwrap_or(0.0)))?;
        let share = share(&worst)?;
        let text = format!(
            "{}: beside {} it got {}, {} % of what that left.",
            engine.name(),
            worst.beside.as_ref()?.what,
            rate(worst.goodput_bps),
            number(share * 100.0)
        );
        let advice = (share < NEARLY && engine == Engine::Tcp).then(|| {
            "where others do not give way, --engine udt takes more of what is left".to_owned()
        });
        Some(finding("other traffic", text, advice))
    };
    engines(section(runs, Section::Cross))
        .into_iter()
        .filter_map(found)
        .collect()
}

fn stages(runs: &[Run]) -> Option<Finding> {
    let of = |source: Medium, sink: Medium| {
        section(runs, Section::Stages)
            .find(move |run| run.plan.source == source && run.plan.sink == sink)
    };
    let network = of(Medium::Memory, Medium::Memory)?;
    let candidates = [
        ("network alone", Some(network)),
        (Stage::SourceDisk.name(), of(Medium::File, Medium::Memory)),
        (Stage::SinkDisk.name(), of(Medium::Memory, Medium::File)),
    ];
    let measured = || {
        candidates
            .iter()
            .filter_map(|(name, run)| Some((*name, (*run)?)))
    };
    let (name, slowest) = measured().min_by(|a, b| a.1.goodput_bps.total_cmp(&b.1.goodput_bps))?;
    let list: Vec<String> = measured()
        .map(|(name, run)| format!("{name} {}", rate(run.goodput_bps)))
        .collect();
    let whole = of(Medium::File, Medium::File);
    let whole = whole.map_or_else(String::new, |run| {
        format!("; file to file {}", rate(run.goodput_bps))
    });
    // A disk within a tenth of the network's rate is not the limit.
    let (name, advice) = if slowest.goodput_bps >= network.goodput_bps * NEARLY {
        (network.verdict.stage.name(), network.verdict.advice.clone())
    } else {
        (name, slowest.verdict.advice.clone())
    };
    let text = format!(
        "{}{whole}. The slowest stage is the {name}.",
        list.join(", ")
    );
    Some(finding("disks", text, Some(advice)))
}

/// Goodput over distance: the slope of a straight line, by least squares. None with fewer than two
/// distances.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = to_f64(points.len() as u64);
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let squares: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let products: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    (squares > 0.0).then(|| products / squares)
}

/// The section of runs over emulated distances; the level beside them is the round trip, ms.
pub const DISTANCE: &str = "distance";
/// The same over loss; the level is its share.
pub const LOSS: &str = "loss";
/// RDMA over loss, by message size and depth; the level is the share of packets lost.
pub const LOSS_SWEEP: &str = "loss-sweep";
/// RDMA over reordering, by message size and depth; the level is the share of packets held back.
pub const REORDER_SWEEP: &str = "reorder-sweep";

/// Median goodput of an engine by level, with one number of streams.
pub(crate) fn by_level(
    runs: &[Run],
    section: &str,
    engine: Engine,
    streams: u16,
) -> Vec<(f64, Spread)> {
    let mut levels: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for run in runs {
        let Some(beside) = &run.beside else { continue };
        if run.section == section && run.plan.engine == engine && run.plan.streams == streams {
            // Levels are not negative, and so their bits are in their order.
            levels
                .entry(beside.level.to_bits())
                .or_default()
                .push(run.goodput_bps);
        }
    }
    let spread =
        |(level, values): (u64, Vec<f64>)| Some((f64::from_bits(level), Spread::of(&values)?));
    levels.into_iter().filter_map(spread).collect()
}

fn distance(runs: &[Run]) -> Vec<Finding> {
    let of_section = || runs.iter().filter(|run| run.section == DISTANCE);
    let found = |engine: Engine| {
        let points = by_level(runs, DISTANCE, engine, 1);
        let pairs: Vec<(f64, f64)> = points
            .iter()
            .map(|(ms, spread)| (*ms, spread.median))
            .collect();
        let slope = slope(&pairs)?;
        let (first, last) = (pairs.first()?, pairs.last()?);
        let change = slope * (last.0 - first.0);
        let falls = if change.abs() < first.1 * HARDLY {
            "it hardly changes with distance".to_owned()
        } else {
            format!(
                "{} {} for each ms of round trip, {} for each mile",
                rate(slope.abs()),
                if slope < 0.0 { "less" } else { "more" },
                rate(slope.abs() * MS_PER_MILE)
            )
        };
        let text = format!(
            "{}, one stream: {} at {} ms, {} at {} ms; {falls}.",
            engine.name(),
            rate(first.1),
            number(first.0),
            rate(last.1),
            number(last.0)
        );
        Some(finding("distance", text, None))
    };
    engines(of_section())
        .into_iter()
        .filter_map(found)
        .collect()
}

fn loss(runs: &[Run]) -> Vec<Finding> {
    let of_section = || runs.iter().filter(|run| run.section == LOSS);
    let found = |engine: Engine| {
        let points = by_level(runs, LOSS, engine, 1);
        let (_, without) = points.first()?;
        let half = points
            .iter()
            .find(|(_, spread)| spread.median < without.median / 2.0);
        let text = match half {
            Some((share, spread)) => format!(
                "{}: {} without loss; at a loss of {} less than half of it, {}.",
                engine.name(),
                rate(without.median),
                number(*share),
                rate(spread.median)
            ),
            None => format!(
                "{}: {} without loss, and more than half of it at a loss of {}.",
                engine.name(),
                rate(without.median),
                number(points.last()?.0)
            ),
        };
        Some(finding("loss", text, None))
    };
    engines(of_section())
        .into_iter()
        .filter_map(found)
        .collect()
}

/// The share of packets that a run lost or held back.
pub(crate) fn level(run: &Run) -> f64 {
    run.beside.as_ref().map_or(0.0, |beside| beside.level)
}

/// The share of goodput that remains at the highest level of other traffic, of the best message
/// size and depth.
fn sweep(runs: &[Run], section: &str, what: &str) -> Vec<Finding> {
    let of_section = || runs.iter().filter(move |run| run.section == section);
    let found = |engine: Engine| {
        let of_engine = || of_section().filter(move |run| run.plan.engine == engine);
        let highest = of_engine().map(level).fold(0.0, f64::max);
        let best = |at: f64| {
            let here = of_engine().filter(move |run| level(run).total_cmp(&at).is_eq());
            here.max_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps))
        };
        let (without, with) = (best(0.0)?, best(highest).filter(|_| highest > 0.0)?);
        let words = |run: &Run| {
            let plan = &run.plan;
            format!(
                "{} with {} of {} outstanding",
                rate(run.goodput_bps),
                plan.depth,
                bytes(plan.message.into())
            )
        };
        let text = format!(
            "{}: {} without {what}; at {} at best {}.",
            engine.name(),
            words(without),
            number(highest),
            words(with)
        );
        Some(finding(what, text, None))
    };
    engines(of_section())
        .into_iter()
        .filter_map(found)
        .collect()
}

/// The effect of the connection manager: compares runs that differ in nothing else.
fn connection_manager(runs: &[Run]) -> Option<Finding> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in runs.iter().filter(|run| run.plan.connect == Connect::Cm) {
        let twin = runs.iter().find(|other| {
            let plan = PathPlan {
                connect: Connect::Exchange,
                ..run.plan.clone()
            };
            other.section == run.section
                && other.plan == plan
                && level(other).total_cmp(&level(run)).is_eq()
                && other.repetition == run.repetition
        });
        if let Some(twin) = twin {
            with.push(run.goodput_bps);
            without.push(twin.goodput_bps);
        }
    }
    let ratio = Ratio::paired(&without, &with)?;
    let text = format!(
        "Goodput without the connection manager by goodput with it: {}.",
        ratio.words()
    );
    Some(finding("connection manager", text, None))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::path::document::Kind;
    use crate::path::record::Beside;
    use crate::path::record::tests::run;

    /// A profile of a path of a gigabit on which TCP gets a tenth with one stream.
    pub(crate) fn document() -> Document {
        let mut document = Document::new(Kind::Profile, "haul profile host".into());
        document.peer = "host".into();
        let mut add =
            |section: &str, engine: Engine, streams: u16, bps: f64, beside: Option<(&str, f64)>| {
                let mut run = run(engine);
                run.section = section.into();
                run.setting = engine.name().into();
                (run.plan.streams, run.goodput_bps) = (streams, bps);
                run.beside = beside.map(|(what, level)| Beside {
                    what: what.into(),
                    level,
                    goodput_bps: None,
                });
                document.runs.push(run);
            };
        for (streams, share) in [(1, 0.1), (4, 0.4), (16, 0.95)] {
            add("streams", Engine::Tcp, streams, share * 1e9, None);
            add("streams", Engine::Udt, streams, 0.9e9, None);
        }
        for bps in [0.1e9, 0.2e9, 0.3e9] {
            add("stability", Engine::Tcp, 1, bps, None);
        }
        add(
            "cross",
            Engine::Tcp,
            1,
            0.05e9,
            Some(("UDP at 500 Mbit/s", 0.5e9)),
        );
        for (ms, bps) in [(1.0, 0.9e9), (11.0, 0.4e9)] {
            add(DISTANCE, Engine::Tcp, 1, bps, Some(("emulated", ms)));
        }
        for (share, bps) in [(0.0, 0.9e9), (1e-4, 0.3e9)] {
            add(LOSS, Engine::Tcp, 1, bps, Some(("emulated", share)));
        }
        for (section, held) in [(LOSS_SWEEP, 1.0), (REORDER_SWEEP, 0.5)] {
            document.runs.extend(swept(section, held));
        }
        document.findings = of(&document);
        document
    }

    /// A sweep in which depth brings goodput, a level of 0.01 takes most of it, and the connection
    /// manager changes nothing.
    fn swept(section: &str, share: f64) -> Vec<Run> {
        let levels = [(0.0, 1.0), (0.01, 0.4)];
        let settings = [(1, Connect::Cm), (16, Connect::Cm), (16, Connect::Exchange)];
        let cell = |(level, left): (f64, f64), (depth, connect): (u32, Connect)| {
            let mut run = run(Engine::IwarpUdt);
            run.section = section.into();
            (run.plan.depth, run.plan.connect) = (depth, connect);
            run.goodput_bps = 1e7 * f64::from(depth) * left * share;
            run.beside = Some(Beside {
                what: "emulated".into(),
                level,
                goodput_bps: None,
            });
            run
        };
        levels
            .iter()
            .flat_map(|level| settings.map(|setting| cell(*level, setting)))
            .collect()
    }

    #[test]
    fn findings_agree_with_the_figures() {
        let document = document();
        let text = |about: &str| {
            let of = document
                .findings
                .iter()
                .filter(|finding| finding.about == about);
            of.map(|finding| finding.text.clone())
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(text("the limiting stage").contains("950 Mbit/s at best, by tcp with 16 streams"));
        assert!(
            text("parallel streams")
                .contains("tcp: one stream gets 100 Mbit/s, 16 streams 950 Mbit/s")
        );
        assert!(text("parallel streams").contains("udt: one stream gets 900 Mbit/s alone"));
        assert!(text("stability").contains("not steady"));
        assert!(
            text("other traffic").contains("11.1 % of what that left"),
            "{}",
            text("other traffic")
        );
        assert!(text("distance").contains("50 Mbit/s less for each ms"));
        assert!(text("loss").contains("at a loss of 1e-4 less than half"));
        assert!(text("loss").contains(
            "iwarp-udt: 160 Mbit/s with 16 of 64 KiB outstanding without loss; at 0.01 at best 64 Mbit/s with 16"
        ), "{}", text("loss"));
        assert!(text("reordering").contains("80 Mbit/s with 16 of 64 KiB"));
        assert!(
            text("connection manager").contains("1.000 (1.000 to 1.000, 4 runs each)"),
            "{}",
            text("connection manager")
        );
    }

    #[test]
    fn the_limit_of_the_path_is_that_of_the_fewest_streams_that_fill_it() {
        let of = |engine: Engine, streams: u16, bps: f64, stage: Stage| {
            let mut run = run(engine);
            (run.plan.streams, run.goodput_bps) = (streams, bps);
            run.verdict.stage = stage;
            run
        };
        let one = of(Engine::Tcp, 1, 482e6, Stage::Path);
        let many = of(Engine::Tcp, 20, 483e6, Stage::SenderCpu);
        let found = limit(&[one.clone(), many.clone()]).unwrap();
        assert!(
            found.text.starts_with(
                "483 Mbit/s at best, by tcp with 20 streams, and 482 Mbit/s by tcp with one stream. The limit is then the path"
            ),
            "{}",
            found.text
        );
        let other = of(Engine::Udt, 1, 481e6, Stage::Path);
        let found = limit(&[one, many.clone(), other]).unwrap();
        assert!(found.text.ends_with("As much by udt."), "{}", found.text);
        assert!(found.advice.unwrap().contains("a faster path"));
        // A slower one does not show the limit of the others.
        let less = of(Engine::Tcp, 1, 240e6, Stage::Window);
        let found = limit(&[less, many]).unwrap();
        assert!(found.text.contains("sender CPU"), "{}", found.text);
    }

    #[test]
    fn a_slope_is_that_of_the_line() {
        assert_eq!(slope(&[(0.0, 1.0), (2.0, 5.0)]), Some(2.0));
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 5.0)]), None);
        assert_eq!(slope(&[]), None);
    }
}
