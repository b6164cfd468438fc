//! The path between two gateways silently drops all packets for a while: its effect on their
//! applications.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets, and the path is the kernel's"
)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{KINDS, Lines, echo_server, pattern, start};
use haul_gateway::Gateway;
use haul_io::netns::NetNs;
use haul_io::netns::child::Inside;

/// Two hosts and a router between them that can drop everything. Dropping this removes all of it.
struct Path {
    near: NetNs,
    router: NetNs,
    far: NetNs,
}

const NEAR: &str = "10.91.1.1";
const FAR: &str = "10.91.2.1";

impl Path {
    /// None where the host does not provide this.
    fn new() -> Option<Self> {
        let new = || NetNs::new().ok();
        let (near, router, far) = (new()?, new()?, new()?);
        for (host, own, to) in [(&near, NEAR, "10.91.1.2"), (&far, FAR, "10.91.2.2")] {
            let there = format!("/proc/{}/fd/{}", std::process::id(), host.raw_fd());
            let name = format!("to{}", own.replace('.', ""));
            let link = format!("link add name {name} type veth peer name out netns {there}");
            let steps = [
                (&router, link),
                (&router, format!("addr add {to}/24 dev {name}")),
                (&router, format!("link set {name} up")),
                (host, "link set lo up".to_owned()),
                (host, format!("addr add {own}/24 dev out")),
                (host, "link set out up".to_owned()),
                (host, format!("route add default via {to}")),
            ];
            for (network, step) in steps {
                ip(network, &step)?;
            }
            // Else a program that reads nothing may have all in its socket, 32 MiB by the kernel's
            // default, before nothing passes any more.
            let limit = || std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 1048576");
            host.run(limit).ok()?.ok()?;
        }
        let path = Self { near, router, far };
        path.pass(true)?;
        Some(path)
    }

    /// Sets whether packets are forwarded from now on. Senders receive no error.
    fn pass(&self, passes: bool) -> Option<()> {
        let digit = if passes { "1" } else { "0" };
        let write = || std::fs::write("/proc/sys/net/ipv4/ip_forward", digit);
        self.router.run(write).ok()?.ok()
    }
}

fn ip(network: &NetNs, step: &str) -> Option<()> {
    let mut command = Command::new("ip");
    command.args(step.split(' '));
    let inside = Inside {
        network: Some(network.as_fd()),
        ..Inside::default()
    };
    inside.on(&mut command).ok()?;
    command
        .status()
        .is_ok_and(|status| status.success())
        .then_some(())
}

fn exit_gateway(keepalive: u32) -> (Gateway, Lines) {
    let mut text = format!(
        "name = 'exit'\nlisten = '{FAR}:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '4MiB'\nkeepalive = {keepalive}\n"
    );
    for kind in KINDS {
        text += &format!("[[channel]]\nkind = '{kind}'\nlisten = '{FAR}:0'\n");
    }
    start(&text)
}

fn entry_gateway(kind: &str, via: SocketAddr, to: SocketAddr) -> (Gateway, Lines) {
    start(&format!(
        "name = 'entry'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
         [[route]]\nto = ['*']\nvia = ['{via}']\nring = '4MiB'\nchannels = ['{kind}']\n"
    ))
}

const OCTETS: usize = 24 << 20;
/// Bytes that have come back when nothing passes any more: far less than all that is between the
/// ends is missing then.
const MARK: usize = 2 << 20;

/// A program that sends and gets back, and stops for a moment at [`MARK`]: whether it got what it
/// had sent.
fn program(listener: SocketAddr, got: &AtomicUsize, barrier: &Barrier, patience: Duration) -> bool {
    let stream = TcpStream::connect(listener).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    let sent = pattern(OCTETS, 7);
    let mut writer = stream.try_clone().unwrap();
    let mut reader = stream;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut octets = vec![0; 64 << 10];
        let (mut at, mut is_same, mut is_marked) = (0, true, false);
        loop {
            let count = reader.read(&mut octets).unwrap();
            if count == 0 {
                return is_same && at == OCTETS;
            }
            is_same &= sent.get(at..at + count) == Some(&octets[..count]);
            at += count;
            got.store(at, Ordering::SeqCst);
            if at >= MARK && !is_marked {
                is_marked = true;
                // All are there; nothing passes any more.
                barrier.wait();
                barrier.wait();
            }
        }
    })
}

