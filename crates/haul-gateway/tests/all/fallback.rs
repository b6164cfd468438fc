//! Data channels that cannot be opened, or fail in the middle: fallback to the next kind, with the
//! same bytes.
#![allow(
    clippy::allow_attributes,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "what stands between gateways here is a program of the test's; what is not there where it must be fails it"
)]

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::{self, connect, echo_server, entry_gateway, exchange, pattern, start};
use haul_gateway::config::ChannelKind;
use haul_gateway::{Cause, Gateway};
use haul_io::netns::NetNs;
use haul_io::netns::child::Inside;

/// A gateway at which sessions end, with the listeners of `channels`.
fn exit(channels: &str) -> (Gateway, common::Lines) {
    start(&format!(
        "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '4MiB'\n{channels}"
    ))
}

fn channel(kind: &str, public: Option<SocketAddr>) -> String {
    let public = public.map_or_else(String::new, |at| format!("public = '{at}'\n"));
    format!("[[channel]]\nkind = '{kind}'\nlisten = '127.0.0.1:0'\n{public}")
}

#[test]
fn a_kind_that_cannot_be_had_gives_its_turn_to_the_next() {
    let pairs = [
        ("tcp", "iwarp/udt"),
        ("iwarp/udt", "verbs"),
        ("verbs", "tcp"),
    ];
    for (first, second) in pairs {
        let nobody = "127.0.0.1:1".parse().unwrap();
        let (far, _) = exit(&(channel(first, Some(nobody)) + &channel(second, None)));
        let route = format!("channels = ['{first}', '{second}']\nstreams = 3");
        let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), &route);
        let sent = pattern(1 << 20, 1);
        assert!(exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent);
        lines.wait_for(&[&format!(": data channel {second} (")]);
        let said = lines.all();
        let gave_up = format!("no data channel {first}: ");
        let gave_up: Vec<_> = said.iter().filter(|line| line.contains(&gave_up)).collect();
        assert_eq!(gave_up.len(), 1, "{said:?}");
        assert!(gave_up[0].ends_with(&format!("; trying {second}")));
    }
}

#[test]
fn a_kind_without_an_answer_falls_back_to_the_next_and_a_small_request_does_not_wait() {
    // Packets dropped by a firewall have the same effect.
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = [
        ("verbs", tcp.local_addr()),
        ("tcp", tcp.local_addr()),
        ("iwarp/udt", udp.local_addr()),
    ];
    let last = "verbs";
    std::thread::scope(|scope| {
        for (kind, at) in silent {
            scope.spawn(move || {
                let is_last = kind == last;
                let next = if is_last { "tcp" } else { last };
                let (far, _) = exit(&(channel(kind, Some(at.unwrap())) + &channel(next, None)));
                let route = format!("channels = ['{kind}', '{next}']");
                let hop = [far.listen_addr().unwrap()];
                let (near, lines) = entry_gateway(&hop, echo_server(), &route);
                let sent = pattern(1 << 10, 1);
                assert!(exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent);
                // More than goes with announcements at a time, and than the first credit.
                let sent = pattern(60 << 10, 2);
                assert!(exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent);
                assert!(!lines.contain("no data channel"), "{:?}", lines.all());
                // iWARP has patience of its own.
                let said = ["nobody has answered", "the peer did not answer in time"]
                    .map(|why| format!("{why}; trying {next}"));
                lines.wait_for(&said.each_ref().map(String::as_str));
                lines.wait_for(&[&format!(": data channel {next} (")]);
            });
        }
    });
}

#[test]
fn if_no_kind_works_each_is_reported_with_its_reason() {
    let nobody = Some("127.0.0.1:1".parse().unwrap());
    let (far, _) = exit(&(channel("tcp", nobody) + &channel("verbs", nobody)));
    let route = "channels = ['tcp', 'verbs', 'iwarp/udt']";
    let (near, _) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), route);
    let to = "127.0.0.1:9".parse().unwrap();
    let patience = Duration::from_secs(60);
    let refusal = near.open_session(&to, patience, || true).unwrap_err();
    assert_eq!(refusal.cause, Cause::Channel);
    for kind in ["(tcp: ", "; verbs: ", "; iwarp/udt: "] {
        assert!(refusal.text.contains(kind), "{refusal}");
    }
}

