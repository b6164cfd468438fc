//! UDP: datagrams at a rate. Nothing is retransmitted; the receiver counts.
//!
//! A datagram begins with the ticket of the run, its number in its stream, and when it was sent by
//! the sender's clock; the numbers are big-endian. The client's first datagrams carry the ticket
//! alone: from them the server takes the client's address.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};
use haul_io::clock::Clock;
use haul_io::notify::{wait_readable, wait_writable};
use haul_io::poller::set_timer_slack_ns;
use haul_io::udp::{RecvBatch, SEGMENTS_MAX, SUPER_PACKET_BYTES_MAX, UdpOptions, UdpSocket};

use super::account::{Datagrams, Sample, Sent};
use super::engine::{StreamRun, StreamSet, Streams, each};
use super::failure::Failure;
use super::patience::Patience;
use super::plan::PathPlan;
use super::store::{SinkStore, SourceStore};

/// Rest after a call that failed: the next one may fail at once, too.
const REST: Duration = Duration::from_millis(1);
/// Where no datagram has left for so long, none will.
const REFUSED: Duration = Duration::from_secs(1);
/// The default size of socket buffers, bytes.
const BUFFER: usize = 16 << 20;
/// Longest time that a batch covers.
const BATCH_NS: u64 = 1_000_000;
/// A sender that was held up catches up with so much, and forgets the rest.
const DEBT_NS: u64 = 10_000_000;
/// The receiver is done when so long after the sender nothing more has come.
const QUIET: Duration = Duration::from_millis(500);
/// How often a receiver looks whether it is over.
const TICK_NS: u64 = 50_000_000;
/// The interval of a client's hellos.
const HELLO: Duration = Duration::from_millis(50);
const SECOND_NS: u64 = 1_000_000_000;

/// Where the numbers stand in a datagram.
const NUMBER: usize = 8;
const STAMP: usize = 16;
const HEADER: usize = 24;

/// Sockets, one for each stream, each connected to its peer's.
#[derive(Debug)]
pub(crate) struct Udp {
    ticket: u64,
    flows: Vec<Flow>,
    cancelled: AtomicBool,
}

#[derive(Debug)]
struct Flow {
    socket: UdpSocket,
    peer: SocketAddr,
}

/// Binds the server's sockets, at `port` and those behind it, or at any.
pub(crate) fn bind(plan: &PathPlan, ip: IpAddr, port: u16) -> io::Result<Vec<UdpSocket>> {
    let bind = |index: u16| {
        let port = if port == 0 {
            0
        } else {
            port.checked_add(index).ok_or(io::ErrorKind::InvalidInput)?
        };
        UdpSocket::bind(SocketAddr::new(ip, port), &options(plan))
    };
    (0..plan.streams).map(bind).collect()
}

fn options(plan: &PathPlan) -> UdpOptions {
    let buffer = plan
        .buffer
        .map_or(BUFFER, |bytes| usize::try_from(bytes).unwrap_or(BUFFER));
    let mut options = UdpOptions::default();
    options.recv_buffer_bytes = buffer;
    options.send_buffer_bytes = buffer;
    options.gso = plan.gso;
    options.gro = plan.gso;
    options
}

impl Udp {
    /// The client's side: sends hellos until `heard` returns that the server has received all of
    /// them.
    pub(crate) fn connect(
        plan: &PathPlan,
        server: IpAddr,
        ports: &[u16],
        ticket: u64,
        mut heard: impl FnMut() -> Result<bool, Fault>,
    ) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::new(Code::Unreachable, format!("UDP: {error}"));
        if ports.len() != usize::from(plan.streams) {
            return Err(Fault::protocol("the server has another number of ports"));
        }
        let any: IpAddr = match server {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let open = |port: &u16| {
            let peer = SocketAddr::new(server, *port);
            let socket = UdpSocket::bind(SocketAddr::new(any, 0), &options(plan))?;
            socket.connect(peer)?;
            Ok(Flow { socket, peer })
        };
        let flows = ports
            .iter()
            .map(open)
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?;
        while !heard()? {
            for flow in &flows {
                let hello = ticket.to_be_bytes();
                // A lost hello is repeated.
                let _ = flow
                    .socket
                    .send_segments(flow.peer, hello.len(), &[IoSlice::new(&hello)]);
            }
            std::thread::sleep(HELLO);
        }
        Ok(Self::new(ticket, flows))
    }

