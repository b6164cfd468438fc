//! An inbound control connection: its authentication, and its request. It asks for a session that
//! ends here, for one that passes through, or for an existing one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use haul_xsp::wire::{NackStatus, SessOpen};
use haul_xsp::{Admission, ResumeRequest, Session, SessionId, Time};

use super::super::shape::{self, Shape};
use super::super::side::SegmentSide;
use super::part::{Owner, Part};
use super::state::{Body, Dial};
use super::{BEING_STOPPED, Worker};
use crate::channel::Lost;
use crate::control::Control;
use crate::host::Shown;
use crate::log::Level;
use crate::shared::{SessionCommand, Shared, Standing};
use crate::status::Role;

impl Worker {
    /// Starts a thread for an inbound control connection.
    pub(crate) fn accept(
        shared: &Arc<Shared>,
        control: Control,
        peer: SocketAddr,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let shape = Shape::of_incoming(&shared.config());
        let owner = Owner {
            from: Some(peer.ip()),
            ..Owner::default()
        };
        let part = Part::Pending(owner);
        let mut worker = Self::new(Arc::clone(shared), part, shape).map_err(text)?;
        let mut segment = SegmentSide::bare(worker.shape.verifies).map_err(text)?;
        segment.control = Some(control);
        segment.peer = peer.to_string();
        worker.segments[0].side = Some(segment);
        let (number, now_ns) = (worker.report.number, worker.report.since.as_ns());
        let handle = worker.handle.clone();
        let mut registers = shared.registers();
        registers
            .pending_peers
            .admit(number, handle, peer.ip(), now_ns);
        drop(registers);
        worker.spawn("haul-session").map_err(text)
    }

    /// Authenticates the peer; then the peer may send its request.
    pub(super) fn handshake(&mut self) -> Result<(), Lost> {
        let lost = |error: io::Error| Lost(error.to_string());
        let Some(segment) = &mut self.segments[0].side else {
            return Ok(());
        };
        let Some(control) = &mut segment.control else {
            return Ok(());
        };
        let is_ready = control.handshake().map_err(lost)?;
        segment.waits_to_send = control.wants_write();
        if !is_ready {
            return Ok(());
        }
        let (binding, name) = (control.binding(), control.peer_name());
        let auth = shape::auth(&self.shared, None, false, binding, name);
        // Nothing arrives before the session is accepted, so no memory is needed yet.
        let config = self
            .shape
            .session(true, shape::protocols(&self.shared), auth);
        let seed = haul_io::random::bytes().map_err(lost)?;
        let session = Session::accept(config, self.report.since, seed);
        self.body = Body::One(Box::new(session.map_err(|error| Lost(error.to_string()))?));
        Ok(())
    }

    /// Raises the standing of the peer: one that has sent something is not the first to be evicted,
    /// and an authenticated one never is.
    pub(super) fn show_standing(&mut self) {
        let standing = self.standing();
        let mut registers = self.shared.registers();
        registers.pending_peers.raise(self.report.number, standing);
    }

    pub(super) fn standing(&mut self) -> Standing {
        let control = self.segments[0]
            .side
            .as_ref()
            .and_then(|segment| segment.control.as_ref());
        let by_certificate = control.is_some_and(Control::is_authenticated);
        let by_key = self
            .body
            .session(0)
            .is_some_and(|session| session.peer().is_some());
        if by_certificate || by_key {
            Standing::Authenticated
        } else {
            Standing::Greeted
        }
    }

    pub(super) fn on_open_request(&mut self, open: SessOpen) {
        let now = self.now();
        let Some(id) = self.body.session(0).map(|session| session.id()) else {
            return;
        };
        if self.shared.is_draining() {
            return self.refuse_session(NackStatus::Closing, open.hop_index, BEING_STOPPED);
        }
        let peer = self.body.session(0).and_then(|session| session.peer());
        self.class = self
            .shared
            .config()
            .class_of_inbound(peer)
            .map(str::to_owned);
        let from = self.part.owner().and_then(|owner| owner.from);
        let admission = self.shared.with_room(0, from, || {
            let admission = self.shared.directory().admit(now, id, &open);
            let is_full = matches!(admission, Admission::Refused(NackStatus::Busy, _));
            (!is_full || open.dry_run).then_some(admission)
        });
        match admission.unwrap_or(Admission::Refused(NackStatus::Busy, open.hop_index)) {
            Admission::Refused(status, hop_index) => {
                self.refuse_session(status, hop_index, &why(status))
            }
            Admission::Terminus => self.accept_terminus(id, &open, now),
            Admission::Next(hop) => self.accept_relay(id, open, hop),
            // If the existing session has just ended, the refusal is not final.
            Admission::Back(id) => {
                let otherwise = (NackStatus::Closing, open.hop_index);
                self.hand_over(id, otherwise, |fresh, control| SessionCommand::Anew {
                    fresh,
                    control,
                    open: Box::new(open),
                });
            }
        }
    }

