//! Gateways that run out of what a system gives, or serve very many: processes whose memory and
//! descriptors are counted.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Gateway, member};

mod common;

/// What the kernel counts of a process.
struct Counts<'a>(&'a Gateway);

impl Counts<'_> {
    fn status(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.0.pid());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Memory of its own that it has touched, bytes: not what it shares, its program and what that
    /// is linked with.
    fn resident(&self) -> u64 {
        (self.status("RssAnon:") + self.status("RssShmem:")) << 10
    }

    fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    fn descriptors(&self) -> u64 {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.0.pid()));
        dir.unwrap().count() as u64
    }

    /// Processor time that it has used, hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.pid())).unwrap();
        // Behind the name, which ends with the last parenthesis, come the state and eleven more
        // fields.
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        let ticks = fields.skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// From now on it may have no more than this of something; as prlimit(1) calls it.
    fn limit(&self, what: &str, most: &str) {
        prlimit(self.0.pid(), what, most);
    }
}

fn prlimit(pid: u32, what: &str, most: &str) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &pid.to_string(), &format!("--{what}={most}:")]);
    assert!(command.status().unwrap().success());
}

/// Room for sockets of this process, which is the programs at both ends. False where there is not
/// as much.
fn has_sockets(count: u64) -> bool {
    let output = Command::new("sh").args(["-c", "ulimit -H -n"]).output();
    let most = String::from_utf8(output.unwrap().stdout).unwrap();
    // "unlimited" is none.
    let is_enough = most.trim().parse().unwrap_or(u64::MAX) >= count;
    if is_enough {
        prlimit(std::process::id(), "nofile", &count.to_string());
    } else {
        println!("SKIPPED: a process may have {most} descriptors, not {count}");
    }
    is_enough
}

fn far_gateway(kind: &str, more: &str) -> Gateway {
    Gateway::start(&member(
        kind,
        "127.0.0.1:0",
        &format!("exit = ['127.0.0.1']\n{more}"),
    ))
}

fn near_gateway(kind: &str, via: SocketAddr, to: SocketAddr) -> Gateway {
    near_gateway_with(kind, via, to, "8MiB")
}

fn near_gateway_with(kind: &str, via: SocketAddr, to: SocketAddr, ring: &str) -> Gateway {
    Gateway::start(&format!(
        "name = 'near'\nanonymous = true\n[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
         [[route]]\nto = ['*']\nvia = ['{via}']\nring = '{ring}'\nchannels = ['{kind}']\n"
    ))
}

/// A server whose connections are handled one thread each.
fn serve(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = Arc::clone(&handle);
            std::thread::spawn(move || handle(stream));
        }
    });
    address
}

fn echo_server() -> SocketAddr {
    serve(|stream| {
        let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
        // Either end may have enough.
        let _ = std::io::copy(&mut reader, &mut writer);
        let _ = writer.shutdown(Shutdown::Write);
    })
}

fn try_connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)?;
    Ok(stream)
}

fn connect(to: SocketAddr) -> TcpStream {
    try_connect(to).unwrap()
}

/// Whether a connection to this listener is served; a listener may reset it before it is there.
fn ask(listener: SocketAddr) -> std::io::Result<()> {
    ping(&try_connect(listener)?)
}

