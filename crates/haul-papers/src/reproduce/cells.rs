//! Figures that are lists of measurements. Each cell is measured over a path by `haul bench run`,
//! `haul bench rdma` or a tool of `haul-papers compare`. The duration of all cells is known
//! beforehand, so progress lines show the time left.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use serde_json::Value;

use super::bench::{Context, rows};
use super::record::{Chart, Figure};
use crate::compare::once::{Path, once};
use haul_lab::compare::plan::Load;
use haul_lab::compare::runner::{Runner, Stop};

/// Time of a measurement beyond its sending time: a lab, connecting, data in flight at the end.
const OVERHEAD: Duration = Duration::from_millis(1_800);
/// Delay of reordered packets: later packets within it overtake them.
const REORDER_DELAY: &str = "1ms";

/// The transport of queue pairs of `haul bench rdma`.
const RDMA_CHANNEL: &str = "--channel udt";

/// An emulated path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Net {
    pub(super) rate_bps: u64,
    pub(super) rtt_us: u32,
    /// Packets of a million that are lost, and that are overtaken.
    pub(super) loss_ppm: u32,
    pub(super) reorder_ppm: u32,
}

/// The measuring tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum How {
    /// `haul bench run` with this engine and these options.
    Run(&'static str, String),
    /// The same beside other traffic, whose engine and options come second.
    Beside([(&'static str, String); 2]),
    /// `haul bench rdma` over UDT with these options, of one size.
    Rdma(String),
    /// A tool of `haul-papers compare`.
    Tool(&'static str),
}

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Its position: a chart of the figure, a line in it, and a place.
    pub(super) chart: usize,
    pub(super) series: String,
    pub(super) at: u32,
    /// The path; `None` joins the hosts directly.
    pub(super) net: Option<Net>,
    pub(super) how: How,
    /// The number of runs, in turns with the others.
    pub(super) times: u16,
    /// Whether arrivals are recorded over time.
    pub(super) watched: bool,
}

/// Its result.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) goodput_bps: f64,
    /// The sender, and the receiver. For a tool only the sum of both is known.
    pub(super) ends: [End; 2],
    /// Processor time of both for 10^9 bytes.
    pub(super) cpu_s_per_gb: Option<f64>,
    /// The goodput of the other traffic.
    pub(super) beside_bps: Option<f64>,
    /// The end of each 100 ms, ms, and what arrived in it at the receiver's device, bits per
    /// second, if it was watched.
    pub(super) over_time: Vec<(u32, f64)>,
}

/// One end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct End {
    pub(super) cpu_s_per_gb: Option<f64>,
    /// Percent of one core.
    pub(super) cpu_percent: Option<f64>,
    /// Accesses to the last level of cache for each byte.
    pub(super) cache_references: Option<f64>,
    /// Why they are not counted.
    pub(super) no_counters: Option<String>,
}

impl Cell {
    pub(super) fn new(chart: usize, series: impl Into<String>, at: u32, how: How) -> Self {
        Self {
            chart,
            series: series.into(),
            at,
            net: None,
            how,
            times: 0,
            watched: false,
        }
    }

    pub(super) fn over(self, net: Net) -> Self {
        Self {
            net: Some(net),
            ..self
        }
    }

    pub(super) fn times(self, times: u16) -> Self {
        Self { times, ..self }
    }

    pub(super) fn watched(self) -> Self {
        Self {
            watched: true,
            ..self
        }
    }

    /// As often as the default, unless set.
    fn repeats(&self, context: &Context<'_>) -> u16 {
        if self.times > 0 {
            self.times
        } else {
            context.repeat
        }
    }
}

impl Net {
    /// The keys of `[path]`.
    pub(super) fn keys(self) -> String {
        let share = |ppm: u32| f64::from(ppm) / 1e6;
        let mut keys = format!(
            "rate = \"{}bit\"\nrtt = \"{}us\"\n",
            self.rate_bps, self.rtt_us
        );
        if self.loss_ppm > 0 {
            keys += &format!("loss = {:?}\n", share(self.loss_ppm));
        }
        if self.reorder_ppm > 0 {
            let probability = share(self.reorder_ppm);
            keys += &format!(
                "reorder = {{ probability = {probability:?}, delay = \"{REORDER_DELAY}\" }}\n"
            );
        }
        keys
    }

    /// On one line.
    fn told(self) -> String {
        self.keys().trim_end().replace('\n', "; ")
    }
}

/// How long these measurements take, about.
pub(super) fn lasts(context: &Context<'_>, cells: &[Cell]) -> Duration {
    let times: u32 = cells
        .iter()
        .map(|cell| u32::from(cell.repeats(context)))
        .sum();
    (Duration::from_millis(context.time_ms) + OVERHEAD) * times
}

/// Takes all measurements in turns. One that fails makes the figure a failure, and the others go
/// on; a missing tool is left out, and the figure notes it. `add` receives each result and its
/// turn, from 0.
pub(super) fn measure(
    context: &Context<'_>,
    figure: &mut Figure,
    cells: &[Cell],
    mut add: impl FnMut(&mut Figure, &Cell, &Found, u16),
) -> Result<(), Stop> {
    let turns = cells.iter().map(|cell| cell.repeats(context)).max();
    let count: usize = cells
        .iter()
        .map(|cell| usize::from(cell.repeats(context)))
        .sum();
    let each = Duration::from_millis(context.time_ms) + OVERHEAD;
    let (begun, mut done) = (Instant::now(), 0);
    for turn in 0..turns.unwrap_or(0) {
        for cell in cells.iter().filter(|cell| turn < cell.repeats(context)) {
            let planned = |number: usize| each * u32::try_from(number).unwrap_or(u32::MAX);
            let left = left(
                planned(count - done),
                context.later,
                planned(done),
                begun.elapsed(),
            );
            done += 1;
            let place = figure
                .charts
                .get(cell.chart)
                .map_or_else(String::new, |chart| told(chart, cell));
            let what = format!("  {done}/{count}, about {left} left: {place}");
            match cell.measure(context, figure, turn) {
                Ok(Some(found)) => {
                    eprintln!("{what}: {:.1} Mbit/s", found.goodput_bps / 1e6);
                    add(figure, cell, &found, turn);
                }
                Ok(None) => eprintln!("{what}: left out"),
                Err(Stop::Failed(why)) => {
                    eprintln!("{what}: failed: {why:#}");
                    figure
                        .failed
                        .get_or_insert_with(|| format!("{place}: {why:#}"));
                }
                Err(stop) => return Err(stop),
            }
        }
    }
    Ok(())
}

/// A series and its place.
fn told(chart: &Chart, cell: &Cell) -> String {
    let place = chart.place(cell.at);
    if place.is_empty() {
        return cell.series.clone();
    }
    format!("{}, {place} {}", cell.series, chart.along.head())
}

/// The time left as minutes and seconds: of what was planned for this figure and those after it, if
/// `expected` was planned for what has taken `spent`.
pub(super) fn left(
    planned: Duration,
    later: Duration,
    expected: Duration,
    spent: Duration,
) -> String {
    // If this takes longer than planned, the rest will too.
    let slower = if expected.is_zero() {
        1.0
    } else {
        spent.as_secs_f64() / expected.as_secs_f64()
    };
    let seconds = (planned + later).mul_f64(slower).as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

impl Cell {
    /// `None` if the tool is missing.
    fn measure(
        &self,
        context: &Context<'_>,
        figure: &mut Figure,
        turn: u16,
    ) -> Result<Option<Found>, Stop> {
        if let How::Tool(tool) = self.how {
            return self.by_tool(tool, context, figure, turn);
        }
        let keys = self.net.map(Net::keys);
        let path = self.net.map_or_else(|| "joined directly".into(), Net::told);
        let time = Duration::from_millis(context.time_ms);
        let server = match self.how {
            How::Rdma(_) => RDMA_CHANNEL,
            _ => "",
        };
        let mut bench = context.bench_with(keys.as_deref(), turn.into(), server)?;
        let found = match &self.how {
            How::Run(engine, options) => {
                let flags = flags(engine, options, time);
                if self.watched {
                    let rtt_s = self.net.map_or(0.0, |net| f64::from(net.rtt_us) / 1e6);
                    let (json, arrived) = bench.run_watched(&flags, rtt_s, &path, figure)?;
                    Found {
                        over_time: arrived,
                        ..Found::of_run(&json, figure)?
                    }
                } else {
                    Found::of_run(&bench.run(&flags, &path, figure)?, figure)?
                }
            }
            How::Beside([(engine, options), (other, others)]) => {
                let own = flags(engine, options, time);
                let theirs = format!("--engine {other} {others}");
                let rtt = Duration::from_micros(self.net.map_or(0, |net| net.rtt_us.into()));
                let (json, theirs) =
                    bench.run_beside((&own, &theirs), (time, rtt), &path, figure)?;
                Found {
                    beside_bps: Some(Found::of_run(&theirs, figure)?.goodput_bps),
                    ..Found::of_run(&json, figure)?
                }
            }
            How::Rdma(options) => {
                let options = format!("{RDMA_CHANNEL} {options}");
                Found::of_rdma(&bench.ask(&options, figure)?)?
            }
            How::Tool(_) => return Ok(None),
        };
        bench.end(figure)?;
        Ok(Some(found))
    }

    fn by_tool(
        &self,
        tool: &str,
        context: &Context<'_>,
        figure: &mut Figure,
        turn: u16,
    ) -> Result<Option<Found>, Stop> {
        let seconds = u32::try_from(context.time_ms.div_ceil(1000)).unwrap_or(u32::MAX);
        let runner = Runner {
            programs: context.runner.programs.clone(),
            signals: context.runner.signals,
            load: Load::Seconds(seconds),
            settle: context.runner.settle,
        };
        let path = self.net.map_or(Path::Direct, |net| Path::Emulated {
            rate_bps: net.rate_bps,
            rtt_ms: net.rtt_us / 1000,
            loss_ppm: net.loss_ppm,
        });
        figure.command(format!(
            "haul-papers compare {path} --time {seconds}s --tools {tool}"
        ));
        match once(&runner, path, tool, turn)? {
            Ok(found) => {
                for warning in &found.warnings {
                    figure.warn(format!("{tool}, {path}: {warning}"));
                }
                Ok(Some(Found {
                    goodput_bps: found.goodput_bps,
                    cpu_s_per_gb: Some(found.cpu_s_per_gb.iter().sum()),
                    ..Found::default()
                }))
            }
            Err(why) => {
                figure.warn(format!("{} is left out: {why}", self.series));
                Ok(None)
            }
        }
    }
}

/// Of `haul bench run`: as `haul profile` measures, without the first quarter of the time, but of
/// RDMA, which warms up by itself.
fn flags(engine: &str, options: &str, time: Duration) -> String {
    let (ms, omit) = (time.as_millis(), (time / 4).as_millis() / 100 * 100);
    let verbs = ["iwarp-tcp", "iwarp-udt", "ud", "rd"].contains(&engine);
    let omit = if verbs || omit == 0 {
        String::new()
    } else {
        format!(" --omit {omit}ms")
    };
    let options = if options.is_empty() {
        String::new()
    } else {
        format!(" {options}")
    };
    format!("--engine {engine}{options} --time {ms}ms{omit} --interval 200ms")
}

impl Found {
    /// Reads what `haul bench run --json` prints (docs/schema/bench-run-v1.json).
    fn of_run(json: &Value, figure: &mut Figure) -> Result<Self, Stop> {
        let run = &json["runs"][0];
        let goodput_bps = run["goodput_bps"]
            .as_f64()
            .context("a run without goodput")?;
        for warning in run["warnings"].as_array().into_iter().flatten() {
            figure.warn(warning.as_str().unwrap_or_default().to_owned());
        }
        let ends = ["sender", "receiver"].map(|end| End::of(&run[end], run["bytes"].as_f64()));
        Ok(Self {
            goodput_bps,
            cpu_s_per_gb: both(&ends),
            ends,
            ..Self::default()
        })
    }

    /// Reads what `haul bench rdma --json` prints of one size (docs/schema/bench-rdma-v1.json).
    fn of_rdma(json: &Value) -> Result<Self, Stop> {
        let rows = rows(json)?;
        let (_, row) = rows.last().ok_or_else(|| anyhow!("there are no rows"))?;
        let gbps = row["bandwidth"]["bw_average_gbps"]
            .as_f64()
            .context("a row without bandwidth")?;
        let ends = ["client", "server"].map(|end| End::of(&row[end], None));
        Ok(Self {
            goodput_bps: gbps * 1e9,
            cpu_s_per_gb: both(&ends),
            ends,
            ..Self::default()
        })
    }
}

fn both(ends: &[End; 2]) -> Option<f64> {
    Some(ends[0].cpu_s_per_gb? + ends[1].cpu_s_per_gb?)
}

impl End {
    fn of(end: &Value, bytes: Option<f64>) -> Self {
        let percent = |name: &str| end[name].as_f64();
        let references = end["counters"]["cache_references"].as_f64();
        Self {
            cpu_s_per_gb: end["cpu_s_per_gb"].as_f64(),
            cpu_percent: percent("user_percent")
                .zip(percent("system_percent"))
                .map(|(user, system)| user + system),
            cache_references: references
                .zip(bytes)
                .map(|(count, bytes)| count / bytes.max(1.0)),
            no_counters: end["no_counters"].as_str().map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use haul_lab::scenario::Scenario;

    #[test]
    fn every_path_is_a_scenario() {
        let net = Net {
            rate_bps: 500_000_000,
            rtt_us: 26_800,
            loss_ppm: 10,
            reorder_ppm: 100,
        };
        let scenario = Scenario::parse("test", &format!("[path]\n{}", net.keys())).unwrap();
        assert_eq!(scenario.rtt_ns(), 26_800_000);
        assert!(scenario.forward.link.reorder.is_some());
        let plain = Net {
            loss_ppm: 0,
            reorder_ppm: 0,
            ..net
        };
        assert_eq!(plain.told(), "rate = \"500000000bit\"; rtt = \"26800us\"");
    }

    #[test]
    fn the_first_quarter_is_left_out_but_of_rdma() {
        let time = Duration::from_secs(2);
        let of = |engine, options| flags(engine, options, time);
        assert_eq!(
            of("tcp", "--streams 4"),
            "--engine tcp --streams 4 --time 2000ms --omit 500ms --interval 200ms"
        );
        assert_eq!(
            of("iwarp-udt", ""),
            "--engine iwarp-udt --time 2000ms --interval 200ms"
        );
    }

    #[test]
    fn a_run_is_read() {
        let end = json!({"cpu_s_per_gb": 0.5, "user_percent": 10.0, "system_percent": 20.0,
                         "counters": {"cache_references": 300}, "no_counters": null});
        let run = json!({"goodput_bps": 8e6, "bytes": 100, "warnings": ["busy"], "sender": end, "receiver": end});
        let mut figure = Figure::default();
        let found = Found::of_run(&json!({"runs": [run]}), &mut figure).unwrap();
        assert_eq!((found.goodput_bps, found.cpu_s_per_gb), (8e6, Some(1.0)));
        assert_eq!(
            (found.ends[0].cpu_percent, found.ends[1].cache_references),
            (Some(30.0), Some(3.0))
        );
        assert_eq!(figure.warnings, ["busy"]);
        assert!(Found::of_run(&json!({"runs": []}), &mut figure).is_err());
    }

    #[test]
    fn a_row_of_rdma_is_read() {
        let end = json!({"cpu_s_per_gb": 0.25, "user_percent": 1.0, "system_percent": 2.0});
        let row = json!({"bytes": 8, "bandwidth": {"bw_average_gbps": 0.5}, "client": end, "server": end});
        let found = Found::of_rdma(&json!({"rows": [row]})).unwrap();
        assert_eq!((found.goodput_bps, found.cpu_s_per_gb), (5e8, Some(0.5)));
        assert!(Found::of_rdma(&json!({"rows": []})).is_err());
    }
}
