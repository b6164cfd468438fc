//! The most that UDP carries between two hosts of a lab: super-packets as fast as one thread sends
//! them, received by another that looks at nothing. Whatever runs over UDP stays below.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use haul_io::clock::process_cpu;
use haul_io::udp::{RecvBatch, SEGMENTS_MAX, SUPER_PACKET_BYTES_MAX, UdpOptions, UdpSocket};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::record::Sample;
use haul_lab::lab::Lab;

/// Payload of a full packet: MTU 1500, IPv4 and UDP headers.
const PAYLOAD: usize = 1500 - 28;
/// Room at the receiver, bytes; labs may exceed the machine's limit.
const RECV_BUFFER: usize = 16 << 20;
/// The receiver looks up this often whether the sender is done.
const TICK: Duration = Duration::from_millis(20);

/// Payload per second as it arrives, Gbit/s, with the processor time of both threads.
pub(super) fn measure(lab: &Lab, time: Duration) -> Result<Sample> {
    let (a, b) = (lab.host("a")?, lab.host("b")?);
    let receiver = b.netns().run(|| bind(b.addresses().v4))??;
    let target = receiver.local_addr();
    let over = AtomicBool::new(false);
    let cpu = process_cpu().unwrap_or_default();
    let (bytes, span) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, &over));
        let sent = a.netns().run(|| send(a.addresses().v4, target, time));
        over.store(true, Ordering::Release);
        let received = receiving
            .join()
            .map_err(|_| io::Error::other("the receiving thread panicked"))?;
        sent??;
        received
    })?;
    let used = process_cpu().unwrap_or_default().since(cpu);
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let (bytes, cpu_ns) = (bytes as f64, (used.user_ns + used.system_ns) as f64);
    let seconds = span.max(time).as_secs_f64();
    Ok(Sample {
        value: bytes * 8.0 / seconds / 1e9,
        cpu_s_per_gb: (bytes > 0.0).then(|| cpu_ns / bytes),
        messages: None,
    })
}

fn bind(address: Ipv4Addr) -> Result<UdpSocket> {
    let mut options = UdpOptions::default();
    options.recv_buffer_bytes = RECV_BUFFER;
    UdpSocket::bind(SocketAddr::from((address, 0)), &options).context("cannot open a UDP socket")
}

fn send(own: Ipv4Addr, target: SocketAddr, time: Duration) -> Result<()> {
    let socket = bind(own)?;
    let segments = (SUPER_PACKET_BYTES_MAX / PAYLOAD).clamp(1, SEGMENTS_MAX);
    let buffer = vec![0x5a_u8; segments * PAYLOAD];
    let end = Instant::now() + time;
    while Instant::now() < end {
        match socket.send_segments(target, PAYLOAD, &[IoSlice::new(&buffer)]) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(&socket, PollFlags::OUT)?;
            }
            Err(error) => return Err(error).context("cannot send a datagram"),
        }
    }
    Ok(())
}

/// Bytes, and from the first arrival to the last.
fn receive(socket: &UdpSocket, over: &AtomicBool) -> Result<(u64, Duration)> {
    let mut batch = RecvBatch::new(16, 1 << 16, 0)?;
    let mut bytes = 0;
    let mut span: Option<(Instant, Instant)> = None;
    loop {
        match socket.recv_batch(&mut batch) {
            Ok(_) => {
                bytes += batch.iter().map(|one| one.bytes.len() as u64).sum::<u64>();
                let now = Instant::now();
                span = Some((span.map_or(now, |(first, _)| first), now));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let done = over.load(Ordering::Acquire);
                let nothing = !wait(socket, PollFlags::IN)?;
                if done && nothing {
                    let span = span.map_or(Duration::ZERO, |(first, last)| last - first);
                    return Ok((bytes, span));
                }
            }
            Err(error) => return Err(error).context("cannot receive a datagram"),
        }
    }
}

/// Whether it became ready.
fn wait(socket: &UdpSocket, flags: PollFlags) -> Result<bool> {
    let timeout = Timespec::try_from(TICK).map_err(io::Error::other)?;
    let ready = rustix::event::poll(
        &mut [PollFd::from_borrowed_fd(socket.as_fd(), flags)],
        Some(&timeout),
    )?;
    Ok(ready > 0)
}
