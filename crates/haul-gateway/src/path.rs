//! Paths asked of the network when a session opens, and given back when it ends: by a program or a
//! service of the operator's, which knows what its network can do.
//!
//! What flows through: a session's thread makes a [`Circuit`] of each request. A thread of the
//! circuit asks for it to be set up, tells the session how it goes, waits until the circuit is
//! dropped, and asks for it to be taken down. The session does not wait for any of that.
//!
//! Map: `exec` a program · `http` a service.

mod exec;
mod http;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use haul_io::clock::Clock;
use haul_io::notify::{Signal, wait_readable};
use haul_xsp::wire::PathState;
use serde::Serialize;

use crate::config::{PathRule, PathSignalling};
use crate::house::House;
use crate::log::Level;

/// Circuits at a time, each with a thread.
const CIRCUITS_MAX: usize = 64;
/// Characters of what a back end says that are kept.
const WORDS_MAX: usize = 200;

/// What a back end is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Action {
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

    fn octets(&self, action: Action) -> Vec<u8> {
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

fn state_of(word: &str) -> Option<PathState> {
    let states = [
        PathState::Pending,
        PathState::Up,
        PathState::Failed,
        PathState::Expired,
    ];
    states.into_iter().find(|state| self::word(*state) == word)
}

/// How a request ends with a back end's saying this; not yet, where it is under way.
fn outcome(action: Action, state: PathState) -> Option<Outcome> {
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

/// Who is asked.
#[derive(Debug)]
pub(crate) enum Backend {
    Nobody,
    Program(exec::Program),
    Service(http::Service),
}

/// How a request to a back end ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is as it was wanted.
    Done,
    /// The back end says that it cannot be.
    Refused,
    /// The back end did not say how it went: something may be left in the network.
    Unknown,
}

/// Time and interruption of a request.
struct Patience<'a> {
    /// Readable when nobody wants it any more.
    end: &'a Signal,
    /// When the back end must have said how it went, ns.
    until_ns: u64,
}

impl<'a> Patience<'a> {
    fn new(end: &'a Signal, time: Duration) -> Self {
        let mut patience = Self {
            end,
            until_ns: u64::MAX,
        };
        patience.shorten(time);
        patience
    }

    /// So long and no longer.
    fn shorten(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns = self.until_ns.min(Clock::new().now_ns().saturating_add(ns));
    }

    fn left_ns(&self) -> u64 {
        self.until_ns.saturating_sub(Clock::new().now_ns())
    }

    fn is_over(&self) -> bool {
        self.left_ns() == 0 || wait_readable([self.end.as_fd()], Some(0)).unwrap_or(true)
    }

    /// Waits until `fd` is readable; false when it is all over before.
    fn wait_for(&self, fd: BorrowedFd<'_>) -> bool {
        while !self.is_over() {
            let fds = [fd, self.end.as_fd()];
            if wait_readable(fds, Some(self.left_ns())).unwrap_or(false) {
                return !self.is_over();
            }
        }
        false
    }

    /// Waits for so long; false when it is all over before.
    fn pause(&self, time_ns: u64) -> bool {
        let time_ns = time_ns.min(self.left_ns());
        // A signal may end it early, and that is no harm.
        let _ = wait_readable([self.end.as_fd()], Some(time_ns));
        !self.is_over()
    }
}

impl Backend {
    /// # Errors
    /// A line for the operator: no program, no URL, roots that cannot be read.
    pub(crate) fn new(config: &PathSignalling) -> Result<Self, String> {
        Ok(match config {
            PathSignalling::None => Self::Nobody,
            PathSignalling::Exec { program, timeout } => {
                Self::Program(exec::Program::new(program, Duration::from_secs(*timeout))?)
            }
            PathSignalling::Http {
                url,
                roots,
                timeout,
            } => Self::Service(http::Service::new(
                url,
                roots.as_deref(),
                Duration::from_secs(*timeout),
            )?),
        })
    }

    pub(crate) const fn is_nobody(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    fn ask(
        &self,
        request: &Request,
        action: Action,
        end: &Signal,
        tell: &mut dyn FnMut(PathState, &str),
    ) -> Outcome {
        match self {
            Self::Nobody => Outcome::Done,
            Self::Program(program) => program.ask(request, action, end, tell),
            Self::Service(service) => service.ask(request, action, end, tell),
        }
    }
}

/// A path that is wanted until this is dropped.
#[derive(Debug)]
pub(crate) struct Circuit(Arc<Signal>);

impl Drop for Circuit {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Circuit {
    /// Has a path set up. `tell` is told how it goes, on another thread.
    ///
    /// # Errors
    /// There are too many, or no thread or descriptor for another.
    pub(crate) fn ask(
        house: &Arc<House>,
        request: Request,
        tell: impl Fn(PathState, &str) + Send + 'static,
    ) -> Result<Self, String> {
        let slot = house
            .take_circuit(CIRCUITS_MAX)
            .ok_or("too many paths are asked for at a time")?;
        let text = |error: io::Error| error.to_string();
        let end = Arc::new(Signal::new().map_err(text)?);
        let never = Signal::new().map_err(text)?;
        let (backend, house) = (house.path(), Arc::clone(house));
        let own = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("haul-path".to_owned());
        let run = move || {
            let _slot = slot;
            let outcome = backend.ask(&request, Action::Create, &own, &mut |state, text| {
                tell(state, text)
            });
            while !wait_readable([own.as_fd()], None).unwrap_or(true) {}
            if outcome == Outcome::Refused {
                return tell(PathState::Expired, "");
            }
            let name = format!("path {} of session {}", request.request, request.session);
            let outcome = backend.ask(&request, Action::Delete, &never, &mut |state, text| {
                house.say(
                    Level::Info,
                    format!("taking down {name}: {} {text}", word(state)),
                );
                tell(state, text);
            });
            if outcome != Outcome::Done {
                house.say(Level::Error, format!("{name} may not have been taken down"));
            }
        };
        thread.spawn(run).map_err(text)?;
        Ok(Self(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn request() -> Request {
        let rules = vec!["vlan id=12".parse().unwrap()];
        Request::new("here", "0a".to_owned(), 3, rules)
    }

    #[test]
    fn what_others_say_is_one_short_line() {
        assert_eq!(words(" a\r\nb\u{7}c "), "a  b c");
        assert_eq!(words(&"x".repeat(1_000)).len(), WORDS_MAX);
    }
}
