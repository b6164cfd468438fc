//! A reliable connection's queue pair, the part that is the same over streams and over messages:
//! work queues, DDP segments out, checks and placements in.
//!
//! `wqe`, `send` requests to segments · `response`, `respond` the peer's reads and atomics · `recv`
//! the receiver's checks · `deliver` what a message does once it and all before it are there ·
//! [`work`] the types users see.

mod deliver;
mod recv;
mod respond;
mod response;
mod send;
pub(crate) mod work;
mod wqe;

use std::collections::VecDeque;

use crate::error::{Error, PostError};
use crate::memory::Target;
use crate::operation::{Operation, RecvWr};
use crate::stag::{Rights, StagEntry};
use crate::wire::rdmap::{ReadRequest, Terminate};
use crate::wire::{Features, TermCode, ddp};

pub(crate) use deliver::Effect;
pub(crate) use recv::Incoming;
pub(crate) use respond::quote_request;
pub use work::{Completion, Event, Payload, QpConfig, SendWr, Status};
pub(crate) use wqe::{Cut, Emission, SEGMENT_HEADER_MAX};

use response::Response;
use wqe::{Role, Wqe};

/// How far the queue pair is (digest in docs/protocol/iwarp.md, states).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Start-up, or waiting for the peer's first message: work is queued and nothing is sent.
    Waiting,
    /// Ready to send.
    Open,
    /// Closing: posted requests are finished, new ones are refused.
    Draining,
    /// This end has sent all that it will send; the peer may not have.
    Finished,
    /// A Terminate is in flight; everything that arrives is dropped.
    Terminating,
    /// Over.
    Closed,
}

/// Whether segments arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// A byte stream.
    InOrder,
    /// Messages, each at its own time.
    Any,
}

/// A posted receive, and the bytes that have arrived for it.
#[derive(Debug, Clone, Copy)]
struct Receive {
    wr: RecvWr,
    /// Bytes placed; 0 <= got <= wr.len.
    got: u32,
}

/// Message sequence numbers of one direction: the next of each queue (RFC 5041 §5.1: the first is
/// 1).
#[derive(Debug, Clone, Copy)]
struct Msns {
    send: u32,
    read: u32,
    atomic: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Qp {
    config: QpConfig,
    order: Order,
    state: State,
    /// Reads and atomics that this end may have outstanding; at most the configured number.
    ord: u16,
    /// Reads and atomics that the peer may have outstanding.
    ird: u16,
    /// Capabilities of both ends beyond RFC 5040.
    features: Features,
    /// Start-up is over: the limits above are final.
    agreed: bool,
    /// To be closed as soon as the posted requests can be sent.
    closing: bool,

    /// Requests that are not completed, oldest first.
    sends: VecDeque<Wqe>,
    /// Number of the front of `sends`, counted from the first request.
    sends_first: u64,
    /// sends_first <= sends_next: number of the request that is being sent or is to be sent next.
    sends_next: u64,
    /// Numbers of the reads and atomics that wait for a response, oldest first; at most `ord`.
    reads: VecDeque<u64>,
    /// Bytes placed of the responses to those of `reads` that share their sinks.
    shared_got: u64,
    receives: VecDeque<Receive>,
    /// Requests of the peer, oldest first: those being answered, and, over messages, those answered
    /// but not yet acknowledged.
    responses: VecDeque<Response>,
    /// How many of `responses` are answered whole.
    responses_sent: usize,
    /// A message of which the last segment is still to be sent; messages are not interleaved.
    unfinished: Option<Class>,
    /// Whose turn it is when both classes have something.
    turn: Class,
    out: Msns,
    into: Msns,
    terminate: Option<Box<Terminate>>,
    /// Index of the segment that is the Terminate, once it is made.
    terminate_segment: Option<u64>,
    peer_terminate: Option<Box<Terminate>>,
    /// Number of the read that the latest segment answers, if it answers one.
    answering: Option<u64>,
    /// Whose memory was withdrawn.
    charge: Option<Charge>,
    /// A close notice is still to be sent.
    owes_notice: bool,
    /// The peer has sent a close notice.
    noticed: bool,
    /// A first message of no effect, a zero-length Send, may come (RFC 6581 §4).
    rtr_send_expected: bool,
    /// Segments made so far: the index of the next.
    segments: u64,
    /// Segments below this index are not referred to any more; released <= segments.
    released: u64,
    events: VecDeque<Event>,
    error: Option<Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Request,
    Response,
}

/// The request or receive that an error is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    /// By number.
    Request(u64),
    /// By slot.
    Receive(u32),
}

