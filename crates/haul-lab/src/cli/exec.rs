//! `exec`: this process becomes the command, inside the lab.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use haul_io::netns::NetNs;
use haul_io::netns::child::Inside;
use rustix::fs::{Mode, OFlags};

use super::args::ExecArgs;
use super::background;
use super::notes::cannot_run;
use crate::lab::environment;
use crate::usage::Usage;

/// A shell's exit status for an unknown command.
const NOT_FOUND: u8 = 127;

pub(super) fn exec(args: &ExecArgs) -> Result<ExitCode> {
    let (dir, state) = background::find(args.name.as_deref())?;
    let host = state
        .hosts
        .iter()
        .find(|host| host.name == args.host)
        .with_context(|| {
            let names: Vec<&str> = state.hosts.iter().map(|host| host.name.as_str()).collect();
            Usage(format!(
                "lab {} has no host `{}`, but {}",
                dir.name(),
                args.host,
                names.join(", ")
            ))
        })?;
    let _entering = dir.enter(&state)?;
    if !state.is_here() {
        bail!(
            "lab {} belongs to another PID namespace, or has just ended",
            dir.name()
        );
    }
    let holder = Path::new("/proc").join(state.pid.to_string());
    let network = NetNs::open(&holder.join("fd").join(host.fd.to_string())).with_context(|| {
        format!(
            "cannot enter lab {}: it belongs to another user, or has just ended",
            dir.name()
        )
    })?;
    let user = rustix::fs::open(
        holder.join("ns/user"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let own = rustix::fs::stat("/proc/self/ns/user")?;
    let elsewhere = rustix::fs::fstat(&user)?.st_ino != own.st_ino;

    let (program, arguments) = args.command.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(environment(&state, &host.name));
    let hosts_file = dir.hosts_file();
    let inside = Inside {
        user: elsewhere.then(|| user.as_fd()),
        network: Some(network.as_fd()),
        binds: vec![(&hosts_file, Path::new("/etc/hosts"))],
        dies_with_parent: false,
    };
    inside.on(&mut command)?;
    let error = command.exec();
    let message = cannot_run(program, "", &error);
    if error.kind() == std::io::ErrorKind::NotFound {
        eprintln!("Error: {message}");
        return Ok(ExitCode::from(NOT_FOUND));
    }
    Err(message)
}
