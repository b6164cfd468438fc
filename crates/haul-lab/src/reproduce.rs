//! A paper's figures, made on this machine in one run: `haul lab reproduce`.
//!
//! A paper is a list of experiments, each for a figure. An experiment measures with the program itself (`haul bench rdma` and `haul run`
//! between hosts of a lab), so that whoever doubts a point can measure it alone; one that cannot run here says why. Series take turns, as in
//! `haul lab compare`, and medians count.
//!
//! Map: [`record`] what is kept, and what a paper claims · [`mod@bench`] one measurement · [`ceiling`] plain UDP · [`datagram`] the
//! experiments of the paper on datagrams · [`programs`] unmodified programs under `haul run`, [`vlc`] and [`sipp`] · [`chart`] and
//! [`page`] for people.

mod bench;
mod ceiling;
mod chart;
mod datagram;
mod page;
mod programs;
mod record;
mod sipp;
mod vlc;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use haul_io::netns::child::Signals;

use crate::compare::Programs;
use crate::compare::machine::Machine;
use crate::compare::session::{Session, Stop};
use crate::compare::tool::Load;
use crate::lab::privilege;
use crate::out::{self, Out};
use crate::scenario::unit::Span;
use bench::Context;
use record::{Figure, Results};

/// Arguments of `reproduce`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReproduceArgs {
    /// Which paper
    #[arg(value_enum)]
    pub paper: Paper,
    /// These figures only
    #[arg(long = "figure", value_name = "N", value_delimiter = ',')]
    pub figures: Vec<u32>,
    /// A few sizes, each measured once and shortly: to see that it works, not to believe
    #[arg(long)]
    pub quick: bool,
    /// How often each series is measured [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: Option<u16>,
    /// How long each message size is measured [default: 300ms; with --quick 20ms]
    #[arg(long, value_parser = Span::parse, value_name = "TIME")]
    pub time: Option<Span>,
    /// Wait this long at most for an idle machine before each measurement
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "5s")]
    pub settle: Span,
    /// Write results.json, table.txt and index.html into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
}

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Paper {
    /// RDMA over unreliable datagrams: Grant, Rashti, Afsahi, Balaji, IPDPS 2011
    Datagram,
}

/// How a figure is made.
struct Experiment {
    /// Its number in the paper.
    figure: u32,
    /// Fills it in.
    run: fn(&Context<'_>, &mut Figure) -> Result<(), Stop>,
    /// Its title, and what the paper claims with it.
    about: fn() -> Figure,
}

/// Makes the figures.
///
/// # Errors
/// One line that says what is wrong with the arguments or missing on this machine.
pub fn reproduce(args: &ReproduceArgs) -> Result<ExitCode> {
    let Paper::Datagram = args.paper;
    let all = datagram::experiments();
    if let Some(none) = args
        .figures
        .iter()
        .find(|wanted| all.iter().all(|one| one.figure != **wanted))
    {
        let known: Vec<String> = all.iter().map(|one| one.figure.to_string()).collect();
        bail!("there is no figure {none}: there are {}", known.join(", "));
    }
    privilege::acquire()?;
    let out = Out::make(args.out.clone())?;
    let signals = Signals::block().context("cannot handle signals")?;
    let time = args.time.map_or(if args.quick { 20 } else { 300 }, |time| {
        time.ns / 1_000_000
    });
    if time == 0 {
        bail!("--time must be at least 1ms");
    }
    let session = Session {
        programs: args.programs.resolve(),
        signals: &signals,
        load: Load::Seconds(1),
        settle: Duration::from_nanos(if args.quick { 0 } else { args.settle.ns }),
    };
    let context = Context {
        session: &session,
        quick: args.quick,
        repeat: args.repeat.unwrap_or(if args.quick { 1 } else { 3 }),
        time_ms: time,
    };
    let mut results = Results::new(datagram::TITLE, Machine::describe(), &context);
    for experiment in all {
        if !args.figures.is_empty() && !args.figures.contains(&experiment.figure) {
            continue;
        }
        let mut figure = (experiment.about)();
        eprintln!("figure {}: {}", figure.number, figure.title);
        match (experiment.run)(&context, &mut figure) {
            Ok(()) => figure.judge(),
            Err(Stop::Interrupted(signal)) => {
                results.interrupted = Some(signal);
                results.figures.push(figure);
                break;
            }
            Err(Stop::Failed(error)) => figure.failed = Some(format!("{error:#}")),
        }
        for line in figure.not_run.iter().chain(&figure.failed) {
            eprintln!("figure {}: {line}", figure.number);
        }
        results.figures.push(figure);
    }
    let table = results.table();
    let files = [
        ("results.json", out::json(&results)?),
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
