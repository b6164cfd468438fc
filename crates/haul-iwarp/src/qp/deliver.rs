//! Delivery: the effect of a message once it, and all before it, have been placed (RFC 5040 §5.5).

use super::work::Status;
use super::{Completion, Event, Qp, State, Violation};
use crate::error::Error;
use crate::memory::Memory;
use crate::operation::{CompletionKind, Operation};
use crate::wire::TermCode;

use crate::stag::Stag;
use crate::wire::rdmap::{AtomicRequest, AtomicResponse, ReadRequest};

/// The remaining effect of a segment that has been admitted and placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it was a Write, or not the last of its message.
    None,
    /// The end of a Send of `len` bytes.
    Send {
        solicited: bool,
        with: With,
        len: u32,
    },
    Immediate {
        data: u64,
        solicited: bool,
    },
    /// With its number on queue 1.
    ReadRequest(ReadRequest, u32),
    /// With its number on queue 1.
    AtomicRequest(AtomicRequest, u32),
    /// The end of a Read Response.
    ReadResponse,
    AtomicResponse(AtomicResponse),
    /// The zero-length Send that opens a peer-to-peer connection.
    ReadyToReceive,
    /// Its content is in `Qp::heard`.
    Terminate,
    /// The peer closes: the end of its stream follows.
    CloseNotice,
}

/// The ULP field of a Send's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    Nothing,
    Invalidate(Stag),
    Immediate(u32),
}

impl Qp {
    /// Performs the effect of an admitted segment, once all segments before it are delivered.
    pub(crate) fn deliver(
        &mut self,
        memory: &mut impl Memory,
        effect: Effect,
    ) -> Result<(), Violation> {
        self.rtr_send_expected &= effect == Effect::ReadyToReceive;
        match effect {
            Effect::None => Ok(()),
            Effect::Send {
                solicited,
                with,
                len,
            } => self.deliver_send(memory, solicited, with, len),
            Effect::Immediate { data, solicited } => {
                let kind = CompletionKind::ReceiveImmediate { data, solicited };
                self.complete_receive(kind, 8)
            }
            Effect::ReadRequest(request, msn) => {
                self.into.read = self.into.read.wrapping_add(1);
                self.take_read(memory, request, msn)
            }
            Effect::AtomicRequest(request, msn) => {
                self.into.read = self.into.read.wrapping_add(1);
                self.take_atomic(memory, request, msn)
            }
            Effect::ReadResponse => self.deliver_read_response(),
            Effect::AtomicResponse(response) => self.deliver_atomic_response(response),
            Effect::ReadyToReceive => {
                self.rtr_send_expected = false;
                self.into.send = self.into.send.wrapping_add(1);
                Ok(())
            }
            Effect::CloseNotice => {
                self.noticed = true;
                Ok(())
            }
            Effect::Terminate => {
                let code = self.peer_terminate.as_ref().map(|terminate| terminate.code);
                self.state = State::Closed;
                self.report(Error::Terminated(code.unwrap_or(TermCode::UNSPECIFIED)));
                Ok(())
            }
        }
    }

    fn deliver_send(
        &mut self,
        memory: &mut impl Memory,
        solicited: bool,
        with: With,
        len: u32,
    ) -> Result<(), Violation> {
        if self
            .receives
            .front()
            .is_some_and(|receive| receive.got != len)
        {
            return Err(TermCode::DDP_INVALID_MO.into()); // segments that leave a gap
        }
        let receive = |invalidated| CompletionKind::Receive {
            solicited,
            invalidated,
        };
        let kind = match with {
            With::Nothing => receive(None),
            With::Invalidate(stag) => {
                self.may_invalidate(memory.lookup(stag))?;
                memory.invalidate(stag);
                receive(Some(stag))
            }
            With::Immediate(data) => CompletionKind::ReceiveSendImmediate { data, solicited },
        };
        self.complete_receive(kind, len)
    }

    fn complete_receive(&mut self, kind: CompletionKind, len: u32) -> Result<(), Violation> {
        let receive = self.receives.pop_front().ok_or(TermCode::DDP_NO_BUFFER)?;
        self.into.send = self.into.send.wrapping_add(1);
        self.events.push_back(Event::Completion(Completion {
            id: receive.wr.id,
            slot: receive.wr.slot,
            status: Status::Success,
            kind,
            len,
            signalled: true,
        }));
        Ok(())
    }

    fn deliver_read_response(&mut self) -> Result<(), Violation> {
        let number = self.oldest_read()?;
        let wqe = self.request(number).ok_or(TermCode::UNEXPECTED_OPCODE)?;
        let (len, shared) = (wqe.wr.len, wqe.shares_sink);
        if !shared && wqe.got != len {
            return Err(TermCode::UNSPECIFIED.into());
        }
        wqe.answered = true;
        if shared {
            let left = self.shared_got.checked_sub(u64::from(len));
            self.shared_got = left.ok_or(TermCode::UNSPECIFIED)?;
        }
        self.forget_read(number);
        Ok(())
    }

    fn deliver_atomic_response(&mut self, response: AtomicResponse) -> Result<(), Violation> {
        self.into.atomic = self.into.atomic.wrapping_add(1);
        let is_atomic = |number: &u64| {
            self.request_ref(*number)
                .is_some_and(|wqe| matches!(wqe.wr.op, Operation::Atomic { .. }))
        };
        let number = self.reads.iter().copied().find(is_atomic);
        let number = number.ok_or(TermCode::UNEXPECTED_OPCODE)?;
        if super::wqe::atomic_id(number) != response.id {
            return Err(TermCode::STREAM_CATASTROPHIC.into()); // RFC 7306 §5.2.2 rule 7
        }
        if let Some(wqe) = self.request(number) {
            (wqe.answered, wqe.original) = (true, response.original);
        }
        self.forget_read(number);
        Ok(())
    }

    fn forget_read(&mut self, number: u64) {
        self.reads.retain(|read| *read != number);
        self.retire_requests();
    }
}
