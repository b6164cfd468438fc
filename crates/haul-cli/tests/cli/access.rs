//! Who may do what: keys of a standing server and its clients, and codes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::common::{Gateway, member};
use crate::schema::Schema;
use crate::support::{
    Client, Ended, MIB, PATIENCE, Place, Server, make_file, program_with, read_file, start_exactly,
    text, wait_until,
};

/// A user with a configuration of its own.
struct User<'a> {
    place: &'a Place,
    name: &'static str,
}

impl User<'_> {
    fn environment(&self) -> [String; 1] {
        [format!(
            "XDG_CONFIG_HOME={}",
            text(&self.place.outside(self.name))
        )]
    }

    fn start(&self, args: &[&str]) -> Client {
        start_exactly(program_with(&self.environment()), args)
    }

    fn haul(&self, args: &[&str]) -> Ended {
        self.start(args).end()
    }

    /// Makes a key, and returns the public one.
    fn key(&self) -> String {
        self.haul(&["key", "new"]).ok().stdout.trim().to_owned()
    }
}

/// A server with authorised keys, and one of its clients.
struct Site {
    place: Place,
    server: Server,
}

impl Site {
    /// `line` is what follows the client's key in the file of authorised keys.
    fn start(line: &str, flags: &[&str]) -> Self {
        let place = Place::new();
        let key = Self::user(&place).key();
        let file = text(&place.outside("authorized_keys"));
        std::fs::write(&file, format!("{key} {line}\n")).unwrap();
        let own = text(&place.outside("server.pem"));
        let dir = text(&place.server(""));
        let mut args = vec!["serve", &dir, "--listen", "127.0.0.1:0"];
        args.extend(["--authorized-keys", &file, "--key", &own]);
        args.extend(flags);
        let server = Server::spawn(args);
        Self { place, server }
    }

    fn user(place: &Place) -> User<'_> {
        User {
            place,
            name: "alice",
        }
    }

    fn client(&self) -> User<'_> {
        Self::user(&self.place)
    }

    /// Trusts the server as the client's first failure tells.
    fn trust(&self) {
        let user = self.client();
        make_file(&self.place.client("first"), 10, 1);
        let from = text(&self.place.client("first"));
        let ended = user
            .haul(&["send", &from, &self.server.at("")])
            .failed(12, "haul key trust");
        let command = ended.stderr.split("haul key trust ").nth(1).unwrap();
        let words: Vec<&str> = command.split_whitespace().take(2).collect();
        let key =
            words[1].trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
        user.haul(&["key", "trust", words[0], key]).ok();
    }

    fn send(&self, size: usize, to: &str) -> Ended {
        make_file(&self.place.client("a"), size, 2);
        let from = text(&self.place.client("a"));
        self.client().haul(&["send", &from, &self.server.at(to)])
    }
}

#[test]
fn an_unknown_server_is_one_line_with_its_fingerprint() {
    let site = Site::start("", &[]);
    let ended = site
        .send(10, "")
        .failed(12, "is not a known server; its key is SHA256:");
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    site.trust();
    site.send(10, "").ok();
    // Its key is another one from one day to the next.
    let other = User {
        place: &site.place,
        name: "other",
    }
    .key();
    let at = format!("haul://127.0.0.1:{}", site.server.port);
    site.client().haul(&["key", "trust", &at, &other]).ok();
    let ended = site.send(10, "").failed(12, "another key than before");
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    site.client().haul(&["key", "forget", &at]).ok();
    site.send(10, "").failed(
        12,
        "(compare it with what the server printed when it started, ",
    );
    // The key may also be on the command line.
    let from = text(&site.place.client("a"));
    site.client()
        .haul(&["send", "--server-key", &other, &from, &site.server.at("")])
        .failed(12, "key");
}

#[test]
fn a_reader_lists_its_own_directory_only() {
    let site = Site::start("directory=alice rights=read", &[]);
    std::fs::create_dir(site.place.server("alice")).unwrap();
    std::fs::write(site.place.server("alice/own"), "x").unwrap();
    std::fs::write(site.place.server("secret"), "x").unwrap();
    let (server, at) = (site.server_key(), |path: &str| site.server.at(path));
    let list = |path: &str| {
        let args = ["ls", "--server-key", &server, &at(path)];
        site.client().haul(&args)
    };
    assert!(list("").ok().stdout.ends_with(" own\n"));
    list("../secret").failed(7, "leads outside");
    list("secret").failed(4, "is not a file");
}

