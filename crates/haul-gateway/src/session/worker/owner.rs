//! The owner of an inbound session: it disappears, returns, and is notified.

use crossbeam_channel::Sender;
use haul_xsp::wire::NackStatus;
use haul_xsp::{SECOND_NS, State};

use super::Worker;
use super::segments::drop_control;
use crate::control::Control;
use crate::log::Level;
use crate::shared::{Share, Standing};
use crate::status::Role;

/// Time for an owner to react to the end of its session, for each segment in between, ns.
const NOTICE_NS: u64 = SECOND_NS;

impl Worker {
    /// Ends the session if that loses no data.
    pub(super) fn make_room(&mut self, asked: Option<Sender<()>>) {
        if self.part.role() == Role::Pending {
            self.ending.is_over |= self.standing() < Standing::Authenticated;
            return;
        }
        let owner = self.part.owner();
        let is_idle = owner.is_some_and(|owner| owner.idle.is_some());
        let Some(session) = self.body.session(0) else {
            return;
        };
        let text = if is_idle && session.conns() == 0 {
            "it is idle, its owner has not authenticated, and others need the memory"
        } else if matches!(session.state(), State::Suspended(_)) {
            "its owner has disappeared, and others need the memory"
        } else {
            return;
        };
        self.shared
            .log(Level::Warning, format!("a session ends: {text}"));
        self.ending.trouble = Some(text.to_owned());
        if let Some(owner) = self.part.owner_mut() {
            owner.room = asked;
        }
        self.abort();
    }

    /// Notifies the owner that a gateway is being stopped: new connections should go another way.
    /// If this gateway is a relay between acknowledging ends, the session should too. The notice is
    /// repeated when the owner returns.
    pub(super) fn notify_owner_of_end(&mut self, text: String) {
        let now = self.now();
        let session = self.body.session(0);
        if let Some(session) = session.filter(|session| !session.is_finishing()) {
            let is_between = self.part.role() == Role::Relay;
            if self.ending.is_draining && is_between && session.agreed().end_to_end {
                let _ = session.notice(NackStatus::CannotConnect, &text);
            }
            let is_sent = session.notice(NackStatus::Closing, &text).is_ok();
            if is_sent && self.ending.is_draining {
                let hops = session.hops().len() as u64;
                if let Some(owner) = self.part.owner_mut() {
                    owner.open_until = Some(now.after(NOTICE_NS * hops));
                }
            }
        }
        if let Some(owner) = self.part.owner_mut() {
            owner.stopping = Some(text);
        }
    }

    /// Notes that the owner has disappeared. Behind a relay with end-to-end acknowledgement only
    /// the relay has, and the owner may come by another way.
    pub(super) fn note_abandoned(&mut self) {
        let was_left = self.segments[0]
            .side
            .as_ref()
            .is_some_and(|segment| segment.was_left);
        let session = self.body.session(0).filter(|_| was_left);
        if session.is_some_and(|session| session.hop_index() == 0 || !session.agreed().end_to_end) {
            let bytes = self.share.as_ref().map_or(0, Share::bytes);
            let (handle, now) = (self.handle.clone(), self.now());
            let mut registers = self.shared.registers();
            registers.abandoned.add(handle, bytes, now.as_ns());
        }
    }

    /// The owner has returned: what the old data channels have in flight is void.
    pub(super) fn take_control(&mut self, control: Control) {
        // Events of the old control connection come first.
        self.take_events(self.now());
        self.end_fabric(0);
        if let Some(segment) = &mut self.segments[0].side {
            drop_control(segment, &self.poller, &mut self.segments[0].watched);
            segment.control = Some(control);
            segment.was_left = false;
        }
        self.shared.registers().abandoned.remove(&self.handle);
    }
}
