//! How fast this machine moves UDP: `udp_rate recv ADDR [MESSAGES [copy]]` in one place (loopback,
//! a namespace), and `udp_rate send ADDR SECONDS [SUPER_PACKETS [MIB [plain]]]` in another. The
//! sender gathers `[header 16][payload 1456]` pairs out of MIB of memory (default 256: colder than
//! any cache) and does not wait for anything; the receiver prints what came. `plain` sends each
//! datagram alone; `copy` copies each payload to a place of its own, as a transfer does.

#![expect(clippy::print_stdout, reason = "the result of the measurement")]

use std::error::Error;
use std::io::{self, IoSlice};
use std::net::SocketAddr;

use haul_io::clock::{Clock, CpuTime, thread_cpu};
use haul_io::poller::{Events, Interest, Poller};
use haul_io::udp::{Outgoing, RecvBatch, UdpOptions, UdpSocket};

const HEADER: usize = 16;
const PAYLOAD: usize = 1456;
const SEGMENTS: usize = 44;
const SECONDS_MAX: u64 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["recv", address, ref rest @ ..] => receive(address.parse()?, rest),
        ["send", address, seconds, ref rest @ ..] => send(address.parse()?, seconds.parse()?, rest),
        _ => Err("say `recv ADDR` or `send ADDR SECONDS`".into()),
    }
}

fn send(to: SocketAddr, seconds: u64, rest: &[&str]) -> Result<(), Box<dyn Error>> {
    let number =
        |index: usize, default: usize| rest.get(index).map_or(Ok(default), |word| word.parse());
    let (batch, mebibytes) = (number(0, 1)?, number(1, 256)?);
    let mut options = UdpOptions::default();
    options.send_buffer_bytes = 4 << 20;
    options.gso = rest.get(2).is_none();
    let socket = UdpSocket::bind(unspecified(to), &options)?;
    let memory = vec![0x5a_u8; mebibytes << 20];
    let header = [7_u8; HEADER];
    let mut payloads = memory.chunks_exact(PAYLOAD).cycle();
    let (clock, mut watch, mut taken) = (Clock::new(), Watch::start()?, 0);
    let mut events = Events::with_capacity(1);
    let mut poller = Poller::new()?;
    poller.add(&socket, 0, Interest::WRITE)?;
    let end = watch.start_ns + seconds.min(SECONDS_MAX) * 1_000_000_000;
    while clock.now_ns() < end {
        let mut slices = Vec::with_capacity(batch * SEGMENTS * 2);
        for payload in payloads.by_ref().take(batch * SEGMENTS) {
            slices.extend([IoSlice::new(&header), IoSlice::new(payload)]);
        }
        let packets: Vec<Outgoing<'_>> = slices
            .chunks(SEGMENTS * 2)
            .map(|slices| Outgoing {
                to,
                segment_bytes: HEADER + PAYLOAD,
                slices,
                source: None,
            })
            .collect();
        let sent = match &packets[..] {
            [one] => socket.send_segments(to, one.segment_bytes, one.slices),
            many => socket.send_batch(many),
        };
        match sent {
            Ok(segments) => taken += segments,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poller.wait(&mut events, Some(end), clock)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    watch.end_ns = clock.now_ns();
    watch.print("sent", taken * PAYLOAD)
}

fn receive(address: SocketAddr, rest: &[&str]) -> Result<(), Box<dyn Error>> {
    let messages = rest.first().map_or(Ok(16), |word| word.parse())?;
    let copy = rest.contains(&"copy");
    let mut options = UdpOptions::default();
    options.recv_buffer_bytes = 16 << 20;
    let socket = UdpSocket::bind(address, &options)?;
    let mut place = vec![0_u8; if copy { 256 << 20 } else { 0 }];
    place.fill(1);
    let mut batch = RecvBatch::new(messages, 1 << 16, 0)?;
    let (clock, mut events, mut poller) = (Clock::new(), Events::with_capacity(1), Poller::new()?);
    poller.add(&socket, 0, Interest::READ)?;
    let (mut watch, mut bytes, mut calls, mut came) = (Watch::start()?, 0, 0_u64, 0_u64);
    let end = watch.start_ns + SECONDS_MAX * 1_000_000_000;
    let mut idle_end = end;
    loop {
        match socket.recv_batch(&mut batch) {
            Ok(_) => {
                if bytes == 0 {
                    watch = Watch::start()?;
                }
                (calls, came) = (calls + 1, came + batch.len() as u64);
                for message in batch.iter() {
                    for datagram in message.datagrams() {
                        let payload = &datagram[HEADER.min(datagram.len())..];
                        if copy {
                            let start = bytes % (place.len() - PAYLOAD);
                            place[start..start + payload.len()].copy_from_slice(payload);
                        }
                        bytes += payload.len();
                    }
                }
                watch.end_ns = batch.now_ns();
                idle_end = end.min(watch.end_ns + 500_000_000);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if clock.now_ns() >= idle_end {
                    break;
                }
                poller.wait(&mut events, Some(idle_end), clock)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!(
        "messages/call {:.1}  dropped {}",
        came as f64 / calls.max(1) as f64,
        socket.receive_buffer_drops()?
    );
    watch.print("received", bytes)
}

struct Watch {
    start_ns: u64,
    end_ns: u64,
    cpu: CpuTime,
}

impl Watch {
    fn start() -> io::Result<Self> {
        let now = Clock::new().now_ns();
        Ok(Self {
            start_ns: now,
            end_ns: now,
            cpu: thread_cpu()?,
        })
    }

    fn print(&self, what: &str, bytes: usize) -> Result<(), Box<dyn Error>> {
        let cpu = thread_cpu()?.since(self.cpu);
        let ns = (self.end_ns - self.start_ns).max(1);
        let gigabytes = bytes as f64 / 1e9;
        println!(
            "{what} {:.2} Gb/s, {gigabytes:.2} GB in {:.2} s; CPU user {:.2} s, system {:.2} s, {:.3} s/GB",
            bytes as f64 * 8.0 / ns as f64,
            ns as f64 / 1e9,
            cpu.user_ns as f64 / 1e9,
            cpu.system_ns as f64 / 1e9,
            cpu.total_ns() as f64 / 1e9 / gigabytes.max(1e-9),
        );
        Ok(())
    }
}

fn unspecified(to: SocketAddr) -> SocketAddr {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    any.parse().unwrap_or(to)
}
