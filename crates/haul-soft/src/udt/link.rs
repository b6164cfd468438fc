//! The loop that drives one connection over one socket, on the thread that uses it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use haul_cc::{Remembered, Time};
use haul_io::clock::Clock;
use haul_io::notify::Doorbell;
use haul_io::poller::{Events, Interest, Poller, Waker, set_timer_slack_ns};
use haul_io::ring::mirror_ring;
use haul_io::udp::{RecvBatch, UdpSocket};
use haul_seal::Seal;
use haul_udt::wire::{HEADER_LEN, SEAL_LEN, piece_len};
use haul_udt::{Connection, Event, Joiner, Placement, Received, Seq, Stats, Transmit};

use super::handshake::{Opening, UdtHandshake};
use super::incoming::Incoming;
use super::outgoing::{Outgoing, RING_BYTES, read_ahead};
use super::place::Place;
use super::sealing::{Sealing, open};
use super::trouble::{FAILURES, Trouble, rest};
use super::{LinkError, LinkOptions};
use crate::bulk::{Sink, Source};

/// One connection, its socket and its buffers.
#[derive(Debug)]
pub struct Link {
    socket: UdpSocket,
    peer: SocketAddr,
    pub(super) connection: Connection,
    poller: Poller,
    events: Events,
    batch: RecvBatch,
    /// Messages of `batch` that the connection has seen.
    taken: usize,
    /// No caller has named a place for payload yet: what arrives behind the response to the
    /// handshake waits in `batch`.
    opening: bool,
    transmit: Transmit,
    /// Segments of `transmit` that have left; the rest waits for room in the socket's buffer.
    pub(super) left: Option<usize>,
    clock: Clock,
    pub(super) now: Time,
    shared: Arc<Shared>,
    stats_due: Time,
    /// Packets are sent as ECN-capable: this end reacts to marks of congestion.
    ecn_capable: bool,
    /// Bytes that the latest turn received.
    pub(super) arrived: u64,
    /// The latest turn left nothing in the socket.
    pub(super) drained: bool,
    /// When arrivals were last left to gather.
    paused: Time,
    pub(super) ended: Option<Option<haul_udt::Error>>,
    peer_closed: bool,
    trouble: Trouble,
    joiner: Joiner,
    sealing: Option<Sealing>,
    /// Packets of `transmit` travel in pieces, and so does the rest of it.
    cutting: bool,
    /// Packets too long for the path, and the pieces of one.
    long: (Vec<u8>, Vec<u8>),
    /// The peer may open its socket later than this end.
    patient: bool,
    /// This half of a stream has ended.
    pub(super) ending: bool,
    /// Another process wakes it.
    bell: Option<Arc<Doorbell>>,
}

#[derive(Debug)]
struct Shared {
    /// The loop ends.
    finished: AtomicBool,
    /// What has arrived and not been written yet is given up as well.
    closed: AtomicBool,
    waker: Waker,
    stats: Mutex<Option<Stats>>,
}

/// Watches or ends a [`Link`] from another thread.
#[derive(Debug, Clone)]
pub struct Remote(Arc<Shared>);

const TOKEN: u64 = 1;
const BELL: u64 = 2;
const RECEIVE_MESSAGES: usize = 8;
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Bytes that one call receives from the kernel at most.
pub(super) const RECEIVE_MEMORY_BYTES: usize = RECEIVE_MESSAGES * RECEIVE_BUFFER_BYTES;
/// Rounds of receiving, and batches sent, before the other direction gets its turn.
const RECEIVE_ROUNDS: usize = FAILURES;
const SEND_BATCHES: usize = 8;
/// How long arrivals gather where no report is due.
const PAUSE_NS: u64 = haul_cc::time::MILLISECOND_NS / 4;
const PAUSE_NS_MAX: u64 = 2 * haul_cc::time::MILLISECOND_NS;
/// A sender paced slower than this between batches listens to its peer while it waits.
pub(super) const NAP_NS_MAX: u64 = 2 * haul_cc::time::MILLISECOND_NS;
/// How long a peer gets to learn why it gets no keys.
const REFUSAL_NS: u64 = haul_cc::time::SECOND_NS;
const STATS_NS: u64 = 50 * haul_cc::time::MILLISECOND_NS;
/// How long a sender without data sleeps before it looks for more by itself.
const IDLE_NS: u64 = 5 * haul_cc::time::MILLISECOND_NS;
/// With this much still to send, the source is not asked for more.
const BACKLOG_BYTES: u64 = 4 << 20;
/// The ECN bits of a packet that met a filling queue (RFC 3168 §5).
const CONGESTION_EXPERIENCED: u8 = 0b11;
/// How often timers act while the socket's buffer stays full.
pub(crate) const BLOCKED_NS: u64 = 20 * haul_cc::time::MILLISECOND_NS;
/// Slices of one placement: the packets of a super-packet.
const RUN: usize = 64;

