//! `haul engine run`: what its operator and its clients see.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Ended, Place, haul, start_as, text, wait_until};

struct Engine {
    child: Child,
    /// What it has printed until it was ready.
    lines: Vec<String>,
}

impl Engine {
    fn start(path: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
            .args(["engine", "run", "--listen", &text(path)])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let ready = format!("engine at {}", text(path));
        let stderr = child.stderr.take().unwrap();
        // Ended if it does not start.
        let mut engine = Self {
            child,
            lines: Vec::new(),
        };
        let is_ready = BufReader::new(stderr).lines().any(|line| {
            engine.lines.push(line.unwrap());
            engine.lines[engine.lines.len() - 1].contains(&ready)
        });
        assert!(is_ready, "no engine: {:?}", engine.lines);
        engine
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Its exit code after SIGTERM.
    fn end(mut self) -> Option<i32> {
        self.signal("TERM");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(place: &Place) -> PathBuf {
    place.server("engine.sock")
}

/// A command that looks for its engine there.
fn by(engine: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haul"));
    command.env("HAUL_ENGINE_SOCKET", engine);
    start_as(command, args).end()
}

fn notes(engine: &Path) -> Vec<String> {
    let list = by(engine, &["devices", "--json"]).ok().json();
    let providers = list["providers"].as_array().unwrap();
    let ours = providers.iter().find(|found| found["provider"] == "engine");
    let devices = ours.unwrap()["devices"].as_array().unwrap().clone();
    let note = |device: &Value| {
        let name = device["name"].as_str().unwrap();
        assert!(name.starts_with("engine-"), "{name}");
        device["note"].as_str().unwrap().to_owned()
    };
    devices.iter().map(note).collect()
}

#[test]
fn devices_tell_whether_an_engine_answers() {
    let place = Place::new();
    let path = socket(&place);
    for note in notes(&path) {
        assert!(
            note.starts_with("in this process, for no engine answers at "),
            "{note}"
        );
    }
    let engine = Engine::start(&path, &[]);
    assert_eq!(
        notes(&path),
        vec![format!("by the engine at {}", text(&path)); 3]
    );
    assert_eq!(engine.end(), Some(0));
    assert!(!path.exists(), "the socket is left");
}

#[test]
fn a_measurement_by_an_engine_takes_next_to_no_time_of_its_own_process() {
    let place = Place::new();
    let path = socket(&place);
    let _engine = Engine::start(&path, &["--cpus", "0"]);
    let child = Command::new(env!("CARGO_BIN_EXE_haul"))
        .env("HAUL_ENGINE_SOCKET", &path)
        .args([
            "bench",
            "rdma",
            "serve",
            "--provider",
            "engine",
            "--allow-insecure",
        ])
        .args(["--port", "0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is ended as an engine is.
    let mut server = Engine {
        child,
        lines: Vec::new(),
    };
    let mut lines = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let port = lines
        .find_map(|line| {
            let line = line.unwrap();
            let (_, rest) = line.split_once("127.0.0.1:")?;
            Some(rest.split([' ', ',']).next()?.to_owned())
        })
        .unwrap();
    let host = format!("127.0.0.1:{port}");
    let args = [
        "bench",
        "rdma",
        &host,
        "--provider",
        "engine",
        "--allow-insecure",
    ];
    let more = ["--size", "1MiB", "-n", "200", "--verify", "--json"];
    let ended = by(&path, &[&args[..], &more[..]].concat()).ok();
    let note = format!("engine-tcp: by the engine at {}", text(&path));
    assert!(ended.stderr.contains(&note), "{}", ended.stderr);
    let wrong = [&args[..], &["--drive", "engine"]].concat();
    by(&path, &wrong).failed(2, "--provider engine takes no --drive");
}

#[test]
fn what_an_operator_does_wrong_is_one_line() {
    let place = Place::new();
    let path = socket(&place);
    let _engine = Engine::start(&path, &[]);
    let at = text(&path);
    let run = |more: &[&str]| haul([&["engine", "run"], more].concat());
    run(&["--listen", &at]).failed(1, "another engine runs there");
    assert_eq!(run(&["--listen", &at, "--clients", "0"]).code, Some(2));
    let file = place.server("file");
    std::fs::write(&file, "precious").unwrap();
    run(&["--listen", &text(&file)]).failed(1, "a file is there that is no socket");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    run(&["--listen", "/nowhere/engine.sock"]).failed(1, "no such file or directory");
    run(&["--listen", &at, "--cpus", "1000"]).failed(2, "1000");
    run(&["--listen", "-"]).failed(2, "stdin is no socket to listen at");
}

#[test]
fn an_engine_serves_its_counts_as_openmetrics() {
    let place = Place::new();
    let path = socket(&place);
    let engine = Engine::start(&path, &["--metrics", "127.0.0.1:0"]);
    let url = engine
        .lines
        .iter()
        .find_map(|line| line.split_once("http://"));
    let host = url.unwrap().1.trim_end_matches("/metrics");
    // Each device asks once whether an engine answers; one that has ended is refused.
    notes(&path);
    let mut body = String::new();
    wait_until("three clients", || {
        let mut stream = TcpStream::connect(host).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        body.clear();
        stream.read_to_string(&mut body).unwrap();
        let value = |name: &str| -> f64 {
            let mut values = body.lines().filter_map(|line| line.strip_prefix(name));
            values.next().unwrap().parse().unwrap()
        };
        let refused = value("haul_engine_clients_refused_total{} ");
        value("haul_engine_clients_total{} ") + refused >= 3.0
    });
    assert!(body.contains("haul_engine_completions_total{} 0"), "{body}");
    assert_eq!(engine.end(), Some(0));
}
