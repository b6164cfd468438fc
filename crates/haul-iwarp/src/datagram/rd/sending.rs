//! The sending side of one peer: turns requests and responses into segments, segments into packets,
//! and acknowledgements into completions.
//!
//! Messages begin in the order in which they were posted, and the packets of a message follow one
//! another. So packets are in the order of messages, and a packet's number identifies its message
//! and segment. To retransmit a packet, only its message has to be kept.

use std::collections::VecDeque;

use haul_cc::{Controller, Pacer, RttEstimator, Time};

use super::access::Access;
use super::control::{halves, low};
use super::sizes::Size;
use super::window::Window;
use crate::datagram::wire::{DataHeader, Flags, Kind, MsgId, Opcode, Psn, Shim};
use crate::memory::Memory;
use crate::operation::Operation;
use crate::qp::{Cut, Payload, SendWr};
use crate::stag::{Rights, Stag};
use crate::wire::ddp::{self, Model};
use crate::wire::rdmap::{
    self, ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequest, AtomicResponse, ReadRequest,
};

/// Exists while there is something to send or to be acknowledged, and a while longer.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) window: Window,
    pub(super) rtt: RttEstimator,
    pub(super) controller: Box<dyn Controller>,
    pub(super) pacer: Pacer,
    pub(super) samples: super::samples::Samples,
    /// Incomplete requests, oldest first; the first `begun` have packets.
    wqes: VecDeque<Wqe>,
    begun: usize,
    /// Reads and atomics among them without a response.
    asked: u32,
    /// Requests of the peer, oldest first; the first `answered` have all their packets.
    answers: VecDeque<Answer>,
    answered: usize,
    /// The message whose packets are being made; messages are not interleaved.
    under_way: Option<Class>,
    turn: Class,
    /// When this side became idle.
    pub(super) quiet_since: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Request,
    Answer,
}

/// A message's packets: `made` of them so far, from `first` on.
#[derive(Debug, Clone, Copy, Default)]
struct Packets {
    first: u64,
    made: u32,
    whole: bool,
    segments: Segments,
}

/// The segmentation of a message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Segments {
    size: Size,
    /// Bytes of the longest DDP segment.
    max: u32,
}

impl Segments {
    pub(super) fn new(size: Size, agreed: u16) -> Self {
        Self {
            size,
            max: size.segment_max(agreed),
        }
    }
}

impl Packets {
    fn hold(&self, psn: u64) -> Option<u32> {
        let nth = u32::try_from(psn.checked_sub(self.first)?).ok()?;
        (nth < self.made).then_some(nth)
    }

    fn end(&self) -> u64 {
        self.first + u64::from(self.made)
    }
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wqe {
    pub(super) wr: SendWr,
    pub(super) msg: MsgId,
    packets: Packets,
    /// First packet of the response, in the peer's numbers.
    pub(super) response: Option<u64>,
    answered: bool,
    pub(super) original: u64,
}

/// A request of the peer.
#[derive(Debug, Clone, Copy)]
struct Answer {
    what: What,
    msg: MsgId,
    packets: Packets,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Read(ReadRequest),
    /// Performed. The result is kept until the requester has it.
    Atomic(AtomicResponse),
}

/// A packet to send: its header and payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) header_len: usize,
    pub(super) payload: Payload,
    pub(super) payload_len: u32,
}

/// Header fields common to all packets to a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    pub(super) dst_qpn: u32,
    pub(super) src_qpn: u32,
    pub(super) epoch: u32,
}

/// The memory of a response was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Withdrawn(pub(super) MsgId);

impl Sending {
    pub(super) fn new(
        window: Window,
        rtt: RttEstimator,
        controller: Box<dyn Controller>,
        pacer: Pacer,
    ) -> Self {
        Self {
            window,
            rtt,
            controller,
            pacer,
            samples: super::samples::Samples::default(),
            wqes: VecDeque::new(),
            begun: 0,
            asked: 0,
            answers: VecDeque::new(),
            answered: 0,
            under_way: None,
            turn: Class::Answer,
            quiet_since: None,
        }
    }

