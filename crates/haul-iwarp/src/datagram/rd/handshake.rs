//! Opens and closes associations with peers.
//!
//! `HELLO -> COOKIE -> HELLO with the cookie -> READY`: the responder keeps no state before the
//! third. A datagram that could end an association is accepted only if it carries both epochs and
//! refers to packets in flight.

use std::net::SocketAddr;

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};

use super::RdQp;
use super::control::{
    CLOSE_ROOM, CONTROL_SHORT, Control, DATAGRAM_MIN, OUTBOX_MAX, PeerId, control_shim, low, whole,
};
use super::notices::Refusal;
use super::peer::Phase;
use super::sizes;
use super::work::{Down, RdEvent, RdStatus, RdTransmit, Remote};
use crate::address::Source;
use crate::datagram::wire::{
    Ack, Body, Close, Cookie, Hello, MsgId, Notice, NoticeCode, Probe, Psn, Shim, Terms,
};

const CALL_NS: u64 = 100 * MILLISECOND_NS;
const CALL_NS_MAX: u64 = 2 * SECOND_NS;
/// Most NOTICEs per interval: they are advisory.
const NOTICES_MAX: u32 = 64;
const NOTICES_NS: u64 = 100 * MILLISECOND_NS;
const REFUSALS_KEPT: usize = 64;
impl RdQp {
    /// Starts a handshake with `to`; `None` if the table of peers is full.
    pub(super) fn call(&mut self, now: Time, to: Remote) -> Option<PeerId> {
        let phase = Phase::Calling {
            cookie: None,
            tries: 0,
            due: now,
            said: None,
        };
        let id = self.insert(now, to, phase)?;
        // Probes leave ahead of the HELLO, so their answers are there when data leaves.
        self.note_use(now, to);
        Some(id)
    }

    /// Returns the next HELLO, if a handshake is in progress and its timer has expired.
    pub(super) fn write_call(
        &mut self,
        now: Time,
        id: PeerId,
        out: &mut [u8],
    ) -> Option<RdTransmit> {
        let tries_max = self.config.tries;
        let peer = self.peers[id as usize].as_deref_mut()?;
        let Phase::Calling {
            cookie,
            tries,
            due,
            said,
        } = &mut peer.phase
        else {
            return None;
        };
        if now < *due {
            return None;
        }
        if *tries > tries_max {
            self.forget(now, id, Down::Unreachable, RdStatus::Unreachable, None);
            return None;
        }
        *due = now.after((CALL_NS << (*tries).min(10)).min(CALL_NS_MAX));
        *tries += 1;
        // A reply to a retransmitted hello does not identify which one it answers: it yields no RTT
        // sample.
        *said = (*tries == 1).then_some(now);
        let cookie = *cookie;
        let (to, initial, offered) = (peer.remote, peer.own_initial, peer.offered);
        let hello = Body::Hello(Hello {
            cookie,
            terms: self.terms(initial, offered),
        });
        let shim = control_shim(&self.config, to.qpn, 0);
        Some(whole(to.addr, hello.emit(&shim, out)))
    }

    /// Datagram sizes that this end offers to a new peer. They stay fixed during the handshake even
    /// if the path MTU changes, because both ends must choose the same size from two offers.
    pub(super) fn offer_to(&self, now: Time, to: Remote) -> u16 {
        let most = self.config.datagram_max;
        let path = self.paths.datagram_max(now, to.addr.ip(), most.into());
        u16::try_from(path).unwrap_or(most)
    }

