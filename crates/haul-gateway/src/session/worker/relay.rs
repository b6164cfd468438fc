//! A relayed session: its next hop, and the notices to its owner.

use haul_xsp::wire::{NackStatus, SessOpen};
use haul_xsp::{Admission, SessionId, State, Time};

use super::Worker;
use super::part::Part;
use super::segments::drop_control;
use super::state::Dial;
use super::ways::{PATIENCE_NS, TRIES};
use crate::host::Shown;
use crate::log::Level;

impl Worker {
    /// Opens the session at the next hop, which `open` names.
    pub(super) fn go_to(&mut self, id: SessionId, open: SessOpen) {
        if let Part::Relay(relay) = &mut self.part {
            relay.next.relayed = Some((id, open.clone()));
            relay.next.wanted = Some((id, open));
        }
        self.dial(1);
    }

    /// Leaves out an optional next hop that cannot be reached. Returns whether the session goes on
    /// without it.
    pub(super) fn leave_out(&mut self, why: &str) -> bool {
        let near = self.body.session(0).map(|session| session.state());
        let relayed = match &self.part {
            Part::Relay(relay) => relay.next.relayed.clone(),
            _ => None,
        };
        // If the session's owner is gone, no request waits for it.
        let Some((id, open)) = relayed.filter(|_| near == Some(State::Opening)) else {
            return false;
        };
        let index = open.hop_index;
        let hop = open.hops.get(usize::from(index));
        let Some(hop) = hop.filter(|hop| hop.flags.optional && !hop.flags.last) else {
            return false;
        };
        let Admission::Next(next) = self.shared.directory().next_hop(&open.hops, index) else {
            return false;
        };
        let Some(to) = open.hops.get(usize::from(next)) else {
            return false;
        };
        let (left_out, to_words) = (Shown(&hop.endpoint), Shown(&to.endpoint));
        let text = format!("{left_out} is left out: {why}; going on to {to_words}");
        self.shared.log(Level::Warning, text);
        if let Some(segment) = &mut self.segments[1].side {
            drop_control(segment, &self.poller, &mut self.segments[1].watched);
        }
        self.segments[1].dial = Dial::to(to);
        let open = SessOpen {
            hop_index: next,
            ..open
        };
        self.go_to(id, open);
        true
    }

    /// Notifies the owner that the next hop is lost: it may know another way.
    pub(super) fn notify_owner(&mut self, now: Time, side: usize) {
        let Part::Relay(relay) = &mut self.part else {
            return;
        };
        let next = &mut relay.next;
        let since = *next.since.get_or_insert(now);
        if since == now || side != 1 || next.has_notified {
            return;
        }
        next.tries += 1;
        if next.tries < TRIES && now.since(since) < PATIENCE_NS {
            return;
        }
        let text = format!("{}: {}", self.segments[1].dial.hop, next.why);
        if let Some(near) = self.body.session(0)
            && near.agreed().end_to_end
        {
            // If the owner is not connected, the next failure notifies it.
            let notified = near.notice(NackStatus::CannotConnect, &text);
            next.has_notified = notified.is_ok();
        }
    }
}
