//! What is asked of a back end, and how a request ends.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::{Signal, wait_readable};
use haul_xsp::wire::PathState;
use serde::Serialize;

use crate::config::PathRule;

/// Characters of what a back end says that are kept.
const WORDS_MAX: usize = 200;

/// What a back end is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Set the path up.
    Create,
    /// Say how it is.
    Query,
    /// Take it down.
    Delete,
}

/// What is asked of a back end, as it reads it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Request {
    /// The form of this.
    version: u32,
    action: Action,
    /// This gateway, by its name.
    pub(crate) gateway: String,
    /// The session, in hexadecimal: with `request` the name of the path.
    pub(crate) session: String,
    pub(crate) request: u32,
    /// The session's hops from the opener to the terminus, and how many of them are behind this
    /// gateway.
    pub(crate) hops: Vec<String>,
    pub(crate) position: usize,
    pub(crate) rules: Vec<PathRule>,
}

impl Request {
    pub(crate) fn new(gateway: &str, session: String, request: u32, rules: Vec<PathRule>) -> Self {
        Self {
            version: 1,
            action: Action::Create,
            gateway: gateway.to_owned(),
            session,
            request,
            hops: Vec::new(),
            position: 0,
            rules,
        }
    }

    pub(super) fn octets(&self, action: Action) -> Vec<u8> {
        let asked = Self {
            action,
            ..self.clone()
        };
        // Maps with keys of text and numbers: there is nothing that it could refuse.
        serde_json::to_vec(&asked).unwrap_or_default()
    }
}

/// How a path is, in the word that back ends use.
pub(crate) const fn word(state: PathState) -> &'static str {
    match state {
        PathState::Pending => "pending",
        PathState::Up => "up",
        PathState::Failed => "failed",
        PathState::Expired => "down",
        PathState::Other(_) => "unknown",
    }
}

pub(super) fn state_of(word: &str) -> Option<PathState> {
    let states = [
        PathState::Pending,
        PathState::Up,
        PathState::Failed,
        PathState::Expired,
    ];
    states.into_iter().find(|state| self::word(*state) == word)
}

/// How a request ends with a back end's saying this; not yet, where it is under way.
pub(super) fn outcome(action: Action, state: PathState) -> Option<Outcome> {
    match (action, state) {
        (_, PathState::Pending) => None,
        (Action::Delete, PathState::Expired) => Some(Outcome::Done),
        (Action::Create, PathState::Up) => Some(Outcome::Done),
        _ => Some(Outcome::Refused),
    }
}

/// What others say, fit for a line.
pub(crate) fn words(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(WORDS_MAX).collect::<String>().trim().to_owned()
}

/// How a request to a back end ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is as it was wanted.
    Done,
    /// The back end says that it cannot be.
    Refused,
    /// The back end did not say how it went: something may be left in the network.
    Unknown,
}

/// Time and interruption of a request.
pub(super) struct Patience<'a> {
    /// Readable when nobody wants it any more.
    end: &'a Signal,
    /// When the back end must have said how it went, ns.
    until_ns: u64,
}

impl<'a> Patience<'a> {
    pub(super) fn new(end: &'a Signal, time: Duration) -> Self {
        let mut patience = Self {
            end,
            until_ns: u64::MAX,
        };
        patience.shorten(time);
        patience
    }

    /// So long and no longer.
    pub(super) fn shorten(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns = self.until_ns.min(Clock::new().now_ns().saturating_add(ns));
    }

    pub(super) fn left_ns(&self) -> u64 {
        self.until_ns.saturating_sub(Clock::new().now_ns())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left_ns() == 0 || wait_readable([self.end.as_fd()], Some(0)).unwrap_or(true)
    }

    /// Waits until `fd` is readable; false when it is all over before.
    pub(super) fn wait_for(&self, fd: BorrowedFd<'_>) -> bool {
        while !self.is_over() {
            let fds = [fd, self.end.as_fd()];
            if wait_readable(fds, Some(self.left_ns())).unwrap_or(false) {
                return !self.is_over();
            }
        }
        false
    }

    /// Waits for so long; false when it is all over before.
    pub(super) fn pause(&self, time_ns: u64) -> bool {
        let time_ns = time_ns.min(self.left_ns());
        // A signal may end it early, and that is no harm.
        let _ = wait_readable([self.end.as_fd()], Some(time_ns));
        !self.is_over()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::path) fn request() -> Request {
        let rules = vec!["vlan id=12".parse().unwrap()];
        Request::new("here", "0a".to_owned(), 3, rules)
    }

    #[test]
    fn what_others_say_is_one_short_line() {
        assert_eq!(words(" a\r\nb\u{7}c "), "a  b c");
        assert_eq!(words(&"x".repeat(1_000)).len(), WORDS_MAX);
    }
}
