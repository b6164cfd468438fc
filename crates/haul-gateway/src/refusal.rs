//! Why a connection or a session is refused: status codes, and what they mean to people, to SOCKS
//! and to HTTP.

use std::io;

use haul_io::stream::is_exhausted;
use haul_xsp::wire::NackStatus;

/// Reply codes of SOCKS 5 (RFC 1928 §6).
pub(crate) mod reply {
    pub(crate) const FAILURE: u8 = 1;
    pub(crate) const NOT_ALLOWED: u8 = 2;
    pub(crate) const NETWORK_UNREACHABLE: u8 = 3;
    pub(crate) const HOST_UNREACHABLE: u8 = 4;
    pub(crate) const REFUSED: u8 = 5;
    pub(crate) const COMMAND: u8 = 7;
    pub(crate) const ADDRESS_TYPE: u8 = 8;
}

/// Connection errors that a far end passes on, by their Linux numbers.
mod errno {
    pub(super) const EACCES: u16 = 13;
    pub(super) const ENETUNREACH: u16 = 101;
    pub(super) const ETIMEDOUT: u16 = 110;
    pub(super) const ECONNREFUSED: u16 = 111;
    pub(super) const EHOSTUNREACH: u16 = 113;
}

/// States why there is no connection, or no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The kind of reason.
    pub cause: Cause,
    /// One line for people.
    pub text: String,
    /// The code of a `NackStatus`, or a Linux errno.
    status: u16,
}

/// The cause of a [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A gateway on the way is unreachable, or ended the session.
    Gateway,
    /// The gateways could not open a data channel.
    Channel,
    /// One gateway could not authenticate another.
    Trust,
    /// A gateway forbids it.
    Forbidden,
    /// The destination refuses connections.
    Refused,
    /// The destination, or its network, is unreachable.
    Unreachable,
    /// The destination does not answer.
    TimedOut,
    /// The last gateway cannot resolve the destination's name.
    Unresolved,
}

impl Refusal {
    /// Creates a refusal with this status. `session` states why the session ended, if that is the
    /// reason.
    pub(crate) fn new(status: u16, session: Option<&str>) -> Self {
        let cause = match NackStatus::from_code(status) {
            NackStatus::NotAuthenticated => Cause::Trust,
            NackStatus::NoProtocol if session.is_some() => Cause::Channel,
            _ if session.is_some() => Cause::Gateway,
            _ => meaning(status).cause,
        };
        let text = session.unwrap_or_else(|| meaning(status).text).to_owned();
        Self {
            cause,
            text,
            status,
        }
    }

    /// Whether the gateways have no kind of data channel in common.
    pub(crate) const fn is_without_channel(&self) -> bool {
        self.status == NackStatus::NoProtocol.code()
    }
}

/// Returns the number of a [`NackStatus`].
pub(crate) const fn code(status: NackStatus) -> u16 {
    status.code()
}

/// The meaning of a refusal.
pub(crate) struct Meaning {
    /// For counters and the access log.
    pub(crate) name: &'static str,
    /// The SOCKS reply code.
    pub(crate) reply: u8,
    /// The HTTP status.
    pub(crate) http: &'static str,
    /// For callers in this process.
    pub(crate) cause: Cause,
    /// For people.
    pub(crate) text: &'static str,
}

/// Interprets a [`NackStatus`] code or a Linux errno.
pub(crate) fn meaning(status: u16) -> Meaning {
    let (reply, http, text) = words(status);
    let name = name(status);
    let cause = match (reply, NackStatus::from_code(status)) {
        (_, NackStatus::NotAuthenticated) => Cause::Trust,
        (_, NackStatus::TimedOut | NackStatus::Other(errno::ETIMEDOUT)) => Cause::TimedOut,
        (_, NackStatus::CannotResolve) => Cause::Unresolved,
        (reply::NOT_ALLOWED, _) => Cause::Forbidden,
        (reply::REFUSED, _) => Cause::Refused,
        (reply::NETWORK_UNREACHABLE | reply::HOST_UNREACHABLE, _) => Cause::Unreachable,
        _ => Cause::Gateway,
    };
    Meaning {
        name,
        reply,
        http,
        cause,
        text,
    }
}