    /// The server's side: waits for a hello of the client on every socket.
    pub(crate) fn accept(
        sockets: Vec<UdpSocket>,
        ticket: u64,
        patience: &Patience<'_>,
    ) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::new(Code::Other, format!("UDP: {error}"));
        let mut batch = RecvBatch::new(4, 0, 0).map_err(failed)?;
        let mut flows = Vec::new();
        for socket in sockets {
            let peer = greeted(&socket, &mut batch, ticket, patience)?;
            let Some(peer) = peer else {
                let text = "no datagram of the client arrived";
                return Err(Fault::new(Code::Unreachable, text)
                    .hint("is UDP let through to the server? 'haul bench serve --data-port' sets the ports"));
            };
            socket.connect(peer).map_err(failed)?;
            flows.push(Flow { socket, peer });
        }
        Ok(Self::new(ticket, flows))
    }

    fn new(ticket: u64, flows: Vec<Flow>) -> Self {
        Self {
            ticket,
            flows,
            cancelled: AtomicBool::new(false),
        }
    }
}

/// The sender of the hello with the ticket.
fn greeted(
    socket: &UdpSocket,
    batch: &mut RecvBatch,
    ticket: u64,
    patience: &Patience<'_>,
) -> Result<Option<SocketAddr>, Fault> {
    while let Some(left) = patience.left()? {
        let ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let waited = wait_readable([socket.as_fd()], Some(ns));
        waited.map_err(|error| Fault::new(Code::Other, format!("UDP: {error}")))?;
        if receive(socket, batch) == 0 {
            continue;
        }
        let hello = |bytes: &[u8]| bytes.get(..NUMBER) == Some(&ticket.to_be_bytes());
        if let Some(message) = batch.iter().find(|message| hello(message.bytes)) {
            return Ok(Some(message.from));
        }
    }
    Ok(None)
}

/// Receives; returns nothing if nothing has arrived or the call fails, which counts as a lost
/// datagram.
fn receive(socket: &UdpSocket, batch: &mut RecvBatch) -> usize {
    socket.recv_batch(batch).unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            std::thread::sleep(REST);
        }
        0
    })
}

impl StreamSet for Udp {
    fn send(&self, run: &StreamRun<'_>, source: &SourceStore) -> Result<Streams<Sent>, Failure> {
        each(
            &self.flows,
            || self.cancel(),
            |_, flow| {
                let _ = set_timer_slack_ns(1);
                self.send_flow(run, source, flow)
            },
        )
    }

    fn receive(&self, run: &StreamRun<'_>, _sink: &SinkStore) -> Result<Streams<()>, Failure> {
        let (all, arrivals) = (Mutex::new(Datagrams::default()), AtomicU64::new(0));
        let received = each(
            &self.flows,
            || self.cancel(),
            |index, flow| {
                let counted = self.receive_flow(run, index, flow, &arrivals)?;
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.received += counted.received;
                all.late += counted.late;
                all.jitter_ns = all.jitter_ns.max(counted.jitter_ns);
                all.kernel_drops += counted.kernel_drops;
                Ok(())
            },
        )?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        *run.datagrams.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        Ok(received)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    fn sample(&self) -> Sample {
        Sample::default()
    }
}

impl Udp {
    fn cancelled(&self) -> io::Result<()> {
        if self.cancelled.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }

