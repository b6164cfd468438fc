//! The record of a reproduction, `results.json`: every measurement, the medians, and the paper's
//! claims beside the results.

use std::fmt::Write as _;
use std::time::Duration;

use haul_report::machine::Machine;
use haul_report::stats::median;
use serde::Serialize;

/// The schema version: changes if readers of `results.json` must change.
const SCHEMA: &str = "haul.reproduce/2";

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: &'static str,
    pub(super) paper: &'static str,
    pub(super) machine: Machine,
    pub(super) quick: bool,
    pub(super) repeat: u16,
    pub(super) time_ms: u64,
    /// The signal that ended it early.
    pub(super) interrupted: Option<i32>,
    pub(super) figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figure {
    pub(super) number: u32,
    /// It is a table of the paper.
    pub(super) table: bool,
    pub(super) title: &'static str,
    /// The quantity measured, and its ends.
    pub(super) about: &'static str,
    /// Why it was not measured.
    pub(super) not_run: Option<String>,
    /// The error that ended the measurement.
    pub(super) failed: Option<String>,
    pub(super) charts: Vec<Chart>,
    pub(super) claims: Vec<Claim>,
    /// The command lines, each once.
    pub(super) commands: Vec<String>,
    /// Warnings about the figures.
    pub(super) warnings: Vec<String>,
    /// Functions that check one claim each against the charts.
    #[serde(skip)]
    pub(super) judges: Vec<fn(&Self) -> Claim>,
}

/// The paper's claims, and the results.
#[derive(Debug, Serialize)]
pub(super) struct Claim {
    /// The claim, of the paper or of the project.
    pub(super) claim: String,
    /// The figure here; nothing where it could not be computed.
    pub(super) here: Option<String>,
    /// Whether the claim holds here.
    pub(super) holds: Option<bool>,
}

/// The kind of places on a chart's axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Along {
    /// Bytes of a message.
    #[default]
    Bytes,
    /// Clients of a server.
    Clients,
    /// Milliseconds: of a round trip, or since the beginning.
    Milliseconds,
    /// Packets lost of a million.
    PerMillion,
    /// Connections at a time.
    Connections,
    /// Bytes that a policer lets pass at once.
    Burst,
    /// Miles of a connection of the paper; 0 is its shortest, of 0.2.
    Miles,
    /// Other traffic, percent of the path's rate.
    Cross,
    /// The same again, from 1.
    Repetition,
    /// There is no axis: a bar for each series.
    Nothing,
}

impl Along {
    /// The head of a table's first column.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Clients => "clients",
            Self::Milliseconds => "ms",
            Self::PerMillion => "lost of a million",
            Self::Connections => "connections",
            Self::Burst => "bytes of burst",
            Self::Miles => "miles",
            Self::Cross => "% of the path",
            Self::Repetition => "repetition",
            Self::Nothing => "",
        }
    }
}

/// Lines over message sizes or numbers of clients, or bars.
#[derive(Debug, Default, Serialize)]
pub(super) struct Chart {
    pub(super) title: String,
    /// The measured quantity, with its unit.
    pub(super) unit: &'static str,
    /// Its axis.
    pub(super) along: Along,
    /// From 0 to 100 in equal steps; otherwise powers of ten.
    pub(super) percent: bool,
    /// Shown as colours: series by places.
    #[serde(skip)]
    pub(super) heat: bool,
    pub(super) series: Vec<Series>,
}

/// One line.
#[derive(Debug, Default, Serialize)]
pub(super) struct Series {
    pub(super) name: String,
    /// It is not measured over sizes: a level for all of them.
    pub(super) level: bool,
    pub(super) points: Vec<Point>,
}

