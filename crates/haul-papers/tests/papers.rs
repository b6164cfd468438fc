//! The program as a user runs it: a comparison on the smallest matrix, and a paper's figures in
//! short, where this machine lets a lab be made.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The program, with the `haul` that cargo builds beside it.
fn papers() -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_haul-papers"));
    assert!(
        program.with_file_name("haul").exists(),
        "build haul with `cargo build -p haul-cli`"
    );
    Command::new(program)
}

#[test]
fn a_comparison_measures_every_tool_and_writes_its_results() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("results");
    let matrix = "--rates 200Mbit --rtts 4ms --losses 0 --tools haul-udt,haul-tcp --time 1s --repeat 3 --settle 0s --bar";
    let output = papers()
        .arg("compare")
        .args(matrix.split(' '))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    if !ran(&output) {
        return;
    }
    let table = String::from_utf8_lossy(&output.stdout);
    let results: Value =
        serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["schema"], "haul.compare/1");
    for (index, tool) in ["haul-udt", "haul-tcp"].into_iter().enumerate() {
        assert!(table.contains(tool), "{table}");
        let record = &results["cells"][0]["tools"][index];
        assert_eq!(record["tool"], tool);
        // On a busy machine less than the ceiling, in single runs next to nothing, but never more.
        let runs = record["runs"].as_array().unwrap();
        let shares: Vec<_> = runs
            .iter()
            .map(|run| run["figures"]["ceiling_share"].as_f64().unwrap())
            .collect();
        assert!(
            shares.iter().all(|&share| share > 0.0 && share < 1.02)
                && shares.iter().any(|&share| share > 0.05),
            "{record:#}"
        );
        assert!(record["median"]["peak_rss_a_bytes"].as_f64().unwrap() > 1e6);
    }
    let csv = std::fs::read(out.join("results.csv")).unwrap();
    // A head, and for each of two tools three runs and their median.
    assert_eq!(csv.iter().filter(|&&byte| byte == b'\n').count(), 9);
    assert!(
        std::fs::read(out.join("goodput.svg"))
            .unwrap()
            .starts_with(b"<svg ")
    );
}

#[test]
fn a_papers_figures_are_made_in_one_run_with_a_page_that_needs_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("figures");
    let output = papers()
        .args(["reproduce", "datagram", "--quick", "--time", "5ms"])
        .args(["--figure", "5,8,9", "--out"])
        .arg(&out)
        // Programs under `haul run` have a check of their own; here one is refused.
        .env("HAUL_PRELOAD", place.path().join("no-library"))
        .output()
        .unwrap();
    if !ran(&output) {
        return;
    }
    let results: Value =
        serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["schema"], "haul.reproduce/2");
    let figures = results["figures"].as_array().unwrap();
    let numbers: Vec<_> = figures.iter().map(|one| one["number"].as_u64()).collect();
    assert_eq!(numbers, [Some(5), Some(8), Some(9)]);
    let latency = figures[0]["charts"][0]["series"].as_array().unwrap();
    assert_eq!(latency.len(), 4);
    for series in latency {
        let points = series["points"].as_array().unwrap();
        assert_eq!(points.len(), 7, "{series}");
        assert!(
            points
                .iter()
                .all(|point| point["value"].as_f64() > Some(0.0))
        );
    }
    let valid = &figures[1]["charts"][1]["series"][0]["points"];
    for point in valid.as_array().unwrap() {
        let percent = point["value"].as_f64().unwrap();
        // Five in a hundred are lost on the way; a busy machine may lose more.
        assert!((0.0..100.0).contains(&percent), "{point}");
    }
    let claims = figures[0]["claims"].as_array().unwrap();
    assert!(
        claims.iter().all(|claim| claim["here"].is_string()),
        "{claims:?}"
    );
    let why = figures[2]["not_run"].as_str().unwrap();
    assert!(why.starts_with("not run: "), "{why}");
    let page = String::from_utf8(std::fs::read(out.join("index.html")).unwrap()).unwrap();
    assert_eq!(page.matches("<svg ").count(), 3, "{page}");
    for foreign in ["<script", "<link", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("24.4 % less latency") && page.contains("haul bench rdma b"));
}

#[test]
fn a_figure_that_is_not_there_is_wrong_usage() {
    let output = papers()
        .args(["reproduce", "datagram", "--figure", "4"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("figures 5, 6"), "{said}");
}

#[test]
fn results_that_cannot_be_kept_are_not_measured() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    for what in [&["compare"][..], &["reproduce", "datagram"]] {
        let output = papers()
            .args(what)
            .arg("--out")
            .arg(file.join("results"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(
            said.contains("cannot make ") && said.lines().count() == 1 || !ran(&output),
            "{said}"
        );
    }
}

/// Whether it ran; if this machine does not permit labs, prints why.
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