    fn send_flow(
        &self,
        run: &StreamRun<'_>,
        source: &SourceStore,
        flow: &Flow,
    ) -> Result<Sent, Failure> {
        let len = usize::try_from(run.plan.message)
            .unwrap_or(HEADER)
            .max(HEADER);
        let mut pace = Pace::new(run.plan, len);
        let mut buffer: Vec<u8> = Vec::new();
        let memory = source.memory.as_deref().unwrap_or_default();
        buffer.extend(memory.iter().copied().cycle().take(len * pace.segments));
        buffer.resize(len * pace.segments, 0);
        let (clock, begun) = (Clock::new(), Instant::now());
        let (mut number, mut refused, mut is_sent) = (0, None, false);
        while run.budget.take(run.plan.message).is_some() {
            self.cancelled()?;
            pace.wait(&clock);
            let stamp = clock.now_ns();
            for datagram in buffer.chunks_mut(len) {
                datagram[..NUMBER].copy_from_slice(&self.ticket.to_be_bytes());
                datagram[NUMBER..STAMP].copy_from_slice(&u64::to_be_bytes(number));
                datagram[STAMP..HEADER].copy_from_slice(&stamp.to_be_bytes());
                number += 1;
            }
            let mut rest = buffer.as_slice();
            while !rest.is_empty() {
                match flow
                    .socket
                    .send_segments(flow.peer, len, &[IoSlice::new(rest)])
                {
                    Ok(sent) => {
                        rest = &rest[(sent * len).min(rest.len())..];
                        is_sent = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.cancelled()?;
                        wait_writable([flow.socket.as_fd()], Some(TICK_NS))?;
                    }
                    // The error is about an earlier datagram.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) if error.raw_os_error() == Some(EMSGSIZE) => {
                        return Err(Failure::PathPlan(
                            "the datagram is longer than the path's packets: ask for a shorter --message",
                        ));
                    }
                    // Nothing leaves: this is no loss.
                    Err(error) if !is_sent && begun.elapsed() > REFUSED => {
                        return Err(Failure::Path(error));
                    }
                    // The batch is lost.
                    Err(error) => {
                        refused = Some(error);
                        std::thread::sleep(REST);
                        break;
                    }
                }
            }
        }
        if let Some(error) = refused.filter(|_| !is_sent) {
            return Err(Failure::Path(error));
        }
        Ok(Sent {
            bytes: number * len as u64,
            datagrams: number,
            ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
            ..Sent::default()
        })
    }

    fn receive_flow(
        &self,
        run: &StreamRun<'_>,
        index: usize,
        flow: &Flow,
        arrivals: &AtomicU64,
    ) -> Result<Datagrams, Failure> {
        let mut batch = RecvBatch::new(32, 0, 0)?;
        let mut counted = Counted::default();
        let dropped = flow.socket.receive_buffer_drops()?;
        let mut latest = Instant::now();
        loop {
            self.cancelled()?;
            wait_readable([flow.socket.as_fd()], Some(TICK_NS))?;
            if receive(&flow.socket, &mut batch) == 0 {
                let Some(sent) = run.announced.datagrams() else {
                    latest = Instant::now();
                    continue;
                };
                if arrivals.load(Ordering::Relaxed) >= sent || latest.elapsed() > QUIET {
                    break;
                }
                continue;
            }
            latest = Instant::now();
            let before = counted.datagrams.received;
            let mut bytes = 0;
            for message in batch.iter() {
                for datagram in message.datagrams() {
                    if counted.note(datagram, self.ticket, message.arrived_ns) {
                        bytes += datagram.len() as u64;
                    }
                }
            }
            arrivals.fetch_add(counted.datagrams.received - before, Ordering::Relaxed);
            if bytes > 0 {
                run.tally.add(index, bytes);
            }
        }
        let dropped = flow.socket.receive_buffer_drops()?.wrapping_sub(dropped);
        Ok(Datagrams {
            kernel_drops: dropped.into(),
            ..counted.datagrams
        })
    }
}

/// Linux's number for a message that is too long; `io::ErrorKind` has no stable name for it.
const EMSGSIZE: i32 = 90;

/// When batches leave.
struct Pace {
    /// Datagrams of a batch.
    segments: usize,
    /// Between batches, nanoseconds; zero as fast as can be.
    gap_ns: u64,
    due_ns: u64,
}

