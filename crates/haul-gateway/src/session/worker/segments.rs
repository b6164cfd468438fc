//! The segments of a session at this gateway: control connections and data channels.

use haul_io::poller::{Interest, Poller};
use haul_xsp::wire::{Endpoint, FIRSTS_MAX, Metadata, NackStatus, SessOpen};
use haul_xsp::{Event, Relay, SECOND_NS, Session, SessionId, State, Time};

use super::super::attempts;
use super::super::dial::{ANSWER_BEFORE_OTHERS_NS, ANSWER_NS, dial};
use super::super::shape;
use super::super::side::SegmentSide;
use super::part::Waiting;
use super::state::{Body, Watched};
use super::{CONTROL, FABRIC, Worker};
use crate::channel::{Lost, News, kind};
use crate::control::Control;
use crate::log::Level;
use crate::refusal::{Refusal, code};
use crate::status::Role;

/// First and longest wait before another attempt at the next hop, ns.
const BACKOFF_NS: (u64, u64) = (SECOND_NS / 10, 5 * SECOND_NS);
/// The longest where the next hop refuses: it is about to be started again, perhaps.
const BACKOFF_GONE_NS: u64 = SECOND_NS;

impl Worker {
    /// The segments that exist.
    pub(super) fn sides_mut(&mut self) -> impl Iterator<Item = &mut SegmentSide> {
        let sides = self.segments.iter_mut();
        sides.filter_map(|segment| segment.side.as_mut())
    }

    pub(super) fn receive(&mut self, side: usize) {
        if matches!((&self.body, self.part.role()), (Body::None, Role::Pending))
            && let Err(lost) = self.handshake()
        {
            let peer = self.segments[0]
                .side
                .as_ref()
                .map_or("", |segment| segment.peer.as_str());
            self.shared
                .log(Level::Warning, format!("{peer}: {}", lost.0));
            self.ending.is_over = true;
            return;
        }
        let now = self.now();
        let (Some(session), Some(segment)) =
            (self.body.session(side), self.segments[side].side.as_mut())
        else {
            // The TLS handshake is not complete.
            return self.show_standing();
        };
        match segment.receive(session, now) {
            Err(lost) => self.lose(side, &lost),
            Ok(_) if self.part.role() == Role::Pending => self.show_standing(),
            Ok(_) => {}
        }
    }

    pub(super) fn poll_fabric(&mut self, side: usize) {
        let now = self.now();
        let Some(segment) = &mut self.segments[side].side else {
            return;
        };
        if let Err(lost) = segment.poll_fabric(now) {
            self.lose_channels(side, &lost);
        }
    }

    pub(super) fn settle(&mut self, side: usize, now: Time) -> bool {
        let [near, far] = &mut self.segments;
        let (segment, other) = if side == 0 { (near, far) } else { (far, near) };
        let (segment, other) = (&mut segment.side, &other.side);
        let (Some(session), Some(segment)) = (self.body.session(side), segment.as_mut()) else {
            return false;
        };
        let result = segment.settle(session, other.as_ref().map(SegmentSide::arena), now);
        let news = segment.take_news();
        let progress = !news.is_empty();
        for news in news {
            self.on_channel_news(side, news);
        }
        match result {
            Ok(settled) => progress | settled,
            Err(lost) => {
                self.lose_channels(side, &lost);
                true
            }
        }
    }

    pub(super) fn transmit(&mut self, side: usize) {
        let now = self.now();
        let (Some(session), Some(segment)) =
            (self.body.session(side), self.segments[side].side.as_mut())
        else {
            return;
        };
        match segment.transmit(session, now) {
            Ok(waits) => segment.waits_to_send = waits,
            Err(lost) => {
                // First handles the peer's earlier messages, and whether the peer has ended it.
                self.receive(side);
                self.lose(side, &lost);
            }
        }
    }

    /// Updates what the poller watches of a segment.
    pub(super) fn watch(&mut self, side: usize) {
        let (watched, token) = (&mut self.segments[side].watched, side as u64);
        let Some(segment) = &self.segments[side].side else {
            return;
        };
        let wanted = segment.control.as_ref().map(|_| Interest {
            readable: true,
            writable: segment.waits_to_send,
        });
        if let Some(control) = &segment.control
            && wanted != watched.control
        {
            let result = match (watched.control, wanted) {
                (None, Some(wanted)) => self.poller.add(control.stream(), CONTROL | token, wanted),
                (_, Some(wanted)) => self
                    .poller
                    .modify(control.stream(), CONTROL | token, wanted),
                (_, None) => Ok(()),
            };
            watched.control = wanted.filter(|_| result.is_ok());
        }
        if let Some(fabric) = segment.fabric.as_ref().filter(|_| !watched.has_fabric) {
            let mut descriptors = fabric.descriptors().into_iter();
            watched.has_fabric = descriptors
                .try_for_each(|fd| self.poller.add(fd, FABRIC | token, Interest::READ))
                .is_ok();
        }
    }