/// A rule that a segment breaks: the content of the Terminate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) code: TermCode,
    /// The Read Request to blame.
    pub(crate) read: Option<ReadRequest>,
    /// The segment is right; it is this end that has withdrawn the memory.
    pub(crate) local: bool,
}

impl Violation {
    /// Memory that one of this end's own requests names is gone. The Terminate reports a local
    /// error (RFC 5040 §4.8): an invalid STag would blame a request of the peer.
    pub(crate) const OWN_REQUEST: Self = Self {
        code: TermCode::LOCAL_CATASTROPHIC,
        read: None,
        local: true,
    };
}

impl From<TermCode> for Violation {
    fn from(code: TermCode) -> Self {
        Self {
            code,
            read: None,
            local: false,
        }
    }
}

impl Qp {
    pub(crate) fn new(config: QpConfig, order: Order) -> Self {
        let first = Msns {
            send: 1,
            read: 1,
            atomic: 1,
        };
        Self {
            order,
            state: State::Waiting,
            ord: config.ord,
            ird: config.ird,
            features: Features::default(),
            agreed: false,
            closing: false,
            sends: VecDeque::new(),
            sends_first: 0,
            sends_next: 0,
            reads: VecDeque::new(),
            shared_got: 0,
            receives: VecDeque::new(),
            responses: VecDeque::new(),
            responses_sent: 0,
            unfinished: None,
            turn: Class::Response,
            out: first,
            into: first,
            terminate: None,
            terminate_segment: None,
            peer_terminate: None,
            answering: None,
            charge: None,
            owes_notice: false,
            noticed: false,
            rtr_send_expected: false,
            segments: 0,
            released: 0,
            events: VecDeque::new(),
            error: None,
            config,
        }
    }

    /// Sizes that were not known when it was made; nothing is posted yet.
    pub(crate) fn configure(&mut self, config: QpConfig) {
        (self.ird, self.ord) = (config.ird, config.ord);
        self.config = config;
    }

    /// The parameters that start-up agreed on.
    pub(crate) fn set_limits(&mut self, ird: u16, ord: u16, features: Features) {
        (self.ird, self.ord) = (ird, ord);
        self.features = features;
        self.agreed = true;
    }

    pub(crate) fn expect_rtr_send(&mut self) {
        self.rtr_send_expected = true;
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.error
    }

    /// From here on segments are sent.
    pub(crate) fn open(&mut self) {
        if self.state == State::Waiting {
            self.state = State::Open;
            if self.closing {
                self.drain();
            }
        }
    }

    /// Accepts no more requests; once all are done, sends a close notice to a peer that knows them.
    fn drain(&mut self) {
        self.state = State::Draining;
        self.owes_notice = self.features.close_notice;
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes a request.
    pub(crate) fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        let open = matches!(self.state, State::Waiting | State::Open) && !self.closing;
        if !self.agreed || !open {
            return Err(PostError::NotOpen);
        }
        let proof = matches!(wr.op, Operation::Write { placed: true, .. });
        let free = (self.config.send_depth as usize).saturating_sub(self.sends.len());
        if free < 1 + usize::from(proof) {
            return Err(PostError::Full);
        }
        if (wr.op.is_answered() || proof) && self.ord == 0 {
            return Err(PostError::NoReads);
        }
        let unsupported = match wr.op {
            Operation::Atomic { .. } => !self.features.atomics,
            Operation::Immediate { .. } => !self.features.immediate,
            Operation::SendImmediate { .. } => !self.features.send_immediate,
            Operation::WriteRecord { .. } => true,
            _ => false,
        };
        if unsupported {
            return Err(PostError::Unsupported);
        }
        if proof {
            self.sends.push_back(Wqe::new(wr, Role::Silent));
            self.sends.push_back(Wqe::proof_of(&wr));
        } else {
            self.sends.push_back(Wqe::new(wr, Role::User));
        }
        Ok(())
    }