struct NoSink;

impl Place for NoSink {
    fn place(&mut self, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "payload arrived at the sending end",
        ))
    }
}

struct Into<'a>(&'a dyn Sink);

impl Place for Into<'_> {
    fn place(&mut self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.place(position, parts)
    }
}

impl Link {
    pub(super) fn new(
        socket: UdpSocket,
        peer: SocketAddr,
        connection: Connection,
        sealing: Option<Sealing>,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&socket, TOKEN, Interest::READ)?;
        let clock = Clock::new();
        Ok(Self {
            shared: Arc::new(Shared {
                finished: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                waker: poller.waker(),
                stats: Mutex::new(None),
            }),
            batch: RecvBatch::new(RECEIVE_MESSAGES, RECEIVE_BUFFER_BYTES, 0)?,
            events: Events::with_capacity(4),
            transmit: Transmit::default(),
            taken: 0,
            opening: false,
            left: None,
            now: Time::from_ns(clock.now_ns()),
            clock,
            socket,
            peer,
            connection,
            poller,
            stats_due: Time::ZERO,
            ecn_capable: false,
            arrived: 0,
            drained: true,
            paused: Time::ZERO,
            ended: None,
            peer_closed: false,
            trouble: Trouble::default(),
            joiner: Joiner::default(),
            sealing,
            cutting: false,
            long: Default::default(),
            patient: false,
            ending: false,
            bell: None,
        })
    }

    /// Returns a handle for other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.shared))
    }

    /// Gives a sealed link that has none the secret of this connection. It neither sends nor takes
    /// anything but handshakes before.
    pub fn set_seal(&mut self, seal: Seal) {
        if let Some(sealing) = &mut self.sealing {
            sealing.set(seal);
        }
    }

    /// Starts from what an earlier link found on the path. For a link that has sent nothing.
    pub fn resume(&mut self, remembered: Remembered) {
        self.connection.resume(remembered);
    }

    /// Sets what was not known when the listener accepted this link: congestion control, idle
    /// timeout and receive buffer. False if the options demand a seal and the peers agreed on
    /// none, or the other way round. For a link that has neither sent nor received.
    #[must_use]
    pub fn configure(&mut self, options: &LinkOptions) -> bool {
        self.read_clock();
        let config = &options.config;
        self.connection
            .configure(self.now, config.control, config.idle_timeout_ns);
        // The kernel's own buffer serves as well, only less.
        let _ = self.socket.set_recv_buffer(options.recv_buffer_bytes);
        let sealed = self.connection.params().map(|params| params.seal);
        sealed == Some(config.seal || options.seal.is_some())
    }

    /// Returns the address of its socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Readable while something has happened on the socket.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Returns the receive buffer that the kernel gave, bytes by its own count.
    #[must_use]
    pub fn recv_buffer_bytes(&self) -> usize {
        self.socket.recv_buffer_bytes()
    }

    /// Returns the counters; the last known ones after the end.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.connection.stats().or_else(|| self.remote().stats())
    }

    /// Sends the space of `source` as it grows; returns when it is complete and all of it has
    /// arrived.
    ///
    /// # Errors
    /// [`LinkError`]; the link is closed then.
    pub fn send(&mut self, source: &dyn Source) -> Result<(), LinkError> {
        self.require_placement()?;
        let result = if source.memory_at(0).is_some() {
            self.drive_send(&mut Outgoing::Memory { source })
        } else {
            self.send_read_ahead(source)
        };
        self.finish(result)
    }

    fn send_read_ahead(&mut self, source: &dyn Source) -> Result<(), LinkError> {
        let (producer, consumer) = mirror_ring(RING_BYTES).map_err(LinkError::System)?;
        let stop = AtomicBool::new(false);
        let waker = self.poller.waker();
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("haul-read".into());
            let reader = builder
                .spawn_scoped(scope, || read_ahead(source, producer, &waker, &stop))
                .map_err(LinkError::System)?;
            let mut outgoing = Outgoing::ring(source, consumer, reader.thread().clone());
            let sent = self.drive_send(&mut outgoing);
            stop.store(true, Ordering::Release);
            drop(outgoing);
            reader.thread().unpark();
            match reader.join() {
                Ok(Err(error)) => Err(LinkError::Source(error)),
                _ => sent,
            }
        })
    }

    fn drive_send(&mut self, outgoing: &mut Outgoing<'_>) -> Result<(), LinkError> {
        // Timers coarser than this cost throughput; without the right to set them they still work.
        let _ = set_timer_slack_ns(1);
        let (mut written, mut complete, mut told) = (0, false, 0);
        loop {
            let sent = self.connection.sent_position();
            // Whoever waits for the last byte to leave looks at the counters.
            if sent == written && sent > told {
                self.publish_stats();
                told = sent;
            }
            let backlog = written - sent;
            if !complete && backlog < BACKLOG_BYTES {
                let available = outgoing.available(written);
                if available.failed {
                    return Err(LinkError::Closed);
                }
                complete = available.complete;
                let _ = self
                    .connection
                    .write(self.now, available.end - written, available.push);
                written = available.end;
            }
            if complete && self.connection.is_drained() && self.left.is_none() {
                return Ok(());
            }
            self.follow_ecn()?;
            self.turn(outgoing, &mut NoSink)?;
            outgoing.release(self.connection.released(), self.connection.sent_position());
            match self.connection.paced_until() {
                Some(due) if self.left.is_none() && due.since(self.now) <= NAP_NS_MAX => {
                    self.nap(due);
                }
                _ => {
                    let idle = self.connection.sent_position() == written && !complete;
                    self.sleep(idle.then(|| self.now.after(IDLE_NS)))?;
                }
            }
        }
    }

    /// Marks packets as ECN-capable where the connection is. Only a sender's: control packets are
    /// not marked.
    pub(super) fn follow_ecn(&mut self) -> Result<(), LinkError> {
        let capable = self.connection.is_ecn_capable();
        if capable != self.ecn_capable {
            self.socket
                .set_ecn_capable(capable)
                .map_err(LinkError::Network)?;
            self.ecn_capable = capable;
        }
        Ok(())
    }

    /// Places what arrives into `sink` until the peer has closed.
    ///
    /// # Errors
    /// [`LinkError`]; the link is closed then.
    pub fn receive(&mut self, sink: &dyn Sink) -> Result<(), LinkError> {
        self.require_placement()?;
        let result = if sink.may_block() {
            self.receive_write_behind(sink)
        } else {
            self.drive_receive(&mut Into(sink), None)
        };
        self.finish(result)
    }

    /// A thread of its own waits for the sink; this one goes on to receive, as far as there is
    /// room.
    fn receive_write_behind(&mut self, sink: &dyn Sink) -> Result<(), LinkError> {
        let incoming = Incoming::default();
        let (waker, shared) = (self.poller.waker(), Arc::clone(&self.shared));
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("haul-write".into());
            let writer = builder
                .spawn_scoped(scope, || incoming.write_out(sink, &waker, &shared.closed))
                .map_err(LinkError::System)?;
            let received = self.drive_receive(&mut &incoming, Some(&incoming));
            incoming.finish();
            match writer.join() {
                Ok(Err(error)) => Err(LinkError::Sink(error)),
                // Another thread closed the link before the sink took what had arrived.
                _ if incoming.holds_payload() => received.and(Err(LinkError::Closed)),
                _ => received,
            }
        })
    }

    fn drive_receive(
        &mut self,
        place: &mut dyn Place,
        incoming: Option<&Incoming>,
    ) -> Result<(), LinkError> {
        let _ = set_timer_slack_ns(1);
        let mut outgoing = Outgoing::Memory { source: &Nothing };
        loop {
            if let Some(incoming) = incoming {
                let (held, most) = incoming.room(self.now).map_err(LinkError::Sink)?;
                self.connection.limit_room(self.now, held, most);
            }
            match self.turn(&mut outgoing, place) {
                Err(LinkError::PeerClosed) => return Ok(()),
                other => other?,
            }
            let delivered = self.connection.delivered_offset();
            self.connection.consume(self.now, delivered);
            self.flush(&mut outgoing)?;
            if self.arrived == 0 || self.left.is_some() {
                self.sleep(None)?;
            } else if self.drained {
                std::thread::sleep(self.pause());
            }
        }
    }

    /// How long to let arrivals gather: a wake-up for each costs more than what it brings. Bounded
    /// by what feedback can wait for and by the socket's buffer.
    pub(super) fn pause(&mut self) -> Duration {
        let room = self.socket.recv_buffer_bytes() as u64 / 8;
        let since_ns = self.now.since(self.paused).max(1);
        let fill_ns = room.saturating_mul(since_ns) / self.arrived.max(1);
        self.paused = self.now;
        let due = self.connection.feedback_due();
        let patience_ns = due.map_or(PAUSE_NS, |due| due.since(self.now));
        Duration::from_nanos(patience_ns.min(PAUSE_NS_MAX).min(fill_ns))
    }

    /// Sleeps until the pace lets more go; feedback that comes meanwhile waits, a wake-up of its
    /// own costs more than it brings.
    pub(super) fn nap(&self, due: Time) {
        let ns = due.since(Time::from_ns(self.clock.now_ns()));
        if ns > 0 {
            std::thread::sleep(Duration::from_nanos(ns));
        }
    }

    fn require_placement(&self) -> Result<(), LinkError> {
        match self.connection.params() {
            Some(_) if self.waits_for_secret() => {
                let error = "a sealed channel has no secret";
                Err(LinkError::System(io::Error::other(error)))
            }
            Some(params) if params.placement => Ok(()),
            Some(_) => Err(LinkError::Plain),
            None => Err(LinkError::Closed),
        }
    }

    fn waits_for_secret(&self) -> bool {
        let sealing = self.sealing.as_ref();
        sealing.is_some_and(|sealing| !sealing.has_secret())
    }

    /// Tells the peer that it is over, whatever the result.
    fn finish(&mut self, result: Result<(), LinkError>) -> Result<(), LinkError> {
        self.publish_stats();
        if result.is_ok() {
            self.connection.close(self.now);
        } else {
            self.connection.abort(self.now);
        }
        let _ = self.flush(&mut Outgoing::Memory { source: &Nothing });
        result
    }

    /// Drives the handshake.
    pub(super) fn wait_open(&mut self, patient: bool) -> Result<(), LinkError> {
        self.patient = patient;
        while !self.try_open()? {
            self.sleep(None)?;
        }
        Ok(())
    }

    /// Makes the keys of an open plain connection for messages, whose first packet has the number
    /// `initial`, and opens a sealed one with `options` in its place. Blocks for both together as
    /// long as a connection may take to open.
    pub(super) fn secure(
        &mut self,
        handshake: UdtHandshake,
        initial: Seq,
        options: &LinkOptions,
    ) -> Result<(), LinkError> {
        let mut handshake = Some(Box::new(handshake));
        let mut initial = u64::from(initial.get());
        let config = options.config_for(self.peer, self.socket.path_mtu());
        self.read_clock();
        let mut until = self.now.after(config.connect_timeout_ns);
        let mut failed = None;
        loop {
            let mut opening = Opening {
                socket: &self.socket,
                peer: self.peer,
                shown: None,
                udt: &mut self.connection,
                initial: &mut initial,
                transmit: &mut self.transmit,
                handshake: &mut handshake,
                sealing: &mut self.sealing,
                config: &config,
            };
            for _ in 0..RECEIVE_ROUNDS {
                let message = next_message(&self.socket, &mut self.batch, &mut self.taken);
                let Some(datagrams) = message else { break };
                for datagram in datagrams {
                    if let Err(error) = opening.handle_securing(self.now, datagram) {
                        failed = Some(error);
                        until = until.min(self.now.after(REFUSAL_NS));
                    }
                }
                if opening.handshake.is_none() {
                    return Ok(());
                }
            }
            opening.send_opening(self.now);
            let is_over = self.now >= until || self.shared.finished.load(Ordering::Acquire);
            match failed.take_if(|_| is_over || self.connection.is_closed()) {
                Some(error) => return Err(error.into()),
                None if failed.is_none() => self.note_events()?,
                None => {}
            }
            if is_over {
                return Err(LinkError::Protocol(haul_udt::Error::TimedOut));
            }
            let first = handshake.as_ref().and_then(|it| it.poll_timeout(self.now));
            self.sleep(Some(first.map_or(until, |first| first.min(until))))?;
            self.read_clock();
        }
    }

    /// Drives the handshake as far as it goes now; whether the connection is open.
    pub(super) fn try_open(&mut self) -> Result<bool, LinkError> {
        let mut outgoing = Outgoing::Memory { source: &Nothing };
        self.opening = true;
        if self.connection.params().is_none() {
            self.turn(&mut outgoing, &mut NoSink)?;
        }
        self.opening = self.connection.params().is_none();
        if !self.opening {
            self.flush(&mut outgoing)?;
        }
        Ok(!self.opening)
    }

    /// Receives, lets timers act, sends.
    pub(super) fn turn(
        &mut self,
        outgoing: &mut Outgoing<'_>,
        place: &mut dyn Place,
    ) -> Result<(), LinkError> {
        self.read_clock();
        self.receive_some(place)?;
        self.connection.handle_timeout(self.now);
        if self.connection.wants_fragments(self.now) {
            self.socket.allow_fragments();
        }
        self.flush(outgoing)?;
        self.note_events()?;
        if self.shared.finished.load(Ordering::Acquire) {
            return Err(LinkError::Closed);
        }
        if self.now >= self.stats_due {
            self.publish_stats();
        }
        Ok(())
    }

    pub(super) fn read_clock(&mut self) {
        self.now = Time::from_ns(self.clock.now_ns());
    }

    fn publish_stats(&mut self) {
        self.stats_due = self.now.after(STATS_NS);
        if let Some(stats) = self.connection.stats() {
            *self
                .shared
                .stats
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(stats);
        }
    }

    fn receive_some(&mut self, place: &mut dyn Place) -> Result<(), LinkError> {
        self.arrived = 0;
        self.drained = false;
        let mut failed = 0;
        for _ in 0..RECEIVE_ROUNDS {
            if self.batch.message(self.taken).is_none() {
                match self.socket.recv_batch(&mut self.batch) {
                    Ok(count) if count > 0 => {
                        self.taken = 0;
                        self.trouble.clear();
                    }
                    Ok(_) => return self.judge_refusal(),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.drained = true;
                        return self.judge_refusal();
                    }
                    Err(error) => {
                        let (socket, udt) = (&self.socket, &mut self.connection);
                        self.trouble.note(self.now, error, socket, udt);
                        failed += 1;
                        continue;
                    }
                }
                self.now = Time::from_ns(self.batch.now_ns());
            }
            while let Some(message) = self.batch.message(self.taken) {
                if self.opening && self.connection.params().is_some() {
                    return Ok(());
                }
                self.taken += 1;
                self.arrived += message.bytes.len() as u64;
                let arrived = Time::from_ns(message.arrived_ns);
                let marked = message.ecn == CONGESTION_EXPERIENCED;
                let datagrams = self.batch.datagrams_mut(self.taken - 1);
                let parts = (&mut self.connection, &mut self.joiner, &mut self.sealing);
                take(parts, self.now, (arrived, marked), datagrams, place)
                    .map_err(LinkError::Sink)?;
            }
        }
        if failed == RECEIVE_ROUNDS {
            rest();
            return self.judge_refusal();
        }
        Ok(())
    }

    /// Judges a report of the peer's host that no socket is bound there. It ends the link if it
    /// lasts for a while, or if the link is not open yet; unless the peer has closed in order
    /// before, or is still to come.
    fn judge_refusal(&mut self) -> Result<(), LinkError> {
        if !self.trouble.take_refusal() || self.connection.is_closed() {
            return Ok(());
        }
        let fatal = match self.connection.params() {
            Some(_) => self.trouble.is_refused_for_good(self.now, self.ending),
            None => !self.patient,
        };
        match self.trouble.take_latest_if(fatal) {
            Some(error) => Err(LinkError::Network(error)),
            None => Ok(()),
        }
    }

    /// Sends what the connection wants to send now.
    pub(super) fn flush(&mut self, outgoing: &mut Outgoing<'_>) -> Result<(), LinkError> {
        for _ in 0..SEND_BATCHES {
            if self.left.is_none() {
                let may_send = !self.waits_for_secret() || self.connection.has_handshake();
                if !may_send || !self.connection.poll_transmit(self.now, &mut self.transmit) {
                    return Ok(());
                }
                self.left = Some(0);
                self.cutting = false;
                if let Some(sealing) = &mut self.sealing {
                    sealing.clear();
                }
            }
            if !self.push_out(outgoing)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hands `transmit` to the socket; false when its buffer is full.
    fn push_out(&mut self, outgoing: &mut Outgoing<'_>) -> Result<bool, LinkError> {
        let (socket, peer, transmit) = (&self.socket, self.peer, &self.transmit);
        let skip = self.left.unwrap_or(0);
        let total = transmit.headers.len().saturating_sub(skip);
        let segment_len = transmit.segment_len();
        let (taken, total) = if self.cutting || segment_len > self.connection.datagram_max() {
            (self.push_pieces(outgoing, skip)?, total)
        } else if transmit.sealed.is_some() {
            (self.push_sealed(outgoing, skip)?, total.max(1))
        } else if transmit.control.is_empty() {
            let sent = outgoing
                .gather(transmit, skip, |slices| {
                    socket.send_segments(peer, segment_len, slices)
                })
                .map_err(LinkError::Source)?;
            (sent, total)
        } else {
            let control = [IoSlice::new(&transmit.control)];
            (
                socket.send_segments(peer, transmit.control.len(), &control),
                1,
            )
        };
        match taken {
            Ok(taken) if taken >= total => self.left = None,
            Ok(taken) => self.left = Some(skip + taken),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                let (socket, udt) = (&self.socket, &mut self.connection);
                if !self.trouble.note(self.now, error, socket, udt) {
                    self.left = None;
                }
                return Ok(true);
            }
        }
        let interest = if self.left.is_some() {
            Interest::BOTH
        } else {
            return Ok(true);
        };
        self.poller
            .modify(&self.socket, TOKEN, interest)
            .map_err(LinkError::Network)?;
        Ok(false)
    }

    /// Hands the packets of `transmit` but the first `skip` to the socket, sealed; how many it
    /// took.
    fn push_sealed(
        &mut self,
        outgoing: &mut Outgoing<'_>,
        skip: usize,
    ) -> Result<io::Result<usize>, LinkError> {
        let (connection, transmit) = (&self.connection, &self.transmit);
        let Some(sealing) = &mut self.sealing else {
            return Err(LinkError::System(io::ErrorKind::InvalidInput.into()));
        };
        let is_control = !transmit.control.is_empty();
        if sealing.is_empty() {
            let sealed = if let (true, Some(first)) = (is_control, transmit.sealed) {
                let control = &transmit.control;
                sealing.seal_packets(connection, first, control, control.len())
            } else {
                outgoing
                    .gather(transmit, 0, |slices| {
                        sealing.seal_batch(connection, transmit, slices)
                    })
                    .map_err(LinkError::Source)?
            };
            sealed.map_err(LinkError::System)?;
        }
        let segment_len = if is_control {
            transmit.control.len()
        } else {
            transmit.segment_len()
        } + SEAL_LEN;
        let slices = [IoSlice::new(sealing.rest(segment_len, skip))];
        Ok(self.socket.send_segments(self.peer, segment_len, &slices))
    }

    /// Hands the packets of `transmit` but the first `skip` to the socket in pieces; how many it
    /// took whole.
    fn push_pieces(
        &mut self,
        outgoing: &mut Outgoing<'_>,
        skip: usize,
    ) -> Result<io::Result<usize>, LinkError> {
        let (segment_len, max) = (self.transmit.segment_len(), self.connection.datagram_max());
        let len = piece_len(segment_len, max);
        self.cutting = true;
        let (packets, pieces) = (&mut self.long.0, &mut self.long.1);
        packets.clear();
        outgoing
            .gather(&self.transmit, skip, |slices| {
                slices
                    .iter()
                    .for_each(|slice| packets.extend_from_slice(slice));
            })
            .map_err(LinkError::Source)?;
        for (sent, packet) in packets.chunks(segment_len).enumerate() {
            pieces.clear();
            let (count, sealed) = self.connection.cut(packet, len, pieces);
            let (len, bytes) = match (&mut self.sealing, sealed) {
                (Some(sealing), Some(first)) => {
                    sealing.clear();
                    sealing
                        .seal_packets(&self.connection, first, pieces, len)
                        .map_err(LinkError::System)?;
                    (len + SEAL_LEN, sealing.rest(len, 0))
                }
                // Nothing leaves without a seal.
                (Some(_), None) => continue,
                (None, _) => (len, pieces.as_slice()),
            };
            let slices = [IoSlice::new(bytes)];
            match self.socket.send_segments(self.peer, len, &slices) {
                Ok(taken) if taken >= count => {}
                Ok(_) if sent == 0 => return Ok(Err(io::ErrorKind::WouldBlock.into())),
                Err(error) if sent == 0 => return Ok(Err(error)),
                // What is left of this packet leaves with all of it.
                _ => return Ok(Ok(sent)),
            }
        }
        Ok(Ok(self.transmit.headers.len() - skip))
    }

    fn note_events(&mut self) -> Result<(), LinkError> {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Connected(_) => {}
                Event::PeerClosed => self.peer_closed = true,
                Event::Closed(reason) => self.ended = Some(reason),
            }
        }
        match self.ended {
            Some(Some(haul_udt::Error::TimedOut)) => Err(self.trouble.take_latest_if(true).map_or(
                LinkError::Protocol(haul_udt::Error::TimedOut),
                LinkError::Silent,
            )),
            Some(Some(error)) => Err(LinkError::Protocol(error)),
            Some(None) if self.peer_closed => Err(LinkError::PeerClosed),
            Some(None) => Err(LinkError::Closed),
            None => Ok(()),
        }
    }

    /// Waits for packets, the connection's deadline, `limit`, or a wake-up.
    pub(super) fn sleep(&mut self, limit: Option<Time>) -> Result<(), LinkError> {
        let deadline = match (self.due(), limit.filter(|_| self.left.is_none())) {
            (Some(due), Some(limit)) => Some(due.min(limit)),
            (due, limit) => due.or(limit),
        };
        self.wait(deadline)
    }

    /// When it is to be turned though nothing arrives. Packets that wait for room in the socket's
    /// buffer put off what is due already, and only for a while: a socket that stays full does not
    /// stop the clock.
    pub(super) fn due(&self) -> Option<Time> {
        let due = self.connection.poll_timeout(self.now)?;
        match self.left {
            Some(_) => Some(due.max(self.now.after(BLOCKED_NS))),
            None => Some(due),
        }
    }

    /// Lets another process wake it.
    pub(super) fn wake_by(&mut self, bell: Arc<Doorbell>) -> io::Result<()> {
        self.poller.add(&*bell, BELL, Interest::READ)?;
        self.bell = Some(bell);
        Ok(())
    }

    /// Takes note of what has happened on the socket until `deadline`, and waits for that.
    pub(super) fn wait(&mut self, deadline: Option<Time>) -> Result<(), LinkError> {
        self.poller
            .wait(&mut self.events, deadline.map(Time::as_ns), self.clock)
            .map_err(LinkError::Network)?;
        if let Some(bell) = &self.bell
            && let Some(event) = self.events.iter().find(|event| event.token == BELL)
        {
            bell.clear();
            if event.closed {
                // It would be reported for ever.
                self.poller.remove(&**bell).map_err(LinkError::System)?;
                self.bell = None;
            }
        }
        if self.left.is_some() && self.events.iter().any(|event| event.writable) {
            self.poller
                .modify(&self.socket, TOKEN, Interest::READ)
                .map_err(LinkError::Network)?;
        }
        Ok(())
    }
}

