//! `haul send` and `haul get`.
#![expect(
    clippy::disallowed_types,
    reason = "a list of paths is a file of this host"
)]

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use haul::choice::Choice;
use haul::client::{self, Config, Direct, Policy, Selection};
use haul::fault::{Code, Fault};
use haul::fs::filter;
use haul::fs::path::Relative;
use haul::paths::Paths;
use haul::report::Summary;
use haul::ssh::{Settings, Ssh};
use haul::sync::Pair;

use super::limit;
use super::plan::{dry_run, how};
use super::receive::AWAY;
use super::through::Through;
use crate::args::list::Choose;
use crate::args::{self, Channel, Get, Send, Transfer};
use crate::operand::{Remote, Way};
use crate::output::Output;
use crate::output::plan::PlanOutput;
use crate::timetable::Bwlimit;
use crate::{config as presets, interrupt, place, trust};

/// Sends files and trees.
pub(crate) fn send(args: Send) -> ExitCode {
    let policy = policy(&args.transfer);
    if args.transfer.dry_run {
        let mut output = PlanOutput::new(args.transfer.output);
        let has_list = args.choose.from_file.is_some();
        let checked = args.transfer.tree.failed.check_dry_run(has_list);
        let checked = checked.and_then(|()| refuse_pairing(&args));
        let result = checked.and_then(|()| resolve_send(&args)).and_then(
            |(config, selection, choice, remote)| {
                let operands = selection.operands.iter();
                let pairs = operands.map(|operand| Pair::to_server(operand, &remote.path));
                let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
                let to = &remote.path;
                let planned = dry_run(&config, &pairs, to, &choice, how(policy), None, &mut output);
                planned.map_err(|fault| explain(fault, &config, &remote))
            },
        );
        return output.finish(result);
    }
    let output = Arc::new(Output::transfer(args.transfer.output));
    let result = watch(&output, &args.transfer, args.choose.from_file.is_some()).and_then(|()| {
        let (config, selection, _, remote) = resolve_send(&args)?;
        let sent = client::send(&config, &selection, &remote.path, policy, &*output);
        sent.map_err(|fault| explain(fault, &config, &remote))
    });
    finish(&output, result, args.transfer.tree.strict_metadata)
}

/// Gets files and trees.
pub(crate) fn get(args: Get) -> ExitCode {
    let policy = policy(&args.transfer);
    if args.transfer.dry_run {
        let mut output = PlanOutput::new(args.transfer.output);
        let has_list = args.choose.from_file.is_some();
        let checked = args.transfer.tree.failed.check_dry_run(has_list);
        let result = checked
            .and_then(|()| resolve_get(&args))
            .and_then(|wanted| {
                let paths = wanted.paths.iter();
                let pairs = paths.map(|path| Pair::from_server(path, &wanted.directory));
                let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
                let Wanted {
                    config,
                    remote,
                    choice,
                    directory,
                    ..
                } = &wanted;
                let to = directory.as_os_str().as_encoded_bytes();
                let planned = dry_run(config, &pairs, to, choice, how(policy), None, &mut output);
                planned.map_err(|fault| explain(fault, config, remote))
            });
        return output.finish(result);
    }
    let output = Arc::new(Output::transfer(args.transfer.output));
    let result = watch(&output, &args.transfer, args.choose.from_file.is_some()).and_then(|()| {
        let Wanted {
            config,
            remote,
            paths,
            choice,
            directory,
        } = resolve_get(&args)?;
        let got = client::get(&config, &paths, &choice, &directory, policy, &*output);
        got.map_err(|fault| explain(fault, &config, &remote))
    });
    finish(&output, result, args.transfer.tree.strict_metadata)
}

/// Refuses a dry run to a receiver with a code, which shows nothing of its directory.
fn refuse_pairing(args: &Send) -> Result<(), Fault> {
    let remote = args.operands.last().map(|target| Remote::parse(target));
    match remote {
        Some(Ok(remote)) if matches!(remote.way, Way::Pairing { .. }) => {
            let text = format!("{} only receives, so --dry-run sees nothing", remote.host());
            Err(Fault::new(Code::Usage, text).hint("leave --dry-run out"))
        }
        _ => Ok(()),
    }
}

pub(super) fn watch(
    output: &Arc<Output>,
    transfer: &Transfer,
    has_list: bool,
) -> Result<(), Fault> {
    transfer.tree.failed.check(has_list)?;
    output.write_failures(&transfer.tree.failed)?;
    let output = Arc::clone(output);
    let takes_hangup = !matches!(transfer.bwlimit, Some(Bwlimit::File(_)));
    interrupt::watch_some(takes_hangup, move |by| output.interrupted(by))
}

