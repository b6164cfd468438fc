//! Memory to memory over UDT, without a session: `bulk recv ADDR` and `bulk send ADDR SECONDS [RATE_MBPS]`.
//! Prints goodput and processor seconds per gigabyte of its end.
#![expect(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a tool for whoever works on the engine, on a clock; it may end with a panic"
)]

use std::io::{self, IoSlice};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use haul_cc::{Algorithm, Rate};
use haul_soft::bulk::{Extent, FileRange, Sink, Source};
use haul_soft::udt::{Config, Identity, Listener, Options, Seq, connect};
use haul_udt::wire::SocketId;

struct Pattern {
    memory: Vec<u8>,
    until: Instant,
}

impl Source for Pattern {
    fn wait(&self, offset: u64, _: Duration) -> Extent {
        let complete = Instant::now() >= self.until;
        let end = if complete { offset } else { offset + (4 << 20) };
        Extent { end, complete }
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        self.memory.get(offset as usize % (self.memory.len() / 2)..)
    }

    fn file_at(&self, _: u64) -> Option<FileRange<'_>> {
        None
    }
}

struct Memory(Mutex<(Vec<u8>, u64, Option<Instant>)>);

impl Sink for Memory {
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut guard = self.0.lock().unwrap();
        let (memory, total, first) = &mut *guard;
        first.get_or_insert_with(Instant::now);
        let mut at = offset as usize % (memory.len() / 2);
        for part in parts {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
            *total += part.len() as u64;
        }
        Ok(())
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let addr = args[1].parse().expect("an address");
    let cpu = haul_io::clock::process_cpu().unwrap();
    if args[0] == "recv" {
        let mut listener = Listener::bind(addr, &Options::default(), [7; 16]).unwrap();
        let (_, mut link) = listener
            .accept(None, &mut |_| Some(Options::default()))
            .unwrap()
            .unwrap();
        let sink = Memory(Mutex::new((vec![1; 8 << 20], 0, None)));
        let result = link.receive(&sink);
        let (_, total, first) = &*sink.0.lock().unwrap();
        report("recv", *total, first.unwrap().elapsed(), cpu);
        println!(
            "{result:?} {:?}",
            link.stats().map(|s| (s.received_packets, s.duplicates))
        );
        return;
    }
    let seconds: u64 = args[2].parse().unwrap();
    let control = args
        .get(3)
        .filter(|arg| arg.parse::<u64>().is_ok())
        .map_or(Algorithm::Model, |rate| {
            Algorithm::Fixed(Rate::from_bps(rate.parse::<u64>().unwrap() * 1_000_000))
        });
    let options = Options {
        config: Config {
            control,
            ..Config::default()
        },
        ..Options::default()
    };
    let own = Identity {
        socket: SocketId(77),
        initial: Seq::new(123),
    };
    let local = "0.0.0.0:0".parse().unwrap();
    let mut link = connect(local, addr, own, &options).unwrap();
    println!("rcvbuf {}", link.recv_buffer_bytes());
    let source = Pattern {
        memory: vec![3; 8 << 20],
        until: Instant::now() + Duration::from_secs(seconds),
    };
    let remote = link.remote();
    let done = std::sync::atomic::AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) && args.iter().any(|a| a == "-v")
            {
                std::thread::sleep(Duration::from_millis(200));
                if let Some(s) = remote.stats() {
                    println!(
                        "{:?} pace {} Mb/s win {} flight {} rtt {} min {} us sent {} lost {} to {}",
                        s.control.state,
                        s.control.pacing.bps() / 1_000_000,
                        s.control.window_bytes,
                        s.in_flight_bytes,
                        s.rtt_ns / 1000,
                        s.rtt_min_ns / 1000,
                        s.sent.packets,
                        s.sent.lost_packets,
                        s.timeouts
                    );
                }
            }
        });
        let result = link.send(&source);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        println!("{result:?}");
    });
    let stats = link.stats().unwrap();
    report("send", stats.sent.payload_bytes, start.elapsed(), cpu);
    println!(
        "resent {} of {} to {}",
        stats.sent.resent_packets, stats.sent.packets, stats.timeouts
    );
}

fn report(what: &str, bytes: u64, took: Duration, before: haul_io::clock::CpuTime) {
    let cpu = haul_io::clock::process_cpu().unwrap().since(before);
    println!(
        "{what} {:.2} Gb/s, {:.3} s/GB (user {:.3} system {:.3})",
        bytes as f64 * 8e-9 / took.as_secs_f64(),
        cpu.total_ns() as f64 / bytes as f64,
        cpu.user_ns as f64 / bytes as f64,
        cpu.system_ns as f64 / bytes as f64,
    );
}
