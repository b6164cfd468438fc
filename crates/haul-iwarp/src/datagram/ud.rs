//! A datagram queue pair: what arrives goes to the part that it is for, what is posted to the sender.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::access::{Access, local_entry, place};
use super::config::UdConfig;
use super::control::{Control, Controls};
use super::read::{Answer, Job, Parts, Reads};
use super::reassembly::{self, Reassembly, Unknown};
use super::record::{self, Piece, Plan, Records};
use super::tx::{Next, Sender};
use super::validate::{Asks, Validated};
use super::wire::{
    ANY_QPN, Body, Datagram, Flags, Hello, MsgId, NoticeCode, Opcode, Probe, Rate, Reject, Segment,
    Shim, Terms,
};
use super::work::{
    Action, Completion, Counters, Destination, Event, Reason, Received, Record, Source, Transmit,
    UdSendWr, UdStatus, ValidityMap,
};
use crate::error::PostError;
use crate::qp::RecvWr;
use crate::stag::{Memory, Placement, Rights, Stag, Target};
use crate::time::{SECOND_NS, Time};
use crate::wire::ddp::Model;
use crate::wire::rdmap::{self, ReadRequest};

/// A placement that was handed out.
#[derive(Debug, Clone, Copy)]
enum Pending {
    /// A message of one segment.
    Message(reassembly::Message, RecvWr),
    /// Part of a Send: slot, start, end.
    Part(usize, u32, u32),
    Write,
    Record(record::Message, Piece, Plan),
    Answer(Answer),
}

/// A datagram queue pair; see the module for the contract.
#[derive(Debug)]
pub struct Ud {
    config: UdConfig,
    sender: Sender,
    /// Posted, and given back by messages that were given up.
    receives: VecDeque<RecvWr>,
    reassembly: Reassembly,
    records: Records,
    reads: Reads,
    validated: Validated,
    asks: Asks,
    controls: Controls,
    pending: Option<(Pending, u32)>,
    events: VecDeque<Event>,
    counters: Counters,
    /// Before this, no further [`Event::Dropped`].
    quiet_until: Time,
    closed: bool,
}

/// How often a fault of a sender is reported.
const REPORT_NS: u64 = SECOND_NS;

impl Ud {
    /// A queue pair that may send and receive at once.
    #[must_use]
    pub fn new(config: UdConfig) -> Self {
        Self {
            sender: Sender::new(&config),
            receives: VecDeque::new(),
            reassembly: Reassembly::new(&config),
            records: Records::new(&config),
            reads: Reads::new(),
            validated: Validated::new(&config),
            asks: Asks::new(&config),
            controls: Controls::new(&config),
            pending: None,
            events: VecDeque::new(),
            counters: Counters::default(),
            quiet_until: Time::default(),
            closed: false,
            config,
        }
    }

    // ---- what happened

    /// A datagram is not one, or not whole.
    pub fn handle_reject(&mut self, now: Time, from: SocketAddr, reject: Reject) -> Action {
        let reason = match reject {
            Reject::Foreign => Reason::Foreign,
            Reject::Crc => Reason::BadCrc,
            Reject::Unsupported(_) => Reason::Unsupported,
            Reject::Malformed(_) => Reason::Malformed,
        };
        self.drop(now, from, reason)
    }