#[test]
fn an_identity_has_its_directory_and_its_rights() {
    let site = Site::start("directory=alice rights=write label=laptop", &["--log-json"]);
    std::fs::create_dir(site.place.server("alice")).unwrap();
    std::fs::write(site.place.server("secret"), "x").unwrap();
    site.trust();
    site.send(1000, "in/").ok();
    assert!(site.place.server("alice/in/a").exists());
    let into = text(&site.place.client(""));
    let get = |path: &str| site.client().haul(&["get", &site.server.at(path), &into]);
    get("in/a").failed(7, "may not get files");
    get("../secret").failed(7, "may not get files");
    let list = ["ls", &site.server.at("in/")];
    site.client().haul(&list).failed(7, "may not list files");
    let (server, at) = (site.server_key(), format!("127.0.0.1:{}", site.server.port));
    let bench = ["bench", "--server-key", &server, &at];
    site.client().haul(&bench).failed(7, "may not measure");
    // A client that would do without encryption.
    let from = text(&site.place.client("a"));
    let plain = ["send", "--allow-insecure", &from, &site.server.at("in/")];
    site.client()
        .haul(&plain)
        .failed(12, "without encryption are not admitted");
    // Somebody else, and nobody.
    let eve = User {
        place: &site.place,
        name: "eve",
    };
    let to = site.server.at("");
    let send = ["send", "--server-key", &server, &from, &to];
    eve.haul(&send).failed(12, "only clients that have a key");
    let key = eve.key();
    eve.haul(&send).failed(12, &format!("does not know {key}"));
}

impl Site {
    /// The server's public key.
    fn server_key(&self) -> String {
        let key = text(&self.place.outside("server.pem"));
        self.client()
            .haul(&["key", "show", "--key", &key])
            .ok()
            .stdout
            .trim()
            .to_owned()
    }
}

#[test]
fn a_date_that_is_over_and_a_rate_that_is_too_high_are_refused() {
    let site = Site::start("expires=2001-02-03", &[]);
    site.trust();
    let ended = site.send(10, "").failed(12, "expired with 2001-02-03");
    one_line_each(&ended, &site.server, "expired with 2001-02-03");
    let site = Site::start("rate=80Mbit", &[]);
    site.trust();
    site.send(10, "").failed(7, "at most 80000000 bit/s");
    let from = text(&site.place.client("a"));
    let send = ["send", "--rate", "80Mbit", &from, &site.server.at("")];
    site.client().haul(&send).ok();
}

/// The client has said one line, and the server one with `text` in it.
fn one_line_each(ended: &Ended, server: &Server, text: &str) {
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    server.wait_for_log(text);
    let log = server.log();
    let about_it = log.iter().filter(|line| line.contains(text));
    assert_eq!(about_it.count(), 1, "{log:?}");
}

#[test]
fn a_clock_that_is_wrong_is_one_line_at_both_ends() {
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_key = KeyPair::generate().unwrap();
    let roots = root.self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(root, root_key);
    // Seen with a clock that is behind, and with one that is ahead.
    let times = [
        ([2998, 2999], "not valid yet (check the clocks"),
        (
            [1998, 1999],
            "has expired (renew it there, and check the clocks",
        ),
    ];
    for ([from, until], line) in times {
        let place = Place::new();
        let mut own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        own.not_before = rcgen::date_time_ymd(from, 1, 1);
        own.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let own = own.signed_by(&key, &issuer).unwrap().pem();
        let client = User {
            place: &place,
            name: "alice",
        };
        let files = [
            ("crt", own),
            ("key", key.serialize_pem()),
            ("roots", roots.clone()),
            ("authorized", client.key()),
        ];
        let [crt, key, roots, authorized] = files.map(|(name, content)| {
            let file = place.outside(name);
            std::fs::write(&file, content).unwrap();
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, private).unwrap();
            text(&file)
        });
        let dir = text(&place.server(""));
        let mut args = vec!["serve", &dir, "--listen", "127.0.0.1:0"];
        args.extend(["--authorized-keys", &authorized, "--certificate", &crt]);
        args.extend(["--certificate-key", &key]);
        let server = Server::spawn(args);
        make_file(&place.client("a"), 10, 2);
        let from = text(&place.client("a"));
        let send = ["send", "--roots", &roots, &from, &server.at("")];
        let ended = client.haul(&send).failed(12, line);
        one_line_each(&ended, &server, "expired or is not valid yet");
    }
}

