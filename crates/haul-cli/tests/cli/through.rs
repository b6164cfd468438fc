//! `haul send` and `haul get`, and RDMA connections, through gateways.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::common::{Gateway, member};
use crate::support::{MIB, Place, Server, haul, make_file, read_file, start, text};

const KIND: &str = "iwarp/udt";
const EXIT: &str = "exit = ['127.0.0.1']";

fn last() -> Gateway {
    Gateway::start(&member(KIND, "127.0.0.1:0", EXIT))
}

fn through(hops: &[&Gateway]) -> String {
    let hops: Vec<String> = hops
        .iter()
        .map(|hop| hop.sessions_at().to_string())
        .collect();
    hops.join(",")
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn files_go_through_one_gateway_and_through_two_and_come_back() {
    let (first, second) = (
        Gateway::start(&member(KIND, "127.0.0.1:0", "next = ['127.0.0.1']")),
        last(),
    );
    for hops in [through(&[&second]), through(&[&first, &second])] {
        let place = Place::new();
        let server = place.serve();
        let sizes = [0, 1, 70_000, 9 * MIB + 1];
        let names: Vec<String> = (0..sizes.len()).map(|at| format!("file{at}")).collect();
        let contents: Vec<Vec<u8>> = names
            .iter()
            .zip(sizes)
            .map(|(name, size)| make_file(&place.client(name), size, size as u64 + 7))
            .collect();
        let mut send = vec!["send".to_owned(), "--gateway".to_owned(), hops.clone()];
        send.extend(["--streams", "3"].map(str::to_owned));
        send.extend(names.iter().map(|name| text(&place.client(name))));
        send.push(server.at("sub/"));
        haul(send).ok();
        let back = place.outside("back");
        std::fs::create_dir(&back).unwrap();
        let mut get = vec!["get".to_owned(), "--gateway".to_owned(), hops];
        get.extend(names.iter().map(|name| server.at(&format!("sub/{name}"))));
        get.push(text(&back));
        haul(get).ok();
        for (name, content) in names.iter().zip(&contents) {
            assert!(
                read_file(&place.server("sub").join(name)) == *content,
                "{name}"
            );
            assert!(read_file(&back.join(name)) == *content, "{name}");
        }
    }
}

#[test]
fn a_gateway_that_is_killed_and_comes_back_is_found_again() {
    let mut gateway = last();
    let at = gateway.sessions_at();
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("big"), 40 * MIB, 3);
    let client = start([
        "send",
        "--gateway",
        &at.to_string(),
        "--rate",
        "100Mbit",
        "--json-stream",
        &text(&place.client("big")),
        &server.at(""),
    ]);
    client.wait_for_bytes(8 * MIB as u64);
    gateway.kill();
    let _gateway = Gateway::start(&member(KIND, &at.to_string(), EXIT));
    client.end().ok();
    assert!(read_file(&place.server("big")) == content);
}

#[test]
fn a_gateway_between_that_is_killed_does_not_break_the_transfer() {
    let last = last();
    let mut first = Gateway::start(&member(KIND, "127.0.0.1:0", "next = ['127.0.0.1']"));
    let at = first.sessions_at();
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.server("big"), 40 * MIB, 4);
    let client = start([
        "get",
        "--gateway",
        &through(&[&first, &last]),
        "--rate",
        "100Mbit",
        "--json-stream",
        &server.at("big"),
        &text(&place.client("")),
    ]);
    client.wait_for_bytes(8 * MIB as u64);
    first.kill();
    let _first = Gateway::start(&member(KIND, &at.to_string(), "next = ['127.0.0.1']"));
    let ended = client.end().ok();
    assert!(read_file(&place.client("big")) == content);
    // The ends of the session acknowledge: the connections of the transfer have not noticed.
    assert!(!ended.stdout.contains("\"retry\""), "{}", ended.stdout);
}

#[test]
fn an_rdma_connection_ends_at_the_gateways_and_goes_on_between_them() {
    let data_port = nobody().port().to_string();
    let server = Server::spawn([
        "bench",
        "rdma",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-port",
        &data_port,
    ]);
    // The near gateway is at the other address, with the ports of the server.
    let listener = |port: &str| {
        format!(
            "[[listener]]\nkind = 'forward'\nlisten = '127.0.0.2:{port}'\nto = '127.0.0.1:{port}'\n"
        )
    };
    let far = last();
    let near = Gateway::start(&format!(
        "name = 'near'\nanonymous = true\n{}{}[[route]]\nto = ['*']\nvia = ['{}']\nring = '8MiB'\nchannels = ['{KIND}']\n",
        listener(&server.port.to_string()),
        listener(&data_port),
        far.sessions_at(),
    ));
    near.listener_at();
    let to = format!("127.0.0.2:{}", server.port);
    for flags in [
        "--op write",
        "--op read",
        "--op send",
        "--op write --qps 3 --bidirectional",
    ] {
        let all =
            format!("bench rdma {to} {flags} --sizes 64..16384 --iterations 8 --verify --json");
        let json = haul(all.split(' ')).ok().json();
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 9, "{flags}");
        for row in rows {
            assert!(row["verified_messages"].as_u64().unwrap() > 0, "{flags}");
        }
    }
    let said = near.all_said();
    assert!(said.iter().any(|line| line.contains(KIND)), "{said:?}");
}

