//! Tests that need a network namespace of their own. Included by the tests of other crates, too.

use std::process::Command;

/// Runs an ignored test of the calling test program in a network namespace of its own, after lines
/// of shell, and prints what it printed. Root makes the namespace directly; others need a user
/// namespace. Where none can be made, or the test skips itself, a line says so.
#[allow(
    unreachable_pub,
    clippy::allow_attributes,
    clippy::expect_used,
    reason = "test programs of several crates include it"
)]
pub fn run_ignored(name: &str, setup: &str) {
    let test = std::env::current_exe().expect("this program has a file");
    let shell =
        format!(r#"{{ {setup}; }} || exit 77; exec "$0" --ignored --exact --nocapture "$1""#);
    let mut why = String::new();
    for namespaces in [&["--net"][..], &["--user", "--map-root-user", "--net"]] {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["--", "sh", "-c", &shell]);
        let Ok(output) = command.arg(&test).arg(name).output() else {
            println!("SKIPPED: no `unshare` command (Debian package util-linux)");
            return;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("unshare:") {
            why += errors.trim();
            continue;
        }
        if output.status.code() == Some(77) {
            println!("SKIPPED: cannot set a network namespace up here: {errors}");
            return;
        }
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && report.contains("1 passed"),
            "{report}{errors}"
        );
        // Not the summary: it would be counted beside that of the calling program.
        let lines = report.lines();
        lines
            .filter(|line| !line.starts_with("test result:"))
            .for_each(|line| println!("{line}"));
        return;
    }
    println!("SKIPPED: cannot make a network namespace here: {why}");
}
