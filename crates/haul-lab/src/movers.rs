//! `haul send` and `get` compared with common tools, on trees: `haul lab movers`.
//!
//! Every run has a lab of its own. In each cell (a set and a path) all movers run once, ours first:
//! ten times its time is the limit of the others. Then the next round begins. The clock runs from
//! the command's start until it has exited and the copy is on the disk; then the copy is compared
//! with its source.
//!
//! Map: [`sets`] the trees · [`tool`] the movers' commands · [`trial`] one run · [`tree`]
//! comparison · [`record`] runs, kept line by line · [`bars`] what is required · [`table`] text,
//! JSON and page.
#![expect(
    clippy::disallowed_types,
    reason = "sets, copies and results are files of the measurement, not of the data path"
)]

mod bars;
mod record;
mod sets;
mod table;
mod tool;
mod tree;
mod trial;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::compare::plan::Load;
use crate::compare::programs::Programs;
use crate::compare::runner::{Runner, Stop};
use crate::compare::start;
use crate::out::{self, Out};
use crate::scenario::unit::{Rate, Span, probability};
use crate::usage::Usage;
use record::{About, Cell, Journal, Outcome, Run};
pub use sets::Set;
use table::Summary;
use tool::Mover;
use trial::Trials;

/// Arguments of `movers`.
#[derive(Clone, Debug, clap::Args)]
pub struct MoversArgs {
    /// One short path, small sets, each mover once: checks that trees arrive whole
    #[arg(long)]
    pub quick: bool,
    /// Share of the sets' sizes, 1 is whole [default: 0.01; with --quick 0.0005]
    #[arg(long, value_parser = scale, value_name = "SHARE")]
    pub scale: Option<f64>,
    /// Sets [default: all; with --quick tiny,sparse,climate]
    #[arg(long, value_delimiter = ',', value_name = "SET,…")]
    pub sets: Vec<Set>,
    /// Round-trip times [default: 0ms,50ms,100ms; with --quick 10ms]
    #[arg(long, value_parser = Span::parse, value_delimiter = ',', value_name = "TIME,…")]
    pub rtts: Vec<Span>,
    /// Loss rates [default: 0,1e-4,1e-3; with --quick 1e-4]
    #[arg(long, value_parser = probability, value_delimiter = ',', value_name = "RATE,…")]
    pub losses: Vec<f64>,
    /// Only the cells in which something is required
    #[arg(long)]
    pub bars: bool,
    /// Rate of the path
    #[arg(long, value_parser = Rate::parse, value_name = "RATE", default_value = "1Gbit")]
    pub rate: Rate,
    /// Movers [default: all]
    #[arg(long, value_delimiter = ',', value_name = "MOVER,…")]
    pub movers: Vec<String>,
    /// Number of runs of each mover in each cell [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: Option<u16>,
    /// Start no run after this time; the same command goes on where it ended
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "150m")]
    pub budget: Span,
    /// Longest run; a peer's also ends at ten times the time of ours
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "10m")]
    pub limit: Span,
    /// Maximum wait for an idle machine before each run
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "0s")]
    pub settle: Span,
    /// Archive or directory of sources for the set kernel [default: /usr/src/linux-source-*, or
    /// the sources of crates in the registry of cargo]
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<PathBuf>,
    /// Directory for the sets and the copies, on the disk that is measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/haul-lab-movers")]
    pub work: PathBuf,
    /// Keep every run in results.jsonl of this directory, go on from what is there, and write
    /// results.json, table.txt and index.html
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The haul to measure [default: this program]
    #[arg(long, value_name = "PATH")]
    pub haul: Option<PathBuf>,
}