#[test]
fn a_key_opens_and_a_wrong_one_is_told_with_the_hop() {
    let place = Place::new();
    let server = place.serve();
    let (good, bad) = (place.outside("campus.key"), place.outside("bad"));
    secret(&good, &"5a".repeat(32));
    secret(&bad, &"a5".repeat(32));
    let config = member(
        KIND,
        "127.0.0.1:0",
        &format!("{EXIT}\n[[key]]\nname = 'campus'\nfile = '{}'", text(&good)),
    );
    let gateway = Gateway::start(&config.replace("anonymous = true\n", ""));
    let at = gateway.sessions_at().to_string();
    let content = make_file(&place.client("file"), 100_000, 5);
    let (file, to) = (text(&place.client("file")), server.at(""));
    let send = |key: &[&str]| {
        let args = ["send", "--gateway", &at].into_iter();
        haul(args.chain(key.iter().copied()).chain([&*file, &*to]))
    };
    send(&["--gateway-key", &text(&good)]).ok();
    assert!(read_file(&place.server("file")) == content);
    let wrong = format!("campus={}", text(&bad));
    for key in [&["--gateway-key", &*wrong][..], &[]] {
        let ended = send(key).failed(12, &at);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains("--gateway-key"), "{}", ended.stderr);
    }
    std::fs::set_permissions(&good, std::fs::Permissions::from_mode(0o644)).unwrap();
    send(&["--gateway-key", &text(&good)]).failed(2, "chmod 600");
}

/// Who issues certificates for 127.0.0.1.
struct Authority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut root = CertificateParams::default();
        root.distinguished_name.push(DnType::CommonName, name);
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = root.self_signed(&key).unwrap().pem();
        Self {
            root: pem,
            issuer: Issuer::new(root, key),
        }
    }

    /// Files of a certificate, its key, and the roots that its owner trusts.
    fn issue(&self, place: &Place, name: &str, is_over: bool, roots: &str) -> [String; 3] {
        let mut own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        if is_over {
            own.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let own = own.signed_by(&key, &self.issuer).unwrap().pem();
        let files = ["crt", "key", "roots"].map(|kind| place.outside(&format!("{name}.{kind}")));
        for (file, pem) in files.iter().zip([&own, &key.serialize_pem(), roots]) {
            secret(file, pem);
        }
        files.map(|file| text(&file))
    }
}

#[test]
fn certificates_open_and_those_that_do_not_do_are_told_in_a_line_at_both_ends() {
    let place = Place::new();
    let server = place.serve();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let [crt, key, roots] = ours.issue(&place, "gateway", false, &ours.root);
    let tls = format!("[tls]\ncertificate = '{crt}'\nkey = '{key}'\nroots = '{roots}'");
    let config = member(KIND, "127.0.0.1:0", &format!("{EXIT}\n{tls}"));
    let start_one = || Gateway::start(&config.replace("anonymous = true\n", ""));
    let content = make_file(&place.client("file"), 300_000, 9);
    let (file, to) = (text(&place.client("file")), server.at(""));
    let flags = |files: &[String; 3]| {
        let names = ["certificate", "key", "roots"].map(|name| format!("--gateway-tls-{name}"));
        let pairs = names.into_iter().zip(files.clone());
        pairs
            .flat_map(|(name, file)| [name, file])
            .collect::<Vec<_>>()
    };
    let send = |at: &str, tls: &[String]| {
        let args = ["send", "--gateway", at].map(str::to_owned).into_iter();
        haul(
            args.chain(tls.iter().cloned())
                .chain([file.clone(), to.clone()]),
        )
    };
    // No library is put before a program that is not started, and one that is does not need it.
    let run = |at: &str, tls: &[String]| {
        let args = ["run", "--preload", &file, "--gateway", at].map(str::to_owned);
        let program = ["--", "true"].map(str::to_owned);
        haul(args.into_iter().chain(tls.iter().cloned()).chain(program))
    };
    let gateway = start_one();
    let at = gateway.sessions_at().to_string();
    let good = ours.issue(&place, "good", false, &ours.root);
    send(&at, &flags(&good)).ok();
    assert!(read_file(&place.server("file")) == content);
    assert_eq!(run(&at, &flags(&good)).code, Some(0));

    let expired = ours.issue(&place, "expired", true, &ours.root);
    let foreign = theirs.issue(&place, "foreign", false, &ours.root);
    let distrusting = ours.issue(&place, "distrusting", false, &theirs.root);
    // What the client says, and the gateway.
    let cases = [
        (
            flags(&expired),
            "it has expired",
            "the peer's certificate has expired",
        ),
        (
            flags(&foreign),
            "it does not come from one of its roots",
            "the peer's certificate does not come from one of the roots",
        ),
        (
            flags(&distrusting),
            "the peer's certificate does not come from one of the roots",
            "it does not come from one of its roots",
        ),
        (
            Vec::new(),
            "speaks TLS only",
            "does not speak TLS: it is no Longhaul gateway",
        ),
    ];
    for (tls, client_says, gateway_says) in cases {
        for command in ["send", "run"] {
            let gateway = start_one();
            let at = gateway.sessions_at().to_string();
            let (ended, code, who) = match command {
                "send" => (send(&at, &tls), 12, "haul: gateway"),
                _ => (run(&at, &tls), 125, "haul run: gateway"),
            };
            assert_eq!(ended.code, Some(code), "{}", ended.stderr);
            assert!(ended.stderr.starts_with(who), "{}", ended.stderr);
            assert!(ended.stderr.contains(client_says), "{}", ended.stderr);
            assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
            assert!(ended.stderr.contains(&at), "{}", ended.stderr);
            gateway.said(gateway_says);
            let said = gateway.all_said();
            let about = said.iter().filter(|line| line.contains(gateway_says));
            assert_eq!(about.count(), 1, "{command}: {said:?}");
        }
    }
}

