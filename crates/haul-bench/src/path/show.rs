//! Documents for people: text, one HTML file, CSV.

use haul_report::axis::{Unit, bytes, number, rate};
use haul_report::chart::{Bars, Dimension, Lines, Point, Series};
use haul_report::page::{Page, csv_line};
use haul_report::stats::Spread;
use serde::Serialize;

use super::document::{Document, Setting};
use super::plan::{Medium, PathLimit, PathPlan, SendBy};
use super::record::{End, Run, to_f64};
use crate::plan::Connect;

/// Runs whose time series a page shows, at most.
const SERIES_MAX: usize = 10;

/// One line about a run.
#[must_use]
pub fn line(run: &Run) -> String {
    let mut text = format!("{:>11} in {:.2} s", rate(run.goodput_bps), run.seconds);
    if let Some(lost) = &run.datagrams {
        text += &format!(", {} % lost", number(lost.lost_percent));
    }
    if let Some(percent) = run.retransmitted_percent() {
        text += &format!(", {} % retransmitted", number(percent));
    }
    if let Some(rtt) = run.path.rtt_ms {
        text += &format!(", rtt {} ms", number(rtt));
    }
    if let Some(fairness) = run.fairness {
        text += &format!(", Jain {fairness:.3}");
    }
    text + &format!(
        "; {}; {}",
        end("sending", &run.sender),
        end("receiving", &run.receiver)
    )
}

fn end(doing: &str, end: &End) -> String {
    let per_gb = end
        .cpu_s_per_gb
        .map_or_else(|| "-".into(), |seconds| format!("{seconds:.2}"));
    format!(
        "{doing} {:.0}+{:.0} % of a core, {per_gb} s/GB",
        end.user_percent, end.system_percent
    )
}

/// The limit of a run, in a sentence.
#[must_use]
pub fn verdict(run: &Run) -> String {
    format!(
        "limited by {}: {}",
        run.verdict.stage.name(),
        run.verdict.why
    )
}

/// A plan in words.
#[must_use]
pub fn plan(plan: &PathPlan) -> String {
    let mut words = vec![plan.engine.name().to_owned()];
    match plan.send_by {
        SendBy::Write => {}
        SendBy::Sendfile => words.push("sendfile".into()),
        SendBy::Splice => words.push("splice".into()),
        SendBy::Zerocopy => words.push("zero copy".into()),
    }
    let medium = |medium| match medium {
        Medium::Memory => "memory",
        Medium::Ramdisk => "ramdisk",
        Medium::File => "file",
    };
    words.push(format!("{} to {}", medium(plan.source), medium(plan.sink)));
    if plan.engine.has_messages() {
        words.push(format!("messages of {}", bytes(plan.message.into())));
    }
    words.push(match plan.streams {
        1 => "one stream".into(),
        streams => format!("{streams} streams"),
    });
    if plan.engine.verbs().is_some() {
        words.push(format!("depth {}", plan.depth));
    }
    if plan.connect == Connect::Exchange {
        words.push("without connection manager".into());
    }
    if plan.reverse {
        words.push("reverse".into());
    }
    if let Some(bps) = plan.rate_bps {
        words.push(format!("at {}", rate(to_f64(bps))));
    }
    if let Some(name) = &plan.congestion {
        words.push(name.clone());
    }
    words.push(match plan.limit {
        PathLimit::TimeMs(ms) => format!("{} s", number(to_f64(ms) / 1e3)),
        PathLimit::Bytes(count) => bytes(to_f64(count)),
    });
    if plan.omit_ms > 0 {
        words.push(format!(
            "without the first {} s",
            number(to_f64(plan.omit_ms) / 1e3)
        ));
    }
    words.join(", ")
}

