//! `haul lab compare`, and marks of congestion, where this machine lets a lab be made.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Place, read_file, text};

#[test]
fn a_short_comparison_prints_the_medians_of_one_path() {
    let output = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["lab", "compare", "metro", "--json", "--settle", "0s"])
        .args(["--tools", "haul-udt,haul-tcp", "--time", "1s"])
        .output()
        .unwrap();
    if !ran(&output) {
        return;
    }
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["schema"], "haul.compare/1");
    let cell = &results["cells"][0];
    assert_eq!(cell["name"], "metro");
    for (index, tool) in ["haul-udt", "haul-tcp"].into_iter().enumerate() {
        assert_eq!(cell["tools"][index]["tool"], tool);
        let median = &cell["tools"][index]["median"];
        assert!(median["goodput_bps"].as_f64() > Some(0.0), "{cell:#}");
    }
}

/// Whether it ran; where this machine lets no lab be made, a line says why not.
fn ran(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let refused = [
        "a lab needs",
        "no permission to open",
        "is missing",
        "cannot make a",
    ];
    if !output.status.success() && refused.iter().any(|reason| said.contains(reason)) {
        println!("SKIPPED: {said}");
        return false;
    }
    assert!(output.status.success(), "{said}");
    true
}

#[test]
fn data_says_that_it_heeds_marks_and_a_declared_rate_does_not() {
    let place = Place::new();
    for (flags, says) in [("", true), ("--rate 20Mbit", false)] {
        let scenario = place.outside("marks.toml");
        let haul = env!("CARGO_BIN_EXE_haul");
        let (dir, counts) = (text(&place.server("")), text(&place.outside("counts")));
        let text = format!(
            "[path]\nrate = \"50Mbit\"\nrtt = \"20ms\"\necn_mark = \"0.1bdp\"\n\
             [[run]]\nhost = \"b\"\nbackground = true\n\
             command = 'exec {haul} serve --quiet --allow-insecure --listen \"$LAB_B\" {dir}'\n\
             [[run]]\nhost = \"a\"\nafter = \"500ms\"\ncommand = '{haul} bench b --time 2s --quiet {flags}'\n\
             [[run]]\nhost = \"b\"\ncommand = 'cat /proc/net/netstat >{counts}'\n"
        );
        std::fs::write(&scenario, text).unwrap();
        let output = Command::new(haul)
            .args(["lab", "run", "--quiet"])
            .arg(&scenario)
            .output()
            .unwrap();
        if !ran(&output) {
            return;
        }
        let count = |name| netstat(&read_file(&place.outside("counts")), name);
        let capable = count("InECT0Pkts") + count("InCEPkts");
        assert_eq!(capable > 1_000, says, "{flags}: {capable} said so");
        assert_eq!(count("InCEPkts") > 0, says, "{flags}: the queue marks them");
    }
}

/// A counter of `/proc/net/netstat`: a line of names, and a line of numbers below it.
fn netstat(text: &[u8], name: &str) -> u64 {
    let text = std::str::from_utf8(text).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|found| found == name).unwrap();
    numbers.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn a_tool_that_does_not_exist_is_refused_at_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["lab", "compare", "--tools", "carrier-pigeon"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no tool `carrier-pigeon`"), "{said}");
}