    /// Takes a receive.
    pub(crate) fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if matches!(self.state, State::Terminating | State::Closed) {
            return Err(PostError::NotOpen);
        }
        if self.receives.len() >= self.config.recv_depth as usize {
            return Err(PostError::Full);
        }
        self.receives.push_back(Receive { wr, got: 0 });
        Ok(())
    }

    /// The message that a peer-to-peer initiator sends first of all (RFC 6581 §4).
    pub(crate) fn send_rtr(&mut self, op: Operation) {
        let wr = SendWr {
            id: 0,
            slot: 0,
            op,
            len: 0,
            signalled: false,
            fence: false,
            continues: false,
        };
        self.sends.push_back(Wqe::new(wr, Role::Rtr));
    }

    /// Whether a segment was ever made.
    pub(crate) fn has_sent(&self) -> bool {
        self.segments > 0
    }

    /// Whether nothing is asked for, and nothing is to be answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.responses_sent == self.responses.len()
    }

    /// Takes no more requests, and finishes those that were taken. `opens`: the peer's first
    /// message comes of itself.
    pub(crate) fn close(&mut self, opens: bool) {
        match self.state {
            State::Open => self.drain(),
            State::Waiting if !self.agreed => self.fail(Error::Aborted),
            // Over messages, a close notice could overtake the reply, so it waits for the peer's
            // first message.
            State::Waiting if self.order == Order::InOrder && self.is_idle() && !opens => {
                self.state = State::Draining;
            }
            State::Waiting => self.closing = true,
            _ => {}
        }
    }

    /// Whether all is done that was to be done before closing.
    pub(crate) fn is_drained(&self) -> bool {
        self.state == State::Draining && self.is_idle() && !self.owes_notice
    }

    /// Whether the end of the peer's stream is in order: a peer that knows close notices sends one
    /// first.
    pub(crate) fn may_end(&self) -> bool {
        self.noticed || !self.features.close_notice
    }

    /// After draining: nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        self.state = State::Finished;
    }

    /// The peer has ended the connection in order. Requests for which it did not wait are flushed
    /// without an error of the connection. A response that either end owes, or an unfinished
    /// message of the peer, is an error, unless this end had closed before.
    pub(crate) fn peer_finished(&mut self) {
        let is_whole = self.reads.is_empty()
            && self.responses_sent == self.responses.len()
            && self.receives.iter().all(|receive| receive.got == 0);
        if matches!(self.state, State::Terminating | State::Closed) {
            self.state = State::Closed;
        } else if is_whole || self.state == State::Finished {
            self.state = State::Closed;
            self.flush();
        } else {
            self.fail(Error::Lost);
        }
    }

    /// Ends at once: nothing is sent any more.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.terminate = None;
        self.report(error);
    }

    /// Ends with a Terminate: `violation` of the segment that began with `header`, `segment_len`
    /// bytes in all.
    pub(crate) fn terminate(&mut self, violation: Violation, header: &[u8], segment_len: u32) {
        let error = if violation == Violation::OWN_REQUEST {
            Error::LocalMemory(TermCode::INVALID_STAG)
        } else if violation.local {
            Error::LocalMemory(violation.code)
        } else {
            Error::PeerMisbehaved(violation.code)
        };
        self.terminate_as(violation, header, segment_len, error);
    }

    /// Ends with a Terminate, and reports `error` to the local user.
    pub(crate) fn terminate_as(
        &mut self,
        violation: Violation,
        header: &[u8],
        segment_len: u32,
        error: Error,
    ) {
        if matches!(self.state, State::Terminating | State::Closed) {
            return;
        }
        if self.state == State::Finished {
            self.fail(error); // this end's direction is closed: no Terminate can be sent
            return;
        }
        // RFC 5040 §4.8, Figure 10: headers go with errors of RDMAP and DDP, not with catastrophic
        // and lower ones.
        let code = violation.code;
        let with_header = code.layer < 2 && code.etype != 0 && !header.is_empty();
        let mut octets = [0; ddp::UNTAGGED_LEN];
        let header_len = header.len().min(ddp::UNTAGGED_LEN);
        octets[..header_len].copy_from_slice(&header[..header_len]);
        let terminate = Terminate {
            code,
            segment_len: with_header.then(|| u16::try_from(segment_len).unwrap_or(u16::MAX)),
            header: with_header.then_some(octets),
            read: violation
                .read
                .filter(|_| (code.layer, code.etype) == (0, 1)),
        };
        self.state = State::Terminating;
        self.terminate = Some(Box::new(terminate));
        self.report(error);
    }

    fn report(&mut self, error: Error) {
        if self.error.is_none() {
            self.error = Some(error);
            self.events.push_back(Event::Error(error));
        }
        self.flush();
    }

    /// The place of the latest segment's payload is gone: charges the operation of this end that it
    /// was for.
    pub(crate) fn charge_placement(&mut self, target: Target) {
        self.charge = match target {
            Target::Receive { slot, .. } => Some(Charge::Receive(slot)),
            Target::Region { .. } => self.answering.map(Charge::Request),
            Target::Discard => None,
        };
    }

    /// The payload memory of a segment is gone: marks the request that it belongs to as failed, and
    /// returns the violation to report to the peer. A response belongs to the peer's operation.
    pub(crate) fn charge_payload(&mut self, payload: Payload) -> Violation {
        let Payload::Request { slot, .. } = payload else {
            return Violation {
                code: TermCode::INVALID_STAG,
                ..Violation::OWN_REQUEST
            };
        };
        let mut numbers = (self.sends_first..).zip(&self.sends);
        let found = numbers.find(|(_, wqe)| wqe.wr.slot == slot);
        self.charge = found.map(|(number, _)| Charge::Request(number));
        Violation::OWN_REQUEST
    }

    /// Whether a Terminate waits to be sent.
    pub(crate) fn must_terminate(&self) -> bool {
        self.terminate.is_some() && self.terminate_segment.is_none()
    }

    /// Returns the peer's Terminate, if it sent one.
    pub(crate) fn peer_terminate(&self) -> Option<&Terminate> {
        self.peer_terminate.as_deref()
    }

    /// Whether the queue pair may use a tag (RFC 5041 §8.2): the same domain, and no other queue
    /// pair's.
    fn is_mine(&self, entry: &StagEntry) -> bool {
        entry.pd == self.config.pd && entry.qp.is_none_or(|qp| qp == self.config.qp)
    }
}