/// The runs as a table, one a line, for spreadsheets and plots.
#[must_use]
pub fn csv(document: &Document) -> String {
    let head = [
        "section",
        "setting",
        "repetition",
        "beside",
        "level",
        "beside_goodput_bps",
        "engine",
        "send",
        "source",
        "sink",
        "reverse",
        "message_bytes",
        "depth",
        "connect",
        "streams",
        "rate_bps",
        "congestion",
        "seconds",
        "bytes",
        "goodput_bps",
        "rtt_ms",
        "rtt_min_ms",
        "retransmitted_bytes",
        "datagrams_sent",
        "datagrams_lost",
        "jitter_ms",
        "fairness",
        "sender_user_percent",
        "sender_system_percent",
        "sender_s_per_gb",
        "receiver_user_percent",
        "receiver_system_percent",
        "receiver_s_per_gb",
        "stage",
        "warnings",
    ];
    let mut text = csv_line(&head.map(String::from));
    for run in &document.runs {
        text += &csv_line(&cells(run));
    }
    text
}

fn cells(run: &Run) -> Vec<String> {
    let maybe = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let plan = &run.plan;
    vec![
        run.section.clone(),
        run.setting.clone(),
        run.repetition.to_string(),
        run.beside
            .as_ref()
            .map_or_else(String::new, |beside| beside.what.clone()),
        maybe(run.beside.as_ref().map(|beside| beside.level)),
        maybe(run.beside.as_ref().and_then(|beside| beside.goodput_bps)),
        plan.engine.name().into(),
        word(&plan.send_by),
        word(&plan.source),
        word(&plan.sink),
        plan.reverse.to_string(),
        plan.message.to_string(),
        plan.depth.to_string(),
        word(&plan.connect),
        plan.streams.to_string(),
        maybe(plan.rate_bps.map(to_f64)),
        plan.congestion.clone().unwrap_or_default(),
        run.seconds.to_string(),
        run.bytes.to_string(),
        run.goodput_bps.to_string(),
        maybe(run.path.rtt_ms),
        maybe(run.path.rtt_min_ms),
        maybe(run.path.retransmitted_bytes.map(to_f64)),
        maybe(run.datagrams.map(|lost| to_f64(lost.sent))),
        maybe(run.datagrams.map(|lost| to_f64(lost.lost))),
        maybe(run.datagrams.map(|lost| lost.jitter_ms)),
        maybe(run.fairness),
        run.sender.user_percent.to_string(),
        run.sender.system_percent.to_string(),
        maybe(run.sender.cpu_s_per_gb),
        run.receiver.user_percent.to_string(),
        run.receiver.system_percent.to_string(),
        maybe(run.receiver.cpu_s_per_gb),
        word(&run.verdict.stage),
        run.warnings.join("; "),
    ]
}

/// The name that a value without content has in JSON.
fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Renders runs as one HTML file.
pub(crate) fn page(document: &Document) -> String {
    let title = format!("haul bench run {}", document.peer);
    let mut page = Page::new(&title, &document.client.date);
    summary(&mut page, document);
    page.section("Over time");
    over_time(&mut page, document);
    processors(&mut page, document);
    streams(&mut page, document);
    page.section("Runs");
    runs_table(&mut page, &document.runs);
    machines(&mut page, document);
    page.html()
}

/// The findings.
fn summary(page: &mut Page, document: &Document) {
    if let Some(comparison) = &document.comparison {
        let (a, b) = (&comparison.a, &comparison.b);
        let word = match comparison.goodput.differs() {
            Some(true) => format!("{a} is faster than {b}"),
            Some(false) => format!("{a} is slower than {b}"),
            None => format!("{a} and {b} do not differ beyond their spread"),
        };
        let cpu = comparison.cpu_per_gb.as_ref();
        let cpu = cpu.map_or_else(String::new, |ratio| {
            format!(" CPU for each byte, {a} / {b}: {}.", ratio.words())
        });
        let goodput = comparison.goodput.words();
        page.lead(&format!("{word}. Goodput, {a} / {b}: {goodput}.{cpu}"));
    }
    for setting in &document.settings {
        let runs: Vec<&Run> = runs_of(document, setting).collect();
        let Some(last) = runs.last() else { continue };
        if document.settings.len() > 1 {
            page.text(&format!("{}: {}", setting.label, plan(&last.plan)));
        } else {
            page.text(&plan(&last.plan));
        }
        page.cards(&cards(&runs));
        page.lead(&format!(
            "{}. {}.",
            capital(&verdict(last)),
            capital(&last.verdict.advice)
        ));
        for warning in &last.warnings {
            page.note(&format!("warning: {warning}"));
        }
    }
}

