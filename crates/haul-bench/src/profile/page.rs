//! A profile as one HTML file.

use std::cmp::Ordering;

use haul_report::axis::{Scale, Unit, bytes, number, rate};
use haul_report::chart::{Bars, Dimension, Heat, Lines, Point, Series};
use haul_report::page::Page;
use haul_report::stats::Spread;

use super::Section;
use super::findings::{
    DISTANCE, LOSS, LOSS_SWEEP, REORDER_SWEEP, best_goodput, by_level, engines, fair, is_datagrams,
    level, section,
};
use crate::path::document::Document;
use crate::path::plan::Engine;
use crate::path::record::{Run, to_f64};
use crate::path::show::{machines, message, runs_table};
use crate::plan::Connect;

/// Where no loss lies on an axis of powers of ten.
const NO_LOSS: f64 = 1e-7;

/// The page.
pub(crate) fn render(document: &Document) -> String {
    let title = format!("Path profile: {}", document.peer);
    let mut page = Page::new(&title, &document.client.date);
    page.cards(&cards(document));
    findings(&mut page, document);
    if !document.left_out.is_empty() {
        page.note("Not everything was measured: what was left out, and why, is at the end.");
    }
    by_streams(&mut page, document);
    by_message(&mut page, document);
    grid(&mut page, document);
    over_distance(&mut page, document);
    over_loss(&mut page, document);
    sweep(
        &mut page,
        document,
        LOSS_SWEEP,
        ("Loss by message size and depth", "share of packets lost"),
    );
    sweep(
        &mut page,
        document,
        REORDER_SWEEP,
        (
            "Reordering by message size and depth",
            "share of packets held back",
        ),
    );
    stability(&mut page, document);
    cross(&mut page, document);
    stages(&mut page, document);
    processors(&mut page, document);
    page.section("All runs");
    runs_table(&mut page, &document.runs);
    machines(&mut page, document);
    for why in &document.left_out {
        page.note(&format!("Left out: {why}"));
    }
    page.html()
}

fn cards(document: &Document) -> Vec<(String, String)> {
    let runs = &document.runs;
    let mut cards = Vec::new();
    let best = best_goodput(runs);
    if best > 0.0 {
        cards.push((rate(best), "best goodput".to_owned()));
    }
    let one = |engine: Engine| {
        let mut of_engine =
            section(runs, Section::Streams).filter(move |run| run.plan.engine == engine);
        of_engine.find(|run| run.plan.streams == 1)
    };
    for engine in engines(section(runs, Section::Streams)) {
        if let Some(run) = one(engine) {
            cards.push((
                rate(run.goodput_bps),
                format!("{}, one stream", engine.name()),
            ));
        }
    }
    let least = runs
        .iter()
        .filter_map(|run| run.path.rtt_min_ms)
        .fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        cards.push((format!("{} ms", number(least)), "least round trip".into()));
    }
    cards.push((runs.len().to_string(), "runs".into()));
    cards
}

fn findings(page: &mut Page, document: &Document) {
    let Some((first, _)) = document.findings.split_first() else {
        return;
    };
    let advice = first
        .advice
        .as_ref()
        .map_or_else(String::new, |advice| format!(" To change it: {advice}."));
    page.lead(&format!("{}{advice}", first.text));
    page.section("What was found");
    let row = |finding: &crate::path::document::Finding| {
        vec![
            finding.about.clone(),
            finding.text.clone(),
            finding.advice.clone().unwrap_or_default(),
        ]
    };
    let mut rows: Vec<Vec<String>> = document.findings.iter().map(row).collect();
    let mut head = vec!["about", "found", "what to change"];
    if document
        .findings
        .iter()
        .all(|finding| finding.advice.is_none())
    {
        head.pop();
        rows.iter_mut().for_each(|row| row.truncate(head.len()));
    }
    page.words(&head, &rows);
}

/// The runs of an engine as points over something, with the spread of those at the same place.
fn points<'a>(runs: impl Iterator<Item = &'a Run>, at: fn(&Run) -> f64) -> Vec<Point> {
    let mut places: std::collections::BTreeMap<u64, Vec<f64>> = std::collections::BTreeMap::new();
    for run in runs {
        // Places are not negative, and so their bits are in their order.
        places
            .entry(at(run).to_bits())
            .or_default()
            .push(run.goodput_bps);
    }
    let point = |(place, values): (u64, Vec<f64>)| {
        let spread = Spread::of(&values)?;
        Some(of_spread(f64::from_bits(place), &spread))
    };
    places.into_iter().filter_map(point).collect()
}

fn of_spread(x: f64, spread: &Spread) -> Point {
    Point {
        x,
        y: spread.median,
        low: spread.min,
        high: spread.max,
    }
}