#[test]
fn a_deletion_beyond_the_rights_of_a_key_is_refused_before_anything_moves() {
    let site = Site::start("rights=write", &[]);
    site.trust();
    std::fs::create_dir(site.place.client("t")).unwrap();
    make_file(&site.place.client("t/a"), 10, 3);
    let (tree, to) = (text(&site.place.client("t")), site.server.at(""));
    let ended = site.client().haul(&["sync", "--delete", &tree, &to]);
    ended.failed(7, "may not list files");
    assert!(!site.place.server("t").exists());
    site.client().haul(&["sync", &tree, &to]).ok();
    assert!(site.place.server("t/a").exists());
}

#[test]
fn a_removed_key_loses_its_session() {
    let site = Site::start("", &[]);
    site.trust();
    make_file(&site.place.client("big"), 8 * MIB, 3);
    let from = text(&site.place.client("big"));
    let to = site.server.at("");
    let send = [
        "send",
        "--json-stream",
        "--rate=20Mbit",
        "--give-up-after=5s",
        &from,
        &to,
    ];
    let client = site.client().start(&send);
    client.wait_for_bytes(1 << 20);
    let file = site.place.outside("authorized_keys");
    // A file with a mistake changes nothing.
    let line = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{line}mistake\n")).unwrap();
    site.server.signal("HUP");
    site.server
        .wait_for_log("keeps the authorised keys that it has");
    std::fs::write(&file, "# nobody\n").unwrap();
    site.server.signal("HUP");
    site.server.wait_for_log("sessions ended: 1");
    client.end().failed(12, "does not know");
    assert!(!site.place.server("big").exists());
    // It is admitted again.
    std::fs::write(&file, line).unwrap();
    site.server.signal("HUP");
    site.server.wait_for_log("sessions ended: 0");
    site.client().haul(&["send", &from, &to]).ok();
}

#[test]
fn an_address_whose_logins_failed_serves_a_known_key() {
    let site = Site::start("", &[]);
    site.trust();
    let file = site.place.outside("authorized_keys");
    let line = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "# nobody\n").unwrap();
    site.server.signal("HUP");
    site.server.wait_for_log("sessions ended: 0");
    // Each costs 5 s; 30 s are free.
    for _ in 0..8 {
        site.send(10, "").failed(12, "does not know");
    }
    site.server
        .wait_for_log("; failed logins of this address are only counted for ");
    std::fs::write(&file, line).unwrap();
    site.server.signal("HUP");
    let until = Instant::now() + Duration::from_secs(60);
    while site.send(10, "").code != Some(0) {
        assert!(Instant::now() < until, "a known key is kept out");
    }
}

#[test]
fn servers_and_gateways_leave_no_core_dump() {
    let place = Place::new();
    let dir = text(&place.server(""));
    let may_dump = || crate::support::limited("-S -c $(ulimit -H -c)");
    let server = Server::spawn_as(
        may_dump(),
        ["serve", &dir, "--listen", "127.0.0.1:0", "--allow-insecure"],
    );
    let config = member("tcp", "127.0.0.1:0", "exit = ['127.0.0.0/8']");
    let gateway = Gateway::start_by(may_dump(), &config, &[]);
    gateway.sessions_at();
    for pid in [server.pid(), gateway.pid()] {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max core file size"));
        assert_eq!(line.unwrap().split_whitespace().next(), Some("0"));
    }
}

/// The forms in which a private key below `dir` could be seen: pieces of its base64, and of its
/// bytes in hexadecimal and in decimal.
fn secrets_below(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(secrets_below(&path));
            continue;
        }
        let content = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let Some((_, rest)) = content.split_once("PRIVATE KEY-----") else {
            continue;
        };
        let body: String = rest
            .split("-----")
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, &body).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // What comes before is the same in each key.
        for piece in [&body[24..48], &hex[32..56]] {
            found.push(piece.to_owned());
        }
        let decimal = bytes[16..24].iter().map(|byte| format!("{byte}, "));
        found.push(decimal.collect());
    }
    found
}