/// Forwards bytes to `to`, and cuts every connection after as many as `cut` returns for it. Returns
/// its address.
fn cutter(to: Arc<OnceLock<SocketAddr>>, cut: fn(usize) -> usize) -> SocketAddr {
    let count = AtomicUsize::new(0);
    common::serve(move |near| {
        let left = Arc::new(AtomicUsize::new(cut(count.fetch_add(1, Ordering::SeqCst))));
        let far = TcpStream::connect(to.get().unwrap()).unwrap();
        let ways = [
            (near.try_clone().unwrap(), far.try_clone().unwrap()),
            (far, near),
        ];
        for (from, to) in ways {
            let left = Arc::clone(&left);
            std::thread::spawn(move || pass(from, to, &left));
        }
    })
}

fn pass(mut from: TcpStream, mut to: TcpStream, left: &AtomicUsize) {
    let mut octets = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut octets) {
        let before = left.fetch_sub(count.min(left.load(Ordering::SeqCst)), Ordering::SeqCst);
        if before <= count || to.write_all(&octets[..count]).is_err() {
            break;
        }
    }
    for stream in [&from, &to] {
        // The other way may have been quicker.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
fn a_transfer_goes_on_where_its_channel_was_cut() {
    for mode in ["pull", "push"] {
        let to = Arc::default();
        // The first three are those of the first attempt.
        let cutter = cutter(Arc::clone(&to), |number| match number {
            0..3 => 700_000,
            _ => usize::MAX,
        });
        let (far, _) = exit(&channel("tcp", Some(cutter)));
        to.set(far.channel_addrs()[0].1).unwrap();
        let route = format!("channels = ['tcp']\nmode = '{mode}'\nstreams = 3");
        let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), &route);
        let sent = pattern(8 << 20, 2);
        assert!(
            exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent,
            "{mode}: {:?}",
            lines.all()
        );
        assert!(lines.contain("the session goes on"), "{:?}", lines.all());
    }
}

/// Bytes that pass through tunnels before they are cut, and how often they are.
const CUT_AFTER: usize = 4 << 20;
const CUTS: usize = 2;

/// How often tunnels through which so many bytes have passed have been cut.
fn cuts(passed: &AtomicUsize) -> usize {
    (passed.load(Ordering::SeqCst) / CUT_AFTER).min(CUTS)
}

