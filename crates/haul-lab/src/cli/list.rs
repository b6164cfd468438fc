//! `list` and `scenarios`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use super::args::{ListArgs, ScenariosArgs};
use crate::out;
use crate::scenario::{BUILTIN, Scenario};
use crate::state::{LabDir, State};
use crate::usage::Usage;

#[derive(Serialize)]
struct Listed {
    name: String,
    #[serde(flatten)]
    state: State,
    /// The counters that a lab in the background writes; none yet if it has just started, or runs
    /// in the foreground.
    path: Option<serde_json::Value>,
}

pub(super) fn list(args: &ListArgs) -> Result<ExitCode> {
    LabDir::sweep()?;
    let mut labs = Vec::new();
    for dir in LabDir::all()? {
        if let Some(state) = dir.read_state() {
            let text = std::fs::read_to_string(dir.stats_file()).ok();
            let path = text.and_then(|text| serde_json::from_str(&text).ok());
            labs.push(Listed {
                name: dir.name().into(),
                state,
                path,
            });
        }
    }
    if args.json {
        out::line(serde_json::to_string_pretty(&labs)?);
        return Ok(ExitCode::SUCCESS);
    }
    for Listed { name, state, .. } in &labs {
        let hosts: Vec<String> = state
            .hosts
            .iter()
            .map(|host| format!("{} {}", host.name, host.v4))
            .collect();
        let (scenario, pid, hosts) = (&state.scenario, state.pid, hosts.join(", "));
        out::line(format_args!("{name}\t{scenario}\tprocess {pid}\t{hosts}"));
    }
    if labs.is_empty() {
        eprintln!("no lab is up");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn scenarios(args: &ScenariosArgs) -> Result<ExitCode> {
    if let Some(wanted) = &args.name {
        let (_, text) = BUILTIN
            .iter()
            .find(|(name, _)| name == wanted)
            .with_context(|| {
                let names: Vec<_> = BUILTIN.iter().map(|(name, _)| *name).collect();
                Usage(format!(
                    "no scenario {wanted} comes along: there are {}",
                    names.join(", ")
                ))
            })?;
        out::line(text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    for (name, text) in BUILTIN {
        let description = Scenario::parse(name, text)?.description;
        out::line(format_args!("{name:<12} {description}"));
    }
    Ok(ExitCode::SUCCESS)
}