    /// The control connection is lost.
    pub(super) fn lose(&mut self, side: usize, lost: &Lost) {
        let now = self.now();
        let segment = self.segments[side].side.as_ref();
        if segment.is_some_and(|segment| segment.control.is_none()) {
            return;
        }
        self.note_loss(side, lost, Level::Warning);
        let mut was_left = false;
        if let Some(segment) = &mut self.segments[side].side {
            was_left = segment.was_left;
            drop_control(segment, &self.poller, &mut self.segments[side].watched);
        }
        self.end_fabric(side);
        match self.body.session(side) {
            Some(session) if was_left => session.handle_left(now),
            Some(session) => session.handle_lost(now),
            None => {}
        }
    }

    /// The data channels are lost. The peer may have ended the session in messages still in flight,
    /// so its final messages are read before the control connection is given up.
    pub(super) fn lose_channels(&mut self, side: usize, lost: &Lost) {
        self.receive(side);
        let now = self.now();
        let session = self.body.session(side);
        let may_finish = session
            .is_some_and(|session| session.state() != State::Closed && !session.is_finishing());
        let segment = self.segments[side].side.as_ref();
        if !may_finish || segment.is_none_or(|segment| segment.control.is_none()) {
            return;
        }
        // Perhaps the peer has just ended the session in order.
        self.note_loss(side, lost, Level::Info);
        if let Some(session) = self.body.session(side) {
            session.finish_link(now);
        }
        if let Some(segment) = &mut self.segments[side].side {
            segment.finish_control();
        }
        self.end_fabric(side);
    }

    /// Logs why a segment is lost, and notes what that means for the next attempt: once for a
    /// control connection of which only the final messages are read.
    fn note_loss(&mut self, side: usize, lost: &Lost, level: Level) {
        let (now, is_dry_run) = (self.now(), self.is_dry_run());
        let Some(segment) = &mut self.segments[side].side else {
            return;
        };
        let session = self.body.session(side);
        let is_closed = session
            .as_ref()
            .is_some_and(|session| session.state() == State::Closed);
        if is_closed {
            return;
        }
        if session
            .as_ref()
            .is_some_and(|session| session.is_finishing())
        {
            // No final message has come.
            if let (Level::Warning, Some(trouble)) = (level, &self.ending.trouble) {
                self.shared.log(level, trouble);
            }
            return;
        }
        if let Some(session) = session
            && segment.has_broken(now)
        {
            self.segments[side]
                .attempts
                .note_lost(now, &self.shared, session, segment);
        }
        if self.part.role() != Role::Pending {
            if !is_dry_run {
                self.shared
                    .log(level, format!("{}: {}", segment.peer, lost.0));
            }
            self.ending.trouble = Some(format!("gateway {}: {}", segment.peer, lost.0));
            let control = segment.control.as_ref();
            self.ending.auth_failed = control.is_some_and(Control::auth_failed);
        }
        if !self.segments[side].dial.hop.is_empty() {
            self.part.note(&lost.0);
        }
    }

    pub(super) fn end_fabric(&mut self, side: usize) {
        let is_watched = self.segments[side].watched.has_fabric;
        if let Some(segment) = &mut self.segments[side].side {
            attempts::forget(&self.shared, segment);
            if let Some(fabric) = segment.fabric.as_ref().filter(|_| is_watched) {
                // The descriptors are about to be closed, and must not be polled any more.
                for fd in fabric.descriptors() {
                    let _ = self.poller.remove(fd);
                }
            }
            segment.end_fabric();
        }
        self.segments[side].watched.has_fabric = false;
    }

