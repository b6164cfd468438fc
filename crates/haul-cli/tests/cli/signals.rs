//! Signals: what they do to servers and clients, and what an interrupted client says.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::schema::Schema;
use crate::support::{
    Client, Ended, MIB, Place, Server, events, haul, insecure, make_file, read_file, start_as,
    text, wait_until,
};

/// Every signal that ends a process by default, on Linux.
const DEADLY: [(&str, i32); 23] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// Longer than a signal takes to end a process on a busy machine.
const LONG: Duration = Duration::from_secs(10);

/// Starts a client that a signal ends, also where the tests run under `nohup`.
fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Client {
    let mut program = Command::new("env");
    program.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_haul")]);
    start_as(program, args)
}

/// The final object of an interrupted command: the last line of its stdout, which keeps to its
/// schema.
fn object(ended: &Ended, signal: &str, schema: &str) -> Value {
    let exit = 128 + number(signal);
    assert_eq!(ended.code, Some(exit), "{ended:?}");
    let object = events(&ended.stdout).pop().unwrap();
    Schema::load(schema).check(&object);
    assert_eq!(object["interrupted"], format!("SIG{signal}"));
    assert_eq!(object["error"]["exit"], exit);
    object
}

/// The one line that says that it was interrupted, and how it goes on.
fn line<'a>(ended: &'a Ended, signal: &str) -> &'a str {
    let said = format!("interrupted by SIG{signal} ");
    let lines = ended.stderr.lines().filter(|line| line.contains(&said));
    let lines: Vec<_> = lines.collect();
    let [line] = lines[..] else {
        panic!("{}", ended.stderr)
    };
    assert!(line.contains("run the same command again"), "{line}");
    assert_eq!(ended.stderr.lines().next_back(), Some(line));
    line
}

#[test]
fn an_interrupted_transfer_tells_its_figures_and_goes_on_with_the_same_command() {
    let place = Place::new();
    let server = place.serve();
    for (seed, signal) in (1..).zip(["INT", "TERM", "HUP"]) {
        for verb in ["send", "get"] {
            let name = format!("{verb}-{signal}");
            let (from, to) = match verb {
                "send" => (place.client(&name), place.server(&name)),
                _ => (place.server(&name), place.client(&name)),
            };
            let content = make_file(&from, 24 * MIB, seed);
            let mut args = match verb {
                "send" => vec!["send".to_owned(), text(&from), server.at("")],
                _ => vec!["get".to_owned(), server.at(&name), text(&place.client(""))],
            };
            let again = args.clone();
            args.extend(["--rate", "80Mbit", "--json", "--json-stream"].map(str::to_owned));
            let client = start(args);
            // What arrived in the last second may be fetched again.
            let reached = client.wait_for_bytes(14 * MIB as u64);
            client.signal(signal);
            let ended = client.end();
            let object = object(&ended, signal, "transfer-v1.json");
            let so_far = &object["so_far"];
            assert!(so_far["present_bytes"].as_u64().unwrap() >= reached);
            // A channel's counters are some 50 ms old.
            let moved = so_far["moved_bytes"].as_u64().unwrap() + MIB as u64;
            assert!((reached..content.len() as u64).contains(&moved), "{so_far}");
            assert_eq!(so_far["bytes"], content.len());
            assert!(line(&ended, signal).contains("of 24.00 MiB are at the receiver"));
            // The events end with the same figures.
            let schema = Schema::load("transfer-v1.json");
            let events = events(&ended.stdout);
            events[..events.len() - 1]
                .iter()
                .for_each(|event| schema.check_definition("event", event));
            assert_eq!(events[events.len() - 2]["event"], "end");
            assert_eq!(
                events[events.len() - 2]["interrupted"],
                object["interrupted"]
            );
            let done = haul(again.iter().map(String::as_str).chain(["--json"]));
            let done = done.ok().json();
            assert!(done["resumed_bytes"].as_u64().unwrap() > 0, "{done}");
            assert!(read_file(&to) == content);
        }
    }
}

#[test]
fn without_json_the_figures_are_words() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 24 * MIB, 1);
    let client = start([
        "send",
        &text(&place.client("a")),
        &server.at(""),
        "--rate=80Mbit",
    ]);
    wait_until("a partial file", || place.server(".a.haul-part").exists());
    std::thread::sleep(Duration::from_millis(800));
    client.signal("INT");
    let ended = client.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""));
    let line = line(&ended, "INT");
    assert!(line.contains("MiB moved, "), "{line}");
    // Before anything is known.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = format!("haul://127.0.0.1:{port}/");
    let client = start(["send", &text(&place.client("a")), &to, "--json"]);
    let accepted = listener.accept().unwrap();
    client.signal("TERM");
    let ended = client.end();
    let object = object(&ended, "TERM", "transfer-v1.json");
    assert_eq!(object["so_far"], Value::Null);
    drop(accepted);
}