    /// Whether nothing is posted, requested or unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.wqes.is_empty() && self.answers.is_empty() && self.window.is_empty()
    }

    /// Whether the request of this number is incomplete.
    pub(super) fn has_begun(&self, msg: MsgId) -> bool {
        let mut wqes = self.wqes.iter();
        wqes.any(|wqe| wqe.packets.made > 0 && wqe.msg == msg)
    }

    /// Returns the bytes of memory that it holds beside itself.
    pub(super) fn heap_bytes(&self) -> usize {
        self.wqes.capacity() * size_of::<Wqe>()
            + self.answers.capacity() * size_of::<Answer>()
            + self.window.heap_bytes()
    }

    pub(super) fn post(&mut self, wr: SendWr) {
        self.quiet_since = None;
        self.wqes.push_back(Wqe {
            wr,
            msg: MsgId::default(),
            packets: Packets::default(),
            response: None,
            answered: false,
            original: 0,
        });
    }

    /// Returns the number of responses that are not yet in packets.
    pub(super) fn unanswered(&self) -> usize {
        self.answers.len() - self.answered
    }

    pub(super) fn answer_read(&mut self, msg: MsgId, request: ReadRequest) {
        self.answer(msg, What::Read(request));
    }

    pub(super) fn answer_atomic(&mut self, msg: MsgId, response: AtomicResponse) {
        self.answer(msg, What::Atomic(response));
    }

    fn answer(&mut self, msg: MsgId, what: What) {
        self.quiet_since = None;
        self.answers.push_back(Answer {
            what,
            msg,
            packets: Packets::default(),
        });
    }

    // ---- new packets

    /// Whether a packet can be made that was not sent yet.
    pub(super) fn has_next(&self, ord: u16, ird: u16) -> bool {
        self.choose(ord, ird).is_some()
    }

    /// Finishes a message in progress first; otherwise the classes take turns.
    fn choose(&self, ord: u16, ird: u16) -> Option<Class> {
        if self.under_way.is_some() {
            return self.under_way;
        }
        let request = self.may_begin_request(ord);
        // The peer sends further requests once it has the response, perhaps before its
        // acknowledgement arrives.
        let answer = self.unanswered() > 0 && self.answered < 4 * usize::from(ird).max(1);
        match (request, answer) {
            (true, true) => Some(self.turn),
            (true, false) => Some(Class::Request),
            (false, true) => Some(Class::Answer),
            (false, false) => None,
        }
    }

    fn may_begin_request(&self, ord: u16) -> bool {
        self.wqes.get(self.begun).is_some_and(|wqe| {
            let fenced = wqe.wr.fence && self.asked > 0;
            let full = wqe.wr.op.is_answered() && self.asked >= u32::from(ord);
            !fenced && !full
        })
    }

    /// Makes the next packet, number `psn`; `next_msg` numbers requests, and a message that begins
    /// is cut into `segments`.
    pub(super) fn make(
        &mut self,
        ord: u16,
        ird: u16,
        psn: u64,
        next_msg: &mut MsgId,
        segments: Segments,
    ) -> bool {
        let Some(class) = self.choose(ord, ird) else {
            return false;
        };
        let packets = match class {
            Class::Request => {
                let wqe = &mut self.wqes[self.begun];
                if wqe.packets.made == 0 {
                    wqe.msg = *next_msg;
                    *next_msg = next_msg.plus(1);
                    self.asked += u32::from(wqe.wr.op.is_answered());
                }
                &mut wqe.packets
            }
            Class::Answer => &mut self.answers[self.answered].packets,
        };
        if packets.made == 0 {
            (packets.first, packets.segments) = (psn, segments);
        }
        packets.made += 1;
        let whole = match class {
            Class::Request => self.wqes[self.begun].note_made(),
            Class::Answer => self.answers[self.answered].note_made(),
        };
        self.under_way = (!whole).then_some(class);
        if whole {
            match class {
                Class::Request => (self.begun, self.turn) = (self.begun + 1, Class::Answer),
                Class::Answer => (self.answered, self.turn) = (self.answered + 1, Class::Request),
            }
        }
        true
    }

    /// Writes the header of a packet that was made. The tag of a response is looked up again each
    /// time, so that withdrawn memory is not read.
    pub(super) fn write(
        &self,
        memory: &impl Memory,
        access: &Access,
        stamp: &Stamp,
        out: &mut [u8],
    ) -> Result<Option<Packet>, Withdrawn> {
        let psn = stamp.psn;
        let begun = self
            .wqes
            .partition_point(|wqe| wqe.packets.made > 0 && wqe.packets.first <= psn);
        if let Some(wqe) = begun.checked_sub(1).and_then(|at| self.wqes.get(at))
            && let Some(nth) = wqe.packets.hold(psn)
        {
            return Ok(Some(wqe.write(stamp, nth, out)));
        }
        let begun = self
            .answers
            .partition_point(|answer| answer.packets.made > 0 && answer.packets.first <= psn);
        if let Some(answer) = begun.checked_sub(1).and_then(|at| self.answers.get(at))
            && let Some(nth) = answer.packets.hold(psn)
        {
            return answer.write(memory, access, stamp, nth, out).map(Some);
        }
        Ok(None)
    }

    // ---- acknowledgements

    /// Returns the unanswered request of message `msg`.
    pub(super) fn asked(&mut self, msg: MsgId) -> Option<&mut Wqe> {
        let mut begun = self.wqes.iter_mut().take(self.begun);
        begun.find(|wqe| wqe.msg == msg && wqe.wr.op.is_answered() && !wqe.answered)
    }

    pub(super) fn handle_answered(&mut self, msg: MsgId, original: u64) {
        if let Some(wqe) = self.asked(msg) {
            (wqe.answered, wqe.original) = (true, original);
            self.asked -= 1;
        }
    }

    /// Takes the oldest request if it is complete: all its packets are acknowledged, and its answer
    /// is there.
    pub(super) fn pop_completed(&mut self) -> Option<Wqe> {
        let una = self.window.una();
        while self.answered > 0 && self.answers[0].packets.end() <= una {
            self.answers.pop_front();
            self.answered -= 1;
        }
        let wqe = self.wqes.front()?;
        let placed = wqe.packets.whole && wqe.packets.end() <= una;
        if !placed || wqe.wr.op.is_answered() && !wqe.answered {
            return None;
        }
        self.begun -= 1;
        self.wqes.pop_front()
    }

    /// Takes all requests; those that were begun come first. `true`: a packet of it may have
    /// reached the peer.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Wqe, bool)> + use<> {
        let wqes = std::mem::take(&mut self.wqes);
        wqes.into_iter().map(|wqe| {
            let begun = wqe.packets.made > 0;
            (wqe, begun)
        })
    }
}

