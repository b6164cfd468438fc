//! The page and the metrics of gateways that carry something, as browsers and Prometheus see them.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "programs at the edges are like any others, and what is not there where it must be fails the test"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    self, browser, connect, echo_server, entry_gateway, exit_gateway, gate, openmetrics, pattern,
    wait_until,
};
use haul_gateway::{Config, Gateway};
use serde_json::Value;

const ADMIN: &str = "[admin]\nlisten = '127.0.0.1:0'";

/// Two gateways with pages, and a connection through them over which this many bytes went and came
/// back.
fn carrying(octets: usize) -> (Gateway, Gateway, TcpStream) {
    let (far, _) = exit_gateway(&format!("{ADMIN}\n"));
    let route = format!("channels = ['tcp']\n{ADMIN}");
    let near = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), &route).0;
    let mut stream = connect(near.listener_addrs()[0]);
    let sent = pattern(octets, 1);
    let mut got = vec![0; octets];
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    stream.read_exact(&mut got).unwrap();
    sending.join().unwrap();
    (near, far, stream)
}

/// Status, head and body of an answer.
fn ask(address: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"),
    )
}

fn status(gateway: &Gateway) -> Value {
    let (status, _, body) = get(gateway.admin_addr().unwrap(), "/api/status");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

#[test]
fn what_a_gateway_carries_is_counted_at_both_ends() {
    let octets = 3 << 20;
    let (near, far, stream) = carrying(octets);
    let is_counted = |gateway: &Gateway| {
        let segment = &status(gateway)["sessions"][0]["segments"][0];
        [&segment["octets_in"], &segment["octets_out"]]
            .iter()
            .all(|counted| counted.as_u64() == Some(octets as u64))
    };
    wait_until("counts at both ends", || {
        is_counted(&near) && is_counted(&far)
    });
    let (near_sees, far_sees) = (status(&near), status(&far));
    let (opened, ended) = (&near_sees["sessions"][0], &far_sees["sessions"][0]);
    assert_eq!(opened["session"], ended["session"]);
    assert_eq!(
        (&opened["role"], &ended["role"]),
        (&"opener".into(), &"terminus".into())
    );
    assert_eq!(
        (&opened["position"], &ended["position"]),
        (&0.into(), &1.into())
    );
    assert_eq!(opened["connections"][0]["octets_in"], octets);
    assert_eq!(ended["connections"][0]["octets_in"], octets);
    assert_eq!(near_sees["totals"]["sessions"], 1);
    assert_eq!(near_sees["totals"]["connections"], 1);
    assert!(!near_sees["log"].as_array().unwrap().is_empty());
    drop(stream);
    wait_until("no connection", || {
        status(&near)["sessions"][0]["connections"] == Value::Array(Vec::new())
    });
}

#[test]
fn a_session_that_rests_is_not_pictured_again() {
    let (near, _far, _stream) = carrying(1);
    let pictured = || near.sessions()[0].at_ns;
    // The snapshot with the last bytes is made; after that a session sends only keep-alives, every
    // ten seconds.
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut at, mut since) = (pictured(), Instant::now());
    while since.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(50));
        if pictured() != at {
            (at, since) = (pictured(), Instant::now());
        }
        assert!(Instant::now() < deadline, "a picture every moment");
    }
}

#[test]
fn metrics_are_openmetrics_and_agree_with_the_page() {
    let octets = 1 << 20;
    let (near, _far, _stream) = carrying(octets);
    let read = || {
        let (status, head, body) = get(near.admin_addr().unwrap(), "/metrics");
        assert_eq!(status, 200);
        assert!(head.contains("application/openmetrics-text; version=1.0.0"));
        let samples = openmetrics::parse(&body).unwrap_or_else(|why| panic!("{why}\n{body}"));
        (samples, body)
    };
    let value = |samples: &openmetrics::Samples, name: &str| {
        let named: Vec<f64> = samples
            .iter()
            .filter(|((known, _), _)| known == name)
            .map(|(_, value)| *value)
            .collect();
        assert_eq!(named.len(), 1, "{name}");
        named[0]
    };
    wait_until("all octets", || {
        // There is none before the first picture of the session.
        let (samples, _) = read();
        let mut sent = samples
            .iter()
            .filter(|((name, _), _)| name == "haul_segment_sent_bytes_total");
        sent.any(|(_, sent)| *sent >= octets as f64)
    });
    let (samples, body) = read();
    assert_eq!(value(&samples, "haul_sessions_total"), 1.0);
    assert_eq!(value(&samples, "haul_sessions_active"), 1.0);
    assert_eq!(value(&samples, "haul_session_open"), 1.0);
    assert_eq!(
        value(&samples, "haul_connection_received_bytes_total"),
        octets as f64
    );
    let left = value(&samples, "haul_memory_left_bytes");
    assert_eq!(left, near.memory_left() as f64);
    assert_eq!(
        value(&samples, "haul_memory_bytes") - left,
        value(&samples, "haul_session_memory_bytes")
    );
    let limits: f64 = samples
        .iter()
        .filter(|((name, _), _)| name == "haul_segment_limit")
        .map(|(_, value)| value)
        .sum();
    assert_eq!(limits, 1.0);
    let channel = ("channel".to_owned(), "tcp".to_owned());
    let lanes = samples
        .iter()
        .find(|((name, _), _)| name == "haul_segment_lanes");
    assert!(
        lanes.is_some_and(|((_, labels), lanes)| *lanes == 1.0 && labels.contains(&channel)),
        "{body}"
    );
    judge_by_reference(&body);
}

