//! Inbound sessions whose owner has disappeared without closing them, and which of them is evicted
//! for a new one.
//!
//! A live owner reconnects soon. A crashed one never resumes its sessions, which would hold their
//! memory for ever.

use std::collections::VecDeque;

use haul_xsp::SECOND_NS;

use super::handle::SessionHandle;

/// Grace period before eviction, ns. An owner notices within ten seconds (`keepalive`) that its
/// control connection is lost, waits at most five before it retries, and has ten for that.
const STAY_NS: u64 = 30 * SECOND_NS;

/// Abandoned sessions. See the module.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// In the order in which their owners disappeared.
    there: VecDeque<Left>,
}

#[derive(Debug)]
struct Left {
    since_ns: u64,
    handle: SessionHandle,
    bytes: u64,
}

impl Left {
    const fn may_go(&self, now_ns: u64) -> bool {
        now_ns >= self.since_ns.saturating_add(STAY_NS)
    }
}

impl Abandoned {
    /// The owner of this session, which holds `bytes` of memory, has disappeared.
    pub(crate) fn add(&mut self, handle: SessionHandle, bytes: u64, now_ns: u64) {
        self.remove(&handle);
        self.there.push_back(Left {
            since_ns: now_ns,
            handle,
            bytes,
        });
    }

    /// The owner is back, or the session has ended.
    pub(crate) fn remove(&mut self, handle: &SessionHandle) {
        self.there.retain(|left| !left.handle.is(handle));
    }

    /// Whether this session may be evicted.
    pub(crate) fn may_go(&self, handle: &SessionHandle, now_ns: u64) -> bool {
        let mut ripe = self.there.iter().filter(|left| left.may_go(now_ns));
        ripe.any(|left| left.handle.is(handle))
    }

    /// Returns the memory of all sessions that may be evicted, bytes.
    pub(crate) fn bytes(&self, now_ns: u64) -> u64 {
        let ripe = self.there.iter().filter(|left| left.may_go(now_ns));
        ripe.map(|left| left.bytes).sum()
    }

    /// Returns the next session to evict, once.
    pub(crate) fn make_room(&mut self, now_ns: u64) -> Option<SessionHandle> {
        self.make_room_of(now_ns, |_| true)
    }

    /// Returns the next session to evict among those for which `of` is true.
    pub(crate) fn make_room_of(
        &mut self,
        now_ns: u64,
        of: impl Fn(&SessionHandle) -> bool,
    ) -> Option<SessionHandle> {
        let may_go = |left: &Left| left.may_go(now_ns) && of(&left.handle);
        let at = self.there.iter().position(may_go)?;
        self.there.remove(at).map(|left| left.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_was_left_makes_room_once_unless_its_owner_is_back() {
        let [first, second, third] = [(); 3].map(|()| SessionHandle::detached());
        let mut abandoned = Abandoned::default();
        for (at, handle) in (0..).zip([&first, &second, &third]) {
            abandoned.add(handle.clone(), 5, at);
        }
        assert!(abandoned.make_room(STAY_NS - 1).is_none());
        abandoned.remove(&first);
        // Its owner was back, and has disappeared again.
        abandoned.add(first.clone(), 5, 10);
        assert!(abandoned.make_room(STAY_NS).is_none());
        assert_eq!(abandoned.bytes(STAY_NS), 0);
        assert_eq!(abandoned.bytes(STAY_NS + 2), 10);
        assert!(abandoned.may_go(&second, STAY_NS + 2) && !abandoned.may_go(&first, STAY_NS + 2));
        let none = |_: &SessionHandle| false;
        assert!(abandoned.make_room_of(STAY_NS + 2, none).is_none());
        for expected in [&second, &third] {
            assert!(abandoned.make_room(STAY_NS + 2).unwrap().is(expected));
        }
        assert!(abandoned.make_room(STAY_NS + 2).is_none());
        assert!(abandoned.make_room(STAY_NS + 10).unwrap().is(&first));
        assert!(abandoned.make_room(u64::MAX).is_none());
    }
}
