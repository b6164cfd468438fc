//! Handles PDUs about the session itself: opening, suspending, resuming.

use super::event::ResumeRequest;
use super::{Asked, Event, Session, State, directions, millis};
use crate::bag::plan::Mode;
use crate::error::{Error, Misbehaviour, Misuse};
use crate::time::Time;
use crate::wire::{
    Claim, ConnState, NackStatus, Pdu, Proto, ProtoOffer, SessAck, SessOpen, TICKET_LEN,
};

/// Chooses a protocol from the offer for the segment to this end: the offer's first that this end
/// has, with parameters that suit both (part B2). An empty offer leaves the choice to this end.
#[must_use]
pub fn negotiate(offers: &[ProtoOffer], have: &[ProtoOffer]) -> Option<ProtoOffer> {
    if offers.is_empty() {
        return have.iter().max_by_key(|offer| offer.preference).cloned();
    }
    let mine = |proto: Proto| have.iter().find(|mine| mine.proto == proto);
    let common = offers
        .iter()
        .rev()
        .filter_map(|offer| Some((offer, mine(offer.proto)?)));
    let (offer, mine) = common.max_by_key(|(offer, _)| offer.preference)?;
    Some(ProtoOffer {
        proto: offer.proto,
        preference: offer.preference,
        params: mine.params.agree(&offer.params),
    })
}

impl Session {
    /// Handles a completed step of authentication. When both ends are authenticated the opener
    /// sends its request, if not before.
    pub(super) fn authenticated(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        if link.handshake.is_done() {
            link.clear();
            if !self.is_opener {
                self.id = link.session.unwrap_or(self.id);
                return;
            }
            self.state = State::Opening;
        }
        self.ask();
    }

    /// The opener sends its request as soon as it may.
    pub(super) fn ask(&mut self) {
        let Some(link) = self.link.as_mut().filter(|link| !link.has_asked) else {
            return;
        };
        let is_done = link.handshake.is_done();
        let pdu = match &self.asked {
            Asked::Open(open) if is_done => Pdu::SessOpen(open.clone()),
            // A ticket is sent only to a peer that has authenticated as its issuer.
            Asked::Open(open)
                if open.ticket.is_none() && link.handshake.may_ask(&self.config.auth) =>
            {
                Pdu::SessOpen(open.clone())
            }
            Asked::Resume(ticket) if is_done => {
                let (next, ticket, conns) = (self.consumer.next_slab(), *ticket, self.states());
                Pdu::Resume {
                    next,
                    ticket,
                    conns,
                    claim: self.claim,
                }
            }
            _ => return,
        };
        if let Some(link) = &mut self.link {
            link.ask(&pdu);
        }
    }

    pub(super) fn on_pdu(&mut self, now: Time, pdu: Pdu) -> Result<(), Error> {
        let kind = pdu.kind();
        let out_of_turn = || Err(Misbehaviour::OutOfTurn(kind).into());
        match (self.state, pdu) {
            (_, Pdu::Ping { t_us, .. }) => {
                if let Some(link) = &mut self.link {
                    link.pong_due = Some(t_us);
                }
                Ok(())
            }
            (_, Pdu::Pong { echo_us, .. }) => {
                self.on_pong(now, echo_us);
                Ok(())
            }
            (
                _,
                Pdu::Error {
                    status,
                    hop_index,
                    text,
                    ..
                },
            ) => {
                self.end(Error::Ended {
                    status,
                    hop_index: self.blamed(hop_index),
                    text,
                });
                Ok(())
            }
            (_, Pdu::Notice { code, text, .. }) => {
                self.events.push_back(Event::Notice { code, text });
                Ok(())
            }
            (_, Pdu::Stats { .. }) => Ok(()),
            (State::Greeting, Pdu::SessOpen(open)) if !self.is_opener => {
                self.on_open(open);
                Ok(())
            }
            (
                State::Greeting,
                Pdu::Resume {
                    next,
                    ticket,
                    conns,
                    claim,
                },
            ) if !self.is_opener => {
                self.state = State::Opening;
                self.asked = Asked::Resume(ticket);
                self.events.push_back(Event::ResumeRequest(ResumeRequest {
                    ticket,
                    next,
                    conns,
                    claim,
                }));
                Ok(())
            }
            (State::Opening, Pdu::SessAck(ack)) if self.is_opener => self.on_opened(now, ack),
            (State::Opening, Pdu::ResumeAck { next, conns }) if self.is_resuming() => {
                self.asked = Asked::Nothing;
                self.state = self.resumed_state();
                self.loss = None;
                self.resume_directions(now, next)?;
                self.sync(&conns, false)?;
                self.events.push_back(Event::Resumed { anew: false });
                Ok(())
            }
            (
                State::Opening,
                Pdu::SessNack {
                    status,
                    hop_index,
                    text,
                },
            ) if self.is_opener => {
                self.on_refused(now, status, hop_index, text);
                Ok(())
            }
            (State::Open | State::Draining, Pdu::SessClose { reason, abort }) => {
                self.on_close(reason, abort);
                Ok(())
            }
            (_, Pdu::SessClose { reason, .. }) => {
                self.end(Error::Ended {
                    status: reason,
                    hop_index: self.blamed(None),
                    text: String::new(),
                });
                Ok(())
            }
            (State::Open | State::Draining, pdu) => self.on_open_pdu(now, pdu),
            _ => out_of_turn(),
        }
    }

