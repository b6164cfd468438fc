//! Tools side by side on one path: `haul lab compare`.
//!
//! Every run has a lab of its own, so that no state passes from one run to the next. The path's
//! random decisions are the same for every tool in a repetition. A tool's own output supplies two
//! figures only: the bytes received and the time they took. The receiver's device counts when
//! bytes arrive, in the same way for every tool, and the kernel supplies processor time.
//!
//! The program `haul-papers` measures whole matrices of paths, fairness, and the figures of the
//! papers with the same parts.
//!
//! Map: [`cell`] a path and its ceiling · [`programs`] paths of the tools · [`tool`] how each is
//! started and its output parsed · [`plan`] command lines and reports · [`gridftp`] and
//! [`transfer`] GridFTP · [`runner`] one run · [`arrivals`] when bytes arrive · [`record`] results
//! · [`table`] medians as text and CSV.

pub mod arrivals;
pub mod cell;
pub mod gridftp;
pub mod plan;
pub mod programs;
pub mod record;
pub mod runner;
pub mod table;
pub mod tool;
pub mod transfer;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use haul_io::netns::child::Signals;

use crate::lab::privilege;
use crate::out;
use crate::scenario::unit::Span;
use cell::Cell;
use plan::Load;
use programs::Programs;
use record::{CellRecord, Results, RunRecord};
use runner::{Outcome, Runner};
use tool::Tool;

/// Arguments of `compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareArgs {
    /// The path: a scenario file, or the name of a built-in scenario (see `scenarios`)
    #[arg(default_value = "wan-100ms")]
    pub scenario: String,
    /// Tools: haul-udt, haul-udt-rate (told the rate), haul-udt-CC, haul-tcp, haul-tcp-CC,
    /// iperf3-CC, libudt; add -N for N streams
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "TOOL,…",
        default_value = "haul-udt,haul-tcp,iperf3-cubic,iperf3-bbr"
    )]
    pub tools: Vec<String>,
    /// Number of runs of each tool
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// Duration of each run, in whole seconds
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "10s")]
    pub time: Span,
    /// Maximum wait for an idle machine before each run
    #[arg(long, value_parser = Span::parse, value_name = "TIME", default_value = "10s")]
    pub settle: Span,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// The programs.
    #[command(flatten)]
    pub programs: Programs,
}

/// Measures the tools on one path and prints their medians.
///
/// # Errors
/// One line that names the wrong argument, or what this machine lacks.
pub fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let cells = [cell::named(&args.scenario)?];
    let tools = tool::parse_all(&args.tools)?;
    let load = Load::Seconds(tool::whole_seconds(args.time)?);
    let signals = start()?;
    let runner = Runner {
        programs: args.programs.resolve(),
        signals: &signals,
        load,
        settle: std::time::Duration::from_nanos(args.settle.ns),
    };
    let results = measure_all(&runner, &cells, tools, args.repeat)?;
    if args.json {
        out::line(out::json(&results)?.trim_end());
    } else {
        out::line(table::render(&results).trim_end());
    }
    Ok(results.exit_code())
}

/// Gets the right to make labs and catches signals. Call it before starting threads.
///
/// # Errors
/// The missing privilege, in one line.
pub fn start() -> Result<Signals> {
    privilege::acquire()?;
    Signals::block().context("cannot handle signals")
}

/// Measures every tool that can run here on every path, `repeat` times in turn.
///
/// # Errors
/// If none of the tools can run here, or if no lab can be made.
pub fn measure_all(
    runner: &Runner<'_>,
    cells: &[Cell],
    tools: Vec<Tool>,
    repeat: u16,
) -> Result<Results> {
    let (tools, skipped) = runner.available(tools);
    if tools.is_empty() {
        bail!("none of the tools can run here");
    }
    let mut results = Results::new(repeat, runner.load, skipped);
    measure(runner, cells, &tools, repeat, &mut results)?;
    Ok(results)
}

/// Every cell, every repetition, every tool in turn, until done or asked to end.
fn measure(
    runner: &Runner<'_>,
    cells: &[Cell],
    tools: &[Tool],
    repeat: u16,
    results: &mut Results,
) -> Result<()> {
    let total = cells.len() * tools.len() * usize::from(repeat);
    let mut count = 0;
    for cell in cells {
        let mut record = CellRecord::new(cell, tools);
        for repetition in 0..repeat {
            for (index, tool) in tools.iter().enumerate() {
                count += 1;
                if let Some(reason) = tool.unfit(cell) {
                    eprintln!(
                        "[{count}/{total}] {} {}: not run: {reason}",
                        cell.name, tool.name
                    );
                    continue;
                }
                let outcome = runner.run(cell, tool, repetition)?;
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

fn summary(run: &RunRecord) -> String {
    let text = match (&run.figures, &run.error) {
        (Some(figures), _) => table::one_line(figures),
        (None, error) => format!("failed: {}", error.as_deref().unwrap_or("no figures")),
    };
    run.warnings
        .iter()
        .fold(text, |text, warning| format!("{text}; warning: {warning}"))
}