const TAGGED: u32 = 14;

/// Converts a number that is known to fit.
pub(super) fn count_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Returns the packets of a message: at least one.
pub(super) fn packets_of(len: u32, room: u32) -> u32 {
    len.div_ceil(room).max(1)
}

/// Header fields that do not depend on the message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) address: Address,
    pub(super) psn: u64,
    /// Of this transmission, us.
    pub(super) timestamp: u32,
    pub(super) flags: Flags,
}

impl Stamp {
    fn shim(&self, msg: MsgId, len: u32, offset: u32, last: bool, kind: Flags) -> Shim {
        Shim {
            kind: Kind::Data,
            flags: self
                .flags
                .with(Flags::RD)
                .with(kind)
                .with_if(Flags::LAST, last),
            dst_qpn: self.address.dst_qpn,
            src_qpn: self.address.src_qpn,
            epoch: self.address.epoch,
            psn: Psn(low(self.psn)),
            msg_id: msg,
            msg_len: len,
            seg_off: offset,
        }
    }
}

/// The place of the `nth` segment in a message of `len` bytes.
fn cut(nth: u32, len: u32, room: u32) -> Cut {
    Cut::of(nth.saturating_mul(room).min(len), len, room)
}

/// Bytes that are cut into segments: those of the user's buffers.
const fn segmented_len(wr: &SendWr) -> u32 {
    match wr.op {
        Operation::Send { .. } | Operation::Write { .. } | Operation::WriteRecord { .. } => wr.len,
        _ => 0,
    }
}

