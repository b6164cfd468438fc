//! `calibrate`: the emulator, measured.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::CalibrateArgs;
use crate::calibrate::{Ceilings, PathCheck, check_path, find_ceilings};
use crate::scenario::Scenario;

/// What is checked when no scenario is named.
const EXAMPLE: &str = "[path]\nrate = \"1Gbit\"\nrtt = \"20ms\"\nloss = 1e-3";

#[derive(Serialize)]
struct Calibration {
    path: PathCheck,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceilings: Option<Ceilings>,
}

pub(super) fn calibrate(args: &CalibrateArgs) -> Result<ExitCode> {
    let time = Duration::try_from_secs_f64(args.seconds)?;
    let scenario = match &args.scenario {
        Some(which) => Scenario::load(which)?,
        None => Scenario::parse("example", EXAMPLE)?,
    };
    eprintln!("measuring; the machine should be doing nothing else");
    let path = check_path(&scenario, time)?;
    if !args.json {
        println!("{path}");
    }
    let ceilings = match args.scenario {
        Some(_) => None,
        None => Some(search(args, time)?),
    };
    let honest = path.honest;
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&Calibration { path, ceilings })?
        );
    }
    Ok(if honest {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn search(args: &CalibrateArgs, time: Duration) -> Result<Ceilings> {
    let ceilings = find_ceilings(time / 2, |tried| eprintln!("{tried}"))?;
    if !args.json {
        println!("{ceilings}");
    }
    let path = ceilings.save()?;
    eprintln!("kept in {}", path.display());
    Ok(ceilings)
}
