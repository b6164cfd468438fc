//! Datagram sockets whose calls fail: packets are lost, nothing else is blamed, and nothing hangs.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Client, Ended, MIB, Place, Server, make_file, read_file, start_with, text};

const EPERM: i32 = 1;
const ECONNREFUSED: i32 = 111;

/// The library that has calls fail, or none where there is no compiler.
fn shim(place: &Place) -> Option<String> {
    let (source, library) = (place.outside("shim.c"), place.outside("shim.so"));
    std::fs::write(&source, include_str!("errno_shim.c")).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-o"]);
    let compiled = compile.args([&library, &source]).arg("-ldl").status();
    if compiled.is_ok_and(|status| status.success()) {
        return Some(text(&library));
    }
    println!("SKIPPED: no C compiler");
    None
}

/// Which end's calls fail.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Client,
    Server,
}

/// Sends a file at 20 Mb/s (0.4 s for each MiB), and has calls of one end fail.
fn send(at: At, size: usize, faults: &[(&str, String)], flags: &[&str]) -> Option<Ended> {
    let place = Place::new();
    let library = shim(&place)?;
    let mut settings = vec![format!("LD_PRELOAD={library}")];
    settings.extend(faults.iter().map(|(name, value)| format!("{name}={value}")));
    let of = |end| if at == end { &settings[..] } else { &[] };
    let dir = text(&place.server(""));
    let server = Server::start_with(of(At::Server), ["serve", &dir, "--listen", "127.0.0.1:0"]);
    let content = make_file(&place.client("a"), size, 1);
    let (from, to) = (text(&place.client("a")), server.at(""));
    let mut args = vec!["send", &from, &to, "--channel", "udt", "--rate", "20Mbit"];
    args.extend(flags);
    let ended = start_with(of(At::Client), args).end();
    if ended.code == Some(0) {
        assert!(content == read_file(&place.server("a")));
    }
    Some(ended)
}

fn fault(errno: i32, calls: &str, after_ms: u32, for_ms: u32) -> Vec<(&'static str, String)> {
    vec![
        ("FAIL_ERRNO", errno.to_string()),
        ("FAIL_CALLS", calls.to_owned()),
        ("FAIL_AFTER", after_ms.to_string()),
        ("FAIL_FOR", for_ms.to_string()),
    ]
}

#[test]
fn two_seconds_of_errors_lose_packets_and_no_transfer() {
    std::thread::scope(|scope| {
        for errno in [EPERM, ECONNREFUSED] {
            for at in [At::Client, At::Server] {
                for calls in ["send", "receive"] {
                    scope.spawn(move || {
                        let begun = Instant::now();
                        let faults = fault(errno, calls, 500, 2_000);
                        if let Some(ended) = send(at, 4 * MIB, &faults, &[]) {
                            println!("{errno} {at:?} {calls} {:?}", begun.elapsed());
                            ended.ok();
                            assert!(begun.elapsed() > Duration::from_secs(2), "nothing failed");
                        }
                    });
                }
            }
        }
    });
}

/// Errors of sendmsg(2) and recvmsg(2), and of what lies below: those that say something about the
/// path, about the host, and about nothing that there is.
const ERRNOS: [i32; 31] = [
    1, 4, 5, 6, 9, 11, 12, 13, 14, 19, 22, 28, 32, 71, 88, 89, 90, 95, 99, 100, 101, 102, 104, 105,
    106, 107, 110, 111, 112, 113, 114,
];