#[test]
fn gateways_that_do_not_believe_each_other_are_told_with_the_one_that_refuses() {
    let place = Place::new();
    make_file(&place.client("file"), 1_000, 5);
    let keyed = |name: &str, digits: &str, more: &str| {
        let path = place.outside(name);
        secret(&path, &digits.repeat(32));
        let key = format!("[[key]]\nname = 'k'\nfile = '{}'", text(&path));
        member(KIND, "127.0.0.1:0", &format!("{more}\n{key}"))
    };
    let first = Gateway::start(&keyed("one", "5a", "next = ['127.0.0.1']"));
    let second = keyed("another", "a5", EXIT).replace("anonymous = true\n", "");
    let second = Gateway::start(&second);
    let hops = through(&[&first, &second]);
    let file = text(&place.client("file"));
    let ended = haul(["send", "--gateway", &hops, &file, "haul://host.example/"]);
    let ended = ended.failed(5, &format!("gateway {}", second.sessions_at()));
    // This end's own key is not what is wrong.
    assert!(!ended.stderr.contains("--gateway-key"), "{}", ended.stderr);
}

/// A gateway that accepts control connections and sends nothing; the channel reports each.
fn silent() -> (SocketAddr, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, taken) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if sender.send(stream.unwrap()).is_err() {
                return;
            }
        }
    });
    (at, taken)
}

#[test]
fn a_signal_ends_a_command_whose_session_is_still_being_opened() {
    let place = Place::new();
    make_file(&place.client("file"), 1000, 8);
    let file = text(&place.client("file"));
    let (at, taken) = silent();
    let at = at.to_string();
    let send = ["send", "--gateway", &at, &file, "haul://host.example/"];
    // No library is put before a program that is not started.
    let run = ["run", "--preload", &file, "--gateway", &at, "--", "true"];
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        let client = start(send);
        let _control = taken.recv().unwrap();
        client.signal(signal);
        assert_eq!(client.end().code, Some(128 + number));
        let client = start(run);
        let _control = taken.recv().unwrap();
        client.signal("WINCH");
        client.signal(signal);
        let ended = client.end();
        assert_eq!(ended.code, Some(128 + number), "{}", ended.stderr);
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn another_way_is_taken_where_the_first_cannot_be_had() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("file"), 70_000, 9);
    let (there, absent) = (last(), nobody().to_string());
    let (file, to, or) = (
        text(&place.client("file")),
        server.at("sub/"),
        through(&[&there]),
    );
    let send = |or: &str| {
        haul([
            "send",
            "--gateway",
            &absent,
            "--gateway-or",
            &absent,
            "--gateway-or",
            or,
            &file,
            &to,
        ])
    };
    send(&format!("{absent},{or}")).failed(5, &absent);
    send(&or).ok();
    assert_eq!(read_file(&place.server("sub/file")), content);
}

