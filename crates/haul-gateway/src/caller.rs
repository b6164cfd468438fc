//! Who wants a connection, and how they learn what becomes of it: a client of a door, or this
//! process itself.

#![expect(
    clippy::disallowed_types,
    reason = "a caller brings a stream that haul-io has made"
)]

use std::fmt;
use std::io;
use std::net::TcpStream;

use haul_io::stream::Stream;
use haul_xsp::wire::{Endpoint, Metadata, NackStatus};

use crate::door::{Answer, Arrival, meaning};
use crate::house::code;

/// Somebody in this process who wants a connection.
pub trait Caller: Send {
    /// The far end has accepted: the stream by which octets come and go from now on. Must not wait.
    ///
    /// # Errors
    /// There is nobody any more who wants it.
    fn accepted(self: Box<Self>) -> io::Result<TcpStream>;

    /// Nothing comes of it. Must not wait.
    fn refused(self: Box<Self>, why: &Refusal);

    /// Whether the connection is wanted still.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// Why a connection, or a session, is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// In a word.
    pub cause: Cause,
    /// In one line.
    pub text: String,
}

/// Who or what a [`Refusal`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A gateway on the way cannot be reached, or ended the session.
    Gateway,
    /// No data channel can be had.
    Channel,
    /// Gateways do not believe each other.
    Trust,
    /// A gateway does not allow it.
    Forbidden,
    /// The destination refuses connections.
    Refused,
    /// The destination, or its network, cannot be reached.
    Unreachable,
    /// The destination does not answer.
    TimedOut,
}

impl Refusal {
    /// Of a connection that was refused with this code; `session` says what has become of the
    /// session, where that is the reason.
    pub(crate) fn new(status: u16, session: Option<&str>) -> Self {
        let cause = match NackStatus::from_code(status) {
            NackStatus::NotAuthenticated => Cause::Trust,
            NackStatus::NoProtocol if session.is_some() => Cause::Channel,
            _ if session.is_some() => Cause::Gateway,
            _ => meaning(status).cause,
        };
        let text = session.unwrap_or_else(|| meaning(status).text).to_owned();
        Self { cause, text }
    }
}

/// A connection that is wanted.
pub(crate) struct Call {
    pub(crate) party: Party,
    /// Whoever wants it, for people.
    pub(crate) from: String,
    pub(crate) to: Endpoint,
    /// What the session calls it, where that is something else.
    pub(crate) named: Option<Endpoint>,
    /// What is said about it.
    pub(crate) metadata: Metadata,
    /// It has been asked for before, by another way, and counted then.
    pub(crate) is_again: bool,
}

/// Who is told what becomes of it.
pub(crate) enum Party {
    /// A client of a door. Nothing behind what its door speaks has been read from its stream, which
    /// is reset when it is dropped.
    Client(Stream, Answer),
    /// This process.
    Own(Box<dyn Caller>),
}

impl Party {
    /// Whether the connection is wanted still, as far as is known: clients of doors are not
    /// watched.
    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Self::Client(..) => true,
            Self::Own(caller) => caller.is_wanted(),
        }
    }

    /// They learn that nothing comes of it, as in [`Refusal::new`].
    pub(crate) fn refuse(self, status: u16, session: Option<&str>) {
        match self {
            Self::Client(stream, answer) => refuse_client(&stream, answer, status),
            Self::Own(caller) => caller.refused(&Refusal::new(status, session)),
        }
    }
}

fn refuse_client(stream: &Stream, answer: Answer, status: u16) {
    let octets = answer.refused(status);
    // Without words it is the reset, by the stream's drop, that says it.
    if !octets.is_empty() {
        stream.finish_on_drop();
        // A client that does not listen learns it by the end of the connection.
        let _ = stream.write(&octets);
        stream.shutdown_send();
    }
}

impl Call {
    /// Where it goes, as the session calls that.
    pub(crate) fn meant(&self) -> &Endpoint {
        self.named.as_ref().unwrap_or(&self.to)
    }

    pub(crate) fn refuse(self, status: NackStatus, session: Option<&str>) {
        self.party.refuse(code(status), session);
    }
}

impl From<Arrival> for Call {
    fn from(arrival: Arrival) -> Self {
        Self {
            party: Party::Client(arrival.stream, arrival.answer),
            from: arrival.client.to_string(),
            to: arrival.to,
            named: None,
            metadata: arrival.metadata,
            is_again: false,
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} to {:?})", self.from, self.to)
    }
}

impl fmt::Debug for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(..) => "Client",
            Self::Own(_) => "Own",
        })
    }
}