/// Bytes of payload per segment, of segments of `segment_max` bytes.
const fn room(op: &Operation, segment_max: u32) -> u32 {
    match op {
        Operation::Write { .. }
        | Operation::WriteRecord {
            immediate: None, ..
        } => segment_max - 14,
        Operation::WriteRecord { .. } => segment_max - 14 - 8,
        _ => segment_max - 18,
    }
}

impl Wqe {
    /// Bytes of payload per segment.
    fn room(&self) -> u32 {
        room(&self.wr.op, self.packets.segments.max)
    }

    /// Counts a packet; returns whether it is the last one.
    fn note_made(&mut self) -> bool {
        let total = packets_of(segmented_len(&self.wr), self.room());
        self.packets.whole = self.packets.made == total;
        self.packets.whole
    }

    fn write(&self, stamp: &Stamp, nth: u32, out: &mut [u8]) -> Packet {
        let cut = cut(nth, segmented_len(&self.wr), self.room());
        let size = self.packets.segments.size.flags();
        let mut own = Own::default();
        let (opcode, model) = self.describe(cut.offset, &mut own);
        let shim = if own.len > 0 {
            stamp.shim(self.msg, own.len, 0, true, size)
        } else {
            stamp.shim(self.msg, self.wr.len, cut.offset, cut.last, size)
        };
        let immediate = match self.wr.op {
            Operation::WriteRecord { immediate, .. } => immediate,
            _ => None,
        };
        let [high, low] = halves(immediate.unwrap_or(0));
        let words = [stamp.timestamp, high, low];
        let header = DataHeader {
            shim,
            ext: if immediate.is_some() {
                &words
            } else {
                &words[..1]
            },
            opcode,
            model,
        };
        let start = header.emit(out);
        let own = own.octets();
        out[start..start + own.len()].copy_from_slice(own);
        let payload = if cut.len == 0 {
            Payload::None
        } else {
            Payload::Request {
                slot: self.wr.slot,
                offset: cut.offset,
            }
        };
        Packet {
            header_len: start + own.len(),
            payload,
            payload_len: cut.len,
        }
    }

    /// The operation on the wire, for the segment at `offset`; its own payload goes to `own`.
    fn describe(&self, offset: u32, own: &mut Own) -> (Opcode, Model) {
        let untagged = |ulp: u32, qn: u32| Model::Untagged {
            ulp,
            qn,
            msn: self.msg.0,
            mo: offset,
        };
        let tagged = |stag: Stag, to: u64| Model::Tagged {
            stag,
            to: to.wrapping_add(u64::from(offset)),
        };
        match self.wr.op {
            Operation::Send {
                solicited,
                invalidate,
            } => {
                let opcode = rdmap::Opcode::send(solicited, invalidate.is_some());
                let ulp = invalidate.map_or(0, |stag| stag.0);
                (Opcode::Rdmap(opcode), untagged(ulp, ddp::QN_SEND))
            }
            Operation::Write { stag, to, .. } => {
                (Opcode::Rdmap(rdmap::Opcode::Write), tagged(stag, to))
            }
            Operation::WriteRecord {
                stag,
                to,
                immediate,
            } => match immediate {
                Some(_) => (Opcode::WriteRecordImmediate, tagged(stag, to)),
                None => (Opcode::WriteRecord, tagged(stag, to)),
            },
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
                own.put(&request.emit());
                (
                    Opcode::Rdmap(rdmap::Opcode::ReadRequest),
                    untagged(0, ddp::QN_READ),
                )
            }
            Operation::Atomic { stag, to, op } => {
                let id = self.msg.0;
                own.put(&AtomicRequest { id, stag, to, op }.emit());
                let opcode = Opcode::Rdmap(rdmap::Opcode::AtomicRequest);
                (opcode, untagged(0, ddp::QN_READ))
            }
            Operation::Immediate { data, solicited } => {
                own.put(&data.to_be_bytes());
                let opcode = rdmap::Opcode::immediate(solicited);
                (Opcode::Rdmap(opcode), untagged(0, ddp::QN_SEND))
            }
            // Refused when it is posted.
            Operation::SendImmediate { .. } | Operation::LocalInvalidate(_) => (
                Opcode::Rdmap(rdmap::Opcode::Send),
                untagged(0, ddp::QN_SEND),
            ),
        }
    }
}

