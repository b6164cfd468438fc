//! Listeners over loopback, with good clients, bad ones and none.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use haul_io::clock::process_cpu;
use haul_io::netns::NetNs;
use haul_io::netns::child::Inside;
use haul_io::notify::{Signal, wait_readable};
use haul_io::stream::Stream;
use haul_xsp::wire::{Address, Endpoint};

use super::*;
use crate::answer::Answer;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_NS: u64 = 20_000_000_000;

const SOCKS_HELLO: &[u8] = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x00\x50";
const HTTP_HELLO: &[u8] = b"CONNECT example.org:80 HTTP/1.0\r\n\r\n";

fn config(kind: ListenerKind) -> config::Listener {
    config::Listener {
        kind,
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        to: None,
        clients: Vec::new(),
    }
}

fn open_with(config: &config::Listener, limits: Limits) -> (Listener, Receiver<Arrival>) {
    let (deliver, arrivals) = unbounded();
    let deliver = move |arrival| {
        // A test that has ended does not care.
        let _ = deliver.send(arrival);
    };
    let listener = Listener::open_with(config, limits, deliver, |_| {});
    (listener.unwrap(), arrivals)
}

fn open(kind: ListenerKind) -> (Listener, Receiver<Arrival>) {
    open_with(&config(kind), Limits::default())
}

/// A client that waits.
struct Client(Stream);

impl Client {
    fn connect(to: SocketAddr) -> Self {
        Self(Stream::start_connect(to).unwrap())
    }

    fn log(&self, octets: &[u8]) {
        while let Err(error) = self.0.write(octets) {
            assert!(
                matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                ),
                "{error}"
            );
            std::thread::yield_now();
        }
    }

    /// Up to `len` bytes, or to the end; whether it ended in order.
    fn hear(&self, len: usize) -> (Vec<u8>, bool) {
        let mut heard = vec![0; len];
        let mut at = 0;
        while at < len {
            match self.0.read(&mut heard[at..]) {
                Ok(0) => return (heard[..at].to_vec(), true),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(
                        wait_readable([self.0.as_fd()], Some(PATIENCE_NS)).unwrap(),
                        "nothing comes"
                    );
                }
                Err(_) => return (heard[..at].to_vec(), false),
            }
        }
        (heard, false)
    }
}

fn example() -> Endpoint {
    Endpoint {
        address: Address::Name("example.org".to_owned()),
        port: 80,
    }
}

/// A client asks and is handed on, with what it sent at once behind its request.
fn ask(listener: &Listener, arrivals: &Receiver<Arrival>, hello: &[u8], answer: Answer) {
    let client = Client::connect(listener.local_addr());
    client.log(&[hello, b"first octets"].concat());
    let arrival = arrivals.recv_timeout(PATIENCE).unwrap();
    assert_eq!((arrival.to, arrival.answer), (example(), answer));
    assert_eq!(Some(arrival.client), client.0.local_addr());
    let mut octets = [0; 64];
    let count = arrival.stream.read(&mut octets).unwrap();
    assert_eq!(&octets[..count], b"first octets");
    assert!(arrival.stream.write(answer.accepted()).is_ok());
    let greeting: &[u8] = if answer == Answer::Socks5 {
        &[5, 0]
    } else {
        &[]
    };
    let expected = [greeting, answer.accepted()].concat();
    assert_eq!(client.hear(expected.len()).0, expected);
}

#[test]
fn a_client_of_socks_is_handed_on() {
    let (listener, arrivals) = open(ListenerKind::Socks5);
    ask(&listener, &arrivals, SOCKS_HELLO, Answer::Socks5);
}

#[test]
fn a_client_of_http_is_handed_on() {
    let (listener, arrivals) = open(ListenerKind::Http);
    ask(&listener, &arrivals, HTTP_HELLO, Answer::Http);
}

#[test]
fn a_forwarding_listener_has_one_destination_and_sends_nothing() {
    let mut config = config(ListenerKind::Forward);
    assert!(matches!(
        Listener::open(&config, drop, |_| {}),
        Err(OpenError::NoDestination(_))
    ));
    config.to = Some("example.org:80".parse().unwrap());
    let (listener, arrivals) = open_with(&config, Limits::default());
    ask(&listener, &arrivals, b"", Answer::None);
}

