//! What streams do, wherever they are driven.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_control::identity::PrivateKey;
use haul_control::protect::Protection;
use haul_io::notify;
use haul_soft::udt::LinkError;
use haul_soft::udt::stream::{Options, Ready, Received, Stream};

use crate::over::{Listener, connect, rendezvous};

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Longer than anything here takes.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
const MIB: usize = 1 << 20;

fn options(placement: bool, ring: usize) -> Options {
    let mut options = Options::default();
    options.send_bytes = ring;
    options.receive_bytes = ring;
    options.udt.config.offer_placement = placement;
    options.udt.config.slot_memory_bytes = 1 << 20;
    options
}

fn pair(near: &Options, far: &Options) -> (Stream, Stream) {
    let mut listener = Listener::bind(LOCAL, far.clone()).unwrap();
    let near = connect(listener.local_addr(), near).unwrap();
    let far = loop {
        if let Some(far) = listener.accept().unwrap() {
            break far;
        }
        notify::wait_readable([listener.as_fd()], Some(10_000_000_000)).unwrap();
    };
    assert_eq!(near.wait(Ready::OPEN, PATIENCE), Ready::OPEN);
    assert_eq!(far.wait(Ready::OPEN, PATIENCE), Ready::OPEN);
    (near, far)
}

fn octet(at: usize) -> u8 {
    at.wrapping_mul(0x9e37_79b1).to_le_bytes()[3]
}

/// Sends so many bytes in pieces.
fn send(stream: &Stream, total: usize, piece: usize) {
    let mut at = 0;
    while at < total {
        let octets: Vec<u8> = (at..total.min(at + piece)).map(octet).collect();
        match stream.send(&octets).unwrap() {
            0 => assert!(!stream.wait(Ready::WRITABLE, PATIENCE).is_empty()),
            count => at += count,
        }
    }
}

/// Receives until the end, and checks what comes; how much that was.
fn receive(stream: &Stream, piece: usize) -> usize {
    let (mut at, mut octets) = (0, vec![0; piece]);
    loop {
        match stream.recv(&mut octets).unwrap() {
            Received::Bytes(count) => {
                let wrong = (0..count).find(|&i| octets[i] != octet(at + i));
                assert_eq!(wrong, None, "at {at}");
                at += count;
            }
            Received::Nothing => assert!(!stream.wait(Ready::READABLE, PATIENCE).is_empty()),
            Received::End => return at,
        }
    }
}

#[test]
fn both_directions_carry_octets_in_order_and_end_by_themselves() {
    let (near, far) = pair(&options(true, MIB), &options(true, 2 * MIB));
    thread::scope(|scope| {
        scope.spawn(|| {
            send(&near, 20 * MIB + 1, 100_001);
            near.finish();
            assert!(near.wait(Ready::SENT, PATIENCE).contains(Ready::SENT));
        });
        scope.spawn(|| assert_eq!(receive(&near, 70_000), 9 * MIB));
        scope.spawn(|| {
            assert_eq!(receive(&far, 300_000), 20 * MIB + 1);
            // This half has ended; the other one begins.
            send(&far, 9 * MIB, 65_536);
            far.finish();
        });
    });
    assert!(near.over().is_none() && far.over().is_none());
    assert!(matches!(near.send(b"more"), Err(LinkError::Closed)));
}

/// How many threads of streams may run on these processors and no others.
fn engines_run_on(list: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let matches = tasks.filter(|task| {
        let path = task.as_ref().unwrap().path();
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let status = read("status");
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        read("comm").trim() == "haul-stream" && allowed.is_some_and(|all| all.trim() == list)
    });
    matches.count()
}

