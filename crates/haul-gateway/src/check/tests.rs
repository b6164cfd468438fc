//! Configurations with one thing wrong each, and with everything wrong at once.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use super::*;
use crate::host;
use crate::tls::tests::{Authority, Validity};

/// An entry and an exit in one, with nothing wrong.
const GOOD: &str = "
name = 'gateway'
listen = '127.0.0.1:7000'
memory = '2GiB'
sessions = 8
anonymous = true
exit = ['192.0.2.0/24:443']
next = ['gw.example.org:7000']

[[channel]]
kind = 'tcp'
listen = '127.0.0.1:7001'

[[listener]]
kind = 'socks5'
listen = '127.0.0.1:1080'

[[listener]]
kind = 'forward'
listen = '127.0.0.1:8080'
to = 'example.org:80'

[[route]]
to = ['.example.net', '203.0.113.0/24:443']
via = ['gw1.example.org:7000', { gateway = '[2001:db8::1]:7000', channels = ['tcp'] }]
rate = '2.5Gb/s'

[[route]]
to = ['*']
via = ['gw1.example.org:7000']
";

/// The good one with `from` made `to`.
fn changed(from: &str, to: &str) -> Config {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replacen(from, to, 1))
}

fn parse(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn missing_devices_are_reported_with_their_lines() {
    let config = changed(
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\nexit = ['192.0.2.1:7']\n[[channel]]\nkind = 'verbs'\nlisten = '127.0.0.1:7009'\n\
         device = 'rxe1'\n[[channel]]",
    );
    assert_eq!(lines(&config.check()), [""; 0]);
    let none = |name: &str| Err(format!("no device is called '{name}'"));
    assert_eq!(
        lines(&config.check_devices(none)),
        [
            "line 13: error: [[channel]] 1: device: no device is called 'rxe1'; haul devices lists those of this machine",
            "line 10: error: rdma: no device is called 'rxe0'; haul devices lists those of this machine",
        ]
    );
    assert_eq!(config.check_devices(|_| Ok(())), []);
    // A host that is reached by TCP is not reached by RDMA for that, nor the other way round.
    let (tcp, rdma) = (
        "192.0.2.9:443".parse().unwrap(),
        "192.0.2.1:7".parse().unwrap(),
    );
    assert!(config.lets_out(tcp, false) && !config.lets_out(tcp, true));
    assert!(config.lets_out(rdma, true) && !config.lets_out(rdma, false));
}

#[test]
fn a_good_configuration_has_no_problems() {
    assert_eq!(lines(&parse(GOOD).check()), [""; 0]);
}

/// The text to replace, its replacement, and the start of the expected line.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "[[channel]]",
        "[admin]\nlisten = '192.0.2.1:80'\n[[channel]]",
        "line 10: error: admin: whoever reaches 192.0.2.1:80 would see",
    ),
    (
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\nmessage = '32MiB'\n[[channel]]",
        "line 10: error: rdma: messages may be of 1 octet to 16MiB, not 32MiB",
    ),
    (
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\ndepth = 0\n[[channel]]",
        "line 10: error: rdma: a depth may be of 1 to 1024 messages, not 0",
    ),
    (
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\nconnections = 0\n[[channel]]",
        "line 10: error: rdma: no connection is allowed",
    ),
    (
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\nanswer = 0\n[[channel]]",
        "line 10: error: rdma: the timeout must be at least a second",
    ),
    (
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\nexit = ['192.0.2.0/24']\nmessage = '16MiB'\n[[channel]]",
        "line 10: error: rdma: its connections may take 64GiB, and ",
    ),
    (
        "[[channel]]",
        "[rdma]\ndevice = 'rxe0'\n[[channel]]",
        "line 10: warning: rdma: nothing uses it",
    ),
    (
        "kind = 'forward'",
        "kind = 'rdma'",
        "line 18: error: [[listener]] 2: kind: it needs a device",
    ),
    (
        "[[channel]]",
        "[admin]\nlisten = '192.0.2.1:80'\nallow_remote = true\n[[channel]]",
        "line 10: warning: admin: the page has no authentication",
    ),
    (
        "[[channel]]",
        "[[class]]\nname = 'rest'\nshare = 20\nrate = '1Gb/s'\n[[channel]]",
        "line 10: error: [[class]] 1: name: 'rest' is no name of its own",
    ),
    (
        "[[channel]]",
        "[[class]]\nname = 'bulk'\nshare = 100\nrate = '1Gb/s'\n[[channel]]",
        "line 10: error: [[class]] 1: share: no share is left",
    ),
    (
        "[[channel]]",
        "[[class]]\nname = 'bulk'\nshare = 20\n[[channel]]",
        "line 10: warning: [[class]] 1: share: the rate that it is a share of",
    ),
    (
        "rate = '2.5Gb/s'",
        "class = 'bulk'",
        "line 23: error: [[route]] 1: class: there is no [[class]] 'bulk'",
    ),
    (
        "[[channel]]",
        "[path]\nkind = 'exec'\nprogram = []\n[[channel]]",
        "line 10: error: path: [path] of kind exec names no program",
    ),
    (
        "rate = '2.5Gb/s'",
        "regions = 0",
        "line 23: error: [[route]] 1: ring: it has 0 regions",
    ),
    (
        "kind = 'tcp'",
        "kind = 'verbs'",
        "line 10: error: [[channel]] 1: device: it is missing",
    ),
    ("name = 'gateway'", "name = ''", "line 2: error: name: "),
    ("sessions = 8", "sessions = 0", "line 5: error: sessions: "),
    (
        "sessions = 8",
        "sessions = 8\nkeepalive = 0",
        "line 6: error: keepalive: the interval must be at least a second",
    ),
    (
        "sessions = 8",
        "sessions = 8\nsession = { hold = 0, outage = 0 }",
        "line 6: error: session: `outage` must be at least a second",
    ),
    (
        "sessions = 8",
        "sessions = 200",
        "line 4: warning: memory: 2GiB has room for 126 sessions",
    ),
    (
        "memory = '2GiB'",
        "memory = '16MiB'",
        "line 4: error: memory: sessions of all routes take 32MiB",
    ),
    (
        "memory = '2GiB'",
        "memory = '32MiB'",
        "line 4: error: memory: no inbound session fits",
    ),
    (
        "anonymous = true",
        "",
        "line 3: error: listen: no peer can authenticate",
    ),
    (
        "listen = '127.0.0.1:7000'",
        "listen = '0.0.0.0:7000'",
        "line 6: warning: anonymous: whoever reaches 0.0.0.0:7000",
    ),
    (
        "exit = ['192.0.2.0/24:443']\nnext = ['gw.example.org:7000']",
        "",
        "line 3: error: listen: inbound sessions have no destination",
    ),
    (
        "listen = '127.0.0.1:7001'",
        "listen = '127.0.0.1:7000'",
        "line 10: error: [[channel]] 1: listen: 127.0.0.1:7000 is taken",
    ),
    (
        "listen = '127.0.0.1:7001'",
        "listen = '0.0.0.0:8080'",
        "line 18: error: [[listener]] 2: listen: 127.0.0.1:8080 is taken",
    ),
    (
        "kind = 'tcp'",
        "kind = 'tcp'\ndevice = 'mlx5_0'",
        "line 10: error: [[channel]] 1: device: ",
    ),
    (
        "kind = 'tcp'",
        "kind = 'tcp'\npublic = '0.0.0.0:1'",
        "line 10: error: [[channel]] 1: public: ",
    ),
    (
        "[[listener]]",
        "[[channel]]\nkind = 'tcp'\nlisten = '[::1]:0'\n[[listener]]",
        "line 14: error: [[channel]] 2: kind: tcp is there",
    ),
    (
        "[[listener]]",
        "[[channel]]\nkind = 'iwarp/udt'\nlisten = '[::1]:9'\n[[channel]]\nkind = 'iwarp/udt'\nlisten = '[::]:9'\n[[listener]]",
        "line 17: error: [[channel]] 3: listen: [::]:9 is taken",
    ),
    (
        "to = 'example.org:80'",
        "",
        "line 18: error: [[listener]] 2: to: it is missing",
    ),
    (
        "kind = 'forward'",
        "kind = 'http'",
        "line 18: error: [[listener]] 2: to: only forward and rdma",
    ),
    (
        "listen = '127.0.0.1:1080'",
        "listen = '192.0.2.1:1080'",
        "line 14: error: [[listener]] 1: clients: whoever",
    ),
    (
        "to = ['*']",
        "to = ['other.example']",
        "line 18: error: [[listener]] 2: to: no route leads to example.org:80",
    ),
    (
        "to = ['*']",
        "to = ['*', '.example.net']",
        "line 28: warning: [[route]] 2: to: .example.net never comes here",
    ),
    (
        "to = ['*']",
        "to = []",
        "line 28: error: [[route]] 2: to: it has no destination",
    ),
    (
        "rate = '2.5Gb/s'",
        "rate = 0",
        "line 23: error: [[route]] 1: rate: ",
    ),
    (
        "rate = '2.5Gb/s'",
        "burst = 0",
        "line 23: error: [[route]] 1: burst: ",
    ),
    (
        "rate = '2.5Gb/s'",
        "burst = '16KiB'\nstreams = 16",
        "line 23: warning: [[route]] 1: burst: its 16 streams send a packet at a time",
    ),
    (
        "rate = '2.5Gb/s'",
        "streams = 0",
        "line 23: error: [[route]] 1: streams: ",
    ),
    (
        "rate = '2.5Gb/s'",
        "channels = []",
        "line 23: error: [[route]] 1: channels: none",
    ),
    (
        "rate = '2.5Gb/s'",
        "channels = ['tcp', 'iwarp/udt', 'tcp']",
        "line 23: error: [[route]] 1: channels: tcp is named twice",
    ),
    (
        "rate = '2.5Gb/s'",
        "key = 'peer'",
        "line 23: error: [[route]] 1: key: there is no [[key]] 'peer'",
    ),
    (
        "rate = '2.5Gb/s'",
        "regions = 2",
        "line 23: error: [[route]] 1: ring: it has 2 regions",
    ),
    (
        "rate = '2.5Gb/s'",
        "ring = '48MiB'",
        "line 23: error: [[route]] 1: ring: 48MiB is no power of two",
    ),
    (
        "rate = '2.5Gb/s'",
        "ring = '4MiB'",
        "line 23: error: [[route]] 1: ring: 4MiB is less than 1MiB for each of 8",
    ),
    (
        "gw1.example.org:7000",
        "127.0.0.1:7000",
        "line 23: error: [[route]] 1: via: 127.0.0.1:7000 makes it a loop",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1', 'b:1', 'a:1']",
        "line 28: error: [[route]] 2: via: a:1 makes it a loop",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = []",
        "line 28: error: [[route]] 2: via: it has 0 gateways",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1']\nor_via = [['b:1'], []]",
        "line 28: error: [[route]] 2: or_via: it has 0 gateways",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1']\nor_via = [['b:1', 'c:1', 'b:1']]",
        "line 28: error: [[route]] 2: or_via: b:1 makes it a loop",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1', 'c:1']\nor_via = [['b:1', 'c:1'], ['a:1', 'c:1']]",
        "line 28: error: [[route]] 2: or_via: a:1, c:1 is named twice",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1']\nor_via = [['b:1'],['c:1'],['d:1'],['e:1'],['f:1'],['g:1'],['h:1'],['i:1'],['j:1']]",
        "line 28: error: [[route]] 2: or_via: it has 9 further ways",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1']\nor_via = [[{ gateway = 'b:1', channels = [] }]]",
        "line 28: error: [[route]] 2: channels: none is named",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1']\nor_via = [[{ gateway = 'b:1', key = 'k' }]]",
        "line 28: error: [[route]] 2: key: there is no [[key]] 'k'",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1', { gateway = 'b:1', key = 'k' }]",
        "line 28: error: [[route]] 2: via: b:1 is never the first",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1', { gateway = 'b:1', optional = true }]",
        "line 28: error: [[route]] 2: via: b:1 connects to the destination and cannot be left out",
    ),
    (
        "via = ['gw1.example.org:7000']",
        "via = ['a:1']\nend_to_end = true\nor_via = [['b:1']]",
        "line 28: warning: [[route]] 2: or_via: b:1 ends at another gateway than via",
    ),
];

