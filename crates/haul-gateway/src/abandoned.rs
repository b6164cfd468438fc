//! Sessions of others whose owner has left without a word, and which of them makes room for a new one.
//!
//! An owner that lives is back soon: whatever ended its control connection can be reached. One that has died, perhaps to be started
//! again and to open sessions anew, never is, and its sessions would hold their memory as long as they live.

use std::collections::VecDeque;

use haul_xsp::SECOND_NS;

use crate::house::Mailbox;

/// Nobody makes room before, ns. An owner hears within ten seconds that its control connection is gone, waits five at most before it
/// tries again, and has ten for that.
const STAY_NS: u64 = 30 * SECOND_NS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// The first left first, with the time, ns.
    there: VecDeque<(u64, Mailbox)>,
}

impl Abandoned {
    /// The owner of this thread's session has left.
    pub(crate) fn add(&mut self, mailbox: Mailbox, now_ns: u64) {
        self.remove(&mailbox);
        self.there.push_back((now_ns, mailbox));
    }

    /// It is back, or the session is over.
    pub(crate) fn remove(&mut self, mailbox: &Mailbox) {
        self.there.retain(|(_, other)| !other.is(mailbox));
    }

    /// Whose session is to make room, once.
    pub(crate) fn make_room(&mut self, now_ns: u64) -> Option<Mailbox> {
        let (since_ns, _) = self.there.front()?;
        if now_ns < since_ns.saturating_add(STAY_NS) {
            return None;
        }
        self.there.pop_front().map(|(_, mailbox)| mailbox)
    }
}

#[cfg(test)]
mod tests {
    use haul_io::poller::Poller;

    use super::*;

    #[test]
    fn the_first_that_was_left_makes_room_once_unless_its_owner_is_back() {
        let mailbox = || Mailbox::new(Poller::new().unwrap().waker()).0;
        let [first, second, third] = [(); 3].map(|()| mailbox());
        let mut abandoned = Abandoned::default();
        for (at, mailbox) in (0..).zip([&first, &second, &third]) {
            abandoned.add(mailbox.clone(), at);
        }
        assert!(abandoned.make_room(STAY_NS - 1).is_none());
        abandoned.remove(&first);
        // Its owner was back and has left again.
        abandoned.add(first.clone(), 10);
        assert!(abandoned.make_room(STAY_NS).is_none());
        for expected in [&second, &third] {
            assert!(abandoned.make_room(STAY_NS + 2).unwrap().is(expected));
        }
        assert!(abandoned.make_room(STAY_NS + 2).is_none());
        assert!(abandoned.make_room(STAY_NS + 10).unwrap().is(&first));
        assert!(abandoned.make_room(u64::MAX).is_none());
    }
}