#[test]
fn streams_run_on_the_processors_that_are_named() {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = status.split("Cpus_allowed_list:").nth(1).unwrap().trim();
    let first = own.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let mut options = options(true, MIB);
    options.engine_cpus = Some(first.parse().unwrap());
    let (near, far) = pair(&options, &options);
    assert!(engines_run_on(first) >= 2);
    send(&near, MIB, MIB);
    near.finish();
    assert_eq!(receive(&far, MIB), MIB);
    options.engine_cpus = Some("1023".parse().unwrap());
    let error = connect(LOCAL, &options).unwrap_err().to_string();
    assert!(
        error.contains("may not use all of the processors 1023"),
        "{error}"
    );
}

#[test]
fn a_full_window_holds_the_sender_back() {
    let (near, far) = pair(&options(true, MIB), &options(true, MIB));
    let octets: Vec<u8> = (0..4 * MIB).map(octet).collect();
    let mut sent = 0;
    // One ring and most of the other; the window may end within a packet, which is not sent then.
    while sent < 2 * MIB - MIB / 8 - 20_000 {
        assert!(!near.wait(Ready::WRITABLE, PATIENCE).is_empty());
        sent += near.send(&octets[sent..]).unwrap();
    }
    loop {
        match near.send(&octets[sent..]).unwrap() {
            0 => break,
            count => sent += count,
        }
    }
    assert!(sent <= 2 * MIB, "{sent} is more than both rings hold");
    assert_eq!(near.poll(Ready::SENT), Ready::empty());
    near.finish();
    assert_eq!(receive(&far, 10_000), sent);
    assert_eq!(near.wait(Ready::SENT, PATIENCE), Ready::SENT);
}

/// Waits by the descriptor, which may become readable for nothing, too.
fn watch(stream: &Stream, wanted: Ready) {
    while stream.poll(wanted).is_empty() {
        assert!(notify::wait_readable([stream.as_fd()], Some(60_000_000_000)).unwrap());
    }
}

#[test]
fn the_descriptor_becomes_readable_when_what_is_wanted_is_so() {
    let (near, far) = pair(&options(true, MIB), &options(true, MIB));
    assert_eq!(far.poll(Ready::WRITABLE), Ready::WRITABLE);
    let is_quiet = || {
        assert_eq!(far.poll(Ready::READABLE), Ready::empty());
        !notify::wait_readable([far.as_fd()], Some(1_000_000)).unwrap()
    };
    assert!((0..100).any(|_| is_quiet()));
    near.send(b"octets").unwrap();
    watch(&far, Ready::READABLE);
    let mut octets = [0; 4];
    assert_eq!(far.recv(&mut octets).unwrap(), Received::Bytes(4));
    assert_eq!(far.poll(Ready::READABLE), Ready::READABLE);
    assert_eq!(far.recv(&mut octets).unwrap(), Received::Bytes(2));
    assert_eq!(far.recv(&mut octets).unwrap(), Received::Nothing);
    assert_eq!(far.poll(Ready::READABLE), Ready::empty());
    near.finish();
    watch(&far, Ready::READABLE);
    assert_eq!(far.recv(&mut octets).unwrap(), Received::End);
}

#[test]
fn plain_peers_end_both_directions_at_once() {
    for (near, far) in [(true, false), (false, true)] {
        let (near, far) = pair(&options(near, MIB), &options(far, MIB));
        far.send(&[octet(0), octet(1)]).unwrap();
        assert_eq!(near.wait(Ready::READABLE, PATIENCE), Ready::READABLE);
        thread::scope(|scope| {
            scope.spawn(|| {
                send(&near, 3 * MIB + 7, 50_000);
                near.finish();
                assert_eq!(near.wait(Ready::SENT, PATIENCE), Ready::SENT);
            });
            assert_eq!(receive(&far, 30_000), 3 * MIB + 7);
        });
        assert!(near.wait(Ready::OVER, PATIENCE).contains(Ready::OVER));
        assert!(far.wait(Ready::OVER, PATIENCE).contains(Ready::OVER));
        assert!(far.send(b"more").is_err());
        // What had come before is still there.
        let mut octets = [0; 10];
        assert_eq!(near.recv(&mut octets).unwrap(), Received::Bytes(2));
        assert!(near.recv(&mut octets).is_err());
    }
}

