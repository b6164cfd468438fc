//! The peer's reads and atomics: at most IRD at once, answered in the order in which they came.

use super::response::{Kind, Response};
use super::work::Payload;
use super::wqe::{Cut, Emission};
use super::{Class, Qp, Refusal, Violation};
use crate::memory::{AtomicAccess, Memory};
use crate::stag::Rights;
use crate::wire::TermCode;
use crate::wire::ddp::{self, Header, Model};
use crate::wire::rdmap::{
    ATOMIC_REQUEST_LEN, AtomicRequest, AtomicResponse, Opcode, READ_REQUEST_LEN, ReadRequest,
};

/// Answers that may be unacknowledged over messages, in multiples of IRD.
const HISTORY_FACTOR: usize = 4;
const HISTORY_MIN: usize = 16;

impl Qp {
    /// Reads and atomics that are taken and not yet answered.
    pub(super) fn unanswered(&self) -> usize {
        self.responses.len() - self.responses_sent
    }

    /// Checks a delivered Read Request and queues its answer.
    pub(super) fn take_read(
        &mut self,
        memory: &impl Memory,
        request: ReadRequest,
        msn: u32,
    ) -> Result<(), Violation> {
        if request.len > 0 {
            self.source(memory, &request, 0)
                .map_err(|refusal| Violation {
                    code: refusal.of_request(),
                    read: Some(request),
                    local: false,
                })?;
        }
        self.queue_response(Kind::Read(request), msn)
    }

    /// Checks a delivered Atomic Request and queues its answer.
    pub(super) fn take_atomic(
        &mut self,
        memory: &impl Memory,
        request: AtomicRequest,
        msn: u32,
    ) -> Result<(), Violation> {
        if !request.to.is_multiple_of(8) {
            return Err(TermCode::STREAM_CATASTROPHIC.into()); // RFC 7306 §8.2
        }
        self.atomic_word(memory, &request)
            .map_err(Refusal::of_request)?;
        self.queue_response(Kind::Atomic(request), msn)
    }

    fn queue_response(&mut self, kind: Kind, msn: u32) -> Result<(), Violation> {
        if self.unanswered() >= usize::from(self.ird) {
            return Err(TermCode::STREAM_CATASTROPHIC.into());
        }
        self.responses.push_back(Response {
            kind,
            msn,
            sent: 0,
            first_segment: 0,
            segments: 0,
        });
        Ok(())
    }

    /// The memory that a read asks for, `done` bytes of it being answered already.
    fn source(
        &self,
        memory: &impl Memory,
        request: &ReadRequest,
        done: u32,
    ) -> Result<(crate::stag::RegionId, u64), Refusal> {
        let entry = memory.lookup(request.source);
        let left = request.advanced(done);
        let (entry, offset) = self.access(entry, left.source_to, left.len, Rights::REMOTE_READ)?;
        Ok((entry.region, offset))
    }

    fn atomic_word(
        &self,
        memory: &impl Memory,
        request: &AtomicRequest,
    ) -> Result<AtomicAccess, Refusal> {
        let entry = memory.lookup(request.stag);
        let (entry, offset) = self.access(entry, request.to, 8, Rights::REMOTE_ATOMIC)?;
        Ok(AtomicAccess {
            region: entry.region,
            offset,
            op: request.op,
        })
    }

    pub(super) fn may_begin_response(&self) -> bool {
        let history = (usize::from(self.ird) * HISTORY_FACTOR).max(HISTORY_MIN);
        self.unanswered() > 0 && self.responses_sent < history
    }

    /// One segment of the oldest answer. The tag is looked up again for each, so that withdrawn
    /// memory is not read.
    pub(super) fn emit_response(
        &mut self,
        memory: &mut impl Memory,
        ulpdu_max: u32,
        out: &mut [u8],
    ) -> Option<Emission> {
        let mut response = *self.responses.get(self.responses_sent)?;
        if response.segments == 0 {
            response.first_segment = self.segments;
        }
        let made = match response.kind {
            Kind::Read(request) => {
                self.read_segment(memory, &request, response.sent, ulpdu_max, out)
            }
            Kind::Atomic(request) => self.perform(memory, &request, &mut response, out),
            Kind::Performed { .. } => None,
        };
        let Some((mut emission, last)) = made else {
            self.refuse_response(memory, &response);
            return None;
        };
        emission.index = self.segments;
        self.segments += 1;
        response.sent += emission.payload_len;
        response.segments += 1;
        self.responses[self.responses_sent] = response;
        self.unfinished = (!last).then_some(Class::Response);
        if last {
            self.responses_sent += 1;
            self.turn = Class::Request;
        }
        Some(emission)
    }