#[test]
fn a_handshake_octet_by_octet_is_understood() {
    for (kind, hello) in [
        (ListenerKind::Socks5, SOCKS_HELLO),
        (ListenerKind::Http, HTTP_HELLO),
    ] {
        let (listener, arrivals) = open(kind);
        let client = Client::connect(listener.local_addr());
        for octet in hello {
            client.log(&[*octet]);
        }
        assert_eq!(arrivals.recv_timeout(PATIENCE).unwrap().to, example());
    }
}

#[test]
fn a_client_that_ends_its_half_with_its_request_is_handed_on() {
    let (listener, arrivals) = open(ListenerKind::Http);
    let client = Client::connect(listener.local_addr());
    client.log(&[HTTP_HELLO, b"all"].concat());
    client.0.shutdown_send();
    let arrival = arrivals.recv_timeout(PATIENCE).unwrap();
    let mut octets = [0; 64];
    assert_eq!(arrival.stream.read(&mut octets).unwrap(), 3);
}

#[test]
fn a_refusal_is_read_whole_though_the_client_went_on_talking() {
    let (listener, _arrivals) = open(ListenerKind::Http);
    let client = Client::connect(listener.local_addr());
    client.log(
        &[
            &b"POST http://h/ HTTP/1.1\r\nHost: h\r\nContent-Length: 4000\r\n\r\n"[..],
            &[b'x'; 4000],
        ]
        .concat(),
    );
    let (heard, in_order) = client.hear(4096);
    let heard = String::from_utf8(heard).unwrap();
    assert!(
        heard.starts_with("HTTP/1.1 405 ") && heard.ends_with("CONNECT only\n"),
        "{heard}"
    );
    assert!(in_order);
}

#[test]
fn a_silent_client_is_disconnected_and_an_active_one_is_not() {
    let limits = Limits {
        handshake_ns: 50_000_000,
        ..Limits::default()
    };
    let (listener, arrivals) = open_with(&config(ListenerKind::Socks5), limits);
    let silent = Client::connect(listener.local_addr());
    let partial = Client::connect(listener.local_addr());
    partial.log(&SOCKS_HELLO[..3]);
    assert_eq!(silent.hear(1).0, b"");
    assert_eq!(partial.hear(3).0, [5, 0]);
    ask(&listener, &arrivals, SOCKS_HELLO, Answer::Socks5);
    assert!(arrivals.is_empty());
}

#[test]
fn further_clients_wait_until_a_pending_one_has_left() {
    let limits = Limits {
        pending: 2,
        handshake_ns: PATIENCE_NS * 2,
        ..Limits::default()
    };
    let (listener, arrivals) = open_with(&config(ListenerKind::Http), limits);
    let pending = [
        Client::connect(listener.local_addr()),
        Client::connect(listener.local_addr()),
    ];
    let waiting = Client::connect(listener.local_addr());
    waiting.log(HTTP_HELLO);
    assert!(arrivals.recv_timeout(Duration::from_millis(50)).is_err());
    drop(pending);
    assert_eq!(arrivals.recv_timeout(PATIENCE).unwrap().to, example());
}

#[test]
fn junk_does_not_disturb_others() {
    for (kind, hello, answer) in [
        (ListenerKind::Socks5, SOCKS_HELLO, Answer::Socks5),
        (ListenerKind::Http, HTTP_HELLO, Answer::Http),
    ] {
        let (listener, arrivals) = open(kind);
        let junk: Vec<_> = (0..50_u8)
            .map(|seed| {
                let client = Client::connect(listener.local_addr());
                let octets: Vec<u8> = (0..seed)
                    .map(|i| i.wrapping_mul(seed).wrapping_add(seed))
                    .collect();
                client.log(&octets);
                client
            })
            .collect();
        ask(&listener, &arrivals, hello, answer);
        drop(junk);
        ask(&listener, &arrivals, hello, answer);
    }
}