fn cards(runs: &[&Run]) -> Vec<(String, String)> {
    let spread = |value: fn(&Run) -> Option<f64>| {
        let values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
        Spread::of(&values)
    };
    let mut cards = Vec::new();
    if let Some(goodput) = spread(super::document::goodput) {
        let what = if goodput.count > 1 {
            format!(
                "goodput, median of {} (± {})",
                goodput.count,
                rate(goodput.deviation)
            )
        } else {
            "goodput".into()
        };
        cards.push((rate(goodput.median), what));
    }
    let mut more = |value: fn(&Run) -> Option<f64>, unit: &str, what: &str| {
        if let Some(found) = spread(value) {
            cards.push((number(found.median) + unit, what.into()));
        }
    };
    more(|run| run.sender.cpu_s_per_gb, " s/GB", "CPU, sender");
    more(|run| run.receiver.cpu_s_per_gb, " s/GB", "CPU, receiver");
    more(Run::retransmitted_percent, " %", "retransmitted");
    more(
        |run| run.datagrams.map(|lost| lost.lost_percent),
        " %",
        "lost",
    );
    more(|run| run.path.rtt_ms, " ms", "round trip");
    cards
}

fn runs_of<'a>(document: &'a Document, setting: &'a Setting) -> impl Iterator<Item = &'a Run> {
    document
        .runs
        .iter()
        .filter(|run| run.setting == setting.label)
}

fn name(document: &Document, run: &Run) -> String {
    let several = document.runs.iter().any(|one| one.repetition > 0);
    match (document.settings.len() > 1, several) {
        (false, false) => String::new(),
        (false, true) => format!("run {}", run.repetition + 1),
        (true, false) => run.setting.clone(),
        (true, true) => format!("{} {}", run.setting, run.repetition + 1),
    }
}

fn over_time(page: &mut Page, document: &Document) {
    let shown = document.runs.iter().take(SERIES_MAX);
    let series = |of: &dyn Fn(&Run) -> Vec<Point>| -> Vec<Series> {
        let all = shown.clone().map(|run| Series {
            name: name(document, run),
            points: of(run),
            reference: false,
            dense: true,
        });
        all.filter(|series| series.points.len() > 1).collect()
    };
    let verbs = |run: &Run| run.plan.engine.verbs().is_some();
    let since = if document.runs.iter().any(verbs) {
        "seconds since the first arrival; of RDMA, since the first post"
    } else {
        "seconds since the first arrival"
    };
    let goodput = Lines {
        title: "Goodput".into(),
        x: Dimension::linear(since, Unit::Number),
        y: Dimension::linear("", Unit::Rate),
        series: series(&|run| {
            let point = |one: &super::record::Interval| Point::single(one.end_s, one.goodput_bps());
            // An interval that has hardly begun is left out.
            let whole = to_f64(run.plan.interval_ms) / 1e3;
            let long = |one: &&super::record::Interval| one.end_s - one.start_s > whole / 2.0;
            run.intervals.iter().filter(long).map(point).collect()
        }),
    };
    if goodput.series.is_empty() {
        page.note(
            "What unreliable datagrams bring is counted at its end only: there is no series.",
        );
        return;
    }
    page.picture(&goodput.svg());
    let lines = |title: &str,
                 unit: Unit,
                 words: &str,
                 value: fn(&super::record::PathSample) -> f64| Lines {
        title: title.into(),
        x: Dimension::linear("seconds since the start", Unit::Number),
        y: Dimension::linear(words, unit),
        series: series(&|run| {
            let samples = run.path.samples.iter();
            samples
                .map(|sample| Point::single(sample.at_s, value(sample)))
                .collect()
        }),
    };
    let round_trip = lines(
        "Round-trip time as the sender sees it",
        Unit::Number,
        "ms",
        |sample| sample.rtt_ms,
    );
    if !round_trip.series.is_empty() {
        page.picture(&round_trip.svg());
        let window = lines(
            "Window (TCP), or in flight (UDT)",
            Unit::Bytes,
            "",
            |sample| to_f64(sample.window_bytes),
        );
        page.picture(&window.svg());
    }
    if document.runs.len() > SERIES_MAX {
        page.note(&format!(
            "The first {SERIES_MAX} runs are shown; the JSON has all."
        ));
    }
}

