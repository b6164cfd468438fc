//! `haul lab compare` on the smallest matrix, where this machine lets a lab be made.

use std::process::Command;

use serde_json::Value;

use crate::support::{Place, read_file};

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
    let said = String::from_utf8_lossy(&output.stderr);
    let refused = [
        "a lab needs",
        "no permission to open",
        "is missing",
        "cannot make a",
    ];
    if !output.status.success() && refused.iter().any(|reason| said.contains(reason)) {
        println!("SKIPPED: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
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
