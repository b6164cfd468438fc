//! `haul send` and `haul get`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use haul::client::{self, Config, ExistingPolicy};
use haul::fault::{Code, Fault};
use haul::report::Summary;

use super::through::Through;
use crate::args::{Channel, Existing, Get, Send, Transfer};
use crate::interrupt;
use crate::operand::Remote;
use crate::output::Output;

/// Sends files.
pub(crate) fn send(args: Send) -> ExitCode {
    let output = Arc::new(Output::transfer(args.transfer.output));
    let policy = policy(&args.transfer.existing);
    let result = watch(&output).and_then(|()| {
        let (config, files, remote) = resolve_send(&args)?;
        client::send(&config, &files, &remote.path, policy, &*output)
    });
    finish(&output, result)
}

/// Gets files.
pub(crate) fn get(args: Get) -> ExitCode {
    let output = Arc::new(Output::transfer(args.transfer.output));
    let policy = policy(&args.transfer.existing);
    let result = watch(&output).and_then(|()| {
        let (config, paths, directory) = resolve_get(&args)?;
        client::get(&config, &paths, &directory, policy, &*output)
    });
    finish(&output, result)
}

fn watch(output: &Arc<Output>) -> Result<(), Fault> {
    let output = Arc::clone(output);
    interrupt::watch(move |by| output.interrupted(by))
}

fn finish(output: &Output, result: Result<Summary, Fault>) -> ExitCode {
    match result {
        Ok(summary) => {
            output.summary(&summary);
            ExitCode::SUCCESS
        }
        Err(fault) => output.fault(&fault),
    }
}

fn resolve_send(args: &Send) -> Result<(Config, Vec<PathBuf>, Remote), Fault> {
    let Some((target, files)) = args.operands.split_last() else {
        return Err(too_few());
    };
    let remote = Remote::parse(target)?;
    let config = config(&args.transfer, &remote)?;
    Ok((config, files.iter().map(PathBuf::from).collect(), remote))
}

fn resolve_get(args: &Get) -> Result<(Config, Vec<Vec<u8>>, PathBuf), Fault> {
    let Some((directory, sources)) = args.operands.split_last() else {
        return Err(too_few());
    };
    let remotes = sources.iter().map(|source| Remote::parse(source));
    let remotes = remotes.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = remotes.first() else {
        return Err(too_few());
    };
    if remotes
        .iter()
        .any(|remote| (&remote.host, remote.port) != (&first.host, first.port))
    {
        return Err(
            Fault::new(Code::Usage, "the files are of different servers")
                .hint("get from one server at a time"),
        );
    }
    let config = config(&args.transfer, first)?;
    let paths = remotes.into_iter().map(|remote| remote.path).collect();
    Ok((config, paths, Path::new(directory).to_owned()))
}

fn config(transfer: &Transfer, remote: &Remote) -> Result<Config, Fault> {
    let path = &transfer.path;
    let config = Config {
        give_up_after: transfer.give_up_after,
        ..path.client_config(remote.host.clone(), remote.port)
    };
    let is_quiet = transfer.output.quiet;
    let say = move |line: &str| {
        if !is_quiet {
            eprintln!("haul: warning: {line}");
        }
    };
    // A control connection, then a data channel, of which the first kind may get no answer.
    let patience = config.connect_timeout * 2;
    // What interrupts ends this process.
    let Some(through) = Through::start(&transfer.through, patience, || true, say)? else {
        return Ok(config);
    };
    Ok(Config {
        channel: path.channel.unwrap_or(Channel::Tcp).into(),
        dialer: Some(Arc::new(through)),
        ..config
    })
}

fn policy(existing: &Existing) -> ExistingPolicy {
    ExistingPolicy {
        replace: !existing.no_replace,
        recheck: existing.recheck,
    }
}

fn too_few() -> Fault {
    Fault::new(Code::Usage, "files and a place for them are needed").hint("see --help")
}