fn line(name: impl Into<String>, points: Vec<Point>) -> Series {
    Series {
        name: name.into(),
        points,
        ..Series::default()
    }
}

fn reference(name: &str, points: Vec<Point>) -> Series {
    Series {
        name: name.into(),
        points,
        reference: true,
        dense: false,
    }
}

/// A line for each engine, over the parameter that a section varies.
fn by_engine(
    page: &mut Page,
    document: &Document,
    which: Section,
    (title, chart): (&str, &str),
    axes: (Dimension, Dimension),
    at: fn(&Run) -> f64,
) -> bool {
    let runs = || section(&document.runs, which);
    if runs().next().is_none() {
        return false;
    }
    page.section(title);
    let series = engines(runs()).into_iter().map(|engine| {
        let of_engine = runs().filter(|run| run.plan.engine == engine);
        line(engine.name(), points(of_engine, at))
    });
    let chart = Lines {
        title: chart.into(),
        x: axes.0,
        y: axes.1,
        series: series.collect(),
    };
    page.picture(&chart.svg());
    true
}

fn by_streams(page: &mut Page, document: &Document) {
    let axes = (
        Dimension::linear("streams", Unit::Number),
        Dimension::linear("", Unit::Rate),
    );
    let titles = ("Parallel streams", "Goodput by number of streams");
    by_engine(page, document, Section::Streams, titles, axes, |run| {
        run.plan.streams.into()
    });
}

fn by_message(page: &mut Page, document: &Document) {
    let powers = |name: &str, scale, unit| Dimension {
        name: name.into(),
        scale,
        unit,
    };
    let axes = (
        powers("bytes of a message", Scale::PowersOfTwo, Unit::Bytes),
        powers("", Scale::PowersOfTen, Unit::Rate),
    );
    let titles = ("Message size", "Goodput by message size, one stream");
    let at = |run: &Run| run.plan.message.into();
    if by_engine(page, document, Section::Messages, titles, axes, at) {
        page.note(
            "TCP without its ramp; RDMA from its first message to the answer behind its last, so its ramp and a round trip are in the figure.",
        );
    }
}

/// Places on an axis of a heat map: the place of a run, and its label.
struct Places<P> {
    of: fn(&Run) -> P,
    name: fn(P) -> String,
}

impl<P: PartialOrd + Copy> Places<P> {
    fn all<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> Vec<P> {
        let mut places: Vec<P> = runs.map(self.of).collect();
        places.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        places.dedup();
        places
    }
}

/// Rows and columns of a heat map: the median at each crossing.
fn heat<'a, C: PartialOrd + Copy, R: PartialOrd + Copy>(
    title: &str,
    (x, y): (&str, &str),
    runs: impl Iterator<Item = &'a Run> + Clone,
    column: &Places<C>,
    row: &Places<R>,
) -> Heat {
    let columns = column.all(runs.clone());
    let cell = |at: C, of: R| {
        let here = runs
            .clone()
            .filter(move |run| (column.of)(run) == at && (row.of)(run) == of);
        let values: Vec<f64> = here.map(|run| run.goodput_bps).collect();
        Spread::of(&values).map(|spread| spread.median)
    };
    let rows = row.all(runs.clone()).into_iter().map(|of| {
        let cells = columns.iter().map(|at| cell(*at, of)).collect();
        ((row.name)(of), cells)
    });
    Heat {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        unit: Unit::Rate,
        columns: columns.iter().map(|at| (column.name)(*at)).collect(),
        rows: rows.collect(),
    }
}

const STREAMS: Places<u16> = Places {
    of: |run| run.plan.streams,
    name: |streams| streams.to_string(),
};
const LEVELS: Places<f64> = Places {
    of: level,
    name: |level| Unit::Number.short(level),
};

fn grid(page: &mut Page, document: &Document) {
    let runs = section(&document.runs, Section::Grid);
    let all: Vec<&Run> = runs.collect();
    if all.is_empty() {
        return;
    }
    page.section("Message size and streams");
    let chart = heat(
        "Goodput of TCP by message size and streams",
        ("streams", "message"),
        all.iter().copied(),
        &STREAMS,
        &Places {
            of: |run| run.plan.message,
            name: |message| Unit::Bytes.short(message.into()),
        },
    );
    page.picture(&chart.svg());
}

