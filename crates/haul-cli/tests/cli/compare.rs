//! `haul lab compare` on the smallest matrix, and marks of congestion, where this machine lets a lab be made.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Place, read_file, text};

#[test]
fn a_comparison_measures_every_tool_and_writes_its_results() {
    let place = Place::new();
    let out = place.outside("results");
    let matrix = "--rates 200Mbit --rtts 4ms --losses 0 --tools haul-udt,haul-tcp --time 1s --repeat 1 --settle 0s --bar";
    let output = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["lab", "compare"])
        .args(matrix.split(' '))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    if !ran(&output) {
        return;
    }
    let table = String::from_utf8_lossy(&output.stdout);
    let results: Value = serde_json::from_slice(&read_file(&out.join("results.json"))).unwrap();
    assert_eq!(results["schema"], "haul.compare/1");
    for (index, tool) in ["haul-udt", "haul-tcp"].into_iter().enumerate() {
        assert!(table.contains(tool), "{table}");
        let record = &results["cells"][0]["tools"][index];
        assert_eq!(record["tool"], tool);
        // On a busy machine less than the ceiling, but never more.
        let share = record["median"]["ceiling_share"].as_f64().unwrap();
        assert!((0.05..1.02).contains(&share), "{tool}: {share}");
        assert!(record["median"]["peak_rss_a_bytes"].as_f64().unwrap() > 1e6);
    }
    let csv = read_file(&out.join("results.csv"));
    assert_eq!(csv.iter().filter(|&&byte| byte == b'\n').count(), 5);
    assert!(read_file(&out.join("goodput.svg")).starts_with(b"<svg "));
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
