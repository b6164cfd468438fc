//! Datagrams that cross a path: numbered and stamped when they leave, counted and timed when they
//! arrive.
//!
//! Both ends run on one machine and read one clock, so the time that a datagram takes is known in
//! each direction by itself. The arrival is the kernel's own stamp: how long the receiving thread
//! takes to wake up does not count.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use haul_io::clock::Clock;
use haul_io::poller::set_timer_slack_ns;
use haul_io::udp::{
    Received, RecvBatch, SEGMENTS_MAX, SUPER_PACKET_BYTES_MAX, UdpOptions, UdpSocket,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::lab::{Host, Lab};

/// IPv4 and UDP header.
pub(super) const HEADERS_BYTES: u32 = 28;

/// Number and time of departure, in front of each datagram's payload.
const STAMP_BYTES: usize = 16;

/// Buffer for arrivals while the receiver is not scheduled.
const RECV_BUFFER_BYTES: usize = 64 << 20;

/// The traffic to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// IP packets of this size…
    pub(super) wire_bytes: u32,
    /// …at this rate, counted over IP packets…
    pub(super) rate_bps: u64,
    /// …for this long…
    pub(super) time: Duration,
    /// …each by itself, or as super-packets…
    pub(super) one_by_one: bool,
    /// …making up for no more than this when the sender was held up.
    pub(super) catch_up: Duration,
}

/// The outcome of the traffic.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Datagrams sent.
    pub(super) sent: u64,
    /// Different datagrams that arrived.
    pub(super) arrived: u64,
    /// Arrivals of datagrams that had arrived before.
    pub(super) doubled: u64,
    /// Arrivals after a datagram with a higher number.
    pub(super) overtaken: u64,
    /// Arrivals that the receiving socket had no room for: not the path's fault.
    pub(super) socket_drops: u64,
    /// How long datagrams took, ascending, nanoseconds: of each arriving super-packet the last one.
    pub(super) delays_ns: Vec<u64>,
    /// Bits per second of arriving IP packets, the ends of the flow left out.
    pub(super) arrival_bps: f64,
    /// Bits per second that the sender managed to send.
    pub(super) sent_bps: f64,
}

impl Outcome {
    /// The delay that this share does not exceed; 0 if nothing arrived.
    pub(super) fn delay_ns(&self, share: f64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index into far fewer than 2^53 samples"
        )]
        let index = (self.delays_ns.len().saturating_sub(1) as f64 * share.clamp(0.0, 1.0)).round()
            as usize;
        self.delays_ns.get(index).copied().unwrap_or(0)
    }
}

/// Sends a flow from one host to another and watches it arrive. Answers when the last datagram that
/// can still come has come.
pub(super) fn send(lab: &Lab, from: &Host, to: &Host, flow: Flow) -> Result<Outcome> {
    let receiver = to.netns().run(|| bind(to.addresses().v4))??;
    let target = receiver.local_addr();
    let over = AtomicBool::new(false);
    // The longest time in flight: the path, its full queue, and a margin.
    let linger = Duration::from_nanos(lab.scenario().rtt_ns()) + Duration::from_millis(500);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&receiver, flow, &over, linger));
        let sent = from
            .netns()
            .run(|| transmit(from.addresses().v4, target, flow));
        over.store(true, Ordering::Release);
        let mut outcome = watching
            .join()
            .map_err(|_| io::Error::other("the receiving thread panicked"))??;
        (outcome.sent, outcome.sent_bps) = sent??;
        Ok(outcome)
    })
}

fn bind(address: Ipv4Addr) -> Result<UdpSocket> {
    let mut options = UdpOptions::default();
    options.recv_buffer_bytes = RECV_BUFFER_BYTES;
    UdpSocket::bind(SocketAddr::from((address, 0)), &options).context("cannot open a UDP socket")
}

