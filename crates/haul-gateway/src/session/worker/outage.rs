//! Connections while the next hop is lost or silent: those that wait for it fail within three
//! seconds, or at once if the hop is known to be gone.

use haul_xsp::wire::NackStatus;
use haul_xsp::{SECOND_NS, State, Time};

use super::super::dial::ANSWER_NS;
use super::super::dispatch::dispatch;
use super::Worker;
use super::part::Waiting;
use crate::status::Role;

/// Between two attempts at a lost hop that new connections ask for, ns.
const HURRY_NS: u64 = SECOND_NS / 10;

impl Worker {
    /// When the first of the connections that wait for the session is refused. While it is opened
    /// for the first time, each sign of life of the next hop prolongs that.
    pub(super) fn calls_due(&mut self) -> Option<Time> {
        let since = self.part.opener()?.calls.front()?.since;
        let session = self.body.session(0);
        let opening = session.filter(|session| !session.agreed().resumable);
        let heard = opening.and_then(|session| session.heard_at());
        let since = heard.map_or(since, |heard| since.max(heard));
        Some(since.after(ANSWER_NS))
    }

    /// Refuses the connections that have waited for long enough.
    pub(super) fn give_up_calls(&mut self, now: Time) {
        while self.calls_due().is_some_and(|due| due <= now)
            && let Some(opener) = self.part.opener_mut()
            && let Some(Waiting { call, .. }) = opener.calls.pop_front()
        {
            self.turn_away(call, NackStatus::TimedOut);
        }
    }

    /// A connection waits for a suspended session: retries soon, to find out whether the next hop
    /// is up.
    pub(super) fn hurry(&mut self, now: Time) {
        let dial = &mut self.segments[0].dial;
        if let Some(at) = dial.again_at {
            let soon = dial.failed_at.map_or(now, |at| at.after(HURRY_NS).max(now));
            dial.again_at = Some(at.min(soon));
        }
    }

    /// The next hop cannot be reached for now, or refuses for now what is asked for again.
    pub(super) fn note_failure(&mut self, side: usize, status: NackStatus) {
        let now = self.now();
        self.segments[side].dial.failed_at = Some(now);
        self.segments[side].dial.is_gone = status == NackStatus::CannotConnect;
        let may_elsewhere = self
            .part
            .opener()
            .is_some_and(|opener| opener.ways.end_to_end && opener.ways.has_alternative());
        let Some(session) = self.body.session(side) else {
            return;
        };
        match status {
            NackStatus::CannotConnect => session.note_gone(now),
            NackStatus::TimedOut => session.note_silent(),
            _ => {}
        }
        // If there was no answer, another way is being tried, or the hop is up, they wait for their
        // timeout.
        let is_known = matches!(status, NackStatus::CannotConnect | NackStatus::NoRoute);
        if is_known && !may_elsewhere {
            session.refuse_asked(status);
            for call in self.part.take_calls() {
                self.turn_away(call, status);
            }
        }
    }

    /// The next hop does not know the session any more, which has ended with all its connections.
    /// Those that only waited for it get another.
    pub(super) fn start_over(&mut self) {
        let state = self.body.session(0).map(|session| session.state());
        if self.part.role() != Role::Opener || state != Some(State::Closed) {
            return;
        }
        let calls = self.part.take_calls();
        if !calls.is_empty() {
            self.shared.registers().retire(&self.handle);
        }
        for call in calls {
            dispatch(&self.shared, call);
        }
    }
}