#[test]
fn no_output_and_no_argument_has_a_private_key_in_it() {
    let site = Site::start("", &[]);
    site.trust();
    let client = site.client();
    make_file(&site.place.client("big"), 8 * MIB, 3);
    let from = text(&site.place.client("big"));
    let to = site.server.at("");
    let send = ["send", "--json-stream", "--rate=40Mbit", &from, &to];
    let running = client.start(&send);
    running.wait_for_bytes(1 << 20);
    let mut seen = vec![
        crate::support::read_text(&format!("/proc/{}/cmdline", running.pid())),
        crate::support::read_text(&format!("/proc/{}/cmdline", site.server.pid())),
    ];
    let mut note = |ended: Ended| seen.extend([ended.stdout, ended.stderr]);
    note(running.end());
    let into = text(&site.place.client("in/"));
    let (here, nobody) = (format!("{}big", site.server.at("")), "--key=/dev/null");
    let nowhere = site.server.at("no/such/directory");
    let commands: [&[&str]; 9] = [
        &["key"],
        &["key", "show"],
        &["key", "new"],
        &["key", "list"],
        &["get", "--json", &here, &into],
        &["ls", "-R", "--json-stream", &to],
        &["send", &from, &nowhere],
        &["send", nobody, &from, &to],
        &["doctor", "--json"],
    ];
    for command in commands {
        note(client.haul(command));
    }
    seen.extend(site.server.log());
    let secrets = secrets_below(&site.place.outside(""));
    assert!(secrets.len() >= 6, "the keys of both ends: {secrets:?}");
    for secret in secrets {
        for text in &seen {
            assert!(!text.contains(&secret), "{secret} is in {text}");
        }
    }
}

#[test]
fn a_shared_key_is_enough_for_both_ends() {
    let place = Place::new();
    let key = text(&place.outside("shared.pem"));
    let user = Site::user(&place);
    user.haul(&["key", "new", "--key", &key]).ok();
    let dir = text(&place.server(""));
    let listen = ["--listen", "127.0.0.1:0", "--shared-key", &key];
    let server = Server::spawn([&["serve", &dir], &listen[..]].concat());
    let content = make_file(&place.client("a"), MIB, 4);
    let from = text(&place.client("a"));
    user.haul(&["send", "--shared-key", &key, &from, &server.at("")])
        .ok();
    assert!(read_file(&place.server("a")) == content);
    let other = text(&place.outside("other.pem"));
    user.haul(&["key", "new", "--key", &other]).ok();
    let ended = user.haul(&["send", "--shared-key", &other, &from, &server.at("")]);
    assert_eq!(ended.code, Some(12), "{}", ended.stderr);
}

#[test]
fn a_bench_server_admits_only_clients_with_its_key() {
    let place = Place::new();
    let key = text(&place.outside("shared.pem"));
    let user = Site::user(&place);
    user.haul(&["key", "new", "--key", &key]).ok();
    let serve = ["bench", "serve", "--listen", "127.0.0.1:0"];
    let server = Server::spawn([&serve[..], &["--shared-key", &key]].concat());
    let at = format!("127.0.0.1:{}", server.port);
    let run = ["bench", "run", &at, "--engine", "tcp", "--time", "300ms"];
    user.haul(&[&run[..], &["--shared-key", &key]].concat())
        .ok();
    user.haul(&run)
        .failed(12, "does not have the server's shared key");
    // Other hosts would reach it, and nobody has said whom it admits.
    let open = [
        "bench",
        "serve",
        "--listen",
        "0.0.0.0:0",
        "--authorized-keys",
    ];
    let absent = text(&place.outside("absent"));
    user.haul(&[&open[..], &[&absent]].concat())
        .failed(2, "the server knows no clients");
}