/// Sends an octet and waits for it.
fn ping(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A program that sends a little and waits for it, again and again.
struct Transfer {
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Transfer {
    fn start(listener: SocketAddr) -> Self {
        let (is_over, rounds) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&rounds));
        let mut stream = connect(listener);
        let thread = std::thread::spawn(move || {
            let mut got = vec![0; 10_000];
            for round in 0.. {
                let sent: Vec<u8> = (0..10_000).map(|at| pattern(round + at)).collect();
                stream.write_all(&sent).unwrap();
                stream.read_exact(&mut got).unwrap();
                assert!(got == sent, "in round {round}");
                count.store(round, Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let transfer = Self {
            is_over,
            rounds,
            thread: Some(thread),
        };
        transfer.assert_going_on();
        transfer
    }

    /// Bytes pass in both directions now.
    fn assert_going_on(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        let until = Instant::now() + Duration::from_secs(30);
        while self.rounds.load(Ordering::SeqCst) < before + 3 {
            assert!(Instant::now() < until, "it stands still");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_door_without_descriptors_lets_connections_wait_and_takes_them_when_there_are_some() {
    let far = far_gateway("tcp", "");
    let near = near_gateway("tcp", far.sessions_at(), echo_server());
    let (listener, counts) = (near.listener_at(), Counts(&near));
    let transfer = Transfer::start(listener);
    counts.limit("nofile", &(counts.descriptors() + 3).to_string());
    let mut waiting: Vec<TcpStream> = (0..8).map(|_| connect(listener)).collect();
    near.said("connections wait in the kernel");
    for served in &waiting[..3] {
        ping(served).unwrap();
    }
    let unserved = waiting.pop().unwrap();
    let soon = Some(Duration::from_millis(300));
    unserved.set_read_timeout(soon).unwrap();
    let timed_out = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
    assert!(timed_out.contains(&ping(&unserved).unwrap_err().kind()));
    transfer.assert_going_on();
    // It waits for room, and does not look for it all the time.
    let (before, begun) = (counts.ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let spent = counts.ticks() - before;
    assert!(spent < 50, "{spent} ticks in {:?}", begun.elapsed());
    waiting.clear();
    // What it had been sent is answered now.
    unserved
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    (&unserved).read_exact(&mut [0]).unwrap();
    transfer.end();
    let told = near.all_said();
    let told = told
        .iter()
        .filter(|line| line.contains("wait in the kernel"));
    assert!(told.count() <= 2, "{:?}", near.all_said());
}

#[test]
fn a_far_end_without_descriptors_refuses_with_a_line_and_recovers() {
    let far = far_gateway("tcp", "");
    let near = near_gateway("tcp", far.sessions_at(), echo_server());
    let (listener, counts) = (near.listener_at(), Counts(&far));
    let transfer = Transfer::start(listener);
    // Nothing is free below the standard streams, whatever was closed before.
    counts.limit("nofile", "3");
    let refused = ask(listener).unwrap_err().kind();
    assert_eq!(refused, ErrorKind::ConnectionReset);
    let line = far.said("Too many open files");
    assert!(line.ends_with("refused"), "{line}");
    // New connections are refused, and a waiting one is served in the end.
    let another = near_gateway("tcp", far.sessions_at(), echo_server());
    let waits = std::thread::spawn({
        let listener = another.listener_at();
        move || ask(listener)
    });
    std::thread::sleep(Duration::from_millis(500));
    transfer.assert_going_on();
    counts.limit("nofile", &(counts.descriptors() + 200).to_string());
    waits.join().unwrap().unwrap();
    ask(listener).unwrap();
    transfer.end();
}

#[test]
fn a_session_that_does_not_fit_into_memory_is_refused_and_others_go_on() {
    // Twice its ring is what a session takes.
    let far = far_gateway("tcp", "memory = '16MiB'");
    let near = near_gateway("tcp", far.sessions_at(), echo_server());
    let transfer = Transfer::start(near.listener_at());
    let another = near_gateway("tcp", far.sessions_at(), echo_server());
    let refused = ask(another.listener_at()).unwrap_err().kind();
    assert_eq!(refused, ErrorKind::ConnectionReset);
    for gateway in [&far, &another] {
        gateway.said("the limit of an unauthenticated source");
    }
    transfer.assert_going_on();
    transfer.end();
}

#[test]
fn where_the_system_gives_no_memory_a_session_is_refused_and_the_gateway_lives() {
    let far = far_gateway("tcp", "");
    let near = near_gateway("tcp", far.sessions_at(), echo_server());
    let transfer = Transfer::start(near.listener_at());
    let counts = Counts(&far);
    // The address space of a thread's stack, and not that of a session.
    let size = counts.status("VmSize:") << 10;
    counts.limit("as", &(size + (12 << 20)).to_string());
    let another = near_gateway("tcp", far.sessions_at(), echo_server());
    let refused = ask(another.listener_at()).unwrap_err().kind();
    assert_eq!(refused, ErrorKind::ConnectionReset);
    // The client's reset may overtake the line.
    far.said_any(&["no memory", "Cannot allocate"]);
    transfer.assert_going_on();
    counts.limit("as", "unlimited");
    ask(another.listener_at()).unwrap();
    transfer.end();
}

#[test]
fn a_receiver_that_is_slow_holds_its_sender_back_and_fills_no_memory() {
    for kind in ["tcp", "iwarp/udt"] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        let server = serve(move |stream| sender.lock().unwrap().send(stream).unwrap());
        let far = far_gateway(kind, "");
        let near = near_gateway(kind, far.sessions_at(), server);
        let mut program = connect(near.listener_at());
        let mut taker = receiver.recv().unwrap();
        let gateways = [Counts(&near), Counts(&far)];
        let before = [0, 1].map(|at: usize| gateways[at].resident());
        program
            .set_write_timeout(Some(Duration::from_millis(400)))
            .unwrap();
        let mut sent = 0;
        loop {
            let piece: Vec<u8> = (sent..sent + 65_536).map(pattern).collect();
            match program.write(&piece) {
                Ok(count) => sent += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{kind}: {error}"),
            }
            assert!(
                sent < 512 << 20,
                "{kind}: nobody takes it, and all is taken"
            );
        }
        // Ring and arena.
        let most = 16 << 20;
        let slack = 4 << 20;
        for (gateway, before) in gateways.iter().zip(before) {
            let more = gateway.resident().saturating_sub(before);
            assert!(more < most + slack, "{kind}: {more} octets more");
        }
        program.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        taker
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        taker.read_to_end(&mut got).unwrap();
        assert_eq!(got.len() as u64, sent, "{kind}");
        assert!((0..).zip(&got).all(|(at, octet)| pattern(at) == *octet));
        println!("{kind}: {} KiB under way when it was held back", sent >> 10);
    }
}

const IDLE: u64 = 1_000;

#[test]
fn an_idle_connection_costs_little_at_each_gateway() {
    if !has_sockets(4 * IDLE) {
        return;
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let server = serve(move |mut stream| {
        let mut octet = [0];
        stream.read_exact(&mut octet).unwrap();
        stream.write_all(&octet).unwrap();
        keep.lock().unwrap().push(stream);
    });
    // For each connection a ring has four units of 4 KiB.
    let far = Gateway::start(
        &member("iwarp/udt", "127.0.0.1:0", "exit = ['127.0.0.1']").replace("8MiB", "32MiB"),
    );
    let near = near_gateway_with("iwarp/udt", far.sessions_at(), server, "32MiB");
    let open = |count: u64| {
        let one = |_| {
            let stream = connect(near.listener_at());
            ping(&stream).unwrap();
            stream
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    // What a first connection needs, and tables that grow, is not an idle one's.
    let _first = open(50);
    let gateways = [("near", Counts(&near)), ("far", Counts(&far))];
    let before = [0, 1].map(|at: usize| gateways[at].1.resident());
    let idle = open(IDLE);
    for ((which, counts), before) in gateways.iter().zip(before) {
        let each = counts.resident().saturating_sub(before) / IDLE;
        println!("{which}: {each} octets of memory for each idle connection");
        // A part of a page of the ring, one of the arena, and what is its own.
        assert!(each <= 8 << 10, "{which}: {each} octets");
        assert!(counts.descriptors() >= IDLE);
    }
    for stream in idle.iter().step_by(100) {
        // They are there, and have nothing to say: the server answers once.
        stream.set_nonblocking(true).unwrap();
        let mut reader: &TcpStream = stream;
        let quiet = reader.read(&mut [0]).unwrap_err();
        assert_eq!(quiet.kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn ten_thousand_connections_that_come_and_go_leave_nothing() {
    const ROUNDS: u64 = 10_000;
    const CLIENTS: u64 = 8;
    if !has_sockets(4_000) {
        return;
    }
    let far = far_gateway("tcp", "");
    let near = near_gateway("tcp", far.sessions_at(), echo_server());
    let listener = near.listener_at();
    let run = |rounds: u64| {
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    for _ in 0..rounds / CLIENTS {
                        let mut stream = connect(listener);
                        ping(&stream).unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                    }
                });
            }
        });
    };
    let gateways = [Counts(&near), Counts(&far)];
    let counts = |counts: &Counts<'_>| (counts.descriptors(), counts.threads());
    // So that all of ring and arena has been touched: programs that send and take nothing back.
    let greedy: Vec<TcpStream> = (0..4).map(|_| connect(listener)).collect();
    let soon = Some(Duration::from_millis(400));
    for stream in &greedy {
        stream.set_write_timeout(soon).unwrap();
        let mut writer: &TcpStream = stream;
        while writer.write(&[1; 65_536]).is_ok() {}
    }
    drop(greedy);
    run(2 * ROUNDS);
    let settle = || gateways.each_ref().map(counts);
    // The last ones may not be forgotten yet.
    std::thread::sleep(Duration::from_millis(300));
    let (before, resident) = (settle(), gateways.each_ref().map(Counts::resident));
    run(ROUNDS);
    let until = Instant::now() + Duration::from_secs(10);
    let is_settled = || {
        let now = settle();
        now.iter().zip(&before).all(|(now, before)| now <= before)
    };
    while !is_settled() {
        assert!(Instant::now() < until, "{before:?}, {:?}", settle());
        std::thread::sleep(Duration::from_millis(50));
    }
    for (counts, before) in gateways.iter().zip(resident) {
        let more = counts.resident().saturating_sub(before);
        println!("{} octets more after {ROUNDS} connections", more);
        // Two hundred bytes of each would be more.
        assert!(more < 2 << 20, "{more} octets more");
    }
}
