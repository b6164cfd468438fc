//! Notes for the user about a lab and about a program that did not start.

use std::ffi::OsStr;
use std::io;

use anyhow::anyhow;

use crate::lab::Lab;

/// Prints the lab's notes to stderr.
pub(super) fn show_notes(lab: &Lab) {
    for note in lab.notes() {
        eprintln!("note: {note}");
    }
}

/// Describes why a program did not start `at` a place, such as " on host a".
pub(super) fn cannot_run(program: &OsStr, at: &str, error: &io::Error) -> anyhow::Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "No such file or directory (is it installed?)".into(),
        _ => error.to_string(),
    };
    anyhow!("cannot run {}{at}: {why}", program.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_prompts_to_install_it() {
        let ping = OsStr::new("ping");
        let text = cannot_run(ping, " on host a", &io::ErrorKind::NotFound.into()).to_string();
        assert!(text.starts_with("cannot run ping on host a: "), "{text}");
        assert!(text.ends_with("(is it installed?)"), "{text}");
        let text = cannot_run(ping, "", &io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(!text.contains("installed"), "{text}");
    }
}
