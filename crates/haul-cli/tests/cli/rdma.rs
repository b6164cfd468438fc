//! `haul bench rdma` over loopback, on the software provider.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::schema::Schema;
use crate::support::{
    Client, Ended, Place, Server, events, haul, make_file, read_file, start, text, wait_until,
};

fn serve(flags: &[&str]) -> Server {
    let args = ["bench", "rdma", "serve", "--listen", "127.0.0.1:0"];
    Server::spawn(args.iter().chain(flags))
}

fn args(server: &Server, flags: &str) -> Vec<String> {
    let to = format!("127.0.0.1:{}", server.port);
    let mut args = vec!["bench".to_owned(), "rdma".to_owned(), to];
    args.extend(flags.split_whitespace().map(str::to_owned));
    args
}

fn bench(server: &Server, flags: &str) -> Ended {
    haul(args(server, flags))
}

fn begin(server: &Server, flags: &str) -> Client {
    start(args(server, flags))
}

fn rows(json: &Value) -> &[Value] {
    json["rows"].as_array().unwrap()
}

#[test]
fn every_verb_moves_every_byte_and_is_counted() {
    let server = serve(&[]);
    let schema = Schema::load("bench-rdma-v1.json");
    for flags in [
        "--op write",
        "--op write --qps 3 --bidirectional --post-list 8",
        "--op write --inline 1024 --depth 1",
        "--op write --remote-placement",
        "--op read",
        "--op read --qps 2 --outs 4 --bidirectional",
        "--op send",
        "--op send --qps 2 --bidirectional --rx-depth 5",
        "--op send --depth 3 --events",
        "--op send --no-crc --wait poll",
        "--op write --fpdu 1024 --strict-crc",
        "--op write --exchange --qps 2",
    ] {
        let flags = format!("{flags} --sizes 1..65536 --iterations 50 --verify --json");
        let json = bench(&server, &flags).ok().json();
        schema.check(&json);
        let ways = if flags.contains("bidirectional") {
            2
        } else {
            1
        };
        let qps = json["qps"].as_u64().unwrap();
        assert_eq!(rows(&json).len(), 17, "{flags}");
        for row in rows(&json) {
            let bandwidth = &row["bandwidth"];
            assert_eq!(bandwidth["iterations"], 50 * qps * ways, "{flags}");
            let bytes = row["bytes"].as_u64().unwrap();
            assert_eq!(bandwidth["total_bytes"], 50 * qps * ways * bytes);
            assert!(row["verified_messages"].as_u64().unwrap() > 0, "{flags}");
        }
    }
}

#[test]
fn every_verb_runs_over_udt() {
    let server = serve(&["--channel", "udt"]);
    for flags in [
        "--op write --qps 2",
        "--op read --bidirectional",
        "--op send",
        "--op send --exchange",
        "--op write --test lat",
        "--op send --test lat",
    ] {
        let flags =
            format!("{flags} --channel udt --sizes 64..16384 --iterations 40 --verify --json");
        let json = bench(&server, &flags).ok().json();
        Schema::load("bench-rdma-v1.json").check(&json);
        assert_eq!(json["server_device"]["transport"], "iwarp_udt");
        assert_eq!(rows(&json).len(), 9, "{flags}");
    }
}

