//! A datagram queue pair: passes arriving datagrams to the responsible part, and posted requests to
//! the sender.

mod arrive;
mod row;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use self::row::Row;
use super::access::place;
use super::config::{DATAGRAM_MIN, UdConfig};
use super::control::{Control, Controls};
use super::delivered::Delivered;
use super::read::{Answer, Reads};
use super::reassembly::{self, Reassembly};
use super::record::{self, Piece, Plan, Records};
use super::tx::{Next, Sender};
use super::validate::{Asks, Validated};
use super::wire::{ANY_QPN, Body, Datagram, MsgId, NoticeCode, Probe, Rate, Reject};
use super::work::{
    Action, Counters, Reason, Record, Transmit, UdCompletion, UdEvent, UdReceived, UdSendWr,
    UdStatus, ValidityMap,
};
use crate::address::{Destination, Source};
use crate::error::PostError;
use crate::memory::{Memory, Placement, Target};
use crate::operation::RecvWr;
use crate::stag::{Rights, Stag};
use crate::time::{SECOND_NS, Time};

/// A placement that the caller is to make.
#[derive(Debug, Clone, Copy)]
enum Pending {
    /// A message of one segment.
    Message(reassembly::Message, RecvWr),
    /// Part of a Send: slot, start, end.
    Part(usize, u32, u32),
    Write,
    Record(record::Message, Piece, Plan),
    /// Of a row, to this record.
    Next(usize, Piece),
    Answer(Answer),
}

/// A datagram queue pair; see the module for the contract.
#[derive(Debug)]
pub struct Ud {
    config: UdConfig,
    sender: Sender,
    /// Posted receives, and those of messages that were abandoned.
    receives: VecDeque<RecvWr>,
    delivered: Delivered,
    reassembly: Reassembly,
    records: Records,
    reads: Reads,
    validated: Validated,
    asks: Asks,
    controls: Controls,
    pending: Option<(Pending, u32)>,
    /// The expected next datagram, if it continues the last one.
    row: Option<Row>,
    events: VecDeque<UdEvent>,
    counters: Counters,
    /// Before this, no further [`UdEvent::Dropped`].
    quiet_until: Time,
    closed: bool,
}

/// How often a fault of a sender is reported.
const REPORT_NS: u64 = SECOND_NS;

impl Ud {
    /// Makes a queue pair that may send and receive at once.
    #[must_use]
    pub fn new(config: UdConfig) -> Self {
        Self {
            sender: Sender::new(&config),
            receives: VecDeque::new(),
            delivered: Delivered::new(config.sources, config.key),
            reassembly: Reassembly::new(&config),
            records: Records::new(&config),
            reads: Reads::new(),
            validated: Validated::new(&config),
            asks: Asks::new(&config),
            controls: Controls::new(&config),
            pending: None,
            row: None,
            events: VecDeque::new(),
            counters: Counters::default(),
            quiet_until: Time::default(),
            closed: false,
            config,
        }
    }

    // ---- inputs

    /// Counts a datagram that is not of this protocol, or not whole.
    pub fn handle_reject(&mut self, now: Time, from: SocketAddr, reject: Reject) -> Action {
        let reason = match reject {
            Reject::Foreign => Reason::Foreign,
            Reject::Crc => Reason::BadCrc,
            Reject::Unsupported(_) => Reason::Unsupported,
            Reject::Malformed(_) => Reason::Malformed,
        };
        self.drop(now, from, reason)
    }

