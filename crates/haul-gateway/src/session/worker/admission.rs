//! What a control connection that came in wants: a session that ends here or passes through, or one
//! that is here already.

use haul_xsp::wire::{NackStatus, SessOpen};
use haul_xsp::{Admission, ResumeRequest, Session, SessionId, Time};

use super::{BEING_STOPPED, Body, Dial, Worker};
use crate::control::Control;
use crate::host::Shown;
use crate::log::Level;
use crate::shared::SessionCommand;
use crate::status::Role;

impl Worker {
    pub(super) fn on_open_request(&mut self, open: SessOpen) {
        let now = self.now();
        let Some(id) = self.body.session(0).map(|session| session.id()) else {
            return;
        };
        if self.shared.is_draining() {
            return self.refuse_session(NackStatus::Closing, open.hop_index, BEING_STOPPED);
        }
        let peer = self.body.session(0).and_then(|session| session.peer());
        self.class = self.shared.config().class_of_guest(peer).map(str::to_owned);
        let admission = self.shared.with_room(0, self.from, || {
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
            // If the session there has just ended, it is not refused for good.
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

    fn refuse_session(&mut self, status: NackStatus, hop_index: u16, text: &str) {
        let peer = self.segments[0]
            .as_ref()
            .map_or("", |segment| segment.peer.as_str());
        self.shared.log(
            Level::Warning,
            format!("{peer}: a session is refused: {text}"),
        );
        self.shared.count(|totals| totals.sessions_refused += 1);
        if let Some(session) = self.body.session(0) {
            // Fails only where nobody asks any more.
            let _ = session.refuse_session(status, hop_index, text);
        }
    }

    /// What the directory has admitted comes to nothing. It has not kept a dry run.
    fn forget(&self, id: SessionId, open: &SessOpen) {
        if !open.dry_run {
            self.shared.directory().remove(id);
        }
    }

    fn accept_terminus(&mut self, id: SessionId, open: &SessOpen, now: Time) {
        if let Err(why) = self.take_memory(true) {
            self.forget(id, open);
            return self.refuse_session(NackStatus::Busy, open.hop_index, &why);
        }
        self.become_member(Role::Terminus, id, open);
        // Good as long as the session is here.
        let ticket = self.shared.directory().ticket(id, Time::from_ns(u64::MAX));
        if let Some(session) = self.body.session(0)
            && session.accept_session(now, None, Some(ticket)).is_err()
        {
            self.is_over = true;
        }
    }

    fn accept_relay(&mut self, id: SessionId, open: SessOpen, hop: u16) {
        let Some(next) = open.hops.get(usize::from(hop)) else {
            return self.refuse_session(NackStatus::NoRoute, open.hop_index, "no next hop");
        };
        let left_out = open.hops[..usize::from(hop)].iter();
        let left_out = left_out.skip(usize::from(open.hop_index) + 1);
        let left_out: Vec<String> = left_out
            .map(|hop| Shown(&hop.endpoint).to_string())
            .collect();
        self.dials[1] = Dial::to(next);
        if let Err(why) = self.take_memory(false) {
            self.forget(id, &open);
            return self.refuse_session(NackStatus::Busy, open.hop_index, &why);
        }
        self.become_member(Role::Relay, id, &open);
        if let Some(session) = self.body.session(0) {
            session.set_relay();
        }
        for gateway in left_out {
            let text = format!("{gateway} is left out: it is not on this gateway's list (`next`)");
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

    fn become_member(&mut self, role: Role, id: SessionId, open: &SessOpen) {
        self.role = role;
        let mut registers = self.shared.registers();
        registers.pending_peers.remove(self.status_number);
        drop(registers);
        if let Some(idle) = &self.idle {
            idle.note(false, self.shared.now().as_ns());
        }
        // Nobody comes back to a dry run, and its name may be a session's by the time it is over.
        if !open.dry_run {
            self.register(id);
            self.shared.count(|totals| totals.sessions += 1);
        }
        if self.shared.is_draining() {
            // Those that are there have been told, and this one may not have been.
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

    /// The session is another thread's; this one was only its porter. Without that thread the
    /// answer is `otherwise`, and which hop this is.
    fn hand_over(
        &mut self,
        id: SessionId,
        (otherwise, hop_index): (NackStatus, u16),
        command: impl FnOnce(Box<Session>, Box<Control>) -> SessionCommand,
    ) {
        let owner = self.shared.registers().sessions.get(&id).cloned();
        let Some(owner) = owner else {
            return self.refuse_session(otherwise, hop_index, "no such session here (any more)");
        };
        let Some(segment) = &mut self.segments[0] else {
            return;
        };
        if let Some(control) = &segment.control
            && self.watched[0].control.take().is_some()
        {
            let _ = self.poller.remove(control.stream());
        }
        let (Some(control), Body::One(fresh)) = (
            segment.control.take(),
            std::mem::replace(&mut self.body, Body::None),
        ) else {
            return;
        };
        // Its owner has just ended: its peer sees the connection end, and tries again.
        let _ = owner.send(command(fresh, Box::new(control)));
        self.is_over = true;
    }
}

fn why(status: NackStatus) -> String {
    match status {
        NackStatus::Loop => "the session is here already: its hops make a loop".to_owned(),
        NackStatus::Forbidden => "the next hop is not on this gateway's list (`next`)".to_owned(),
        NackStatus::Busy => "as many sessions as there may be (`sessions`)".to_owned(),
        other => format!("{other:?}"),
    }
}
