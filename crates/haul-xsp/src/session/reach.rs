//! How long this end waits for a peer: with connections that are asked for, with the last messages
//! of a control connection, with a suspended session.
//!
//! A peer that is gone and one behind an interrupted path are indistinguishable until the system
//! reports an error. The engine passes it on: [`Session::note_gone`] if the peer's host refuses or
//! is unreachable, [`Session::note_silent`] if it does not answer.

use super::entry::{ConnPhase, Loss};
use super::{Event, Session, State};
use crate::ConnId;
use crate::time::{SECOND_NS, Time};
use crate::wire::NackStatus;

/// Time for the peer's last messages after this end has stopped sending, ns: a round trip, and
/// scheduling delay.
const LAST_READ_NS: u64 = 2 * SECOND_NS;
/// Signs of life that are asked for while an answer may be due.
const PROBES: u64 = 3;

impl Session {
    // A suspended session.

    /// When a session is over that has no control connection since `loss`.
    pub(super) fn over_at(&self, loss: &Loss) -> Time {
        let at = loss.since.after(self.config.lifetime_ns);
        let gone = loss.gone.map(|gone| gone.after(self.config.hold_ns));
        gone.map_or(at, |gone| gone.min(at))
    }

    /// Returns when the session ends if its control connection does not return, also while an
    /// attempt to resume it is in flight; `None` if it is not lost.
    #[must_use]
    pub fn suspended_until(&self) -> Option<Time> {
        let loss = self.loss.filter(|_| !matches!(self.state, State::Closed))?;
        Some(self.over_at(&loss))
    }

    /// An attempt has shown that the peer is gone: its host refuses, cannot be reached, or has
    /// ended the control connection. If that lasts for the hold, the session is over. A session
    /// that outlives a gateway between its ends waits for its lifetime.
    pub fn note_gone(&mut self, now: Time) {
        if !self.outlives_peer() {
            self.set_gone(now);
        }
    }

    pub(super) fn set_gone(&mut self, now: Time) {
        if let Some(loss) = &mut self.loss {
            let since = if loss.was_silent { now } else { loss.since };
            loss.gone.get_or_insert(since);
            self.show_loss();
        }
    }

    /// Notes an attempt without an answer: the path may be interrupted.
    pub fn note_silent(&mut self) {
        if let Some(loss) = &mut self.loss {
            (loss.gone, loss.was_silent) = (None, true);
            self.show_loss();
        }
    }

    fn show_loss(&mut self) {
        if let (State::Suspended(_), Some(loss)) = (self.state, self.loss) {
            self.state = State::Suspended(self.over_at(&loss));
        }
    }

    /// Whether the peer is only a gateway between ends that both keep the session.
    fn outlives_peer(&self) -> bool {
        let index = usize::from(self.open.hop_index);
        let is_between = match self.is_opener {
            true => index + 1 < self.open.hops.len(),
            false => index > 0,
        };
        self.ack.end_to_end && is_between
    }

    /// As [`Self::handle_lost`], where the peer or its system has ended the control connection. For
    /// the connecting end this shows whether the peer is there; the other end only waits.
    pub fn handle_left(&mut self, now: Time) {
        let was_answer =
            matches!(self.state, State::Greeting | State::Opening) && self.is_resuming();
        self.handle_lost(now);
        if was_answer || !self.is_opener {
            self.note_gone(now);
        }
    }

    // Last messages.

    /// The data channels are lost, and the control connection goes with them: this end sends
    /// nothing more on it, and reads the peer's remaining messages until the peer ends the
    /// connection too or [`Self::handle_timeout`] gives it up. Both ends may do so at once: each
    /// waits for the end of the other's stream.
    pub fn finish_link(&mut self, now: Time) {
        if let Some(link) = &mut self.link {
            link.finish(now.after(LAST_READ_NS));
        }
    }

    /// Whether this end only reads the peer's remaining messages.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.finished_until.is_some())
    }

    // Connections that are asked for.

    /// Returns when a message of the peer last arrived on the present control connection.
    #[must_use]
    pub fn heard_at(&self) -> Option<Time> {
        self.link.as_ref().map(|link| link.last_in)
    }

    /// Requests that wait for an answer have been sent by now.
    pub(super) fn note_asked(&mut self, now: Time) {
        for (_, at) in self.asking.iter_mut().rev() {
            if at.is_some() {
                break;
            }
            *at = Some(now);
        }
    }

    /// When the first requested connection is given up, because no message of the peer has arrived
    /// since.
    pub(super) fn answer_due(&self) -> Option<Time> {
        let (_, at) = self.asking.front()?;
        let is_up = matches!(self.state, State::Open | State::Draining);
        let heard = self.heard_at().filter(|_| is_up);
        let since = heard.map_or(*at, |heard| at.map(|at| at.max(heard)));
        since.map(|since| since.after(self.config.answer_ns))
    }

    /// How often a sign of life is asked for.
    pub(super) fn probe_ns(&self, keepalive_ns: u64) -> u64 {
        match self.asking.is_empty() {
            true => keepalive_ns,
            false => keepalive_ns.min(self.config.answer_ns / PROBES),
        }
    }

    /// Refuses requested connections if no message of the peer has arrived since.
    pub(super) fn give_up_asking(&mut self, now: Time) {
        self.note_asked(now);
        loop {
            let first = self.asking.front().map(|(conn, _)| *conn);
            if first.is_some_and(|conn| !self.is_asked(conn)) {
                self.asking.pop_front();
            } else if self.has_answers() && self.answer_due().is_some_and(|due| now >= due) {
                self.give_up_first(NackStatus::TimedOut);
            } else {
                return;
            }
        }
    }

    /// Refuses all connections that wait for the peer's answer, which cannot arrive now. If it
    /// still arrives later, they are reset.
    pub fn refuse_asked(&mut self, status: NackStatus) {
        while !self.asking.is_empty() {
            self.give_up_first(status);
        }
    }

    fn give_up_first(&mut self, status: NackStatus) {
        let Some((conn, _)) = self.asking.pop_front() else {
            return;
        };
        let Some(known) = self.conns.get_mut(&conn) else {
            return;
        };
        if known.state == ConnPhase::Opening && !known.is_given_up {
            known.is_given_up = true;
            known.reset_later.get_or_insert_with(|| status.code());
            self.events.push_back(Event::ConnRefused {
                conn,
                status: status.code(),
            });
            self.withdraw(conn);
        }
    }

    fn is_asked(&self, conn: ConnId) -> bool {
        self.conns
            .get(&conn)
            .is_some_and(|known| known.state == ConnPhase::Opening && !known.is_given_up)
    }

    /// Whether connections wait for an answer of their own: those that are asked for along with the
    /// session wait for the session's.
    pub(super) const fn has_answers(&self) -> bool {
        !matches!(self.state, State::Greeting | State::Opening) || self.ack.resumable
    }
}