#[test]
fn an_end_that_leaves_without_a_word_is_no_end_of_the_stream() {
    let (near, far) = pair(&options(true, MIB), &options(true, MIB));
    send(&near, 1_000, 1_000);
    assert_eq!(near.wait(Ready::SENT, PATIENCE), Ready::SENT);
    drop(near);
    assert!(far.wait(Ready::OVER, PATIENCE).contains(Ready::OVER));
    let mut octets = [0; 2_000];
    assert_eq!(far.recv(&mut octets).unwrap(), Received::Bytes(1_000));
    assert!(matches!(far.recv(&mut octets), Err(LinkError::PeerClosed)));
    assert!(matches!(far.send(b"more"), Err(LinkError::PeerClosed)));
}

#[test]
fn who_ends_last_may_leave_at_once_though_the_other_waits_to_hear_of_it() {
    for _ in 0..20 {
        let (near, far) = pair(&options(true, MIB), &options(true, MIB));
        far.finish();
        assert_eq!(receive(&near, 10), 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                send(&near, 100_000, 100_000);
                near.finish();
                assert!(near.wait(Ready::SENT, PATIENCE).contains(Ready::SENT));
            });
            scope.spawn(move || {
                assert_eq!(receive(&far, 10_000), 100_000);
                assert!(far.wait(Ready::SENT, PATIENCE).contains(Ready::SENT));
            });
        });
    }
}

#[test]
fn nobody_there_is_an_error_of_the_network() {
    let gone = Listener::bind(LOCAL, Options::default())
        .unwrap()
        .local_addr();
    let near = connect(gone, &Options::default()).unwrap();
    assert_eq!(near.wait(Ready::OPEN | Ready::OVER, PATIENCE), Ready::OVER);
    assert!(matches!(near.over(), Some(LinkError::Network(_))));
    assert!(near.send(b"octets").is_err());
    assert!(near.recv(&mut [0]).is_err());
}

/// Passes datagrams on between whoever speaks first and `far`; what comes back while `gone` says so
/// meets a closed port.
fn relay(near: SocketAddr, far: SocketAddr, gone: [Duration; 2], end: &AtomicBool) {
    let upstream = UdpSocket::bind(LOCAL).unwrap();
    upstream.connect(far).unwrap();
    upstream.set_nonblocking(true).unwrap();
    let open = || {
        let socket = UdpSocket::bind(near).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        socket
    };
    let (begun, mut peer, mut octets) = (Instant::now(), None, [0; 65_536]);
    let mut downstream = Some(open());
    while !end.load(Ordering::Relaxed) {
        let [from, until] = gone;
        match (begun.elapsed() >= from, begun.elapsed() >= until) {
            (true, false) => downstream = None,
            _ if downstream.is_none() => downstream = Some(open()),
            _ => {}
        }
        match &downstream {
            Some(socket) => {
                if let Ok((len, from)) = socket.recv_from(&mut octets) {
                    peer = Some(from);
                    let _ = upstream.send(&octets[..len]);
                }
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
        while let Ok(len) = upstream.recv(&mut octets) {
            if let (Some(socket), Some(peer)) = (&downstream, peer) {
                let _ = socket.send_to(&octets[..len], peer);
            }
        }
    }
}

/// A stream of which some seconds are sent, whose far port is closed meanwhile; both ends.
fn through_a_closed_port(gone: [Duration; 2], body: impl FnOnce(&Stream, &Stream)) {
    let mut paced = options(true, MIB);
    paced.udt.config.control = haul_cc::Algorithm::Fixed(haul_cc::Rate::from_bps(20_000_000));
    let mut listener = Listener::bind(LOCAL, options(true, MIB)).unwrap();
    let far = listener.local_addr();
    let relay_at = UdpSocket::bind(LOCAL).unwrap().local_addr().unwrap();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let relaying = scope.spawn(|| relay(relay_at, far, gone, &end));
        thread::sleep(Duration::from_millis(50));
        let near = connect(relay_at, &paced).unwrap();
        let far = loop {
            if let Some(far) = listener.accept().unwrap() {
                break far;
            }
            notify::wait_readable([listener.as_fd()], Some(10_000_000_000)).unwrap();
        };
        body(&near, &far);
        end.store(true, Ordering::Relaxed);
        relaying.join().unwrap();
    });
}

