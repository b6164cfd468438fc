//! Handshakes with good cookies, thousands a second from one source, at the data ports of a
//! gateway: existing peers, and peers from other sources, are served.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "who attacks has sockets of its own, and what is not there where it must be fails the test"
)]

#[path = "all/common/mod.rs"]
mod common;

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{connect, echo, echo_server, entry_gateway, exit_gateway};
use haul_gateway::config::ChannelKind;

/// Sockets that it comes from.
const PORTS: usize = 500;
/// Handshakes in a millisecond.
const A_MS: u32 = 12;
/// The limits of one source: at once, and in a second.
const SOURCE_BURST: u64 = 256;
const SOURCE_RATE: u64 = 256;
/// Steps of a handshake, as libudt has them on the wire.
const INDUCTION: u32 = 1;
const CONCLUSION: u32 = u32::MAX;

/// An attacker with a valid cookie for each of its ports, which requests a different connection
/// each time.
struct Flood {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
    since: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Returns when the flood has gone on for a moment. It comes from an address of its own.
    fn start(at: SocketAddr, kind: u32) -> Self {
        let sockets: Vec<(UdpSocket, u32)> = (0..PORTS)
            .map(|_| {
                let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
                socket.connect(at).unwrap();
                let patience = Duration::from_secs(1);
                socket.set_read_timeout(Some(patience)).unwrap();
                let mut answer = [0; 64];
                socket.send(&handshake(kind, INDUCTION, 1, 0)).unwrap();
                while socket.recv(&mut answer).is_err() {
                    socket.send(&handshake(kind, INDUCTION, 1, 0)).unwrap();
                }
                socket.set_nonblocking(true).unwrap();
                (socket, word(&answer, 11))
            })
            .collect();
        let mut flood = Self {
            is_over: Arc::default(),
            sent: Arc::default(),
            accepted: Arc::default(),
            since: Instant::now(),
            thread: None,
        };
        let (is_over, sent) = (Arc::clone(&flood.is_over), Arc::clone(&flood.sent));
        let accepted = Arc::clone(&flood.accepted);
        flood.thread = Some(std::thread::spawn(move || {
            let mut id = 1;
            let mut from = sockets.iter().cycle();
            let mut answered = HashSet::new();
            while !is_over.load(Ordering::Acquire) {
                for (socket, cookie) in from.by_ref().take(A_MS as usize) {
                    id += 1;
                    // Where it does not go out, the next one may.
                    let _ = socket.send(&handshake(kind, CONCLUSION, id, *cookie));
                    let mut answer = [0; 64];
                    while let Ok(64) = socket.recv(&mut answer) {
                        let is_accepted = word(&answer, 9) == CONCLUSION;
                        // Each is answered more than once.
                        let is_new = is_accepted && answered.insert(word(&answer, 3));
                        accepted.fetch_add(is_new.into(), Ordering::Relaxed);
                    }
                }
                sent.fetch_add(A_MS.into(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
        std::thread::sleep(Duration::from_millis(500));
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A request of libudt's.
fn handshake(kind: u32, step: u32, id: u32, cookie: u32) -> [u8; 64] {
    let header = [0x8000_0000, 0, 0, 0];
    let body = [4, kind, 1_000, 1_500, 8_192, step, id, cookie];
    let peer = [0x0100_007f, 0, 0, 0];
    let words = header.into_iter().chain(body).chain(peer);
    let mut packet = [0; 64];
    for (to, word) in packet.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    packet
}

fn word(packet: &[u8; 64], at: usize) -> u32 {
    u32::from_be_bytes(packet[4 * at..4 * at + 4].try_into().unwrap())
}

/// Processor time of the threads that carry sessions, hundredths of a second. Unlike a throughput,
/// it is nearly the same on a busy machine.
fn engine_ticks() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let engines = stats.filter(|stat| stat.contains("(haul-rnic"));
    engines
        .map(|stat| {
            // Behind the name come the state and ten more fields.
            let fields = stat.rsplit(')').next().unwrap().split_whitespace();
            let ticks = fields.skip(11).take(2);
            ticks
                .map(|ticks| ticks.parse::<u64>().unwrap())
                .sum::<u64>()
        })
        .sum()
}

fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

fn flooded(kind: ChannelKind, socket_type: u32) {
    let (far, lines) = exit_gateway("");
    let port = far.channel_addrs().into_iter();
    let (_, port) = port.clone().find(|(other, _)| *other == kind).unwrap();
    let via = [far.listen_addr().unwrap()];
    let route = format!("channels = ['{kind}']");
    let (near, _) = entry_gateway(&via, echo_server(), &route);
    let mut program = connect(near.listener_addrs()[0]);
    let mut move_some = || {
        let mut times: Vec<Duration> = (0..5)
            .map(|seed| timed(|| echo(&mut program, 5 << 20, seed)))
            .collect();
        times.sort();
        times[2]
    };
    move_some();
    let before = move_some();
    let flood = Flood::start(port, socket_type);
    let (used, since) = (engine_ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let used = (engine_ticks() - used) as f64 / 100.0 / since.elapsed().as_secs_f64();
    let begun = (Instant::now(), flood.sent.load(Ordering::Relaxed));
    let during = move_some();
    let opened = timed(|| {
        let (other, _) = entry_gateway(&via, echo_server(), &route);
        echo(&mut connect(other.listener_addrs()[0]), 1_000, 9);
    });
    let sent = flood.sent.load(Ordering::Relaxed) - begun.1;
    let rate = sent as f64 / begun.0.elapsed().as_secs_f64();
    let accepted = flood.accepted.load(Ordering::Relaxed);
    let budget = SOURCE_BURST + SOURCE_RATE * (flood.since.elapsed().as_secs() + 1);
    drop(flood);
    let after = move_some();
    println!(
        "{kind}: 5 MiB there and back before {before:?}, during {during:?}, after {after:?}; a session opens in {opened:?}; \
         {rate:.0} handshakes a second, {accepted} of them accepted, take {used:.3} of a processor"
    );
    let said = lines.all();
    // It is a flood, of handshakes that are good.
    assert!(rate > 2_000.0 && accepted > 100, "{said:?}");
    assert!(accepted <= budget, "{accepted} of {budget}");
    // A session keeps the rest of the thread that carries it. While nothing is carried, each
    // handshake wakes the thread as well.
    assert!(
        used > 0.0 && used < 50e-6 * rate,
        "{used:.3} of a processor: {said:?}"
    );
    let most = 3 * before.max(after) + Duration::from_millis(300);
    assert!(during < most, "{during:?} of {before:?}: {said:?}");
    assert!(opened < Duration::from_secs(5), "{opened:?}: {said:?}");
}

#[test]
fn a_flood_of_handshakes_leaves_sessions_their_rate_and_others_their_way_in() {
    // Messages of libudt.
    flooded(ChannelKind::IwarpUdt, 2);
}
