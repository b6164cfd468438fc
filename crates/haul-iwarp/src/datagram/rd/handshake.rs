//! How peers are met, and forgotten.
//!
//! `HELLO -> COOKIE -> HELLO with the cookie -> READY`: whoever is called has no state before the
//! third. Whatever could end what two peers have is believed only of one who knows their epochs,
//! and is about packets that are on their way.

use std::net::SocketAddr;

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};

use super::RdQp;
use super::control::{
    AROUND_SEGMENT, CLOSE_ROOM, CONTROL_SHORT, Control, DATAGRAM_MIN, OUTBOX_MAX, PeerId,
    control_shim, low, whole,
};
use super::notices::Refusal;
use super::peer::Phase;
use super::work::{Down, RdEvent, RdStatus, RdTransmit, Remote};
use crate::datagram::wire::{
    Ack, Body, Close, Cookie, Hello, MsgId, Notice, NoticeCode, Psn, Shim, Terms,
};

const CALL_NS: u64 = 100 * MILLISECOND_NS;
const CALL_NS_MAX: u64 = 2 * SECOND_NS;
/// Notices per interval at most: they are help, not protocol.
const NOTICES_MAX: u32 = 64;
const NOTICES_NS: u64 = 100 * MILLISECOND_NS;
const REFUSALS_KEPT: usize = 64;
impl RdQp {
    /// Begins to call `to`; none if there is no room.
    pub(super) fn call(&mut self, now: Time, to: Remote) -> Option<PeerId> {
        let phase = Phase::Calling {
            cookie: None,
            tries: 0,
            due: now,
            said: None,
        };
        self.insert(now, to, phase)
    }

    /// The next HELLO, if the peer is being called and it is time.
    pub(super) fn write_call(
        &mut self,
        now: Time,
        id: PeerId,
        out: &mut [u8],
    ) -> Option<RdTransmit> {
        let tries_max = self.config.tries;
        let datagram_max = self.datagram_max(now, id);
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
        // An answer to a repeated call does not say to which: no round trip is taken of it.
        *said = (*tries == 1).then_some(now);
        let cookie = *cookie;
        let (to, initial) = (peer.remote, peer.own_initial);
        if cookie.is_some() {
            peer.offered = datagram_max;
        }
        let hello = Body::Hello(Hello {
            cookie,
            terms: self.terms(initial, datagram_max),
        });
        let shim = control_shim(&self.config, to.qpn, 0);
        Some(whole(to.addr, hello.emit(&shim, out)))
    }

    /// Bytes of a datagram to a peer that this end can agree on.
    fn datagram_max(&self, now: Time, id: PeerId) -> u16 {
        let most = self.config.datagram_max;
        let Some(peer) = self.peers[id as usize].as_deref() else {
            return most;
        };
        let host = peer.remote.addr.ip();
        let path = self.paths.datagram_max(now, host, most.into());
        u16::try_from(path).unwrap_or(most)
    }

    fn terms(&self, initial: u32, datagram_max: u16) -> Terms<'static> {
        Terms {
            caps: 0,
            init_psn: Psn(initial),
            window: self.config.window,
            max_seg: datagram_max,
            ird: self.config.qp.ird,
            ord: self.config.qp.ord,
            private: &[],
        }
    }

    /// Whether anything can be done with these terms.
    fn acceptable(terms: &Terms<'_>) -> bool {
        terms.max_seg >= DATAGRAM_MIN && (1..1 << 30).contains(&terms.window)
    }

    fn agree(&mut self, now: Time, id: PeerId, epoch: u32, terms: &Terms<'_>) {
        let datagram_max = self.datagram_max(now, id);
        let own = &self.config;
        let Some(peer) = self.peers[id as usize].as_deref_mut() else {
            return;
        };
        peer.learn(epoch, terms.init_psn.0, terms.window);
        peer.offered = terms.max_seg.min(datagram_max);
        peer.segment_max = u32::from(peer.offered) - AROUND_SEGMENT;
        peer.ord = own.qp.ord.min(terms.ird);
        peer.ird = own.qp.ird;
        if let Some(sending) = &mut peer.sending {
            sending.set_segment_max(peer.segment_max);
        }
        let remote = peer.remote;
        let refusals = &mut self.notices.refusals;
        refusals.retain(|refusal| refusal.remote != remote);
        self.events.push_back(RdEvent::Up(remote));
        self.schedule(now, id);
    }

    pub(super) fn on_hello(&mut self, now: Time, from: Remote, shim: &Shim, hello: &Hello<'_>) {
        if !Self::acceptable(&hello.terms) {
            self.stats.refused += 1;
            return;
        }
        let made = match hello.cookie {
            None => return self.offer_cookie(now, from, shim.epoch),
            Some(cookie) => self.jar.check(now, from, shim.epoch, &cookie),
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
                // An old hello, repeated by somebody or late: one who is there can do better.
                self.stats.bad_cookie += 1;
                return self.offer_cookie(now, from, shim.epoch);
            }
            let keep = |_: &super::Wqe, begun: bool| !begun;
            self.forget_but(now, id, Down::Restarted, RdStatus::Flushed, None, keep);
        }
        let id = match self.index.get(&from) {
            Some(&id) => Some(id), // called each other
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
        let cookie = self.jar.bake(now, to, epoch);
        self.say(to, epoch, Psn(0), MsgId(0), &Body::Cookie(cookie));
    }

    fn say_ready(&mut self, id: PeerId) {
        if let Some(peer) = self.peers[id as usize].as_deref() {
            let (to, epoch) = (peer.remote, peer.epoch);
            let terms = self.terms(peer.own_initial, peer.offered);
            self.say(to, epoch, Psn(0), MsgId(0), &Body::Ready(terms));
        }
    }

    pub(super) fn on_cookie(&mut self, now: Time, from: Remote, shim: &Shim, baked: Cookie) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            return;
        };
        if let Phase::Calling {
            cookie, due, said, ..
        } = &mut peer.phase
            && shim.seg_off == own_epoch
            && *cookie != Some(baked)
        {
            (*cookie, *due) = (Some(baked), now);
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

    /// The peer refuses a message, or does not know us.
    pub(super) fn on_notice(&mut self, now: Time, from: Remote, shim: &Shim, code: NoticeCode) {
        let own_epoch = self.config.epoch;
        let Some((id, peer)) = self.peer(from) else {
            return;
        };
        let stranger = code == NoticeCode::UnknownPeer;
        let about_now = peer.is_waiting_for(shim.psn, shim.msg_id);
        if !peer.is_known() || shim.seg_off != own_epoch || !about_now {
            return;
        }
        if peer.epoch != shim.epoch && !stranger {
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

    /// The peer forgets us. It says which packets it has; what it has not, it never will, so that
    /// can be sent anew.
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

    /// Data from one who is not known: it is told, with what is left of our memory of it.
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

    /// A peer has sent what may not be: it is told why, and forgotten.
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
            return; // whoever waits for it asks again
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
