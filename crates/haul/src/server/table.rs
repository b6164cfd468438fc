//! The sessions that run.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::fault::{Code, Fault};
use crate::link::Closer;
use crate::lock;
use crate::wire::TransferId;

/// How long a session waits for an older one of the same transfer to end.
const TAKEOVER: Duration = Duration::from_secs(10);

/// All of them, no more than may be.
pub(super) struct Table {
    max: usize,
    sessions: Mutex<HashMap<u64, Running>>,
    ended: Condvar,
}

struct Running {
    transfer: TransferId,
    closer: Option<Closer>,
}

/// A session's place in the table, given up when it is dropped.
pub(super) struct Ticket<'a> {
    table: &'a Table,
    number: u64,
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            sessions: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Takes a place. An older session of the same transfer, whose connection must be broken, has
    /// to leave first.
    pub(super) fn enter(&self, transfer: TransferId) -> Result<Ticket<'_>, Fault> {
        let sessions = lock(&self.sessions);
        for old in sessions
            .values()
            .filter(|running| running.transfer == transfer)
        {
            if let Some(closer) = &old.closer {
                closer.close();
            }
        }
        let waited = self
            .ended
            .wait_timeout_while(sessions, TAKEOVER, |sessions| {
                sessions
                    .values()
                    .any(|running| running.transfer == transfer)
            });
        let (mut sessions, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= self.max {
            return Err(Fault::new(
                Code::ServerBusy,
                format!(
                    "{} transfers are running, which is all it may",
                    sessions.len()
                ),
            )
            .hint("try again when one has ended"));
        }
        let number = (0..)
            .find(|number| !sessions.contains_key(number))
            .unwrap_or(0);
        sessions.insert(
            number,
            Running {
                transfer,
                closer: None,
            },
        );
        Ok(Ticket {
            table: self,
            number,
        })
    }
}

impl Ticket<'_> {
    /// Names the handle by which a newer session of the same transfer ends this one.
    pub(super) fn hold(&self, closer: Closer) {
        if let Some(running) = lock(&self.table.sessions).get_mut(&self.number) {
            running.closer = Some(closer);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.table.sessions).remove(&self.number);
        self.table.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_and_given_back() {
        let table = Table::new(1);
        let first = table.enter([1; 16]).unwrap();
        assert_eq!(
            table.enter([2; 16]).err().map(|fault| fault.code),
            Some(Code::ServerBusy)
        );
        drop(first);
        assert!(table.enter([2; 16]).is_ok());
    }

    #[test]
    fn a_transfer_that_comes_back_waits_for_its_older_session_to_leave() {
        let table = Table::new(2);
        let old = table.enter([1; 16]).unwrap();
        std::thread::scope(|scope| {
            let new = scope.spawn(|| table.enter([1; 16]).is_ok());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!new.is_finished());
            drop(old);
            assert!(new.join().unwrap());
        });
    }
}