#[test]
fn sigterm_lets_a_transfer_finish_and_refuses_new_ones() {
    let place = Place::new();
    let mut server = place.serve();
    let content = make_file(&place.client("a"), 4 * MIB, 5);
    let (from, to) = (text(&place.client("a")), server.at(""));
    let send = ["send", "--json-stream", "--rate=20Mbit", &from, &to];
    let client = crate::support::start(send);
    client.wait_for_bytes(1 << 20);
    server.signal("TERM");
    server.wait_for_log("draining");
    let late = ["send", "--give-up-after=0", &from, &server.at("late/")];
    crate::support::haul(late).failed(5, "shutting down");
    client.end().ok();
    assert!(read_file(&place.server("a")) == content);
    wait_until("the server to end", || server.has_ended());
}

#[test]
fn each_session_and_each_failed_login_is_one_object() {
    let place = Place::new();
    let dir = text(&place.server(""));
    let mut serve = program_with(&[]);
    serve.args([
        "serve",
        &dir,
        "--listen",
        "127.0.0.1:0",
        "--allow-insecure",
        "--log-json",
    ]);
    let mut child = serve
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    let port = first.trim().rsplit(':').next().unwrap().to_owned();
    let lines = lines(child.stdout.take().unwrap());
    make_file(&place.client("a"), 1234, 6);
    let (from, to) = (
        text(&place.client("a")),
        format!("haul://127.0.0.1:{port}/in/"),
    );
    crate::support::haul(["send", &from, &to]).ok();
    let schema = Schema::load("audit-v1.json");
    let next = || {
        let line = lines.recv_timeout(PATIENCE).unwrap();
        let entry = serde_json::from_str(&line).unwrap();
        schema.check(&entry);
        entry
    };
    let entry = next();
    assert_eq!(entry["operation"], "put");
    assert_eq!(
        (&entry["path"], &entry["bytes"]),
        (&"in/".into(), &1234.into())
    );
    assert_eq!(
        (&entry["ok"], &entry["error"]),
        (&true.into(), &serde_json::Value::Null)
    );
    let to = format!("127.0.0.1:{port}");
    let bench = |more: &[&str]| crate::support::haul([&["bench", "run", &to], more].concat());
    bench(&["--bytes", "1MB"]).ok();
    let entry = next();
    assert_eq!(entry["operation"], "bench");
    assert_eq!(
        (&entry["path"], &entry["ok"]),
        (&"tcp".into(), &true.into())
    );
    assert!(entry["bytes"].as_u64() >= Some(1_000_000), "{entry}");
    bench(&["--source", "file", "--reverse"]).failed(2, "no file is named");
    assert_eq!(next()["error"]["code"], "usage");
    let rdma = ["bench", "rdma", &to, "--iterations", "10"];
    crate::support::haul(rdma).ok();
    let entry = next();
    assert_eq!(entry["operation"], "bench");
    assert!(entry["bytes"].as_u64() > Some(0), "{entry}");
    // An older haul is a login that fails.
    let mut old = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    old.write_all(b"haulctl\n").unwrap();
    let entry = next();
    assert_eq!(
        (&entry["operation"], &entry["ok"]),
        (&"login".into(), &false.into())
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The lines of a stream, as they come.
fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// A `haul receive`.
struct Waiting {
    child: Child,
    lines: Receiver<String>,
    operand: String,
    code: String,
}

impl Waiting {
    fn start(place: &Place) -> Self {
        let dir = text(&place.server(""));
        let mut child = program_with(&[])
            .args(["receive", &dir, "--listen", "127.0.0.1"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = lines(child.stderr.take().unwrap());
        let after = |text: &str| {
            let line = lines.recv_timeout(PATIENCE).unwrap();
            line.split_once(text)
                .unwrap_or_else(|| panic!("{line}"))
                .1
                .to_owned()
        };
        let operand = after("haul send FILE ");
        let code = after("enter this code: ");
        Self {
            child,
            lines,
            operand,
            code,
        }
    }

    /// Sends a file with this code on standard input.
    fn send(&self, file: &str, code: &str) -> Ended {
        let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
            .args(["send", file, &self.operand])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(format!("{code}\n").as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            said += &format!("{line}\n");
        }
        (self.child.wait().unwrap().code(), said)
    }
}

/// A code that differs in its last digit.
fn wrong(code: &str) -> String {
    let (rest, last) = code.split_at(code.len() - 1);
    let digit = last.parse::<u8>().unwrap();
    format!("{rest}{}", (digit + 1) % 10)
}

#[test]
fn a_code_is_enough_for_one_transfer() {
    let place = Place::new();
    let content = make_file(&place.client("a"), 3 * MIB, 7);
    let from = text(&place.client("a"));
    let waiting = Waiting::start(&place);
    // Without a code on standard input: none is asked for.
    let absent = text(&place.client("absent"));
    crate::support::haul(["send", &absent, &waiting.operand]).failed(4, "there is no file");
    waiting.send(&from, "1234").failed(12, "that is no code");
    waiting
        .send(&from, &wrong(&waiting.code))
        .failed(12, "the code is wrong");
    waiting.send(&from, &waiting.code).ok();
    assert!(read_file(&place.server("a")) == content);
    let (code, said) = waiting.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("tries left: 2"), "{said}");
}

#[test]
fn a_wrong_code_is_one_line_at_each_end() {
    let place = Place::new();
    make_file(&place.client("a"), 10, 8);
    let mut waiting = Waiting::start(&place);
    let sent = waiting.send(&text(&place.client("a")), &wrong(&waiting.code));
    assert_eq!(sent.code, Some(12), "{sent:?}");
    let line = "haul: the server: the code is wrong (compare it with what haul receive prints; ";
    assert!(sent.stderr.starts_with(line), "{sent:?}");
    assert_eq!(sent.stderr.lines().count(), 1, "{sent:?}");
    let told = waiting.lines.recv_timeout(PATIENCE).unwrap();
    assert_eq!(told, "haul: a sender entered a wrong code; tries left: 2");
    waiting.child.kill().unwrap();
    let (_, said) = waiting.end();
    assert_eq!(said, "");
}

#[test]
fn a_receiver_ends_with_a_sender_that_it_refuses() {
    let place = Place::new();
    make_file(&place.client("a"), 100, 7);
    make_file(&place.server("a"), 200, 8);
    let waiting = Waiting::start(&place);
    let sent = waiting.send(&text(&place.client("a")), &waiting.code);
    assert_eq!(sent.code, Some(7), "{sent:?}");
    let (code, said) = waiting.end();
    assert_eq!(code, Some(7), "{said}");
}

#[test]
fn three_wrong_codes_end_a_receiver() {
    let place = Place::new();
    make_file(&place.client("a"), 10, 8);
    let from = text(&place.client("a"));
    let waiting = Waiting::start(&place);
    for _ in 0..2 {
        waiting
            .send(&from, &wrong(&waiting.code))
            .failed(12, "the code is wrong");
    }
    // The receiver ends with the third, perhaps before its answer has left.
    let third = waiting.send(&from, &wrong(&waiting.code));
    assert!(matches!(third.code, Some(5 | 12)), "{}", third.stderr);
    // The right one comes too late.
    let late = waiting.send(&from, &waiting.code);
    assert!(matches!(late.code, Some(5 | 12)), "{}", late.stderr);
    let (code, said) = waiting.end();
    assert_eq!(code, Some(12), "{said}");
    assert!(said.contains("three wrong codes"), "{said}");
    assert!(!place.server("a").exists());
}

#[test]
fn a_sender_ends_soon_after_its_receiver() {
    let place = Place::new();
    make_file(&place.client("a"), 64 * MIB, 9);
    let from = text(&place.client("a"));
    let mut waiting = Waiting::start(&place);
    let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args([
            "send",
            "--rate=20Mbit",
            "--json-stream",
            &from,
            &waiting.operand,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let code = format!("{}\n", waiting.code);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(code.as_bytes()).unwrap();
    let events = lines(child.stdout.take().unwrap());
    while !events
        .recv_timeout(PATIENCE)
        .unwrap()
        .contains("present_bytes")
    {}
    waiting.child.kill().unwrap();
    waiting.child.wait().unwrap();
    // It must not retry for ever; a loaded machine may take its time.
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("has ended"), "{stderr}");
}

#[test]
fn a_receiver_whose_time_is_over_ends() {
    let place = Place::new();
    let dir = text(&place.server(""));
    let begun = Instant::now();
    let ended = crate::support::haul(["receive", &dir, "--listen", "127.0.0.1", "--time", "300ms"]);
    ended.failed(12, "no sender entered the code in time");
    assert!(begun.elapsed() >= Duration::from_millis(300));
}