/// The Python of the distribution, for which its packages are.
const PYTHON: &str = "/usr/bin/python3";

/// Has the Prometheus project's own parser read it, where that is installed.
fn judge_by_reference(body: &str) {
    let program = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                   print(len(list(parse(sys.stdin.read()))))";
    let import = "from prometheus_client.openmetrics.parser import text_string_to_metric_families";
    let is_there = Command::new(PYTHON).args(["-c", import]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!(
            "SKIPPED: the reference parser of OpenMetrics is not there (python3-prometheus-client)"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("metrics");
    std::fs::write(&file, body).unwrap();
    let output = Command::new(PYTHON)
        .args(["-c", program])
        .stdin(std::fs::OpenOptions::new().read(true).open(&file).unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{body}");
}

#[test]
fn an_idle_gateway_has_metrics_and_a_page_too() {
    let (gateway, _) = exit_gateway(&format!("{ADMIN}\n"));
    let address = gateway.admin_addr().unwrap();
    let (_, _, body) = get(address, "/metrics");
    openmetrics::parse(&body).unwrap();
    let (status, head, page) = get(address, "/");
    assert_eq!(status, 200);
    assert!(page.contains("Longhaul gateway") && !page.contains("{{nonce}}"));
    let nonce = head
        .split("'nonce-")
        .nth(1)
        .unwrap()
        .split('\'')
        .next()
        .unwrap();
    assert!(page.contains(&format!("<script nonce=\"{nonce}\">")));
    let (_, again, _) = get(address, "/");
    assert!(!again.contains(nonce), "a nonce is used once");
    let (status, head, body) = ask(
        address,
        &format!("HEAD / HTTP/1.1\r\nHost: {address}\r\n\r\n"),
    );
    assert_eq!((status, body.len()), (200, 0));
    assert!(head.contains(&format!("Content-Length: {}", page.len())));
}

#[test]
fn others_than_its_own_page_are_not_answered() {
    let (gateway, _) = exit_gateway(&format!("{ADMIN}\nnames = ['gw.example.org']\n"));
    let address = gateway.admin_addr().unwrap();
    let status = |request: &str| ask(address, request).0;
    let from = |host: &str, more: &str| {
        status(&format!(
            "GET /api/status HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"
        ))
    };
    assert_eq!(from("gw.example.org", ""), 200);
    assert_eq!(from("rebound.example.org", ""), 421);
    assert_eq!(from("localhost", "Origin: http://example.org\r\n"), 403);
    assert_eq!(status("GET /api/status HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(
        status("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"),
        405
    );
    assert_eq!(
        status("GET /etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        404
    );
    let (_, head, _) = get(address, "/");
    for wanted in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "nosniff",
        "no-store",
    ] {
        assert!(head.contains(wanted), "{wanted}: {head}");
    }
}

#[test]
fn silent_clients_do_not_keep_others_out_for_long() {
    let (gateway, _) = exit_gateway(&format!("{ADMIN}\n"));
    let address = gateway.admin_addr().unwrap();
    let silent: Vec<TcpStream> = (0..64).map(|_| connect(address)).collect();
    // All that may come have come and are silent: the next waits until they are shown out.
    assert_eq!(get(address, "/").0, 200);
    drop(silent);
}

#[test]
fn an_address_that_others_reach_must_be_meant() {
    let config = |admin: &str| Config::parse(&format!("name = 'x'\n[admin]\n{admin}")).unwrap();
    let start = |admin| {
        Gateway::start(
            config(admin),
            common::device,
            common::Lines::default().log(),
        )
    };
    let why = start("listen = '0.0.0.0:0'").unwrap_err().to_string();
    assert!(why.contains("allow_remote"), "{why}");
    let gateway = start("listen = '0.0.0.0:0'\nallow_remote = true").unwrap();
    let port = gateway.admin_addr().unwrap().port();
    assert_eq!(get(SocketAddr::from(([127, 0, 0, 1], port)), "/").0, 200);
}

#[test]
fn the_page_shows_a_session_in_a_real_browser() {
    let (near, far, stream) = carrying(2 << 20);
    wait_until("a picture", || {
        status(&near)["sessions"][0]["state"] == "open"
    });
    let Some((page, said)) = browser::dom(near.admin_addr().unwrap()) else {
        return;
    };
    let session = status(&near)["sessions"][0]["session"]
        .as_str()
        .unwrap()
        .to_owned();
    let hop = far.listen_addr().unwrap().to_string();
    let program = stream.local_addr().unwrap().to_string();
    for wanted in [
        &session[..8],
        &hop,
        &program,
        "tcp",
        "Session opened here",
        "Nothing to move",
        "is open",
        "live",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}\n{said}");
    }
    assert!(page.contains("2.10 MB in, 2.10 MB out"), "{page}");
    // Violations of the page's content policy and script errors appear there.
    assert!(!said.contains("CONSOLE"), "{said}");
    // The far page names who opened the session, and the client.
    let (page, said) = browser::dom(far.admin_addr().unwrap()).unwrap();
    for wanted in ["Session ends here, opened by entry", &program, "live"] {
        assert!(page.contains(wanted), "{wanted}: {page}\n{said}");
    }
    assert!(!said.contains("CONSOLE"), "{said}");
}

#[test]
fn the_page_shows_when_a_suspended_session_ends() {
    let (far, _) = exit_gateway("");
    let (gate, by) = gate::Gate::before(far.listen_addr().unwrap());
    let route = format!("channels = ['tcp']\n[session]\nhold = 900\noutage = 900\n{ADMIN}");
    let (near, lines) = entry_gateway(&[by], echo_server(), &route);
    let mut stream = connect(near.listener_addrs()[0]);
    common::echo(&mut stream, 1 << 10, 1);
    gate.shut();
    let ends_in = || status(&near)["sessions"][0]["ends_in_s"].as_f64();
    wait_until("suspended", || ends_in().is_some());
    // Also while an attempt to reach the gateway is in flight.
    let mut before = 900.0;
    for _ in 0..100 {
        let ends_in = ends_in().unwrap_or_else(|| panic!("{:?}", lines.all()));
        assert!(ends_in <= before, "{before} {ends_in}");
        before = ends_in;
        std::thread::sleep(Duration::from_millis(10));
    }
    let Some((page, said)) = browser::dom(near.admin_addr().unwrap()) else {
        return;
    };
    let after = ends_in();
    let after = after.unwrap_or_else(|| panic!("{:?}", lines.all()));
    assert!(after < before, "{before} {after}");
    let words = page.split("suspended, ends in ").nth(1);
    let words = words.unwrap_or_else(|| panic!("{page}\n{said}"));
    let words = words.split('<').next().unwrap();
    let (minutes, seconds) = words.split_once(" min ").unwrap();
    let seconds = seconds.strip_suffix(" s").unwrap();
    let shown = minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap();
    // It is rounded up.
    assert!(
        (after..before + 1.0).contains(&shown),
        "{words}: {before} {after}"
    );
    assert!(page.contains(">1 session suspended<"), "{page}");
    assert!(!page.contains(">live<"), "{page}");
    assert!(!page.contains("class=\"pill good"), "a green pill: {page}");
}

#[test]
fn a_narrow_window_cuts_nothing_off() {
    let (near, far, _stream) = carrying(1 << 10);
    for gateway in [&near, &far] {
        let address = gateway.admin_addr().unwrap();
        let Some((cells, cut)) = browser::cut_off(address, 390, false) else {
            return;
        };
        assert!(cells > 0 && cut.is_empty(), "{cells} cells; cut off: {cut}");
    }
    // Without the rules for narrow windows this test fails.
    let (cells, cut) = browser::cut_off(near.admin_addr().unwrap(), 390, true).unwrap();
    assert!(
        cells > 0 && cut.contains("TD"),
        "{cells} cells; cut off: {cut}"
    );
}
