//! The receiver's checks, before anything is placed (RFC 5041 §7.1, RFC 5040 §7.2, RFC 7306 §8.2,
//! RFC 5042).

use super::deliver::{Effect, With};
use super::{Charge, Order, Qp, Receive, Refusal, State, Violation};
use crate::memory::{Memory, Placement, Target};
use crate::operation::Operation;
use crate::stag::{Rights, Stag};
use crate::wire::ddp::{self, Header, Model};
use crate::wire::rdmap::{
    AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate, parse_immediate,
};
use crate::wire::{ParseError, TermCode};

/// A segment, of which the core sees the headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'a> {
    /// DDP's header and the operation's own.
    pub(crate) octets: &'a [u8],
    /// Bytes of the whole segment; bytes.len() <= len.
    pub(crate) len: u32,
}

/// A segment that has passed the checks: where its payload goes, and its effect once all before it
/// has arrived.
pub(crate) type Admitted = (Option<Placement>, Effect);

/// The untagged header, and what follows it.
struct Untagged<'a> {
    opcode: Result<Opcode, ParseError>,
    last: bool,
    ulp: u32,
    msn: u32,
    mo: u32,
    own: &'a [u8],
    /// Bytes after the DDP header, the operation's own header included.
    len: u32,
}

/// Half of the sequence space: further ahead than this is behind.
const BEHIND: u32 = 1 << 31;

impl Qp {
    /// Checks a segment. Nothing of it may be placed before, and nothing but the placement after.
    pub(crate) fn admit(
        &mut self,
        memory: &mut impl Memory,
        incoming: &Incoming<'_>,
    ) -> Result<Admitted, Violation> {
        debug_assert!(!matches!(self.state, State::Terminating | State::Closed));
        self.answering = None;
        let header = Header::parse(incoming.octets).map_err(|error| match error {
            ParseError::DdpVersion { tagged: true, .. } => TermCode::DDP_VERSION_TAGGED,
            ParseError::DdpVersion { tagged: false, .. } => TermCode::DDP_VERSION_UNTAGGED,
            _ => TermCode::UNSPECIFIED,
        })?;
        let header_len = header.wire_len();
        let own = &incoming.octets[header_len..];
        let len = incoming.len
            - if header_len == ddp::TAGGED_LEN {
                14
            } else {
                18
            };
        let opcode = Opcode::parse(header.control);
        match header.model {
            Model::Tagged { stag, to } => match opcode.map_err(code_of)? {
                Opcode::Write => self.admit_write(memory, stag, to, len),
                Opcode::ReadResponse => {
                    self.admit_read_response(memory, stag, to, len, header.last)
                }
                _ => Err(TermCode::UNEXPECTED_OPCODE.into()),
            },
            Model::Untagged { ulp, qn, msn, mo } => {
                let segment = Untagged {
                    opcode,
                    last: header.last,
                    ulp,
                    msn,
                    mo,
                    own,
                    len,
                };
                match qn {
                    ddp::QN_SEND => self.admit_send(memory, &segment),
                    ddp::QN_READ => self.admit_request(&segment),
                    ddp::QN_TERMINATE => Ok((None, self.admit_terminate(own))),
                    ddp::QN_ATOMIC => self.admit_atomic_response(&segment),
                    _ => Err(TermCode::DDP_INVALID_QN.into()),
                }
            }
        }
    }

    fn admit_terminate(&mut self, own: &[u8]) -> Effect {
        let terminate = Terminate::parse(own);
        if terminate.code == TermCode::CLOSE_NOTICE && self.features.close_notice {
            return Effect::CloseNotice;
        }
        self.peer_terminate = Some(Box::new(terminate));
        Effect::Terminate
    }

    /// A segment of zero length names no memory: its tag is not looked at (RFC 5041 §7.1).
    fn admit_write(
        &self,
        memory: &impl Memory,
        stag: Stag,
        to: u64,
        len: u32,
    ) -> Result<Admitted, Violation> {
        if len == 0 {
            return Ok((None, Effect::None));
        }
        let (entry, offset) = self
            .access(memory.lookup(stag), to, len, Rights::REMOTE_WRITE)
            .map_err(Refusal::of_placement)?;
        let target = Target::Region {
            region: entry.region,
            offset,
        };
        Ok((Some(Placement { target, len }), Effect::None))
    }

