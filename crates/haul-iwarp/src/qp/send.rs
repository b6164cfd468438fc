//! Requests to segments, and segments to completions.

use super::work::{Payload, Status};
use super::wqe::{Emission, Wqe, atomic_id};
use super::{Charge, Class, Completion, Event, Order, Qp, State, Violation};
use crate::error::Error;
use crate::memory::Memory;
use crate::operation::{CompletionKind, Operation};
use crate::wire::TermCode;

use crate::wire::ddp::{self, Header, Model};
use crate::wire::rdmap::{Opcode, Terminate};

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
            && let Operation::LocalInvalidate(stag) = wqe.wr.op
        {
            let entry = memory.lookup(stag);
            if !entry.is_some_and(|entry| self.is_mine(&entry)) {
                self.charge = Some(Charge::Request(self.sends_first));
                self.terminate(Violation::OWN_REQUEST, &[], 0);
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

    /// Finishes a message in progress first; otherwise the classes take turns.
    fn choose(&self) -> Option<Class> {
        if self.unfinished.is_some() {
            return self.unfinished;
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
        if matches!(wqe.wr.op, Operation::LocalInvalidate(_)) {
            return false;
        }
        let fenced = wqe.wr.fence && !self.reads.is_empty();
        let read_full = wqe.wr.op.is_answered() && self.reads.len() >= usize::from(self.ord);
        !fenced && !read_full
    }

    fn emit_request(&mut self, ulpdu_max: u32, out: &mut [u8]) -> Option<Emission> {
        let at = usize::try_from(self.sends_next - self.sends_first).ok()?;
        let (number, index) = (self.sends_next, self.segments);
        if self.sends.get(at)?.segments == 0 {
            let msn = self.take_msn(at);
            let wqe = self.sends.get_mut(at)?;
            (wqe.first_segment, wqe.msn) = (index, msn);
            if wqe.wr.op.is_answered() {
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
        self.unfinished = (!cut.last).then_some(Class::Request);
        if cut.last {
            self.sends_next += 1;
            self.turn = Class::Response;
        }
        Some(emission)
    }

    /// If segments arrive out of order, a response cannot be matched to one of several reads into
    /// the same memory: such reads are counted together.
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
            Operation::Send { .. }
            | Operation::SendImmediate { .. }
            | Operation::Immediate { .. } => &mut self.out.send,
            Operation::Read { .. } | Operation::Atomic { .. } => &mut self.out.read,
            Operation::Write { .. }
            | Operation::WriteRecord { .. }
            | Operation::LocalInvalidate(_) => return 0,
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

    /// Completes requests in order, each with all its continuations.
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
        self.unfinished = None;
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

    /// The request that the error belongs to.
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
        let Some(octets) = self.peer_terminate.as_ref()?.header else {
            let is_read = (code.layer, code.etype) == (0, 1);
            return self.reads.front().copied().filter(|_| is_read);
        };
        let header = Header::parse(&octets).ok()?;
        let opcode = Opcode::parse(header.control).ok()?;
        let is_quoted = |wqe: &Wqe| match (header.model, wqe.wr.op) {
            (
                Model::Tagged { stag, to },
                Operation::Write {
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
                    Operation::Send { .. } | Operation::SendImmediate { .. } => ddp::QN_SEND,
                    Operation::Immediate { .. } => ddp::QN_SEND,
                    Operation::Read { .. } | Operation::Atomic { .. } => ddp::QN_READ,
                    Operation::Write { .. }
                    | Operation::WriteRecord { .. }
                    | Operation::LocalInvalidate(_) => return false,
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
