//! The medians: as text, as JSON, and as a page with pictures.

use std::fmt::Write as _;

use haul_report::chart::Bars;
use haul_report::page::Page;
use haul_report::stats::median;
use serde::Serialize;

use super::bars;
use super::record::{About, Cell, Journal, Outcome, Run};
use super::tool::{ALL, Mover, ours};
use super::tree::Difference;

/// `results.json`.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'a> {
    about: &'a About,
    /// Share of the processors that others kept busy before a run, the median.
    load_before: Option<f64>,
    cells: Vec<CellSummary>,
}

#[derive(Debug, Serialize)]
struct CellSummary {
    #[serde(flatten)]
    cell: Cell,
    files: u64,
    bytes: u64,
    data_bytes: u64,
    movers: Vec<Row>,
    bars: Vec<BarSummary>,
}

#[derive(Debug, Serialize)]
struct BarSummary {
    bar: String,
    is_met: Option<bool>,
}

/// A mover in a cell.
#[derive(Debug, Default, Serialize)]
struct Row {
    mover: &'static str,
    /// Of the runs that ended well.
    median_s: Option<f64>,
    goodput_bps: Option<f64>,
    /// How many times the time of ours; at least, where it was ended.
    times_ours: Option<f64>,
    runs_s: Vec<f64>,
    /// It was ended after this time, with so many bytes on the path.
    cut: Option<(f64, u64)>,
    /// Metadata that the last run's copy lacks, though its data is complete.
    lost: Vec<String>,
    not_run: Option<String>,
    failed: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Summary<'a> {
    pub(super) fn new(journal: &'a Journal) -> Self {
        let cells = journal.cells().into_iter();
        Self {
            about: &journal.about,
            load_before: median(journal.runs.iter().map(|run| run.load_before).collect()),
            cells: cells
                .filter_map(|cell| CellSummary::new(journal, cell))
                .collect(),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let about = self.about;
        let mut text = format!(
            "{}\nscale {}, {} Mbit/s; seconds from the command's start to its exit and the copy on the disk, medians; \
             page caches {} before each run\n",
            about.machine.line(),
            about.scale,
            about.rate_bps / 1_000_000,
            if about.cold { "dropped" } else { "not dropped" },
        );
        if let Some(load) = self.load_before {
            let percent = load * 100.0;
            let _ = writeln!(
                text,
                "others kept {percent:.0} % of the processors busy before the runs (median)"
            );
        }
        for made in &about.sets {
            let _ = writeln!(
                text,
                "{}: {} files, {:.1} MB, {:.1} MB of it data; {}",
                made.set.name(),
                made.files,
                megabytes(made.bytes),
                megabytes(made.data_bytes),
                made.material
            );
        }
        for cell in &self.cells {
            text += &cell.text();
        }
        text
    }

    /// A page with a picture for each cell.
    pub(super) fn page(&self) -> String {
        let mut page = Page::new("Movers side by side", &self.about.machine.line());
        page.note("Seconds from the command's start to its exit and the copy on the disk, medians. A bar of a mover that was ended is as long as it was let run.");
        for cell in &self.cells {
            page.section(&cell.title());
            let time = |row: &Row| row.median_s.or_else(|| row.cut.map(|(after, _)| after));
            let bars = cell.movers.iter().filter_map(|row| {
                let name = match row.cut {
                    Some(_) => format!("{} (ended)", row.mover),
                    None => row.mover.to_owned(),
                };
                Some((name, vec![time(row)?]))
            });
            let bars = Bars {
                title: cell.title(),
                unit: "s".into(),
                parts: vec!["time".into()],
                bars: bars.collect(),
            };
            page.picture(&bars.svg());
            for bar in &cell.bars {
                page.text(&format!("{}: {}", bar.bar, met(bar.is_met)));
            }
            let rows: Vec<Vec<String>> = cell.movers.iter().map(Row::columns).collect();
            page.table(&HEAD, &rows);
        }
        page.html()
    }
}

const HEAD: [&str; 6] = ["mover", "seconds", "Mbit/s", "x ours", "runs", "lost"];

impl CellSummary {
    fn new(journal: &Journal, cell: Cell) -> Option<Self> {
        let made = journal.about.made(cell.set)?;
        let rows = ALL
            .iter()
            .filter_map(|mover| Row::new(journal, cell, mover, made.data_bytes));
        let bars = bars::judge(journal, cell)
            .into_iter()
            .map(|judged| BarSummary {
                bar: judged.text,
                is_met: judged.is_met,
            });
        Some(Self {
            cell,
            files: made.files,
            bytes: made.bytes,
            data_bytes: made.data_bytes,
            movers: rows.collect(),
            bars: bars.collect(),
        })
    }

    fn title(&self) -> String {
        let Cell { set, rtt_ms, loss } = self.cell;
        format!("{}, RTT {rtt_ms} ms, loss {loss:e}", set.name())
    }

