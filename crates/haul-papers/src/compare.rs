//! Tools side by side over a matrix of paths: `haul-papers compare`; and how two flows share one
//! path: `haul-papers fairness`. `haul_lab::compare` makes the runs.
//!
//! Map: [`args`] the command line · [`matrix`] the paths · [`bar`] the project's requirements ·
//! [`plot`] goodput as a picture · [`mod@fairness`] two flows · [`once`] a single run.

mod args;
mod bar;
pub(crate) mod fairness;
mod matrix;
pub(crate) mod once;
mod plot;

use std::process::ExitCode;

use anyhow::{Result, bail};
use haul_lab::compare::plan::Load;
use haul_lab::compare::runner::Runner;
use haul_lab::compare::tool;
use haul_lab::compare::{measure_all, start, table};
use haul_lab::out::{self, Out};

pub(crate) use args::{CompareArgs, FairnessArgs};

/// Measures the matrix.
///
/// # Errors
/// The error of the arguments, or what this machine lacks, in one line.
pub(crate) fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let cells = matrix::all(args)?;
    let tools = tool::parse_all(&args.tools)?;
    let load = load(args)?;
    let signals = start()?;
    let out = Out::make(args.out.clone())?;
    let runner = Runner {
        programs: args.programs.resolve(),
        signals: &signals,
        load,
        settle: std::time::Duration::from_nanos(args.settle.ns),
    };
    let mut results = measure_all(&runner, &cells, tools, args.repeat)?;
    if args.bar {
        bar::judge(&mut results);
    }
    let files = [
        ("results.json", out::json(&results)?),
        ("results.csv", table::csv(&results)),
        ("goodput.svg", plot::render(&results)),
    ];
    out.write(&files, &table::render(&results))?;
    Ok(results.exit_code())
}

fn load(args: &CompareArgs) -> Result<Load> {
    match args.bytes {
        Some(size) if size.bytes == 0 => bail!("--bytes must be above 0"),
        Some(size) => Ok(Load::Bytes(size.bytes)),
        None => tool::whole_seconds(args.time).map(Load::Seconds),
    }
}