/// Returns the status that the far end is sent for a failed connection attempt.
pub(crate) fn status_of(error: &io::Error) -> u16 {
    const EPERM: i32 = 1;
    if is_exhausted(error) {
        return NackStatus::Busy.code();
    }
    let number = match error.raw_os_error() {
        // A firewall drops packets of this machine.
        Some(EPERM) => Some(errno::EACCES),
        number => number.and_then(|number| u16::try_from(number).ok()),
    };
    let has_words = |number: &u16| {
        matches!(
            *number,
            errno::EACCES
                | errno::ENETUNREACH
                | errno::ETIMEDOUT
                | errno::ECONNREFUSED
                | errno::EHOSTUNREACH
        )
    };
    let plain = NackStatus::CannotConnect.code();
    number.filter(has_words).unwrap_or(plain)
}

/// Returns the name of a reason in counters and the access log.
const fn name(status: u16) -> &'static str {
    match NackStatus::from_code(status) {
        NackStatus::NoRoute => "no_route",
        NackStatus::NotAuthenticated => "not_authenticated",
        NackStatus::Forbidden | NackStatus::Other(errno::EACCES) => "forbidden",
        NackStatus::Busy => "busy",
        NackStatus::TimedOut | NackStatus::Other(errno::ETIMEDOUT) => "timeout",
        NackStatus::Closing => "stopping",
        NackStatus::CannotResolve => "unresolved",
        NackStatus::Other(errno::ECONNREFUSED) => "refused",
        NackStatus::CannotConnect | NackStatus::Other(errno::ENETUNREACH | errno::EHOSTUNREACH) => {
            "unreachable"
        }
        _ => "gateway",
    }
}

fn words(status: u16) -> (u8, &'static str, &'static str) {
    use reply::{FAILURE, HOST_UNREACHABLE, NETWORK_UNREACHABLE, NOT_ALLOWED, REFUSED};
    const FORBIDDEN: &str = "403 Forbidden";
    const BAD: &str = "502 Bad Gateway";
    const BUSY: &str = "503 Service Unavailable";
    const TIMEOUT: &str = "504 Gateway Timeout";
    match NackStatus::from_code(status) {
        NackStatus::NoRoute => (NETWORK_UNREACHABLE, BAD, "no route leads there"),
        // The next gateway on the way, or a destination without an answer of its own.
        NackStatus::CannotConnect => (HOST_UNREACHABLE, BAD, "it cannot be connected to"),
        NackStatus::NotAuthenticated => (FAILURE, BAD, "the gateways do not trust each other"),
        NackStatus::Forbidden => (NOT_ALLOWED, FORBIDDEN, "a gateway does not allow it"),
        NackStatus::NoProtocol => (FAILURE, BAD, "the gateways have no channel in common"),
        NackStatus::Loop => (FAILURE, BAD, "the route leads back to itself"),
        NackStatus::Busy => (FAILURE, BUSY, "a gateway has no room for it"),
        NackStatus::TimedOut => (HOST_UNREACHABLE, TIMEOUT, "no answer came in time"),
        NackStatus::CannotResolve => (HOST_UNREACHABLE, BAD, "its name cannot be resolved"),
        NackStatus::Closing => (FAILURE, BUSY, "a gateway is being stopped"),
        NackStatus::Other(errno::EACCES) => (NOT_ALLOWED, FORBIDDEN, "a gateway does not allow it"),
        NackStatus::Other(errno::ENETUNREACH) => {
            (NETWORK_UNREACHABLE, BAD, "its network cannot be reached")
        }
        NackStatus::Other(errno::EHOSTUNREACH) => (HOST_UNREACHABLE, BAD, "it cannot be reached"),
        NackStatus::Other(errno::ECONNREFUSED) => (REFUSED, BAD, "it refuses connections"),
        NackStatus::Other(errno::ETIMEDOUT) => (HOST_UNREACHABLE, TIMEOUT, "it does not answer"),
        NackStatus::UnknownSession
        | NackStatus::Protocol
        | NackStatus::Unsupported
        | NackStatus::Done
        | NackStatus::Error
        | NackStatus::Other(_) => (FAILURE, BAD, "the session between the gateways failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_far_end_are_reported_unchanged() {
        let told = |errno| meaning(status_of(&io::Error::from_raw_os_error(errno))).cause;
        assert_eq!(told(111), Cause::Refused);
        assert_eq!(told(101), Cause::Unreachable);
        assert_eq!(told(113), Cause::Unreachable);
        assert_eq!(told(110), Cause::TimedOut);
        assert_eq!(told(1), Cause::Forbidden);
        assert_eq!(told(99), Cause::Unreachable);
        // A shortage at the far gateway is not the destination's fault.
        assert_eq!(told(24), Cause::Gateway);
    }
}