/// Answers how many datagrams were sent, and their rate.
fn transmit(own: Ipv4Addr, target: SocketAddr, flow: Flow) -> Result<(u64, f64)> {
    set_timer_slack_ns(1)?;
    let socket = bind(own)?;
    let clock = Clock::new();
    let payload_bytes = usize::try_from(flow.wire_bytes - HEADERS_BYTES)?;
    let most = if flow.one_by_one {
        1
    } else {
        (SUPER_PACKET_BYTES_MAX / payload_bytes).clamp(1, SEGMENTS_MAX)
    };
    let mut buffer = vec![0_u8; most * payload_bytes];
    let start_ns = clock.now_ns();
    let end_ns = start_ns + u64::try_from(flow.time.as_nanos())?;
    let mut pace = Pace::new(flow, start_ns);
    // A super-packet is sent when it is full, or, on a slow path, when a millisecond's worth is
    // owed.
    let enough = pace
        .within(Duration::from_millis(1))
        .clamp(1, u64::try_from(most)?);
    let mut number = 0_u64;
    loop {
        let now_ns = clock.now_ns();
        if now_ns >= end_ns {
            let bits = number * u64::from(flow.wire_bytes) * 8;
            return Ok((number, per_second(bits, now_ns - start_ns)));
        }
        let owed = pace.owed(now_ns);
        if owed < enough {
            pause(Duration::from_micros(50))?;
            continue;
        }
        let count = usize::try_from(owed)?.min(most);
        for (segment, number) in buffer
            .chunks_exact_mut(payload_bytes)
            .zip(number..)
            .take(count)
        {
            segment[..8].copy_from_slice(&number.to_be_bytes());
            segment[8..STAMP_BYTES].copy_from_slice(&now_ns.to_be_bytes());
        }
        let bytes = [IoSlice::new(&buffer[..count * payload_bytes])];
        let taken = match socket.send_segments(target, payload_bytes, &bytes) {
            Ok(taken) => u64::try_from(taken)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error).context("cannot send a datagram"),
        };
        number += taken;
        pace.settled += taken;
    }
}

/// Returns how many datagrams of a flow are due by now. A thread that was not scheduled for a while
/// skips its backlog, which would overflow the measured queue.
struct Pace {
    flow: Flow,
    start_ns: u64,
    /// Datagrams sent or forgiven.
    settled: u64,
}

impl Pace {
    fn new(flow: Flow, start_ns: u64) -> Self {
        Self {
            flow,
            start_ns,
            settled: 0,
        }
    }

    fn owed(&mut self, now_ns: u64) -> u64 {
        let due = self.within(Duration::from_nanos(now_ns - self.start_ns));
        let most = self.within(self.flow.catch_up).max(1);
        self.settled = self.settled.max(due.saturating_sub(most));
        due.saturating_sub(self.settled)
    }

    /// Datagrams that the flow sends in this time.
    fn within(&self, time: Duration) -> u64 {
        let bits = u128::from(self.flow.wire_bytes) * 8;
        let due = time.as_nanos() * u128::from(self.flow.rate_bps) / 1_000_000_000 / bits;
        u64::try_from(due).unwrap_or(u64::MAX)
    }
}

fn watch(socket: &UdpSocket, flow: Flow, over: &AtomicBool, linger: Duration) -> Result<Outcome> {
    let clock = Clock::new();
    let drops_before = socket.receive_buffer_drops().unwrap_or(0);
    let mut batch = RecvBatch::new(16, 1 << 16, 0)?;
    let mut seen = Seen::new(flow);
    let mut last_ns: Option<u64> = None;
    loop {
        match socket.recv_batch(&mut batch) {
            Ok(_) => {
                batch.iter().for_each(|received| seen.take(&received));
                last_ns = last_ns.map(|_| clock.now_ns());
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot receive a datagram"),
        }
        if over.load(Ordering::Acquire) {
            let quiet_since = *last_ns.get_or_insert_with(|| clock.now_ns());
            if Duration::from_nanos(clock.now_ns() - quiet_since) > linger {
                break;
            }
        }
        let timeout = Timespec::try_from(Duration::from_millis(20)).map_err(io::Error::other)?;
        rustix::event::poll(
            &mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)],
            Some(&timeout),
        )
        .map_err(io::Error::from)?;
    }
    let drops = socket
        .receive_buffer_drops()
        .unwrap_or(0)
        .wrapping_sub(drops_before);
    Ok(seen.finish(drops))
}

/// The receiver's counters so far.
struct Seen {
    flow: Flow,
    outcome: Outcome,
    /// One bit for each number.
    numbers: Vec<u64>,
    highest: u64,
    /// Arrival and size of every message, for the rate.
    arrivals: Vec<(u64, u64)>,
}

impl Seen {
    fn new(flow: Flow) -> Self {
        Self {
            flow,
            outcome: Outcome::default(),
            numbers: Vec::new(),
            highest: 0,
            arrivals: Vec::new(),
        }
    }

    fn take(&mut self, received: &Received<'_>) {
        let mut last_stamp_ns = None;
        let mut wire_bytes = 0;
        for datagram in received.datagrams() {
            let Some(stamp) = datagram.first_chunk::<STAMP_BYTES>() else {
                continue;
            };
            let (number, stamp_ns) = stamp.split_at(8);
            let read = |bytes: &[u8]| {
                bytes
                    .iter()
                    .fold(0, |value, &byte| value << 8 | u64::from(byte))
            };
            self.count(read(number));
            last_stamp_ns = Some(read(stamp_ns));
            wire_bytes += u64::from(HEADERS_BYTES) + datagram.len() as u64;
        }
        if let Some(stamp_ns) = last_stamp_ns {
            self.outcome
                .delays_ns
                .push(received.arrived_ns.saturating_sub(stamp_ns));
            self.arrivals.push((received.arrived_ns, wire_bytes));
        }
    }

