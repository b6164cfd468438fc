//! Data channels on which nothing is acknowledged any more while the control connection works.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Ended, MIB, Place, haul, make_file, read_file, text};

/// Forwards TCP and UDP from one port to a server on another, until the process ends. Once `after`
/// bytes of UDP payload have passed, drops each datagram that is longer than `longest`.
fn relay(server: u16, after: usize, longest: usize) -> u16 {
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            break (tcp, Arc::new(udp));
        }
    };
    let port = tcp.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in tcp.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || forward(client, server));
            std::thread::spawn(move || forward(back.0, back.1));
        }
    });
    std::thread::spawn(move || relay_datagrams(&udp, server, after, longest));
    port
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Each client port gets a socket of its own towards the server, as NAT does it.
fn relay_datagrams(udp: &Arc<UdpSocket>, server: u16, after: usize, longest: usize) {
    let passed = Arc::new(AtomicUsize::new(0));
    let may_pass =
        move |len: usize| passed.fetch_add(len, Ordering::SeqCst) < after || len <= longest;
    let mut flows: Vec<(SocketAddr, Arc<UdpSocket>)> = Vec::new();
    let mut buffer = [0; 65_536];
    while let Ok((len, client)) = udp.recv_from(&mut buffer) {
        let known = flows.iter().find(|(address, _)| *address == client);
        let outer = known.map(|(_, socket)| Arc::clone(socket));
        let outer = outer.unwrap_or_else(|| {
            let outer = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
            outer.connect(("127.0.0.1", server)).unwrap();
            flows.push((client, Arc::clone(&outer)));
            let (inner, from, may_pass) = (Arc::clone(udp), Arc::clone(&outer), may_pass.clone());
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(len) = from.recv(&mut buffer) {
                    if may_pass(len) {
                        let _ = inner.send_to(&buffer[..len], client);
                    }
                }
            });
            outer
        });
        if may_pass(len) {
            let _ = outer.send(&buffer[..len]);
        }
    }
}

const LIMITS: [&str; 4] = ["--peer-timeout", "2s", "--give-up-after", "4s"];

/// Ends soon after both limits, with a line.
fn ends_in_time(from: &str, to: &str, command: &str) {
    let begun = Instant::now();
    let ended: Ended = haul(
        [command, from, to, "--rate=50Mbit", "--channel=udt"]
            .into_iter()
            .chain(LIMITS),
    );
    let took = begun.elapsed();
    println!("{command}: {took:?}: {}", ended.stderr);
    ended.failed_somehow("");
    assert!(took > Duration::from_secs(2), "{took:?}");
    // 4 + 2 + 1 s; another second for a loaded machine.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

fn send_through(longest: usize) {
    let place = Place::new();
    let server = place.serve();
    let port = relay(server.port, 3 * MIB, longest);
    make_file(&place.client("a"), 16 * MIB, 1);
    let to = format!("haul://127.0.0.1:{port}/");
    ends_in_time(&text(&place.client("a")), &to, "send");
}

#[test]
fn a_send_whose_datagrams_all_vanish_ends_with_the_limits() {
    send_through(0);
}

#[test]
fn a_send_whose_data_vanishes_ends_with_the_limits_though_small_packets_pass() {
    send_through(600);
}

fn get_through(longest: usize) {
    let place = Place::new();
    let server = place.serve();
    let port = relay(server.port, 3 * MIB, longest);
    make_file(&place.server("a"), 16 * MIB, 1);
    let from = format!("haul://127.0.0.1:{port}/a");
    ends_in_time(&from, &text(&place.client("")), "get");
}

#[test]
fn a_get_whose_datagrams_all_vanish_ends_with_the_limits() {
    get_through(0);
}

#[test]
fn a_get_whose_data_vanishes_ends_with_the_limits_though_small_packets_pass() {
    get_through(600);
}

#[test]
fn a_path_without_udp_carries_the_data_by_tcp_unless_udt_is_asked_for() {
    let place = Place::new();
    let server = place.serve();
    let port = relay(server.port, 0, 0);
    let content = make_file(&place.client("a"), MIB, 1);
    let (from, to) = (
        text(&place.client("a")),
        format!("haul://127.0.0.1:{port}/"),
    );
    let send = ["send", "--json", "--connect-timeout=1s", &from, &to];
    let only_udt = ["--channel=udt", "--give-up-after=0"];
    haul(send.into_iter().chain(only_udt)).failed(5, "cannot open a UDP channel");
    let ended = haul(send).ok();
    assert_eq!(ended.json()["channel"], "tcp", "{}", ended.stdout);
    assert!(
        ended.stderr.contains("the data goes by TCP"),
        "{}",
        ended.stderr
    );
    assert!(read_file(&place.server("a")) == content);
}