#[test]
fn each_error_once_costs_a_packet() {
    std::thread::scope(|scope| {
        for chunk in ERRNOS.chunks(6) {
            scope.spawn(move || {
                for errno in chunk {
                    for (at, calls) in [
                        (At::Client, "send"),
                        (At::Client, "receive"),
                        (At::Server, "send"),
                        (At::Server, "receive"),
                    ] {
                        let mut faults = fault(*errno, calls, 0, 60_000);
                        faults.push(("FAIL_COUNT", "3".to_owned()));
                        if let Some(ended) = send(at, MIB, &faults, &[]) {
                            let shown = format!("{errno} {at:?} {calls}: {}", ended.stderr);
                            assert_eq!(ended.code, Some(0), "{shown}");
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn errors_without_end_are_a_lost_connection_and_not_the_sources_fault() {
    std::thread::scope(|scope| {
        for (errno, calls) in [(EPERM, "send"), (EPERM, "receive"), (ECONNREFUSED, "both")] {
            for at in [At::Client, At::Server] {
                scope.spawn(move || {
                    let faults = fault(errno, calls, 300, 600_000);
                    let flags = ["--give-up-after", "2s"];
                    if let Some(ended) = send(at, 4 * MIB, &faults, &flags) {
                        assert_eq!(
                            ended.code,
                            Some(5),
                            "{errno} {calls} {at:?}: {}",
                            ended.stderr
                        );
                        assert!(!ended.stderr.contains("source"), "{}", ended.stderr);
                    }
                });
            }
        }
    });
}

/// Whatever reads datagrams: a socket that fails without end is readable without end.
#[test]
fn a_server_whose_receive_calls_fail_without_end_rests() {
    let place = Place::new();
    let Some(library) = shim(&place) else { return };
    let mut settings = vec![format!("LD_PRELOAD={library}")];
    let faults = fault(EPERM, "receive", 0, 600_000);
    settings.extend(faults.iter().map(|(name, value)| format!("{name}={value}")));
    let dir = text(&place.server(""));
    make_file(&place.client("a"), MIB, 1);
    let file = text(&place.client("a"));
    let bench = ["bench", "rdma", "serve"];
    let servers: [(&[&str], &[&str]); 3] = [
        (
            &["serve", &dir],
            &["send", &file, "TO", "--channel=udt", "--give-up-after=5s"],
        ),
        (
            &bench,
            &[
                "bench",
                "rdma",
                "TO",
                "--channel=udt",
                "--sizes=65536..65536",
            ],
        ),
        (
            &bench,
            &[
                "bench",
                "rdma",
                "TO",
                "--qp=ud",
                "--sizes=1024..1024",
                "--op=send",
            ],
        ),
    ];
    std::thread::scope(|scope| {
        for (serve, client) in servers {
            let settings = &settings;
            scope.spawn(move || {
                let channel: &[&str] = match client.contains(&"--channel=udt") {
                    true if serve.len() == 3 => &["--channel=udt"],
                    _ => &[],
                };
                let listen = ["--listen", "127.0.0.1:0"];
                let args = serve.iter().chain(channel).chain(&listen);
                let server = Server::start_with(settings, args);
                let to = if serve.len() == 3 {
                    format!("127.0.0.1:{}", server.port)
                } else {
                    server.at("")
                };
                let args = client
                    .iter()
                    .map(|arg| if *arg == "TO" { &to } else { *arg });
                let client: Client = start_with(&[], args);
                std::thread::sleep(Duration::from_secs(1));
                let before = server.cpu_ticks();
                std::thread::sleep(Duration::from_secs(2));
                let ticks = server.cpu_ticks() - before;
                client.kill();
                println!("{serve:?}: {ticks} of 200 ticks");
                assert!(
                    ticks < 60,
                    "{serve:?} with {channel:?}: {ticks} ticks in 2 s"
                );
            });
        }
    });
}

/// A benchmark with a server of its own; calls of one end fail.
fn bench(at: At, flags: &str, faults: &[(&str, String)]) -> Option<Ended> {
    let place = Place::new();
    let library = shim(&place)?;
    let mut settings = vec![format!("LD_PRELOAD={library}")];
    settings.extend(faults.iter().map(|(name, value)| format!("{name}={value}")));
    let of = |end| if at == end { &settings[..] } else { &[] };
    let serve = ["bench", "serve", "--listen", "127.0.0.1:0"];
    let server = Server::start_with(of(At::Server), serve);
    let to = format!("127.0.0.1:{}", server.port);
    let args = ["bench", "run", &to].into_iter().chain(flags.split(' '));
    Some(start_with(of(At::Client), args).end())
}

/// Also errors that would say something about a file or an option, if a file or an option had them.
#[test]
fn a_benchmark_takes_errors_of_datagram_sockets_for_loss() {
    const EINVAL: i32 = 22;
    const ENOSPC: i32 = 28;
    std::thread::scope(|scope| {
        for engine in ["udp", "udt"] {
            for (errno, calls) in [(EPERM, "both"), (EINVAL, "send"), (ENOSPC, "receive")] {
                scope.spawn(move || {
                    let flags = format!("--engine {engine} --reverse --rate 20Mbit --time 2s");
                    let faults = fault(errno, calls, 300, 700);
                    if let Some(ended) = bench(At::Server, &flags, &faults) {
                        assert_eq!(ended.code, Some(0), "{engine} {errno}: {}", ended.stderr);
                    }
                });
            }
        }
        scope.spawn(|| {
            let flags = "--engine udp --reverse --rate 20Mbit --time 1s";
            if let Some(ended) = bench(At::Server, flags, &fault(ENOSPC, "send", 0, 600_000)) {
                assert_eq!(ended.code, Some(5), "{}", ended.stderr);
                assert!(ended.stderr.contains("sending failed"), "{}", ended.stderr);
            }
        });
    });
}
