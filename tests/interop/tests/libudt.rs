//! Longhaul's plain UDT sockets against Debian's libudt, both directions, both modes. The extension
//! is offered throughout: libudt must not notice.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "tests on the clock"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use haul_interop::libudt::{Peer, programs};
use haul_interop::relay::Relay;
use haul_interop::{Tally, pattern};
use haul_netem::{LinkConfig, LossModel, Reorder};
use haul_soft::udt::plain::Socket;
use haul_soft::udt::{self, Identity, Link, LinkError, LinkOptions, Listener};
use haul_udt::Seq;
use haul_udt::wire::{SocketId, SocketKind};

const SEED: u64 = 7;
const SIZES: [u64; 6] = [1, 1_455, 1_456, 1_457, 100_001, 20_000_000];

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((V4, port))
}

/// Whether there is an IPv6 loopback; said in a line that counts as a skipped test where there is
/// none.
fn has_ipv6() -> bool {
    let bound = std::net::UdpSocket::bind((V6, 0));
    if let Err(error) = &bound {
        println!("SKIPPED: no IPv6 loopback: {error}");
    }
    bound.is_ok()
}

fn options(kind: SocketKind) -> LinkOptions {
    let mut options = LinkOptions::default();
    options.config.kind = kind;
    options
}

fn identity() -> Identity {
    static NEXT: AtomicU32 = AtomicU32::new(1_000);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Identity {
        socket: SocketId(number),
        // Some of the transfers cross the wrap of the sequence numbers.
        initial: Seq::new(0x7fff_ff00 + number % 2 * 0x1234_5678),
    }
}

fn mode(kind: SocketKind) -> &'static str {
    match kind {
        SocketKind::Stream => "stream",
        SocketKind::Datagram => "dgram",
    }
}

fn lossy() -> LinkConfig {
    LinkConfig {
        delay_ns: 10_000_000,
        loss: LossModel::Random(0.02),
        reorder: Some(Reorder {
            probability: 0.01,
            delay_ns: 3_000_000,
        }),
        duplicate: 0.01,
        ..LinkConfig::default()
    }
}

/// Sends the pattern, in messages of `message` bytes in message mode, and closes.
fn send(link: Link, kind: SocketKind, bytes: u64, message: usize, ttl_ns: Option<u64>) -> Tally {
    let (mut socket, mut tally) = (Socket::new(link), Tally::default());
    while tally.bytes < bytes {
        let len = usize::try_from(bytes - tally.bytes).unwrap().min(message);
        let payload = pattern(SEED, tally.bytes, len);
        if kind == SocketKind::Stream {
            socket.send(&payload).unwrap();
            tally.add_stream(&payload);
        } else {
            socket.send_message(&payload, true, ttl_ns).unwrap();
            tally.add_message(&payload);
        }
    }
    socket.close().unwrap();
    tally
}

fn receive(link: Link, kind: SocketKind) -> Tally {
    let (mut socket, mut tally) = (Socket::new(link), Tally::default());
    let mut buffer = vec![0; 10_000];
    loop {
        if kind == SocketKind::Stream {
            match socket.recv(&mut buffer).unwrap() {
                0 => return tally,
                len => tally.add_stream(&buffer[..len]),
            }
        } else {
            match socket.recv_message().unwrap() {
                None => return tally,
                Some(message) => tally.add_message(&message),
            }
        }
    }
}

fn accept(listener: &mut Listener, kind: SocketKind) -> Link {
    let (_, link) = listener
        .accept(None, &mut |_| Some(options(kind)))
        .unwrap()
        .expect("it is not stopped");
    link
}

fn listen(at: IpAddr, kind: SocketKind) -> Listener {
    Listener::bind((at, 0).into(), &options(kind), [9; 16]).unwrap()
}

/// libudt sends, we receive; by way of `link` if there is one.
fn from_libudt(
    kind: SocketKind,
    bytes: u64,
    arguments: &str,
    link: Option<&LinkConfig>,
) -> Option<(String, Tally)> {
    from_libudt_at(V4, kind, bytes, arguments, link)
}

fn from_libudt_at(
    at: IpAddr,
    kind: SocketKind,
    bytes: u64,
    arguments: &str,
    link: Option<&LinkConfig>,
) -> Option<(String, Tally)> {
    let programs = programs()?;
    let mut listener = listen(at, kind);
    let relay = link.map(|link| Relay::start(listener.local_addr(), link, bytes));
    let port = relay
        .as_ref()
        .map_or_else(|| listener.local_addr(), Relay::address)
        .port();
    let arguments = format!(
        "{at} {port} {} {bytes} --seed {SEED} {arguments}",
        mode(kind)
    );
    let mut peer = Peer::start(&programs.join("udt_send"), &arguments);
    let tally = receive(accept(&mut listener, kind), kind);
    let sent = peer.line("sent");
    assert_eq!(peer.end().0, 0);
    Some((sent, tally))
}