    /// Handles an event of a segment's data channels.
    pub(super) fn on_segment_event(&mut self, side: usize, event: Event) {
        let now = self.now();
        let (Some(session), Some(segment)) =
            (self.body.session(side), self.segments[side].side.as_mut())
        else {
            return;
        };
        match event {
            Event::ChanRequest(params) => {
                let before = segment.fabric.as_ref().map(|fabric| fabric.kind());
                let wanted = kind(params.proto);
                if before.is_some() && before != wanted {
                    self.end_fabric(side);
                }
                let (Some(session), Some(segment)) =
                    (self.body.session(side), self.segments[side].side.as_mut())
                else {
                    return;
                };
                attempts::on_request(&self.shared, &self.handle, session, segment, params);
            }
            Event::ChanUp(params) => {
                if let Err(why) = self.segments[side]
                    .attempts
                    .connect(now, session, segment, &params)
                {
                    self.next_kind(side, &why);
                }
            }
            Event::ChanRefused { chan, text, .. } if self.segments[side].attempts.awaits(chan) => {
                self.next_kind(side, &text);
            }
            Event::ChanClosed(_) => {}
            // A notice that came with the message that ended the segment is ignored.
            Event::Notice { .. } if segment.control.is_none() => {}
            Event::Notice { code, text } => {
                let line = format!("{}: {text}", segment.peer);
                self.shared.log(Level::Info, line);
                self.on_notice(side, code, &text);
            }
            Event::PutOff { status, text, .. } => {
                let line = format!("{}: session refused for now: {text}", segment.peer);
                self.shared.log(Level::Warning, line);
                self.part.put_off(status, &text);
                self.note_failure(side, status);
            }
            _ => {
                let _ = session;
            }
        }
    }

    pub(super) fn on_channel_news(&mut self, side: usize, news: News) {
        let peer = self.segments[side]
            .side
            .as_ref()
            .map_or("", |segment| segment.peer.as_str());
        match news {
            News::Up => {
                self.segments[side].attempts.note_up(self.shared.now());
                let segment = self.segments[side].side.as_ref();
                if let Some(fabric) = segment.and_then(|segment| segment.fabric.as_ref()) {
                    let text = format!(
                        "{peer}: data channel {} ({} up)",
                        fabric.kind(),
                        fabric.lanes_up()
                    );
                    self.shared.log(Level::Info, text);
                }
                if side == 0 {
                    self.notify_waiters(&Ok(()));
                }
            }
            // Of several simultaneous failures, the first counts.
            News::Failed(chan, why) if self.segments[side].attempts.awaits(chan) => {
                self.next_kind(side, &why);
            }
            News::Failed(_, why) if self.segments[side].dial.hop.is_empty() => {
                self.shared.log(
                    Level::Warning,
                    format!("{peer}: a data channel failed: {why}"),
                );
            }
            News::Down(why) => {
                self.lose_channels(side, &Lost(format!("the data channel has ended: {why}")));
            }
            News::Failed(..) | News::Got(..) | News::Put(..) | News::Written(..) => {}
        }
    }

    /// The present kind of data channel has failed.
    pub(super) fn next_kind(&mut self, side: usize, why: &str) {
        self.end_fabric(side);
        if let (Some(session), Some(segment)) = (self.body.session(side), &self.segments[side].side)
        {
            self.segments[side]
                .attempts
                .give_up(&self.shared, session, segment, why);
        }
        self.ask_for_channels(side);
    }

    pub(super) fn ask_for_channels(&mut self, side: usize) {
        let (Some(session), Some(segment)) =
            (self.body.session(side), self.segments[side].side.as_mut())
        else {
            return;
        };
        if let Err(lost) = self.segments[side]
            .attempts
            .ask(&self.shared, session, segment)
        {
            let text = format!("gateway {}: {}", segment.peer, lost.0);
            self.notify_waiters(&Err(Refusal::new(
                code(NackStatus::NoProtocol),
                Some(&text),
            )));
            self.lose(side, &lost);
        }
    }

    pub(super) fn dial(&mut self, side: usize) {
        let dialled = &mut self.segments[side].dial;
        if dialled.hop.is_empty() || dialled.is_under_way {
            return;
        }
        (dialled.is_under_way, dialled.again_at) = (true, None);
        let hop = dialled.hop.clone();
        let answer_ns = match self.part.opener() {
            Some(opener) if opener.ways.may_open_by_another() => ANSWER_BEFORE_OTHERS_NS,
            _ => ANSWER_NS,
        };
        dial(&self.shared, hop, answer_ns, &self.handle);
    }

    /// The next hop is lost or unreachable: it is dialled again, or the next way is.
    pub(super) fn dial_later(&mut self, side: usize) {
        let now = self.now();
        let at_once = match self.part.role() {
            Role::Opener => self.change_way(now),
            _ => {
                self.notify_owner(now, side);
                false
            }
        };
        let dialled = &mut self.segments[side].dial;
        if at_once {
            dialled.again_at = Some(now);
            return;
        }
        let most = if dialled.is_gone {
            BACKOFF_GONE_NS
        } else {
            BACKOFF_NS.1
        };
        dialled.wait_ns = (dialled.wait_ns * 2).clamp(BACKOFF_NS.0, most);
        dialled.again_at = Some(now.after(dialled.wait_ns));
    }

    /// Returns the side that this end dials.
    pub(super) const fn dialled_side(&self) -> usize {
        match self.part.role() {
            Role::Relay => 1,
            _ => 0,
        }
    }

