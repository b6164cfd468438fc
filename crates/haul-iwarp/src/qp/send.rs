//! Requests to segments, and segments to completions.

use std::ops::Range;

use super::work::{CompletionKind, Payload, SendOp, SendWr, Status, is_read};
use super::{Charge, Class, Completion, Event, Order, Qp, State, Violation};
use crate::error::{Error, TermCode};
use crate::stag::{Memory, Stag};
use crate::wire::ddp::{self, Header, Model};
use crate::wire::rdmap::{AtomicRequest, Opcode, ReadRequest, Terminate};

/// Octets of the longest header of a segment: DDP's and that of a Terminate.
pub(crate) const SEGMENT_HEADER_MAX: usize =
    ddp::UNTAGGED_LEN + crate::wire::rdmap::TERMINATE_LEN_MAX;

/// Who learns of a request's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The user.
    User,
    /// Nobody: its proof of placement follows and speaks for it.
    Silent,
    /// The user, of the Write before it, whose octets these are.
    Proof { len: u32 },
    /// Nobody: the first message of a peer-to-peer connection.
    Rtr,
}

/// A request in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wqe {
    pub(super) wr: SendWr,
    role: Role,
    /// Octets that are in segments.
    sent: u32,
    /// Its last segment is made.
    emitted: bool,
    /// Index of its first segment, once there is one.
    first_segment: u64,
    segments: u32,
    /// Its number on its queue, once it has one.
    msn: u32,
    /// Octets of a read's response that are placed; of one that shares its sink, `Qp::shared_got`
    /// counts them.
    pub(super) got: u32,
    /// Another read is outstanding into some of the same memory.
    pub(super) shares_sink: bool,
    /// A read's or atomic's response is delivered.
    pub(super) answered: bool,
    pub(super) original: u64,
}

/// A segment to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Emission {
    pub(crate) index: u64,
    /// Octets written by the core: DDP's header and the operation's own.
    pub(crate) header_len: usize,
    pub(crate) payload: Payload,
    pub(crate) payload_len: u32,
}

/// One segment's place in its message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) last: bool,
}

impl Cut {
    /// The segment at `offset` of a message of `len` octets.
    pub(super) fn at(offset: u32, len: u32, header_len: usize, ulpdu_max: u32) -> Self {
        Self::of(offset, len, payload_room(header_len, ulpdu_max))
    }

    /// The segment at `offset` of a message of `len` octets, with room for so many of them; offset
    /// <= len.
    pub(crate) fn of(offset: u32, len: u32, room: u32) -> Self {
        let left = len - offset;
        Self {
            offset,
            len: left.min(room),
            last: left <= room,
        }
    }
}

/// Octets of payload per segment: a multiple of four, so that only a last segment needs padding.
fn payload_room(header_len: usize, ulpdu_max: u32) -> u32 {
    let header = if header_len == ddp::TAGGED_LEN {
        14
    } else {
        18
    };
    (ulpdu_max - header) & !3
}

impl Wqe {
    pub(crate) fn new(wr: SendWr, role: Role) -> Self {
        Self {
            wr,
            role,
            sent: 0,
            emitted: false,
            first_segment: 0,
            segments: 0,
            msn: 0,
            got: 0,
            shares_sink: false,
            answered: false,
            original: 0,
        }
    }

    /// The zero-length Read whose response proves that a Write before it is placed.
    pub(crate) fn proof_of(wr: &SendWr) -> Self {
        let op = SendOp::Read {
            sink: Stag(0),
            sink_to: 0,
            source: Stag(0),
            source_to: 0,
        };
        let read = SendWr {
            op,
            len: 0,
            fence: false,
            continues: true,
            ..*wr
        };
        Self::new(read, Role::Proof { len: wr.len })
    }

    /// Where a read's response goes; none for an empty one.
    pub(super) fn sink(&self) -> Option<(Stag, Range<u128>)> {
        let SendOp::Read { sink, sink_to, .. } = self.wr.op else {
            return None;
        };
        let start = u128::from(sink_to);
        let len = u128::from(self.wr.len);
        (len > 0).then_some((sink, start..start + len))
    }

    fn is_complete(&self, released: u64) -> bool {
        let referred = self.first_segment + u64::from(self.segments) > released;
        self.emitted && !referred && (self.answered || !is_read(&self.wr.op))
    }

