//! A send request in its queue, and its segments.

use std::ops::Range;

use super::work::{Completion, Payload, SendWr, Status};
use crate::operation::{CompletionKind, Operation};

use crate::stag::Stag;
use crate::wire::ddp::{self, Header, Model};
use crate::wire::rdmap::{AtomicRequest, Opcode, ReadRequest};

/// Bytes of the longest header of a segment: DDP's and that of a Terminate.
pub(crate) const SEGMENT_HEADER_MAX: usize =
    ddp::UNTAGGED_LEN + crate::wire::rdmap::TERMINATE_LEN_MAX;

/// Who receives the completion of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The user.
    User,
    /// None: the proof of placement that follows completes it.
    Silent,
    /// The user, of the Write before it, whose bytes these are.
    Proof { len: u32 },
    /// None: the first message of a peer-to-peer connection.
    Rtr,
}

/// A request in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wqe {
    pub(super) wr: SendWr,
    pub(super) role: Role,
    /// Bytes that are in segments.
    pub(super) sent: u32,
    /// Its last segment is made.
    pub(super) emitted: bool,
    /// Index of its first segment, once there is one.
    pub(super) first_segment: u64,
    pub(super) segments: u32,
    /// Its number on its queue, once it has one.
    pub(super) msn: u32,
    /// Bytes of a read's response that are placed; of one that shares its sink, `Qp::shared_got`
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
    /// Bytes written by the core: DDP's header and the operation's own.
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
    /// The segment at `offset` of a message of `len` bytes.
    pub(super) fn at(offset: u32, len: u32, header_len: usize, ulpdu_max: u32) -> Self {
        Self::of(offset, len, payload_room(header_len, ulpdu_max))
    }

    /// The segment at `offset` of a message of `len` bytes, with room for so many of them; offset
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

/// Bytes of payload per segment: a multiple of four, so that only a last segment needs padding.
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
        let op = Operation::Read {
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
        let Operation::Read { sink, sink_to, .. } = self.wr.op else {
            return None;
        };
        let start = u128::from(sink_to);
        let len = u128::from(self.wr.len);
        (len > 0).then_some((sink, start..start + len))
    }

    pub(super) fn is_complete(&self, released: u64) -> bool {
        let referred = self.first_segment + u64::from(self.segments) > released;
        self.emitted && !referred && (self.answered || !self.wr.op.is_answered())
    }

    pub(super) fn kind(&self) -> CompletionKind {
        if let Role::Proof { .. } = self.role {
            return CompletionKind::Write;
        }
        self.wr.op.kind(self.original)
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
    pub(super) fn emit(&self, cut: Cut, atomic_id: u32, out: &mut [u8]) -> usize {
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
            Operation::Send {
                solicited,
                invalidate,
            } => {
                let opcode = Opcode::send(solicited, invalidate.is_some());
                let ulp = invalidate.map_or(0, |stag| stag.0);
                untagged(opcode, ulp, ddp::QN_SEND, cut.offset).emit(out)
            }
            Operation::SendImmediate { data, solicited } => {
                let opcode = if solicited {
                    Opcode::SendSolicitedImmediate
                } else {
                    Opcode::SendImmediate
                };
                untagged(opcode, data, ddp::QN_SEND, cut.offset).emit(out)
            }
            Operation::Write { stag, to, .. } => {
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
            Operation::Read {
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
            Operation::Atomic { stag, to, op } => {
                let id = atomic_id;
                let request = AtomicRequest { id, stag, to, op };
                let header = untagged(Opcode::AtomicRequest, 0, ddp::QN_READ, 0);
                append(out, header, &request.emit())
            }
            Operation::Immediate { data, solicited } => {
                let opcode = Opcode::immediate(solicited);
                let header = untagged(opcode, 0, ddp::QN_SEND, 0);
                append(out, header, &data.to_be_bytes())
            }
            // They never begin: see `Qp::invalidate_locally` and `Qp::post_send`.
            Operation::LocalInvalidate(_) | Operation::WriteRecord { .. } => 0,
        }
    }

    /// The segment of its payload that starts at `offset`.
    pub(super) fn cut(&self, offset: u32, ulpdu_max: u32) -> Cut {
        match self.wr.op {
            Operation::Send { .. } | Operation::SendImmediate { .. } => {
                Cut::at(offset, self.wr.len, ddp::UNTAGGED_LEN, ulpdu_max)
            }
            Operation::Write { .. } => Cut::at(offset, self.wr.len, ddp::TAGGED_LEN, ulpdu_max),
            _ => Cut::at(0, 0, ddp::UNTAGGED_LEN, ulpdu_max),
        }
    }

    pub(super) fn segment(&self, index: u64, cut: Cut, atomic_id: u32, out: &mut [u8]) -> Emission {
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

pub(super) fn append(out: &mut [u8], header: Header, own: &[u8]) -> usize {
    let start = header.emit(out);
    out[start..start + own.len()].copy_from_slice(own);
    start + own.len()
}

/// The identifier echoed by an atomic's response: the lower half of the request's number.
pub(super) fn atomic_id(number: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}