#[test]
fn each_mistake_is_reported_with_its_line() {
    for (from, to, expected) in MISTAKES {
        let told = lines(&changed(from, to).check());
        assert!(
            told.iter().any(|line| line.starts_with(expected)),
            "{to}: {told:#?}"
        );
    }
}

#[test]
fn the_old_name_of_the_inbound_class_is_read_with_a_warning() {
    let config = parse(&format!("guest_class = 'bulk'\n{GOOD}"));
    assert_eq!(config.inbound_class.as_deref(), Some("bulk"));
    assert_eq!(
        lines(&config.check())[..2],
        [
            "line 1: warning: guest_class: guest_class is the old name of inbound_class; write inbound_class",
            "line 1: error: guest_class: there is no [[class]] 'bulk'; add it, or name another",
        ]
    );
}

#[test]
fn the_old_name_of_listeners_is_read_with_a_warning() {
    let config = parse(&GOOD.replace("[[listener]]", "[[door]]"));
    assert_eq!(config.listeners, parse(GOOD).listeners);
    assert_eq!(
        lines(&config.check()),
        ["line 14: warning: door: [[door]] is the old name of [[listener]]; write [[listener]]"]
    );
    // Listeners of both names count as one list, each with its own line.
    let mixed = GOOD.replacen("[[listener]]", "[[door]]", 1);
    let mixed = parse(&mixed.replace("to = 'example.org:80'\n", ""));
    let found = lines(&mixed.check());
    assert!(
        found.contains(&"line 18: error: [[listener]] 1: to: it is missing; forward and rdma need HOST:PORT, where all connections go".to_owned()),
        "{found:#?}"
    );
}

