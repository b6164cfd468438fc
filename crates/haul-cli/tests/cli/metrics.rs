//! The metrics of `haul serve`, as a scraper sees them.

#[path = "../../../haul-gateway/tests/all/common/openmetrics.rs"]
mod openmetrics;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::support::{MIB, Place, Server, haul, make_file, text, wait_until};

/// Reads the exposition with the parser of Prometheus's client for Python, and prints the bytes
/// received.
const PARSE: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
for family in parse(sys.stdin.read()):
    for sample in family.samples:
        if sample.name == 'haul_serve_received_bytes_total':
            print(int(sample.value))
";

const LISTEN: [&str; 4] = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];

fn scrape(port: &str) -> (String, String) {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn a_server_serves_its_counts_as_openmetrics() {
    let place = Place::new();
    let dir = text(&place.server(""));
    let server = Server::spawn([&["serve", &dir], &LISTEN[..]].concat());
    let mut port = None;
    wait_until("metrics", || {
        let log = server.log();
        let line = log
            .iter()
            .find_map(|line| line.split_once("http://127.0.0.1:"));
        port = line.map(|(_, rest)| rest.trim_end_matches("/metrics").to_owned());
        port.is_some()
    });
    let port = port.unwrap();
    make_file(&place.client("a"), MIB, 5);
    let from = text(&place.client("a"));
    haul(["send", &from, &server.at("")]).ok();
    haul(["get", &server.at("absent"), &text(&place.client(""))]).failed_somehow("absent");
    haul(["ls", &server.at("")]).ok();
    let value = |samples: &openmetrics::Samples, name: &str, operation: Option<&str>| {
        let label = operation.map(|operation| ("operation".to_owned(), operation.to_owned()));
        let labels: Vec<(String, String)> = label.into_iter().collect();
        samples.get(&(name.to_owned(), labels)).copied()
    };
    let mut body = String::new();
    wait_until("all sessions", || {
        let (head, text) = scrape(&port);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(
            head.contains("application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        let samples = openmetrics::parse(&text).unwrap();
        body = text;
        let ended = |operation| value(&samples, "haul_serve_sessions_total", Some(operation));
        ["put", "get", "list"]
            .iter()
            .all(|operation| ended(operation) == Some(1.0))
    });
    let samples = openmetrics::parse(&body).unwrap();
    let of = |name: &str| value(&samples, name, None);
    assert_eq!(
        of("haul_serve_received_bytes_total"),
        Some(1_048_576.0),
        "{body}"
    );
    assert_eq!(of("haul_serve_files_received_total"), Some(1.0));
    assert_eq!(of("haul_serve_sent_bytes_total"), Some(0.0));
    let failed = |operation| {
        value(
            &samples,
            "haul_serve_sessions_failed_total",
            Some(operation),
        )
    };
    assert_eq!((failed("put"), failed("get")), (Some(0.0), Some(1.0)));
    // Debian's modules are those of its own Python, which may not be the first of PATH.
    let debian = "/usr/bin/python3";
    let python = match std::path::Path::new(debian).exists() {
        true => debian,
        false => "python3",
    };
    let mut parser = Command::new(python);
    parser.args(["-c", PARSE]).stdin(Stdio::piped());
    parser.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut parser) = parser.spawn() else {
        println!("SKIPPED: no python3");
        return;
    };
    let mut stdin = parser.stdin.take().unwrap();
    // It may have ended already.
    let _ = stdin.write_all(body.as_bytes());
    drop(stdin);
    let output = parser.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("No module named 'prometheus_client'") {
        println!("SKIPPED: python3 lacks prometheus_client");
        return;
    }
    let parsed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(parsed.trim(), "1048576", "{error}");
}