    fn read_segment(
        &self,
        memory: &impl Memory,
        request: &ReadRequest,
        done: u32,
        ulpdu_max: u32,
        out: &mut [u8],
    ) -> Option<(Emission, bool)> {
        let cut = Cut::at(done, request.len, ddp::TAGGED_LEN, ulpdu_max);
        let payload = if cut.len == 0 {
            Payload::None
        } else {
            let (region, offset) = self.source(memory, request, done).ok()?;
            Payload::Region { region, offset }
        };
        let header = Header {
            last: cut.last,
            control: Opcode::ReadResponse.emit(),
            model: Model::Tagged {
                stag: request.sink,
                to: request.advanced(done).sink_to,
            },
        };
        let emission = Emission {
            index: 0,
            header_len: header.emit(out),
            payload,
            payload_len: cut.len,
        };
        Some((emission, cut.last))
    }

    fn perform(
        &mut self,
        memory: &mut impl Memory,
        request: &AtomicRequest,
        response: &mut Response,
        out: &mut [u8],
    ) -> Option<(Emission, bool)> {
        let access = self.atomic_word(memory, request).ok()?;
        let original = memory.atomic(&access);
        let answer = AtomicResponse {
            id: request.id,
            original,
        };
        let msn = self.out.atomic;
        self.out.atomic = msn.wrapping_add(1);
        response.kind = Kind::Performed {
            response: answer,
            msn,
        };
        Some((atomic_segment(&answer, msn, out), true))
    }

    /// The memory was withdrawn between request and response: sends a Terminate with the rest of
    /// the request.
    fn refuse_response(&mut self, memory: &impl Memory, response: &Response) {
        let (refusal, read, control) = match response.kind {
            Kind::Read(request) => (
                self.source(memory, &request, response.sent).err(),
                Some(request.advanced(response.sent)),
                Opcode::ReadRequest,
            ),
            Kind::Atomic(request) => (
                self.atomic_word(memory, &request).err(),
                None,
                Opcode::AtomicRequest,
            ),
            Kind::Performed { .. } => return,
        };
        let code = refusal.map_or(TermCode::UNSPECIFIED, Refusal::of_request);
        let (octets, len) = quote_request(control, response.msn);
        let violation = Violation {
            code,
            read,
            local: true,
        };
        self.terminate(violation, &octets, len);
    }

    pub(super) fn regenerate_response(
        &self,
        memory: &impl Memory,
        index: u64,
        ulpdu_max: u32,
        out: &mut [u8],
    ) -> Option<Emission> {
        let begun = self
            .responses
            .partition_point(|answer| answer.segments > 0 && answer.first_segment <= index);
        let response = self.responses.get(begun.checked_sub(1)?)?;
        let nth = u32::try_from(index - response.first_segment).ok()?;
        if nth >= response.segments {
            return None;
        }
        let mut emission = match response.kind {
            Kind::Read(request) => {
                let step = Cut::at(0, request.len, ddp::TAGGED_LEN, ulpdu_max).len;
                self.read_segment(memory, &request, nth * step, ulpdu_max, out)?
                    .0
            }
            Kind::Performed { response, msn } => atomic_segment(&response, msn, out),
            Kind::Atomic(_) => return None,
        };
        emission.index = index;
        Some(emission)
    }

    pub(super) fn retire_responses(&mut self) {
        while self.responses_sent > 0 {
            let front = &self.responses[0];
            if front.first_segment + u64::from(front.segments) > self.released {
                return;
            }
            self.responses.pop_front();
            self.responses_sent -= 1;
        }
    }
}

/// The header of a Read or Atomic Request that is not at hand any more, and the bytes of its
/// segment, for a Terminate.
pub(crate) fn quote_request(opcode: Opcode, msn: u32) -> ([u8; ddp::UNTAGGED_LEN], u32) {
    let header = Header {
        last: true,
        control: opcode.emit(),
        model: Model::Untagged {
            ulp: 0,
            qn: ddp::QN_READ,
            msn,
            mo: 0,
        },
    };
    let mut octets = [0; ddp::UNTAGGED_LEN];
    header.emit(&mut octets);
    let own = match opcode {
        Opcode::ReadRequest => READ_REQUEST_LEN,
        _ => ATOMIC_REQUEST_LEN,
    };
    (octets, 18 + u32::try_from(own).unwrap_or(0))
}

fn atomic_segment(answer: &AtomicResponse, msn: u32, out: &mut [u8]) -> Emission {
    let header = Header {
        last: true,
        control: Opcode::AtomicResponse.emit(),
        model: Model::Untagged {
            ulp: 0,
            qn: ddp::QN_ATOMIC,
            msn,
            mo: 0,
        },
    };
    let start = header.emit(out);
    let own = answer.emit();
    out[start..start + own.len()].copy_from_slice(&own);
    Emission {
        index: 0,
        header_len: start + own.len(),
        payload: Payload::None,
        payload_len: 0,
    }
}
