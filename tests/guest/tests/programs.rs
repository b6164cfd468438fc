//! The programs that the guest runs are built with the tests. Here each only prints its help.

use std::process::Command;

#[test]
fn each_program_says_how_it_is_used() {
    for program in [
        env!("CARGO_BIN_EXE_verbs-peer"),
        env!("CARGO_BIN_EXE_cc-trace"),
    ] {
        let output = Command::new(program).arg("--help").output().unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage: "), "{program}: {text}");
    }
}