    /// A datagram has arrived.
    pub fn handle_datagram<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &mut M,
        from: SocketAddr,
        datagram: &Datagram<'_>,
    ) -> Action {
        debug_assert!(self.pending.is_none(), "say handle_placed first");
        self.counters.received += 1;
        match self.judge(now, memory, from, datagram) {
            Ok(action) => action,
            Err(reason) => {
                self.notice(now, from, datagram, reason);
                self.drop(now, from, reason)
            }
        }
    }

    /// The placement that was handed out last is done; or not, because the memory was gone.
    pub fn handle_placed(&mut self, now: Time, is_placed: bool) {
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

    /// A tag is not valid any more.
    pub fn handle_invalidated(&mut self, stag: Stag) {
        self.records
            .revoke_stag(&self.config, stag, &mut self.events);
    }

    /// Time has passed; call when [`Self::poll_timeout`] says so, or more often.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(wr) = self.reassembly.expire(now) {
            self.give_back(wr);
        }
        self.records.expire(now, &self.config, &mut self.events);
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
    /// The queue is full, the message too long, the operation not for groups, or the queue pair closed.
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

    /// Makes this end known to a peer: reads, and writes to most tags, need it. Reads do it by themselves. Ends with
    /// [`Event::Validated`].
    ///
    /// # Errors
    /// Too many peers are asked at once, the destination is a group, or the queue pair closed.
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

    /// Tells a peer what is seen of its datagrams. Sent if the peer is validated.
    pub fn report_rate(&mut self, to: &Source, rate: Rate) {
        if self.validated.contains(to) {
            self.answer(to.destination(), MsgId(0), Control::Rate(rate), usize::MAX);
        }
    }

    /// Asks whether a datagram of `size` octets of UDP payload arrives; [`Event::Probed`] says so.
    pub fn probe(&mut self, to: Destination, token: u32, size: u32) {
        let probe = Probe { token, size };
        self.answer(to, MsgId(0), Control::Probe(probe), usize::MAX);
    }

    /// Octets of UDP payload that the path carries, from the next message on.
    pub fn set_datagram_max(&mut self, octets: u32) {
        self.sender.set_datagram_max(octets);
    }

    /// Ends everything: requests and receives come back as flushed.
    pub fn close(&mut self) {
        self.closed = true;
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

    // ---- what is to be done

    /// The next datagram to send: its header is in `out`, which has room for [`super::wire::DATA_HEADER_MAX`]. Hand what
    /// this gives to the socket before [`Self::poll_event`] says that requests are complete.
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
            match self.sender.poll(&self.config, memory, reads, out)? {
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

    /// The next datagram that is not DATA, whole, CRC included, in `out`; [`super::wire::CONTROL_MAX`] octets are enough
    /// but for probes. Gives destination and length.
    pub fn poll_control(&mut self, out: &mut [u8]) -> Option<(SocketAddr, usize)> {
        let sent = self.controls.poll(&self.config, out);
        self.counters.sent += u64::from(sent.is_some());
        sent
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] is wanted. It may be earlier than needed, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let deadlines = [
            self.reassembly.deadline(),
            self.records.deadline(),
            self.reads.deadline(),
            self.asks.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    // ---- getters

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            records: self.records.count,
            unanswered: self.controls.unanswered,
            ..self.counters
        }
    }

    /// What has arrived of a Write-Record that is open, or closed and kept ([`super::RecordMode::Query`]).
    #[must_use]
    pub fn validity(&self, from: &Source, msg_id: MsgId) -> Option<Record> {
        self.records.validity(from, msg_id)
    }

    /// What has arrived of the Write-Records to a tag that are open.
    pub fn open_records(&self, stag: Stag) -> impl Iterator<Item = Record> + '_ {
        self.records.of(stag)
    }

    /// The oldest closed record that is kept, which is then not kept any more.
    pub fn take_record(&mut self) -> Option<Record> {
        self.records.take()
    }

    /// Requests that are not complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.sender.len() + self.reads.len()
    }

    // ---- arrivals

    fn judge<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &mut M,
        from: SocketAddr,
        datagram: &Datagram<'_>,
    ) -> Result<Action, Reason> {
        let shim = &datagram.shim;
        let source = Source {
            addr: from,
            qpn: shim.src_qpn,
            epoch: shim.epoch,
        };
        let group = shim.flags.contains(Flags::MCAST);
        if self.closed || !group && shim.dst_qpn != self.config.qpn {
            return Err(Reason::WrongQp);
        }
        if shim.flags.contains(Flags::RD) {
            return Err(Reason::Unsupported);
        }
        match &datagram.body {
            Body::Data(segment) => self.on_data(now, memory, &source, shim, segment),
            _ if group => Err(Reason::Unsupported),
            body => self.on_control(now, &source, shim, body, datagram.wire_len),
        }
    }

    fn on_data<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &mut M,
        source: &Source,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        use rdmap::Opcode as Rdmap;
        let group = shim.flags.contains(Flags::MCAST);
        let message = |solicited| reassembly::Message {
            from: *source,
            id: shim.msg_id,
            len: shim.msg_len,
            solicited,
            group,
        };
        match segment.opcode {
            Opcode::Rdmap(Rdmap::Send) => self.on_send(now, memory, &message(false), shim, segment),
            Opcode::Rdmap(Rdmap::SendSolicited) => {
                self.on_send(now, memory, &message(true), shim, segment)
            }
            Opcode::Rdmap(Rdmap::Immediate) => self.on_immediate(memory, &message(false), segment),
            Opcode::Rdmap(Rdmap::ImmediateSolicited) => {
                self.on_immediate(memory, &message(true), segment)
            }
            Opcode::WriteRecord | Opcode::WriteRecordImmediate => {
                self.on_record(now, memory, source, shim, segment)
            }
            Opcode::Rdmap(Rdmap::Write) if !group => self.on_write(memory, source, shim, segment),
            Opcode::Rdmap(Rdmap::ReadRequest) if !group => {
                self.on_read_request(memory, source, shim, segment)
            }
            Opcode::Rdmap(Rdmap::ReadResponse) if !group => {
                self.on_read_response(now, memory, source, shim, segment)
            }
            Opcode::Rdmap(_) => Err(Reason::Unsupported),
        }
    }

    fn on_send<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &mut M,
        message: &reassembly::Message,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let len = len_of(segment);
        let (start, end) = (shim.seg_off, shim.seg_off + len);
        if len == message.len {
            let wr = self.receive_for(memory, message)?;
            if len == 0 {
                self.deliver(message, &wr, None, UdStatus::Success);
                return Ok(Action::Done);
            }
            return Ok(self.place(Pending::Message(*message, wr), receive_target(&wr, 0), len));
        }
        let (at, wr) = match self.reassembly.find(&message.from, message.id) {
            Ok(at) => (at, self.reassembly.judge(at, message, start, end)?),
            Err(Unknown::Closed) => return Err(Reason::Late),
            Err(Unknown::New) => {
                let wr = self.open_message(memory, message)?;
                (self.reassembly.open(now, *message, wr), wr)
            }
        };
        let target = receive_target(&wr, start);
        Ok(self.place(Pending::Part(at, start, end), target, len))
    }

    /// A receive for the first segment of a message of several. A message that is too long is not looked at again.
    fn open_message<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &reassembly::Message,
    ) -> Result<RecvWr, Reason> {
        if message.len > self.config.send_max || u64::from(message.len) > self.config.slot_octets {
            return Err(Reason::TooLong);
        }
        while let Some(wr) = self.reassembly.make_room(&message.from, message.len) {
            self.give_back(wr);
        }
        let taken = self.receive_for(memory, message);
        if taken == Err(Reason::TooLong) {
            self.reassembly.refuse(&message.from, message.id);
        }
        taken
    }

    fn on_immediate<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &reassembly::Message,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let data = rdmap::parse_immediate(segment.payload).map_err(|_| Reason::Malformed)?;
        let wr = self.take_receive(memory, message)?;
        let empty = reassembly::Message { len: 0, ..*message };
        self.deliver(&empty, &wr, Some(data), UdStatus::Success);
        Ok(Action::Done)
    }

    /// The next receive, long enough for a message; one that is not stays where it was.
    fn receive_for<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &reassembly::Message,
    ) -> Result<RecvWr, Reason> {
        let wr = self.take_receive(memory, message)?;
        if wr.len < message.len {
            self.receives.push_front(wr);
            return Err(Reason::TooLong);
        }
        Ok(wr)
    }

    fn take_receive<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &reassembly::Message,
    ) -> Result<RecvWr, Reason> {
        let posted = self.receives.pop_front();
        let shared = self.config.shared_receive;
        let taken = posted.or_else(|| if shared { memory.take_receive() } else { None });
        let taken = taken.or_else(|| {
            let spare = self.reassembly.spare(&message.from);
            self.counters.abandoned += u64::from(spare.is_some());
            spare
        });
        taken.ok_or(Reason::Rnr)
    }

    /// A message was given up: its receive is the next again.
    fn give_back(&mut self, wr: RecvWr) {
        self.counters.abandoned += 1;
        self.receives.push_front(wr);
    }

    fn access(&mut self, source: &Source, group: bool) -> Access<'_> {
        Access {
            from: *source,
            is_validated: self.validated.contains(source),
            group,
            config: &self.config,
        }
    }

    fn on_write<M: Memory + ?Sized>(
        &mut self,
        memory: &M,
        source: &Source,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let (stag, to) = tagged(segment)?;
        let entry = self
            .access(source, false)
            .entry(memory, stag, Rights::REMOTE_WRITE)?;
        if shim.msg_len > self.config.record_max {
            return Err(Reason::TooLong);
        }
        place(&entry, to - u64::from(shim.seg_off), shim.msg_len)?;
        let target = place(&entry, to, len_of(segment))?;
        if segment.payload.is_empty() {
            return Ok(Action::Done);
        }
        Ok(self.place(Pending::Write, target, len_of(segment)))
    }

    fn on_record<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &M,
        source: &Source,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let (stag, to) = tagged(segment)?;
        let group = shim.flags.contains(Flags::MCAST);
        let entry = self
            .access(source, group)
            .entry(memory, stag, Rights::REMOTE_WRITE);
        if entry == Err(Reason::BadStag) {
            self.records
                .revoke(&self.config, source, shim.msg_id, stag, &mut self.events);
        }
        let entry = entry?;
        let len = len_of(segment);
        let target = place(&entry, to, len)?;
        let message = record::Message {
            from: *source,
            id: shim.msg_id,
            stag,
            base: to - u64::from(shim.seg_off),
            len: shim.msg_len,
            immediate: segment.immediate(),
        };
        let piece = Piece {
            start: shim.seg_off,
            end: shim.seg_off + len,
            psn: shim.psn,
            is_last: shim.flags.contains(Flags::LAST) && !shim.flags.contains(Flags::TAILDUP),
        };
        let plan = self.records.judge(
            now,
            &self.config,
            &message,
            &piece,
            || place(&entry, message.base, message.len).map(drop),
            &mut self.events,
        )?;
        if len == 0 {
            self.placed(now, Pending::Record(message, piece, plan));
            return Ok(Action::Done);
        }
        Ok(self.place(Pending::Record(message, piece, plan), target, len))
    }

    fn on_read_request<M: Memory + ?Sized>(
        &mut self,
        memory: &M,
        source: &Source,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let request = ReadRequest::parse(segment.payload).map_err(|_| Reason::Malformed)?;
        let access = self.access(source, false);
        // Whatever the tag's owner says: an answer to whoever claims to be there is a weapon.
        if !access.is_validated {
            return Err(Reason::Stranger);
        }
        if request
            .sink_to
            .checked_add(u64::from(request.len))
            .is_none()
        {
            return Err(Reason::Malformed);
        }
        if request.len > access.config.read_max {
            return Err(Reason::TooLong);
        }
        if request.len > 0 {
            let entry = access.entry(memory, request.source, Rights::REMOTE_READ)?;
            place(&entry, request.source_to, request.len)?;
        }
        let parts = parts_of(&request, segment)?;
        let job = Job::new(*source, shim.msg_id, request, parts);
        self.sender.jobs.push(&self.config, job)?;
        Ok(Action::Done)
    }

    fn on_read_response<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &M,
        source: &Source,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let (sink, to) = tagged(segment)?;
        let answer = Answer {
            from: *source,
            id: shim.msg_id,
            start: shim.seg_off,
            end: shim.seg_off + len_of(segment),
        };
        let base = to - u64::from(shim.seg_off);
        self.reads.judge(&answer, sink, base, shim.msg_len)?;
        if shim.msg_len == 0 {
            self.placed(now, Pending::Answer(answer));
            return Ok(Action::Done);
        }
        let target = local_entry(&self.config, memory, sink).and_then(|entry| {
            if !entry.rights.contains(Rights::LOCAL_WRITE) {
                return Err(Reason::Access);
            }
            place(&entry, base, shim.msg_len)?;
            place(&entry, to, len_of(segment))
        });
        match target {
            Ok(target) => Ok(self.place(Pending::Answer(answer), target, len_of(segment))),
            Err(reason) => {
                self.reads.fail(&answer, &mut self.events);
                Err(reason)
            }
        }
    }

    fn on_control(
        &mut self,
        now: Time,
        source: &Source,
        shim: &Shim,
        body: &Body<'_>,
        wire_len: usize,
    ) -> Result<Action, Reason> {
        let to = source.destination();
        match body {
            Body::Hello(Hello { cookie: None, .. }) => {
                let cookie = self.validated.cookie(now, source);
                self.answer(to, shim.msg_id, Control::Cookie(cookie), wire_len);
            }
            Body::Hello(Hello {
                cookie: Some(cookie),
                ..
            }) => {
                if !self.validated.redeem(now, source, cookie) {
                    return Err(Reason::BadCookie);
                }
                self.answer(to, shim.msg_id, Control::Ready, wire_len);
            }
            Body::Cookie(cookie) => {
                if !self.asks.handle_cookie(now, source, shim.msg_id, *cookie) {
                    return Err(Reason::Unexpected);
                }
                self.poll_asks(now);
            }
            Body::Ready(Terms { .. }) => {
                if !self.asks.handle_ready(source, shim.msg_id) {
                    return Err(Reason::Unexpected);
                }
                self.known(now, to, true);
            }
            Body::Notice(notice) => self.events.push_back(Event::Notice {
                from: *source,
                msg_id: shim.msg_id,
                code: notice.code,
            }),
            Body::Rate(rate) => self.events.push_back(Event::Rate {
                from: *source,
                rate: *rate,
            }),
            Body::Probe(probe) => {
                self.answer(to, shim.msg_id, Control::ProbeAck(*probe), wire_len);
            }
            Body::ProbeAck(probe) => self.events.push_back(Event::Probed {
                from: *source,
                token: probe.token,
                size: probe.size,
            }),
            Body::Data(_) | Body::Ack(_) | Body::Close(_) => return Err(Reason::Unsupported),
        }
        Ok(Action::Done)
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
            Pending::Answer(answer) => {
                if let Some(rtt_us) = self.reads.placed(now, &answer, &mut self.events) {
                    self.sender.lanes.lane(&answer.from.destination()).rtt_us = rtt_us;
                }
            }
        }
    }

    /// Memory was taken away between check and placement.
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
        self.events.push_back(Event::Received(Received {
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
        self.events.push_back(Event::Completion(Completion {
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
        self.events.push_back(Event::Validated { to, known });
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

    /// Queues a datagram that is not DATA; as an answer to `wire_len` octets it is not longer.
    fn answer(&mut self, to: Destination, id: MsgId, control: Control, wire_len: usize) {
        self.controls.push(to, id, control, wire_len);
    }

    fn notice(&mut self, now: Time, from: SocketAddr, datagram: &Datagram<'_>, reason: Reason) {
        let code = match reason {
            Reason::Rnr => NoticeCode::Rnr,
            Reason::TooLong => NoticeCode::TooLong,
            Reason::BadStag | Reason::Access | Reason::Bounds => NoticeCode::Access,
            Reason::Unsupported => NoticeCode::Unsupported,
            Reason::Stranger => NoticeCode::Stranger,
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
                | Reason::Stranger
                | Reason::BadCookie
        );
        if is_fault && now >= self.quiet_until {
            self.quiet_until = now.after(REPORT_NS);
            self.events.push_back(Event::Dropped { from, reason });
        }
        Action::Drop(reason)
    }
}

fn len_of(segment: &Segment<'_>) -> u32 {
    u32::try_from(segment.payload.len()).unwrap_or(u32::MAX)
}

const fn receive_target(wr: &RecvWr, offset: u32) -> Target {
    Target::Receive {
        slot: wr.slot,
        offset,
    }
}

fn tagged(segment: &Segment<'_>) -> Result<(Stag, u64), Reason> {
    match segment.model {
        Model::Tagged { stag, to } => Ok((stag, to)),
        Model::Untagged { .. } => Err(Reason::Malformed),
    }
}

/// The parts of a read that are wanted: all, or those that the request names.
fn parts_of(request: &ReadRequest, segment: &Segment<'_>) -> Result<Parts, Reason> {
    let mut parts = Parts::default();
    if segment.ext.is_empty() {
        parts.push((0, request.len));
        return Ok(parts);
    }
    let mut words = segment.ext.words();
    while let (Some(start), Some(len)) = (words.next(), words.next()) {
        let end = start.checked_add(len).ok_or(Reason::Bounds)?;
        if len == 0 || end > request.len {
            return Err(Reason::Bounds);
        }
        parts.push((start, end));
    }
    Ok(parts)
}