#[test]
fn a_port_that_is_closed_for_two_seconds_loses_packets_and_no_connection() {
    let gone = [Duration::from_secs(1), Duration::from_secs(3)];
    through_a_closed_port(gone, |near, far| {
        thread::scope(|scope| {
            scope.spawn(|| {
                send(near, 5 * MIB, 100_000);
                near.finish();
                assert!(near.wait(Ready::SENT, PATIENCE).contains(Ready::SENT));
            });
            assert_eq!(receive(far, 100_000), 5 * MIB);
        });
    });
}

#[test]
fn a_port_that_stays_closed_ends_the_connection() {
    let gone = [Duration::from_millis(500), Duration::from_secs(600)];
    through_a_closed_port(gone, |near, _far| {
        let octets = vec![0; MIB];
        while near.over().is_none() {
            let _ = near.send(&octets);
            let _ = near.wait(Ready::OVER, Some(Duration::from_millis(50)));
        }
        let over = near.over().unwrap().to_string();
        assert!(over.contains("Connection refused"), "{over}");
    });
}

fn protected(protection: &Protection) -> Options {
    let mut options = options(true, MIB);
    options.protect = Some(Arc::new(protection.clone()));
    options
}

fn shared_key() -> Protection {
    let key = PrivateKey::generate().unwrap();
    Protection::keys(key.clone(), vec![key.public()]).unwrap()
}

/// Passes datagrams on until `end`, loses every seventh, and returns whether `text` was in one.
fn lossy_relay(door: &UdpSocket, far: SocketAddr, text: &[u8], end: &AtomicBool) -> bool {
    let upstream = UdpSocket::bind(LOCAL).unwrap();
    upstream.connect(far).unwrap();
    for socket in [door, &upstream] {
        let wait = Some(Duration::from_millis(1));
        socket.set_read_timeout(wait).unwrap();
    }
    let (mut peer, mut count, mut octets, mut is_seen) = (None, 0, [0; 65_536], false);
    while !end.load(Ordering::Relaxed) {
        let mut lose = |datagram: &[u8]| {
            is_seen |= datagram.windows(text.len()).any(|window| window == text);
            count += 1;
            count % 7 == 0
        };
        if let Ok((len, from)) = door.recv_from(&mut octets) {
            peer = Some(from);
            if !lose(&octets[..len]) {
                let _ = upstream.send(&octets[..len]);
            }
        }
        while let (Ok(len), Some(peer)) = (upstream.recv(&mut octets), peer) {
            if !lose(&octets[..len]) {
                let _ = door.send_to(&octets[..len], peer);
            }
        }
    }
    is_seen
}

#[test]
fn a_protected_stream_opens_on_a_lossy_path_and_shows_nothing() {
    let options = protected(&shared_key());
    let plain = self::options(true, MIB);
    for (options, shows) in [(plain, true), (options, false)] {
        let mut listener = Listener::bind(LOCAL, options.clone()).unwrap();
        let door = UdpSocket::bind(LOCAL).unwrap();
        let (address, end) = (door.local_addr().unwrap(), AtomicBool::new(false));
        let far = listener.local_addr();
        let text: Vec<u8> = (500..540).map(octet).collect();
        thread::scope(|scope| {
            let relaying = scope.spawn(|| lossy_relay(&door, far, &text, &end));
            let near = connect(address, &options).unwrap();
            let far = listener.wait(PATIENCE).unwrap().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    send(&near, 100_000, 10_000);
                    near.finish();
                    assert_eq!(receive(&near, 10_000), 50_000);
                });
                send(&far, 50_000, 10_000);
                far.finish();
                assert_eq!(receive(&far, 10_000), 100_000);
            });
            end.store(true, Ordering::Relaxed);
            assert_eq!(relaying.join().unwrap(), shows);
        });
    }
}

