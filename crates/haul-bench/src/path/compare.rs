//! Two occasions side by side.

use std::fmt::Write as _;

use haul_report::axis::{Unit, bytes, number, rate};
use haul_report::chart::{Bars, Dimension, Lines, Point, Series};
use haul_report::page::Page;
use haul_report::stats::{Spread, median};

use super::document::{Document, Kind, Ratio, cpu_per_gb};
use super::record::Run;

/// Rows that a line is drawn through, at least.
const LINE_MIN: usize = 6;
/// Rows whose bars a page shows, at most.
const BARS_MAX: usize = 30;

/// Runs of the same kind in both documents.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The measured values.
    pub what: String,
    /// Goodput of the first document, bits per second.
    pub a: Spread,
    /// Of the second one.
    pub b: Spread,
    /// The first by the second.
    pub goodput: Ratio,
    /// The same of processor time for each byte, both ends together.
    pub cpu_per_gb: Option<Ratio>,
}

/// Runs in both documents, in the order of the first, and runs in only one of them.
#[must_use]
pub fn rows(a: &Document, b: &Document) -> (Vec<Row>, Vec<String>) {
    let names = |document: &Document| {
        let mut names: Vec<String> = Vec::new();
        for run in &document.runs {
            let name = name(document, run);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    };
    let (of_a, of_b) = (names(a), names(b));
    let both = of_a.iter().filter(|name| of_b.contains(name));
    let rows = both.filter_map(|name| row(a, b, name)).collect();
    let only = |names: &[String], others: &[String], which: &str| {
        let missing = names.iter().filter(|name| !others.contains(name));
        missing
            .map(|name| format!("only {which}: {name}"))
            .collect::<Vec<_>>()
    };
    let mut alone = only(&of_a, &of_b, "A");
    alone.extend(only(&of_b, &of_a, "B"));
    (rows, alone)
}

fn row(a: &Document, b: &Document, wanted: &str) -> Option<Row> {
    let values = |document: &Document, value: fn(&Run) -> Option<f64>| {
        let runs = document
            .runs
            .iter()
            .filter(|run| name(document, run) == wanted);
        runs.filter_map(value).collect::<Vec<f64>>()
    };
    let goodput: fn(&Run) -> Option<f64> = super::document::goodput;
    let (of_a, of_b) = (values(a, goodput), values(b, goodput));
    Some(Row {
        what: wanted.into(),
        a: Spread::of(&of_a)?,
        b: Spread::of(&of_b)?,
        goodput: Ratio::unpaired(&of_a, &of_b)?,
        cpu_per_gb: Ratio::unpaired(&values(a, cpu_per_gb), &values(b, cpu_per_gb)),
    })
}

/// The identity of a run, independent of its result. Rates of other traffic differ from time to
/// time, so they are not part of it.
fn name(document: &Document, run: &Run) -> String {
    let plan = &run.plan;
    let mut words = Vec::new();
    if !run.section.is_empty() {
        words.push(run.section.clone());
    }
    if document.kind == Kind::Run && document.settings.len() > 1 {
        words.push(run.setting.clone());
    }
    words.push(plan.engine.name().into());
    if plan.reverse {
        words.push("reverse".into());
    }
    words.push(format!("{} × {}", plan.streams, bytes(plan.message.into())));
    if let Some(beside) = &run.beside {
        let what = beside.what.split(" at ").next().unwrap_or_default();
        let share = run
            .plan
            .rate_bps
            .map_or_else(|| beside_level(document, run), |_| String::new());
        words.push(format!("beside {what}{share}"));
    }
    words.join(", ")
}

/// Levels of datagrams by their order, others as they are.
fn beside_level(document: &Document, run: &Run) -> String {
    let Some(beside) = &run.beside else {
        return String::new();
    };
    if !beside.what.starts_with("UDP") {
        return format!(" ({})", number(beside.level));
    }
    let lower = document.runs.iter().filter(|other| {
        other.section == run.section
            && other.plan.engine == run.plan.engine
            && other
                .beside
                .as_ref()
                .is_some_and(|one| one.what.starts_with("UDP") && one.level < beside.level)
    });
    format!(" (step {})", lower.count() + 1)
}

/// The whole comparison in one number: the median of the rows' ratios.
#[must_use]
pub fn overall(rows: &[Row]) -> Option<f64> {
    median(rows.iter().map(|row| row.goodput.ratio).collect())
}

/// As text.
#[must_use]
pub fn text(a: &Document, b: &Document) -> String {
    let (rows, alone) = rows(a, b);
    let mut text = String::new();
    let width = rows
        .iter()
        .map(|row| row.what.chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    let _ = writeln!(text, "A: {}\nB: {}", a.command, b.command);
    let _ = writeln!(
        text,
        "{:width$}  {:>14}  {:>14}  {:>7}  {:<17}  CPU A/B",
        "what", "A", "B", "A/B", "spread"
    );
    for row in &rows {
        let cpu = row
            .cpu_per_gb
            .map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.ratio));
        let spread = format!("{:.2} to {:.2}", row.goodput.low, row.goodput.high);
        let _ = writeln!(
            text,
            "{:width$}  {:>14}  {:>14}  {:>7.3}  {spread:<17}  {cpu}",
            row.what,
            rate(row.a.median),
            rate(row.b.median),
            row.goodput.ratio
        );
    }
    match overall(&rows) {
        Some(ratio) => {
            let _ = writeln!(text, "median of all rows: A/B {ratio:.3}");
        }
        None => text += "the two have nothing in common that could be compared\n",
    }
    for one in alone {
        let _ = writeln!(text, "{one}");
    }
    text
}

