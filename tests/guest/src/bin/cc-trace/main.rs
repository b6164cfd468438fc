//! Records what a congestion control of the kernel makes of a path: every acknowledgement, every
//! loss, the window.
//!
//! The kernel's TCP sends into a TUN device. This program is all that is behind it: a bottleneck of
//! a given rate with a queue without end, a delay, a receiver that acknowledges every packet (RFC
//! 2018), and losses that are told beforehand: the n-th new packet is dropped, retransmissions
//! never are. After each acknowledgement it asks the kernel for the window.
//!
//! Prints a line for each tenth of a round trip: time (us), packets acknowledged, round-trip time
//! of the newest (us), packets in flight, the window (packets), and `-`; at a loss a line with
//! `loss`, and `recovery` in place of `-` until the kernel has recovered.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it is a program about the kernel's sockets"
)]

mod peer;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{ErrorKind, IoSlice, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use haul_io::clock::Clock;
use haul_io::poller::{Events, Interest, Poller, set_timer_slack_ns};
use haul_io::tcp;
use haul_io::tun::{TUN_DEVICE, TUN_PACKET_MAX, Tun, VNET_HEADER_LEN};

use peer::{Data, Peer};

#[derive(Debug, Parser)]
struct Args {
    /// The kernel's name of the control
    control: String,
    /// Round-trip time without a queue, ms
    #[arg(long, default_value_t = 100)]
    rtt_ms: u64,
    /// Rate of the bottleneck, Mbit/s
    #[arg(long, default_value_t = 40)]
    rate_mbit: u64,
    /// New packets to drop, counted from 1
    #[arg(long, value_delimiter = ',')]
    drop: Vec<u64>,
    /// How long to record, s
    #[arg(long, default_value_t = 12)]
    seconds: u64,
    /// The kernel's first window, packets
    #[arg(long, default_value_t = 64)]
    initial_window: u32,
}

const DEVICE: &str = "trace0";
const NETWORK: &str = "10.77.0.0/24";
const OWN: &str = "10.77.0.1/24";
const PEER: &str = "10.77.0.2:9";

/// A packet on its way: when its acknowledgement is due, when it was sent, and what it is.
#[derive(Debug)]
struct Travelling {
    due_ns: u64,
    sent_ns: u64,
    data: Data,
}

/// Everything behind the device.
#[derive(Debug)]
struct Emulation {
    rtt_ns: u64,
    rate_bps: u64,
    drop: Vec<u64>,
    clock: Clock,
    poller: Poller,
    events: Events,
    tun: Tun,
    peer: Peer,
    travelling: VecDeque<Travelling>,
    /// When the bottleneck has sent what it has.
    busy_until_ns: u64,
    /// The highest byte that was sent, and the number of packets.
    highest: u64,
    new_packets: u64,
    buffer: Vec<u8>,
}

/// What has happened since the last line.
#[derive(Debug, Default)]
struct Span {
    started_ns: u64,
    acked: u64,
    rtt_ns: u64,
    recovering: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    set_timer_slack_ns(1)?;
    let tun = Tun::open(Path::new(TUN_DEVICE), DEVICE)?;
    ip(&format!("address add {OWN} dev {DEVICE}"))?;
    ip(&format!("link set {DEVICE} up gso_max_segs 1"))?;
    ip(&format!(
        "route change {NETWORK} dev {DEVICE} initcwnd {}",
        args.initial_window
    ))?;
    let poller = Poller::new()?;
    poller.add(&tun, 0, Interest::READ)?;
    let mut emulation = Emulation {
        rtt_ns: args.rtt_ms * 1_000_000,
        rate_bps: args.rate_mbit * 1_000_000,
        drop: args.drop,
        clock: Clock::new(),
        poller,
        events: Events::with_capacity(1),
        tun,
        peer: Peer::default(),
        travelling: VecDeque::new(),
        busy_until_ns: 0,
        highest: 0,
        new_packets: 0,
        buffer: vec![0; TUN_PACKET_MAX],
    };
    let stream = emulation.connect(args.control)?;
    let trace = emulation.record(&stream, args.seconds * 1_000_000_000)?;
    print!("{trace}");
    Ok(())
}

fn ip(words: &str) -> Result<()> {
    let status = Command::new("ip")
        .args(words.split(' '))
        .status()
        .context("no `ip`")?;
    ensure!(status.success(), "`ip {words}` failed");
    Ok(())
}

/// Sends for as long as the connection lives, on a thread that ends with the process.
fn send(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let zeros = vec![0; 1 << 18];
        while stream.write_all(&zeros).is_ok() {}
    });
}