    /// Handles a datagram that has arrived.
    pub fn handle_datagram<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &mut M,
        from: SocketAddr,
        datagram: &Datagram<'_>,
    ) -> Action {
        debug_assert!(self.pending.is_none(), "say handle_placed first");
        self.counters.received += 1;
        self.row = None;
        match self.judge(now, memory, from, datagram) {
            Ok(action) => action,
            Err(reason) => {
                self.notice(now, from, datagram, reason);
                self.drop(now, from, reason)
            }
        }
    }

    /// Fast path for a datagram (CRC verified and removed) that continues the last one: the next
    /// packet, with a segment of the same Write-Record that begins where the last one ended, has
    /// the same length and is not the final one. Then only the memory and the record need checks.
    /// Returns where to place the payload, or `None` if [`Self::handle_datagram`] has to parse it.
    pub fn handle_alike<'a, M: Memory + ?Sized>(
        &mut self,
        memory: &M,
        from: SocketAddr,
        covered: &'a [u8],
    ) -> Option<(Target, &'a [u8])> {
        debug_assert!(self.pending.is_none(), "say handle_placed first");
        let row = self.row.as_ref()?;
        let (piece, payload) = row.next(from, covered)?;
        let (at, source, id) = (row.at, row.from, row.id);
        let (stag, to, group) = (row.stag, row.base + u64::from(piece.start), row.group);
        let entry = self
            .access(&source, group)
            .entry(memory, stag, Rights::REMOTE_WRITE)
            .ok()?;
        let len = piece.end - piece.start;
        let target = place(&entry, to, len).ok()?;
        if !self.records.wants(at, &source, id, piece.start, piece.end) {
            return None;
        }
        self.row.as_mut()?.advance();
        self.counters.received += 1;
        self.pending = Some((Pending::Next(at, piece), len));
        Some((target, payload))
    }

    /// Records that the last placement is done; or not, because the memory was withdrawn.
    pub fn handle_placed(&mut self, now: Time, is_placed: bool) {
        // The usual case: the other pending kinds are large, and are moved.
        if let (true, &Some((Pending::Next(at, piece), len))) = (is_placed, &self.pending) {
            self.pending = None;
            self.counters.placed_octets += u64::from(len);
            self.records
                .grow(now, &self.config, at, &piece, &mut self.events);
            return;
        }
        let Some((pending, len)) = self.pending.take() else {
            return;
        };
        if is_placed {
            self.counters.placed_octets += u64::from(len);
            self.placed(now, pending);
        } else {
            self.unplaced(pending);
        }
    }

    /// Notes that a tag is not valid any more.
    pub fn handle_invalidated(&mut self, stag: Stag) {
        self.records
            .revoke_stag(&self.config, stag, &mut self.events);
    }

    /// Notes that the path to a host carries no more than this many bytes of UDP payload. That is
    /// remembered for ten minutes.
    pub fn handle_path(&mut self, now: Time, host: IpAddr, octets: u32) {
        let octets = octets.max(DATAGRAM_MIN);
        self.sender.note_path(now, host, octets);
        self.sender.searches.handle_too_big(now, host, octets);
    }

    /// Runs due timers; call at the time that [`Self::poll_timeout`] returned, or more often.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(wr) = self.reassembly.expire(now) {
            self.give_back(wr);
        }
        self.records.expire(now, &self.config, &mut self.events);
        while let Some(found) = self.sender.searches.handle_time(now) {
            self.sender.note_found(now, found);
        }
        let asks = &mut self.asks;
        self.reads
            .expire(now, &self.config, &mut self.events, |to| {
                asks.doubt(&to);
                asks.begin(now, to);
            });
        self.poll_asks(now);
    }

    // ---- commands

    /// Posts a request.
    ///
    /// # Errors
    /// The queue is full, the message too long, the operation not for groups, or the queue pair
    /// closed.
    pub fn post_send(&mut self, wr: UdSendWr) -> Result<(), PostError> {
        if self.closed {
            return Err(PostError::NotOpen);
        }
        let posted = self.sender.len() + self.reads.len();
        if posted >= self.config.send_depth as usize {
            return Err(PostError::Full);
        }
        self.sender.post(&self.config, wr)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or the queue pair closed.
    pub fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.closed {
            return Err(PostError::NotOpen);
        }
        if self.receives.len() >= self.config.recv_depth as usize {
            return Err(PostError::Full);
        }
        self.receives.push_back(wr);
        Ok(())
    }

    /// Validates this end's address at a peer, which reads, and writes to most tags, require. Reads
    /// do it by themselves. Ends with [`UdEvent::Validated`].
    ///
    /// # Errors
    /// Too many validations are in progress, the destination is a group, or the queue pair closed.
    pub fn validate(&mut self, now: Time, to: Destination) -> Result<(), PostError> {
        if self.closed {
            return Err(PostError::NotOpen);
        }
        if to.qpn >= ANY_QPN {
            return Err(PostError::Unsupported);
        }
        if !self.asks.begin(now, to) {
            return Err(PostError::Full);
        }
        self.poll_asks(now);
        Ok(())
    }

    /// Takes a source as validated: the session layer knows it.
    pub fn admit(&mut self, source: &Source) {
        self.validated.admit(source);
    }

    /// Sends a peer a report on the datagrams that arrived from it, if the peer is validated.
    pub fn report_rate(&mut self, to: &Source, rate: Rate) {
        if self.validated.contains(to) {
            self.answer(to.destination(), MsgId(0), Control::Rate(rate), usize::MAX);
        }
    }

    /// Probes whether a datagram of `size` bytes of UDP payload arrives; [`UdEvent::Probed`]
    /// reports it.
    pub fn probe(&mut self, to: Destination, token: u32, size: u32) {
        let probe = Probe { token, size };
        self.answer(to, MsgId(0), Control::Probe(probe), usize::MAX);
    }

    /// Bytes of UDP payload that the path carries, from the next message on.
    pub fn set_datagram_max(&mut self, octets: u32) {
        self.sender.set_datagram_max(octets);
    }

    /// Closes the queue pair: requests and receives complete as flushed, and none is accepted any
    /// more. Open records can still be read.
    pub fn close(&mut self) {
        self.closed = true;
        self.row = None;
        while let Some(wr) = self.reassembly.abandon() {
            self.give_back(wr);
        }
        while let Some(wr) = self.sender.flush() {
            self.complete(&wr, UdStatus::Flushed);
        }
        self.reads.flush(&mut self.events);
        for wr in std::mem::take(&mut self.receives) {
            let message = reassembly::Message {
                from: Source {
                    addr: SocketAddr::from(([0; 4], 0)),
                    qpn: 0,
                    epoch: 0,
                },
                id: MsgId(0),
                len: 0,
                solicited: false,
                group: false,
            };
            self.deliver(&message, &wr, None, UdStatus::Flushed);
        }
    }

    // ---- outputs

    /// Returns the next datagram to send: its header is in `out`, which has room for
    /// [`super::wire::DATA_HEADER_MAX`]. Pass the datagram to the socket before calling
    /// [`Self::poll_event`], which may complete its request.
    pub fn poll_transmit<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &M,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if self.closed {
            return None;
        }
        loop {
            if let Some(asked) = self.reads.poll() {
                self.counters.sent += 1;
                return Some(self.sender.request(&self.config, &asked, out));
            }
            let reads = self.reads.len() < self.config.reads.max(1);
            match self.sender.poll(now, &self.config, memory, reads, out)? {
                Next::Datagram(transmit, sent) => {
                    self.counters.sent += 1;
                    if let Some(wr) = sent {
                        self.complete(&wr, UdStatus::Success);
                    }
                    return Some(transmit);
                }
                Next::Read(wr) => self.begin_read(now, wr),
            }
        }
    }

    /// Fast path for the datagram after the one last returned by [`Self::poll_transmit`] or this
    /// method, if only its counters differ, as in most of a long message: updates them in `out` and
    /// returns the offset of its payload in the message. Otherwise returns `None`: call
    /// [`Self::poll_transmit`].
    pub fn poll_alike(&mut self, out: &mut [u8]) -> Option<u32> {
        let start = self.sender.poll_alike(out)?;
        self.counters.sent += 1;
        Some(start)
    }

    /// Returns the next datagram that is not DATA, whole, CRC included, in `out`;
    /// [`super::wire::CONTROL_MAX`] bytes suffice except for probes, which are as long as the
    /// longest datagram. Returns destination and length.
    pub fn poll_control(&mut self, now: Time, out: &mut [u8]) -> Option<(SocketAddr, usize)> {
        if let Some((to, probe)) = self.sender.searches.poll(now) {
            self.answer(to, MsgId(0), Control::Probe(probe), usize::MAX);
        }
        let sent = self.controls.poll(&self.config, out);
        self.counters.sent += u64::from(sent.is_some());
        sent
    }

    /// Returns the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<UdEvent> {
        self.events.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`]. It may be earlier than needed, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.closed {
            return None;
        }
        let deadlines = [
            self.reassembly.deadline(),
            self.records.deadline(),
            self.reads.deadline(),
            self.asks.deadline(),
            self.sender.searches.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    // ---- getters

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            records: self.records.count,
            evicted: self.records.evicted + self.reassembly.evicted,
            unanswered: self.controls.unanswered,
            ..self.counters
        }
    }

    /// Returns the arrived ranges of a Write-Record that is open, or closed and kept
    /// ([`super::RecordMode::Query`]).
    #[must_use]
    pub fn validity(&self, from: &Source, msg_id: MsgId) -> Option<Record> {
        self.records.validity(from, msg_id)
    }

    /// Returns the arrived ranges of all Write-Records that are closed and kept, or open.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.records.iter()
    }

    /// Removes and returns the oldest closed record that is kept.
    pub fn take_record(&mut self) -> Option<Record> {
        self.records.take()
    }

    /// Requests that are not complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.sender.len() + self.reads.len()
    }

    // ---- reactions

    fn place(&mut self, pending: Pending, target: Target, len: u32) -> Action {
        self.pending = Some((pending, len));
        Action::Place(Placement { target, len })
    }

    fn placed(&mut self, now: Time, pending: Pending) {
        match pending {
            Pending::Message(message, wr) => {
                self.deliver(&message, &wr, None, UdStatus::Success);
            }
            Pending::Part(at, start, end) => {
                if let Some((message, wr)) = self.reassembly.placed(now, at, start, end) {
                    self.deliver(&message, &wr, None, UdStatus::Success);
                }
            }
            Pending::Write => {}
            Pending::Record(message, piece, plan) => {
                self.records
                    .placed(now, &self.config, &message, &piece, plan, &mut self.events)
            }
            Pending::Next(at, piece) => {
                self.records
                    .grow(now, &self.config, at, &piece, &mut self.events);
            }
            Pending::Answer(answer) => {
                if let Some(rtt_us) = self.reads.placed(now, &answer, &mut self.events) {
                    self.sender.lanes.lane(&answer.from.destination()).rtt_us = rtt_us;
                }
            }
        }
    }

    /// Handles memory that was withdrawn between check and placement.
    fn unplaced(&mut self, pending: Pending) {
        match pending {
            Pending::Message(message, wr) => {
                self.deliver(&message, &wr, None, UdStatus::LocalProtection);
            }
            Pending::Part(at, ..) => {
                if let Some((message, wr)) = self.reassembly.fail(at) {
                    self.deliver(&message, &wr, None, UdStatus::LocalProtection);
                }
            }
            Pending::Write => {}
            Pending::Record(message, ..) => self.records.revoke(
                &self.config,
                &message.from,
                message.id,
                message.stag,
                &mut self.events,
            ),
            Pending::Next(at, _) => self.records.revoke_at(&self.config, at, &mut self.events),
            Pending::Answer(answer) => self.reads.fail(&answer, &mut self.events),
        }
    }

    fn deliver(
        &mut self,
        message: &reassembly::Message,
        wr: &RecvWr,
        immediate: Option<u64>,
        status: UdStatus,
    ) {
        self.counters.delivered += u64::from(status == UdStatus::Success);
        self.events.push_back(UdEvent::Received(UdReceived {
            id: wr.id,
            slot: wr.slot,
            status,
            len: message.len,
            from: message.from,
            solicited: message.solicited,
            immediate,
            group: message.group,
        }));
    }

    fn complete(&mut self, wr: &UdSendWr, status: UdStatus) {
        let len = if status == UdStatus::Success {
            wr.len
        } else {
            0
        };
        self.events.push_back(UdEvent::Completion(UdCompletion {
            id: wr.id,
            slot: wr.slot,
            op: wr.op,
            status,
            len,
            map: ValidityMap::Full,
            signalled: wr.signalled,
        }));
    }

    fn begin_read(&mut self, now: Time, wr: UdSendWr) {
        let lane = self.sender.lanes.lane(&wr.to);
        let (id, rtt_us) = (lane.next_message(), lane.rtt_us);
        let waits = !self.asks.is_known(&wr.to);
        self.reads.begin(now, &self.config, wr, id, rtt_us, waits);
        if waits {
            if self.asks.begin(now, wr.to) {
                self.poll_asks(now);
            } else {
                self.known(now, wr.to, false);
            }
        }
    }

    fn known(&mut self, now: Time, to: Destination, known: bool) {
        self.reads.handle_known(now, &to, known, &mut self.events);
        self.events.push_back(UdEvent::Validated { to, known });
    }

    fn poll_asks(&mut self, now: Time) {
        while let Some(due) = self.asks.poll(now) {
            match due {
                Ok(due) => {
                    self.answer(due.to, due.token, Control::Hello(due.cookie), usize::MAX);
                }
                Err(silent) => self.known(now, silent, false),
            }
        }
    }

    /// Queues a datagram that is not DATA; as an answer to `wire_len` bytes it is not longer.
    fn answer(&mut self, to: Destination, id: MsgId, control: Control, wire_len: usize) {
        self.controls.push(to, id, control, wire_len);
    }

    fn notice(&mut self, now: Time, from: SocketAddr, datagram: &Datagram<'_>, reason: Reason) {
        let code = match reason {
            Reason::Rnr => NoticeCode::Rnr,
            Reason::TooLong => NoticeCode::TooLong,
            Reason::BadStag | Reason::Access | Reason::Bounds => NoticeCode::Access,
            Reason::Unsupported => NoticeCode::Unsupported,
            Reason::UnknownPeer => NoticeCode::UnknownPeer,
            _ => return,
        };
        let shim = &datagram.shim;
        let is_answerable =
            matches!(datagram.body, Body::Data(_)) && shim.dst_qpn == self.config.qpn;
        if self.config.notices && is_answerable && self.controls.may_notice(now) {
            let to = Destination {
                addr: from,
                qpn: shim.src_qpn,
            };
            self.answer(to, shim.msg_id, Control::Notice(code), datagram.wire_len);
        }
    }

    fn drop(&mut self, now: Time, from: SocketAddr, reason: Reason) -> Action {
        self.counters.dropped[reason as usize] += 1;
        let is_fault = matches!(
            reason,
            Reason::BadCrc
                | Reason::Malformed
                | Reason::Unsupported
                | Reason::TooLong
                | Reason::BadStag
                | Reason::Access
                | Reason::Bounds
                | Reason::UnknownPeer
                | Reason::BadCookie
        );
        if is_fault && now >= self.quiet_until {
            self.quiet_until = now.after(REPORT_NS);
            self.events.push_back(UdEvent::Dropped { from, reason });
        }
        Action::Drop(reason)
    }
}