/// The kernel paces a TCP channel and queues megabytes; a UDT channel reads ahead.
#[test]
fn a_transfer_that_is_cut_short_counts_what_has_left_not_what_was_queued() {
    for channel in ["--channel=tcp", "--channel=udt"] {
        for is_interrupted in [true, false] {
            let place = Place::new();
            let mut server = place.serve();
            make_file(&place.client("a"), 24 * MIB, 1);
            let (from, to) = (text(&place.client("a")), server.at(""));
            let flags = ["--give-up-after=0", "--json", "--json-stream"];
            let args = ["send", &from, &to, channel, "--rate=16Mbit"];
            let client = start(args.iter().chain(&flags));
            client.wait_for_bytes(2 * MIB as u64);
            if is_interrupted {
                client.signal("INT");
            } else {
                server.kill();
            }
            let object = events(&client.end().stdout).pop().unwrap();
            let number = |name: &str| object["so_far"][name].as_u64().unwrap();
            let (present, moved) = (number("present_bytes"), number("moved_bytes"));
            // In half a second 1 MB leaves.
            let near = present.saturating_sub(MIB as u64)..present + MIB as u64;
            assert!(
                near.contains(&moved),
                "{channel} {is_interrupted}: {moved} of {present}"
            );
        }
    }
}

#[test]
fn an_interrupted_measurement_tells_its_figures() {
    let place = Place::new();
    let files = place.serve();
    let paths = Server::spawn(["bench", "serve", "--listen", "127.0.0.1:0"]);
    let rdma = Server::spawn(["bench", "rdma", "serve", "--listen", "127.0.0.1:0"]);
    let out = text(&place.outside("profile"));
    let interrupt = |words: &str, server: &Server, signal: &str| {
        let to = format!("127.0.0.1:{}", server.port);
        let words = words.replace("TO", &to).replace("OUT", &out);
        let words = words.replace("PORT", &server.port.to_string());
        let client = start(words.split(' '));
        std::thread::sleep(Duration::from_millis(1500));
        client.signal(signal);
        client.end()
    };
    for reverse in ["", " --reverse"] {
        let words = format!("bench 127.0.0.1 --port PORT --time 60s --rate 80Mbit --json{reverse}");
        let ended = interrupt(&words, &files, "TERM");
        let so_far = object(&ended, "TERM", "bench-v1.json")["so_far"].clone();
        let moved = so_far["moved_bytes"].as_u64().unwrap();
        assert!((MIB as u64..30 * MIB as u64).contains(&moved), "{so_far}");
        assert!(line(&ended, "TERM").contains("MiB moved"));
    }
    let run = "bench run TO --interval 200ms --time";
    let ended = interrupt(&format!("{run} 60s --json --json-stream"), &paths, "HUP");
    let so_far = object(&ended, "HUP", "bench-run-v1.json")["so_far"].clone();
    assert!(so_far["run"]["bytes"].as_u64().unwrap() > 0, "{so_far}");
    line(&ended, "HUP");
    let ended = interrupt(&format!("{run} 500ms --repeat 9"), &paths, "INT");
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let so_far = ended
        .stdout
        .lines()
        .find(|line| line.contains("s so far: "));
    assert!(so_far.is_some(), "{ended:?}");
    assert!(line(&ended, "INT").contains("complete"));
    let sizes = "bench rdma TO --size 1024 --time 60s --json";
    let ended = interrupt(sizes, &rdma, "INT");
    let object_ = object(&ended, "INT", "bench-rdma-v1.json");
    assert_eq!(object_["so_far"]["rows"], Value::Array(Vec::new()));
    assert!(line(&ended, "INT").contains("0 sizes are measured"));
    let profile = "profile TO --out OUT --json --only streams";
    let ended = interrupt(profile, &paths, "INT");
    let so_far = object(&ended, "INT", "bench-run-v1.json")["so_far"].clone();
    assert!(so_far["runs"].is_array(), "{so_far}");
    line(&ended, "INT");
}

/// A client with its signals as this says.
fn client_as(before: &str, args: &[&str]) -> Client {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!(r#"{before}; exec "$0" "$@""#)]);
    shell.arg(env!("CARGO_BIN_EXE_haul"));
    start_as(shell, args)
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("a"), 8 * MIB, 1);
    let (from, to) = (text(&place.client("a")), server.at(""));
    let args = ["send", &from, &to, "--rate", "40Mbit", "--json-stream"];
    let client = client_as("trap '' HUP INT TERM", &args);
    client.wait_for_plan();
    for signal in ["HUP", "INT", "TERM"] {
        client.signal(signal);
    }
    client.end().ok();
    assert!(read_file(&place.server("a")) == content);
}