/// The measurements at one place.
#[derive(Debug, Default, Serialize)]
pub(super) struct Point {
    /// Bytes of a message, or clients; 0 where there is no axis.
    pub(super) at: u32,
    /// The median.
    pub(super) value: f64,
    /// Processor time of both ends for each 10^9 bytes, the median.
    pub(super) cpu_s_per_gb: Option<f64>,
    /// Of all runs, where messages may be lost: sent, of those valid in part, and not at all.
    pub(super) sent_messages: Option<u64>,
    pub(super) partial_messages: Option<u64>,
    pub(super) lost_messages: Option<u64>,
    pub(super) runs: Vec<Sample>,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sample {
    pub(super) value: f64,
    pub(super) cpu_s_per_gb: Option<f64>,
    #[serde(skip)]
    pub(super) messages: Option<Messages>,
}

/// The outcome of messages that may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Messages {
    pub(super) sent: u64,
    pub(super) partial: u64,
    pub(super) lost: u64,
}

impl Results {
    /// `repeat` runs of `time_ms` each; `quick`: a few sizes, measured once.
    pub(super) fn new(
        paper: &'static str,
        machine: Machine,
        (quick, repeat, time_ms): (bool, u16, u64),
    ) -> Self {
        Self {
            schema: SCHEMA,
            paper,
            machine,
            quick,
            repeat,
            time_ms,
            interrupted: None,
            figures: Vec::new(),
        }
    }

    /// Nothing failed; what could not run here does not count.
    pub(super) fn complete(&self) -> bool {
        self.figures.iter().all(|figure| figure.failed.is_none())
    }

    /// One line on how it was measured.
    pub(super) fn how(&self) -> String {
        let quick = if self.quick {
            "; --quick: measured once and briefly; the numbers are not meaningful"
        } else {
            ""
        };
        let runs = match self.repeat {
            1 => "single runs".into(),
            more => format!("medians of {more} interleaved runs"),
        };
        let time = Duration::from_millis(self.time_ms);
        format!("{runs} of {time:?} each{quick}")
    }

    /// All of it as text.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.paper, self.machine.line(), self.how());
        for figure in &self.figures {
            text += &figure.table();
        }
        text
    }
}

impl Results {
    /// Every measurement, a line each.
    pub(super) fn csv(&self) -> String {
        let mut text = "figure,chart,unit,series,along,at,run,value,cpu_s_per_gb\n".to_string();
        for figure in &self.figures {
            for chart in &figure.charts {
                let points = chart
                    .series
                    .iter()
                    .flat_map(|series| series.points.iter().map(move |point| (series, point)));
                for (series, point) in points {
                    for (index, run) in point.runs.iter().enumerate() {
                        let cpu = run
                            .cpu_s_per_gb
                            .map_or_else(String::new, |cpu| cpu.to_string());
                        let _ = writeln!(
                            text,
                            "{},{},{},{},{},{},{index},{},{cpu}",
                            figure.label(),
                            quoted(&chart.title),
                            quoted(chart.unit),
                            quoted(&series.name),
                            quoted(chart.along.head()),
                            point.at,
                            run.value
                        );
                    }
                }
            }
        }
        text
    }
}

/// A field of a CSV file (RFC 4180).
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

impl Figure {
    /// The paper's name of it.
    pub(super) fn label(&self) -> String {
        let kind = if self.table { "table" } else { "figure" };
        format!("{kind} {}", self.number)
    }

    /// A claim of the paper, checked against the measurements.
    pub(super) fn judge(&mut self) {
        if self.not_run.is_some() {
            self.charts.clear();
            return;
        }
        let claims = self.judges.iter().map(|judge| judge(self)).collect();
        self.claims = claims;
    }

    /// The median of a chart's series at a size.
    pub(super) fn value(&self, chart: usize, series: &str, at: u32) -> Option<f64> {
        self.point(chart, series, at).map(|point| point.value)
    }

    /// Returns the measurements of a chart's series at a size.
    pub(super) fn point(&self, chart: usize, series: &str, at: u32) -> Option<&Point> {
        let series = self.charts.get(chart)?.series(series)?;
        series.points.iter().find(|point| point.at == at)
    }