    fn kind(&self) -> CompletionKind {
        if let Role::Proof { .. } = self.role {
            return CompletionKind::Write;
        }
        match self.wr.op {
            SendOp::Send { .. } | SendOp::SendImmediate { .. } => CompletionKind::Send,
            SendOp::Write { .. } => CompletionKind::Write,
            SendOp::Read { .. } => CompletionKind::Read,
            SendOp::Atomic { .. } => CompletionKind::Atomic {
                original: self.original,
            },
            SendOp::Immediate { .. } => CompletionKind::Immediate,
            SendOp::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }

    pub(super) fn completion(&self, status: Status) -> Option<Completion> {
        let len = match self.role {
            Role::User => self.wr.len,
            Role::Proof { len } => len,
            Role::Silent | Role::Rtr => return None,
        };
        Some(Completion {
            id: self.wr.id,
            slot: self.wr.slot,
            status,
            kind: self.kind(),
            len,
            signalled: self.wr.signalled,
        })
    }

    /// Writes the header of one of its segments; returns its length.
    fn emit(&self, cut: Cut, atomic_id: u32, out: &mut [u8]) -> usize {
        let untagged = |opcode: Opcode, ulp: u32, qn: u32, mo: u32| Header {
            last: cut.last,
            control: opcode.emit(),
            model: Model::Untagged {
                ulp,
                qn,
                msn: self.msn,
                mo,
            },
        };
        match self.wr.op {
            SendOp::Send {
                solicited,
                invalidate,
            } => {
                let opcode = Opcode::send(solicited, invalidate.is_some());
                let ulp = invalidate.map_or(0, |stag| stag.0);
                untagged(opcode, ulp, ddp::QN_SEND, cut.offset).emit(out)
            }
            SendOp::SendImmediate { data, solicited } => {
                let opcode = if solicited {
                    Opcode::SendSolicitedImmediate
                } else {
                    Opcode::SendImmediate
                };
                untagged(opcode, data, ddp::QN_SEND, cut.offset).emit(out)
            }
            SendOp::Write { stag, to, .. } => {
                let header = Header {
                    last: cut.last,
                    control: Opcode::Write.emit(),
                    model: Model::Tagged {
                        stag,
                        to: to.wrapping_add(u64::from(cut.offset)),
                    },
                };
                header.emit(out)
            }
            SendOp::Read {
                sink,
                sink_to,
                source,
                source_to,
            } => {
                let request = ReadRequest {
                    sink,
                    sink_to,
                    len: self.wr.len,
                    source,
                    source_to,
                };
                let header = untagged(Opcode::ReadRequest, 0, ddp::QN_READ, 0);
                append(out, header, &request.emit())
            }
            SendOp::Atomic { stag, to, op } => {
                let id = atomic_id;
                let request = AtomicRequest { id, stag, to, op };
                let header = untagged(Opcode::AtomicRequest, 0, ddp::QN_READ, 0);
                append(out, header, &request.emit())
            }
            SendOp::Immediate { data, solicited } => {
                let opcode = Opcode::immediate(solicited);
                let header = untagged(opcode, 0, ddp::QN_SEND, 0);
                append(out, header, &data.to_be_bytes())
            }
            // It never begins: see `Qp::invalidate_locally`.
            SendOp::LocalInvalidate(_) => 0,
        }
    }

    /// The segment of its payload that starts at `offset`.
    fn cut(&self, offset: u32, ulpdu_max: u32) -> Cut {
        match self.wr.op {
            SendOp::Send { .. } | SendOp::SendImmediate { .. } => {
                Cut::at(offset, self.wr.len, ddp::UNTAGGED_LEN, ulpdu_max)
            }
            SendOp::Write { .. } => Cut::at(offset, self.wr.len, ddp::TAGGED_LEN, ulpdu_max),
            _ => Cut::at(0, 0, ddp::UNTAGGED_LEN, ulpdu_max),
        }
    }

    fn segment(&self, index: u64, cut: Cut, atomic_id: u32, out: &mut [u8]) -> Emission {
        let header_len = self.emit(cut, atomic_id, out);
        let payload = if cut.len == 0 {
            Payload::None
        } else {
            Payload::Request {
                slot: self.wr.slot,
                offset: cut.offset,
            }
        };
        Emission {
            index,
            header_len,
            payload,
            payload_len: cut.len,
        }
    }
}

fn append(out: &mut [u8], header: Header, own: &[u8]) -> usize {
    let start = header.emit(out);
    out[start..start + own.len()].copy_from_slice(own);
    start + own.len()
}

impl Qp {
    /// The next segment, its header written to `out`.
    pub(crate) fn poll_segment(
        &mut self,
        memory: &mut impl Memory,
        ulpdu_max: u32,
        out: &mut [u8],
    ) -> Option<Emission> {
        if self.state == State::Terminating {
            return self.emit_terminate(out);
        }
        if !matches!(self.state, State::Open | State::Draining) {
            return None;
        }
        self.invalidate_locally(memory);
        if self.state == State::Terminating {
            return self.emit_terminate(out);
        }
        let emission = match self.choose() {
            Some(Class::Request) => self.emit_request(ulpdu_max, out),
            Some(Class::Response) => self.emit_response(memory, ulpdu_max, out),
            None => self.emit_close_notice(out),
        };
        if emission.is_none() && self.state == State::Terminating {
            return self.emit_terminate(out);
        }
        emission
    }

