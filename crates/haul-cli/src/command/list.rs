//! `haul ls` and `haul verify`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use haul::choice::Choice;
use haul::client::Config;
use haul::fault::{Code, Fault};
use haul::fs::path::Relative;
use haul::listing::client::{Found, Request, Session};
use haul::listing::verify::{self, Event, Source};
use haul::report::count_of;

use super::fail;
use super::transfer::{self, explain};
use crate::args::list::{Ls, Reach, Verify};
use crate::operand::{Remote, Way};
use crate::output::failures::PathList;
use crate::output::list::{self as output, Manifest};

/// Lists a directory or file of a host.
pub(crate) fn ls(args: &Ls) -> ExitCode {
    let listed = Remote::parse(&args.operand).and_then(|remote| {
        let request = Request {
            path: remote.path.clone(),
            is_recursive: args.recursive,
            choice: Choice {
                rules: args.rules.0.clone(),
                ..Choice::default()
            },
            ..Request::default()
        };
        let config = config(&args.reach, &remote, false)?;
        let mut failures = 0;
        let session = open(&config, &remote, &request)?;
        let mut listing = output::Listing::new(args.json_stream);
        session.list(|found| {
            match found {
                Found::Entry(mut entry, _) => {
                    if entry.path.is_root() {
                        // The operand is a file.
                        let name = remote.path.rsplit(|byte| *byte == b'/').next();
                        entry.path = Relative::new(name.unwrap_or_default())?;
                    }
                    listing.add(entry)?;
                }
                Found::Failed { text, .. } => {
                    failures += 1;
                    output::failure(&text, args.json_stream)?;
                }
            }
            Ok(())
        })?;
        listing.finish()?;
        Ok(failures)
    });
    match listed {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => fail(&Fault::new(
            Code::FileError,
            format!(
                "the list is incomplete: {}",
                count_of(
                    failures,
                    "entry could not be examined",
                    "entries could not be examined"
                )
            ),
        )),
        Err(fault) => fail(&fault),
    }
}

/// Compares a tree or file with one of a host.
pub(crate) fn verify(args: &Verify) -> ExitCode {
    let verified = sides(args).and_then(|(remote, local, source)| {
        args.failed.check(false)?;
        let request = Request {
            path: remote.path.clone(),
            choice: Choice {
                rules: args.rules.0.clone(),
                reads_ignore_files: !args.no_ignore,
                ..Choice::default()
            },
            ..Request::default()
        };
        let config = config(&args.reach, &remote, args.quiet)?;
        let mut manifest = args.manifest.as_deref().map(Manifest::create).transpose()?;
        let (mut unwritten, mut failed) = (None, PathList::create(&args.failed)?);
        let counts = verify::verify(&config, &request, Path::new(local), source, &mut |event| {
            // Two files are compared by the name of the local one.
            let path = match event {
                Event::Same(path, _) | Event::Different(path, _) => path.as_bytes(),
                Event::Failed { path, .. } => path,
            };
            let path = match (path, Path::new(local).file_name()) {
                (b"", Some(name)) if !Path::new(local).is_dir() => name.as_encoded_bytes(),
                (b"", _) => b".",
                (path, _) => path,
            };
            match (event, &mut manifest, &mut failed) {
                (Event::Same(_, hash), Some(manifest), _) => {
                    if let Err(fault) = manifest.add(path, hash) {
                        unwritten.get_or_insert(fault);
                    }
                }
                (Event::Same(..), ..) | (_, _, None) => {}
                (_, _, Some(list)) => list.add(path),
            }
            output::finding(event, path, args.json_stream);
        })
        .map_err(|fault| explain(fault, &config, &remote))?;
        if let Some(manifest) = manifest {
            manifest.finish()?;
        }
        failed.iter().for_each(PathList::tell_lacks);
        output::verified(&counts, args.json_stream, args.quiet);
        unwritten.or_else(|| counts.fault()).map_or(Ok(()), Err)
    });
    match verified {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

/// Returns the side at a host, the local one, and which is the source.
fn sides(args: &Verify) -> Result<(Remote, &OsStr, Source), Fault> {
    let (source, destination) = (args.source.as_os_str(), args.destination.as_os_str());
    let one = |text: &str| {
        Fault::new(Code::Usage, text)
            .hint("write HOST:PATH or haul://HOST/PATH for one of both, and ./ before a local path")
    };
    match (Remote::parse(source), Remote::parse(destination)) {
        (Ok(remote), Err(_)) => Ok((remote, destination, Source::Remote)),
        (Err(_), Ok(remote)) => Ok((remote, source, Source::Local)),
        (Ok(_), Ok(_)) => Err(one("both operands are at a host")),
        (Err(_), Err(_)) => Err(one("no operand is at a host")),
    }
}

fn open(config: &Config, remote: &Remote, request: &Request) -> Result<Session, Fault> {
    Session::open(config, request).map_err(|fault| explain(fault, config, remote))
}

/// Returns the configuration, with the way to the host prepared.
fn config(reach: &Reach, remote: &Remote, is_quiet: bool) -> Result<Config, Fault> {
    let path = reach.path();
    let reach = transfer::Reach {
        path: &path,
        trust: &reach.trust,
        ssh: &reach.ssh,
        through: &reach.through,
        give_up_after: None,
        bwlimit: None,
        is_quiet,
    };
    prepared(&reach, remote)
}

/// Returns the configuration of a host that was not reached yet.
pub(super) fn prepared(reach: &transfer::Reach<'_>, remote: &Remote) -> Result<Config, Fault> {
    if let Way::Pairing { .. } = remote.way {
        let text = format!("{} only receives", remote.host());
        return Err(Fault::new(Code::Usage, text).hint("name a host by ssh, or a haul:// server"));
    }
    let mut config = transfer::config(reach, remote)?;
    if let Some(access) = config.access.clone() {
        access.prepare(&mut config)?;
    }
    Ok(config)
}