    fn terms(&self, initial: u32, datagram_max: u16) -> Terms<'static> {
        Terms {
            caps: sizes::CAPABILITY,
            init_psn: Psn(initial),
            window: self.config.window,
            max_seg: datagram_max,
            ird: self.config.qp.ird,
            ord: self.config.qp.ord,
            private: &[],
        }
    }

    /// Whether these terms are acceptable.
    fn acceptable(terms: &Terms<'_>) -> bool {
        terms.max_seg >= DATAGRAM_MIN && (1..1 << 30).contains(&terms.window)
    }

    fn agree(&mut self, now: Time, id: PeerId, epoch: u32, terms: &Terms<'_>) {
        let own = &self.config;
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return;
        };
        peer.learn(epoch, terms.init_psn.0, terms.window);
        peer.offered = terms.max_seg.min(peer.offered);
        peer.has_sizes = terms.caps & sizes::CAPABILITY != 0;
        peer.ord = own.qp.ord.min(terms.ird);
        peer.ird = own.qp.ird;
        let remote = peer.remote;
        let refusals = &mut self.notices.refusals;
        refusals.retain(|refusal| refusal.remote != remote);
        self.events.push_back(RdEvent::Up(remote));
        self.choose_size(now, id);
        self.schedule(now, id);
    }

    pub(super) fn on_hello(&mut self, now: Time, from: Remote, shim: &Shim, hello: &Hello<'_>) {
        if !Self::acceptable(&hello.terms) {
            self.stats.refused += 1;
            return;
        }
        let made = match hello.cookie {
            None => return self.offer_cookie(now, from, shim.epoch),
            Some(cookie) => self.cookies.check(now, from, shim.epoch, &cookie),
        };
        let Some(made) = made else {
            self.stats.bad_cookie += 1;
            return self.offer_cookie(now, from, shim.epoch);
        };
        let initial = hello.terms.init_psn.0;
        if let Some((id, peer)) = self.peer(from)
            && peer.is_known()
        {
            if (peer.epoch, peer.peer_initial) == (shim.epoch, initial) {
                return self.say_ready(id); // the READY was lost
            }
            if made <= peer.known_since {
                // The cookie predates the association: a late or replayed hello. A live peer
                // repeats it with a new cookie.
                self.stats.bad_cookie += 1;
                return self.offer_cookie(now, from, shim.epoch);
            }
            let keep = |_: &super::Wqe, begun: bool| !begun;
            self.forget_but(now, id, Down::Restarted, RdStatus::Flushed, None, keep);
        }
        let id = match self.index.get(&from) {
            Some(&id) => Some(id), // both ends sent a HELLO
            None => self.insert(now, from, Phase::Known),
        };
        let Some(id) = id else {
            self.stats.refused += 1;
            return;
        };
        if let Some(peer) = self.peers[id as usize].as_deref_mut() {
            peer.known_since = made;
        }
        self.agree(now, id, shim.epoch, &hello.terms);
        self.say_ready(id);
    }

    fn offer_cookie(&mut self, now: Time, to: Remote, epoch: u32) {
        let cookie = self.cookies.make(now, to, epoch);
        self.say(to, epoch, Psn(0), MsgId(0), &Body::Cookie(cookie));
    }

    pub(super) fn say_ready(&mut self, id: PeerId) {
        if let Some(peer) = self.peers[id as usize].as_deref() {
            let (to, epoch) = (peer.remote, peer.epoch);
            let terms = self.terms(peer.own_initial, peer.offered);
            self.say(to, epoch, Psn(0), MsgId(0), &Body::Ready(terms));
        }
    }

    pub(super) fn on_cookie(&mut self, now: Time, from: Remote, shim: &Shim, received: Cookie) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            return;
        };
        if let Phase::Calling {
            cookie, due, said, ..
        } = &mut peer.phase
            && shim.seg_off == own_epoch
            && *cookie != Some(received)
        {
            (*cookie, *due) = (Some(received), now);
            if let Some(said) = said.take() {
                peer.set_round_trip(now, now.since(said));
            }
            self.schedule(now, id);
        }
    }

    pub(super) fn on_ready(&mut self, now: Time, from: Remote, shim: &Shim, terms: &Terms<'_>) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            return;
        };
        let called = matches!(
            peer.phase,
            Phase::Calling {
                cookie: Some(_),
                ..
            }
        );
        if called && shim.seg_off == own_epoch && Self::acceptable(terms) {
            peer.known_since = now;
            self.agree(now, id, shim.epoch, terms);
        }
    }

    pub(super) fn on_ack(&mut self, now: Time, from: Remote, shim: &Shim, ack: &Ack<'_>) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            self.stats.unknown_peer += 1;
            return;
        };
        if !peer.is_known() || peer.epoch != shim.epoch || shim.seg_off != own_epoch {
            self.stats.unknown_peer += 1;
            return;
        }
        peer.handle_ack(now, shim, ack);
        self.reap(id);
        self.schedule(now, id);
    }

    /// Handles a NOTICE: the peer refuses a message, or has no state of this end.
    pub(super) fn on_notice(&mut self, now: Time, from: Remote, shim: &Shim, code: NoticeCode) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            return;
        };
        let is_unknown = code == NoticeCode::UnknownPeer;
        let about_now = peer.is_waiting_for(shim.psn, shim.msg_id);
        if !peer.is_known() || shim.seg_off != own_epoch || !about_now {
            return;
        }
        if peer.epoch != shim.epoch && !is_unknown {
            return;
        }
        let (down, status) = match code {
            NoticeCode::UnknownPeer => {
                let keep = |_: &super::Wqe, begun: bool| !begun;
                return self.forget_but(now, id, Down::Restarted, RdStatus::Flushed, None, keep);
            }
            NoticeCode::Rnr => (Down::ReceiverNotReady, RdStatus::ReceiverNotReady),
            NoticeCode::Access => (Down::Refused, RdStatus::RemoteAccess),
            _ => (Down::Refused, RdStatus::RemoteOperation),
        };
        self.forget(now, id, down, status, Some(shim.msg_id));
    }

    /// The peer closes the association. It reports which packets it has; it will never take the
    /// others, so they can be sent in a new association.
    pub(super) fn on_close(&mut self, now: Time, from: Remote, shim: &Shim, code: u16) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            return;
        };
        if !peer.is_known() || peer.epoch != shim.epoch || shim.seg_off != own_epoch {
            return;
        }
        if !peer.handle_last_ack(now, shim.psn) {
            return;
        }
        self.reap(id);
        let room = code == CLOSE_ROOM;
        let keep = move |wqe: &super::Wqe, begun: bool| room && !(begun && wqe.wr.op.is_answered());
        self.forget_but(now, id, Down::Closed, RdStatus::Flushed, None, keep);
    }

    /// Replies to every HELLO, with fewer bytes than it has.
    pub(super) fn answer_probe(&mut self, from: Remote, shim: &Shim, probe: Probe) {
        self.say(from, shim.epoch, Psn(0), MsgId(0), &Body::ProbeAck(probe));
    }

    pub(super) fn on_probe_ack(&mut self, now: Time, from: Remote, shim: &Shim, probe: Probe) {
        let source = Source {
            addr: from.addr,
            qpn: from.qpn,
            epoch: shim.epoch,
        };
        if let Some(Some(found)) = self.searches.handle_answer(now, &source, probe) {
            self.note_found(now, found);
        }
    }

    pub(super) fn say_close(&mut self, id: PeerId, code: u16) {
        if let Some(peer) = self.peers[id as usize]
            .as_deref()
            .filter(|peer| peer.is_known())
        {
            let (to, epoch) = (peer.remote, peer.epoch);
            let cum = Psn(low(peer.expected.cum));
            self.say(to, epoch, cum, MsgId(0), &Body::Close(Close { code }));
        }
    }

    /// Data from an unknown peer: replies with a NOTICE, with the refusal remembered for that peer
    /// if there is one.
    pub(super) fn answer_unknown_peer(&mut self, now: Time, from: Remote, shim: &Shim) {
        self.stats.unknown_peer += 1;
        let refusals = &self.notices.refusals;
        let known = refusals
            .iter()
            .rev()
            .find(|refusal| (refusal.remote, refusal.epoch) == (from, shim.epoch))
            .copied();
        match known {
            Some(refusal) => self.say_notice(
                now,
                from,
                shim.epoch,
                refusal.psn,
                refusal.msg,
                refusal.code,
            ),
            None => self.say_notice(
                now,
                from,
                shim.epoch,
                shim.psn,
                shim.msg_id,
                NoticeCode::UnknownPeer,
            ),
        }
    }

    /// The peer broke a rule: sends a NOTICE with the reason, and drops the peer's state.
    pub(super) fn refuse(&mut self, now: Time, id: PeerId, msg: MsgId, psn: Psn, code: NoticeCode) {
        let Some(peer) = self.peers[id as usize].as_deref() else {
            return;
        };
        let (remote, epoch) = (peer.remote, peer.epoch);
        match code {
            NoticeCode::Access => self.stats.denied += 1,
            NoticeCode::TooLong => self.stats.too_long += 1,
            _ => self.stats.malformed += 1,
        }
        if self.notices.refusals.len() == REFUSALS_KEPT {
            self.notices.refusals.pop_front();
        }
        self.notices.refusals.push_back(Refusal {
            remote,
            epoch,
            psn,
            msg,
            code,
        });
        self.say_notice(now, remote, epoch, psn, msg, code);
        self.forget(now, id, Down::Misbehaved, RdStatus::Flushed, None);
    }

    pub(super) fn say_notice(
        &mut self,
        now: Time,
        to: Remote,
        epoch: u32,
        psn: Psn,
        msg: MsgId,
        code: NoticeCode,
    ) {
        let notices = &mut self.notices;
        if now.since(notices.since) >= NOTICES_NS {
            (notices.since, notices.said) = (now, 0);
        }
        if notices.said < NOTICES_MAX {
            notices.said += 1;
            let notice = Body::Notice(Notice { code, detail: 0 });
            self.say(to, epoch, psn, msg, &notice);
        }
    }

    fn say(&mut self, to: Remote, epoch: u32, psn: Psn, msg_id: MsgId, body: &Body<'_>) {
        if self.outbox.len() >= OUTBOX_MAX {
            return; // the peer that waits for it retransmits
        }
        let shim = Shim {
            psn,
            msg_id,
            ..control_shim(&self.config, to.qpn, epoch)
        };
        let mut octets = [0; CONTROL_SHORT];
        let len = body.emit(&shim, &mut octets);
        let to: SocketAddr = to.addr;
        self.outbox.push_back(Control { to, len, octets });
    }
}