/// As one HTML file.
#[must_use]
pub fn html(a: &Document, b: &Document) -> String {
    let (rows, alone) = rows(a, b);
    let mut page = Page::new("haul report: A and B", &a.client.date);
    page.words(
        &["", "command", "made on"],
        &[
            vec!["A".into(), a.command.clone(), a.client.line()],
            vec!["B".into(), b.command.clone(), b.client.line()],
        ],
    );
    if a.client.cpu != b.client.cpu || a.client.kernel != b.client.kernel {
        page.note(
            "The two were made on different machines or kernels: what differs may be theirs.",
        );
    }
    let certain = |faster: bool| {
        rows.iter()
            .filter(|row| row.goodput.differs() == Some(faster))
            .count()
    };
    match overall(&rows) {
        Some(ratio) => page.lead(&format!(
            "Over {} kinds of runs, A has {} times the goodput of B (median). Beyond the spread \
             A is faster in {}, slower in {}; in the others the runs are too few, or overlap.",
            rows.len(),
            number(ratio),
            certain(true),
            certain(false)
        )),
        None => page.lead("The two have nothing in common that could be compared."),
    }
    page.section("Ratios");
    if !rows.is_empty() {
        // A line through a few rows shows no more than the table.
        if rows.len() >= LINE_MIN {
            page.picture(&ratios(&rows));
        }
        page.picture(&bars(&rows));
    }
    let cells = |row: &Row| {
        vec![
            row.what.clone(),
            rate(row.a.median),
            rate(row.b.median),
            number(row.goodput.ratio),
            format!(
                "{} to {}",
                number(row.goodput.low),
                number(row.goodput.high)
            ),
            format!("{} / {}", row.a.count, row.b.count),
            row.cpu_per_gb
                .map_or_else(|| "-".into(), |ratio| number(ratio.ratio)),
        ]
    };
    let table: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let head = [
        "what",
        "A",
        "B",
        "A / B",
        "spread",
        "runs",
        "CPU s/GB, A / B",
    ];
    page.table(&head, &table);
    page.note("The spread is from A's least by B's most to A's most by B's least.");
    for one in alone {
        page.note(&one);
    }
    page.html()
}

fn ratios(rows: &[Row]) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a few rows")]
    let point = |(index, row): (usize, &Row)| Point {
        x: (index + 1) as f64,
        y: row.goodput.ratio,
        low: row.goodput.low,
        high: row.goodput.high,
    };
    let points: Vec<Point> = rows.iter().enumerate().map(point).collect();
    let last = points.len().max(2);
    #[expect(clippy::cast_precision_loss, reason = "a few rows")]
    let ends = [1.0, last as f64].map(|x| Point::single(x, 1.0));
    let lines = Lines {
        title: "Goodput of A by that of B, with its spread".into(),
        x: Dimension::linear("row of the table", Unit::Number),
        y: Dimension::linear("A / B", Unit::Number),
        series: vec![
            Series {
                name: "A / B".into(),
                points,
                ..Series::default()
            },
            Series {
                name: "equal".into(),
                points: ends.to_vec(),
                reference: true,
                dense: false,
            },
        ],
    };
    lines.svg()
}

fn bars(rows: &[Row]) -> String {
    let pair = |row: &Row| {
        [("A", row.a.median), ("B", row.b.median)]
            .map(|(which, bps)| (format!("{} {which}", row.what), vec![bps / 1e6]))
    };
    let bars = Bars {
        title: "Goodput".into(),
        unit: "Mbit/s".into(),
        parts: vec!["median".into()],
        bars: rows.iter().take(BARS_MAX / 2).flat_map(pair).collect(),
    };
    bars.svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::findings::tests::document;

    #[test]
    fn a_document_beside_itself_differs_in_nothing() {
        let document = document();
        let (rows, alone) = rows(&document, &document);
        assert!(alone.is_empty(), "{alone:?}");
        assert!(
            rows.len() >= 8
                && rows
                    .iter()
                    .all(|row| (row.goodput.ratio - 1.0).abs() < 1e-9)
        );
        assert!(text(&document, &document).contains("A/B 1.000"));
        assert!(html(&document, &document).contains("1 times the goodput"));
    }

    #[test]
    fn what_only_one_has_is_said() {
        let a = document();
        let mut b = document();
        b.runs.retain(|run| run.section != "loss");
        for run in &mut b.runs {
            run.goodput_bps /= 2.0;
        }
        let (rows, alone) = rows(&a, &b);
        assert!(
            rows.iter()
                .all(|row| (row.goodput.ratio - 2.0).abs() < 1e-9)
        );
        assert!(alone.iter().all(|one| one.starts_with("only A: loss")) && !alone.is_empty());
        b.runs.clear();
        assert!(text(&a, &b).contains("nothing in common"));
    }
}
