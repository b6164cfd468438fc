//! Who wants a connection, and how they learn what becomes of it: a client of a listener, or this
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

use crate::answer::Answer;
use crate::refusal::{Refusal, code};

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
    /// A client of a listener. Nothing behind what its listener speaks has been read from its stream, which
    /// is reset when it is dropped.
    Client(Stream, Answer),
    /// This process.
    Own(Box<dyn Caller>),
}

impl Party {
    /// Whether the connection is wanted still, as far as is known: clients of listeners are not
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