    fn on_pong(&mut self, now: Time, echo_us: u64) {
        // An echo of the future, or of nothing, is no measure.
        let rtt_ns = (now.as_ns() / 1_000)
            .checked_sub(echo_us)
            .map(|us| us.saturating_mul(1_000));
        if let Some(rtt_ns) = rtt_ns.filter(|_| echo_us > 0) {
            self.consumer.on_rtt(now, rtt_ns);
            self.producer
                .set_rtt(self.consumer.estimate().rtt_ns().unwrap_or(rtt_ns));
        }
    }

    fn on_open(&mut self, open: SessOpen) {
        self.state = State::Opening;
        self.claim = open.claim;
        self.open = open.clone();
        self.events.push_back(Event::OpenRequest(open));
    }

    /// Accepts the requested session. `beyond`: the reply of the next hop at a gateway, nothing at
    /// the terminus. `ticket`: of the terminus; a gateway passes on what `beyond` has.
    ///
    /// # Errors
    /// No request is pending. `NoRequest` also if no protocol is common: then the peer receives a
    /// refusal.
    pub fn accept_session(
        &mut self,
        now: Time,
        beyond: Option<&SessAck>,
        ticket: Option<[u8; TICKET_LEN]>,
    ) -> Result<(), Misuse> {
        if self.state != State::Opening || self.is_opener || matches!(self.asked, Asked::Resume(_))
        {
            return Err(Misuse::NoRequest);
        }
        let hop = self.open.hops.get(usize::from(self.open.hop_index));
        let offers = hop.map_or(&[][..], |hop| hop.offers.as_slice());
        let Some(segment) = negotiate(offers, &self.config.protocols) else {
            self.refuse_session(
                NackStatus::NoProtocol,
                self.open.hop_index,
                "no common protocol",
            )?;
            return Err(Misuse::NoRequest);
        };
        let is_dry = self.open.dry_run;
        let mode = segment.params.mode();
        let mut segments = vec![segment];
        segments.extend(beyond.iter().flat_map(|ack| ack.segments.iter().cloned()));
        let end_to_end = self.open.end_to_end && beyond.is_none_or(|ack| ack.end_to_end);
        self.agree_keepalive();
        let firsts = std::mem::take(&mut self.open.firsts);
        self.ack = SessAck {
            resumable: self.open.resumable && !is_dry,
            end_to_end,
            resumed: beyond.is_some_and(|ack| ack.resumed),
            firsts: false,
            takes_early: beyond.is_none_or(|ack| ack.takes_early),
            keepalive_ms: millis(self.link.as_ref().map_or(0, |link| link.keepalive_ns)),
            lifetime_s: self.config.lifetime_ns / crate::time::SECOND_NS,
            segments,
            ticket: beyond
                .and_then(|ack| ack.ticket)
                .or(ticket)
                .filter(|_| !is_dry),
            conns: beyond.map(|ack| ack.conns.clone()).unwrap_or_default(),
        };
        if is_dry {
            self.answer_dry_run();
            return Ok(());
        }
        (self.config.producer.mode, self.config.consumer.mode) = (mode, mode);
        (self.producer, self.consumer) = directions(&self.config, end_to_end)?;
        if let Some(link) = &mut self.link {
            link.send(&Pdu::SessAck(SessAck {
                firsts: !firsts.is_empty(),
                ..self.ack.clone()
            }));
        }
        self.opened(now);
        if let Err(error) = self.take_firsts(firsts) {
            let _ = self.fail(error);
        }
        if self.ack.resumed {
            // The streams of both directions continue from the offsets that their receivers have.
            let (theirs, far) = (self.open.conns.clone(), self.ack.conns.clone());
            self.install(&far, &theirs);
        }
        Ok(())
    }