fn finish(output: &Output, result: Result<Summary, Fault>, is_strict: bool) -> ExitCode {
    match result {
        Ok(summary) => output.summary(&summary, is_strict),
        Err(fault) => output.fault(&fault),
    }
}

fn resolve_send(args: &Send) -> Result<(Config, Selection, Choice, Remote), Fault> {
    let Some((target, files @ [_, ..])) = args.operands.split_last() else {
        return Err(too_few());
    };
    let remote = Remote::parse(target)?;
    let is_one = args.operands.len() == 2 && Path::new(&args.operands[0]).is_dir();
    let choice = choice(&args.choose, args.transfer.tree.failed.null, is_one)?;
    let selection = Selection {
        operands: files.iter().map(PathBuf::from).collect(),
        members: choice.options()?,
    };
    // Before a login or a code is asked for.
    selection.check()?;
    let config = Config {
        paths: if args.no_path_memory {
            None
        } else {
            place::paths().map(Paths::new)
        },
        ..config(&(&args.transfer).into(), &remote)?
    };
    Ok((config, selection, choice, remote))
}

/// Returns which entries of trees to take. `is_one` is whether the operands name one tree.
fn choice(args: &Choose, is_null: bool, is_one: bool) -> Result<Choice, Fault> {
    let list = args.from_file.as_deref();
    if list.is_some() && !is_one {
        let text = "--from-file needs one directory, to which its paths are relative";
        return Err(Fault::new(Code::Usage, text));
    }
    Ok(Choice {
        rules: args.rules.0.clone(),
        reads_ignore_files: !args.no_ignore,
        list: list.map(|file| read_list(file, is_null)).transpose()?,
        ..Choice::default()
    })
}

fn read_list(file: &Path, is_nul: bool) -> Result<Vec<Relative>, Fault> {
    if file == Path::new("-") {
        return filter::read_list(io::stdin().lock(), is_nul);
    }
    let shown = haul::printable(file.as_os_str().as_encoded_bytes());
    let opened = File::open(file)
        .map_err(|error| Fault::file(&format!("cannot read the list '{shown}'"), &error))?;
    filter::read_list(BufReader::new(opened), is_nul)
}

/// Adds to a failure how to trust a server that is only unknown.
pub(super) fn explain(fault: Fault, config: &Config, remote: &Remote) -> Fault {
    match &remote.way {
        Way::Server { host, .. } => trust::explain(fault, &config.control, host, config.port),
        Way::Ssh(_) | Way::Pairing { .. } => fault,
    }
}

/// What a `haul get` names.
struct Wanted {
    config: Config,
    remote: Remote,
    paths: Vec<Vec<u8>>,
    choice: Choice,
    directory: PathBuf,
}

fn resolve_get(args: &Get) -> Result<Wanted, Fault> {
    let Some((directory, sources)) = args.operands.split_last() else {
        return Err(too_few());
    };
    let remotes = sources.iter().map(|source| Remote::parse(source));
    let remotes = remotes.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = remotes.first() else {
        return Err(too_few());
    };
    if remotes.iter().any(|remote| remote.way != first.way) {
        return Err(Fault::new(Code::Usage, "the files are of different hosts")
            .hint("get from one host at a time"));
    }
    if let Way::Pairing { .. } = first.way {
        return Err(
            Fault::new(Code::Usage, format!("{} only receives", first.host()))
                .hint("start haul receive on this host, and haul send on the other"),
        );
    }
    let choice = choice(
        &args.choose,
        args.transfer.tree.failed.null,
        remotes.len() == 1,
    )?;
    // Before a login.
    choice.filter()?;
    Ok(Wanted {
        config: config(&(&args.transfer).into(), first)?,
        remote: first.clone(),
        paths: remotes.into_iter().map(|remote| remote.path).collect(),
        choice,
        directory: Path::new(directory).to_owned(),
    })
}

/// How a host is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach<'a> {
    pub(super) path: &'a args::ChannelArgs,
    pub(super) trust: &'a args::trust::ClientTrust,
    pub(super) ssh: &'a args::trust::Ssh,
    pub(super) through: &'a args::ThroughArgs,
    pub(super) give_up_after: Option<Duration>,
    pub(super) bwlimit: Option<&'a Bwlimit>,
    pub(super) is_quiet: bool,
}

impl<'a> From<&'a Transfer> for Reach<'a> {
    fn from(transfer: &'a Transfer) -> Self {
        Self {
            path: &transfer.path,
            trust: &transfer.trust,
            ssh: &transfer.ssh,
            through: &transfer.through,
            give_up_after: transfer.give_up_after,
            bwlimit: transfer.bwlimit.as_ref().filter(|_| !transfer.dry_run),
            is_quiet: transfer.output.quiet,
        }
    }
}

