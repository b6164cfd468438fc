//! Failures on the path, and their effect on applications.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::gate::Gate;
use crate::common::{
    KINDS, connect, echo_server, entry_gateway, exchange, exchange_past, exit_gateway, pattern,
    start, wait_until,
};

#[test]
fn a_session_whose_control_connection_breaks_goes_on_where_it_was() {
    let kinds = KINDS
        .into_iter()
        .flat_map(|kind| ["pull", "push"].map(|mode| (kind, mode)));
    for (kind, mode) in kinds {
        let (far, _far_lines) = exit_gateway("");
        let (gate, via) = Gate::before(far.listen_addr().unwrap());
        let (near, lines) = entry_gateway(
            &[via],
            echo_server(),
            &format!("channels = ['{kind}']\nmode = '{mode}'"),
        );
        let sent = pattern(24 << 20, 5);
        // Behind the first there is more than what has come to this side already.
        let marks = [2 << 20, 8 << 20, 14 << 20];
        let stream = connect(near.listener_addrs()[0]);
        let got = exchange_past(&marks, stream, sent.clone(), || gate.cut());
        assert!(got == sent, "{kind} {mode}: {:?}", lines.all());
        assert!(
            lines.contain("goes on"),
            "it was over before it was cut: {:?}",
            lines.all()
        );
    }
}

#[test]
fn a_reader_that_does_not_read_delays_no_other() {
    let (far, _) = exit_gateway("");
    let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), "");
    let listener = near.listener_addrs()[0];
    let mut stalled = connect(listener);
    stalled
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let piece = vec![1; 64 << 10];
    let mut taken = 0;
    while let Ok(count) = stalled.write(&piece) {
        taken += count;
        assert!(taken < 1 << 30, "nobody reads, and all of it is taken");
    }
    let sent = pattern(8 << 20, 9);
    assert!(exchange(connect(listener), sent.clone()) == sent);
    let left = near.sessions()[0].segments[0].clone();
    assert!(
        left.arena_used <= left.arena_size && left.ring_used <= left.ring_size,
        "{left:?}"
    );
}

/// More than may wait at a port for control or data connections.
const HALF_OPEN: usize = 100;
/// More than the page serves at a time.
const HALF_OPEN_PAGE: usize = 20;
/// Most rounds of junk.
const ROUNDS: u64 = 400;

/// Attacks on a port: junk, connections that end at once, and connections that stay and send
/// nothing, or only the beginning of a message.
fn pester(to: SocketAddr, round: u64, half_open: &mut VecDeque<TcpStream>) {
    let soon = Duration::from_secs(1);
    let connect = || TcpStream::connect_timeout(&to, soon);
    if let Ok(mut junk) = connect() {
        let _ = junk.write_all(&pattern(500, round));
    }
    drop(connect());
    if let Ok(mut quiet) = connect() {
        // The beginning of a control message of a version that there is, of SOCKS, of HTTP, of MPA,
        // of TLS.
        let beginnings: [&[u8]; 6] = [
            b"",
            &[2, 0, 0, 1],
            &[5],
            b"CONNECT ",
            b"MPA ID",
            &[22, 3, 1],
        ];
        let _ = quiet.write_all(beginnings[usize::try_from(round).unwrap() % beginnings.len()]);
        half_open.push_back(quiet);
    }
}

/// Junk by datagrams, some of which begins as UDT's and as our own datagrams do.
fn pester_by_datagrams(socket: &UdpSocket, to: SocketAddr, round: u64) {
    for len in [1, 16, 64, 1_400] {
        let mut junk = pattern(len, round);
        let _ = socket.send_to(&junk, to);
        // A handshake of UDT, of which nothing else is right.
        for (at, octet) in [0x80, 0, 0, 0].into_iter().enumerate().take(len) {
            junk[at] = octet;
        }
        let _ = socket.send_to(&junk, to);
    }
}