fn processors(page: &mut Page, document: &Document) {
    page.section("Processor time");
    let mut bars = Vec::new();
    for setting in &document.settings {
        let runs: Vec<&Run> = runs_of(document, setting).collect();
        let mut push = |end: &str, of: fn(&Run) -> &End| {
            let middle = |value: fn(&End) -> f64| {
                let values: Vec<f64> = runs.iter().map(|run| value(of(run))).collect();
                Spread::of(&values).map_or(0.0, |spread| spread.median)
            };
            let name = if document.settings.len() > 1 {
                format!("{} {end}", setting.label)
            } else {
                end.to_owned()
            };
            bars.push((
                name,
                vec![
                    middle(|end| end.user_percent),
                    middle(|end| end.system_percent),
                ],
            ));
        };
        push("sender", |run| &run.sender);
        push("receiver", |run| &run.receiver);
    }
    let chart = Bars {
        title: "Processor time of each end".into(),
        unit: "percent of one core".into(),
        parts: vec!["user".into(), "kernel".into()],
        bars,
    };
    page.picture(&chart.svg());
    let Some(last) = document.runs.last() else {
        return;
    };
    let maybe = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    let count =
        |value: Option<u64>| value.map_or_else(|| "-".into(), |value| number(to_f64(value)));
    let row = |name: &str, end: &End| {
        let counters = end.counters.unwrap_or_default();
        let per_cycle = match (counters.instructions, counters.cycles) {
            (Some(instructions), Some(cycles)) if cycles > 0 => {
                number(to_f64(instructions) / to_f64(cycles))
            }
            _ => "-".into(),
        };
        vec![
            name.to_owned(),
            number(end.percent()),
            maybe(end.thread_percent),
            maybe(end.softirq_percent),
            maybe(end.machine_percent),
            maybe(end.voluntary_per_s),
            maybe(end.involuntary_per_s),
            count(counters.cycles),
            per_cycle,
            count(counters.cache_misses),
        ]
    };
    let head = [
        "last run",
        "process %",
        "busiest thread %",
        "soft irq %",
        "whole machine %",
        "switches to wait /s",
        "preempted /s",
        "cycles",
        "instructions per cycle",
        "cache misses",
    ];
    page.table(
        &head,
        &[row("sender", &last.sender), row("receiver", &last.receiver)],
    );
    page.note(
        "Percentages are of one core, but for the whole machine, which is of all of its cores; interrupts are counted for \
         the whole machine, and both ends' together where they are on one.",
    );
    for (end, name) in [(&last.sender, "sender"), (&last.receiver, "receiver")] {
        if let Some(why) = &end.no_counters {
            page.note(&format!(
                "Processor counters of the {name}: not available ({why})."
            ));
        } else if end.counters.is_some_and(|counters| counters.user_only) {
            page.note(&format!(
                "Processor counters of the {name} leave the kernel's work out."
            ));
        }
    }
}

fn streams(page: &mut Page, document: &Document) {
    let Some(run) = document
        .runs
        .iter()
        .rev()
        .find(|run| run.stream_bytes.len() > 1)
    else {
        return;
    };
    page.section("Streams");
    let all: f64 = run.stream_bytes.iter().map(|bytes| to_f64(*bytes)).sum();
    let bar = |(index, bytes): (usize, &u64)| {
        let share = 100.0 * to_f64(*bytes) / all.max(1.0);
        (format!("stream {}", index + 1), vec![share])
    };
    let chart = Bars {
        title: "What each stream carried, of the last run with several".into(),
        unit: "percent of all".into(),
        parts: vec!["share".into()],
        bars: run.stream_bytes.iter().enumerate().map(bar).collect(),
    };
    page.picture(&chart.svg());
    if let Some(fairness) = run.fairness {
        page.text(&format!(
            "Jain's index of fairness: {fairness:.4} (1 where all are equal)."
        ));
    }
}