/// Runs applications over each kind of channel, with a path failure of `blackout` meanwhile and
/// keep-alives every `keepalive` seconds. Returns the log lines of the near gateways, by kind.
fn black_out(blackout: Duration, keepalive: u32) -> Option<Vec<(&'static str, Lines)>> {
    let Some(path) = Path::new() else {
        println!("SKIPPED: no right to make network namespaces, or no ip(8)");
        return None;
    };
    let (far, far_lines, server) = path
        .far
        .run(|| {
            let (far, lines) = exit_gateway(keepalive);
            (far, lines, echo_server())
        })
        .unwrap();
    let via = far.listen_addr().unwrap();
    let entries = path.near.run(|| {
        let entry = |kind| (kind, entry_gateway(kind, via, server));
        KINDS.map(entry)
    });
    let entries = entries.unwrap();
    let got = KINDS.map(|_| AtomicUsize::new(0));
    let all = || got.each_ref().map(|got| got.load(Ordering::SeqCst));
    let barrier = Barrier::new(KINDS.len() + 1);
    let patience = blackout + Duration::from_secs(30);
    std::thread::scope(|scope| {
        let programs: Vec<_> = entries
            .iter()
            .zip(&got)
            .map(|((kind, (near, _)), got)| {
                let (listener, near, barrier) = (near.listener_addrs()[0], &path.near, &barrier);
                let work = move || {
                    let is_same = near.run(|| program(listener, got, barrier, patience));
                    (is_same.unwrap(), Instant::now())
                };
                (*kind, scope.spawn(work))
            })
            .collect();
        barrier.wait();
        path.pass(false).unwrap();
        let since = Instant::now();
        barrier.wait();
        // Data that had arrived at this side still reaches the applications.
        std::thread::sleep(blackout / 2);
        let before = all();
        std::thread::sleep(blackout.saturating_sub(since.elapsed()));
        assert_eq!(before, all(), "something has passed");
        assert!(before.iter().all(|got| *got < OCTETS));
        path.pass(true).unwrap();
        let since = Instant::now();
        for (kind, program) in programs {
            let (is_same, ended) = program.join().unwrap();
            let after = ended.duration_since(since).as_secs_f64();
            println!("{kind}: over {after:.1} s after a blackout of {blackout:?}");
            assert!(is_same, "{kind}: {:?}", far_lines.all());
        }
    });
    let lines = entries
        .into_iter()
        .map(|(kind, (_, lines))| (kind, lines))
        .collect();
    Some(lines)
}

#[test]
fn two_seconds_without_a_path_are_waited_for() {
    black_out(Duration::from_secs(2), 10);
}

/// As a minute is to the usual ten seconds between signs of life.
#[test]
fn a_path_that_is_gone_for_longer_than_a_peer_may_be_silent_is_taken_up_again() {
    let Some(said) = black_out(Duration::from_secs(6), 1) else {
        return;
    };
    for (kind, lines) in said {
        assert!(
            lines.contain("the session goes on"),
            "{kind}: {:?}",
            lines.all()
        );
    }
}

/// Each connection is the first of its session, and is requested along with it.
#[test]
fn sessions_that_are_being_opened_when_the_path_goes_are_open_when_it_is_back() {
    let Some(path) = Path::new() else {
        println!("SKIPPED: no right to make network namespaces, or no ip(8)");
        return;
    };
    let far = path.far.run(|| (exit_gateway(10), echo_server()));
    let ((far, lines), server) = far.unwrap();
    let via = far.listen_addr().unwrap();
    let ask = || {
        let entries = KINDS.repeat(3).into_iter();
        let entries: Vec<_> = entries
            .map(|kind| entry_gateway(kind, via, server))
            .collect();
        let mut streams = Vec::new();
        for (number, (near, _)) in entries.iter().enumerate() {
            // Some are open by then, some have just begun, some begin while nothing passes.
            if number == entries.len() * 2 / 3 {
                path.pass(false).unwrap();
            }
            let mut stream = TcpStream::connect(near.listener_addrs()[0]).unwrap();
            stream.write_all(b"ping").unwrap();
            streams.push(stream);
            std::thread::sleep(Duration::from_micros(300));
        }
        (entries, streams)
    };
    let (_entries, streams) = path.near.run(ask).unwrap();
    // A client that waits for a new connection has an answer within three seconds.
    std::thread::sleep(Duration::from_millis(1_500));
    path.pass(true).unwrap();
    for mut stream in streams {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut got = [0; 4];
        assert!(stream.read_exact(&mut got).is_ok(), "{:?}", lines.all());
        assert_eq!(got, *b"ping");
    }
}

#[test]
#[ignore = "takes more than a minute; the same with shorter times is above"]
fn a_minute_without_a_path_is_waited_for() {
    black_out(Duration::from_secs(60), 10);
}