/// Forwards the datagrams of one port to another. After a cut the port is closed until `noticed`
/// counts so many cuts, because the kernel reports the closed port to senders. An end whose packets
/// are all lost sends when its timer expires, and that may be longer than any fixed time.
/// Afterwards all come from other ports. It is there as long as the test.
fn tunnel(
    from: SocketAddr,
    to: SocketAddr,
    passed: Arc<AtomicUsize>,
    noticed: impl Fn(usize) -> bool + Send + 'static,
) {
    std::thread::spawn(move || {
        loop {
            pass_datagrams(from, to, &passed);
            while !noticed(cuts(&passed)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

/// Until the next cut.
fn pass_datagrams(from: SocketAddr, to: SocketAddr, passed: &AtomicUsize) {
    let (front, before) = (socket(from), cuts(passed));
    let mut behind: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    std::thread::scope(|scope| {
        let pass = |from: &UdpSocket, send: &mut dyn FnMut(&[u8], SocketAddr)| {
            let mut octets = vec![0; 65_536];
            while cuts(passed) == before {
                // Nothing for a while, or what an earlier one was answered.
                let Ok((len, sender)) = from.recv_from(&mut octets) else {
                    continue;
                };
                passed.fetch_add(len, Ordering::SeqCst);
                send(&octets[..len], sender);
            }
        };
        pass(&front, &mut |octets, client| {
            let back = behind.entry(client).or_insert_with(|| {
                let back = socket("127.0.0.1:0".parse().unwrap());
                back.connect(to).unwrap();
                let (own, front) = (back.try_clone().unwrap(), &front);
                scope.spawn(move || {
                    pass(&own, &mut |octets, _| drop(front.send_to(octets, client)));
                });
                back
            });
            // Lost data is retransmitted.
            let _ = back.send(octets);
        });
    });
}

fn socket(at: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    let soon = Duration::from_millis(20);
    socket.set_read_timeout(Some(soon)).unwrap();
    socket
}

/// Runs in a network namespace of its own, whose ports no other process takes; returns whether one
/// exists.
fn in_own_network(test: impl FnOnce() + Send) -> bool {
    let Ok(network) = NetNs::new() else {
        println!("SKIPPED: no right to make a network namespace");
        return false;
    };
    let mut command = Command::new("ip");
    command.args(["link", "set", "lo", "up"]);
    let inside = Inside {
        network: Some(network.as_fd()),
        ..Inside::default()
    };
    let is_up = inside.on(&mut command).is_ok() && command.status().is_ok_and(|up| up.success());
    if !is_up {
        println!("SKIPPED: no ip(8)");
        return false;
    }
    network.run(test).unwrap();
    true
}

#[test]
fn a_transfer_over_datagrams_goes_on_where_its_channel_was_cut() {
    let kind = "iwarp/udt";
    for mode in ["pull", "push"] {
        let has_run = in_own_network(|| {
            let passed = Arc::new(AtomicUsize::new(0));
            // Channels that take the place of others may have ports of their own.
            let ends: Arc<OnceLock<[common::Lines; 2]>> = Arc::default();
            for further in 0..4 {
                let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port + further));
                let ends = Arc::clone(&ends);
                // The end that notices closes the control connection.
                tunnel(local(8000), local(7000), Arc::clone(&passed), move |cuts| {
                    let all = ends
                        .get()
                        .into_iter()
                        .flatten()
                        .flat_map(common::Lines::all);
                    let closed = all.filter(|line| line.contains("closed its control connection"));
                    closed.count() >= cuts
                });
            }
            let listen = "listen = '127.0.0.1:7000'\npublic = '127.0.0.1:8000'";
            let (far, far_lines) = exit(&format!("[[channel]]\nkind = '{kind}'\n{listen}\n"));
            let route = format!("channels = ['{kind}']\nmode = '{mode}'");
            let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), &route);
            ends.set([lines.clone(), far_lines.clone()]).ok().unwrap();
            let sent = pattern(8 << 20, 2);
            let got = exchange(connect(near.listener_addrs()[0]), sent.clone());
            let said = (lines.all(), far_lines.all());
            assert!(got == sent, "{kind} {mode}: {said:?}");
            assert_eq!(cuts(&passed), CUTS);
            assert!(lines.contain("the session goes on"), "{said:?}");
        });
        if !has_run {
            return;
        }
    }
}

#[test]
fn a_kind_that_is_cut_again_and_again_gives_its_turn_to_the_next() {
    let to = Arc::default();
    let cutter = cutter(Arc::clone(&to), |_| 300_000);
    let (far, _) = exit(&(channel("tcp", Some(cutter)) + &channel("iwarp/udt", None)));
    let tcp = far.channel_addrs();
    let tcp = tcp.iter().find(|(kind, _)| *kind == ChannelKind::Tcp);
    to.set(tcp.unwrap().1).unwrap();
    let route = "channels = ['tcp', 'iwarp/udt']";
    let (near, lines) = entry_gateway(&[far.listen_addr().unwrap()], echo_server(), route);
    let sent = pattern(8 << 20, 3);
    assert!(
        exchange(connect(near.listener_addrs()[0]), sent.clone()) == sent,
        "{:?}",
        lines.all()
    );
    let why = "no data channel tcp: it was lost 3 times; trying iwarp/udt";
    assert!(lines.contain(why), "{:?}", lines.all());
}
