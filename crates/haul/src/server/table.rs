//! The running sessions, and those that wait for an older one of the same transfer to end.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_control::frame::TaskId;

use crate::cancel::Cancel;
use crate::fault::{Code, Fault};
use crate::lock;

/// How long a session waits for an older one of the same transfer to end.
const TAKEOVER: Duration = Duration::from_secs(10);
/// How often a waiting session checks whether its client is still connected.
const LOOK: Duration = Duration::from_millis(250);
/// If all places are taken, a session without a request for this long is ended.
const IDLE: Duration = Duration::from_secs(1);

/// All sessions: at most `max` run, and for each of them one more of the same transfer may wait.
pub(super) struct Table {
    max: usize,
    places: Mutex<Places>,
    changed: Condvar,
}

#[derive(Default)]
struct Places {
    running: HashMap<u64, Running>,
    /// The newest session of each transfer that waits for an older one.
    waiting: HashMap<TaskId, u64>,
    entered: u64,
}

struct Running {
    transfer: TaskId,
    cancel: Option<Cancel>,
    since: Instant,
    has_asked: bool,
}

/// A session's place in the table; dropping it gives the place up.
pub(super) struct SessionSlot<'a> {
    table: &'a Table,
    number: u64,
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            places: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns how many sessions run.
    pub(super) fn running(&self) -> usize {
        lock(&self.places).running.len()
    }

    /// Returns how many sessions may run.
    pub(super) const fn max(&self) -> usize {
        self.max
    }

    /// Takes a place. First ends an older session of the same transfer, whose connection must be
    /// broken, and blocks until it has ended. The wait ends early if a newer session of the
    /// transfer arrives or the client `has_left`.
    pub(super) fn enter(
        &self,
        transfer: TaskId,
        has_left: impl Fn() -> bool,
    ) -> Result<SessionSlot<'_>, Fault> {
        let deadline = Instant::now() + TAKEOVER;
        let mut places = lock(&self.places);
        places.entered += 1;
        let number = places.entered;
        if places.close_older(transfer) && places.waiting.insert(transfer, number).is_some() {
            self.changed.notify_all();
        }
        while places.close_older(transfer) && Instant::now() < deadline {
            if places.waiting.get(&transfer) != Some(&number) {
                return Err(Fault::new(
                    Code::ServerBusy,
                    "a newer connection of the same transfer has replaced this one",
                ));
            }
            if has_left() {
                places.waiting.remove(&transfer);
                return Err(Fault::new(Code::PeerGone, "the client has disconnected"));
            }
            let waited = self.changed.wait_timeout(places, LOOK);
            (places, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if places.waiting.get(&transfer) == Some(&number) {
            places.waiting.remove(&transfer);
        }
        places.make_room(self.max);
        let busy = places.running.len();
        if busy >= self.max {
            let text = format!("{busy} transfers are running, which is all it may");
            return Err(Fault::new(Code::ServerBusy, text).hint("try again when one has ended"));
        }
        let running = Running {
            transfer,
            cancel: None,
            since: Instant::now(),
            has_asked: false,
        };
        places.running.insert(number, running);
        Ok(SessionSlot {
            table: self,
            number,
        })
    }
}

impl Places {
    /// Cancels older sessions of a transfer; returns whether there are any.
    fn close_older(&self, transfer: TaskId) -> bool {
        let mut any = false;
        for running in self.running.values() {
            if running.transfer == transfer {
                running.close();
                any = true;
            }
        }
        any
    }

    /// If all places are taken, ends the oldest session without a request: a client sends its
    /// request as soon as it is connected.
    fn make_room(&mut self, max: usize) {
        if self.running.len() < max {
            return;
        }
        let now = Instant::now();
        let idle = self
            .running
            .iter()
            .filter(|(_, running)| !running.has_asked && now.duration_since(running.since) >= IDLE);
        let oldest = idle.min_by_key(|(_, running)| running.since);
        if let Some((&number, running)) = oldest {
            running.close();
            self.running.remove(&number);
        }
    }
}

impl Running {
    fn close(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }
}

impl SessionSlot<'_> {
    /// Sets the handle by which a newer session of the same transfer ends this one.
    pub(super) fn hold(&self, cancel: Cancel) {
        if let Some(running) = lock(&self.table.places).running.get_mut(&self.number) {
            running.cancel = Some(cancel);
        }
    }

    /// Notes that the request has arrived: from now on no session of another transfer takes this
    /// place.
    pub(super) fn note_asked(&self) {
        if let Some(running) = lock(&self.table.places).running.get_mut(&self.number) {
            running.has_asked = true;
        }
    }
}

impl Drop for SessionSlot<'_> {
    fn drop(&mut self) {
        lock(&self.table.places).running.remove(&self.number);
        self.table.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(entered: Result<SessionSlot<'_>, Fault>) -> Option<Code> {
        entered.err().map(|fault| fault.code)
    }

    #[test]
    fn places_are_limited_and_given_back() {
        let table = Table::new(1);
        let first = table.enter([1; 16], || false).unwrap();
        assert_eq!(code(table.enter([2; 16], || false)), Some(Code::ServerBusy));
        drop(first);
        assert!(table.enter([2; 16], || false).is_ok());
    }

    #[test]
    fn a_transfer_that_comes_back_waits_for_its_older_session_to_leave() {
        let table = Table::new(2);
        let old = table.enter([1; 16], || false).unwrap();
        std::thread::scope(|scope| {
            let new = scope.spawn(|| table.enter([1; 16], || false).is_ok());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!new.is_finished());
            drop(old);
            assert!(new.join().unwrap());
        });
    }

    #[test]
    fn of_many_that_wait_for_one_transfer_only_the_newest_does() {
        let table = Table::new(2);
        let old = table.enter([1; 16], || false).unwrap();
        std::thread::scope(|scope| {
            let enter = || table.enter([1; 16], || false).map(|_| ());
            let mut waits: Vec<_> = Vec::new();
            for _ in 0..20 {
                waits.push(scope.spawn(enter));
                std::thread::sleep(Duration::from_millis(5));
            }
            let last = waits.pop().unwrap();
            for wait in waits {
                let fault = wait.join().unwrap().unwrap_err();
                assert_eq!(fault.code, Code::ServerBusy, "{fault}");
            }
            assert!(!last.is_finished());
            drop(old);
            assert!(last.join().unwrap().is_ok());
        });
        assert!(lock(&table.places).waiting.is_empty());
    }

    #[test]
    fn a_wait_ends_when_the_client_disconnects() {
        let table = Table::new(2);
        let _old = table.enter([1; 16], || false).unwrap();
        let begun = Instant::now();
        assert_eq!(code(table.enter([1; 16], || true)), Some(Code::PeerGone));
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(lock(&table.places).waiting.is_empty());
    }

    #[test]
    fn a_session_without_a_request_makes_room_and_one_with_a_request_does_not() {
        let table = Table::new(2);
        let asked = table.enter([1; 16], || false).unwrap();
        asked.note_asked();
        let _silent = table.enter([2; 16], || false).unwrap();
        assert_eq!(code(table.enter([3; 16], || false)), Some(Code::ServerBusy));
        std::thread::sleep(IDLE);
        let third = table.enter([3; 16], || false).unwrap();
        third.note_asked();
        assert_eq!(code(table.enter([4; 16], || false)), Some(Code::ServerBusy));
    }
}