pub(super) fn config(reach: &Reach<'_>, remote: &Remote) -> Result<Config, Fault> {
    let limit = reach
        .bwlimit
        .map(|bwlimit| limit::start(bwlimit, reach.is_quiet));
    Ok(Config {
        limit: limit.transpose()?,
        ..config_of(reach, remote)?
    })
}

fn config_of(reach: &Reach<'_>, remote: &Remote) -> Result<Config, Fault> {
    check(reach, remote)?;
    let path = reach.path;
    let give_up_after = reach.give_up_after;
    let is_quiet = reach.is_quiet;
    let say = Arc::new(move |line: &str| {
        if !is_quiet {
            crate::output::tell(line);
        }
    });
    let may_fall_back = path.channel.is_none();
    match &remote.way {
        Way::Ssh(destination) => {
            let access = Ssh::new(ssh_settings(reach.ssh, destination), say);
            Ok(Config {
                give_up_after,
                access: Some(Arc::new(access)),
                may_fall_back,
                ..path.client_config(destination.clone(), None)?
            })
        }
        Way::Pairing { host, port } => {
            let config = path.client_config(host.clone(), Some(*port))?;
            trust::pair(Config {
                // The receiver waits no longer.
                give_up_after: give_up_after.or(Some(AWAY)),
                access: Some(Arc::new(Direct::to_receiver(say))),
                may_fall_back,
                ..config
            })
        }
        Way::Server { host, port } => {
            let config = path.client_config(host.clone(), *port)?;
            let control = trust::of_client(reach.trust, host, config.port)?;
            let config = Config {
                give_up_after,
                sealed: control.verifies_server(),
                control,
                access: Some(Arc::new(Direct::new(say))),
                may_fall_back,
                ..config
            };
            through(reach, config)
        }
    }
}

/// Refuses options that the operand does not have: an option without effect would mislead.
fn check(reach: &Reach<'_>, remote: &Remote) -> Result<(), Fault> {
    let is_server = matches!(remote.way, Way::Server { .. });
    let what = if is_server {
        return Ok(());
    } else if presets::is_given("gateway") {
        "--gateway"
    } else if let Some(option) = reach.trust.given() {
        option
    } else if presets::is_given("port") {
        "--port"
    } else {
        return Ok(());
    };
    let hint = match &remote.way {
        Way::Ssh(host) => format!(
            "write haul://{host}/PATH for a server of haul serve; the port and keys of ssh belong \
             into ~/.ssh/config, or --ssh"
        ),
        _ => "leave the option out: a receiver with a code needs none".to_owned(),
    };
    let text = format!(
        "{what} is for haul:// servers, and '{}' is none",
        remote.host()
    );
    Err(Fault::new(Code::Usage, text).hint(hint))
}

pub(super) fn ssh_settings(args: &args::trust::Ssh, destination: &str) -> Settings {
    Settings {
        command: args.ssh.split_whitespace().map(Into::into).collect(),
        destination: destination.to_owned(),
        remote_haul: args.remote_haul.clone(),
        ports: args.ports,
        data_address: args.data_address.clone(),
        through_ssh: args.via_ssh,
    }
}

fn through(reach: &Reach<'_>, config: Config) -> Result<Config, Fault> {
    let is_quiet = reach.is_quiet;
    let say = move |line: &str| {
        if !is_quiet {
            eprintln!("haul: warning: {line}");
        }
    };
    // A control connection, then a data channel, of which the first kind may get no answer.
    let patience = config.connect_timeout * 2;
    // What interrupts ends this process.
    let Some(through) = Through::start(reach.through, patience, || true, say)? else {
        return Ok(config);
    };
    Ok(Config {
        channel: reach.path.channel.unwrap_or(Channel::Tcp).into(),
        dialer: Some(Arc::new(through)),
        ..config
    })
}

pub(super) fn policy(transfer: &Transfer) -> Policy {
    let (existing, tree) = (&transfer.existing, &transfer.tree);
    Policy {
        replace: !existing.no_replace,
        recheck: existing.recheck,
        durable: tree.durable.into(),
        xattrs: tree.xattrs,
        acls: tree.acls,
        setuid: tree.setuid,
        update: false,
        delta: false,
        deletes: false,
    }
}

fn too_few() -> Fault {
    Fault::new(
        Code::Usage,
        "one operand is missing: the files, or where they go",
    )
    .hint("write haul send FILE... HOST:DIR/ or haul get HOST:FILE... DIR/")
}