/// Pesters all of these until it is dropped.
struct Attack {
    is_over: Arc<AtomicBool>,
    /// At each port there are as many half-open connections as are to be.
    is_full: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// Each port with its expected half-open connections: none without a TCP listener.
    fn new(ports: Vec<(SocketAddr, usize)>) -> Self {
        let (is_over, is_full) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (over, full) = (Arc::clone(&is_over), Arc::clone(&is_full));
        let attack = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut half_open: Vec<VecDeque<TcpStream>> = Vec::new();
            half_open.resize_with(ports.len(), VecDeque::new);
            for round in 0..ROUNDS {
                for ((port, most), half_open) in ports.iter().zip(&mut half_open) {
                    // Connections that the page does not accept would fill the kernel's queue; at
                    // the control port, the first, none may end by itself.
                    let stays = *most == HALF_OPEN_PAGE || *port == ports[0].0;
                    if !stays || half_open.len() < *most {
                        pester(*port, round, half_open);
                    }
                    // The next takes the place of the first.
                    while half_open.len() > *most {
                        half_open.pop_front();
                    }
                    pester_by_datagrams(&socket, *port, round);
                }
                let mut all = ports.iter().zip(&half_open);
                if all.all(|((_, most), half_open)| half_open.len() == *most) {
                    full.store(true, Ordering::Release);
                }
                if over.load(Ordering::Acquire) {
                    return;
                }
            }
            // Half-open connections stay so until the end.
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self {
            is_over,
            is_full,
            thread: Some(attack),
        }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A listener of each kind that there can be without rights or devices.
fn listeners(to: SocketAddr) -> String {
    ["forward", "socks5", "http", "transparent"]
        .map(|kind| {
            let to = match kind {
                "forward" => format!("to = '{to}'\n"),
                _ => String::new(),
            };
            format!("[[listener]]\nkind = '{kind}'\nlisten = '127.0.0.1:0'\n{to}")
        })
        .concat()
}

#[test]
fn junk_and_half_open_connections_at_every_port_disturb_nothing() {
    let admin = "[admin]\nlisten = '127.0.0.1:0'\n";
    let (far, far_lines) = exit_gateway(admin);
    let (gate, gated) = Gate::before(far.listen_addr().unwrap());
    let server = echo_server();
    // A client of a forwarding listener gets a connection, and the half-open ones are to be of
    // another session.
    let (forwards, other) = (listeners(server), echo_server());
    let via = far.listen_addr().unwrap();
    let (near, near_lines) = start(&format!(
        "name = 'entry'\nanonymous = true\n{admin}\
         [[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{other}'\n{forwards}\
         [[route]]\nto = ['{other}']\nvia = ['{gated}']\nring = '4MiB'\nchannels = ['iwarp/udt']\n\
         [[route]]\nto = ['*']\nvia = ['{via}']\nring = '4MiB'\nchannels = ['tcp']\n"
    ));
    let mut ports = vec![(far.listen_addr().unwrap(), HALF_OPEN)];
    for (kind, at) in far.channel_addrs() {
        let is_tcp = ["tcp", "verbs"].contains(&&*kind.to_string());
        ports.push((at, if is_tcp { HALF_OPEN } else { 0 }));
    }
    let listeners = near.listener_addrs().into_iter().skip(1);
    ports.extend(listeners.map(|listener| (listener, HALF_OPEN)));
    let pages = [&far, &near].map(|gateway| (gateway.admin_addr().unwrap(), HALF_OPEN_PAGE));
    ports.extend(pages);
    assert_eq!(ports.len(), 1 + KINDS.len() + 4 + 2, "a port of each kind");

    let sent = pattern(24 << 20, 3);
    let (listener, octets) = (near.listener_addrs()[0], sent.clone());
    let (done, is_running) = std::sync::mpsc::channel::<()>();
    let transfer = std::thread::spawn(move || {
        let mut stream = connect(listener);
        let half = octets.len() / 2;
        let first = exchange_part(&mut stream, &octets[..half]);
        // The rest goes when all else has happened.
        let _ = is_running.recv();
        [first, exchange(stream, octets[half..].to_vec())].concat()
    });
    let attack = Attack::new(ports);
    wait_until("more half-open ones than the limit", || {
        attack.is_full.load(Ordering::Acquire)
    });
    // A suspended session is resumed, and bytes go through it.
    let begin = Instant::now();
    gate.cut();
    near_lines.wait_for(&["goes on"]);
    // Silent connections may stay for ten seconds, and the test does not wait for their end.
    let taken = begin.elapsed();
    assert!(taken < Duration::from_secs(6), "{taken:?}");
    let small = pattern(1 << 20, 4);
    assert!(exchange(connect(listener), small.clone()) == small);
    // New ones are opened, with channels of every kind that others can be in the way of.
    for kind in KINDS {
        let hop = [far.listen_addr().unwrap()];
        let (other, lines) = entry_gateway(&hop, server, &format!("channels = ['{kind}']"));
        let said = exchange(connect(other.listener_addrs()[0]), small.clone());
        assert!(said == small, "{kind}: {:?}", lines.all());
        assert!(
            lines.contain(&format!(": data channel {kind} (")),
            "{kind}: {:?}",
            lines.all()
        );
    }
    drop(done);
    let got = transfer.join().unwrap();
    drop(attack);
    assert!(got == sent, "{:?} {:?}", near_lines.all(), far_lines.all());
}

/// Sends bytes and takes as many back.
fn exchange_part(stream: &mut TcpStream, octets: &[u8]) -> Vec<u8> {
    let mut got = vec![0; octets.len()];
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(octets).unwrap());
        stream.read_exact(&mut got).unwrap();
    });
    got
}