/// The message size of a run, where its engine has messages.
pub(crate) fn message(run: &Run) -> String {
    if run.plan.engine.has_messages() {
        bytes(run.plan.message.into())
    } else {
        "-".into()
    }
}

/// A row for each run.
pub(crate) fn runs_table(page: &mut Page, runs: &[Run]) {
    let maybe = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    let row = |run: &Run| {
        let beside = run
            .beside
            .as_ref()
            .map_or_else(String::new, |beside| format!(", {}", beside.what));
        let section = if run.section.is_empty() {
            String::new()
        } else {
            format!("{} ", run.section)
        };
        vec![
            format!("{section}{} {}{beside}", run.setting, run.repetition + 1),
            rate(run.goodput_bps),
            number(run.seconds),
            run.plan.streams.to_string(),
            message(run),
            maybe(run.path.rtt_ms),
            maybe(run.retransmitted_percent()),
            maybe(run.datagrams.map(|lost| lost.lost_percent)),
            maybe(run.sender.cpu_s_per_gb),
            maybe(run.receiver.cpu_s_per_gb),
            run.verdict.stage.name().into(),
        ]
    };
    let head = [
        "run",
        "goodput",
        "s",
        "streams",
        "message",
        "rtt ms",
        "retransmitted %",
        "lost %",
        "sender s/GB",
        "receiver s/GB",
        "limit",
    ];
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    if rows.len() > 12 {
        page.folded(&format!("{} runs", rows.len()), &head, &rows);
    } else {
        page.table(&head, &rows);
    }
}

/// The machine and the method of the measurement.
pub(crate) fn machines(page: &mut Page, document: &Document) {
    page.section("How it was measured");
    page.command(&document.command);
    let mut rows = vec![vec!["client".to_owned(), document.client.line()]];
    if let Some(server) = &document.server {
        rows.push(vec!["server".into(), server.line()]);
    }
    page.words(&["end", "machine"], &rows);
    page.note(
        "Goodput is payload that arrived, from the first arrival, or the end of what was left out, to the last, or to the end of \
         the time that was asked for. The JSON and the CSV beside this page have every figure.",
    );
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::document::Kind;
    use crate::path::plan::Engine;
    use crate::path::record::tests::run;

    fn document() -> Document {
        let mut document =
            Document::new(Kind::Run, "haul bench run host --vs '--streams 4'".into());
        document.peer = "<host>".into();
        document.settings = ["A", "B"]
            .map(|label| Setting {
                label: label.into(),
                options: String::new(),
            })
            .to_vec();
        for (setting, repetition) in [("A", 0), ("B", 0), ("A", 1), ("B", 1)] {
            let mut run = run(Engine::Tcp);
            (run.setting, run.repetition) = (setting.into(), repetition);
            document.runs.push(run);
        }
        document.compare();
        document
    }

    #[test]
    fn a_page_has_everything_in_it_and_nothing_from_elsewhere() {
        let html = page(&document());
        assert!(html.contains("&lt;host&gt;") && !html.contains("<host>"));
        assert!(
            html.contains("A and B do not differ") || html.contains("1.000"),
            "{html}"
        );
        assert!(!html.contains("<script") && !html.contains("NaN"));
        assert!(html.contains("limited by path") || html.contains("Limited by path"));
    }

    #[test]
    fn a_csv_has_a_line_for_each_run_and_as_many_cells_as_its_head() {
        let csv = csv(&document());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 5);
        let cells = |line: &str| line.split(',').count();
        assert!(
            lines.iter().all(|line| cells(line) == cells(lines[0])),
            "{csv}"
        );
        assert!(lines[1].contains("tcp,write,memory,memory"), "{csv}");
    }
}