/// Measures every mover in every cell.
///
/// # Errors
/// One line that names the wrong argument, or what this machine lacks.
pub fn movers(args: &MoversArgs) -> Result<ExitCode> {
    let movers = Mover::named(&args.movers).map_err(Usage)?;
    let scale = args.scale.unwrap_or(if args.quick { 0.0005 } else { 0.01 });
    let cells = cells(args);
    let signals = start()?;
    let runner = Runner {
        programs: Programs {
            haul: args.haul.clone(),
            udt_bench: None,
            xio_driver: None,
        }
        .resolve(),
        signals: &signals,
        load: Load::Seconds(1),
        settle: Duration::from_nanos(args.settle.ns),
    };
    let out = Out::make(args.out.clone())?;
    let trials = Trials {
        runner: &runner,
        rate_bps: args.rate.bps,
        work: work(&args.work)?,
        cold: trial::may_drop_caches(),
    };
    make_key(&runner.programs.haul, &trials.work)?;
    let mut made = Vec::new();
    for cell in &cells {
        if !made.iter().any(|made: &sets::Made| made.set == cell.set) {
            let sets = trials.work.join("sets");
            made.push(cell.set.make(&sets, scale, args.kernel.as_deref())?);
        }
    }
    let about = About::new(scale, args.rate.bps, made, trials.cold);
    let mut journal = Journal::open(args.out.as_deref(), about)?;
    let measured = Measurement {
        trials: &trials,
        movers: &movers,
        repeat: args.repeat.unwrap_or(if args.quick { 1 } else { 3 }),
        ends: Instant::now() + Duration::from_nanos(args.budget.ns),
        most_s: Duration::from_nanos(args.limit.ns).as_secs_f64(),
    }
    .all(&cells, &mut journal);
    let summary = Summary::new(&journal);
    let table = summary.text();
    let files = [
        ("results.json", out::json(&summary)?),
        ("table.txt", table.clone()),
        ("index.html", summary.page()),
    ];
    out.write(&files, &table)?;
    match measured {
        Err(Stop::Interrupted(signal)) => {
            Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)))
        }
        Err(Stop::Failed(error)) => Err(error),
        Ok(()) if journal.is_whole() => Ok(ExitCode::SUCCESS),
        Ok(()) => Ok(ExitCode::FAILURE),
    }
}

/// How the runs are made.
struct Measurement<'a> {
    trials: &'a Trials<'a>,
    movers: &'a [Mover],
    repeat: u16,
    /// No run starts after this.
    ends: Instant,
    most_s: f64,
}

impl Measurement<'_> {
    fn all(&self, cells: &[Cell], journal: &mut Journal) -> Result<(), Stop> {
        // A budget that is too short leaves every cell with a run.
        for round in 0..self.repeat {
            for &cell in cells {
                for mover in self.movers.iter().filter(|mover| mover.moves(cell.set)) {
                    if journal.has(cell, mover.name, round) {
                        continue;
                    }
                    if Instant::now() >= self.ends {
                        eprintln!("the time of --budget is over; the same command goes on here");
                        return Ok(());
                    }
                    self.one(cell, mover, round, journal)?;
                }
            }
        }
        Ok(())
    }

    fn one(
        &self,
        cell: Cell,
        mover: &Mover,
        round: u16,
        journal: &mut Journal,
    ) -> Result<(), Stop> {
        let made = journal
            .about
            .made(cell.set)
            .context("a set was not made")?
            .clone();
        let limit_s = journal.limit_s(cell, mover.is_ours, self.most_s);
        let run = self.trials.run(cell, &made, mover, round, limit_s)?;
        eprintln!(
            "[{}/{}] {}, RTT {} ms, loss {:e}: {}: {}",
            round + 1,
            self.repeat,
            cell.set.name(),
            cell.rtt_ms,
            cell.loss,
            mover.name,
            said(&run)
        );
        Ok(journal.add(run)?)
    }
}

fn said(run: &Run) -> String {
    match &run.outcome {
        Outcome::Seconds(seconds) => format!("{seconds:.2} s"),
        Outcome::CutAfterS(after) => format!("ended after {after:.2} s"),
        Outcome::Failed(why) => format!("failed: {why}"),
        Outcome::NotRun(why) => format!("not run: {why}"),
    }
}