#[test]
fn a_second_signal_ends_a_client_at_once() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("a"), 24 * MIB, 1);
    // Its stdout takes no more: the figures cannot be printed.
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"head -c 65536 /dev/zero; exec "$0" "$@""#]);
    shell.arg(env!("CARGO_BIN_EXE_haul"));
    let (from, to) = (text(&place.client("a")), server.at(""));
    shell.args(insecure(["send", &from, &to, "--rate=8Mbit", "--json"]));
    let mut child = shell
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a partial file", || place.server(".a.haul-part").exists());
    kill(&child, "TERM");
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none());
    kill(&child, "TERM");
    assert_eq!(end_of(&mut child, LONG).unwrap().code(), Some(143));
}

fn kill(child: &Child, signal: &str) {
    let (option, pid) = (format!("-{signal}"), child.id().to_string());
    // It may have ended.
    let _ = Command::new("kill")
        .args([option, pid])
        .stderr(Stdio::null())
        .status();
}

/// How it has ended, if it does in time.
fn end_of(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// What docs/operating.md says that a signal does: to a server, and to a client.
fn decision(signal: &str) -> (String, String) {
    let path = format!("{}/../../docs/operating.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).unwrap();
    let name = format!("`SIG{signal}`");
    let row = page
        .lines()
        .find(|line| line.starts_with('|') && line.contains(&name));
    let row = row.unwrap_or_else(|| panic!("the table has no {name}"));
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    (cells[1].to_owned(), cells[2].to_owned())
}

/// Starts `haul`, with every signal as the system has it, and no core file.
fn start_default(args: &[&str]) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"ulimit -c 0; exec env --default-signal "$0" "$@""#]);
    shell.arg(env!("CARGO_BIN_EXE_haul")).args(insecure(args));
    shell.stdin(Stdio::null()).stdout(Stdio::piped());
    shell.stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends the signal, and checks that it does what the table says.
fn check_decision(child: &mut Child, decision: &str, (signal, number): (&str, i32)) {
    kill(child, signal);
    if matches!(signal, "SEGV" | "BUS") && end_of(child, Duration::from_millis(500)).is_none() {
        // Rust's runtime takes the first one for a full stack, and looks.
        kill(child, signal);
    }
    let status = match decision {
        "goes on" => None,
        _ => end_of(child, LONG),
    };
    let context = format!("{signal} {decision}: {status:?}");
    match decision {
        "goes on" => {
            std::thread::sleep(Duration::from_millis(100));
            assert!(child.try_wait().unwrap().is_none(), "{context}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        "ends" => assert_eq!(status.unwrap().signal(), Some(number), "{context}"),
        "figures so far" => assert_eq!(status.unwrap().code(), Some(128 + number), "{context}"),
        other => panic!("the table says '{other}'"),
    }
}

/// The commands that move files or measure.
const CLIENTS: [&str; 7] = [
    "send",
    "get",
    "sync",
    "bench",
    "bench run",
    "bench rdma",
    "profile",
];

/// A server of files, and clients of each kind that take long.
struct Long {
    place: Place,
    files: Server,
}

/// A client that takes long, and what it makes if it moves files.
struct Work {
    args: Vec<String>,
    /// The source, its copy, and the part file of that.
    files: Option<[PathBuf; 3]>,
    /// Measures one client at a time.
    _server: Option<Server>,
}

impl Long {
    fn new() -> Self {
        let place = Place::new();
        let files = place.serve();
        Self { place, files }
    }

    /// The work of a client; `name` is that of what it moves.
    fn work(&self, client: &str, name: &str) -> Work {
        let place = &self.place;
        let (from, to) = match client {
            "get" => (place.server(name), place.client(name)),
            _ => (place.client(name), place.server(name)),
        };
        let is_path = matches!(client, "bench run" | "bench rdma" | "profile");
        let server = is_path.then(|| Server::spawn(["bench", "serve", "--listen=127.0.0.1:0"]));
        let at = server.as_ref().map_or(0, |server| server.port);
        let at = format!("127.0.0.1:{at}");
        let (source, port) = (text(&from), self.files.port.to_string());
        let (there, into) = (self.files.at(""), text(&place.client("")));
        let (remote, out) = (self.files.at(name), text(&place.outside(name)));
        let words = match client {
            "send" | "sync" => vec![client, &source, &there],
            "get" => vec!["get", &remote, &into],
            "bench" => vec![
                "bench",
                "127.0.0.1",
                "--time=60s",
                "--rate=8Mbit",
                "--port",
                &port,
            ],
            "bench run" => vec!["bench", "run", &at, "--time=60s"],
            "bench rdma" => vec!["bench", "rdma", &at, "--size=1024", "--time=60s"],
            _ => vec!["profile", &at, "--only=streams", "--out", &out],
        };
        let args = words.into_iter().map(str::to_owned).collect();
        let files = match client {
            "send" | "get" => {
                let part = to.with_file_name(format!(".{name}.haul-part"));
                make_file(&from, 3 * MIB, 1);
                Some([from, to, part])
            }
            "sync" => {
                std::fs::create_dir(&from).unwrap();
                make_file(&from.join("a"), 3 * MIB, 2);
                Some([from.join("a"), to.join("a"), to.join(".a.haul-part")])
            }
            _ => None,
        };
        Work {
            args,
            files,
            _server: server,
        }
    }
}

impl Work {
    /// Starts it, slowly, and waits until it has begun.
    fn start(&self, flags: &[&str]) -> Child {
        let mut args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        args.extend(self.files.is_some().then_some("--rate=1Mbit"));
        args.extend(flags);
        let child = start_default(&args);
        match &self.files {
            Some([_, _, part]) => wait_until("a partial file", || part.exists()),
            // It takes SIGTERM, whose bit is the 15th.
            None => wait_until("a handler", || {
                let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
                let status = status.unwrap_or_default();
                let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
                let caught = caught.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap());
                caught.is_some_and(|mask| mask & (1 << 14) != 0)
            }),
        }
        child
    }

    /// What an earlier start has left does no harm.
    fn check(&self, context: &str) {
        let Some([source, copy, part]) = &self.files else {
            return;
        };
        let whole = read_file(source);
        assert!(!copy.exists() || read_file(copy) == whole, "{context}");
        haul(&self.args).ok();
        assert!(read_file(copy) == whole, "{context}");
        assert!(!part.exists(), "{context}");
    }
}

#[test]
fn every_signal_does_what_the_table_says_to_a_server() {
    let place = Place::new();
    for signal in DEADLY {
        let (to_server, _) = decision(signal.0);
        let mut child = start_default(&["serve", &text(&place.server("")), "--listen=127.0.0.1:0"]);
        let mut line = String::new();
        let stderr = child.stderr.take().unwrap();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        assert!(line.starts_with("haul: serving "), "{line}");
        check_decision(&mut child, &to_server, signal);
    }
}

#[test]
fn every_signal_does_what_the_table_says_to_each_client() {
    let long = Long::new();
    std::thread::scope(|scope| {
        for client in CLIENTS {
            let long = &long;
            scope.spawn(move || {
                for signal in DEADLY {
                    let context = format!("{client}-{}", signal.0);
                    let work = long.work(client, &context.replace(' ', "-"));
                    let mut child = work.start(&[]);
                    check_decision(&mut child, &decision(signal.0).1, signal);
                    work.check(&context);
                }
            });
        }
    });
}

#[test]
fn each_interrupted_client_tells_its_figures_with_and_without_json() {
    let long = Long::new();
    std::thread::scope(|scope| {
        for client in CLIENTS {
            let long = &long;
            let schema = match client {
                "bench" => "bench-v1.json",
                "bench rdma" => "bench-rdma-v1.json",
                "bench run" | "profile" => "bench-run-v1.json",
                _ => "transfer-v1.json",
            };
            scope.spawn(move || {
                for signal in ["INT", "TERM", "HUP"] {
                    for flags in [&[][..], &["--json"]] {
                        let name = format!("{client}-{signal}-{}", flags.len()).replace(' ', "-");
                        let work = long.work(client, &name);
                        let child = work.start(flags);
                        std::thread::sleep(Duration::from_millis(500));
                        kill(&child, signal);
                        let ended = whole(child);
                        line(&ended, signal);
                        match flags {
                            [] => {
                                let exit = 128 + number(signal);
                                assert_eq!(ended.code, Some(exit), "{ended:?}");
                                let is_json = ended.stdout.contains('{');
                                assert!(!is_json, "{ended:?}");
                            }
                            _ => {
                                assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
                                object(&ended, signal, schema);
                            }
                        }
                        work.check(&name);
                    }
                }
            });
        }
    });
}

/// Waits for the end of a program, with all that it has printed.
fn whole(mut child: Child) -> Ended {
    end_of(&mut child, LONG).unwrap_or_else(|| {
        child.kill().unwrap();
        panic!("it goes on");
    });
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn number(signal: &str) -> i32 {
    DEADLY.iter().find(|(name, _)| *name == signal).unwrap().1
}
