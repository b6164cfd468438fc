//! `haul sync`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use haul::choice::Choice;
use haul::client::{self, Config, Policy, Selection};
use haul::fault::{Code, Fault};
use haul::fs::filter;
use haul::fs::path::Relative;
use haul::paths::Paths;
use haul::report::{Summary, count_of};
use haul::sync::{self as engine, Finding, Guards, How, Last, Pair, Source};

use super::plan::dry_run;
use super::transfer::{config, explain, policy, watch};
use crate::args::sync::Sync;
use crate::operand::{Remote, Way};
use crate::output::plan::PlanOutput;
use crate::output::{Deletion, Output};
use crate::place;

/// Makes the destination as the source is.
pub(crate) fn sync(args: &Sync) -> ExitCode {
    if args.transfer.dry_run {
        return plan(args);
    }
    let output = Arc::new(Output::transfer(args.transfer.output));
    let result = watch(&output, &args.transfer, false).and_then(|()| {
        let resolved = Resolved::of(args)?;
        let synced = resolved.run(args, &output);
        synced.map_err(|fault| explain(fault, &resolved.config, &resolved.remote))
    });
    match result {
        Ok((summary, deletion)) => {
            output.synced(&summary, args.transfer.tree.strict_metadata, &deletion)
        }
        Err(fault) => output.fault(&fault),
    }
}

fn plan(args: &Sync) -> ExitCode {
    let mut output = PlanOutput::new(args.transfer.output);
    let checked = args.transfer.tree.failed.check_dry_run(false);
    let result = checked
        .and_then(|()| Resolved::of(args))
        .and_then(|resolved| {
            let Resolved {
                config,
                remote,
                pair,
                choice,
            } = &resolved;
            let destination = match pair.source {
                Source::Local => &remote.path[..],
                Source::Remote => args.destination.as_bytes(),
            };
            let guards = args.delete.then(|| guards(args));
            let planned = dry_run(
                config,
                std::slice::from_ref(pair),
                destination,
                choice,
                how(args),
                guards.as_ref(),
                &mut output,
            );
            planned.map_err(|fault| explain(fault, config, remote))
        });
    output.finish(result)
}

fn how(args: &Sync) -> How {
    How {
        checksum: args.checksum,
        update: args.update,
        recheck: args.transfer.existing.recheck,
        adds_only: args.transfer.existing.no_replace,
        ..How::default()
    }
}

fn guards(args: &Sync) -> Guards {
    Guards {
        max_delete: args.max_delete,
        last: place::sync().map(Last::new),
        accepts_source: args.accept_source,
    }
}

/// What the command line names.
struct Resolved {
    config: Config,
    remote: Remote,
    pair: Pair,
    choice: Choice,
}

impl Resolved {
    fn of(args: &Sync) -> Result<Self, Fault> {
        let (source, destination) = (args.source.as_os_str(), args.destination.as_os_str());
        let (remote, pair) = match one_remote(source, destination)? {
            (remote, Source::Local) => {
                let source = Path::new(source);
                check_source(source)?;
                let pair = Pair::to_server(source, &remote.path)?;
                (remote, pair)
            }
            (mut remote, Source::Remote) => {
                if remote.path.is_empty() {
                    remote.path = b".".to_vec();
                }
                let pair = Pair::from_server(&remote.path, Path::new(destination))?;
                (remote, pair)
            }
        };
        if let Way::Pairing { .. } = remote.way {
            let text = format!("{} receives files once", remote.host());
            let hint = "name a host by ssh, or a haul:// server";
            return Err(Fault::new(Code::Usage, text).hint(hint));
        }
        let choice = Choice {
            rules: args.rules.0.clone(),
            reads_ignore_files: !args.no_ignore,
            only_trees: true,
            ..Choice::default()
        };
        // Before a login.
        choice.filter()?;
        let paths = (!args.no_path_memory).then(place::paths).flatten();
        let config = Config {
            paths: paths.map(Paths::new),
            ..config(&(&args.transfer).into(), &remote)?
        };
        Ok(Self {
            config,
            remote,
            pair,
            choice,
        })
    }