    /// Sends the peer a notice that it may act on, or only log; see [`Event::Notice`].
    ///
    /// # Errors
    /// The session is not open.
    pub fn notice(&mut self, status: NackStatus, text: &str) -> Result<(), Misuse> {
        self.send(&Pdu::Notice {
            code: status.code(),
            severity: 1,
            ref_seq: 0,
            text: text.to_owned(),
        })
    }

    /// Replies to a dry run: the session could be opened, with these protocols.
    fn answer_dry_run(&mut self) {
        if let Some(link) = &mut self.link {
            link.send(&Pdu::SessAck(self.ack.clone()));
        }
        self.end(Error::Closed);
    }

    fn agree_keepalive(&mut self) {
        let asked = u64::from(self.open.keepalive_ms).saturating_mul(1_000_000);
        if let Some(link) = self.link.as_mut().filter(|_| asked > 0) {
            link.keepalive_ns = link.keepalive_ns.min(asked).max(1_000_000);
        }
    }

    fn opened(&mut self, now: Time) {
        self.state = State::Open;
        self.asked = Asked::Nothing;
        self.measure(now);
    }

    /// The first measure of the round trip is not left to the first sign of life.
    fn measure(&mut self, now: Time) {
        let t_us = now.as_ns() / 1_000;
        if let Some(link) = self.link.as_mut().filter(|_| t_us > 0) {
            link.send(&Pdu::Ping { t_us, echo_us: 0 });
        }
    }

    /// Refuses the request: `hop_index` names the hop at fault.
    ///
    /// # Errors
    /// Nothing was asked for.
    pub fn refuse_session(
        &mut self,
        status: NackStatus,
        hop_index: u16,
        text: &str,
    ) -> Result<(), Misuse> {
        if self.state != State::Opening || self.is_opener {
            return Err(Misuse::NoRequest);
        }
        let text = text.to_owned();
        if let Some(link) = &mut self.link {
            link.send(&Pdu::SessNack {
                status,
                hop_index,
                text: text.clone(),
            });
        }
        if matches!(self.asked, Asked::Resume(_)) && status == NackStatus::UnknownSession {
            // Its owner may ask for it anew on the same control connection.
            (self.state, self.asked) = (State::Greeting, Asked::Nothing);
            return Ok(());
        }
        self.end(Error::Ended {
            status,
            hop_index: Some(hop_index),
            text,
        });
        Ok(())
    }

    fn on_opened(&mut self, now: Time, ack: SessAck) -> Result<(), Error> {
        if self.open.dry_run {
            self.ack = ack.clone();
            self.events.push_back(Event::Opened(ack));
            self.end(Error::Closed);
            return Ok(());
        }
        let again = self.ack.resumable;
        self.state = self.resumed_state();
        self.measure(now);
        self.loss = None;
        self.asked = Asked::Nothing;
        self.way = self.claim.way;
        self.is_elsewhere = false;
        if let Some(link) = self.link.as_mut().filter(|_| ack.keepalive_ms > 0) {
            let theirs = u64::from(ack.keepalive_ms).saturating_mul(1_000_000);
            link.keepalive_ns = link.keepalive_ns.min(theirs);
        }
        if !again {
            let end_to_end = self.open.end_to_end && ack.end_to_end;
            let mode = ack
                .segments
                .first()
                .map_or(Mode::Pull, |segment| segment.params.mode());
            (self.config.producer.mode, self.config.consumer.mode) = (mode, mode);
            if let Ok(both) = directions(&self.config, end_to_end) {
                (self.producer, self.consumer) = both;
            }
            self.on_firsts(ack.firsts);
            if ack.resumed {
                let (own, far) = (self.open.conns.clone(), ack.conns.clone());
                self.install(&own, &far);
            }
            self.ack = ack.clone();
            self.send_metadata();
            self.events.push_back(Event::Opened(ack));
            return Ok(());
        }
        if !ack.resumed {
            return Err(Misbehaviour::OutOfTurn(2).into());
        }
        self.ack.takes_early = ack.takes_early;
        self.restart(&ack.conns)?;
        self.ack = ack;
        Ok(())
    }