    pub(super) fn refuse_session(&mut self, status: NackStatus, hop_index: u16, text: &str) {
        let is_dry_run = self.is_dry_run();
        let peer = self.segments[0]
            .side
            .as_ref()
            .map_or("", |segment| segment.peer.as_str());
        if !is_dry_run {
            self.shared
                .log(Level::Warning, format!("{peer}: session refused: {text}"));
            self.shared.count(|totals| totals.sessions_refused += 1);
        }
        if let Some(session) = self.body.session(0) {
            // It fails only if the request is gone.
            let _ = session.refuse_session(status, hop_index, text);
        }
    }

    /// Takes back an admission of the directory, which does not keep dry runs.
    pub(super) fn forget(&self, id: SessionId, open: &SessOpen) {
        if !open.dry_run {
            self.shared.directory().remove(id);
        }
    }

    pub(super) fn accept_terminus(&mut self, id: SessionId, open: &SessOpen, now: Time) {
        if let Err(why) = self.take_memory(true) {
            self.forget(id, open);
            return self.refuse_session(NackStatus::Busy, open.hop_index, &why);
        }
        self.become_member(Role::Terminus, id, open);
        // Valid as long as the session exists.
        let ticket = self.shared.directory().ticket(id, Time::from_ns(u64::MAX));
        if let Some(session) = self.body.session(0)
            && session.accept_session(now, None, Some(ticket)).is_err()
        {
            self.ending.is_over = true;
        }
    }

    pub(super) fn accept_relay(&mut self, id: SessionId, open: SessOpen, hop: u16) {
        let Some(next) = open.hops.get(usize::from(hop)) else {
            return self.refuse_session(NackStatus::NoRoute, open.hop_index, "no next hop");
        };
        let left_out = open.hops[..usize::from(hop)].iter();
        let left_out = left_out.skip(usize::from(open.hop_index) + 1);
        let left_out: Vec<String> = left_out
            .map(|hop| Shown(&hop.endpoint).to_string())
            .collect();
        self.segments[1].dial = Dial::to(next);
        if let Err(why) = self.take_memory(false) {
            self.forget(id, &open);
            return self.refuse_session(NackStatus::Busy, open.hop_index, &why);
        }
        self.become_member(Role::Relay, id, &open);
        if let Some(session) = self.body.session(0) {
            session.set_relay();
        }
        for gateway in left_out {
            let text = format!("{gateway} is left out: it is not in `next`");
            self.shared.log(Level::Warning, text);
        }
        self.go_to(
            id,
            SessOpen {
                hop_index: hop,
                ..open
            },
        );
    }

    pub(super) fn become_member(&mut self, role: Role, id: SessionId, open: &SessOpen) {
        self.part.join(role);
        let mut registers = self.shared.registers();
        registers.pending_peers.remove(self.report.number);
        drop(registers);
        if let Some(idle) = self.part.owner().and_then(|owner| owner.idle.as_ref()) {
            idle.note(false, self.shared.now().as_ns());
        }
        // A dry run is never resumed, and its identifier may belong to a session by the time it
        // ends.
        if !open.dry_run {
            self.register(id);
            self.shared.count(|totals| totals.sessions += 1);
        }
        if self.shared.is_draining() {
            // The command to drain may have missed this session.
            let _ = self.handle.send(SessionCommand::Drain);
        }
    }

    pub(super) fn on_resume_request(&mut self, request: ResumeRequest) {
        let Some(id) = self.body.session(0).map(|session| session.id()) else {
            return;
        };
        self.hand_over(id, (NackStatus::UnknownSession, 0), |fresh, control| {
            SessionCommand::Resume {
                fresh,
                control,
                request,
            }
        });
    }

    /// Hands the control connection to the thread of an existing session. If there is none, refuses
    /// with `otherwise` and this hop's index.
    pub(super) fn hand_over(
        &mut self,
        id: SessionId,
        (otherwise, hop_index): (NackStatus, u16),
        command: impl FnOnce(Box<Session>, Box<Control>) -> SessionCommand,
    ) {
        let owner = self.shared.registers().sessions.get(&id).cloned();
        let Some(owner) = owner else {
            return self.refuse_session(otherwise, hop_index, "unknown session");
        };
        let Some(segment) = &mut self.segments[0].side else {
            return;
        };
        if let Some(control) = &segment.control
            && self.segments[0].watched.control.take().is_some()
        {
            let _ = self.poller.remove(control.stream());
        }
        let (Some(control), Body::One(fresh)) = (
            segment.control.take(),
            std::mem::replace(&mut self.body, Body::None),
        ) else {
            return;
        };
        // If the session has just ended, the peer sees the connection close, and retries.
        let _ = owner.send(command(fresh, Box::new(control)));
        self.ending.is_over = true;
    }
}

fn why(status: NackStatus) -> String {
    match status {
        NackStatus::Loop => "the session is already here: its hops form a loop".to_owned(),
        NackStatus::Forbidden => "the next hop is not in `next`".to_owned(),
        NackStatus::Busy => "too many sessions (`sessions`)".to_owned(),
        other => format!("{other:?}"),
    }
}
