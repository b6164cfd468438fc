//! `haul bench serve` and `run`, `haul profile`, `haul doctor`, `haul report`, over loopback.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::schema::Schema;
use crate::support::{
    Ended, MIB, Place, Server, events, haul, make_file, read_file, start, wait_until,
};

fn serve(flags: &[&str]) -> Server {
    let args = ["bench", "serve", "--listen", "127.0.0.1:0"];
    Server::spawn(args.iter().chain(flags))
}

fn run(server: &Server, flags: &str) -> Ended {
    let to = format!("127.0.0.1:{}", server.port);
    let mut args = vec!["bench".to_owned(), "run".to_owned(), to];
    args.extend(flags.split_whitespace().map(str::to_owned));
    haul(args)
}

/// What is in a file of text.
fn content(path: &Path) -> String {
    String::from_utf8(read_file(path)).unwrap()
}

fn runs(json: &Value) -> &[Value] {
    json["runs"].as_array().unwrap()
}

#[test]
fn every_engine_measures_in_the_same_words() {
    let server = serve(&[]);
    let schema = Schema::load("bench-run-v1.json");
    for flags in [
        "",
        "--send splice",
        "--send zerocopy --depth 4",
        "--send sendfile --streams 2",
        "--send splice --source ramdisk --receive splice --sink ramdisk",
        "--message 3 --rate 8Mbit",
        "--reverse --streams 3 --omit 100ms",
        "--congestion reno --buffer 256KiB",
        "--engine udp --rate 20Mbit",
        "--engine udp --rate 20Mbit --reverse --streams 2 --no-gso",
        "--engine udt --rate 100Mbit --streams 2",
        "--engine udt --reverse --source ramdisk --sink ramdisk",
        "--engine iwarp-tcp --op read",
        "--engine iwarp-udt --message 4096",
        "--engine ud --rate 20Mbit --message 1024",
        "--engine rd --streams 2",
    ] {
        let json = run(&server, &format!("{flags} --time 400ms --json"))
            .ok()
            .json();
        schema.check(&json);
        let [run] = runs(&json) else {
            panic!("{flags}")
        };
        assert!(run["bytes"].as_u64().unwrap() > 0, "{flags}: {run:#}");
    }
}

#[test]
fn every_byte_that_is_asked_for_arrives_and_is_counted_once() {
    let server = serve(&[]);
    for flags in [
        "",
        "--streams 3 --message 1000",
        "--engine udt --streams 3",
        "--engine udt --reverse",
        "--reverse --sink ramdisk",
        "--send splice --receive splice",
        "--send zerocopy --message 1MiB",
    ] {
        let json = run(&server, &format!("{flags} --bytes 20000001 --json"))
            .ok()
            .json();
        let run = &runs(&json)[0];
        assert_eq!(run["bytes"], 20_000_001, "{flags}");
        let sum = |list: &str, of: fn(&Value) -> &Value| -> u64 {
            let list = run[list].as_array().unwrap().iter();
            list.map(|one| of(one).as_u64().unwrap()).sum()
        };
        assert_eq!(sum("intervals", |one| &one["bytes"]), 20_000_001, "{flags}");
        if flags.contains("streams") {
            assert_eq!(sum("stream_bytes", |one| one), 20_000_001, "{flags}");
        }
    }
}

#[test]
fn rdma_is_counted_over_time_and_adds_up() {
    let server = serve(&[]);
    for (flags, series) in [
        ("--engine iwarp-tcp", true),
        ("--engine iwarp-tcp --op read --streams 2", true),
        ("--engine iwarp-udt --op send --message 1MiB", true),
        ("--engine rd", true),
        ("--engine ud --rate 20Mbit", false),
    ] {
        let json = run(
            &server,
            &format!("{flags} --time 800ms --interval 200ms --json"),
        );
        let json = json.ok().json();
        let run = &runs(&json)[0];
        let intervals = run["intervals"].as_array().unwrap();
        let sum: u64 = intervals
            .iter()
            .map(|one| one["bytes"].as_u64().unwrap())
            .sum();
        let expected = if series {
            &run["bytes"]
        } else {
            &Value::from(0)
        };
        assert_eq!(&Value::from(sum), expected, "{flags}");
        assert!(!series || intervals.len() >= 4, "{flags}: {intervals:?}");
    }
}

#[test]
fn what_is_in_the_source_is_in_the_sink() {
    let place = Place::new();
    let content = make_file(&place.client("from"), 3 * MIB + 17, 5);
    let (from, to) = (place.client("from"), place.server("to"));
    let server = serve(&["--sink-file", to.to_str().unwrap()]);
    for flags in [
        "--send write",
        "--send sendfile",
        "--send splice",
        "--receive splice",
        "--message 7777",
        "--engine udt",
    ] {
        let from = from.to_str().unwrap();
        let files = format!(
            "--source file --source-file {from} --sink file --bytes {}",
            content.len()
        );
        run(&server, &format!("{flags} {files}")).ok();
        assert!(read_file(&to) == content, "{flags}");
    }
}

