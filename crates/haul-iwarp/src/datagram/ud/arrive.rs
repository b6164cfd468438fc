//! Classifies a datagram and checks whether its operation is allowed.

use std::net::SocketAddr;

use super::row::Row;
use super::{Pending, Ud};
use crate::address::Source;
use crate::datagram::access::{Access, local_entry, place};
use crate::datagram::control::Control;
use crate::datagram::read::{Answer, Job, Parts};
use crate::datagram::reassembly::{Message, Unknown};
use crate::datagram::record::{self, Piece, Plan};
use crate::datagram::wire::{Body, Datagram, Flags, Hello, Opcode, Segment, Shim};
use crate::datagram::work::{Action, Reason, RecordMode, UdEvent, UdStatus};
use crate::memory::{Memory, Target};
use crate::operation::RecvWr;
use crate::stag::{Rights, Stag, StagEntry};
use crate::time::Time;
use crate::wire::ddp::Model;
use crate::wire::rdmap::{self, ReadRequest};

impl Ud {
    pub(super) fn judge<M: Memory + ?Sized>(
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
        let group = shim.flags.contains(Flags::MCAST);
        let message = |solicited| Message {
            from: *source,
            id: shim.msg_id,
            len: shim.msg_len,
            solicited,
            group,
        };
        match segment.opcode {
            Opcode::Rdmap(rdmap::Opcode::Send) => {
                self.on_send(now, memory, &message(false), shim, segment)
            }
            Opcode::Rdmap(rdmap::Opcode::SendSolicited) => {
                self.on_send(now, memory, &message(true), shim, segment)
            }
            Opcode::Rdmap(rdmap::Opcode::Immediate) => {
                self.on_immediate(memory, &message(false), segment)
            }
            Opcode::Rdmap(rdmap::Opcode::ImmediateSolicited) => {
                self.on_immediate(memory, &message(true), segment)
            }
            Opcode::WriteRecord | Opcode::WriteRecordImmediate => {
                self.on_record(now, memory, source, shim, segment)
            }
            Opcode::Rdmap(rdmap::Opcode::Write) if !group => {
                self.on_write(memory, source, shim, segment)
            }
            Opcode::Rdmap(rdmap::Opcode::ReadRequest) if !group => {
                self.on_read_request(memory, source, shim, segment)
            }
            Opcode::Rdmap(rdmap::Opcode::ReadResponse) if !group => {
                self.on_read_response(now, memory, source, shim, segment)
            }
            Opcode::Rdmap(_) => Err(Reason::Unsupported),
        }
    }

    fn on_send<M: Memory + ?Sized>(
        &mut self,
        now: Time,
        memory: &mut M,
        message: &Message,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let len = len_of(segment);
        let (start, end) = (shim.seg_off, shim.seg_off + len);
        if len == message.len {
            let wr = self.receive_once(memory, message)?;
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

    /// Takes a receive for the first segment of a message of several. Further segments of a message
    /// that is too long are dropped.
    fn open_message<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &Message,
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
        message: &Message,
        segment: &Segment<'_>,
    ) -> Result<Action, Reason> {
        let data = rdmap::parse_immediate(segment.payload).map_err(|_| Reason::Malformed)?;
        let empty = Message { len: 0, ..*message };
        let wr = self.receive_once(memory, &empty)?;
        self.deliver(&empty, &wr, Some(data), UdStatus::Success);
        Ok(Action::Done)
    }

    /// Takes a receive for a message of one datagram, if that was not delivered before. Messages of
    /// different groups are not distinguished, because their numbers may coincide.
    fn receive_once<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &Message,
    ) -> Result<RecvWr, Reason> {
        if message.group {
            return self.receive_for(memory, message);
        }
        if self.delivered.has(&message.from, message.id) {
            return Err(Reason::Duplicate);
        }
        let wr = self.receive_for(memory, message)?;
        self.delivered.note(&message.from, message.id);
        Ok(wr)
    }

    /// Takes the next receive if it is long enough for a message.
    fn receive_for<M: Memory + ?Sized>(
        &mut self,
        memory: &mut M,
        message: &Message,
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
        message: &Message,
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

    /// Returns the receive of an abandoned message to the head of the queue.
    pub(super) fn give_back(&mut self, wr: RecvWr) {
        self.counters.abandoned += 1;
        self.receives.push_front(wr);
    }

    pub(super) fn access(&mut self, source: &Source, group: bool) -> Access<'_> {
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
        let target = place_segment(&entry, shim, to, segment)?;
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
        if let (Plan::Piece(at), RecordMode::Aggregate | RecordMode::Query) =
            (plan, self.config.record_mode)
        {
            self.row = Row::after(source, shim, segment, at);
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
        // Regardless of the tag's rights: responses to unvalidated source addresses would allow
        // amplification attacks.
        if !access.is_validated {
            return Err(Reason::UnknownPeer);
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
            place_segment(&entry, shim, to, segment)
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
            Body::Ready(_) => {
                if !self.asks.handle_ready(source, shim.msg_id) {
                    return Err(Reason::Unexpected);
                }
                self.known(now, to, true);
            }
            Body::Notice(notice) => self.events.push_back(UdEvent::Notice {
                from: *source,
                msg_id: shim.msg_id,
                code: notice.code,
            }),
            Body::Rate(rate) => self.events.push_back(UdEvent::Rate {
                from: *source,
                rate: *rate,
            }),
            Body::Probe(probe) => {
                self.answer(to, shim.msg_id, Control::ProbeAck(*probe), wire_len);
            }
            Body::ProbeAck(probe) => {
                match self.sender.searches.handle_answer(now, source, *probe) {
                    Some(Some(found)) => self.sender.note_found(now, found),
                    Some(None) => {}
                    None => self.events.push_back(UdEvent::Probed {
                        from: *source,
                        token: probe.token,
                        size: probe.size,
                    }),
                }
            }
            Body::Data(_) | Body::Ack(_) | Body::Close(_) => return Err(Reason::Unsupported),
        }
        Ok(Action::Done)
    }
}

fn len_of(segment: &Segment<'_>) -> u32 {
    u32::try_from(segment.payload.len()).unwrap_or(u32::MAX)
}

/// Returns the place of a segment at `to`, if its whole message fits.
fn place_segment(
    entry: &StagEntry,
    shim: &Shim,
    to: u64,
    segment: &Segment<'_>,
) -> Result<Target, Reason> {
    place(entry, to - u64::from(shim.seg_off), shim.msg_len)?;
    place(entry, to, len_of(segment))
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

/// Returns the requested parts of a read: all, or those that the request names.
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
