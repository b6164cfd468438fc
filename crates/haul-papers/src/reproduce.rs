//! Reproduces a paper's figures on this machine in one run: `haul-papers reproduce`.
//!
//! A paper is a list of experiments, each for a figure. An experiment measures with the program
//! itself (`haul bench rdma` and `haul run` between hosts of a lab), so that a reader who doubts a
//! point can measure it alone; one that cannot run here reports why. Series take turns, as in `haul
//! lab compare`, and medians count.
//!
//! Map: [`record`] results, and claims of the papers · [`mod@bench`] a lab with a server of `haul
//! bench` · [`ceiling`] plain UDP · [`datagram`] the experiments of the paper on datagrams ·
//! [`gridftp`] GridFTP · [`phoebus`] gateways, by [`gateways`] · [`wan`] profiles of long paths and
//! [`efficient`] protocols for them, both of [`cells`] · [`programs`] unmodified programs under
//! `haul run`, [`vlc`] and [`sipp`] · [`chart`] and [`page`] the report.

mod bench;
mod ceiling;
mod cells;
mod chart;
mod datagram;
mod efficient;
mod experiment;
mod gateways;
mod gridftp;
mod page;
mod phoebus;
mod programs;
mod record;
mod sipp;
mod vlc;
mod wan;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use haul_report::machine::Machine;

use bench::Context;
use experiment::Experiment;
use haul_lab::compare::plan::Load;
use haul_lab::compare::programs::Programs;
use haul_lab::compare::runner::{Runner, Stop};
use haul_lab::compare::start;
use haul_lab::out::{self, Out};
use haul_lab::scenario::unit::Span;
use record::{Figure, Results};

/// Arguments of `reproduce`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReproduceArgs {
    /// The paper
    #[arg(value_enum)]
    pub paper: Paper,
    /// Only these figures
    #[arg(long = "figure", value_name = "N", value_delimiter = ',')]
    pub figures: Vec<u32>,
    /// Only these tables
    #[arg(long = "table", value_name = "N", value_delimiter = ',')]
    pub tables: Vec<u32>,
    /// A few sizes, each measured once and briefly: a smoke test, not a result
    #[arg(long)]
    pub quick: bool,
    /// Number of measurements of each series [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: Option<u16>,
    /// Duration for each message size [default: 300ms; with --quick 20ms], each transfer of phoebus
    /// [20s; 3s] and gridftp [10s; 4s; figure 9 ten times that, with --quick twice], each run of
    /// wan-profiling and efficient-protocols [10s; 2s]
    #[arg(long, value_parser = Span::parse, value_name = "TIME")]
    pub time: Option<Span>,
    /// Maximum wait for an idle machine before each measurement
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "5s")]
    pub settle: Span,
    /// Write results.json, results.csv, table.txt and index.html into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
}

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    /// RDMA over unreliable datagrams: Grant, Rashti, Afsahi, Balaji, IPDPS 2011
    Datagram,
    /// GridFTP: Rashti, Sabin, Kettimuthu, 2014, and the GridFTP part of Kissel and Swany, 2012
    Gridftp,
    /// Gateways: the other part of Kissel and Swany, 2012
    Phoebus,
    /// Throughput over thousands of miles: Rao, Yu, Wing, Poole, Vetter, SC 2008
    WanProfiling,
    /// TCP, UDP, UDT and RDMA at both ends: Tierney, Kissel, Swany, Pouyoul, 2012
    EfficientProtocols,
}

impl Paper {
    /// Its title, and the figures that can be made.
    fn experiments(self) -> (&'static str, Vec<Experiment>) {
        match self {
            Self::Datagram => (datagram::TITLE, datagram::experiments()),
            Self::Gridftp => (gridftp::TITLE, gridftp::experiments()),
            Self::Phoebus => (phoebus::TITLE, phoebus::experiments()),
            Self::WanProfiling => (wan::TITLE, wan::experiments()),
            Self::EfficientProtocols => (efficient::TITLE, efficient::experiments()),
        }
    }

