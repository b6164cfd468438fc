//! `haul completions`, and the manual pages of packages: both follow from the command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use haul::fault::{Code, Fault};

use crate::args::{Args, Completions, Man, Shell};
use crate::output::tell;
use crate::place;

pub(crate) fn run(completions: &Completions) -> ExitCode {
    match print_or_install(completions) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => super::fail(&fault),
    }
}

fn print_or_install(completions: &Completions) -> Result<(), Fault> {
    let mut script = Vec::new();
    let shell = match completions.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(shell, &mut Args::command(), "haul", &mut script);
    if !completions.install {
        // A reader that wants no more, such as head(1), is no failure.
        let _ = std::io::stdout().write_all(&script);
        return Ok(());
    }
    let path = destination(completions.shell)?;
    let write = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(&path, &script)
    };
    write().map_err(|error| {
        Fault::file(&format!("cannot write {}", path.display()), &error)
            .hint("'haul completions SHELL' without --install prints them")
    })?;
    tell(&format!("wrote {}", path.display()));
    match completions.shell {
        Shell::Bash => tell("new shells use it where the package bash-completion is installed"),
        Shell::Zsh => {
            let dir = path.parent().unwrap_or(&path).display();
            tell(&format!(
                "add to ~/.zshrc, before compinit: fpath=({dir} $fpath)"
            ));
        }
        Shell::Fish => tell("new shells use it"),
    }
    Ok(())
}

/// Returns where a shell of this user looks for the completions of `haul`.
fn destination(shell: Shell) -> Result<PathBuf, Fault> {
    let (base, path) = match shell {
        Shell::Bash => (place::data(), "bash-completion/completions/haul"),
        Shell::Zsh => (place::data(), "zsh/site-functions/_haul"),
        Shell::Fish => (place::config(), "fish/completions/haul.fish"),
    };
    let base = base.ok_or_else(|| {
        Fault::new(Code::Usage, "there is no home directory (HOME is not set)")
            .hint("print them to a file: haul completions SHELL >FILE")
    })?;
    Ok(base.join(path))
}

pub(crate) fn manual(man: &Man) -> ExitCode {
    let write = || {
        std::fs::create_dir_all(&man.dir)?;
        clap_mangen::generate_to(Args::command(), &man.dir)
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("cannot write to {}", man.dir.display());
            super::fail(&Fault::file(&text, &error))
        }
    }
}