    /// Ends the tags that the oldest requests name.
    fn invalidate_locally(&mut self, memory: &mut impl Memory) {
        while let Some(wqe) = self.sends.front()
            && let SendOp::LocalInvalidate(stag) = wqe.wr.op
        {
            let entry = memory.lookup(stag);
            if !entry.is_some_and(|entry| self.is_mine(&entry)) {
                self.charge = Some(Charge::Request(self.sends_first));
                self.terminate(Violation::WITHDRAWN, &[], 0);
                return;
            }
            memory.invalidate(stag);
            if let Some(completion) = wqe.completion(Status::Success) {
                self.events.push_back(Event::Completion(completion));
            }
            self.sends.pop_front();
            self.sends_first += 1;
            self.sends_next = self.sends_first;
        }
    }

    /// A message under way is finished first; else the classes take turns.
    fn choose(&self) -> Option<Class> {
        if self.under_way.is_some() {
            return self.under_way;
        }
        let request = self.may_begin_request();
        let response = self.may_begin_response();
        match (request, response) {
            (true, true) => Some(self.turn),
            (true, false) => Some(Class::Request),
            (false, true) => Some(Class::Response),
            (false, false) => None,
        }
    }

    fn next_request(&self) -> Option<&Wqe> {
        let at = usize::try_from(self.sends_next - self.sends_first).ok()?;
        self.sends.get(at)
    }

    fn may_begin_request(&self) -> bool {
        let Some(wqe) = self.next_request() else {
            return false;
        };
        // Those at the front are done already.
        if matches!(wqe.wr.op, SendOp::LocalInvalidate(_)) {
            return false;
        }
        let fenced = wqe.wr.fence && !self.reads.is_empty();
        let read_full = is_read(&wqe.wr.op) && self.reads.len() >= usize::from(self.ord);
        !fenced && !read_full
    }

    fn emit_request(&mut self, ulpdu_max: u32, out: &mut [u8]) -> Option<Emission> {
        let at = usize::try_from(self.sends_next - self.sends_first).ok()?;
        let (number, index) = (self.sends_next, self.segments);
        if self.sends.get(at)?.segments == 0 {
            let msn = self.take_msn(at);
            let wqe = self.sends.get_mut(at)?;
            (wqe.first_segment, wqe.msn) = (index, msn);
            if is_read(&wqe.wr.op) {
                if self.order == Order::Any {
                    self.note_shared_sinks(number);
                }
                self.reads.push_back(number);
            }
        }
        let wqe = self.sends.get_mut(at)?;
        let cut = wqe.cut(wqe.sent, ulpdu_max);
        let emission = wqe.segment(index, cut, atomic_id(number), out);
        wqe.sent += cut.len;
        wqe.segments += 1;
        wqe.emitted = cut.last;
        self.segments += 1;
        self.under_way = (!cut.last).then_some(Class::Request);
        if cut.last {
            self.sends_next += 1;
            self.turn = Class::Response;
        }
        Some(emission)
    }

    /// Which of several reads into the same memory a segment answers cannot be told when segments
    /// arrive in any order: they are counted together.
    fn note_shared_sinks(&mut self, number: u64) {
        let Some((stag, range)) = self.request_ref(number).and_then(Wqe::sink) else {
            return;
        };
        let mut shared = false;
        for at in 0..self.reads.len() {
            let Some(other) = self.request(self.reads[at]) else {
                continue;
            };
            let overlaps = other.sink().is_some_and(|(its_stag, its_range)| {
                its_stag == stag && its_range.start < range.end && range.start < its_range.end
            });
            if overlaps {
                shared = true;
                other.shares_sink = true;
                self.shared_got += u64::from(std::mem::take(&mut other.got));
            }
        }
        if let Some(wqe) = self.request(number) {
            wqe.shares_sink = shared;
        }
    }