fn over_distance(page: &mut Page, document: &Document) {
    let all: Vec<&Run> = document
        .runs
        .iter()
        .filter(|run| run.section == DISTANCE)
        .collect();
    if all.is_empty() {
        return;
    }
    page.section("Distance");
    let mut series = Vec::new();
    for engine in engines(all.iter().copied()) {
        let of_engine = all
            .iter()
            .copied()
            .filter(move |run| run.plan.engine == engine);
        let chart = heat(
            &format!(
                "T(d, n) of {}: goodput by round trip and streams",
                engine.name()
            ),
            ("round trip, ms", "streams"),
            of_engine.clone(),
            &LEVELS,
            &STREAMS,
        );
        page.picture(&chart.svg());
        let mut counts: Vec<u16> = of_engine.map(|run| run.plan.streams).collect();
        counts.sort_unstable();
        counts.dedup();
        // The fewest and the most streams suffice.
        for streams in [counts.first(), counts.last().filter(|_| counts.len() > 1)]
            .into_iter()
            .flatten()
        {
            let found = by_level(&document.runs, DISTANCE, engine, *streams);
            let points = found
                .iter()
                .map(|(ms, spread)| of_spread(*ms, spread))
                .collect();
            series.push(line(format!("{} × {streams}", engine.name()), points));
        }
    }
    let chart = Lines {
        title: "Goodput by distance".into(),
        x: Dimension::linear("round trip, ms", Unit::Number),
        y: Dimension::linear("", Unit::Rate),
        series,
    };
    page.picture(&chart.svg());
}

fn over_loss(page: &mut Page, document: &Document) {
    let all = || document.runs.iter().filter(|run| run.section == LOSS);
    if all().next().is_none() {
        return;
    }
    page.section("Loss");
    let mut settings: Vec<&str> = Vec::new();
    for run in all() {
        if !settings.contains(&run.setting.as_str()) {
            settings.push(&run.setting);
        }
    }
    let series = settings.into_iter().map(|setting| {
        let of_setting = all().filter(move |run| run.setting == setting);
        line(setting, points(of_setting, |run| level(run).max(NO_LOSS)))
    });
    let chart = Lines {
        title: "Goodput by loss, one stream".into(),
        x: Dimension {
            name: "share of packets lost (the leftmost is none)".into(),
            scale: Scale::PowersOfTen,
            unit: Unit::Number,
        },
        y: Dimension {
            name: String::new(),
            scale: Scale::PowersOfTen,
            unit: Unit::Rate,
        },
        series: series.collect(),
    };
    page.picture(&chart.svg());
}

/// A heat map for each engine and way of connecting: rows are message sizes and depths, columns how
/// much of it there was.
fn sweep(page: &mut Page, document: &Document, section: &str, (title, across): (&str, &str)) {
    let all: Vec<&Run> = document
        .runs
        .iter()
        .filter(|run| run.section == section)
        .collect();
    if all.is_empty() {
        return;
    }
    page.section(title);
    for engine in engines(all.iter().copied()) {
        for (connect, words) in [
            (Connect::Cm, ""),
            (Connect::Exchange, ", without connection manager"),
        ] {
            let here = all
                .iter()
                .copied()
                .filter(move |run| run.plan.engine == engine && run.plan.connect == connect);
            if here.clone().next().is_none() {
                continue;
            }
            let chart = heat(
                &format!("Goodput of {}{words}", engine.name()),
                (across, "message × depth"),
                here,
                &LEVELS,
                &Places {
                    of: |run| (run.plan.message, run.plan.depth),
                    name: |(message, depth)| format!("{} × {depth}", bytes(message.into())),
                },
            );
            page.picture(&chart.svg());
        }
    }
}

fn stability(page: &mut Page, document: &Document) {
    let runs = || section(&document.runs, Section::Stability);
    if runs().next().is_none() {
        return;
    }
    page.section("Stability");
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for engine in engines(runs()) {
        let of_engine = || runs().filter(move |run| run.plan.engine == engine);
        let point = |run: &Run| Point::single(f64::from(run.repetition + 1), run.goodput_bps);
        series.push(line(engine.name(), of_engine().map(point).collect()));
        let values: Vec<f64> = of_engine().map(|run| run.goodput_bps).collect();
        let Some(spread) = Spread::of(&values) else {
            continue;
        };
        rows.push(vec![
            engine.name().to_owned(),
            spread.count.to_string(),
            rate(spread.mean),
            rate(spread.deviation),
            format!(
                "{} %",
                number(100.0 * spread.deviation / spread.mean.max(1.0))
            ),
            rate(spread.min),
            rate(spread.max),
        ]);
    }
    let chart = Lines {
        title: "The same, again and again, in turns".into(),
        x: Dimension::linear("run", Unit::Number),
        y: Dimension::linear("", Unit::Rate),
        series,
    };
    page.picture(&chart.svg());
    let head = [
        "engine",
        "runs",
        "mean",
        "standard deviation",
        "of the mean",
        "least",
        "most",
    ];
    page.table(&head, &rows);
}