#[test]
fn a_gateway_needs_a_way_in() {
    let told = lines(&parse("name = 'gateway'\nexit = ['::/0']").check());
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].contains("nothing can connect") || told[1].contains("nothing can connect"),
        "{told:?}"
    );
    assert!(
        told.iter().any(|line| line.contains("warning: exit: ")),
        "{told:?}"
    );
}

#[test]
fn all_parse_errors_are_reported_at_once() {
    let text = "
name = 7
listen = 'here'
memory = '1Gb/s'
colour = 'blue'
exit = ['*']

[[listener]]
kind = 'smtp'
listen = '127.0.0.1'

[[route]]
to = ['*']

[[route]]
to = ['**']
via = ['host', { gateway = 'a:1' }]

[[key]]
name = 'peer'
file = 'peer.key'

[admin]
listen = 5

[rdma]
connections = -3
answer = 'soon'
";
    let told = lines(&Config::parse(text).unwrap_err());
    let places = [
        "line 2: error: name: ",
        "line 3: error: listen: ",
        "line 4: error: memory: ",
        "line 5: error: colour: unknown field `colour`",
        "line 6: error: exit: '*' is not PREFIX",
        "line 9: error: [[listener]] 1: kind: unknown variant `smtp`",
        "line 10: error: [[listener]] 1: listen: ",
        "line 12: error: [[route]] 1: missing field `via`",
        "line 16: error: [[route]] 2: to: '**' is not",
        "line 17: error: [[route]] 2: via: 'host' is no HOST:PORT",
        "line 24: error: admin: listen: ",
        "line 26: error: rdma: missing field `device`",
        "line 27: error: rdma: connections: ",
        "line 28: error: rdma: answer: ",
    ];
    assert_eq!(told.len(), places.len(), "{told:#?}");
    for (line, place) in told.iter().zip(places) {
        assert!(line.starts_with(place), "{line}\n{place}");
    }
}

