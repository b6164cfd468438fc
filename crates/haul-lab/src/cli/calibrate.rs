//! `calibrate`: the emulator, measured.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::args::CalibrateArgs;
use crate::calibrate::{Agreement, Ceilings, PathCheck, check_path, find_ceilings};
use crate::lab::Engine;
use crate::out;
use crate::scenario::Scenario;

/// The scenarios to check by default.
const EXAMPLE: &str = "[path]\nrate = \"1Gbit\"\nrtt = \"20ms\"\nloss = 1e-3";

#[derive(Serialize)]
struct Calibration {
    path: PathCheck,
    #[serde(skip_serializing_if = "Option::is_none")]
    netem: Option<Netem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceilings: Option<Ceilings>,
}

/// The same scenario emulated by the kernel's netem.
#[derive(Serialize)]
struct Netem {
    path: PathCheck,
    agreement: Agreement,
}

fn beside_netem(scenario: &Scenario, ours: &PathCheck, time: Duration) -> Result<Netem> {
    let path = check_path(scenario, Engine::Kernel, time)?;
    let agreement = Agreement::of(ours, &path);
    Ok(Netem { path, agreement })
}

pub(super) fn calibrate(args: &CalibrateArgs) -> Result<ExitCode> {
    let time = Duration::try_from_secs_f64(args.seconds)?;
    let scenario = match &args.scenario {
        Some(which) => Scenario::load(which)?,
        None => Scenario::parse("example", EXAMPLE)?,
    };
    eprintln!("measuring; the machine should be doing nothing else");
    let path = check_path(&scenario, Engine::Tun, time)?;
    if !args.json {
        out::line(&path);
    }
    let netem = if args.netem {
        Some(beside_netem(&scenario, &path, time)?)
    } else {
        None
    };
    if let Some(netem) = netem.as_ref().filter(|_| !args.json) {
        out::line(&netem.agreement);
    }
    let ceilings = match args.scenario {
        Some(_) => None,
        None => Some(search(args, time)?),
    };
    let honest = path.honest && netem.as_ref().is_none_or(|netem| netem.agreement.agree);
    if args.json {
        let calibration = Calibration {
            path,
            netem,
            ceilings,
        };
        out::line(serde_json::to_string_pretty(&calibration)?);
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
        out::line(&ceilings);
    }
    let path = ceilings.save()?;
    eprintln!("kept in {}", path.display());
    Ok(ceilings)
}