#[test]
fn metadata_is_taken_within_its_bounds_and_else_a_wrong_command() {
    let place = Place::new();
    let server = place.serve();
    let content = make_file(&place.client("file"), 70_000, 9);
    let there = last();
    let (file, to, hops) = (
        text(&place.client("file")),
        server.at("sub/"),
        through(&[&there]),
    );
    let send = |pairs: [&str; 2]| {
        let [one, two] = pairs;
        haul([
            "send",
            "--gateway",
            &hops,
            "--metadata",
            one,
            "--metadata",
            two,
            &file,
            &to,
        ])
    };
    for (two, why) in [
        ("job", "metadata is KEY=VALUE"),
        ("a b=", "a key of metadata is"),
        ("job=18", "there twice"),
    ] {
        let ended = send(["job=17", two]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
    send(["job=17", "note=a=b"]).ok();
    assert_eq!(read_file(&place.server("sub/file")), content);
}

#[test]
fn what_cannot_be_reached_is_told_with_the_hop() {
    let place = Place::new();
    let server = place.serve();
    make_file(&place.client("file"), 1000, 6);
    let send = |hops: &str, to: &str| {
        let file = text(&place.client("file"));
        haul(["send", "--gateway", hops, &file, to])
    };
    let (absent, there) = (nobody(), last());
    let absent = absent.to_string();
    // The gateway; one behind another; the server.
    let ended = send(&absent, &server.at("")).failed(5, &absent);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let relay = Gateway::start(&member(KIND, "127.0.0.1:0", "next = ['127.0.0.1']"));
    let hops = format!("{},{absent}", relay.sessions_at());
    send(&hops, &server.at("")).failed(5, &format!("gateway {absent}"));
    let hops = through(&[&there]);
    send(&hops, &format!("haul://{}/", nobody())).failed(5, "it refuses connections");
    // What the last gateway, or one between, does not allow.
    let ended = send(&hops, "haul://127.0.0.2:4725/").failed(7, "`exit`");
    let named = format!("gateway {hops} does not allow it");
    assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    send(&through(&[&there, &relay]), &server.at("")).failed(5, "not in `next`");
    // What makes no sense.
    let file = text(&place.client("file"));
    let udt = [
        "send",
        "--gateway",
        &hops,
        "--channel",
        "udt",
        &file,
        "haul://h/",
    ];
    haul(udt).failed(2, "gateways carry TCP");
}

#[test]
fn routes_are_tried_without_opening_a_session() {
    let place = Place::new();
    let (first, second) = (
        Gateway::start(&member(KIND, "127.0.0.1:0", "next = ['127.0.0.1']")),
        last(),
    );
    let absent = nobody();
    let key = place.outside("key");
    secret(&key, &"5a".repeat(32));
    let more = format!("{EXIT}\n[[key]]\nname = 'k'\nfile = '{}'", text(&key));
    let keyed = member(KIND, "127.0.0.1:0", &more).replace("anonymous = true\n", "");
    let keyed = Gateway::start(&keyed);
    // The gateway itself may run meanwhile.
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = held.local_addr().unwrap();
    let listener =
        format!("[[listener]]\nkind = 'forward'\nlisten = '{listener}'\nto = 'a.example:80'\n");
    let at = [&first, &second, &keyed].map(|gateway| gateway.sessions_at().to_string());
    let route = |to: &str, via: &[&str]| {
        format!(
            "[[route]]\nto = ['{to}']\nvia = {via:?}\nring = '8MiB'\nchannels = ['tcp', '{KIND}']\n"
        )
    };
    let file = place.outside("gateway.toml");
    let check = |routes: &[String]| {
        let routes = routes.concat();
        let config = format!("name = 'near'\nanonymous = true\n{listener}{routes}");
        std::fs::write(&file, config).unwrap();
        haul(["gateway", "check", "--reach", &text(&file)])
    };
    let good = [
        route("a.example", &[&at[0], &at[1]]),
        route("b.example", &[&at[1]]),
    ];
    let ended = check(&good);
    assert_eq!(ended.code, Some(0), "{} {}", ended.stdout, ended.stderr);
    for line in [
        format!(
            "route to a.example: ok: {} by {KIND}, {} by {KIND}\n",
            at[0], at[1]
        ),
        format!("route to b.example: ok: {} by {KIND}\n", at[1]),
    ] {
        assert!(ended.stdout.contains(&line), "{line}{}", ended.stdout);
    }
    let absent = absent.to_string();
    let bad = [
        route("a.example", &[&at[0], &absent]),
        route("b.example", &[&at[0], &at[2]]),
        route("c.example", &[&at[1]]),
    ];
    let ended = check(&bad);
    assert_eq!(ended.code, Some(5), "{} {}", ended.stdout, ended.stderr);
    for line in [
        format!("route to a.example: gateway {absent}: "),
        format!(
            "route to b.example: gateway {}: the gateways do not trust each other: ",
            at[2]
        ),
        format!("route to c.example: ok: {} by {KIND}\n", at[1]),
    ] {
        assert!(ended.stdout.contains(&line), "{line}{}", ended.stdout);
    }
}
