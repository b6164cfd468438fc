//! Control connections of others that have not said what they want, and which of them makes room
//! for a new one.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::net::IpAddr;

use haul_io::address::source;
use haul_xsp::SECOND_NS;

use crate::house::Mailbox;

/// All that there may be, those included that are on their way out.
pub(crate) const GUESTS_MAX: usize = 64;
/// Of them those that have been asked to leave and have not left yet.
const LEAVING_MAX: usize = 16;
/// Those that stay.
const STAYING_MAX: usize = GUESTS_MAX - LEAVING_MAX;
/// Nobody is asked to leave before: whoever means it says something as soon as it is connected, and
/// is heard by then.
const STAY_NS: u64 = SECOND_NS / 50;

/// What a control connection has shown of its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Nothing.
    Silent,
    /// It has said something that makes sense so far.
    Heard,
    /// Who it is.
    Proven,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    mailbox: Mailbox,
    from: IpAddr,
    since_ns: u64,
    standing: Standing,
    is_leaving: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// The oldest first. At most `STAYING_MAX` that stay and `LEAVING_MAX` that leave, when each
    /// has been made room for.
    there: VecDeque<Guest>,
}

impl Guests {
    pub(crate) fn len(&self) -> usize {
        self.there.len()
    }

    /// A control connection has come, whose thread has this number.
    pub(crate) fn admit(&mut self, number: u64, mailbox: Mailbox, from: IpAddr, now_ns: u64) {
        self.there.push_back(Guest {
            number,
            mailbox,
            from: source(from),
            since_ns: now_ns,
            standing: Standing::Silent,
            is_leaving: false,
        });
    }

    /// It has shown so much.
    pub(crate) fn raise(&mut self, number: u64, standing: Standing) {
        let guest = self.there.iter_mut().find(|guest| guest.number == number);
        if let Some(guest) = guest {
            guest.standing = guest.standing.max(standing);
        }
    }

    /// It has said what it wants, or is gone.
    pub(crate) fn remove(&mut self, number: u64) {
        self.there.retain(|guest| guest.number != number);
    }

    /// Whether one more may come, if need be in place of another.
    pub(crate) fn has_room(&self, now_ns: u64) -> bool {
        let staying = self.staying().count();
        let leaving = self.there.len() - staying;
        staying < STAYING_MAX || leaving < LEAVING_MAX && self.next_to_leave(now_ns).is_some()
    }

    /// Who is to leave for one that has come, of those that have not shown who they are: one of the
    /// address that has most of them, and of those the oldest that has said nothing, else the
    /// oldest. Nobody, where there is room without.
    pub(crate) fn make_room(&mut self, now_ns: u64) -> Option<Mailbox> {
        if self.staying().count() < STAYING_MAX {
            return None;
        }
        let number = self.next_to_leave(now_ns)?.number;
        let guest = self.there.iter_mut().find(|guest| guest.number == number)?;
        guest.is_leaving = true;
        Some(guest.mailbox.clone())
    }

    fn staying(&self) -> impl Iterator<Item = &Guest> {
        self.there.iter().filter(|guest| !guest.is_leaving)
    }

    fn next_to_leave(&self, now_ns: u64) -> Option<&Guest> {
        let unproven = || {
            let staying = self.staying();
            staying.filter(|guest| guest.standing < Standing::Proven)
        };
        let neighbours =
            |guest: &Guest| unproven().filter(|other| other.from == guest.from).count();
        // Of equals it is the first, the oldest.
        let next = unproven().min_by_key(|guest| (Reverse(neighbours(guest)), guest.standing))?;
        let is_old = now_ns >= next.since_ns.saturating_add(STAY_NS);
        is_old.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// As many as stay, the first of them number 0, all of them come at `0` ns.
    fn full() -> (Guests, Vec<Mailbox>) {
        let mut guests = Guests::default();
        let mailboxes: Vec<Mailbox> = (0..STAYING_MAX).map(|_| Mailbox::of_nobody()).collect();
        for (number, mailbox) in (0..).zip(&mailboxes) {
            assert!(guests.has_room(0) && guests.make_room(0).is_none());
            guests.admit(number, mailbox.clone(), HERE, 0);
        }
        (guests, mailboxes)
    }

    #[test]
    fn the_oldest_that_is_silent_makes_room_and_then_the_next() {
        let (mut guests, mailboxes) = full();
        guests.raise(0, Standing::Heard);
        guests.raise(1, Standing::Proven);
        for expected in [2, 3] {
            assert!(guests.has_room(STAY_NS));
            let leaver = guests.make_room(STAY_NS).unwrap();
            assert!(leaver.is(&mailboxes[expected]));
            guests.admit(100 + expected as u64, leaver, HERE, STAY_NS);
        }
    }

    #[test]
    fn one_that_has_said_something_makes_room_only_where_nobody_is_silent() {
        let (mut guests, mailboxes) = full();
        for number in 0..STAYING_MAX as u64 {
            guests.raise(number, Standing::Heard);
        }
        guests.raise(0, Standing::Proven);
        let leaver = guests.make_room(STAY_NS).unwrap();
        assert!(leaver.is(&mailboxes[1]));
    }

    #[test]
    fn who_comes_from_the_address_with_most_places_makes_room_also_where_others_have_said_less() {
        let (mut guests, mailboxes) = full();
        for number in 0..STAYING_MAX as u64 {
            guests.raise(number, Standing::Heard);
        }
        guests.remove(0);
        let there = "2001:db8::1".parse().unwrap();
        guests.admit(100, mailboxes[0].clone(), there, 0);
        assert!(guests.make_room(STAY_NS).unwrap().is(&mailboxes[1]));
    }

    #[test]
    fn one_that_has_shown_who_it_is_never_makes_room() {
        let (mut guests, _mailboxes) = full();
        for number in 0..STAYING_MAX as u64 {
            guests.raise(number, Standing::Proven);
            // What it says after that does not lower it.
            guests.raise(number, Standing::Heard);
        }
        assert!(!guests.has_room(u64::MAX));
        assert!(guests.make_room(u64::MAX).is_none());
        guests.remove(7);
        assert!(guests.has_room(STAY_NS));
    }

    #[test]
    fn one_that_has_just_come_has_time_to_say_something() {
        let (mut guests, _mailboxes) = full();
        assert!(!guests.has_room(STAY_NS - 1));
        assert!(guests.make_room(STAY_NS - 1).is_none());
        assert!(guests.has_room(STAY_NS));
    }

    #[test]
    fn there_are_never_more_than_the_limit_with_those_that_leave() {
        let (mut guests, mailboxes) = full();
        let mut next = 1_000;
        while guests.has_room(STAY_NS) {
            let leaver = guests.make_room(STAY_NS);
            assert!(leaver.is_some());
            guests.admit(next, mailboxes[0].clone(), HERE, 0);
            next += 1;
        }
        assert_eq!(guests.len(), GUESTS_MAX);
        // Once one of them has left there is room again.
        guests.remove(0);
        assert!(guests.has_room(STAY_NS));
    }
}