/// Returns the output and exit status of curl that requests a page through a listener of this kind
/// and receives `told`.
fn curl(
    kind: ListenerKind,
    scheme: &str,
    told: impl FnOnce(Answer) -> Vec<u8>,
) -> Option<(String, i32)> {
    let (listener, arrivals) = open(kind);
    let proxy = format!("{scheme}://{}", listener.local_addr());
    let args = [
        "--silent",
        "--proxytunnel",
        "--noproxy",
        "",
        "--max-time",
        "20",
    ];
    let mut command = Command::new("curl");
    command
        .args(args)
        .args(["--proxy", &proxy, "http://example.org/"]);
    let child = command.stdout(Stdio::piped()).spawn().ok()?;
    let arrival = arrivals.recv_timeout(PATIENCE).unwrap();
    assert_eq!(arrival.to, example());
    let told = told(arrival.answer);
    assert_eq!(arrival.stream.write(&told).unwrap(), told.len());
    arrival.stream.shutdown_send();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some((text, output.status.code().unwrap()))
}

#[test]
fn curl_understands_the_replies() {
    const PAGE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage";
    // Exit codes of curl(1): of a proxy's handshake, and of receiving after a refused CONNECT.
    for (kind, scheme, refused) in [
        (ListenerKind::Socks5, "socks5h", 97),
        (ListenerKind::Http, "http", 56),
    ] {
        let page = curl(kind, scheme, |answer| [answer.accepted(), PAGE].concat());
        let Some(page) = page else {
            return println!("SKIPPED: no curl(1)");
        };
        assert_eq!(page, ("page".to_owned(), 0));
        let refusal = curl(kind, scheme, |answer| answer.refused(4)).unwrap();
        assert_eq!(refusal.1, refused, "{scheme}");
    }
}

#[test]
fn a_listener_closes_when_it_is_dropped_and_its_clients_are_gone() {
    let (listener, _arrivals) = open(ListenerKind::Socks5);
    let address = listener.local_addr();
    let client = Client::connect(address);
    client.log(&SOCKS_HELLO[..3]);
    assert_eq!(client.hear(2).0, [5, 0]);
    drop(listener);
    assert_eq!(client.hear(1).0, b"");
    assert!(Acceptor::bind(address).is_ok());
}

#[test]
fn a_direct_client_of_a_transparent_listener_is_reset() {
    let (listener, arrivals) = open(ListenerKind::Transparent);
    let client = Client::connect(listener.local_addr());
    assert_eq!(client.hear(1), (Vec::new(), false));
    assert!(arrivals.is_empty());
}

#[test]
fn an_unlisted_client_is_reset_where_clients_are_listed() {
    let mut config = config(ListenerKind::Http);
    config.clients = vec!["192.0.2.0/24".parse().unwrap()];
    let (listener, arrivals) = open_with(&config, Limits::default());
    let client = Client::connect(listener.local_addr());
    assert_eq!(client.hear(1), (Vec::new(), false));
    assert!(arrivals.is_empty());
    config.clients.push("127.0.0.0/8".parse().unwrap());
    let (listener, arrivals) = open_with(&config, Limits::default());
    ask(&listener, &arrivals, HTTP_HELLO, Answer::Http);
}

#[test]
fn an_address_in_use_is_reported() {
    let (listener, _arrivals) = open(ListenerKind::Http);
    let mut config = config(ListenerKind::Http);
    config.listen = listener.local_addr();
    let error = Listener::open(&config, drop, |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&listener.local_addr().to_string()) && error.contains("in use"),
        "{error}"
    );
}

/// In a process of its own, for the limit is one of processes.
#[test]
fn out_of_descriptors_a_listener_waits_and_does_not_spin() {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" --ignored --exact listener::open::tests::out_of_descriptors --nocapture"])
        .arg(program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said:?}"
    );
}

#[test]
#[ignore = "run by the test before it, with few descriptors"]
fn out_of_descriptors() {
    let mut config = config(ListenerKind::Forward);
    config.to = Some("example.org:80".parse().unwrap());
    let (listener, arrivals) = open_with(&config, Limits::default());
    let mut fillers: Vec<_> = std::iter::from_fn(|| Signal::new().ok()).collect();
    fillers.pop();
    let _client = Client::connect(listener.local_addr());
    let before = process_cpu().unwrap();
    assert!(arrivals.recv_timeout(Duration::from_millis(500)).is_err());
    let used = process_cpu().unwrap().since(before).total_ns();
    assert!(used < 100_000_000, "{used} ns of 500 ms");
    drop(fillers);
    assert_eq!(arrivals.recv_timeout(PATIENCE).unwrap().to, example());
}