impl Pace {
    fn new(plan: &PathPlan, len: usize) -> Self {
        let most = (SUPER_PACKET_BYTES_MAX / len).clamp(1, SEGMENTS_MAX);
        let most = most.min(usize::try_from(plan.depth).unwrap_or(most));
        let most = if plan.gso { most } else { 1 };
        let Some(rate) = plan.stream_rate_bps() else {
            return Self {
                segments: most,
                gap_ns: 0,
                due_ns: 0,
            };
        };
        let bits = len as u64 * 8;
        let in_time = rate.saturating_mul(BATCH_NS) / SECOND_NS / bits;
        let segments = usize::try_from(in_time).unwrap_or(most).clamp(1, most);
        let gap = u128::from(bits) * segments as u128 * u128::from(SECOND_NS) / u128::from(rate);
        Self {
            segments,
            gap_ns: u64::try_from(gap).unwrap_or(u64::MAX),
            due_ns: 0,
        }
    }

    fn wait(&mut self, clock: &Clock) {
        if self.gap_ns == 0 {
            return;
        }
        let now = clock.now_ns();
        if let Some(left) = self.due_ns.checked_sub(now).filter(|left| *left > 0) {
            std::thread::sleep(Duration::from_nanos(left));
        }
        self.due_ns = self.due_ns.max(now.saturating_sub(DEBT_NS)) + self.gap_ns;
    }
}

/// Received datagrams of one stream.
#[derive(Debug, Default)]
struct Counted {
    datagrams: Datagrams,
    highest: Option<u64>,
    /// Arrival less sending, of the latest.
    transit_ns: Option<i128>,
}

impl Counted {
    /// Counts a datagram, unless it has a wrong ticket or is a late hello.
    fn note(&mut self, datagram: &[u8], ticket: u64, arrived_ns: u64) -> bool {
        let Some(header) = datagram.first_chunk::<HEADER>() else {
            return false;
        };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_be_bytes(word)
        };
        if word(0) != ticket {
            return false;
        }
        let number = word(NUMBER);
        self.datagrams.received += 1;
        if self.highest.is_some_and(|highest| number < highest) {
            self.datagrams.late += 1;
        }
        self.highest = self.highest.max(Some(number));
        let transit = i128::from(arrived_ns) - i128::from(word(STAMP));
        if let Some(before) = self.transit_ns.replace(transit) {
            // J += (|D| - J) / 16
            let change = u64::try_from((transit - before).unsigned_abs()).unwrap_or(u64::MAX);
            let jitter = self.datagrams.jitter_ns;
            self.datagrams.jitter_ns = jitter - jitter / 16 + change / 16;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::plan;

    fn datagram(number: u64, stamp: u64) -> Vec<u8> {
        [7, number, stamp]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect()
    }

    #[test]
    fn late_datagrams_and_jitter_are_counted_and_foreign_datagrams_are_not() {
        let mut counted = Counted::default();
        for (number, sent, arrived) in [
            (0, 0, 1_000),
            (2, 100, 1_100),
            (1, 50, 2_650),
            (3, 200, 1_200),
        ] {
            assert!(counted.note(&datagram(number, sent), 7, arrived));
        }
        assert!(!counted.note(&datagram(4, 0), 8, 0));
        assert!(!counted.note(&7_u64.to_be_bytes(), 7, 0));
        let found = counted.datagrams;
        assert_eq!((found.received, found.late), (4, 1));
        // 1600 / 16 = 100, less 6, plus 1600 / 16.
        assert_eq!(found.jitter_ns, 194);
    }

    #[test]
    fn a_batch_holds_no_more_than_a_millisecond() {
        let mut plan = PathPlan::new(plan::Engine::Udp);
        assert_eq!(
            (
                Pace::new(&plan, 1000).segments,
                Pace::new(&plan, 1000).gap_ns
            ),
            (64, 0)
        );
        plan.rate_bps = Some(80_000_000);
        let pace = Pace::new(&plan, 1000);
        assert_eq!((pace.segments, pace.gap_ns), (10, 1_000_000));
        plan.rate_bps = Some(8_000);
        let pace = Pace::new(&plan, 1000);
        assert_eq!((pace.segments, pace.gap_ns), (1, SECOND_NS));
        plan.gso = false;
        plan.rate_bps = None;
        assert_eq!(Pace::new(&plan, 1000).segments, 1);
    }
}
