//! `haul lab compare` on the smallest matrix, `haul lab reproduce` in short, and marks of
//! congestion, where this machine lets a lab be made.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Place, read_file, text};

#[test]
fn a_comparison_measures_every_tool_and_writes_its_results() {
    let place = Place::new();
    let out = place.outside("results");
    let matrix = "--rates 200Mbit --rtts 4ms --losses 0 --tools haul-udt,haul-tcp --time 1s --repeat 3 --settle 0s --bar";
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
    let csv = read_file(&out.join("results.csv"));
    // A head, and for each of two tools three runs and their median.
    assert_eq!(csv.iter().filter(|&&byte| byte == b'\n').count(), 9);
    assert!(read_file(&out.join("goodput.svg")).starts_with(b"<svg "));
}

#[test]
fn a_papers_figures_are_made_in_one_run_with_a_page_that_needs_nothing_else() {
    let place = Place::new();
    let out = place.outside("figures");
    let output = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["lab", "reproduce", "datagram", "--quick", "--time", "5ms"])
        .args(["--figure", "5,8,9", "--out"])
        .arg(&out)
        // Programs under `haul run` have a check of their own; here one is refused.
        .env("HAUL_PRELOAD", place.outside("no-library"))
        .output()
        .unwrap();
    if !ran(&output) {
        return;
    }
    let results: Value = serde_json::from_slice(&read_file(&out.join("results.json"))).unwrap();
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
    let page = String::from_utf8(read_file(&out.join("index.html"))).unwrap();
    assert_eq!(page.matches("<svg ").count(), 3, "{page}");
    for foreign in ["<script", "<link", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("24.4 % less latency") && page.contains("haul bench rdma b"));
}

#[test]
fn a_figure_that_is_not_there_is_wrong_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["lab", "reproduce", "datagram", "--figure", "4"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("figures 5, 6"), "{said}");
}

#[test]
fn results_that_cannot_be_kept_are_not_measured() {
    let place = Place::new();
    let file = place.outside("file");
    std::fs::write(&file, "").unwrap();
    for what in [&["compare"][..], &["reproduce", "datagram"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_haul"))
            .arg("lab")
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
