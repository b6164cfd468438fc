//! What can go wrong, by who is to blame.

use std::fmt;
use std::io;

use crate::attributes::QpState;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
#[expect(
    clippy::error_impl_error,
    reason = "named with its crate: haul_verbs::Error"
)]
#[non_exhaustive]
pub enum Error {
    /// The provider, or the device behind it, does not have this.
    #[error("{0} is not supported here")]
    Unsupported(&'static str),
    /// An argument is invalid, or does not fit the others (`EINVAL`).
    #[error("{0}")]
    Invalid(&'static str),
    /// A number is beyond what the device has or can do (`EINVAL`).
    #[error("{field} is {value}, and must be {} {limit}", bound(*.value, *.limit))]
    Limit {
        /// The field, as the structure names it.
        field: &'static str,
        /// What it is.
        value: u64,
        /// The most, or the least, that it can be.
        limit: u64,
    },
    /// The queue is full: poll completions first (`ENOMEM` of `ibv_post_send`).
    #[error("the {0} is full")]
    Full(&'static str),
    /// The state does not allow it: for example, sending before the connection is established.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// A limit of the device, of the process or of the machine is reached.
    #[error("no more {0} can be made")]
    Exhausted(&'static str),
    /// Something else still uses it (`EBUSY`).
    #[error("the {0} is still in use")]
    Busy(&'static str),
    /// The completion queue overflowed; its queue pairs are in error (IBTA 1.4 §11.6.3.1).
    #[error("the completion queue has overflowed")]
    CqOverflow,
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

fn bound(value: u64, limit: u64) -> &'static str {
    if value > limit { "at most" } else { "at least" }
}

impl Error {
    /// Checks that a field is no more than its limit.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub fn at_most(field: &'static str, value: u64, limit: u64) -> Result<()> {
        if value > limit {
            return Err(Self::Limit {
                field,
                value,
                limit,
            });
        }
        Ok(())
    }

    /// Checks that a field is no less than its limit.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub fn at_least(field: &'static str, value: u64, limit: u64) -> Result<()> {
        if value < limit {
            return Err(Self::Limit {
                field,
                value,
                limit,
            });
        }
        Ok(())
    }

    /// Returns a function for `map_err` on system calls.
    pub fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { what, source }
    }
}

/// A batch of work requests stopped at one that cannot be posted (`bad_wr` of `ibv_post_send`).
#[derive(Debug, thiserror::Error)]
#[error("work request {posted} of the batch: {error}")]
#[non_exhaustive]
pub struct PostError {
    /// Work requests before it: they are posted and will complete.
    pub posted: usize,
    /// What is wrong with the next one; it and those behind it are not posted.
    #[source]
    pub error: Error,
}

impl PostError {
    /// Stops a batch behind so many work requests.
    #[must_use]
    pub const fn new(posted: usize, error: Error) -> Self {
        Self { posted, error }
    }
}

/// Who made a connection end in error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// This program: a wrong key, length or right of its own.
    Local,
    /// The peer did what the protocol or the rights of a region forbid.
    Peer,
    /// The peer ended the connection with a Terminate or a NAK: because of what this end did, or
    /// for an error of its own.
    PeerComplains,
    /// The connection broke: reset, timed out, or closed with work outstanding.
    Network,
}

/// Why a queue pair is in error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Who is to blame.
    pub blame: Blame,
    /// One line: what was wrong, with the protocol's own words and numbers.
    pub reason: String,
}

impl Failure {
    /// Describes an error by its origin and one line.
    #[must_use]
    pub fn new(blame: Blame, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { blame, reason }
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.blame {
            Blame::Local => "local error",
            Blame::Peer => "the peer misbehaved",
            Blame::PeerComplains => "the peer reported an error",
            Blame::Network => "the connection broke",
        };
        write!(f, "{who}: {}", self.reason)
    }
}
