//! Two gateways with nothing but defaults beside direct connections that send by BBR: `haul lab
//! gateways`.
//!
//! Each path is one lab, in which the two ways take turns for every kind of traffic, so that both
//! meet the same machine. The session between the gateways is open before anything is measured.
//!
//! Map: [`mod@bench`] the lab and its gateways · [`traffic`] downloads and ping-pong of this
//! program · [`peers`] OpenSSH, rsync, PostgreSQL, Redis · [`record`] results and the table.

mod bench;
mod peers;
mod record;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::compare::plan::Load;
use crate::compare::programs::Programs;
use crate::compare::runner::{Runner, Stop};
use crate::compare::start;
use crate::out::{self, Out};
use crate::report::Report;
use crate::scenario::unit::{Span, probability};
use crate::usage::Usage;
use bench::{Bench, Way};
use haul_report::machine;
use peers::{Folder, Missing, Peers};
use record::{Bar, Cell, Results, Row};

/// The file of all runs.
const RESULTS: &str = "results.json";

/// Arguments of `gateways`.
#[derive(Clone, Debug, clap::Args)]
pub struct GatewaysArgs {
    /// One short path, each kind of traffic once and small: checks bytes and completion
    #[arg(long)]
    pub quick: bool,
    /// Round-trip times [default: 20ms,80ms; with --quick 20ms]
    #[arg(long, value_parser = Span::parse, value_delimiter = ',', value_name = "TIME,…")]
    pub rtts: Vec<Span>,
    /// Loss rates [default: 0,1e-4; with --quick 1e-4]
    #[arg(long, value_parser = probability, value_delimiter = ',', value_name = "RATE,…")]
    pub losses: Vec<f64>,
    /// Rate of the path
    #[arg(long, value_name = "RATE", default_value = "300Mbit")]
    pub rate: String,
    /// Only kinds of traffic whose names contain one of these
    #[arg(long, value_delimiter = ',', value_name = "TEXT,…")]
    pub only: Vec<String>,
    /// Number of runs of each kind and way [default: 5; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: Option<u16>,
    /// Maximum wait for an idle machine before each run
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "0s")]
    pub settle: Span,
    /// Merge the results.json of these directories, and measure nothing
    #[arg(long, value_delimiter = ',', value_name = "DIR,…", conflicts_with_all = ["quick", "rtts", "losses", "rate", "only", "repeat", "settle"])]
    pub merge: Vec<PathBuf>,
    /// Write results.json, after each run, and table.txt into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
}

/// One kind of traffic.
struct Traffic {
    name: &'static str,
    bar: Bar,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Connections at once, and the bytes of each.
    Downloads(usize, u64),
    Scp,
    Rsync,
    /// Transactions of each client.
    Postgres(u32),
    /// Clients, and requests of all.
    Redis(u32, u32),
    /// How long, s.
    PingPong(u64),
    /// Downloads at once, and how long, s.
    Fairness(usize, u64),
}

/// The extent of the measurement: the whole, or a tenth of it.
fn all(quick: bool) -> Vec<Traffic> {
    let traffic = |name, bar, kind| Traffic { name, bar, kind };
    let time = |name, count, len| traffic(name, Bar::Time, Kind::Downloads(count, len));
    let latency = |name, kind| traffic(name, Bar::Latency, kind);
    let part: u16 = if quick { 10 } else { 1 };
    let parts = u64::from(part);
    // 4 s each.
    let bulk = 150_000_000 / parts;
    vec![
        time("bulk, 1 stream", 1, bulk),
        time("bulk, 8 streams", 8, bulk / 8),
        time("200 x 10 kB", 200 / usize::from(part), 10_000),
        time("1000 x 10 kB", 1000 / usize::from(part), 10_000),
        time("2000 x 1 kB", 2000 / usize::from(part), 1_000),
        time("200 x 100 kB", 200 / usize::from(part), 100_000),
        traffic("scp 50 MB", Bar::Time, Kind::Scp),
        traffic("rsync 1000 files", Bar::Time, Kind::Rsync),
        latency("pgbench -c 4", Kind::Postgres(if quick { 2 } else { 10 })),
        latency("redis -c 1", Kind::Redis(1, if quick { 5 } else { 20 })),
        latency("redis -c 2", Kind::Redis(2, if quick { 10 } else { 40 })),
        latency(
            "redis -c 50",
            Kind::Redis(50, if quick { 100 } else { 1000 }),
        ),
        traffic(
            "ping-pong beside bulk",
            Bar::Beside,
            // Of fewer than 100 answers, the 99th percentile is the slowest.
            Kind::PingPong(if quick { 2 } else { 20 }),
        ),
        traffic(
            "fairness, 8 streams",
            Bar::Fairness,
            Kind::Fairness(8, if quick { 1 } else { 5 }),
        ),
    ]
}

