//! Sessions of others whose owner has left without a word, and which of them makes room for a new
//! one.
//!
//! An owner that lives is back soon: whatever ended its control connection can be reached. One that
//! has died, perhaps to be started again and to open sessions anew, never is, and its sessions
//! would hold their memory as long as they live.

use std::collections::VecDeque;

use haul_xsp::SECOND_NS;

use super::handle::SessionHandle;

/// Nobody makes room before, ns. An owner reads_until within ten seconds (`keepalive`) that its control
/// connection is gone, waits five at most before it tries again, and has ten for that.
const STAY_NS: u64 = 30 * SECOND_NS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// The first left first.
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
    /// The owner of this thread's session, which has so many octets of memory, has left.
    pub(crate) fn add(&mut self, handle: SessionHandle, bytes: u64, now_ns: u64) {
        self.remove(&handle);
        self.there.push_back(Left {
            since_ns: now_ns,
            handle,
            bytes,
        });
    }

    /// It is back, or the session is over.
    pub(crate) fn remove(&mut self, handle: &SessionHandle) {
        self.there.retain(|left| !left.handle.is(handle));
    }

    /// Whether this session may make room.
    pub(crate) fn may_go(&self, handle: &SessionHandle, now_ns: u64) -> bool {
        let mut ripe = self.there.iter().filter(|left| left.may_go(now_ns));
        ripe.any(|left| left.handle.is(handle))
    }

    /// Octets of memory of those that may make room.
    pub(crate) fn bytes(&self, now_ns: u64) -> u64 {
        let ripe = self.there.iter().filter(|left| left.may_go(now_ns));
        ripe.map(|left| left.bytes).sum()
    }

    /// Whose session is to make room, once.
    pub(crate) fn make_room(&mut self, now_ns: u64) -> Option<SessionHandle> {
        self.make_room_of(now_ns, |_| true)
    }

    /// The same among sessions of which `of` is true.
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
        // Its owner was back and has left again.
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