/// Rows of `--qp ud`: what was sent is counted, and what came is no more than that. A loaded
/// machine may lose some of it, for nothing holds the sender back; so only little is sent.
#[test]
fn unreliable_datagrams_are_counted_where_they_come_to() {
    let server = serve(&[]);
    let schema = Schema::load("bench-rdma-v1.json");
    for flags in [
        "--op send",
        "--op write-record",
        "--op write-record --qps 2 --bidirectional --post-list 4",
        "--op send --inline 64 --qps 2",
        "--op read --outs 2",
        "--max-rate 800Mbit",
    ] {
        let flags = format!("--qp ud {flags} --sizes 16..65536 --iterations 20 --verify --json");
        let json = bench(&server, &flags).ok().json();
        schema.check(&json);
        assert_eq!(json["service"], "ud");
        assert_eq!(json["server_device"]["transport"], "iwarp_udp");
        let ways = if flags.contains("bidirectional") {
            2
        } else {
            1
        };
        let sent = 20 * ways * json["qps"].as_u64().unwrap();
        assert_eq!(rows(&json).len(), 13, "{flags}");
        let mut verified = 0;
        for row in rows(&json) {
            let bytes = row["bytes"].as_u64().unwrap();
            let count = |name: &str| row["datagram"][name].as_u64().unwrap();
            assert_eq!(count("sent_messages"), sent, "{flags}: {row}");
            assert_eq!(count("sent_bytes"), sent * bytes);
            let (complete, partial) = (count("complete_messages"), count("partial_messages"));
            assert_eq!(complete + partial + count("lost_messages"), sent, "{row}");
            let valid = count("valid_bytes");
            assert!(valid >= complete * bytes, "{row}");
            assert!(valid <= (complete + partial) * bytes, "{row}");
            assert_eq!(row["bandwidth"]["total_bytes"], valid);
            assert_eq!(row["bandwidth"]["iterations"], complete);
            verified += row["verified_messages"].as_u64().unwrap();
        }
        assert!(verified > 0, "{flags}");
    }
}