    /// How long a measurement takes unless something else is asked for, ms.
    fn time_ms(self, quick: bool) -> u64 {
        match (self, quick) {
            (Self::Phoebus, true) => 3_000,
            (Self::Gridftp, true) => 4_000,
            (Self::Phoebus, false) => 20_000,
            (Self::WanProfiling | Self::EfficientProtocols, true) => 2_000,
            (Self::Gridftp | Self::WanProfiling | Self::EfficientProtocols, false) => 10_000,
            (Self::Datagram, true) => 20,
            (Self::Datagram, false) => 300,
        }
    }
}

/// Exit code for a figure or table that the paper does not have.
const USAGE: u8 = 2;

impl ReproduceArgs {
    /// Whether the figure is selected. Without a selection, all are.
    fn wants(&self, figure: &Figure) -> bool {
        let named = if figure.table {
            &self.tables
        } else {
            &self.figures
        };
        self.figures.is_empty() && self.tables.is_empty() || named.contains(&figure.number)
    }

    /// Returns an error line if the paper has no such figure or table.
    fn unknown_number(&self, all: &[Figure]) -> Option<String> {
        let missing = |numbers: &[u32], table: bool, kind: &str| {
            let known = || all.iter().filter(|one| one.table == table);
            let missing = numbers
                .iter()
                .find(|number| known().all(|one| one.number != **number))?;
            let names: Vec<String> = known().map(|one| one.number.to_string()).collect();
            let there = match names.join(", ") {
                names if names.is_empty() => "none".to_owned(),
                names => format!("{kind}s {names}"),
            };
            Some(format!("the paper has no {kind} {missing}; it has {there}"))
        };
        missing(&self.figures, false, "figure").or_else(|| missing(&self.tables, true, "table"))
    }
}

/// Reproduces the figures.
///
/// # Errors
/// One line that names what is wrong with the arguments or missing on this machine.
pub(crate) fn reproduce(args: &ReproduceArgs) -> Result<ExitCode> {
    let (title, all) = args.paper.experiments();
    let figures: Vec<Figure> = all.iter().map(|one| (one.about)()).collect();
    if let Some(why) = args.unknown_number(&figures) {
        eprintln!("haul-papers: {why}");
        return Ok(ExitCode::from(USAGE));
    }
    let signals = start()?;
    let out = Out::make(args.out.clone())?;
    let time = args.time.map_or_else(
        || args.paper.time_ms(args.quick),
        |time| time.ns / 1_000_000,
    );
    if time == 0 {
        bail!("--time must be at least 1ms");
    }
    let runner = Runner {
        programs: args.programs.resolve(),
        signals: &signals,
        load: Load::Seconds(1),
        settle: Duration::from_nanos(if args.quick { 0 } else { args.settle.ns }),
    };
    let mut context = Context {
        runner: &runner,
        quick: args.quick,
        repeat: args.repeat.unwrap_or(if args.quick { 1 } else { 3 }),
        time_ms: time,
        later: Duration::ZERO,
    };
    let mut results = Results::new(
        title,
        Machine::describe(),
        (context.quick, context.repeat, context.time_ms),
    );
    let wanted: Vec<(Experiment, Figure)> = all
        .into_iter()
        .zip(figures)
        .filter(|(_, figure)| args.wants(figure))
        .collect();
    context.later = wanted.iter().map(|(one, _)| (one.lasts)(&context)).sum();
    for (experiment, mut figure) in wanted {
        let label = figure.label();
        eprintln!("{label}: {}", figure.title);
        context.later = context.later.saturating_sub((experiment.lasts)(&context));
        match (experiment.run)(&context, &mut figure) {
            Ok(()) => figure.judge(),
            Err(Stop::Interrupted(signal)) => {
                results.interrupted = Some(signal);
                figure.judge();
                results.figures.push(figure);
                break;
            }
            Err(Stop::Failed(error)) => figure.failed = Some(haul_lab::line(&error)),
        }
        for line in figure.not_run.iter().chain(&figure.failed) {
            eprintln!("{label}: {line}");
        }
        results.figures.push(figure);
    }
    let table = results.table();
    let files = [
        ("results.json", out::json(&results)?),
        ("results.csv", results.csv()),
        ("table.txt", table.clone()),
        ("index.html", page::render(&results)),
    ];
    out.write(&files, &table)?;
    Ok(match (results.interrupted, results.complete()) {
        (Some(signal), _) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        (None, true) => ExitCode::SUCCESS,
        (None, false) => ExitCode::FAILURE,
    })
}
