//! Tools side by side on the same paths: `haul lab compare`, and how two flows share one: `haul lab
//! fairness`.
//!
//! Every run has a lab of its own, so nothing is remembered from one to the next, and the path's
//! random decisions are the same for every tool in a repetition. What a tool says about itself is
//! used for two figures only, bytes received and the time that took; when bytes arrived is counted
//! at the receiver's device, in the same way for every tool, and processor time comes from the
//! kernel.
//!
//! Map: [`args`] the command line · [`cell`] paths and their ceilings · [`tool`] programs and what
//! they print · [`session`] one run · [`arrivals`] when bytes came · `haul_report::stats` medians
//! and fairness · `haul_report::machine` the machine and how busy it is · [`record`] what is kept ·
//! [`bar`] what is good enough · [`table`] and [`plot`] for people · [`mod@fairness`] two flows.

mod args;
mod arrivals;
mod bar;
mod cell;
mod fairness;
pub(crate) mod gridftp;
mod plot;
mod record;
pub(crate) mod session;
mod table;
pub(crate) mod tool;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use haul_io::netns::NetNs;
use haul_io::netns::child::Signals;

pub use args::{CompareArgs, FairnessArgs, Programs};
use arrivals::{Arrivals, Ends};
use cell::Cell;
use record::{CellRecord, Results, Run};
use session::{Outcome, Session};
use tool::{Load, Tool};

use crate::lab::privilege;
use crate::lab::topology::WAN;
use crate::out::{self, Out};
use crate::scenario::unit::{Probability, Rate, Span};

/// Measures the matrix.
///
/// # Errors
/// One line that says what is wrong with the arguments or missing on this machine.
pub fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let cells = cell::all(args)?;
    let tools = tool::parse_all(&args.tools)?;
    let load = load(args)?;
    privilege::acquire()?;
    let out = Out::make(args.out.clone())?;
    let signals = Signals::block().context("cannot handle signals")?;
    let session = Session {
        programs: args.programs.resolve(),
        signals: &signals,
        load,
        settle: std::time::Duration::from_nanos(args.settle.ns),
    };
    let (tools, skipped) = session.available(tools);
    if tools.is_empty() {
        bail!("none of the tools can run here");
    }
    let mut results = Results::new(args, load, skipped);
    measure(&session, &cells, &tools, args, &mut results)?;
    if args.bar {
        results.judge();
    }
    let files = [
        ("results.json", out::json(&results)?),
        ("results.csv", table::csv(&results)),
        ("goodput.svg", plot::render(&results)),
    ];
    out.write(&files, &table::render(&results))?;
    Ok(match (results.interrupted, results.complete()) {
        (Some(signal), _) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        (None, true) => ExitCode::SUCCESS,
        (None, false) => ExitCode::FAILURE,
    })
}

/// Measures how flows share a bottleneck.
///
/// # Errors
/// As [`compare`]; or if a flow fails.
pub fn fairness(args: &FairnessArgs) -> Result<ExitCode> {
    fairness::run(args)
}

fn load(args: &CompareArgs) -> Result<Load> {
    match args.bytes {
        Some(size) if size.bytes == 0 => bail!("--bytes must be above 0"),
        Some(size) => Ok(Load::Bytes(size.bytes)),
        None => tool::whole_seconds(args.time).map(Load::Seconds),
    }
}

/// A path of a single run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Hosts joined directly.
    Direct,
    /// With an emulator between them. `loss_ppm`: packets lost of a million.
    Emulated {
        rate_bps: u64,
        rtt_ms: u32,
        loss_ppm: u32,
    },
}

/// What a single run gave.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) goodput_bps: f64,
    /// Of the most that the path can give, without the time that the ramp may take.
    pub(crate) ceiling_share: Option<f64>,
    /// Of the sending end and of the receiving one.
    pub(crate) cpu_s_per_gb: [f64; 2],
    pub(crate) ramp_ms: Option<f64>,
    /// As they arrived at the device.
    pub(crate) bits_by_100ms: Vec<f64>,
    pub(crate) warnings: Vec<String>,
}

impl std::fmt::Display for Path {
    /// As the arguments of [`compare`].
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Direct => write!(f, "--unshaped"),
            Self::Emulated {
                rate_bps,
                rtt_ms,
                loss_ppm,
            } => {
                let loss = f64::from(loss_ppm) / 1e6;
                write!(f, "--rates {rate_bps}bit --rtts {rtt_ms}ms --losses {loss}")
            }
        }
    }
}