    /// Prints each warning about the figures once.
    pub(super) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Notes a command line once.
    pub(super) fn command(&mut self, line: String) {
        if !self.commands.contains(&line) {
            self.commands.push(line);
        }
    }

    fn table(&self) -> String {
        let mut text = format!("\n{}: {}\n", self.label(), self.title);
        if let Some(why) = &self.not_run {
            text += &format!("  {why}\n");
        }
        if let Some(why) = &self.failed {
            text += &format!("  failed: {why}\n");
        }
        for chart in &self.charts {
            text += &chart.table();
        }
        for claim in &self.claims {
            text += &format!("  {}\n", claim.line());
        }
        for warning in &self.warnings {
            text += &format!("  warning: {warning}\n");
        }
        text
    }
}

impl Claim {
    /// Creates a claim with the figure measured here, and whether it holds.
    pub(super) fn new(claim: impl Into<String>, here: Option<(String, bool)>) -> Self {
        let (here, holds) = match here {
            Some((here, holds)) => (Some(here), Some(holds)),
            None => (None, None),
        };
        Self {
            claim: claim.into(),
            here,
            holds,
        }
    }

    /// The verdict in one word: a measurement agrees with a paper or differs; a claim of the
    /// project holds or fails.
    pub(super) fn verdict(&self) -> &'static str {
        let ours = self.claim.starts_with("project");
        match (self.holds, ours) {
            (Some(true), false) => "agrees",
            (Some(false), false) => "differs",
            (Some(true), true) => "holds",
            (Some(false), true) => "does not hold",
            (None, _) => "not measured",
        }
    }

    fn line(&self) -> String {
        let here = self.here.as_deref().unwrap_or("-");
        format!("{}: here {here}: {}", self.claim, self.verdict())
    }
}

/// A chart without lines yet; one of percent goes from 0 to 100.
pub(super) fn chart(title: &str, unit: &'static str, along: Along) -> Chart {
    Chart {
        title: title.into(),
        unit,
        along,
        percent: unit == "%",
        ..Chart::default()
    }
}

impl Chart {
    /// A series by its name.
    pub(super) fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// The text of a place.
    pub(super) fn place(&self, at: u32) -> String {
        match (self.along, at) {
            (Along::Nothing, _) => String::new(),
            (Along::Miles, 0) => "0.2".into(),
            _ => at.to_string(),
        }
    }

    /// Adds a measurement.
    pub(super) fn add(&mut self, series: &str, at: u32, sample: Sample) {
        let index = self.series.iter().position(|one| one.name == series);
        let index = index.unwrap_or_else(|| {
            self.series.push(Series {
                name: series.into(),
                ..Series::default()
            });
            self.series.len() - 1
        });
        self.series[index].add(at, sample);
    }

    /// All places at which something was measured, ascending.
    pub(super) fn sizes(&self) -> Vec<u32> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut sizes: Vec<u32> = points.map(|point| point.at).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn table(&self) -> String {
        let mut text = format!("  {} ({})\n", self.title, self.unit);
        let width = |series: &Series| series.name.chars().count().max(12);
        let _ = write!(text, "  {:>9}", self.along.head());
        for series in &self.series {
            let _ = write!(text, "  {:>width$}", series.name, width = width(series));
        }
        text.push('\n');
        for at in self.sizes() {
            let place = self.place(at);
            let _ = write!(text, "  {place:>9}");
            for series in &self.series {
                let point = series.points.iter().find(|point| point.at == at);
                let value = point.map_or_else(|| "-".into(), |point| figure(point.value));
                let _ = write!(text, "  {value:>width$}", width = width(series));
            }
            text.push('\n');
        }
        text
    }
}