/// Payload that the core itself writes.
struct Own {
    octets: [u8; ATOMIC_REQUEST_LEN],
    len: u32,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            octets: [0; ATOMIC_REQUEST_LEN],
            len: 0,
        }
    }
}

impl Own {
    fn put<const N: usize>(&mut self, octets: &[u8; N]) {
        self.octets[..N].copy_from_slice(octets);
        self.len = count_of(N);
    }

    fn octets(&self) -> &[u8] {
        &self.octets[..self.len as usize]
    }
}

impl Answer {
    /// Bytes of payload per segment.
    fn room(&self) -> u32 {
        self.packets.segments.max - TAGGED
    }

    /// Counts a packet; returns whether it is the last one.
    fn note_made(&mut self) -> bool {
        let total = packets_of(self.segmented_len(), self.room());
        self.packets.whole = self.packets.made == total;
        self.packets.whole
    }

    fn flags(&self) -> Flags {
        Flags::RESP.with(self.packets.segments.size.flags())
    }

    fn segmented_len(&self) -> u32 {
        match self.what {
            What::Read(request) => request.len,
            What::Atomic(_) => 0,
        }
    }

    fn write(
        &self,
        memory: &impl Memory,
        access: &Access,
        stamp: &Stamp,
        nth: u32,
        out: &mut [u8],
    ) -> Result<Packet, Withdrawn> {
        let request = match &self.what {
            What::Read(request) => request,
            What::Atomic(response) => return Ok(self.write_atomic(response, stamp, out)),
        };
        let cut = cut(nth, request.len, self.room());
        let payload = if cut.len == 0 {
            Payload::None
        } else {
            let from = request.source_to.wrapping_add(u64::from(cut.offset));
            let range = (request.source, from, cut.len);
            let found = access.find(memory, range, Rights::REMOTE_READ);
            let (region, offset) = found.ok_or(Withdrawn(self.msg))?;
            Payload::Region { region, offset }
        };
        let header = DataHeader {
            shim: stamp.shim(self.msg, request.len, cut.offset, cut.last, self.flags()),
            ext: &[stamp.timestamp],
            opcode: Opcode::Rdmap(rdmap::Opcode::ReadResponse),
            model: Model::Tagged {
                stag: request.sink,
                to: request.sink_to.wrapping_add(u64::from(cut.offset)),
            },
        };
        Ok(Packet {
            header_len: header.emit(out),
            payload,
            payload_len: cut.len,
        })
    }

    fn write_atomic(&self, response: &AtomicResponse, stamp: &Stamp, out: &mut [u8]) -> Packet {
        let own = response.emit();
        let len = count_of(ATOMIC_RESPONSE_LEN);
        let header = DataHeader {
            shim: stamp.shim(self.msg, len, 0, true, self.flags()),
            ext: &[stamp.timestamp],
            opcode: Opcode::Rdmap(rdmap::Opcode::AtomicResponse),
            model: Model::Untagged {
                ulp: 0,
                qn: ddp::QN_ATOMIC,
                msn: self.msg.0,
                mo: 0,
            },
        };
        let start = header.emit(out);
        out[start..start + own.len()].copy_from_slice(&own);
        Packet {
            header_len: start + own.len(),
            payload: Payload::None,
            payload_len: 0,
        }
    }
}