/// We send, libudt receives; by way of `link` if there is one.
fn to_libudt(
    kind: SocketKind,
    bytes: u64,
    message: usize,
    ttl_ns: Option<u64>,
    link: Option<&LinkConfig>,
) -> Option<(String, Tally)> {
    to_libudt_at(V4, kind, bytes, message, ttl_ns, link)
}

fn to_libudt_at(
    at: IpAddr,
    kind: SocketKind,
    bytes: u64,
    message: usize,
    ttl_ns: Option<u64>,
    link: Option<&LinkConfig>,
) -> Option<(String, Tally)> {
    let programs = programs()?;
    let arguments = format!("0 {} --bind {at}", mode(kind));
    let mut peer = Peer::start(&programs.join("udt_recv"), &arguments);
    let server = SocketAddr::new(at, peer.line("listening").parse().unwrap());
    let relay = link.map(|link| Relay::start(server, link, bytes));
    let address = relay.as_ref().map_or(server, Relay::address);
    let link = udt::connect((at, 0).into(), address, identity(), &options(kind)).unwrap();
    let tally = send(link, kind, bytes, message, ttl_ns);
    let received = peer.line("received");
    assert_eq!(peer.end().0, 0);
    Some((received, tally))
}

fn same(result: Option<(String, Tally)>) {
    if let Some((theirs, ours)) = result {
        assert_eq!(theirs, ours.to_string());
    }
}

#[test]
fn a_stream_from_libudt_arrives() {
    for bytes in SIZES {
        let result = from_libudt(SocketKind::Stream, bytes, "", None);
        if result.is_none() {
            return;
        }
        same(result);
    }
}

#[test]
fn a_stream_arrives_at_libudt() {
    for bytes in SIZES {
        let result = to_libudt(SocketKind::Stream, bytes, 1 << 20, None, None);
        if result.is_none() {
            return;
        }
        same(result);
    }
}

/// libudt fills packets as for IPv4, which are then longer than what we agreed on; ours are shorter
/// than its slots.
#[test]
fn streams_and_messages_cross_ipv6_in_both_directions() {
    if programs().is_none() || !has_ipv6() {
        return;
    }
    let lossy = lossy();
    for link in [None, Some(&lossy)] {
        for bytes in [1, 1_436, 1_437, 1_456, 1_457, 2_000_001] {
            for kind in [SocketKind::Stream, SocketKind::Datagram] {
                if link.is_some() && bytes < 1_000_000 {
                    continue;
                }
                same(from_libudt_at(V6, kind, bytes, "", link));
                same(to_libudt_at(V6, kind, bytes, 10_000, None, link));
            }
        }
    }
}

#[test]
fn messages_from_libudt_arrive() {
    same(from_libudt(
        SocketKind::Datagram,
        2_000_000,
        "--message 1000",
        None,
    ));
}

#[test]
fn large_messages_from_libudt_arrive_in_order() {
    same(from_libudt(
        SocketKind::Datagram,
        3_000_000,
        "--message 100000 --in-order",
        None,
    ));
}

#[test]
fn messages_arrive_at_libudt() {
    same(to_libudt(
        SocketKind::Datagram,
        2_000_000,
        1_000,
        None,
        None,
    ));
}

#[test]
fn large_messages_arrive_at_libudt() {
    same(to_libudt(
        SocketKind::Datagram,
        3_000_000,
        100_000,
        None,
        None,
    ));
}

#[test]
fn a_stream_from_libudt_arrives_over_a_lossy_path() {
    same(from_libudt(
        SocketKind::Stream,
        2_000_001,
        "",
        Some(&lossy()),
    ));
}

#[test]
fn a_stream_arrives_at_libudt_over_a_lossy_path() {
    same(to_libudt(
        SocketKind::Stream,
        2_000_001,
        1 << 20,
        None,
        Some(&lossy()),
    ));
}

#[test]
fn messages_from_libudt_arrive_over_a_lossy_path() {
    same(from_libudt(
        SocketKind::Datagram,
        500_000,
        "--message 5000",
        Some(&lossy()),
    ));
}

#[test]
fn messages_arrive_at_libudt_over_a_lossy_path() {
    same(to_libudt(
        SocketKind::Datagram,
        500_000,
        5_000,
        None,
        Some(&lossy()),
    ));
}

/// libudt's drop requests skip sequence numbers and repeat messages: what it can promise is less
/// than what it sent. Behind one message that has expired hardly any arrives, so the first ones
/// live for several round trips, and the later ones do not.
#[test]
fn libudts_messages_that_expire_do_not_stop_the_others() {
    let Some((sent, ours)) = from_libudt(
        SocketKind::Datagram,
        300_000,
        "--message 5000 --ttl 100 --in-order",
        Some(&lossy()),
    ) else {
        return;
    };
    println!("libudt sent {sent}; arrived {ours}");
    assert!(ours.messages > 0 && ours.messages <= 60, "{ours}");
}