    pub(super) fn on_dialled(&mut self, result: Result<Box<Control>, (NackStatus, String)>) {
        let side = self.dialled_side();
        self.segments[side].dial.is_under_way = false;
        let control = match result {
            Ok(control) => control,
            Err((status, why)) => return self.on_dial_failed(side, status, &why),
        };
        let now = self.now();
        let (binding, name) = (control.binding(), control.peer_name());
        let key = self.segments[side].dial.key.as_deref();
        let auth = shape::auth(&self.shared, key, true, binding, name);
        let peer = self.segments[side].dial.hop.clone();
        if let Some((id, open)) = self.part.take_wanted() {
            if let Err(why) = self.begin(side, id, open, auth) {
                self.shared.log(Level::Error, format!("{peer}: {why}"));
                self.ending.is_over = true;
                return;
            }
        } else if let Some(session) = self.body.session(side) {
            session.set_auth(auth);
            if self.part.go_on(now, session).is_err() {
                return;
            }
        }
        if let Some(segment) = &mut self.segments[side].side {
            drop_control(segment, &self.poller, &mut self.segments[side].watched);
            segment.control = Some(*control);
            segment.was_left = false;
            segment.peer = peer;
        }
    }

    /// Opens the session at the next hop.
    pub(super) fn begin(
        &mut self,
        side: usize,
        id: SessionId,
        open: SessOpen,
        auth: haul_xsp::AuthConfig,
    ) -> Result<(), String> {
        let seed = haul_io::random::bytes().map_err(|error| error.to_string())?;
        let config = self.shape.session(side == 0, Vec::new(), auth);
        // An opener asks for waiting connections along with the session; relays have none.
        let firsts: Vec<(Endpoint, Metadata)> = self
            .part
            .opener()
            .into_iter()
            .flat_map(|opener| &opener.calls)
            .take(FIRSTS_MAX)
            .map(|Waiting { call, .. }| (call.meant().clone(), call.metadata.clone()))
            .collect();
        let opened = Session::open_with(config, self.now(), id, open, &firsts, seed);
        let (mut session, conns) = opened.map_err(|error| error.to_string())?;
        if side == 0 {
            session.set_metadata(self.described.metadata.clone());
        }
        let calls = self.part.take_first_calls(conns.len());
        for (conn, call) in conns.iter().zip(calls) {
            self.note_conn(*conn, &call.metadata);
            if let Some(opener) = self.part.opener_mut() {
                opener.ways.ask_along(*conn, &call);
            }
            self.edges.ask(*conn, call, 0);
        }
        self.body = match std::mem::replace(&mut self.body, Body::None) {
            Body::One(near) if side == 1 => Body::Two(Box::new(Relay::new(*near, session))),
            Body::Two(mut relay) => {
                relay.replace_far(session);
                Body::Two(relay)
            }
            _ => Body::One(Box::new(session)),
        };
        if side == 0 && !self.part.is_probe() {
            self.register(id);
        }
        Ok(())
    }

    pub(super) fn register(&mut self, id: SessionId) {
        self.shared
            .registers()
            .sessions
            .insert(id, self.handle.clone());
        self.is_registered = true;
    }

    pub(super) fn on_dial_failed(&mut self, side: usize, status: NackStatus, why: &str) {
        let text = format!("the next hop cannot be reached: {why}");
        self.part.note(why);
        let Some((_, open)) = self.part.take_wanted() else {
            self.shared.log(Level::Warning, text);
            self.ending.trouble = Some(format!("gateway {why}"));
            self.note_failure(side, status);
            return self.dial_later(side);
        };
        let is_opener = self.part.role() == Role::Opener;
        let why_opener = format!("gateway {why}");
        if (is_opener && self.open_by_next_way(status, &why_opener))
            || (!is_opener && self.leave_out(why))
        {
            return;
        }
        if !self.part.is_probe() {
            self.shared.log(Level::Error, text);
        }
        if is_opener {
            self.ending.trouble = Some(self.part.end_reason(&why_opener));
            self.refuse_all(status);
            self.ending.is_over = true;
        } else if let Some(near) = self.body.session(0) {
            // It fails only if the opener is gone.
            let _ = near.refuse_session(status, open.hop_index, why);
        }
    }
}

/// Closes the control connection of a segment.
pub(super) fn drop_control(segment: &mut SegmentSide, poller: &Poller, watched: &mut Watched) {
    if let (Some(control), Some(_)) = (segment.control.take(), watched.control.take()) {
        // It may not be watched.
        let _ = poller.remove(control.stream());
    }
    segment.forget_input();
}