#[test]
fn text_that_is_no_toml_is_reported_by_line() {
    let told =
        lines(&Config::parse("name = 'gateway'\n[[listener]\nkind = 'http'\nlisten").unwrap_err());
    assert!(
        told.iter().any(|line| line.starts_with("line 2: error: ")),
        "{told:#?}"
    );
    assert!(
        told.iter().any(|line| line.starts_with("line 4: error: ")),
        "{told:#?}"
    );
}

#[test]
fn a_kind_that_was_removed_is_refused_with_its_replacement() {
    let removed = [
        ("udp", "iwarp/udt"),
        ("udt", "iwarp/udt"),
        ("iwarp/tcp", "tcp"),
    ];
    for (kind, replacement) in removed {
        let text = GOOD
            .replacen("kind = 'tcp'", &format!("kind = '{kind}'"), 1)
            .replacen("rate = '2.5Gb/s'", &format!("channels = ['{kind}']"), 1)
            .replacen("channels = ['tcp']", &format!("channels = ['{kind}']"), 1);
        let told = lines(&Config::parse(&text).unwrap_err());
        let why = format!("data channel kind '{kind}' was removed; use '{replacement}'");
        let expected = [
            format!("line 11: error: [[channel]] 1: kind: {why}"),
            format!("line 25: error: [[route]] 1: via: {why}"),
            format!("line 26: error: [[route]] 1: channels: {why}"),
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (line, start) in told.iter().zip(expected) {
            assert!(line.starts_with(&start), "{line}\n{start}");
        }
    }
}

#[test]
fn a_table_of_the_wrong_kind_is_reported() {
    for text in ["listener = 7", "[listener]", "listener = [1]"] {
        let told = lines(&Config::parse(&format!("name = 'gateway'\n{text}")).unwrap_err());
        assert!(
            told[0].starts_with("line 2: error: listener: "),
            "{text}: {told:?}"
        );
    }
}

#[test]
fn a_missing_file_is_reported() {
    let told = lines(&Config::load(Path::new("/nowhere/gateway.toml")).unwrap_err());
    assert!(
        told[0].starts_with("error: cannot read /nowhere/gateway.toml: no such file"),
        "{told:?}"
    );
}

#[test]
fn the_first_route_that_fits_is_taken() {
    let config = parse(GOOD);
    let number = |to: &str| {
        let to: host::HostPort = to.parse().unwrap();
        config.route_number(to.endpoint())
    };
    assert_eq!(number("a.example.net:1"), Some(0));
    assert_eq!(number("203.0.113.1:443"), Some(0));
    assert_eq!(number("203.0.113.1:444"), Some(1));
    assert!(config.may_exit("192.0.2.1:443".parse().unwrap()));
    assert!(!config.may_exit("192.0.2.1:80".parse().unwrap()));
    assert_eq!(config.allowed().len(), 1);
}

#[test]
fn without_rules_nothing_is_allowed() {
    let config = parse("name = 'gateway'");
    assert!(!config.may_exit("192.0.2.1:443".parse().unwrap()));
    assert!(config.allowed().is_empty());
    assert_eq!(
        config.route_number(&host::endpoint("192.0.2.1:1".parse().unwrap())),
        None
    );
}

/// Every configuration that the pages show, with the files that it names and what a part of one
/// leaves out.
#[test]
fn what_the_pages_show_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    let issued = authority.issue(&["gw.site-a.example"], Validity::Now);
    let written = tls::tests::write(dir.path(), "gateway", &issued, &authority);
    std::fs::rename(written.roots, dir.path().join("roots.crt")).unwrap();
    for key in ["a-b.key", "peer.key"] {
        write_key(&dir.path().join(key));
    }
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
    let mut wrong = Vec::new();
    for page in ["gateways.md", "gateway-reference.md"] {
        let text = std::fs::read_to_string(format!("{docs}{page}")).unwrap();
        let shown: Vec<&str> = text.split("\n```toml\n").skip(1).collect();
        assert!(
            shown.len() >= 2 && shown.len() == text.matches("```toml").count(),
            "{page}"
        );
        for block in shown {
            let block = block.split("\n```").next().unwrap();
            let mut whole = block.to_owned();
            if !block.starts_with("name = ") {
                let key = if block.starts_with("via = ") {
                    "[[route]]\nto = ['*']\n"
                } else {
                    ""
                };
                // Some are of a gateway at which sessions end.
                let is_last = ["proxy_protocol = ", "exit = "].map(|key| block.contains(key));
                let (top, channel) = if is_last.contains(&true) {
                    (
                        "listen = '127.0.0.1:7400'\nmemory = '4GiB'\nexit = ['10.2.0.0/16']\n",
                        "[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:7401'\n",
                    )
                } else {
                    ("", "")
                };
                whole = format!("name = 'gateway'\nanonymous = true\n{top}{key}{block}\n{channel}");
                if !whole.contains("[[route]]") {
                    whole += "[[route]]\nto = ['*']\nvia = ['gw.example:7400']\n";
                }
                if !whole.contains("[[listener]]") {
                    whole += "[[listener]]\nkind = 'socks5'\nlisten = '127.0.0.1:1080'\n";
                }
            }
            for folder in [
                "/run/credentials/haul-gateway.service",
                "/etc/haul",
                "/var/log/haul",
            ] {
                whole = whole.replace(folder, dir.path().to_str().unwrap());
            }
            let file = dir.path().join("gateway.toml");
            std::fs::write(&file, whole).unwrap();
            let told = match Config::load(&file) {
                Ok(config) => lines(&config.check()),
                Err(problems) => lines(&problems),
            };
            if !told.is_empty() {
                wrong.push(format!("{page}: {block}\n{told:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn write_key(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let digits = "0123456789abcdef".repeat(4);
    file.unwrap().write_all(digits.as_bytes()).unwrap();
}

/// The example of the documentation, with the files that it names.
#[test]
fn the_annotated_example_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let example = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/gateway-example.toml"
    );
    let file = dir.path().join("gateway.toml");
    std::fs::copy(example, &file).unwrap();
    let authority = Authority::new("root");
    let issued = authority.issue(&["gw.site-a.example"], Validity::Now);
    let written = tls::tests::write(dir.path(), "gateway", &issued, &authority);
    std::fs::rename(written.roots, dir.path().join("roots.crt")).unwrap();
    let told = lines(&Config::load(&file).unwrap().check());
    let key = dir.path().join("site-b.key");
    let missing = format!(
        "[[key]] 1: file: cannot read the key {}: no such file",
        key.display()
    );
    assert!(told.len() == 1 && told[0].contains(&missing), "{told:#?}");
    write_key(&key);
    assert_eq!(lines(&Config::load(&file).unwrap().check()), [""; 0]);
}

#[test]
fn certificates_that_peers_would_refuse_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let told = |issued| {
        let config = Config {
            tls: Some(tls::tests::write(dir.path(), "gateway", &issued, &ours)),
            ..parse(GOOD)
        };
        lines(&config.check())
    };
    assert_eq!(told(ours.issue(&["a"], Validity::Now)), [""; 0]);
    let expired = told(ours.issue(&["a"], Validity::Past));
    assert!(
        expired[0].starts_with("error: tls: ") && expired[0].contains("it has expired"),
        "{expired:?}"
    );
    let foreign = told(theirs.issue(&["a"], Validity::Now));
    assert!(foreign[0].starts_with("warning: tls: "), "{foreign:?}");
}
