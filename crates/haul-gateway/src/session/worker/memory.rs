//! The memory that a session may use: it begins with little, and has more when it uses more.

use haul_xsp::SECOND_NS;

use super::super::shape::Granted;
use super::Worker;
use crate::shared::Share;
use crate::status::Role;

/// How long a session that got no more memory waits before it asks again, ns.
const AGAIN_NS: u64 = SECOND_NS / 10;

impl Worker {
    /// Returns the bytes of memory that the session holds.
    pub(super) fn memory(&self) -> u64 {
        self.share.as_ref().map_or(0, Share::bytes)
    }

    fn is_end(&self) -> bool {
        self.part.role() != Role::Relay
    }

    /// Takes more memory where the session uses more than half of what it has. If none is left, the
    /// session continues with what it has.
    pub(super) fn fit_memory(&mut self) {
        let is_end = self.is_end();
        for side in 0..2 {
            let Some(session) = self.body.session(side) else {
                continue;
            };
            let granted = self.segments[side].granted;
            let used = Granted {
                ring: session.producer().wanted(),
                arena: session.consumer().occupancy().0,
            };
            let wanted = self.shape.wanted(is_end, granted, used);
            if wanted != granted {
                self.take_more(side, wanted);
            }
            let granted = self.segments[side].granted;
            if let Some(session) = self.body.session(side)
                && granted != Granted::default()
            {
                session.producer().set_most(granted.ring);
                session.consumer().set_most(granted.arena);
            }
        }
    }

    fn take_more(&mut self, side: usize, wanted: Granted) {
        let (now, segment) = (self.shared.now(), &mut self.segments[side]);
        if segment.more_at.is_some_and(|at| now < at) {
            return;
        }
        segment.more_at = Some(now.after(AGAIN_NS));
        let more = wanted.bytes() - segment.granted.bytes();
        let Some(share) = &mut self.share else {
            return;
        };
        if !self.shared.may_grow(&self.handle, more) {
            let text =
                "an unauthenticated source has three quarters of memory: its sessions get no more";
            return self.shared.log_shortage(text);
        }
        if share.grow(more) {
            (segment.granted, segment.more_at) = (wanted, None);
            return;
        }
        self.shared.note_shrunk(&self.handle, more);
        let mib = share.bytes() >> 20;
        let text = format!(
            "memory is used up: sessions get no more, one keeps to {mib} MiB (see `memory`)"
        );
        self.shared.log_shortage(text);
    }

    /// Returns memory when the session carries no connection and nothing is in its memory.
    pub(super) fn return_memory(&mut self) {
        let first = self.shape.first(self.is_end());
        for side in 0..2 {
            let granted = self.segments[side].granted;
            let Some(session) = self.body.session(side) else {
                continue;
            };
            let is_empty = session.conns() == 0
                && session.producer().occupancy().0 == 0
                && session.producer().unacked() == 0
                && session.consumer().occupancy().0 == 0;
            if !is_empty || granted.bytes() <= first.bytes() {
                continue;
            }
            let returned = granted.bytes().saturating_sub(first.bytes());
            self.segments[side].granted = first;
            if let Some(segment) = &self.segments[side].side {
                segment.discard();
            }
            if let Some(share) = &mut self.share {
                share.shrink(returned);
                self.shared.note_shrunk(&self.handle, returned);
            }
        }
    }
}