/// Does something, and tells what arrived meanwhile at the device towards the path, bits in each
/// 100 ms from the first payload on.
pub(crate) fn arriving<T>(netns: &NetNs, rtt_s: f64, work: impl FnOnce() -> T) -> (T, Vec<f64>) {
    const SPAN_S: f64 = 0.1;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| Arrivals::sample(netns, WAN, Arrivals::step(rtt_s), &stop));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let arrivals = sampler.join().unwrap_or_default();
        let transfer = arrivals.transfer(rtt_s, 0.0, Ends::LastByte);
        let bytes = transfer.map_or_else(Vec::new, |transfer| transfer.by_step(SPAN_S));
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let bits = bytes.into_iter().map(|bytes| bytes as f64 * 8.0);
        (done, bits.collect())
    })
}

/// One run of one tool; or why it cannot run here.
pub(crate) fn once(
    session: &Session<'_>,
    path: Path,
    tool: &str,
    repetition: u16,
) -> Result<std::result::Result<Once, String>, session::Stop> {
    let cell = match path {
        Path::Direct => cell::unshaped(1500)?,
        Path::Emulated {
            rate_bps,
            rtt_ms,
            loss_ppm,
        } => cell::figures(
            Rate { bps: rate_bps },
            Span {
                ns: u64::from(rtt_ms) * 1_000_000,
            },
            Probability(f64::from(loss_ppm) / 1e6),
            1500,
        )?,
    };
    let tool = Tool::parse(tool)?;
    if let Some(why) = session.missing(&tool) {
        return Ok(Err(why));
    }
    let run = match session.run(&cell, &tool, repetition)? {
        Outcome::Ran(run) => run,
        Outcome::Interrupted(signal) => return Err(session::Stop::Interrupted(signal)),
    };
    let Some(figures) = run.figures else {
        let why = run.error.unwrap_or_default();
        return Err(session::Stop::Failed(anyhow::anyhow!(
            "{} on {}: {why}",
            tool.name,
            cell.name
        )));
    };
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    let bits = figures
        .arrived_by_100ms
        .iter()
        .map(|&bytes| bytes as f64 * 8.0);
    Ok(Ok(Once {
        goodput_bps: figures.goodput_bps,
        ceiling_share: figures.after_ramp_share,
        cpu_s_per_gb: [figures.cpu_a_s_per_gb, figures.cpu_b_s_per_gb],
        ramp_ms: figures.ramp_ms,
        bits_by_100ms: bits.collect(),
        warnings: run.warnings,
    }))
}

/// Every cell, every repetition, every tool in turn, until done or asked to end.
fn measure(
    session: &Session<'_>,
    cells: &[Cell],
    tools: &[Tool],
    args: &CompareArgs,
    results: &mut Results,
) -> Result<()> {
    let total = cells.len() * tools.len() * usize::from(args.repeat);
    let mut count = 0;
    for cell in cells {
        let mut record = CellRecord::new(cell, tools);
        for repetition in 0..args.repeat {
            for (index, tool) in tools.iter().enumerate() {
                count += 1;
                if let Some(reason) = tool.unfit(cell) {
                    eprintln!(
                        "[{count}/{total}] {} {}: not run: {reason}",
                        cell.name, tool.name
                    );
                    continue;
                }
                let outcome = session.run(cell, tool, repetition)?;
                let run = match outcome {
                    Outcome::Ran(run) => *run,
                    Outcome::Interrupted(signal) => {
                        eprintln!("interrupted: {} of {total} runs done", count - 1);
                        results.interrupted = Some(signal);
                        results.push(record);
                        return Ok(());
                    }
                };
                eprintln!(
                    "[{count}/{total}] {} {}: {}",
                    cell.name,
                    tool.name,
                    summary(&run)
                );
                record.tools[index].runs.push(run);
            }
        }
        results.push(record);
    }
    Ok(())
}

fn summary(run: &Run) -> String {
    let text = match (&run.figures, &run.error) {
        (Some(figures), _) => table::one_line(figures),
        (None, error) => format!("failed: {}", error.as_deref().unwrap_or("no figures")),
    };
    run.warnings
        .iter()
        .fold(text, |text, warning| format!("{text}; warning: {warning}"))
}