/// Addresses that applications connect to, none of which exists, and the listeners of
/// docs/gateway-reference.md.
const FAR: [&str; 2] = ["203.0.113.7:80", "[2001:db8:b::7]:443"];
const LISTENERS: [&str; 2] = ["192.0.2.1:7410", "[2001:db8::1]:7410"];
const LOCAL_LISTENERS: [&str; 2] = ["127.0.0.1:7410", "[::1]:7410"];
/// A gateway with a network of clients at one side, which is another namespace.
const GATEWAY: &str = "
    ip link set lo up
    ip link add lan0 type veth peer name eth0
    ip link set eth0 netns /proc/PID/fd/FD
    ip address add 192.0.2.1/24 dev lan0
    ip address add 2001:db8::1/64 dev lan0 nodad
    ip link set lan0 up
    ip route add 203.0.113.0/24 dev lo
    ip route add 2001:db8:b::/48 dev lo
";
const PROGRAMS: &str = "
    ip address add 192.0.2.2/24 dev eth0
    ip address add 2001:db8::2/64 dev eth0 nodad
    ip link set eth0 up
    ip route add default via 192.0.2.1
    ip -6 route add default via 2001:db8::1
";

/// The block of docs/gateway-reference.md with this headline.
fn block(headline: &str) -> &'static str {
    const DOCUMENT: &str = include_str!("../../../../docs/gateway-reference.md");
    let (_, rest) = DOCUMENT.split_once(&format!("```{headline}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_documented_rules_for_tproxy_keep_destinations() {
    diverted(block("nft tproxy"), block("sh tproxy"), LISTENERS, false);
}

#[test]
fn the_documented_rules_for_redirect_keep_destinations() {
    diverted(block("nft redirect"), "", LISTENERS, false);
}

#[test]
fn the_documented_rules_for_programs_on_the_gateway_keep_destinations() {
    // No test runs as user 999.
    let rules = block("nft local").replace("haul ip", "999 ip");
    diverted(&rules, "", LOCAL_LISTENERS, true);
}

/// Connects to somewhere else, from the gateway or from beside it, where `rules` divert that to
/// listeners.
fn diverted(rules: &str, setup: &str, listeners: [&str; 2], from_gateway: bool) {
    let (Ok(gateway), Ok(programs)) = (NetNs::new(), NetNs::new()) else {
        return println!("SKIPPED: no right to make a network namespace");
    };
    let (pid, fd) = (
        std::process::id().to_string(),
        programs.raw_fd().to_string(),
    );
    let network = GATEWAY.replace("PID", &pid).replace("FD", &fd);
    if !(run(&gateway, &network) && run(&programs, PROGRAMS)) {
        return println!("SKIPPED: no ip(8), or no right to make devices");
    }
    if !run(&gateway, &format!("nft -f - <<END\n{rules}\nEND\n{setup}")) {
        return println!("SKIPPED: no nft(8), or this kernel cannot divert");
    }
    for (listen, far) in listeners.into_iter().zip(FAR) {
        let mut config = config(ListenerKind::Transparent);
        config.listen = listen.parse().unwrap();
        let opened = gateway.run(|| open_with(&config, Limits::default()));
        let (listener, arrivals) = opened.unwrap();
        assert!(listener.takes_tproxy());
        let far: SocketAddr = far.parse().unwrap();
        let from = if from_gateway { &gateway } else { &programs };
        let client = from.run(|| Client::connect(far)).unwrap();
        let arrival = arrivals.recv_timeout(PATIENCE).unwrap();
        assert_eq!(arrival.to, crate::host::endpoint(far));
        arrival.stream.write(b"from afar").unwrap();
        assert_eq!(client.hear(9).0, b"from afar");
        assert_eq!(client.0.peer_addr(), Some(far));
    }
}

/// Whether a script inside the namespace succeeds.
fn run(namespace: &NetNs, script: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-ec", script]);
    let inside = Inside {
        network: Some(namespace.as_fd()),
        ..Inside::default()
    };
    inside.on(&mut command).is_ok() && command.status().is_ok_and(|status| status.success())
}