/// Reads the share of the sets' sizes.
fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok();
    scale
        .filter(|scale| *scale > 0.0 && *scale <= 10.0)
        .ok_or_else(|| "give a share above 0, at most 10".to_owned())
}

/// Every set on every path, those with a bar first.
fn cells(args: &MoversArgs) -> Vec<Cell> {
    let ms = |span: &Span| Duration::from_nanos(span.ns).as_secs_f64() * 1e3;
    let rtts = match args.rtts.as_slice() {
        [] if args.quick => vec![10.0],
        [] => vec![0.0, 50.0, 100.0],
        rtts => rtts.iter().map(ms).collect(),
    };
    let losses = match args.losses.as_slice() {
        [] if args.quick => &[1e-4][..],
        [] => &[0.0, 1e-4, 1e-3],
        losses => losses,
    };
    let sets = match args.sets.as_slice() {
        [] if args.quick => &[Set::Tiny, Set::Sparse, Set::Climate][..],
        [] => &[
            Set::Climate,
            Set::Kernel,
            Set::Flat,
            Set::Tiny,
            Set::Sparse,
            Set::Again,
            Set::Changed,
            Set::Single,
        ],
        sets => sets,
    };
    let mut cells = Vec::new();
    for &set in sets {
        for &rtt_ms in &rtts {
            cells.extend(losses.iter().map(|&loss| Cell { set, rtt_ms, loss }));
        }
    }
    if args.bars {
        cells.retain(|cell| bars::has_bars(*cell));
    }
    // The sort is stable.
    cells.sort_by_key(|cell| !bars::has_bars(*cell));
    cells
}

/// Makes the working directory; answers its whole path, which the movers get.
fn work(folder: &Path) -> Result<PathBuf> {
    let about = || format!("cannot make {}", folder.display());
    std::fs::create_dir_all(folder.join("sets")).with_context(about)?;
    let whole = folder.canonicalize().with_context(about)?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(byte);
    let name = whole.as_os_str().as_encoded_bytes();
    ensure!(
        name.iter().all(is_plain),
        Usage(format!(
            "--work {}: some movers take only letters, digits and /._-+ in a path",
            whole.display()
        ))
    );
    Ok(whole)
}

/// The key that both ends of ours share.
fn make_key(haul: &Path, work: &Path) -> Result<()> {
    let key = work.join("shared.pem");
    if key.exists() {
        return Ok(());
    }
    let mut command = Command::new(haul);
    let output = command.args(["key", "new", "--key"]).arg(&key).output();
    let output = output.with_context(|| format!("cannot run {}", haul.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("haul key new failed: {}", why.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: MoversArgs,
    }

    fn parsed(line: &[&str]) -> MoversArgs {
        Line::parse_from([&["movers"], line].concat()).args
    }

    #[test]
    fn cells_with_bars_come_first() {
        let all = cells(&parsed(&[]));
        assert_eq!(all.len(), 8 * 3 * 3);
        let with_bars = all.iter().filter(|cell| bars::has_bars(**cell)).count();
        // Climate, kernel, flat, tiny and again at two paths, sparse, changed and single at one.
        assert_eq!(with_bars, 13);
        assert!(all.iter().take(with_bars).all(|cell| bars::has_bars(*cell)));
        assert_eq!(cells(&parsed(&["--bars"])), all[..with_bars]);
        assert_eq!(cells(&parsed(&["--quick"])).len(), 3);
    }

    #[test]
    fn each_cell_is_a_path() {
        for cell in cells(&parsed(&[])) {
            let path = cell.path(1_000_000_000).unwrap();
            let rtt_ms = Duration::from_nanos(path.rtt_ns()).as_secs_f64() * 1e3;
            assert_eq!(rtt_ms.to_bits(), cell.rtt_ms.to_bits());
        }
    }
}