    fn run(&self, args: &Sync, output: &Output) -> Result<(Summary, Deletion), Fault> {
        let config = engine::enter(&self.config)?;
        if args.delete {
            guards(args).check_first(&config, &self.pair)?;
        }
        let mut policy = Policy {
            update: args.update,
            delta: args.delta,
            deletes: args.delete,
            ..policy(&args.transfer)
        };
        let mut choice = self.choice.clone();
        if args.checksum {
            let differing = self.differing(&config, args, output)?;
            match self.pair.source {
                Source::Local => choice.list = Some(filter::to_list(differing)),
                Source::Remote => {
                    let offered = differing.iter().map(|path| self.pair.offered(path));
                    choice.only = Some(offered.collect::<Result<_, _>>()?);
                }
            }
            policy.recheck = true;
        }
        let summary = self.transfer(args, &config, &choice, policy, output)?;
        let deletion = match (args.delete, summary.entries.failed) {
            (false, _) => Deletion::Unwanted,
            (true, 0) => self.delete(&config, args, output),
            (true, _) => {
                let text = "nothing is deleted: entries failed";
                Deletion::Refused(Fault::new(Code::FileError, text))
            }
        };
        Ok((summary, deletion))
    }

    fn transfer(
        &self,
        args: &Sync,
        config: &Config,
        choice: &Choice,
        policy: Policy,
        output: &Output,
    ) -> Result<Summary, Fault> {
        match self.pair.source {
            Source::Local => {
                let selection = Selection {
                    operands: vec![PathBuf::from(&args.source)],
                    members: choice.options()?,
                };
                client::send(config, &selection, &self.remote.path, policy, output)
            }
            Source::Remote => {
                let paths = [self.remote.path.clone()];
                let directory = Path::new(&args.destination);
                client::get(config, &paths, choice, directory, policy, output)
            }
        }
    }

    /// Returns the paths whose content differs.
    fn differing(
        &self,
        config: &Config,
        args: &Sync,
        output: &Output,
    ) -> Result<Vec<Relative>, Fault> {
        let how = How {
            adds_only: false,
            recheck: false,
            ..how(args)
        };
        let mut paths = Vec::new();
        let mut failures = 0_u64;
        let mut each = |finding: &Finding<'_>| match finding {
            Finding::Step(_, entry) => paths.push(entry.path.clone()),
            Finding::Failed(text) => {
                failures += 1;
                output.note(text);
            }
            Finding::Note(text) => output.note(text),
        };
        engine::examine(config, &self.pair, &self.choice, how, &mut each)?;
        if failures > 0 {
            let text = count_of(
                failures,
                "entry could not be compared",
                "entries could not be compared",
            );
            return Err(Fault::new(Code::FileError, text).hint("see the lines above"));
        }
        Ok(paths)
    }

    fn delete(&self, config: &Config, args: &Sync, output: &Output) -> Deletion {
        let mut each = |finding: &Finding<'_>| {
            if let Finding::Failed(text) | Finding::Note(text) = finding {
                output.note(text);
            }
        };
        let guards = guards(args);
        match engine::delete(config, &self.pair, &self.choice, &guards, &mut each) {
            Ok((plan, outcome)) => Deletion::Done(plan, outcome),
            Err(fault) => Deletion::Refused(explain(fault, config, &self.remote)),
        }
    }
}

/// Returns the operand at a host, and which of both is the source.
fn one_remote(source: &OsStr, destination: &OsStr) -> Result<(Remote, Source), Fault> {
    let one = |text: &str| {
        Fault::new(Code::Usage, text)
            .hint("write HOST:DIR or haul://HOST/DIR for one of both, and ./ before a local path")
    };
    match (Remote::parse(source), Remote::parse(destination)) {
        (Ok(remote), Err(_)) => Ok((remote, Source::Remote)),
        (Err(_), Ok(remote)) => Ok((remote, Source::Local)),
        (Ok(_), Ok(_)) => Err(one("both operands are at a host")),
        (Err(_), Err(_)) => Err(one("no operand is at a host")),
    }
}

fn check_source(source: &Path) -> Result<(), Fault> {
    Selection::of(vec![source.to_owned()]).check()?;
    if source.is_dir() {
        return Ok(());
    }
    let shown = haul::printable(source.as_os_str().as_bytes());
    let text = format!("'{shown}' is not a directory");
    Err(Fault::new(Code::DirectoryNotFound, text).hint("haul send and haul get take files"))
}