#[test]
fn a_protected_stream_is_for_admitted_peers_only() {
    let [own, other] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let admits = Protection::keys(own.clone(), vec![own.public()]).unwrap();
    let stranger = Protection::keys(other.clone(), vec![own.public()]).unwrap();
    let wary = Protection::keys(own, vec![other.public()]).unwrap();
    let mut listener = Listener::bind(LOCAL, protected(&admits)).unwrap();
    let refused = [
        (protected(&stranger), "the peer refuses: its key is not one"),
        (protected(&wary), "not trusted"),
        // It is no stream: a protected one begins with messages.
        (options(true, MIB), "refused"),
    ];
    for (options, line) in refused {
        let near = connect(listener.local_addr(), &options).unwrap();
        while near.poll(Ready::OVER).is_empty() {
            let wait = Some(Duration::from_millis(20));
            assert!(listener.wait(wait).unwrap().is_none(), "{line}");
        }
        let over = near.over().unwrap().to_string();
        assert!(over.contains(line), "{over}");
        assert!(near.poll(Ready::OPEN).is_empty());
    }
    // The client that does not trust the server has told it so.
    assert_eq!(admits.refused(), 2);
    let near = connect(listener.local_addr(), &protected(&admits)).unwrap();
    let far = listener.wait(PATIENCE).unwrap().unwrap();
    near.send(b"octets").unwrap();
    assert_eq!(far.wait(Ready::READABLE, PATIENCE), Ready::READABLE);
    // The other way about: a listener that protects nothing.
    let mut listener = Listener::bind(LOCAL, options(true, MIB)).unwrap();
    let near = connect(listener.local_addr(), &protected(&admits)).unwrap();
    while near.poll(Ready::OVER).is_empty() {
        let wait = Some(Duration::from_millis(20));
        assert!(listener.wait(wait).unwrap().is_none());
    }
}

/// Two ports that were free a moment ago.
fn free_ports() -> [SocketAddr; 2] {
    let sockets = [(); 2].map(|()| UdpSocket::bind(LOCAL).unwrap());
    sockets.map(|socket| socket.local_addr().unwrap())
}

#[test]
fn two_that_connect_to_each_other_meet_whoever_begins_first() {
    for (placement, head_start_ms) in [(true, 0), (true, 700), (false, 300)] {
        let [here, there] = free_ports();
        let options = options(placement, MIB);
        let near = rendezvous(here, there, &options).unwrap();
        // Nobody is there, and the kernel says so.
        thread::sleep(Duration::from_millis(head_start_ms));
        let far = rendezvous(there, here, &options).unwrap();
        let since = Instant::now();
        assert_eq!(near.wait(Ready::OPEN, PATIENCE), Ready::OPEN);
        assert_eq!(far.wait(Ready::OPEN, PATIENCE), Ready::OPEN);
        println!("{head_start_ms} ms: {:?}", since.elapsed());
        send(&near, 100_000, 10_000);
        let mut got = vec![0; 100_000];
        let mut filled = 0;
        while filled < got.len() {
            match far.recv(&mut got[filled..]).unwrap() {
                Received::Bytes(count) => filled += count,
                _ => assert!(!far.wait(Ready::READABLE, PATIENCE).is_empty()),
            }
        }
        assert!(got.iter().copied().eq((0..got.len()).map(octet)));
    }
}