    fn count(&mut self, number: u64) {
        // Far more than any flow sends: a higher number is undetected damage.
        const NUMBER_MAX: u64 = 1 << 32;
        if number >= NUMBER_MAX {
            return;
        }
        let (word, bit) = (
            usize::try_from(number / 64).unwrap_or(0),
            1 << (number % 64),
        );
        if word >= self.numbers.len() {
            self.numbers.resize(word + 1024, 0);
        }
        if self.numbers[word] & bit != 0 {
            self.outcome.doubled += 1;
            return;
        }
        self.numbers[word] |= bit;
        self.outcome.arrived += 1;
        if number < self.highest {
            self.outcome.overtaken += 1;
        }
        self.highest = self.highest.max(number);
    }

    fn finish(mut self, drops: u32) -> Outcome {
        self.outcome.delays_ns.sort_unstable();
        self.outcome.socket_drops = drops.into();
        self.outcome.arrival_bps = self.steady_rate();
        self.outcome
    }

    /// The rate without the first third, in which the queue fills, and only as long as the flow was
    /// sent.
    fn steady_rate(&self) -> f64 {
        let Some(&(first_ns, _)) = self.arrivals.first() else {
            return 0.0;
        };
        let time_ns = u64::try_from(self.flow.time.as_nanos()).unwrap_or(u64::MAX);
        let (from_ns, to_ns) = (first_ns + time_ns / 3, first_ns + time_ns);
        let mut within = self
            .arrivals
            .iter()
            .filter(|(at_ns, _)| (from_ns..to_ns).contains(at_ns));
        let Some(&(start_ns, _)) = within.next() else {
            return 0.0;
        };
        let (bytes, end_ns) = within.fold((0, start_ns), |(bytes, _), &(at_ns, more)| {
            (bytes + more, at_ns)
        });
        per_second(bytes * 8, end_ns - start_ns)
    }
}

fn pause(time: Duration) -> Result<()> {
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    rustix::event::poll(&mut [], Some(&timeout)).map_err(io::Error::from)?;
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bits and nanoseconds of a short flow are far below 2^53"
)]
fn per_second(count: u64, time_ns: u64) -> f64 {
    if time_ns == 0 {
        0.0
    } else {
        count as f64 * 1e9 / time_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        let time = Duration::from_secs(3);
        Seen::new(Flow {
            wire_bytes: 1500,
            rate_bps: 1_000_000,
            time,
            one_by_one: true,
            catch_up: Duration::from_millis(2),
        })
    }

    #[test]
    fn a_sender_that_was_held_up_does_not_send_all_at_once() {
        let flow = Flow {
            wire_bytes: 125,
            ..seen().flow
        };
        let mut pace = Pace::new(flow, 1_000);
        assert_eq!(pace.owed(1_000), 0);
        assert_eq!(pace.owed(1_001_000), 1);
        assert_eq!(
            pace.owed(900_001_000),
            2,
            "two milliseconds are made up for"
        );
        pace.settled += 2;
        assert_eq!(pace.owed(900_001_000), 0);
        assert_eq!(pace.owed(901_001_000), 1);
    }

    #[test]
    fn arrivals_are_distinguished() {
        let mut seen = seen();
        for number in [0, 1, 4, 2, 2, 3, 5, u64::MAX] {
            seen.count(number);
        }
        assert_eq!(
            (
                seen.outcome.arrived,
                seen.outcome.doubled,
                seen.outcome.overtaken
            ),
            (6, 1, 2)
        );
    }

    #[test]
    fn the_rate_is_that_of_the_middle() {
        let mut seen = seen();
        // 1 Mb/s: 125 bytes each millisecond, after a first second at twice that.
        seen.arrivals = (0..4000)
            .map(|ms| (ms * 1_000_000, if ms < 1000 { 250 } else { 125 }))
            .collect();
        assert!(
            (seen.steady_rate() - 1e6).abs() < 1.0,
            "{}",
            seen.steady_rate()
        );
    }

    #[test]
    fn quantiles_of_nothing_are_nothing() {
        assert_eq!(Outcome::default().delay_ns(0.5), 0);
        let outcome = Outcome {
            delays_ns: (0..=100).collect(),
            ..Outcome::default()
        };
        assert_eq!((outcome.delay_ns(0.5), outcome.delay_ns(0.99)), (50, 99));
    }
}