    fn on_refused(&mut self, now: Time, status: NackStatus, hop_index: u16, text: String) {
        let may_reopen =
            matches!(self.asked, Asked::Resume(_)) && self.ack.end_to_end && self.config.is_end;
        if may_reopen && status == NackStatus::UnknownSession {
            // The hop has forgotten the session, the far end has not.
            let open = self.claim_anew();
            if let Some(link) = &mut self.link {
                link.send(&Pdu::SessOpen(open));
            }
            return;
        }
        if status == NackStatus::UnknownSession && self.closing.is_some() && self.conns.is_empty() {
            // The peer has ended it in order, and its final PDU was lost.
            return self.end(Error::Closed);
        }
        // A failure beyond the next hop may be temporary.
        let may_pass = matches!(
            status,
            NackStatus::NoRoute
                | NackStatus::CannotConnect
                | NackStatus::Busy
                | NackStatus::TimedOut
                | NackStatus::Closing
                | NackStatus::Loop
        );
        // Others may not be meant to have it, or cannot: that is no reason to lose it.
        let may_not = matches!(
            status,
            NackStatus::NotAuthenticated
                | NackStatus::Forbidden
                | NackStatus::NoProtocol
                | NackStatus::Unsupported
        );
        if self.is_resuming() && (may_pass || (may_not && self.is_elsewhere)) {
            self.put_off(now, status, hop_index, text);
            return;
        }
        self.end(Error::Ended {
            status,
            hop_index: self.blamed(Some(hop_index)),
            text,
        });
    }

    /// The request was refused by the hop that it went to, for now.
    pub(super) fn put_off(&mut self, now: Time, status: NackStatus, hop_index: u16, text: String) {
        self.link = None;
        self.events.push_back(Event::PutOff {
            status,
            hop_index,
            text,
        });
        self.suspend(now);
        if status == NackStatus::CannotConnect && usize::from(hop_index) + 1 >= self.open.hops.len()
        {
            // The last gateway reports that the far end is gone, which holds for every way.
            self.set_gone(now);
        } else if status == NackStatus::TimedOut {
            self.note_silent();
        }
    }

    /// The next request opens the session on a new way. Until its reply no way can be resumed:
    /// slabs count from 0 at the hops that have received the request, but not here.
    fn claim_anew(&mut self) -> SessOpen {
        self.claim = Claim {
            way: self.claim.way.saturating_add(1),
            turn: 0,
        };
        let open = SessOpen {
            ticket: self.ack.ticket,
            conns: self.states(),
            claim: self.claim,
            ..self.open.clone()
        };
        self.asked = Asked::Open(open.clone());
        open
    }

    fn on_close(&mut self, reason: NackStatus, abort: bool) {
        if abort {
            self.end(Error::Ended {
                status: reason,
                hop_index: self.blamed(None),
                text: String::new(),
            });
            return;
        }
        self.peer_closing = true;
        if self.state == State::Open {
            self.closing = Some(reason);
            self.state = State::Draining;
        }
    }

    /// A new control connection to the peer, for a session that is suspended: it is resumed there,
    /// or, if it was being opened on a new way, opened on another. From here to the next
    /// [`Event::Resumed`] or [`Event::Suspended`] nothing is handed out and nothing can be
    /// released: release before what has been used, and use nothing more until then.
    ///
    /// # Errors
    /// It is not suspended, or not this end's to resume.
    pub fn reattach(&mut self, now: Time) -> Result<(), Misuse> {
        let ticket = self
            .ack
            .ticket
            .filter(|_| self.is_resuming())
            .ok_or(Misuse::NotOpen)?;
        let State::Suspended(_) = self.state else {
            return Err(Misuse::NotOpen);
        };
        self.state = State::Greeting;
        self.consumer.freeze();
        if self.claim.way == self.way {
            self.claim.turn = self.claim.turn.saturating_add(1);
            self.asked = Asked::Resume(ticket);
        } else {
            let _ = self.claim_anew();
        }
        self.connect(now);
        Ok(())
    }

    /// As [`Self::reattach`], over other hops that end at the same terminus: for sessions that are
    /// acknowledged from end to end. Until a way has been accepted, a hop that refuses it or fails
    /// authentication only [postpones it](Event::PutOff).
    ///
    /// # Errors
    /// It is not suspended, or not acknowledged from end to end, or the hops cannot be.
    pub fn reopen(&mut self, now: Time, hops: Vec<crate::wire::Hop>) -> Result<(), Misuse> {
        if hops.is_empty() || hops.len() > crate::wire::HOPS_MAX {
            return Err(Misuse::Hops);
        }
        if !self.ack.end_to_end || !self.config.is_end {
            return Err(Misuse::NotOpen);
        }
        self.reattach(now)?;
        (self.open.hops, self.open.hop_index) = (hops, 0);
        self.is_elsewhere = true;
        let _ = self.claim_anew();
        Ok(())
    }