impl Series {
    /// Adds a measurement.
    pub(super) fn add(&mut self, at: u32, sample: Sample) {
        let index = self.points.iter().position(|point| point.at == at);
        let index = index.unwrap_or_else(|| {
            self.points.push(Point {
                at,
                ..Point::default()
            });
            self.points.len() - 1
        });
        self.points[index].add(sample);
    }
}

impl Sample {
    /// A sample with a value only.
    pub(super) fn of(value: f64) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }
}

impl Point {
    fn add(&mut self, sample: Sample) {
        self.runs.push(sample);
        let values = self.runs.iter().map(|run| run.value).collect();
        self.value = median(values).unwrap_or_default();
        self.cpu_s_per_gb = median(
            self.runs
                .iter()
                .filter_map(|run| run.cpu_s_per_gb)
                .collect(),
        );
        if let Some(messages) = sample.messages {
            *self.sent_messages.get_or_insert(0) += messages.sent;
            *self.partial_messages.get_or_insert(0) += messages.partial;
            *self.lost_messages.get_or_insert(0) += messages.lost;
        }
    }
}

/// Formats with four significant digits.
pub(super) fn figure(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = 3.0 - value.abs().log10().floor().clamp(-6.0, 3.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 9"
    )]
    let digits = digits as usize;
    format!("{value:.digits$}")
}

/// Prints which run begins.
pub(super) fn announce(repetition: u16, what: &str) {
    eprintln!("  run {}: {what}", repetition + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_sums_follow_every_measurement() {
        let mut chart = Chart::default();
        for (value, lost) in [(3.0, 1), (1.0, 0), (2.0, 4)] {
            let messages = Messages {
                sent: 10,
                partial: 2,
                lost,
            };
            let sample = Sample {
                value,
                cpu_s_per_gb: Some(value * 2.0),
                messages: Some(messages),
            };
            chart.add("one", 64, sample);
        }
        chart.add("one", 1, Sample::default());
        let point = &chart.series("one").unwrap().points[0];
        assert_eq!((point.value, point.cpu_s_per_gb), (2.0, Some(4.0)));
        assert_eq!(
            (point.sent_messages, point.lost_messages),
            (Some(30), Some(5))
        );
        assert_eq!(chart.sizes(), [1, 64]);
    }

    #[test]
    fn papers_are_agreed_with_and_our_own_claims_hold() {
        let verdict =
            |words: &str, holds| Claim::new(words, Some((String::new(), holds))).verdict();
        assert_eq!(verdict("paper: RDMA carries more", true), "agrees");
        assert_eq!(verdict("papers: beyond 60 ms", false), "differs");
        assert_eq!(verdict("project: at least 95 %", true), "holds");
        assert_eq!(Claim::new("paper: x", None).verdict(), "not measured");
    }

    #[test]
    fn every_run_is_a_line_of_csv() {
        let mut chart = Chart {
            title: "a \"b\", c".into(),
            unit: "s",
            along: Along::Miles,
            ..Chart::default()
        };
        chart.add("one", 0, Sample::of(1.5));
        chart.add("one", 0, Sample::of(2.5));
        assert_eq!(
            (chart.place(0), chart.place(1400)),
            ("0.2".into(), "1400".into())
        );
        let figure = Figure {
            number: 2,
            table: true,
            charts: vec![chart],
            ..Figure::default()
        };
        let results = Results {
            schema: SCHEMA,
            paper: "",
            machine: Machine::describe(),
            quick: true,
            repeat: 1,
            time_ms: 1,
            interrupted: None,
            figures: vec![figure],
        };
        let csv = results.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[1],
            r#"table 2,"a ""b"", c","s","one","miles",0,0,1.5,"#
        );
    }

    #[test]
    fn figures_have_four_digits() {
        let texts = [0.0, 0.012_345, 1.0, 27.25, 999.96, 12_345.6].map(figure);
        assert_eq!(texts, ["0", "0.01235", "1.000", "27.25", "1000.0", "12346"]);
    }
}