fn cross(page: &mut Page, document: &Document) {
    let runs = || section(&document.runs, Section::Cross);
    if runs().next().is_none() {
        return;
    }
    page.section("Other traffic");
    let capacity = best_goodput(&document.runs);
    let mut series: Vec<Series> = engines(runs())
        .into_iter()
        .map(|engine| {
            let beside = runs().filter(move |run| run.plan.engine == engine && is_datagrams(run));
            line(engine.name(), points(beside, level))
        })
        .filter(|series| !series.points.is_empty())
        .collect();
    if let Some(most) = runs()
        .filter(|run| is_datagrams(run))
        .map(level)
        .reduce(f64::max)
    {
        let ends = [0.0, most].map(|offered| Point::single(offered, (capacity - offered).max(0.0)));
        series.push(reference("what is left", ends.to_vec()));
    }
    let chart = Lines {
        title: "Goodput beside datagrams that give way to nobody".into(),
        x: Dimension::linear("UDP that was sent", Unit::Rate),
        y: Dimension::linear("", Unit::Rate),
        series,
    };
    page.picture(&chart.svg());
    let row = |run: &Run| {
        let beside = run.beside.as_ref()?;
        let fair = fair(run, capacity)?;
        Some(vec![
            format!("{} beside {}", run.plan.engine.name(), beside.what),
            rate(run.goodput_bps),
            beside.goodput_bps.map_or_else(|| "-".into(), rate),
            rate(fair),
            format!("{} %", number(100.0 * run.goodput_bps / fair.max(1.0))),
        ])
    };
    let rows: Vec<Vec<String>> = runs().filter_map(row).collect();
    page.table(
        &[
            "flow",
            "its goodput",
            "the others'",
            "would be fair",
            "of that",
        ],
        &rows,
    );
    page.note(
        "Beside datagrams, what they leave of the best goodput would be fair; beside flows that heed congestion, an equal share of it \
         for each. The others' goodput is over all their time, which begins before and ends after the flow's.",
    );
}

fn stages(page: &mut Page, document: &Document) {
    let runs = || section(&document.runs, Section::Stages);
    if runs().next().is_none() {
        return;
    }
    page.section("Stages");
    let bar = |run: &Run| {
        let name = format!("{:?} to {:?}", run.plan.source, run.plan.sink).to_lowercase();
        (name, vec![run.goodput_bps / 1e6])
    };
    let chart = Bars {
        title: "Goodput of TCP with and without the disks".into(),
        unit: "Mbit/s".into(),
        parts: vec!["goodput".into()],
        bars: runs().map(bar).collect(),
    };
    page.picture(&chart.svg());
}

/// The cost of each engine at its best.
fn processors(page: &mut Page, document: &Document) {
    let alone = || document.runs.iter().filter(|run| run.beside.is_none());
    let mut bars = Vec::new();
    let mut rows = Vec::new();
    for engine in engines(alone()) {
        let of_engine = alone().filter(|run| run.plan.engine == engine);
        let Some(best) = of_engine.max_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps)) else {
            continue;
        };
        for (name, end) in [("sender", &best.sender), ("receiver", &best.receiver)] {
            bars.push((
                format!("{} {name}", engine.name()),
                vec![end.user_percent, end.system_percent],
            ));
        }
        let maybe = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
        rows.push(vec![
            engine.name().to_owned(),
            rate(best.goodput_bps),
            maybe(best.sender.cpu_s_per_gb),
            maybe(best.receiver.cpu_s_per_gb),
            maybe(best.sender.machine_percent),
            maybe(best.sender.softirq_percent),
            number(to_f64(best.plan.streams.into())),
            message(best),
        ]);
    }
    if bars.is_empty() {
        return;
    }
    page.section("Processor time");
    let chart = Bars {
        title: "Processor time of each engine's fastest run".into(),
        unit: "percent of one core".into(),
        parts: vec!["user".into(), "kernel".into()],
        bars,
    };
    page.picture(&chart.svg());
    let head = [
        "engine",
        "goodput",
        "sender s/GB",
        "receiver s/GB",
        "sender's machine %",
        "soft irq %",
        "streams",
        "message",
    ];
    page.table(&head, &rows);
}

#[cfg(test)]
mod tests {
    use super::super::findings::tests::document;
    use super::*;

    #[test]
    fn every_section_that_was_measured_has_its_picture() {
        let html = render(&document());
        for title in [
            "Parallel streams",
            "T(d, n) of tcp",
            "Goodput by loss",
            "Goodput of iwarp-udt, without connection manager",
            "64 KiB × 16",
            "Stability",
            "give way to nobody",
        ] {
            assert!(html.contains(title), "{title}");
        }
        assert!(!html.contains("Message size and streams"));
        assert!(!html.contains("NaN") && !html.contains("inf%"));
    }

    #[test]
    fn a_profile_of_nothing_is_a_page_too() {
        let mut document = document();
        document.runs.clear();
        document.findings.clear();
        assert!(render(&document).contains("</html>"));
    }
}