    /// A response may write only where this end asked for it: stricter than RFC 5040 §5.2.2, which
    /// leaves it open.
    fn admit_read_response(
        &mut self,
        memory: &impl Memory,
        stag: Stag,
        to: u64,
        len: u32,
        last: bool,
    ) -> Result<Admitted, Violation> {
        let effect = if last {
            Effect::ReadResponse
        } else {
            Effect::None
        };
        let number = match self.order {
            Order::InOrder => self.oldest_read()?,
            Order::Any if len == 0 => {
                self.oldest_read()?;
                return Ok((None, effect));
            }
            Order::Any => self.read_into(stag, to, len)?,
        };
        self.answering = Some(number);
        let wqe = self
            .request_ref(number)
            .ok_or(TermCode::UNEXPECTED_OPCODE)?;
        let Operation::Read { sink, sink_to, .. } = wqe.wr.op else {
            return Err(TermCode::UNEXPECTED_OPCODE.into());
        };
        let (got, whole, shares_sink) = (wqe.got, wqe.wr.len, wqe.shares_sink);
        if len > whole - got {
            return Err(TermCode::DDP_BOUNDS.into());
        }
        if self.order == Order::InOrder {
            if len > 0 && stag != sink {
                return Err(TermCode::DDP_INVALID_STAG.into());
            }
            if len > 0 && to != sink_to.wrapping_add(u64::from(got)) {
                return Err(TermCode::DDP_BOUNDS.into());
            }
            if last && got + len != whole {
                return Err(TermCode::UNSPECIFIED.into());
            }
        }
        if len == 0 {
            return Ok((None, effect));
        }
        let found = self.access(memory.lookup(sink), to, len, Rights::LOCAL_WRITE);
        let (entry, offset) = found.map_err(|refusal| {
            self.charge = Some(Charge::Request(number));
            Violation {
                code: refusal.of_placement(),
                read: None,
                local: true,
            }
        })?;
        if shares_sink {
            self.shared_got += u64::from(len);
        } else if let Some(wqe) = self.request(number) {
            wqe.got += len;
        }
        let target = Target::Region {
            region: entry.region,
            offset,
        };
        Ok((Some(Placement { target, len }), effect))
    }

    /// Number of the oldest read that waits for its response.
    pub(super) fn oldest_read(&self) -> Result<u64, Violation> {
        let is_read = |number: &&u64| {
            self.request_ref(**number)
                .is_some_and(|wqe| matches!(wqe.wr.op, Operation::Read { .. }))
        };
        let found = self.reads.iter().find(is_read).copied();
        found.ok_or_else(|| TermCode::UNEXPECTED_OPCODE.into())
    }

    /// Number of the oldest read that wants `len` bytes at `to` of `stag` and may still lack them:
    /// one that shares its sink, while all those together do.
    fn read_into(&self, stag: Stag, to: u64, len: u32) -> Result<u64, Violation> {
        let mut refusal = TermCode::UNEXPECTED_OPCODE;
        for &number in &self.reads {
            let Some(wqe) = self.request_ref(number) else {
                continue;
            };
            let Operation::Read { sink, sink_to, .. } = wqe.wr.op else {
                continue;
            };
            if sink != stag {
                refusal = TermCode::DDP_INVALID_STAG;
                continue;
            }
            let fits = to
                .checked_sub(sink_to)
                .and_then(|offset| offset.checked_add(u64::from(len)))
                .is_some_and(|end| end <= u64::from(wqe.wr.len));
            let lacking = if wqe.shares_sink {
                self.shared_lacking()
            } else {
                u64::from(wqe.wr.len - wqe.got)
            };
            if fits && u64::from(len) <= lacking {
                return Ok(number);
            }
            refusal = TermCode::DDP_BOUNDS;
        }
        Err(refusal.into())
    }

    /// Bytes that the reads which share their sinks still lack.
    fn shared_lacking(&self) -> u64 {
        let reads = self.reads.iter().filter_map(|&read| self.request_ref(read));
        let sharing = reads.filter(|wqe| wqe.shares_sink);
        let wanted: u64 = sharing.map(|wqe| u64::from(wqe.wr.len)).sum();
        wanted.saturating_sub(self.shared_got)
    }