    /// The next message sequence number of the queue that the request at `at` goes to.
    fn take_msn(&mut self, at: usize) -> u32 {
        let counter = match self.sends[at].wr.op {
            SendOp::Send { .. } | SendOp::SendImmediate { .. } | SendOp::Immediate { .. } => {
                &mut self.out.send
            }
            SendOp::Read { .. } | SendOp::Atomic { .. } => &mut self.out.read,
            SendOp::Write { .. } | SendOp::LocalInvalidate(_) => return 0,
        };
        let msn = *counter;
        *counter = counter.wrapping_add(1);
        msn
    }

    fn emit_terminate(&mut self, out: &mut [u8]) -> Option<Emission> {
        if !self.must_terminate() {
            return None;
        }
        let index = self.segments;
        self.segments += 1;
        self.terminate_segment = Some(index);
        self.terminate_at(index, out)
    }

    fn terminate_at(&self, index: u64, out: &mut [u8]) -> Option<Emission> {
        let terminate = self.terminate.as_ref()?;
        Some(terminate_segment(terminate, index, out))
    }

    /// The last segment of an end that closes.
    fn emit_close_notice(&mut self, out: &mut [u8]) -> Option<Emission> {
        if !self.owes_notice || self.state != State::Draining || !self.is_idle() {
            return None;
        }
        self.owes_notice = false;
        let index = self.segments;
        self.segments += 1;
        let notice = Terminate::bare(TermCode::CLOSE_NOTICE);
        Some(terminate_segment(&notice, index, out))
    }

    /// Makes a segment again that was made before and not released: over messages, segments are cut
    /// alike.
    pub(crate) fn regenerate(
        &self,
        memory: &impl Memory,
        index: u64,
        ulpdu_max: u32,
        out: &mut [u8],
    ) -> Option<Emission> {
        if self.terminate_segment == Some(index) && index >= self.released {
            return self.terminate_at(index, out);
        }
        let begun = self
            .sends
            .partition_point(|wqe| wqe.segments > 0 && wqe.first_segment <= index);
        let found = begun.checked_sub(1).and_then(|at| {
            let wqe = &self.sends[at];
            let nth = u32::try_from(index - wqe.first_segment).ok()?;
            (nth < wqe.segments).then_some((at, nth))
        });
        let Some((at, nth)) = found else {
            return self.regenerate_response(memory, index, ulpdu_max, out);
        };
        let wqe = &self.sends[at];
        let step = wqe.cut(0, ulpdu_max).len;
        let cut = wqe.cut(nth * step, ulpdu_max);
        Some(wqe.segment(index, cut, atomic_id(self.sends_first + at as u64), out))
    }

    /// Segments below `index` are not needed any more: sent by a lower layer that copies, or
    /// acknowledged.
    pub(crate) fn release(&mut self, index: u64) {
        self.released = self.released.max(index.min(self.segments));
        self.retire_responses();
        self.retire_requests();
    }

    /// Completes, in order, what is complete with all that continues it.
    pub(super) fn retire_requests(&mut self) {
        while let Some(wqe) = self.sends.front() {
            let mut rest = self.sends.iter().skip(1).take_while(|wqe| wqe.wr.continues);
            if !wqe.is_complete(self.released) || !rest.all(|wqe| wqe.is_complete(self.released)) {
                return;
            }
            if let Some(completion) = wqe.completion(Status::Success) {
                self.events.push_back(Event::Completion(completion));
            }
            self.sends.pop_front();
            self.sends_first += 1;
        }
    }

