//! The requester of a connection, which receives the outcome: a client of a listener, or this
//! process.

#![expect(
    clippy::disallowed_types,
    reason = "a caller brings a stream that haul-io has made"
)]

use std::fmt;
use std::io;
use std::net::TcpStream;

use haul_io::stream::Stream;
use haul_xsp::Time;
use haul_xsp::wire::{EARLY_MAX, Endpoint, Metadata};

use crate::answer::Answer;
use crate::refusal::Refusal;

/// Asks for a connection on behalf of this process.
pub trait Caller: Send {
    /// Takes the stream of an accepted connection. It must not block.
    ///
    /// # Errors
    /// The caller no longer wants the connection.
    fn accepted(self: Box<Self>) -> io::Result<TcpStream>;

    /// Receives the reason why there is no connection. It must not block.
    fn refused(self: Box<Self>, why: &Refusal);

    /// Returns whether the connection is still wanted.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// Key of a connection's metadata: the address of its client.
pub(crate) const CLIENT: &str = "haul.client";

/// A request for a connection.
pub(crate) struct Call {
    pub(crate) party: Party,
    /// The requester's name for log lines and the page.
    pub(crate) from: String,
    pub(crate) to: Endpoint,
    /// How the session names the destination, if differently.
    pub(crate) named: Option<Endpoint>,
    /// Metadata of the application about the connection.
    pub(crate) metadata: Metadata,
    /// When it was made.
    pub(crate) began: Time,
    /// The request was made before, by another way, and was counted then.
    pub(crate) is_again: bool,
}

/// The receiver of the outcome.
pub(crate) enum Party {
    /// A client of a listener. Exactly its handshake has been read from the stream, which is reset
    /// when it is dropped.
    Client(Stream, Answer),
    /// This process.
    Own(Box<dyn Caller>),
}

impl Party {
    /// Takes the first bytes of a client's stream that have arrived, at most `most`. There are none
    /// before a reply.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn take_early(&self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = [0; EARLY_MAX];
        let most = most.min(EARLY_MAX);
        match self {
            Self::Client(stream, Answer::None) if most > 0 => {
                match stream.read(&mut bytes[..most]) {
                    Ok(count) => Ok(bytes[..count].to_vec()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
                    Err(error) => Err(error),
                }
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns whether the connection is still wanted, as far as is known: clients of a listener
    /// are not monitored.
    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Self::Client(..) => true,
            Self::Own(caller) => caller.is_wanted(),
        }
    }

    /// Reports that there is no connection, as in [`Refusal::new`].
    pub(crate) fn refuse(self, status: u16, session: Option<&str>) {
        match self {
            Self::Client(stream, answer) => refuse_client(&stream, answer, status),
            Self::Own(caller) => caller.refused(&Refusal::new(status, session)),
        }
    }
}

fn refuse_client(stream: &Stream, answer: Answer, status: u16) {
    let octets = answer.refused(status);
    // Where the protocol has no reply, the drop of the stream resets the connection.
    if !octets.is_empty() {
        stream.finish_on_drop();
        // A client that does not read sees the connection close.
        let _ = stream.write(&octets);
        stream.shutdown_send();
    }
}

impl Call {
    /// Returns the destination as the session names it.
    pub(crate) fn meant(&self) -> &Endpoint {
        self.named.as_ref().unwrap_or(&self.to)
    }

    /// Has the gateways on the way know the address of the client.
    pub(crate) fn forward_client(&mut self) {
        if matches!(self.party, Party::Client(..)) {
            // An address is within the bounds.
            let _ = self.metadata.set(CLIENT, &self.from);
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
