//! Messages of one datagram that were delivered: none is delivered again while its source, and its
//! number, are remembered.

use super::sources::{Known, Sources};
use super::wire::MsgId;
use crate::address::Source;

/// Numbers that are remembered of a source.
const WINDOW: u32 = u64::BITS;

/// The sequence numbers received from a source: the window of RFC 4303 §3.4.3, except that older
/// numbers pass. A late datagram is accepted, so one that is both late and duplicated may be
/// delivered twice.
#[derive(Debug, Default)]
struct Window {
    newest: MsgId,
    /// Bit n: number `newest - n` was received. Zero: none was.
    bits: u64,
}

impl Known for Window {
    fn is_idle(&self) -> bool {
        true
    }
}

impl Window {
    fn has(&self, id: MsgId) -> bool {
        let bit = u32::try_from(self.newest.past(id)).ok();
        bit.filter(|bit| *bit < WINDOW)
            .is_some_and(|bit| self.bits & 1 << bit != 0)
    }

    fn note(&mut self, id: MsgId) {
        let ahead = id.past(self.newest);
        if self.bits == 0 || ahead > 0 {
            let step = u32::try_from(ahead).unwrap_or(WINDOW);
            self.bits = self.bits.checked_shl(step).unwrap_or(0) | 1;
            self.newest = id;
        } else if let Some(bit) = 1_u64.checked_shl(ahead.unsigned_abs()) {
            self.bits |= bit;
        }
    }
}

/// See the module. Without memory until something is noted.
#[derive(Debug)]
pub(super) struct Delivered(Sources<Window>);

impl Delivered {
    /// State of at most so many sources; the least recently active one is evicted.
    pub(super) fn new(sources: usize, key: [u8; 16]) -> Self {
        Self(Sources::new(sources, key))
    }

    /// Whether this message of this source was noted.
    pub(super) fn has(&mut self, from: &Source, id: MsgId) -> bool {
        self.0.find(from).is_some_and(|at| self.0[at].has(id))
    }

    /// The message is delivered.
    pub(super) fn note(&mut self, from: &Source, id: MsgId) {
        let at = self.0.enter(from);
        self.0[at].note(id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_was_heard_is_known_as_long_as_it_is_in_the_window() {
        for start in [1, u32::MAX - 100] {
            let mut window = Window::default();
            let mut heard = BTreeSet::new();
            let mut state = 1_u32;
            let mut newest = 0;
            for _ in 0..10_000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let n = (newest + (state >> 20) % 90).saturating_sub(80);
                let id = MsgId(start).plus(n);
                let in_window = n + WINDOW > newest;
                assert_eq!(
                    window.has(id),
                    in_window && heard.contains(&n),
                    "{n} of {newest}"
                );
                window.note(id);
                heard.insert(n);
                newest = newest.max(n);
            }
            assert!(newest > 1_000);
        }
    }

    #[test]
    fn a_leap_forgets_and_a_late_one_is_not_taken_for_new() {
        let mut window = Window::default();
        window.note(MsgId(5));
        assert!(window.has(MsgId(5)) && !window.has(MsgId(4)));
        window.note(MsgId(5).plus(1 << 30));
        assert!(!window.has(MsgId(5)), "older than the window");
        window.note(MsgId(5));
        assert!(
            window.has(MsgId(5).plus(1 << 30)),
            "it did not become the newest"
        );
    }
}