/// Measures every kind of traffic on every path, or merges earlier results.
///
/// # Errors
/// One line that names the wrong argument, or what this machine lacks.
pub fn gateways(args: &GatewaysArgs) -> Result<ExitCode> {
    if !args.merge.is_empty() {
        let out = Out::make(args.out.clone())?;
        return conclude(&merged(&args.merge)?, &out);
    }
    let traffic: Vec<Traffic> = all(args.quick)
        .into_iter()
        .filter(|one| args.only.is_empty() || args.only.iter().any(|text| one.name.contains(text)))
        .collect();
    if traffic.is_empty() {
        let names: Vec<&str> = all(true).iter().map(|one| one.name).collect();
        let text = format!("--only names none of: {}", names.join(" · "));
        return Err(Usage(text).into());
    }
    let signals = start()?;
    // Both ends of all connections are this process's.
    haul_io::process::raise_open_files().context("cannot open more files")?;
    let out = Out::make(args.out.clone())?;
    let runner = Runner {
        programs: args.programs.resolve(),
        signals: &signals,
        load: Load::Seconds(1),
        settle: Duration::from_nanos(args.settle.ns),
    };
    let repeat = args.repeat.unwrap_or(if args.quick { 1 } else { 5 });
    let mut results = Results::new(args.quick, repeat, args.rate.clone());
    for (rtt_ms, loss) in paths(args) {
        results.cells.push(Cell {
            rtt_ms,
            loss,
            rows: traffic
                .iter()
                .map(|one| Row::new(one.name, one.bar))
                .collect(),
            warnings: Vec::new(),
        });
        match measure(&runner, &traffic, &mut results, &out) {
            Ok(()) => {}
            Err(Stop::Interrupted(signal)) => {
                results.interrupted = Some(signal);
                break;
            }
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
    conclude(&results, &out)
}

/// The results of several measurements as those of one, in the order of one.
fn merged(folders: &[PathBuf]) -> Result<Results> {
    let mut all_results = folders.iter().map(|folder| Results::read(folder));
    let mut merged = all_results.next().context("--merge names no directory")??;
    for results in all_results {
        merged.add(results?)?;
    }
    let traffic = all(merged.quick);
    let place = |row: &Row| traffic.iter().position(|one| one.name == row.traffic);
    for cell in &mut merged.cells {
        cell.rows.sort_by_key(place);
    }
    merged.cells.sort_by(|one, other| {
        let by_rtt = one.rtt_ms.total_cmp(&other.rtt_ms);
        by_rtt.then(one.loss.total_cmp(&other.loss))
    });
    Ok(merged)
}

/// Writes the files and the table.
fn conclude(results: &Results, out: &Out) -> Result<ExitCode> {
    let table = results.table();
    let files = [(RESULTS, out::json(results)?), ("table.txt", table.clone())];
    out.write(&files, &table)?;
    for line in results.skipped() {
        out::line(line);
    }
    Ok(match results.interrupted {
        Some(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        None if results.is_complete() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

/// Round-trip times, ms, and loss rates.
fn paths(args: &GatewaysArgs) -> Vec<(f64, f64)> {
    let ms = |span: &Span| Duration::from_nanos(span.ns).as_secs_f64() * 1e3;
    let rtts = match args.rtts.as_slice() {
        [] if args.quick => vec![20.0],
        [] => vec![20.0, 80.0],
        rtts => rtts.iter().map(ms).collect(),
    };
    let losses = match args.losses.as_slice() {
        [] if args.quick => &[1e-4][..],
        [] => &[0.0, 1e-4],
        losses => losses,
    };
    let of_rtt = |rtt| losses.iter().map(move |loss| (rtt, *loss));
    rtts.into_iter().flat_map(of_rtt).collect()
}

/// Measures the path of the last cell.
fn measure(
    runner: &Runner<'_>,
    traffic: &[Traffic],
    results: &mut Results,
    out: &Out,
) -> Result<(), Stop> {
    let last = results.cells.len() - 1;
    let (rtt_ms, loss) = (results.cells[last].rtt_ms, results.cells[last].loss);
    // Dropped after the bench, which ends the servers.
    let folder = Folder::make()?;
    let bench = Bench::start(runner, &results.rate, rtt_ms, loss)?;
    let peers = Peers::start(&bench, &folder)?;
    let part = if results.quick { 10 } else { 1 };
    peers.make_files(50_000_000 / part, 1000 / part, 10_000)?;
    for repetition in 0..results.repeat {
        let label = format!(
            "[{}/{}] {rtt_ms} ms, {loss:e}",
            repetition + 1,
            results.repeat
        );
        for (at, one) in traffic.iter().enumerate() {
            let cell = &mut results.cells[last];
            let row = &mut cell.rows[at];
            if let Err(Missing(why)) = one.kind.available(&peers) {
                row.not_run = Some(why);
                continue;
            }
            for way in Way::in_turn(repetition) {
                if machine::settle(runner.settle) > machine::IDLE_SHARE
                    && runner.settle > Duration::ZERO
                {
                    let warning = "others kept the processors busy before a run".to_owned();
                    if !cell.warnings.contains(&warning) {
                        cell.warnings.push(warning);
                    }
                }
                // The session is open, or was closed by a failure before.
                let run = bench
                    .download(way, 1, 1)
                    .and_then(|_| one.kind.run(&bench, &peers, way));
                row.record(way, run, &format!("{label}: {}, {}", one.name, way.name()))?;
            }
            // What was measured is kept, however this ends.
            out.keep(RESULTS, &out::json(results)?)?;
        }
    }
    results.cells[last]
        .warnings
        .extend(Report::from(bench.lab.stats()).warnings());
    Ok(())
}

impl Row {
    /// Adds a run, or why it failed.
    fn record(&mut self, way: Way, run: Result<f64, Stop>, label: &str) -> Result<(), Stop> {
        match run {
            Ok(time) => {
                eprintln!("{label}: {time:.3}");
                match way {
                    Way::Direct => self.direct.push(time),
                    Way::Gateways => self.gateways.push(time),
                }
            }
            Err(Stop::Failed(error)) => {
                let why = crate::line(&error);
                eprintln!("{label}: failed: {why}");
                self.failed.push(format!("{}: {why}", way.name()));
            }
            interrupted => return interrupted.map(|_| ()),
        }
        Ok(())
    }
}

impl Kind {
    /// Whether its programs are installed.
    fn available(self, peers: &Peers<'_>) -> Result<(), Missing> {
        let known = |missing: &Missing| Err(missing.clone());
        match self {
            Self::Downloads(..) | Self::PingPong(_) | Self::Fairness(..) => Ok(()),
            Self::Scp => peers.ssh.as_ref().map_or_else(known, |_| Ok(())),
            Self::Rsync => peers.ssh.as_ref().map_or_else(known, peers::Ssh::rsync),
            Self::Postgres(_) => peers.postgres.as_ref().map_or_else(known, |_| Ok(())),
            Self::Redis(..) => peers.redis.as_ref().map_or_else(known, |_| Ok(())),
        }
    }

    /// Its time or its latency, s, or its index.
    fn run(self, bench: &Bench<'_>, peers: &Peers<'_>, way: Way) -> Result<f64, Stop> {
        fn there<T>(peer: &Result<T, Missing>) -> Result<&T> {
            peer.as_ref()
                .map_err(|missing| anyhow::anyhow!(missing.0.clone()))
        }
        match self {
            Self::Downloads(count, len) => bench.download(way, count, len),
            Self::Scp => peers.scp(bench, there(&peers.ssh)?, way.host()),
            Self::Rsync => peers.rsync(bench, there(&peers.ssh)?, way.host()),
            Self::Postgres(count) => there(&peers.postgres)?.transactions(bench, way.host(), count),
            Self::Redis(clients, count) => {
                there(&peers.redis)?.gets(bench, way.host(), clients, count)
            }
            Self::PingPong(seconds) => bench.ping_pong(way, Duration::from_secs(seconds)),
            Self::Fairness(count, seconds) => {
                bench.fairness(way, count, Duration::from_secs(seconds))
            }
        }
    }
}

impl Way {
    /// Both, in the order of a repetition: the first of two runs meets what the last run left.
    const fn in_turn(repetition: u16) -> [Self; 2] {
        match repetition % 2 {
            0 => [Self::Direct, Self::Gateways],
            _ => [Self::Gateways, Self::Direct],
        }
    }

    /// As results name it.
    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Gateways => "gateways",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_excludes_options_of_measurements() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: GatewaysArgs,
        }
        use clap::{CommandFactory as _, Parser as _};
        Line::command().debug_assert();
        let line = Line::try_parse_from(["gateways", "--merge", "one,two", "--out", "all"]);
        assert_eq!(line.map(|line| line.args.merge.len()).unwrap(), 2);
        assert!(Line::try_parse_from(["gateways", "--merge", "one", "--quick"]).is_err());
    }

    #[test]
    fn each_way_goes_first_in_every_other_repetition() {
        let first = |repetition| Way::in_turn(repetition)[0];
        let firsts: Vec<Way> = (0..4).map(first).collect();
        assert_eq!(
            firsts,
            [Way::Direct, Way::Gateways, Way::Direct, Way::Gateways]
        );
        assert_ne!(Way::in_turn(0)[1], first(0));
        assert_ne!(Way::in_turn(1)[1], first(1));
    }
}