#[test]
fn two_settings_are_measured_in_turns_and_compared() {
    let server = serve(&[]);
    let to = format!("127.0.0.1:{}", server.port);
    let vs = "--rate 40Mbit";
    let args = [
        "bench", "run", &to, "--rate", "80Mbit", "--time", "1s", "--omit", "300ms", "--repeat",
        "2", "--vs", vs, "--json",
    ];
    let json = haul(args).ok().json();
    Schema::load("bench-run-v1.json").check(&json);
    let order: Vec<&str> = runs(&json)
        .iter()
        .map(|run| run["setting"].as_str().unwrap())
        .collect();
    assert_eq!(order, ["A", "B", "A", "B"]);
    let ratio = &json["comparison"]["goodput"];
    assert_eq!(ratio["count"], 2);
    let value = |name: &str| ratio[name].as_f64().unwrap();
    assert!(value("low") <= value("ratio") && value("ratio") <= value("high"));
    assert!(value("low") > 0.0, "{ratio}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_measured() {
    for (flags, text) in [
        ("--send sendfile --source memory", "--source ramdisk"),
        ("--engine udp --bytes 1MB", "leave --bytes out"),
        ("--engine udt --send splice", "leave --send out"),
        ("--engine udt --message 1000", "leave --message out"),
        ("--engine rd --reverse", "--op read"),
        ("--time 1s --omit 2s", "left out"),
    ] {
        let args = ["bench", "run", "127.0.0.1:1"]
            .into_iter()
            .chain(flags.split(' '));
        haul(args).failed(2, text);
    }
    let args = ["bench", "run", "127.0.0.1:1", "--vs", "--engine nonsense"];
    haul(args).failed(2, "nonsense");
    let args = ["bench", "run", "127.0.0.1:1", "--json"];
    let ended = haul(args).failed(5, "haul bench serve");
    Schema::load("bench-run-v1.json").check(&ended.json());
}

#[test]
fn the_servers_failures_are_told_and_it_goes_on() {
    let server = serve(&[]);
    run(&server, "--source file --reverse --time 1s").failed(2, "no file is named");
    run(&server, "--congestion nonsense --time 1s").failed(2, "no congestion control");
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"{\"is\":\"ask\"}\n",
        b"\xff\xff\n",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(nonsense).unwrap();
    }
    run(&server, "--bytes 1MB").ok();
}

#[test]
fn a_server_of_files_takes_part_on_its_own_port() {
    let place = Place::new();
    let server = place.serve();
    run(&server, "--bytes 1MB").ok();
    let to = format!("127.0.0.1:{}", server.port);
    haul(["bench", "rdma", &to, "--iterations", "10"]).ok();
    let content = make_file(&place.client("a"), 1000, 1);
    haul(["send", &place.client("a").to_string_lossy(), &server.at("")]).ok();
    assert!(read_file(&place.server("a")) == content);
    server.wait_for_log("bench 'tcp' by");
}

#[test]
fn a_client_that_goes_away_leaves_the_server_free() {
    let server = serve(&[]);
    let to = format!("127.0.0.1:{}", server.port);
    for engine in ["tcp", "udp", "udt"] {
        let client = start([
            "bench",
            "run",
            &to,
            "--engine",
            engine,
            "--time",
            "60s",
            "--json-stream",
            "--interval",
            "100ms",
        ]);
        client.wait_for_event("interval");
        client.kill();
        wait_until("the server is free again", || {
            run(&server, "--bytes 1MB").code == Some(0)
        });
    }
}

