//! Requests to a back end, and their outcomes.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::{Signal, wait_readable};
use haul_xsp::wire::PathState;
use serde::Serialize;

use crate::config::PathRule;

/// Characters kept of a back end's text.
const WORDS_MAX: usize = 200;

/// The action for a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Set the path up.
    Create,
    /// Take it down.
    Delete,
}

/// A request, as the back end reads it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Request {
    /// The version of this format.
    version: u32,
    action: Action,
    /// The name of this gateway.
    pub(crate) gateway: String,
    /// The session, in hexadecimal. With `request` it identifies the path.
    pub(crate) session: String,
    pub(crate) request: u32,
    /// The session's hops from the opener to the terminus, and this gateway's place among them.
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
        // Maps with text and numbers always serialize.
        serde_json::to_vec(&asked).unwrap_or_default()
    }
}

/// Returns the word for a state.
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

/// Returns the outcome of a request in this state; `None` while it is pending.
pub(super) fn outcome(action: Action, state: PathState) -> Option<Outcome> {
    match (action, state) {
        (_, PathState::Pending) => None,
        (Action::Delete, PathState::Expired) => Some(Outcome::Done),
        (Action::Create, PathState::Up) => Some(Outcome::Done),
        _ => Some(Outcome::Refused),
    }
}

/// Makes a peer's text fit for a log line.
pub(crate) fn words(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(WORDS_MAX).collect::<String>().trim().to_owned()
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The back end has done it.
    Done,
    /// The back end refuses.
    Refused,
    /// The back end did not answer: something may be left in the network.
    Unknown,
}

/// Deadline and cancellation of a request.
pub(super) struct Patience<'a> {
    /// Readable once the path is no longer wanted.
    end: &'a Signal,
    /// Deadline, ns.
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

    /// Shortens the deadline.
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

    /// Waits until `fd` is readable; false if the deadline passes or the request is cancelled
    /// first.
    pub(super) fn wait_for(&self, fd: BorrowedFd<'_>) -> bool {
        while !self.is_over() {
            let fds = [fd, self.end.as_fd()];
            if wait_readable(fds, Some(self.left_ns())).unwrap_or(false) {
                return !self.is_over();
            }
        }
        false
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
    fn texts_of_peers_are_one_short_line() {
        assert_eq!(words(" a\r\nb\u{7}c "), "a  b c");
        assert_eq!(words(&"x".repeat(1_000)).len(), WORDS_MAX);
    }
}