#[test]
fn our_messages_that_expire_do_not_stop_the_others_at_libudt() {
    let ttl_ns = Some(30_000_000);
    let Some((theirs, ours)) =
        to_libudt(SocketKind::Datagram, 300_000, 5_000, ttl_ns, Some(&lossy()))
    else {
        return;
    };
    println!("sent {ours}; at libudt arrived {theirs}");
    let messages: u64 = theirs.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(messages > 0 && messages <= ours.messages, "{theirs}");
}

#[test]
fn we_meet_libudt_and_send() {
    let Some(programs) = programs() else { return };
    for kind in [SocketKind::Stream, SocketKind::Datagram] {
        let [ours, theirs] = free_ports();
        let arguments = format!(
            "{theirs} {} --bind 127.0.0.2 --rendezvous 127.0.0.1 --peer-port {ours}",
            mode(kind)
        );
        let mut peer = Peer::start(&programs.join("udt_recv"), &arguments);
        let address = SocketAddr::from(([127, 0, 0, 2], theirs));
        let link = udt::rendezvous(loopback(ours), address, identity(), &options(kind)).unwrap();
        let tally = send(link, kind, 1_000_001, 10_000, None);
        peer.line("meeting");
        assert_eq!(peer.line("received"), tally.to_string());
    }
}

#[test]
fn we_meet_libudt_and_receive() {
    let Some(programs) = programs() else { return };
    for kind in [SocketKind::Stream, SocketKind::Datagram] {
        let [ours, theirs] = free_ports();
        let arguments = format!(
            "127.0.0.1 {ours} {} 1000001 --bind 127.0.0.2 --local-port {theirs} --rendezvous",
            mode(kind)
        );
        let mut peer = Peer::start(&programs.join("udt_send"), &arguments);
        let address = SocketAddr::from(([127, 0, 0, 2], theirs));
        let link = udt::rendezvous(loopback(ours), address, identity(), &options(kind)).unwrap();
        let tally = receive(link, kind);
        assert_eq!(peer.line("sent"), tally.to_string());
    }
}

/// A libudt that began before us is connected after our second request, and its answer to the next
/// one states no version.
#[test]
fn we_meet_libudt_whoever_begins_first() {
    let Some(programs) = programs() else { return };
    let offsets: Vec<i64> = std::env::var("HAUL_MEET_OFFSETS_MS").map_or_else(
        |_| vec![-2_000, -600, -100, 0, 100, 600, 2_000],
        |list| list.split(',').map(|ms| ms.parse().unwrap()).collect(),
    );
    for offset_ms in offsets {
        let [ours, theirs] = free_ports();
        let address = SocketAddr::from(([127, 0, 0, 2], theirs));
        let arguments =
            format!("{theirs} stream --bind 127.0.0.2 --rendezvous 127.0.0.1 --peer-port {ours}");
        let began = Instant::now();
        let (link, mut peer) = std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                pause_ms(offset_ms);
                Peer::start(&programs.join("udt_recv"), &arguments)
            });
            pause_ms(-offset_ms);
            let options = options(SocketKind::Stream);
            let link = udt::rendezvous(loopback(ours), address, identity(), &options);
            (link, peer.join().unwrap())
        });
        let link = link.unwrap_or_else(|error| panic!("{offset_ms} ms: {error}"));
        println!("libudt {offset_ms} ms after us: {:?}", began.elapsed());
        let tally = send(link, SocketKind::Stream, 1_001, 1_001, None);
        peer.line("meeting");
        assert_eq!(peer.line("received"), tally.to_string());
    }
}

fn pause_ms(ms: i64) {
    std::thread::sleep(Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
}

/// Two ports that were free a moment ago.
fn free_ports() -> [u16; 2] {
    let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

#[test]
fn a_client_of_the_other_kind_is_refused_by_either_side() {
    let Some(programs) = programs() else { return };
    let mut peer = Peer::start(&programs.join("udt_recv"), "0 dgram");
    let server = loopback(peer.line("listening").parse().unwrap());
    let refused = udt::connect(
        loopback(0),
        server,
        identity(),
        &options(SocketKind::Stream),
    );
    assert!(
        matches!(
            refused,
            Err(LinkError::Protocol(haul_udt::Error::Refused(1_002)))
        ),
        "{refused:?}"
    );

    let mut listener = listen(V4, SocketKind::Stream);
    let port = listener.local_addr().port();
    let stop = listener.stop_handle();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let accepted =
            scope.spawn(move || listener.accept(None, &mut |_| Some(options(SocketKind::Stream))));
        let arguments = format!("127.0.0.1 {port} dgram 1000");
        let (code, said) = Peer::start(&programs.join("udt_send"), &arguments).end();
        assert_eq!(code, 1, "{said}");
        stop.stop();
        assert!(matches!(accepted.join().unwrap(), Ok(None)));
    });
    assert!(began.elapsed() < Duration::from_secs(10));
}