    /// Goes on with the control connection of `fresh`, whose peer has asked to resume this session
    /// and has its ticket.
    ///
    /// # Errors
    /// `fresh` has not been asked for that, or the claim is of another way or an old one that the
    /// network has held back.
    pub fn adopt(
        &mut self,
        now: Time,
        fresh: &mut Self,
        request: &ResumeRequest,
    ) -> Result<(), Misuse> {
        if fresh.state != State::Opening
            || fresh.is_opener
            || !matches!(fresh.asked, Asked::Resume(_))
            || request.claim.way != self.claim.way
            || request.claim.turn <= self.claim.turn
        {
            return Err(Misuse::NoRequest);
        }
        self.take_over(now, fresh, request.claim)?;
        let (next, conns) = (self.consumer.next_slab(), self.states());
        if let Some(link) = &mut self.link {
            link.send(&Pdu::ResumeAck { next, conns });
        }
        let result = self
            .resume_directions(now, request.next)
            .and_then(|()| self.sync(&request.conns, false));
        self.events.push_back(Event::Resumed { anew: false });
        if let Err(error) = result {
            let _ = self.fail(error);
        }
        Ok(())
    }

    /// At the terminus: goes on with the control connection of `fresh`, which has come over another
    /// way, and whose `open` has this session's ticket.
    ///
    /// # Errors
    /// `fresh` is no such request, or the session is not acknowledged from end to end, or has a
    /// newer way; or the ends of its last segment have no common protocol. Nothing is sent to the
    /// peer.
    pub fn adopt_anew(
        &mut self,
        now: Time,
        fresh: &mut Self,
        open: &SessOpen,
    ) -> Result<(), Misuse> {
        let asked = fresh.state == State::Opening && !fresh.is_opener;
        let may = self.ack.end_to_end && self.config.is_end && self.is_superseded_by(open);
        if !asked || !may {
            return Err(Misuse::NoRequest);
        }
        let hop = open.hops.get(usize::from(open.hop_index));
        let offers = hop.map_or(&[][..], |hop| hop.offers.as_slice());
        let mut segment = negotiate(offers, &self.config.protocols).ok_or(Misuse::NoProtocol)?;
        self.take_over(now, fresh, open.claim)?;
        self.open.hops.clone_from(&open.hops);
        self.open.hop_index = open.hop_index;
        self.open.takes_early = open.takes_early;
        // The end that moves the bytes was agreed on for good.
        segment.params.push = Some((self.config.consumer.mode == Mode::Push).into());
        self.ack.segments = vec![segment];
        self.ack.resumed = true;
        self.ack.conns = self.states();
        if let Some(link) = &mut self.link {
            link.send(&Pdu::SessAck(self.ack.clone()));
        }
        if let Err(error) = self.restart(&open.conns) {
            let _ = self.fail(error);
        }
        Ok(())
    }

    fn take_over(&mut self, now: Time, fresh: &mut Self, claim: Claim) -> Result<(), Misuse> {
        // A session that is not accepted yet cannot be adopted: its ticket is an unverified claim
        // of the peer.
        let is_there = !matches!(self.state, State::Closed | State::Greeting | State::Opening);
        if !is_there || self.is_opener {
            return Err(Misuse::NotOpen);
        }
        // The old control connection may not be known to be gone yet.
        if !matches!(self.state, State::Suspended(_)) {
            self.link = None;
            self.suspend(now);
        }
        let keepalive_ns = millis(self.config.keepalive_ns).min(self.open.keepalive_ms.max(1));
        self.link = fresh.link.take();
        if let Some(link) = &mut self.link {
            link.keepalive_ns = u64::from(keepalive_ns).saturating_mul(1_000_000);
        }
        fresh.state = State::Closed;
        self.claim = claim;
        self.loss = None;
        self.state = self.resumed_state();
        Ok(())
    }

    fn resume_directions(&mut self, now: Time, next: crate::SlabSeq) -> Result<(), Error> {
        self.producer
            .resume(now, next)
            .map_err(Misbehaviour::Slab)?;
        self.consumer.resume();
        Ok(())
    }

    fn restart(&mut self, conns: &[ConnState]) -> Result<(), Error> {
        self.sync(conns, true)?;
        self.producer.restart();
        self.consumer.restart();
        self.ending.extend(self.conns.keys());
        self.events.push_back(Event::Resumed { anew: true });
        Ok(())
    }
}