    /// Ends everything that was posted. The error is charged to the request or receive that it is
    /// of, or to none.
    pub(super) fn flush(&mut self) {
        let blame = self.error.map_or(Status::Flushed, blame);
        // Numbers, for every operation is compared with them; none is that high.
        let (request, slot) = match self.charged() {
            Some(Charge::Request(number)) => (number, u64::MAX),
            Some(Charge::Receive(slot)) => (u64::MAX, slot.into()),
            None => (u64::MAX, u64::MAX),
        };
        let mut status = Status::Flushed;
        for (number, wqe) in (self.sends_first..).zip(self.sends.drain(..)) {
            if number == request {
                status = blame;
            }
            if let Some(completion) = wqe.completion(status) {
                self.events.push_back(Event::Completion(completion));
                status = Status::Flushed;
            }
        }
        self.sends_first = self.sends_next;
        self.reads.clear();
        self.shared_got = 0;
        self.responses.clear();
        self.responses_sent = 0;
        self.under_way = None;
        for receive in self.receives.drain(..) {
            let is_charged = u64::from(receive.wr.slot) == slot;
            let completion = Completion {
                id: receive.wr.id,
                slot: receive.wr.slot,
                status: if is_charged { blame } else { Status::Flushed },
                kind: CompletionKind::Receive {
                    solicited: false,
                    invalidated: None,
                },
                len: 0,
                signalled: true,
            };
            self.events.push_back(Event::Completion(completion));
        }
    }

    /// What the error is charged to.
    fn charged(&self) -> Option<Charge> {
        match self.error? {
            Error::LocalMemory(_) => self.charge,
            Error::Terminated(code) => self.quoted(code).map(Charge::Request),
            _ => None,
        }
    }

    /// Number of the request that the peer's Terminate quotes, if that is not complete. Where it
    /// quotes none, an error of RDMAP's protection is that of the oldest read or atomic: DDP finds
    /// those of Writes.
    fn quoted(&self, code: TermCode) -> Option<u64> {
        let Some(octets) = self.heard.as_ref()?.header else {
            let is_read = (code.layer, code.etype) == (0, 1);
            return self.reads.front().copied().filter(|_| is_read);
        };
        let header = Header::parse(&octets).ok()?;
        let opcode = Opcode::parse(header.control).ok()?;
        let is_quoted = |wqe: &Wqe| match (header.model, wqe.wr.op) {
            (
                Model::Tagged { stag, to },
                SendOp::Write {
                    stag: its,
                    to: start,
                    ..
                },
            ) => {
                let within = to.wrapping_sub(start) < u64::from(wqe.wr.len);
                opcode == Opcode::Write && stag == its && within
            }
            (Model::Untagged { qn, msn, .. }, op) => {
                let queue = match op {
                    SendOp::Send { .. } | SendOp::SendImmediate { .. } => ddp::QN_SEND,
                    SendOp::Immediate { .. } => ddp::QN_SEND,
                    SendOp::Read { .. } | SendOp::Atomic { .. } => ddp::QN_READ,
                    SendOp::Write { .. } | SendOp::LocalInvalidate(_) => return false,
                };
                (queue, wqe.msn) == (qn, msn)
            }
            _ => false,
        };
        let mut numbers = (self.sends_first..).zip(&self.sends);
        let found = numbers.find(|(_, wqe)| wqe.segments > 0 && is_quoted(wqe));
        found.map(|(number, _)| number)
    }

    pub(super) fn request(&mut self, number: u64) -> Option<&mut Wqe> {
        let at = number.checked_sub(self.sends_first)?;
        self.sends.get_mut(usize::try_from(at).ok()?)
    }

    pub(super) fn request_ref(&self, number: u64) -> Option<&Wqe> {
        let at = number.checked_sub(self.sends_first)?;
        self.sends.get(usize::try_from(at).ok()?)
    }
}

fn terminate_segment(terminate: &Terminate, index: u64, out: &mut [u8]) -> Emission {
    let header = Header {
        last: true,
        control: Opcode::Terminate.emit(),
        model: Model::Untagged {
            ulp: 0,
            qn: ddp::QN_TERMINATE,
            msn: 1,
            mo: 0,
        },
    };
    let start = header.emit(out);
    let header_len = start + terminate.emit(&mut out[start..]);
    Emission {
        index,
        header_len,
        payload: Payload::None,
        payload_len: 0,
    }
}

/// What an atomic's response repeats: the lower half of the request's number.
pub(super) fn atomic_id(number: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn blame(error: Error) -> Status {
    let Error::Terminated(TermCode { layer, etype, .. }) = error else {
        return match error {
            Error::LocalMemory(_) => Status::LocalProtection,
            _ => Status::Flushed,
        };
    };
    match (layer, etype) {
        (0 | 1, 1) => Status::RemoteAccess,
        (0 | 1, 2) => Status::RemoteOperation,
        _ => Status::Flushed,
    }
}