#[test]
fn unreliable_datagrams_have_a_latency() {
    let server = serve(&[]);
    let schema = Schema::load("bench-rdma-v1.json");
    for op in ["send", "write-record", "read"] {
        let flags = format!(
            "--qp ud --op {op} --test lat --sizes 64..8192 --iterations 30 --verify --json"
        );
        let json = bench(&server, &flags).ok().json();
        schema.check(&json);
        for row in rows(&json) {
            // A message that is lost is not a sample, and another one is sent for it.
            assert_eq!(row["latency"]["iterations"], 30, "{op}: {row}");
            assert_eq!(row["datagram"]["complete_messages"], 30, "{op}: {row}");
            assert!(row["latency"]["min_us"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn reliable_datagrams_move_every_byte() {
    let server = serve(&[]);
    let schema = Schema::load("bench-rdma-v1.json");
    for flags in [
        "--op write",
        "--op write --qps 2 --bidirectional",
        "--op send",
        "--op send --test lat",
        "--op write --test lat",
        "--op read",
        "--op read --test lat",
        "--op write-record",
    ] {
        let flags = format!("--qp rd {flags} --sizes 64..16384 --iterations 30 --verify --json");
        let json = bench(&server, &flags).ok().json();
        schema.check(&json);
        assert_eq!(json["service"], "rd");
        let ways = if flags.contains("bidirectional") {
            4
        } else {
            1
        };
        assert_eq!(rows(&json).len(), 9, "{flags}");
        for row in rows(&json) {
            assert_eq!(row["datagram"], Value::Null);
            let kind = if flags.contains("lat") {
                "latency"
            } else {
                "bandwidth"
            };
            assert_eq!(row[kind]["iterations"], 30 * ways, "{flags}: {row}");
            assert!(
                row["verified_messages"].as_u64().unwrap() > 0,
                "{flags}: {row}"
            );
        }
    }
}

#[test]
fn every_verb_has_a_latency() {
    let server = serve(&[]);
    let schema = Schema::load("bench-rdma-v1.json");
    for flags in [
        "--op write",
        "--op write --inline 64",
        "--op write --events",
        "--op read",
        "--op send",
        "--op send --events --inline 64",
    ] {
        let flags = format!("{flags} --test lat --sizes 2..8192 --iterations 60 --verify --json");
        let json = bench(&server, &flags).ok().json();
        schema.check(&json);
        for row in rows(&json) {
            let latency = |name: &str| row["latency"][name].as_f64().unwrap();
            assert_eq!(row["latency"]["iterations"], 60, "{flags}");
            let order = ["min_us", "typical_us", "p99_us", "p999_us", "max_us"].map(latency);
            assert!(order[0] > 0.0 && order.is_sorted(), "{flags}: {order:?}");
            assert!((order[0]..=order[4]).contains(&latency("average_us")));
            assert!(
                row["verified_messages"].as_u64().unwrap() >= 60,
                "{flags}: {row}"
            );
            let warning = row["warnings"][0].as_str().unwrap();
            assert!(warning.contains("too few for p99"), "{warning}");
        }
    }
}

#[test]
fn a_bench_by_time_ends_in_time_and_says_what_that_means() {
    let server = serve(&[]);
    for flags in ["--op send", "--op write --test lat"] {
        let begun = Instant::now();
        let ended = bench(&server, &format!("{flags} --time 300ms --size 64 --json")).ok();
        let json = ended.json();
        let row = &rows(&json)[0];
        let figure = row.get("bandwidth").or_else(|| row.get("latency")).unwrap();
        let seconds = figure["seconds"].as_f64().unwrap();
        assert!((0.29..10.0).contains(&seconds), "{seconds}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn the_table_is_what_is_printed_on_stdout() {
    let server = serve(&[]);
    let ended = bench(&server, "--sizes 64..256 --iterations 100").ok();
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ended.stdout);
    assert!(lines[0].contains("Gbit/s") && lines[0].contains("s/GB"));
    assert!(lines[1].trim_start().starts_with("64 "));
    assert!(ended.stderr.contains("soft-tcp"), "{}", ended.stderr);
}

#[test]
fn every_row_is_an_event_as_it_comes() {
    let server = serve(&[]);
    let ended = bench(&server, "--sizes 1..4 --iterations 10 --json-stream --json").ok();
    let lines = events(&ended.stdout);
    let kinds: Vec<_> = lines.iter().map(|line| line["event"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            Some("start"),
            Some("row"),
            Some("row"),
            Some("row"),
            Some("end"),
            None
        ]
    );
    let schema = Schema::load("bench-rdma-v1.json");
    schema.check(&lines[5]);
    for line in &lines[..5] {
        schema.check_definition("event", line);
    }
}

#[test]
fn a_file_arrives_whole_and_in_its_place() {
    let place = Place::new();
    let sink = place.server("sink");
    let server = serve(&["--file", &text(&sink)]);
    let content = make_file(&place.client("source"), 3_000_001, 9);
    let source = text(&place.client("source"));
    for flags in [
        "--op write",
        "--op write --qps 3 --size 1000 --depth 7",
        "--op send --qps 2 --size 64KiB",
    ] {
        let flags = format!("{flags} --file {source} --verify --json");
        let json = bench(&server, &flags).ok().json();
        Schema::load("bench-rdma-v1.json").check(&json);
        assert_eq!(rows(&json)[0]["bandwidth"]["total_bytes"], 3_000_001);
        let hash = blake3::hash(&content).to_string();
        assert_eq!(rows(&json)[0]["file_blake3"], hash);
        assert_eq!(read_file(&sink), content, "{flags}");
    }
    bench(&server, "--file /nowhere/at/all").failed(4, "cannot read");
    std::fs::remove_file(&sink).unwrap();
    std::fs::create_dir(&sink).unwrap();
    bench(&server, &format!("--file {source}")).failed(1, "cannot write");
}

#[test]
fn idle_queue_pairs_are_weighed_at_both_ends() {
    let server = serve(&[]);
    let json = bench(&server, "--idle-qps 100 --json").ok().json();
    Schema::load("bench-rdma-v1.json").check(&json);
    assert_eq!(json["idle"]["qps"], 100);
    for name in ["client_kib_per_qp", "server_kib_per_qp"] {
        let kib = json["idle"][name].as_f64().unwrap();
        assert!(kib > 0.0 && kib < 64.0, "{name}: {kib}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_one_line() {
    let server = serve(&[]);
    for (flags, code, line) in [
        ("--test lat --qps 2", 2, "one queue pair"),
        ("--test lat --bidirectional", 2, "both ways already"),
        ("--op read --file /etc/hostname", 2, "by write or by send"),
        ("--inline 100000", 2, "inline bytes"),
        ("--fpdu 100", 2, "512 to 65536"),
        ("--cq-mod 1000", 2, "completion moderation"),
        ("--size 8MiB --depth 16384 --verify", 2, "too much"),
        ("--provider ibv:nothing0", 2, "devices"),
        ("--sizes 5..7", 2, "no power of two"),
        ("--op write-record", 2, "--qp ud or --qp rd"),
        ("--qp ud --op write", 2, "--op write-record"),
        ("--qp ud --op send --size 2MiB", 2, "1 MiB at most"),
        ("--qp ud --no-crc", 2, "always have a CRC"),
        ("--qp ud --fpdu 1024", 2, "--path-mtu"),
        ("--qp rd --file /etc/hostname", 2, "over connections"),
        ("--qp rd --exchange", 2, "--exchange"),
        ("--qp rd --max-rate 1Gbit", 2, "and take none"),
        ("--qp ud --idle-qps 10", 2, "idle"),
        ("--qp ud --channel udt", 2, "neither over UDT"),
        ("--path-mtu 1500", 2, "only datagram services"),
        ("--qp ud --test lat --qps 2", 2, "one queue pair"),
    ] {
        let flags = format!("{flags} --json");
        let ended = bench(&server, &flags);
        // Which devices there are is the machine's business.
        let line = if line == "devices" { "" } else { line };
        let json = ended.failed(code, line).json();
        Schema::load("bench-rdma-v1.json").check(&json);
    }
    for flags in [
        "--size 0",
        "--size 9MiB",
        "--op dance",
        "--depth 0",
        "--provider verbs",
        "--size 1 --all",
        "--qp xx",
        "--qp 4",
        "--qp ud --path-mtu 100",
    ] {
        let ended = bench(&server, flags);
        assert_eq!(ended.code, Some(2), "{flags}: {}", ended.stderr);
    }
    haul(["bench", "rdma", "127.0.0.1:1"]).failed(5, "nothing listens");
    let open = ["bench", "rdma", "serve", "--listen", "0.0.0.0:0"];
    let nobody = ["--authorized-keys", "/nowhere/keys"];
    haul([&open[..], &nobody].concat()).failed(2, "the server knows no clients");
    bench(&server, "--iterations 10").ok();
}

#[test]
fn unknown_peers_change_nothing() {
    let server = serve(&[]);
    let connect = || TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let silent: Vec<_> = (0..5).map(|_| connect()).collect();
    for greeting in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"{\"is\":\"hello\",\"protocol\":\"haul-bench-rdma\",\"version\":99}\n",
        &[0xff; 4096],
    ] {
        let mut stream = connect();
        stream.write_all(greeting).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        // It may be reset rather than ended: not all of it was read.
        let _ = BufReader::new(stream.take(4096)).read_line(&mut answer);
        assert!(
            answer.is_empty() || answer.contains("\"failed\""),
            "{answer}"
        );
    }
    bench(&server, "--iterations 10").ok();
    drop(silent);
}

#[test]
fn a_server_that_is_killed_ends_its_client() {
    for flags in [
        "--op write",
        "--op send --bidirectional",
        "--op read",
        "--op send --test lat",
        "--op write --test lat",
        "--op read --test lat",
    ] {
        let mut server = serve(&[]);
        let client = begin(&server, &format!("{flags} --time 60s --json-stream"));
        client.wait_for_event("start");
        std::thread::sleep(Duration::from_millis(200));
        server.kill();
        let begun = Instant::now();
        let ended = client.end();
        assert_eq!(ended.code, Some(5), "{flags}: {}", ended.stderr);
        assert!(begun.elapsed() < Duration::from_secs(10), "{flags}");
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}

#[test]
fn a_client_that_is_killed_frees_its_server() {
    let server = serve(&[]);
    for flags in [
        "--op write",
        "--op send --bidirectional",
        "--op write --test lat",
    ] {
        let client = begin(&server, &format!("{flags} --time 60s --json-stream"));
        client.wait_for_event("start");
        std::thread::sleep(Duration::from_millis(100));
        client.kill();
        wait_until("the next client's turn", || {
            bench(&server, "--iterations 10").code == Some(0)
        });
    }
    server.wait_for_log("connection");
}

#[test]
fn two_clients_do_not_measure_each_other() {
    let server = serve(&[]);
    let first = begin(&server, "--time 8s --json-stream");
    first.wait_for_event("start");
    bench(&server, "--iterations 10").failed(5, "somebody else");
    first.kill();
}

#[test]
fn a_one_off_server_ends_with_its_client() {
    let mut server = serve(&["--one-off"]);
    bench(&server, "--iterations 10").ok();
    wait_until("the server's end", || server.has_ended());
}