#[test]
fn a_report_is_written_and_shown_again_and_compared() {
    let place = Place::new();
    let server = serve(&[]);
    let out = |name: &str| place.client(name).to_str().unwrap().to_owned();
    let (a, b) = (out("a"), out("b"));
    run(
        &server,
        &format!("--time 600ms --interval 100ms --streams 2 --out {a}"),
    )
    .ok();
    run(
        &server,
        &format!("--time 600ms --interval 100ms --streams 2 --out {b}"),
    )
    .ok();
    let page = content(&place.client("a").join("report.html"));
    assert!(page.contains("<svg") && page.contains("Over time"));
    for foreign in ["<script", "src=\"", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let csv = content(&place.client("a").join("results.csv"));
    assert_eq!(csv.lines().count(), 2);
    let shown = haul(["report", &a]).ok();
    assert!(shown.stdout.contains("bit/s"), "{}", shown.stdout);
    let html = out("ab.html");
    let compared = haul(["report", &a, &b, "--html", &html]).ok();
    assert!(
        compared.stdout.contains("median of all rows: A/B"),
        "{}",
        compared.stdout
    );
    assert!(content(&place.client("ab.html")).contains("times the goodput"));
    haul(["report", &html]).failed(2, "has no results");
    haul(["report", &out("missing")]).failed(4, "cannot read");
}

#[test]
fn a_profile_ends_in_its_time_and_names_the_limit() {
    let place = Place::new();
    let server = serve(&[]);
    let to = format!("127.0.0.1:{}", server.port);
    let out = place.client("profile");
    let args = [
        "profile",
        &to,
        "--only",
        "stability,cross",
        "--repetitions",
        "2",
        "--engines",
        "tcp",
        "--max-time",
        "40s",
        "--out",
        out.to_str().unwrap(),
        "--json-stream",
    ];
    let ended = haul(args).ok();
    let events = events(&ended.stdout);
    let end = events.last().unwrap();
    Schema::load("bench-run-v1.json").check(end);
    assert_eq!(end["kind"], "profile");
    assert!(!runs(end).is_empty());
    let about = |finding: &Value| finding["about"] == "the limiting stage";
    assert!(end["findings"].as_array().unwrap().iter().any(about));
    assert!(
        events
            .iter()
            .any(|event| event["event"] == "step" && event["left_s"].is_number())
    );
    assert!(content(&out.join("report.html")).contains("Stability"));
}

#[test]
fn a_profile_refuses_what_would_have_no_effect_and_writes_nothing() {
    let place = Place::new();
    let out = place.client("profile");
    for (flags, said) in [
        ("host --sweep loss", "--emulate in place of a host"),
        ("host --rate 1Gbit", "--rate has no effect"),
        ("--scenario wan-100ms --losses 1%", "--losses has no effect"),
        ("--scenario wan-100ms --port 4000", "starts by itself"),
        ("--scenario wan-100ms --sink", "--sink has no effect"),
        ("--emulate --only streams", "--distances, --streams"),
        ("--emulate --full", "--full has no effect"),
        ("--emulate --repetitions 3", "--repetitions has no effect"),
        ("--emulate --connect-timeout 1s", "--connect-timeout has no"),
        ("--emulate --sweep loss --streams 4", "with one stream"),
        (
            "--emulate --sweep loss --reorder-delay 1ms",
            "--reorder-delay has no",
        ),
        (
            "--emulate --sweep reorder --losses 1%",
            "--losses has no effect",
        ),
        ("host --only stages", "nothing to measure"),
        ("host --max-time 2s", "give it 3s at least"),
        ("--emulate --max-time 2s", "give it 4s at least"),
    ] {
        let words = flags.split_whitespace();
        let args = ["profile", "--out", out.to_str().unwrap()];
        let ended = haul(args.into_iter().chain(words));
        assert_eq!(ended.code, Some(2), "{flags}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{flags}: {}", ended.stderr);
        assert!(!out.exists(), "{flags}");
    }
}

#[test]
fn the_doctor_says_what_is_wrong_and_how_to_mend_it() {
    let ended = haul(["doctor", "--json"]);
    let json = ended.json();
    Schema::load("doctor-v1.json").check(&json);
    let findings = json["findings"].as_array().unwrap();
    let warned = findings.iter().any(|finding| finding["level"] == "warning");
    assert_eq!(json["ok"], !warned);
    assert_eq!(ended.code, Some(i32::from(warned)));
    for finding in findings {
        let level = finding["level"].as_str().unwrap();
        assert!(
            !["warning", "advice"].contains(&level) || finding["fix"].is_string(),
            "{finding}"
        );
    }
    // No host has buffers for this path.
    let wanting = haul(["doctor", "--rate", "1000Gbit", "--rtt", "10s"]);
    assert_eq!(wanting.code, Some(1));
    assert!(
        wanting.stdout.contains("# sysctl -w net.ipv4.tcp_rmem="),
        "{}",
        wanting.stdout
    );
}

/// Connections that say nothing: the server has room for 256 without a request.
#[test]
fn silent_connections_keep_no_client_of_a_bench_out() {
    for kind in [&["bench", "serve"][..], &["bench", "rdma", "serve"]] {
        let server = Server::spawn(kind.iter().chain(&["--listen", "127.0.0.1:0"]));
        let silent: Vec<_> = (0..300)
            .map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap())
            .collect();
        let begun = Instant::now();
        run(&server, "--bytes 1MiB").ok();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "{kind:?}: {took:?}");
        // The first one made room.
        assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0);
    }
}
