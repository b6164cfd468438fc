//! What gateways see of a transfer between servers and clients with keys: sizes, and nothing else.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::common::{Gateway, member};
use crate::schema::Schema;
use crate::support::{MIB, Place, Server, haul, make_file, read_file, text, wait_until};

const DIRECTORY: &str = "campaign-of-april";
const NAME: &str = "observation-0042.h5";
const SIZE: usize = 3 * MIB + 17;

/// Passes the bytes of a gateway's connections on to a server, and keeps them: what a gateway could
/// record.
struct Recorder {
    at: SocketAddr,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, bytes) = (listener.local_addr().unwrap(), Arc::default());
        let kept = Arc::clone(&bytes);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                let [near_writer, far_writer] = ends;
                for (from, to) in [(near, far_writer), (far, near_writer)] {
                    let kept = Arc::clone(&kept);
                    std::thread::spawn(move || pass(from, to, &kept));
                }
            }
        });
        Self { at, bytes }
    }

    /// `haul://…/path` of the server, by way of the recorder.
    fn url(&self, path: &str) -> String {
        format!("haul://{}/{path}", self.at)
    }

    fn has(&self, secret: &[u8]) -> bool {
        contains(&self.bytes.lock().unwrap(), secret)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, kept: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // Kept first: the client ends when it has its answer.
        kept.lock().unwrap().extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // The other end may have been quicker.
    let _ = to.shutdown(Shutdown::Write);
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Parts of the content that are long enough to occur once.
fn parts(content: &[u8]) -> [&[u8]; 3] {
    [0, content.len() / 2, content.len() - 16].map(|at| &content[at..at + 16])
}

/// A gateway at which sessions end, with a page and an access log in `place`.
fn gateway(place: &Place) -> Gateway {
    let log = text(&place.outside("access.log"));
    let more = format!(
        "exit = ['127.0.0.1']\n[access_log]\nfile = '{log}'\nformat = 'json'\n\
         [admin]\nlisten = '127.0.0.1:0'"
    );
    Gateway::start(&member("iwarp/udt", "127.0.0.1:0", &more))
}

fn metrics(gateway: &Gateway) -> String {
    let at: SocketAddr = gateway
        .said("page at http://")
        .trim_end_matches('/')
        .parse()
        .unwrap();
    let mut stream = TcpStream::connect(at).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The lines of the access log, once there are so many.
fn access_lines(place: &Place, count: usize) -> Vec<Value> {
    let file = place.outside("access.log");
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    wait_until("lines of the access log", || {
        read().lines().count() >= count
    });
    let lines = read();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn gateways_see_sizes_of_a_transfer_between_ends_with_keys_and_nothing_else() {
    let place = &Place::new();
    let key = text(&place.outside("shared.pem"));
    haul(["key", "new", "--key", &key]).ok();
    let server = Server::start(&place.server(""), "127.0.0.1:0", &["--shared-key", &key]);
    let gateway = gateway(place);
    let (recorder, hop) = (
        Recorder::before(server.port),
        gateway.sessions_at().to_string(),
    );
    let content = make_file(&place.client(NAME), SIZE, 42);
    let (from, to) = (
        text(&place.client(NAME)),
        recorder.url(&format!("{DIRECTORY}/")),
    );
    let through = |verb: &str, rest: &[&str]| {
        let args = [verb, "--json", "--gateway", &hop, "--shared-key", &key];
        haul([&args[..], rest].concat()).ok().json()
    };
    let sent = through("send", &[&from, &to]);
    assert!(read_file(&place.server(DIRECTORY).join(NAME)) == content);
    let back = text(&place.outside("back"));
    std::fs::create_dir(&back).unwrap();
    through(
        "get",
        &[&recorder.url(&format!("{DIRECTORY}/{NAME}")), &back],
    );
    assert!(read_file(&place.outside("back").join(NAME)) == content);

    let digest = sent["files"][0]["blake3"].as_str().unwrap().to_owned();
    let raw: Vec<u8> = (0..digest.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digest[at..at + 2], 16).unwrap())
        .collect();
    let texts = [DIRECTORY, NAME, &digest];
    let secrets = texts.iter().map(|secret| secret.as_bytes());
    for secret in secrets.chain(parts(&content)).chain([&raw[..]]) {
        assert!(
            !recorder.has(secret),
            "{:?} in clear",
            String::from_utf8_lossy(secret)
        );
    }
    assert!(recorder.bytes.lock().unwrap().len() > 2 * SIZE);

    // A control connection and a data connection in each direction.
    let lines = access_lines(place, 4);
    let schema = Schema::load("gateway-access-v1.json");
    lines.iter().for_each(|line| schema.check(line));
    let sum = |field: &str| -> u64 { lines.iter().map(|line| line[field].as_u64().unwrap()).sum() };
    assert!(
        sum("bytes_sent") > SIZE as u64 && sum("bytes_received") > SIZE as u64,
        "{lines:?}"
    );
    let said = format!("{lines:?}{:?}{}", gateway.all_said(), metrics(&gateway));
    for secret in texts {
        assert!(!said.contains(secret), "{secret} in what the gateway tells");
    }
}

#[test]
fn without_keys_gateways_see_the_content_but_no_names() {
    let place = Place::new();
    let (server, gateway) = (place.serve(), gateway(&place));
    let (recorder, hop) = (
        Recorder::before(server.port),
        gateway.sessions_at().to_string(),
    );
    let content = make_file(&place.client(NAME), SIZE, 43);
    let (from, to) = (
        text(&place.client(NAME)),
        recorder.url(&format!("{DIRECTORY}/")),
    );
    haul(["send", "--gateway", &hop, &from, &to]).ok();
    assert!(parts(&content).iter().all(|part| recorder.has(part)));
    for name in [DIRECTORY, NAME] {
        assert!(!recorder.has(name.as_bytes()), "{name} in clear");
    }
}

#[test]
fn a_line_of_the_access_log_about_a_refused_connection_has_its_schema() {
    let place = Place::new();
    let gateway = gateway(&place);
    make_file(&place.client("file"), 10, 1);
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (from, to) = (text(&place.client("file")), format!("haul://{nobody}/"));
    let hop = gateway.sessions_at().to_string();
    haul(["send", "--gateway", &hop, &from, &to]).failed(5, "it refuses connections");
    let line = &access_lines(&place, 1)[0];
    Schema::load("gateway-access-v1.json").check(line);
    assert_eq!(line["result"], "refused");
}
