//! What the guest runs is built beside the tests; here it is only asked how it is used.

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