impl Emulation {
    fn connect(&mut self, control: String) -> Result<TcpStream> {
        let connecting = std::thread::spawn(move || -> Result<TcpStream> {
            let stream = TcpStream::connect(PEER)?;
            tcp::set_congestion(&stream, &control)
                .with_context(|| format!("the kernel has no {control}"))?;
            send(stream.try_clone()?);
            Ok(stream)
        });
        while self.peer.is_alone() {
            let Some(len) = self.next_packet(None)? else {
                continue;
            };
            if let Some(answer) = self.peer.meet(&self.buffer[..len]) {
                // The kernel measures this round trip too.
                std::thread::sleep(Duration::from_nanos(self.rtt_ns));
                self.tun.send(&[IoSlice::new(&answer)])?;
            }
        }
        connecting
            .join()
            .map_err(|_| anyhow!("connecting panicked"))?
    }

    /// The next packet, once there is one; none at the deadline.
    fn next_packet(&mut self, deadline_ns: Option<u64>) -> Result<Option<usize>> {
        loop {
            match self.tun.recv(&mut self.buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) if deadline_ns.is_some_and(|at| at <= self.clock.now_ns()) => {
                    return Ok(None);
                }
                Err(_) => self
                    .poller
                    .wait(&mut self.events, deadline_ns, self.clock)?,
            }
        }
    }

    fn record(&mut self, stream: &TcpStream, length_ns: u64) -> Result<String> {
        // Printed at the end: writing takes time.
        let mut trace = String::new();
        let begun_ns = self.clock.now_ns();
        let mut span = Span {
            started_ns: begun_ns,
            ..Span::default()
        };
        while span.started_ns < begun_ns + length_ns {
            let due_ns = self.travelling.front().map(|first| first.due_ns);
            if let Some(len) = self.next_packet(due_ns)? {
                self.take(len);
                continue;
            }
            let Some(first) = self.travelling.pop_front() else {
                continue;
            };
            let answer = self.peer.receive(first.data);
            let now_ns = self.clock.now_ns();
            span.acked += 1;
            span.rtt_ns = now_ns - first.sent_ns;
            self.tun.send(&[IoSlice::new(&answer)])?;
            let info = tcp::info(stream)?;
            let lost = info.recovering && !span.recovering;
            if lost || now_ns - span.started_ns >= self.rtt_ns / 10 {
                let state = match (lost, info.recovering) {
                    (true, _) => "loss",
                    (_, true) => "recovery",
                    _ => "-",
                };
                writeln!(
                    trace,
                    "{} {} {} {} {} {state}",
                    (now_ns - begun_ns) / 1_000,
                    span.acked,
                    span.rtt_ns / 1_000,
                    self.travelling.len(),
                    info.window_packets
                )?;
                span = Span {
                    started_ns: now_ns,
                    ..Span::default()
                };
            }
            span.recovering = info.recovering;
        }
        Ok(trace)
    }

    /// Sends a packet of the kernel's on its way, if it is not to be lost.
    fn take(&mut self, len: usize) {
        let Some(data) = self.peer.data(&self.buffer[..len]) else {
            return;
        };
        let now_ns = self.clock.now_ns();
        if data.start >= self.highest {
            self.highest = data.start + data.len;
            self.new_packets += 1;
            if self.drop.contains(&self.new_packets) {
                return;
            }
        }
        let wire_bits = (len - VNET_HEADER_LEN) as u64 * 8;
        self.busy_until_ns =
            self.busy_until_ns.max(now_ns) + wire_bits * 1_000_000_000 / self.rate_bps;
        self.travelling.push_back(Travelling {
            due_ns: self.busy_until_ns + self.rtt_ns,
            sent_ns: now_ns,
            data,
        });
    }
}
