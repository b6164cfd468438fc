//! Arriving data: checks, placement, and effects once all earlier packets have arrived.

use haul_cc::Time;

use super::control::{PeerId, low};
use super::pending::Pending;
use super::receiving::{Effect, Part, Receiving};
use super::sending::packets_of;
use super::sizes::Size;
use super::work::{RdCompletion, RdEvent, RdStatus, Remote};
use super::{RdQp, unused_receive};
use crate::datagram::wire::{Datagram, Flags, NoticeCode, Opcode, Psn, Segment, Shim};
use crate::memory::{Memory, Placement, Target};
use crate::operation::{CompletionKind, Operation, RecvWr};
use crate::stag::{Rights, Stag};
use crate::wire::ddp::Model;
use crate::wire::rdmap::{self, AtomicRequest, AtomicResponse, ReadRequest, parse_immediate};

/// The outcome of the checks.
struct Admitted {
    placement: Option<Placement>,
    part: Option<Part>,
    effect: Option<Effect>,
}

enum Refused {
    /// No receive is posted: the sender may retransmit it.
    NoReceive,
    /// No receive yet, as an earlier packet is missing: treated as lost.
    Early,
    /// It violates the protocol.
    Because(NoticeCode),
}

impl From<NoticeCode> for Refused {
    fn from(code: NoticeCode) -> Self {
        Self::Because(code)
    }
}

const UNSUPPORTED: Refused = Refused::Because(NoticeCode::Unsupported);
const ACCESS: Refused = Refused::Because(NoticeCode::Access);

impl RdQp {
    pub(super) fn on_data(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        from: Remote,
        datagram: &Datagram<'_>,
        segment: &Segment<'_>,
    ) -> Option<Placement> {
        let shim = &datagram.shim;
        let Some(timestamp) = segment.timestamp.filter(|_| shim.flags.contains(Flags::RD)) else {
            self.stats.malformed += 1;
            return None;
        };
        let window = u64::from(self.config.window);
        let Some((id, peer)) = self.peer(from) else {
            self.answer_unknown_peer(now, from, shim);
            return None;
        };
        if !peer.is_known() {
            self.stats.unknown_peer += 1;
            return None; // its READY is still in flight
        }
        if peer.epoch != shim.epoch {
            self.answer_unknown_peer(now, from, shim);
            return None;
        }
        let psn = peer.extend(shim.psn);
        if peer.has(psn) || psn >= peer.expected.cum + window {
            let config = &self.config;
            if let Some(peer) = self.peers[id as usize].as_deref_mut() {
                peer.want_ack(now, true, config);
            }
            self.stats.duplicate += 1;
            self.schedule(now, id);
            return None;
        }
        let top = peer.expected.top;
        let octets = u32::try_from(datagram.wire_len).unwrap_or(0) + self.config.lower_len;
        match self.admit(memory, id, psn, shim, segment) {
            Ok(admitted) => {
                let pending = Pending {
                    id,
                    psn,
                    msg: shim.msg_id,
                    part: admitted.part,
                    effect: admitted.effect,
                    octets,
                    timestamp,
                    at_once: psn != top || shim.flags.contains(Flags::ACKREQ),
                };
                if admitted.placement.is_some() {
                    self.pending = Some(pending);
                } else {
                    self.count(now, memory, pending);
                }
                admitted.placement
            }
            Err(Refused::NoReceive) => {
                self.refuse_for_now(now, id, psn, shim);
                None
            }
            Err(Refused::Early) => {
                self.stats.early += 1;
                if let Some(peer) = self.peers[id as usize].as_deref_mut() {
                    peer.want_ack(now, true, &self.config);
                }
                self.schedule(now, id);
                None
            }
            Err(Refused::Because(code)) => {
                self.refuse(now, id, shim.msg_id, shim.psn, code);
                None
            }
        }
    }

    /// Records that the payload of [`super::RdArrived`] is placed.
    pub fn handle_placed(&mut self, now: Time, memory: &mut impl Memory) {
        if let Some(pending) = self.pending.take() {
            self.count(now, memory, pending);
        }
    }

