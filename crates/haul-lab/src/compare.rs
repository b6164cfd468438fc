//! Tools side by side on the same paths: `haul lab compare`, and how two flows share one: `haul lab fairness`.
//!
//! Every run has a lab of its own, so nothing is remembered from one to the next, and the path's random decisions are the same for
//! every tool in a repetition. What a tool says about itself is used for two figures only, bytes received and the time that took;
//! when bytes arrived is counted at the receiver's device, in the same way for every tool, and processor time comes from the kernel.
//!
//! Map: [`args`] the command line · [`cell`] paths and their ceilings · [`tool`] programs and what they print · [`session`] one run ·
//! [`arrivals`] when bytes came · [`stats`] medians and fairness · [`machine`] the machine and how busy it is · [`record`] what is
//! kept · [`bar`] what is good enough · [`table`] and [`plot`] for people · [`mod@fairness`] two flows.

mod args;
mod arrivals;
mod bar;
mod cell;
mod fairness;
pub(crate) mod machine;
mod plot;
mod record;
pub(crate) mod session;
pub(crate) mod stats;
mod table;
pub(crate) mod tool;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use haul_io::netns::child::Signals;

pub use args::{CompareArgs, FairnessArgs, Programs};
use cell::Cell;
use record::{CellRecord, Results, Run};
use session::{Outcome, Session};
use tool::{Load, Tool};

use crate::lab::privilege;
use crate::out::{self, Out};

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