/// The datagrams of the next message of `batch`, or of the socket.
fn next_message<'b>(
    socket: &UdpSocket,
    batch: &'b mut RecvBatch,
    taken: &mut usize,
) -> Option<impl Iterator<Item = &'b mut [u8]>> {
    if batch.message(*taken).is_none() {
        // An error shows again, or the time is over.
        socket.recv_batch(batch).ok().filter(|count| *count > 0)?;
        *taken = 0;
    }
    *taken += 1;
    Some(batch.datagrams_mut(*taken - 1))
}

/// Opens datagrams, feeds them to the connection and places their payload, runs of neighbours at
/// once.
fn take<'d>(
    (connection, joiner, sealing): (&mut Connection, &mut Joiner, &mut Option<Sealing>),
    now: Time,
    (arrived, marked): (Time, bool),
    datagrams: impl Iterator<Item = &'d mut [u8]>,
    place: &mut dyn Place,
) -> io::Result<()> {
    let mut parts = [IoSlice::new(&[]); RUN];
    let (mut used, mut start, mut end) = (0, 0, 0);
    for datagram in datagrams {
        let Some(datagram) = open(sealing, connection, now, datagram) else {
            continue;
        };
        if marked {
            connection.handle_marks(1);
        }
        if let Some(piece) = connection.piece(datagram) {
            if let Some(packet) = joiner.join(&piece)
                && let Ok(Received::Data(Placement { position, .. })) =
                    connection.handle_packet(now, arrived, packet)
            {
                place.place(position, &[IoSlice::new(&packet[HEADER_LEN..])])?;
            }
            continue;
        }
        let Ok(Received::Data(Placement { position, len })) =
            connection.handle_packet(now, arrived, datagram)
        else {
            continue;
        };
        if used == RUN || (used > 0 && position != end) {
            place.place(start, &parts[..used])?;
            used = 0;
        }
        if used == 0 {
            start = position;
        }
        parts[used] = IoSlice::new(&datagram[HEADER_LEN..]);
        used += 1;
        end = position + u64::from(len);
    }
    if used > 0 {
        place.place(start, &parts[..used])?;
    }
    Ok(())
}

/// A source without anything.
#[derive(Debug)]
pub(super) struct Nothing;

impl Source for Nothing {
    fn wait(&self, _: u64, _: Duration) -> crate::bulk::Extent {
        crate::bulk::Extent {
            end: 0,
            complete: false,
        }
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn file_at(&self, _: u64) -> Option<crate::bulk::FileRange<'_>> {
        None
    }
}

impl Remote {
    /// Ends the link's `send` or `receive` at once. A sink that may block is given no more than the
    /// 256 KiB that it is taking.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.finish();
    }

    /// Ends the link's `receive` once the sink has taken what has arrived: the peer is known to
    /// have sent all.
    pub fn finish(&self) {
        self.0.finished.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Makes a sender look for new data at once.
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    /// Returns the counters of late (updated every 50 ms and at the end).
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        *self.0.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