    /// Records that the payload of [`super::RdArrived`] could not be placed, because its tag is
    /// invalid or was withdrawn meanwhile. Sends the sender a NOTICE. A receive with such a tag
    /// completes with an error, so that the next message gets the next one.
    pub fn handle_memory_gone(&mut self, now: Time) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let psn = Psn(low(pending.psn));
        self.refuse(now, pending.id, pending.msg, psn, NoticeCode::Access);
        if let Some(receive) = pending.effect.and_then(|effect| effect.receive()) {
            // A message of several packets has given it back.
            self.receives.retain(|other| other.slot != receive.slot);
            self.events.push_back(RdEvent::Completion(RdCompletion {
                status: RdStatus::LocalProtection,
                ..unused_receive(receive)
            }));
        }
    }

    /// Refuses a packet for lack of a receive: the sender waits for a higher limit, and after a
    /// time a NOTICE ends its wait.
    fn refuse_for_now(&mut self, now: Time, id: PeerId, psn: u64, shim: &Shim) {
        self.stats.no_receive += 1;
        let patience_ns = self.config.receiver_not_ready_ns;
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return;
        };
        let (remote, epoch) = (peer.remote, peer.epoch);
        let (lowest, since) = peer.refused.unwrap_or((psn, now));
        if !std::mem::replace(&mut peer.schedule.starved, true) {
            self.starved.push_back(id);
        }
        peer.refused = Some((lowest.min(psn), since));
        peer.want_ack(now, true, &self.config);
        if now.since(since) >= patience_ns {
            self.say_notice(now, remote, epoch, shim.psn, shim.msg_id, NoticeCode::Rnr);
        }
        self.schedule(now, id);
    }

    /// Records an arrived packet, and performs its effect and later ones, as far as no packet is
    /// missing before them.
    fn count(&mut self, now: Time, memory: &mut impl Memory, pending: Pending) {
        let id = pending.id;
        self.stats.received += 1;
        let config = &self.config;
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return;
        };
        peer.note_arrival(now, pending.octets, pending.timestamp);
        peer.want_ack(now, pending.at_once, config);
        if peer.refused.is_some_and(|(psn, _)| psn == pending.psn) {
            peer.refused = None;
        }
        let single = pending.part.is_none_or(|part| part.total == 1);
        let mut result = Ok(());
        if single && peer.receiving.is_none() && pending.psn == peer.expected.cum {
            peer.expected.cum += 1;
            peer.expected.top = peer.expected.cum;
            if let Some(effect) = pending.effect {
                result = self.deliver(now, memory, id, effect);
            }
        } else {
            let receiving = peer
                .receiving
                .get_or_insert_with(|| Box::new(Receiving::new(config.window)));
            let expected = &mut peer.expected;
            receiving.take(expected, pending.psn, pending.part, pending.effect);
            result = result.and_then(|()| self.go_on(now, memory, id));
        }
        if let Err(code) = result {
            let psn = Psn(low(pending.psn));
            self.refuse(now, id, pending.msg, psn, code);
        }
        self.reap(id);
        self.schedule(now, id);
    }

    fn go_on(&mut self, now: Time, memory: &mut impl Memory, id: PeerId) -> Result<(), NoticeCode> {
        while let Some(peer) = self.peers[id as usize].as_deref_mut() {
            let expected = &mut peer.expected;
            let Some(receiving) = peer.receiving.as_mut() else {
                break;
            };
            let effect = receiving.advance(expected);
            if receiving.has_impossible(expected) {
                return Err(NoticeCode::Unsupported);
            }
            if receiving.is_over(expected) {
                peer.receiving = None;
            }
            match effect {
                Some(effect) => self.deliver(now, memory, id, effect)?,
                None => break,
            }
        }
        Ok(())
    }

    // ---- checks

    fn admit(
        &mut self,
        memory: &mut impl Memory,
        id: PeerId,
        psn: u64,
        shim: &Shim,
        segment: &Segment<'_>,
    ) -> Result<Admitted, Refused> {
        use NoticeCode::Access;
        let placed = |placement, part, effect| Admitted {
            placement,
            part,
            effect,
        };
        match (segment.opcode, segment.model) {
            (Opcode::Rdmap(rdmap::Opcode::Write), Model::Tagged { stag, to }) => {
                let placement = self.place(memory, stag, to, segment, Rights::REMOTE_WRITE)?;
                Ok(placed(placement, None, None))
            }
            (Opcode::WriteRecord | Opcode::WriteRecordImmediate, Model::Tagged { stag, to }) => {
                let immediate = segment.immediate();
                let around = if immediate.is_some() { 14 + 8 } else { 14 };
                let part = self.part(id, psn, shim, segment, around)?;
                let to = to - u64::from(shim.seg_off);
                let range = (stag, to, shim.msg_len);
                if shim.msg_len > 0 {
                    let whole = self.access.find(memory, range, Rights::REMOTE_WRITE);
                    whole.ok_or(Access)?;
                }
                let from = to + u64::from(shim.seg_off);
                let placement = self.place(memory, stag, from, segment, Rights::REMOTE_WRITE)?;
                let effect = Effect::Record {
                    msg: shim.msg_id,
                    stag,
                    to,
                    len: shim.msg_len,
                    immediate,
                };
                Ok(placed(placement, Some(part), Some(effect)))
            }
            (Opcode::Rdmap(rdmap::Opcode::ReadResponse), Model::Tagged { stag, to }) => {
                self.admit_response(memory, id, psn, shim, segment, (stag, to))
            }
            (Opcode::Rdmap(rdmap::Opcode::ReadRequest), _) => {
                let whole = whole_payload(shim, segment)?;
                let request = ReadRequest::parse(whole).map_err(|_| UNSUPPORTED)?;
                let effect = Effect::Read(shim.msg_id, request);
                Ok(placed(None, None, Some(effect)))
            }
            (Opcode::Rdmap(rdmap::Opcode::AtomicRequest), _) => {
                let whole = whole_payload(shim, segment)?;
                let request = AtomicRequest::parse(whole).map_err(|_| UNSUPPORTED)?;
                let effect = Effect::Atomic(shim.msg_id, request);
                Ok(placed(None, None, Some(effect)))
            }
            (Opcode::Rdmap(rdmap::Opcode::AtomicResponse), _) => {
                let whole = whole_payload(shim, segment)?;
                let response = AtomicResponse::parse(whole).map_err(|_| UNSUPPORTED)?;
                let sending = self.peers[id as usize].as_deref_mut();
                let sending = sending.and_then(|peer| peer.sending.as_mut());
                let asked = sending.and_then(|half| half.asked(shim.msg_id));
                let fits = asked.is_some_and(|wqe| matches!(wqe.wr.op, Operation::Atomic { .. }));
                if !fits || response.id != shim.msg_id.0 {
                    return Err(UNSUPPORTED);
                }
                let effect = Effect::AtomicDone(shim.msg_id, response);
                Ok(placed(None, None, Some(effect)))
            }
            (Opcode::Rdmap(opcode), Model::Untagged { ulp, .. }) => {
                self.admit_send(memory, id, psn, shim, segment, (opcode, ulp))
            }
            _ => Err(UNSUPPORTED),
        }
    }

    /// Returns the place of a tagged segment. One of zero length names no memory (RFC 5041 §7.1).
    fn place(
        &self,
        memory: &impl Memory,
        stag: Stag,
        to: u64,
        segment: &Segment<'_>,
        rights: Rights,
    ) -> Result<Option<Placement>, Refused> {
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        if len == 0 {
            return Ok(None);
        }
        let found = self.access.find(memory, (stag, to, len), rights);
        let (region, offset) = found.ok_or(ACCESS)?;
        Ok(Some(Placement {
            target: Target::Region { region, offset },
            len,
        }))
    }

    /// Returns which packet of its message this is. All segments of a message but the last are of
    /// the length that each of them names, so the offset determines the index.
    fn part(
        &self,
        id: PeerId,
        psn: u64,
        shim: &Shim,
        segment: &Segment<'_>,
        around: u32,
    ) -> Result<Part, Refused> {
        let Some(peer) = self.peers[id as usize].as_deref() else {
            return Err(UNSUPPORTED);
        };
        let room = Size::of(shim.flags).segment_max(peer.offered) - around;
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        let cut_alike =
            shim.seg_off.is_multiple_of(room) && len == room.min(shim.msg_len - shim.seg_off);
        if !cut_alike {
            return Err(UNSUPPORTED);
        }
        let nth = u64::from(shim.seg_off / room);
        let part = Part {
            msg: shim.msg_id,
            response: shim.flags.contains(Flags::RESP),
            first: psn.checked_sub(nth).ok_or(UNSUPPORTED)?,
            total: packets_of(shim.msg_len, room),
        };
        if let Some(receiving) = &peer.receiving {
            receiving.receive_of(&part).map_err(|_| UNSUPPORTED)?;
        }
        Ok(part)
    }

    /// Checks that a response writes only where this end requested it.
    fn admit_response(
        &mut self,
        memory: &impl Memory,
        id: PeerId,
        psn: u64,
        shim: &Shim,
        segment: &Segment<'_>,
        (stag, to): (Stag, u64),
    ) -> Result<Admitted, Refused> {
        let part = self.part(id, psn, shim, segment, 14)?;
        let sending = self.peers[id as usize].as_deref_mut();
        let sending = sending.and_then(|peer| peer.sending.as_mut());
        let wqe = sending
            .and_then(|half| half.asked(shim.msg_id))
            .ok_or(UNSUPPORTED)?;
        let Operation::Read { sink, sink_to, .. } = wqe.wr.op else {
            return Err(UNSUPPORTED);
        };
        let base = to - u64::from(shim.seg_off);
        let first = *wqe.response.get_or_insert(part.first);
        let fits = shim.msg_len == wqe.wr.len && first == part.first;
        if !fits || shim.msg_len > 0 && (stag, base) != (sink, sink_to) {
            return Err(ACCESS);
        }
        Ok(Admitted {
            placement: self.place(memory, sink, to, segment, Rights::LOCAL_WRITE)?,
            part: Some(part),
            effect: Some(Effect::ReadDone(shim.msg_id)),
        })
    }

    fn admit_send(
        &mut self,
        memory: &mut impl Memory,
        id: PeerId,
        psn: u64,
        shim: &Shim,
        segment: &Segment<'_>,
        (opcode, ulp): (rdmap::Opcode, u32),
    ) -> Result<Admitted, Refused> {
        let (solicited, invalidates) = match opcode {
            rdmap::Opcode::Send => (false, false),
            rdmap::Opcode::SendInvalidate => (false, true),
            rdmap::Opcode::SendSolicited => (true, false),
            rdmap::Opcode::SendSolicitedInvalidate => (true, true),
            rdmap::Opcode::Immediate | rdmap::Opcode::ImmediateSolicited => {
                let whole = whole_payload(shim, segment)?;
                let data = parse_immediate(whole).map_err(|_| UNSUPPORTED)?;
                let receive = self.take_receive(memory, id, psn)?;
                let effect = Effect::Immediate {
                    receive,
                    data,
                    solicited: opcode == rdmap::Opcode::ImmediateSolicited,
                };
                return Ok(Admitted {
                    placement: None,
                    part: None,
                    effect: Some(effect),
                });
            }
            _ => return Err(UNSUPPORTED),
        };
        let part = self.part(id, psn, shim, segment, 18)?;
        let receive = self.receive_for(memory, id, &part)?;
        if shim.msg_len > receive.len {
            if part.total == 1 {
                self.receives.push_front(receive);
            }
            return Err(Refused::Because(NoticeCode::TooLong));
        }
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        let placement = Placement {
            target: Target::Receive {
                slot: receive.slot,
                offset: shim.seg_off,
            },
            len,
        };
        let effect = Effect::Send {
            receive,
            len: shim.msg_len,
            solicited,
            invalidate: invalidates.then_some(Stag(ulp)),
        };
        Ok(Admitted {
            placement: (len > 0).then_some(placement),
            part: Some(part),
            effect: Some(effect),
        })
    }

    /// Returns the receive of a Send: that of its earlier packets, or another.
    fn receive_for(
        &mut self,
        memory: &mut impl Memory,
        id: PeerId,
        part: &Part,
    ) -> Result<RecvWr, Refused> {
        let peer = self.peers[id as usize].as_deref();
        let receiving = peer.and_then(|peer| peer.receiving.as_ref());
        if let Some(receiving) = receiving
            && let Some(receive) = receiving.receive_of(part).map_err(|_| UNSUPPORTED)?
        {
            return Ok(receive);
        }
        let receive = self.take_receive(memory, id, part.first)?;
        let window = self.config.window;
        if let Some(peer) = self.peers[id as usize].as_deref_mut()
            && part.total > 1
        {
            let receiving = peer
                .receiving
                .get_or_insert_with(|| Box::new(Receiving::new(window)));
            receiving.give(part, receive);
        }
        Ok(receive)
    }

    /// Returns a receive for the message that begins at `first`. The last receive is reserved for a
    /// message that has all earlier ones: a message that waits for others must not take the receive
    /// that they need. With `receives_in_order` this holds for all receives.
    fn take_receive(
        &mut self,
        memory: &mut impl Memory,
        id: PeerId,
        first: u64,
    ) -> Result<RecvWr, Refused> {
        let peer = self.peers[id as usize].as_deref();
        let needed = match peer.is_some_and(|peer| first <= peer.expected.cum) {
            true => 1,
            false if self.config.receives_in_order => return Err(Refused::Early),
            false => 2,
        };
        while self.config.qp.shared_receive && self.receives.len() < needed {
            let receive = memory.take_receive().ok_or(Refused::NoReceive)?;
            self.receives.push_back(receive);
        }
        if self.receives.len() < needed {
            return Err(Refused::NoReceive);
        }
        self.receives.pop_front().ok_or(Refused::NoReceive)
    }

    // ---- effects

    fn deliver(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        id: PeerId,
        effect: Effect,
    ) -> Result<(), NoticeCode> {
        let seed = self.random();
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return Ok(());
        };
        let remote = peer.remote;
        match effect {
            Effect::Send {
                receive,
                len,
                solicited,
                invalidate,
            } => {
                if let Some(stag) = invalidate {
                    if !self.access.may_invalidate(memory, stag) {
                        self.receives.push_front(receive);
                        return Err(NoticeCode::Access);
                    }
                    memory.invalidate(stag);
                }
                let kind = CompletionKind::Receive {
                    solicited,
                    invalidated: invalidate,
                };
                self.receive_done(remote, receive, kind, len);
            }
            Effect::Immediate {
                receive,
                data,
                solicited,
            } => {
                let kind = CompletionKind::ReceiveImmediate { data, solicited };
                self.receive_done(remote, receive, kind, 8);
            }
            Effect::Record {
                msg,
                stag,
                to,
                len,
                immediate,
            } => self.events.push_back(RdEvent::Record {
                peer: remote,
                stag,
                to,
                len,
                immediate,
                msg_id: msg,
            }),
            Effect::Read(msg, request) => {
                let range = (request.source, request.source_to, request.len);
                let ird = usize::from(peer.ird);
                let sending = peer.sending(now, &self.config, seed);
                if sending.unanswered() >= ird {
                    return Err(NoticeCode::Unsupported);
                }
                if request.len > 0 {
                    let found = self.access.find(memory, range, Rights::REMOTE_READ);
                    found.ok_or(NoticeCode::Access)?;
                }
                sending.answer_read(msg, request);
            }
            Effect::Atomic(msg, request) => {
                let ird = usize::from(peer.ird);
                let sending = peer.sending(now, &self.config, seed);
                if sending.unanswered() >= ird || !request.to.is_multiple_of(8) {
                    return Err(NoticeCode::Unsupported);
                }
                let range = (request.stag, request.to, 8);
                let found = self.access.find(memory, range, Rights::REMOTE_ATOMIC);
                let (region, offset) = found.ok_or(NoticeCode::Access)?;
                let original = memory.atomic(&crate::memory::AtomicAccess {
                    region,
                    offset,
                    op: request.op,
                });
                let id = request.id;
                sending.answer_atomic(msg, AtomicResponse { id, original });
            }
            Effect::ReadDone(msg) => {
                if let Some(sending) = &mut peer.sending {
                    sending.handle_answered(msg, 0);
                }
            }
            Effect::AtomicDone(msg, response) => {
                if let Some(sending) = &mut peer.sending {
                    sending.handle_answered(msg, response.original);
                }
            }
        }
        Ok(())
    }

    fn receive_done(&mut self, peer: Remote, receive: RecvWr, kind: CompletionKind, len: u32) {
        self.events.push_back(RdEvent::Completion(RdCompletion {
            id: receive.id,
            slot: receive.slot,
            status: RdStatus::Success,
            kind,
            len,
            signalled: true,
            peer: Some(peer),
        }));
    }
}

/// The payload of an operation that is one segment.
fn whole_payload<'a>(shim: &Shim, segment: &Segment<'a>) -> Result<&'a [u8], Refused> {
    let whole = shim.seg_off == 0 && segment.payload.len() == shim.msg_len as usize;
    if whole {
        Ok(segment.payload)
    } else {
        Err(UNSUPPORTED)
    }
}