    fn text(&self) -> String {
        let mut text = format!("\n{}\n", self.title());
        let line = |columns: &[String]| {
            let [mover, seconds, rate, times, runs, lost] = columns else {
                return String::new();
            };
            let line = format!("  {mover:16}{seconds:>10}{rate:>9}{times:>8}  {runs:22}{lost}");
            format!("{}\n", line.trim_end())
        };
        text += &line(&HEAD.map(String::from));
        for row in &self.movers {
            text += &line(&row.columns());
        }
        for row in &self.movers {
            for failure in &row.failed {
                let _ = writeln!(text, "    {} failed: {failure}", row.mover);
            }
            for warning in &row.warnings {
                let _ = writeln!(text, "    {}: warning: {warning}", row.mover);
            }
        }
        for bar in &self.bars {
            let _ = writeln!(text, "  bar: {}: {}", bar.bar, met(bar.is_met));
        }
        text
    }
}

fn met(is_met: Option<bool>) -> &'static str {
    match is_met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "not known",
    }
}

impl Row {
    fn new(journal: &Journal, cell: Cell, mover: &Mover, bytes: u64) -> Option<Self> {
        let median_s = journal.seconds(cell, mover.name);
        let runs: Vec<&Run> = journal.of(cell, mover.name).collect();
        let last = runs.last()?;
        let cut = runs.iter().find_map(|run| match run.outcome {
            Outcome::CutAfterS(after) => Some((after, run.wire_bytes)),
            _ => None,
        });
        let time = median_s.or_else(|| cut.map(|(after, _)| after));
        let mut row = Self {
            mover: mover.name,
            median_s,
            goodput_bps: median_s.map(|seconds| megabytes(bytes) * 8e6 / seconds),
            times_ours: time
                .zip(journal.seconds(cell, ours(cell.set)))
                .map(|(time, ours)| time / ours),
            cut,
            lost: lost(last),
            ..Self::default()
        };
        for run in runs {
            match &run.outcome {
                Outcome::Seconds(seconds) => row.runs_s.push(*seconds),
                Outcome::CutAfterS(_) => {}
                Outcome::Failed(why) => row.failed.push(why.clone()),
                Outcome::NotRun(why) => row.not_run = Some(why.clone()),
            }
            for warning in &run.warnings {
                if !row.warnings.contains(warning) {
                    row.warnings.push(warning.clone());
                }
            }
        }
        Some(row)
    }

    fn columns(&self) -> Vec<String> {
        let shown = |value: Option<f64>, digits| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        let mut columns = vec![
            self.mover.to_owned(),
            shown(self.median_s, 2),
            shown(self.goodput_bps.map(|rate| rate / 1e6), 0),
            shown(self.times_ours, 2),
        ];
        if let Some((after, bytes)) = self.cut.filter(|_| self.median_s.is_none()) {
            columns[1] = format!("> {after:.1}");
            if let Some(times) = self.times_ours {
                columns[3] = format!("> {:.0}", times.floor());
            }
            columns.push(format!("ended; {:.1} MB moved", megabytes(bytes)));
        } else if let Some(why) = &self.not_run {
            columns.push(why.clone());
        } else if self.runs_s.is_empty() {
            columns.push("failed".to_owned());
        } else {
            let runs: Vec<String> = self.runs_s.iter().map(|run| format!("{run:.2}")).collect();
            columns.push(runs.join(" "));
        }
        columns.push(self.lost.join(", "));
        columns
    }
}

/// Metadata that a copy with complete data lacks.
fn lost(run: &Run) -> Vec<String> {
    let metadata = run
        .differences
        .iter()
        .filter(|(kind, _)| !Difference::is_loss(**kind));
    metadata
        .map(|(difference, count)| format!("{count} {}", difference.name()))
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{journal, run};
    use super::super::tool::OURS;
    use super::*;

    #[test]
    fn the_table_shows_medians_cuts_failures_and_losses() {
        let seconds = [2.0, 4.0, 3.0].map(Outcome::Seconds);
        let mut runs: Vec<Run> = (0..)
            .zip(seconds)
            .map(|(round, seconds)| run(OURS, round, seconds))
            .collect();
        runs.push(run("tar-nc", 0, Outcome::Seconds(6.0)));
        runs.push(run("rsync-ssh", 0, Outcome::CutAfterS(30.0)));
        runs.push(run("scp-8", 0, Outcome::Failed("no route".into())));
        runs.push(run("qcp", 0, Outcome::NotRun("not installed: qcp".into())));
        let journal = journal(runs);
        let summary = Summary::new(&journal);
        let text = summary.text();
        let line = |name: &str| {
            let found = text
                .lines()
                .find(|line| line.trim_start().starts_with(name));
            found
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            line("haul-send "),
            "haul-send 3.00 11 1.00 2.00 4.00 3.00 2 mode"
        );
        assert_eq!(line("tar-nc"), "tar-nc 6.00 5 2.00 6.00 2 mode");
        assert_eq!(
            line("rsync-ssh"),
            "rsync-ssh > 30.0 - > 10 ended; 0.0 MB moved 2 mode"
        );
        assert_eq!(line("qcp"), "qcp - - - not installed: qcp 2 mode");
        assert_eq!(line("scp-8 failed"), "scp-8 failed: no route");
        assert_eq!(line("bar"), "bar: at least 3 x every peer: missed");
        let page = summary.page();
        assert!(page.contains("<svg") && page.contains("rsync-ssh (ended)"));
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["cells"][0]["movers"][0]["median_s"], 3.0);
        assert_eq!(json["cells"][0]["set"], "tiny");
    }
}