/// Why an access to tagged memory is refused, in the order in which it is checked (RFC 5041 §7.1,
/// RFC 5040 §7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Invalid,
    NotMine,
    Wrap,
    Bounds,
    Rights,
}

impl Refusal {
    /// The code by which the data sink's DDP reports it for a tagged segment.
    fn of_placement(self) -> TermCode {
        match self {
            Self::Invalid => TermCode::DDP_INVALID_STAG,
            Self::NotMine => TermCode::DDP_NOT_ASSOCIATED,
            Self::Wrap => TermCode::DDP_TO_WRAP,
            Self::Bounds => TermCode::DDP_BOUNDS,
            Self::Rights => TermCode::ACCESS,
        }
    }

    /// The code by which RDMAP reports it for a Read or Atomic Request.
    fn of_request(self) -> TermCode {
        match self {
            Self::Invalid => TermCode::INVALID_STAG,
            Self::NotMine => TermCode::NOT_ASSOCIATED,
            Self::Wrap => TermCode::TO_WRAP,
            Self::Bounds => TermCode::BOUNDS,
            Self::Rights => TermCode::ACCESS,
        }
    }
}

impl Qp {
    /// Offset in its region of `len` bytes at `to`, if the tag allows `rights` there.
    fn access(
        &self,
        entry: Option<StagEntry>,
        to: u64,
        len: u32,
        rights: Rights,
    ) -> Result<(StagEntry, u64), Refusal> {
        let entry = entry.ok_or(Refusal::Invalid)?;
        if !self.is_mine(&entry) {
            return Err(Refusal::NotMine);
        }
        let end = to.checked_add(u64::from(len)).ok_or(Refusal::Wrap)?;
        let offset = to.checked_sub(entry.base).ok_or(Refusal::Bounds)?;
        if end - entry.base > entry.len {
            return Err(Refusal::Bounds);
        }
        if !entry.rights.contains(rights) {
            return Err(Refusal::Rights);
        }
        Ok((entry, offset))
    }

    /// The checks of RFC 5040 §7.2 and §4.8 on the tag that a Send with Invalidate names.
    fn may_invalidate(&self, entry: Option<StagEntry>) -> Result<(), TermCode> {
        let entry = entry.ok_or(TermCode::INVALID_STAG)?;
        if !self.is_mine(&entry) {
            return Err(TermCode::NOT_ASSOCIATED);
        }
        if !entry.rights.contains(Rights::REMOTE_INVALIDATE) {
            return Err(TermCode::PROTECTION_CANNOT_INVALIDATE);
        }
        Ok(())
    }
}