    fn admit_send(
        &mut self,
        memory: &mut impl Memory,
        segment: &Untagged<'_>,
    ) -> Result<Admitted, Violation> {
        let nth = self.distance(segment.msn, self.into.send)?;
        let opcode = segment.opcode;
        if self.rtr_send_expected
            && (nth, segment.len, segment.last) == (0, 0, true)
            && opcode == Ok(Opcode::Send)
        {
            return Ok((None, Effect::ReadyToReceive));
        }
        let receive = *self.receive(memory, nth).ok_or(TermCode::DDP_NO_BUFFER)?;
        if let Ok(Opcode::Immediate | Opcode::ImmediateSolicited) = opcode {
            return admit_immediate(segment);
        }
        let legal_mo = match self.order {
            Order::InOrder => segment.mo == receive.got,
            Order::Any => segment.mo <= receive.wr.len,
        };
        if !legal_mo {
            return Err(TermCode::DDP_INVALID_MO.into());
        }
        if segment.len > receive.wr.len - segment.mo {
            return Err(TermCode::DDP_TOO_LONG.into());
        }
        if segment.len > receive.wr.len - receive.got {
            return Err(TermCode::DDP_INVALID_MO.into()); // over messages: segments that overlap
        }
        let opcode = opcode.map_err(code_of)?;
        let with = match opcode {
            Opcode::Send | Opcode::SendSolicited => With::Nothing,
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                With::Invalidate(Stag(segment.ulp))
            }
            Opcode::SendImmediate | Opcode::SendSolicitedImmediate
                if self.features.send_immediate =>
            {
                With::Immediate(segment.ulp)
            }
            _ => return Err(TermCode::UNEXPECTED_OPCODE.into()),
        };
        if let With::Invalidate(stag) = with {
            self.may_invalidate(memory.lookup(stag))?;
        }
        if let Some(receive) = self.receives.get_mut(nth) {
            receive.got += segment.len;
        }
        let effect = if segment.last {
            Effect::Send {
                solicited: opcode.is_solicited(),
                with,
                len: segment.mo + segment.len,
            }
        } else {
            Effect::None
        };
        let target = Target::Receive {
            slot: receive.wr.slot,
            offset: segment.mo,
        };
        let placement = Placement {
            target,
            len: segment.len,
        };
        Ok(((segment.len > 0).then_some(placement), effect))
    }

    /// How far `msn` is ahead of `next`; on a stream it must be the next itself.
    fn distance(&self, msn: u32, next: u32) -> Result<usize, Violation> {
        let ahead = msn.wrapping_sub(next);
        let legal = match self.order {
            Order::InOrder => ahead == 0,
            Order::Any => ahead < BEHIND,
        };
        if !legal {
            return Err(TermCode::DDP_INVALID_MSN.into());
        }
        Ok(ahead as usize)
    }

    /// The `nth` receive that is not completed; takes as many from a shared queue as that needs, up
    /// to the depth.
    fn receive(&mut self, memory: &mut impl Memory, nth: usize) -> Option<&Receive> {
        if self.config.shared_receive && nth < self.config.recv_depth as usize {
            while self.receives.len() <= nth {
                let wr = memory.take_receive()?;
                self.receives.push_back(Receive { wr, got: 0 });
            }
        }
        self.receives.get(nth)
    }

    /// A Read or Atomic Request. The flood beyond IRD is refused as siw does it (RFC 5040 leaves
    /// the code open).
    fn admit_request(&mut self, segment: &Untagged<'_>) -> Result<Admitted, Violation> {
        let nth = self.distance(segment.msn, self.into.read)?;
        if self.unanswered() + nth >= usize::from(self.ird) {
            return Err(TermCode::STREAM_CATASTROPHIC.into());
        }
        if segment.mo != 0 {
            return Err(TermCode::DDP_INVALID_MO.into());
        }
        let opcode = segment.opcode.map_err(code_of)?;
        if !matches!(opcode, Opcode::ReadRequest | Opcode::AtomicRequest) {
            return Err(TermCode::UNEXPECTED_OPCODE.into());
        }
        if segment.len as usize != segment.own.len() || !segment.last {
            return Err(TermCode::STREAM_CATASTROPHIC.into());
        }
        let malformed = |_| TermCode::STREAM_CATASTROPHIC;
        let effect = if opcode == Opcode::ReadRequest {
            let request = ReadRequest::parse(segment.own).map_err(malformed)?;
            Effect::ReadRequest(request, segment.msn)
        } else {
            let request = AtomicRequest::parse(segment.own).map_err(|error| match error {
                ParseError::AtomicOp(_) => TermCode::UNEXPECTED_OPCODE,
                other => malformed(other),
            })?;
            Effect::AtomicRequest(request, segment.msn)
        };
        Ok((None, effect))
    }

    fn admit_atomic_response(&self, segment: &Untagged<'_>) -> Result<Admitted, Violation> {
        let nth = self.distance(segment.msn, self.into.atomic)?;
        let is_atomic = |number: &&u64| {
            self.request_ref(**number)
                .is_some_and(|wqe| matches!(wqe.wr.op, Operation::Atomic { .. }))
        };
        if self.reads.iter().filter(is_atomic).nth(nth).is_none() {
            return Err(TermCode::DDP_NO_BUFFER.into());
        }
        if segment.mo != 0 {
            return Err(TermCode::DDP_INVALID_MO.into());
        }
        if segment.opcode.map_err(code_of)? != Opcode::AtomicResponse {
            return Err(TermCode::UNEXPECTED_OPCODE.into());
        }
        if segment.len as usize != segment.own.len() || !segment.last {
            return Err(TermCode::STREAM_CATASTROPHIC.into());
        }
        let response =
            AtomicResponse::parse(segment.own).map_err(|_| TermCode::STREAM_CATASTROPHIC)?;
        Ok((None, Effect::AtomicResponse(response)))
    }
}

fn admit_immediate(segment: &Untagged<'_>) -> Result<Admitted, Violation> {
    if segment.mo != 0 {
        return Err(TermCode::DDP_INVALID_MO.into());
    }
    let whole = segment.len as usize == segment.own.len() && segment.last;
    let data = parse_immediate(segment.own)
        .ok()
        .filter(|_| whole)
        .ok_or(TermCode::STREAM_CATASTROPHIC)?;
    let solicited = segment.opcode == Ok(Opcode::ImmediateSolicited);
    Ok((None, Effect::Immediate { data, solicited }))
}

/// RDMAP's code for a control byte that is not one of RFC 5040 or RFC 7306.
fn code_of(error: ParseError) -> TermCode {
    match error {
        ParseError::RdmapVersion(_) => TermCode::RDMAP_VERSION,
        _ => TermCode::UNEXPECTED_OPCODE,
    }
}
