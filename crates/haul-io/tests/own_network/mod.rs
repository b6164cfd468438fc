//! Tests that need a network namespace of their own. Included by the tests of other crates, too.

use std::process::Command;

/// Runs an ignored test of the calling test program in a network namespace of its own, after lines
/// of shell, and prints what it printed. Root makes the namespace directly; others need a user
/// namespace. If none can be created, or the test skips itself, it prints a line.
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
        // Indented: the caller's harness and ./test would count its results as their own, and
        // would repeat by its name a test that failed.
        let quoted = |text: &str| -> String {
            let lines = text.lines();
            lines.map(|line| format!("    {line}\n")).collect()
        };
        assert!(
            output.status.success() && report.contains("1 passed"),
            "{name}:\n{}{}",
            quoted(&report),
            quoted(&errors)
        );
        let (skipped, others): (Vec<_>, Vec<_>) = report
            .lines()
            .partition(|line| line.starts_with("SKIPPED: "));
        skipped.iter().for_each(|line| println!("{line}"));
        print!("{}", quoted(&others.join("\n")));
        return;
    }
    println!("SKIPPED: cannot make a network namespace here: {why}");
}
