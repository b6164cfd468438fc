//! `haul run --gateway` of applications that do not load the library.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::common::{Gateway, member};
use crate::support::{Ended, Place, haul, start_with, text};

/// No host of the internet has this address (RFC 5737).
const ELSEWHERE: &str = "192.0.2.1";
const NO_FILTER: &str = "haul run: cannot carry connections of applications that do not load the library: the kernel \
                         refuses a seccomp filter: ";

/// A gateway that reaches this host only, and the words of `haul run` through it. The linker leaves
/// out the file that it shall preload: it is no library.
struct Through {
    _gateway: Gateway,
    words: Vec<String>,
}

impl Through {
    fn new(place: &Place) -> Self {
        Self::by(Command::new(env!("CARGO_BIN_EXE_haul")), place)
    }

    /// With a gateway that this command, which becomes `haul`, starts.
    fn by(command: Command, place: &Place) -> Self {
        let config = member("tcp", "127.0.0.1:0", "exit = ['127.0.0.1']");
        let gateway = Gateway::start_by(command, &config, &[]);
        let library = place.outside("library");
        std::fs::write(&library, "").unwrap();
        let at = gateway.sessions_at().to_string();
        let words = ["run", "--preload", &text(&library), "--gateway", &at];
        Self {
            words: words.map(str::to_owned).to_vec(),
            _gateway: gateway,
        }
    }

    /// `haul run` with more options, and what it starts.
    fn line(&self, options: &[&str], program: &[&str]) -> Vec<String> {
        let rest = options.iter().chain(&["--"]).chain(program);
        let rest = rest.map(|word| (*word).to_owned());
        self.words.iter().cloned().chain(rest).collect()
    }

    fn run(&self, options: &[&str], program: &[&str]) -> Ended {
        haul(self.line(options, program))
    }

    /// Whether the kernel lets `haul run` install its filter here.
    fn has_filter(&self) -> bool {
        let ended = self.run(&[], &["true"]);
        assert!(
            ended.code == Some(0) || ended.stderr.contains(NO_FILTER),
            "{:?} {}",
            ended.code,
            ended.stderr
        );
        ended.code == Some(0)
    }
}

#[test]
fn without_a_filter_nothing_is_started_unless_direct_connections_are_allowed() {
    let place = Place::new();
    let through = Through::new(&place);
    // The kernel allows one filter in a line of processes: there is none under another haul run.
    let is_nested = through.has_filter();
    let (started, program) = (place.outside("started"), env!("CARGO_BIN_EXE_haul"));
    let file = text(&started);
    let run = |options: &[&str]| {
        let line = through.line(options, &["touch", &file]);
        if !is_nested {
            return haul(line);
        }
        let words: Vec<&str> = [program]
            .into_iter()
            .chain(line.iter().map(String::as_str))
            .collect();
        through.run(&[], &words)
    };
    let ended = run(&[]);
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);
    let said: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("haul run"))
        .collect();
    let [line] = said[..] else {
        panic!("{}", ended.stderr);
    };
    assert!(
        line.starts_with(NO_FILTER) && line.contains("--allow-direct"),
        "{line}"
    );
    assert!(!started.exists());
    let ended = run(&["--allow-direct"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(started.exists());
}

/// The report as JSON and for people, of a shell that connects to an address.
fn reports(through: &Through, file: &Path, options: &[&str], to: &str) -> (Ended, String) {
    let script = format!("exec 3<>/dev/tcp/{}", to.replace(':', "/"));
    let report = format!("--report={}", text(file));
    let options = [options, &[&report]].concat();
    let json = [&options[..], &["--json"]].concat();
    let shell = ["bash", "-c", &script];
    through.run(&options, &shell);
    let table = std::fs::read_to_string(file).unwrap();
    let mut ended = through.run(&json, &shell);
    ended.stdout = std::fs::read_to_string(file).unwrap();
    (ended, table)
}

#[test]
fn the_report_gives_the_reason_that_is_true_for_the_application() {
    let place = Place::new();
    let through = Through::new(&place);
    let file = place.outside("report");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = server.local_addr().unwrap().to_string();

    // Nobody has looked at what goes past the gateway.
    let (ended, table) = reports(&through, &file, &["--allow-direct"], &near);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.json()["sockets"].as_array().unwrap().len(), 0);
    assert!(
        table.contains("did not load the library") && table.contains("went plain"),
        "{table}"
    );
    if !through.has_filter() {
        println!("SKIPPED: no seccomp filter here");
        return;
    }
    // On this host nothing is carried, and nothing is missed.
    let (ended, table) = reports(&through, &file, &[], &near);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.json()["sockets"].as_array().unwrap().len(), 0);
    assert!(table.contains("made none to another host"), "{table}");
    // The gateway may not connect there.
    let elsewhere = format!("{ELSEWHERE}:80");
    let (ended, table) = reports(&through, &file, &[], &elsewhere);
    assert_ne!(ended.code, Some(0));
    assert!(
        ended.stderr.contains("Permission denied"),
        "{}",
        ended.stderr
    );
    let json = ended.json();
    let row = &json["sockets"][0];
    assert_eq!(row["peer"], elsewhere, "{json}");
    assert_eq!(row["by"], "kernel", "{json}");
    assert_eq!(row["why_not"], "the gateway could not make the connection");
    assert!(
        table.contains("the gateway could not make the connection"),
        "{table}"
    );
}

#[test]
fn it_reaches_gateways_of_the_next_and_of_the_previous_version() {
    let next = ["HAUL_NEXT=minor".to_owned()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().write_all(b"hello\n").unwrap();
        }
    });
    let script = format!("exec 3<>/dev/tcp/{}; head -n 1 <&3", to.replace(':', "/"));
    for is_next in [false, true] {
        let place = Place::new();
        let mut gateway = Command::new(env!("CARGO_BIN_EXE_haul"));
        if !is_next {
            gateway.env("HAUL_NEXT", "minor");
        }
        let through = Through::by(gateway, &place);
        if !through.has_filter() {
            return;
        }
        let line = through.line(&[], &["bash", "-c", &script]);
        let ended = start_with(if is_next { &next } else { &[] }, line)
            .end()
            .ok();
        assert_eq!(ended.stdout, "hello\n");
    }
}
