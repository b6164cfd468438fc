//! The part of a connection that does not depend on the transport below.

use haul_cc::Time;

use super::Params;
use crate::error::{Error, PostError};
use crate::operation::RecvWr;
use crate::qp::{Event, QpConfig, SendWr};

/// A connection of a queue pair, over a byte stream ([`crate::StreamConnection`]) or messages
/// ([`crate::MessageConnection`]).
///
/// Contract: after every call that takes `&mut self`, drain the outputs of the connection, then
/// [`Self::poll_event`], and ask [`Self::poll_timeout`].
pub trait ReliableConnection: std::fmt::Debug {
    /// Names the queue pair that is to be connected, if it was not known before. Responder, between
    /// [`Event::Request`] and [`Self::accept`]; receives are posted after this.
    fn set_queue_pair(&mut self, qp: QpConfig);

    /// Returns the IRD and ORD that the initiator named, if it did. Responder, after
    /// [`Event::Request`].
    fn requested(&self) -> Option<(u16, u16)>;

    /// Accepts the request. Responder, after [`Event::Request`].
    ///
    /// # Errors
    /// There is no request to answer, or the private data does not fit.
    fn accept(&mut self, now: Time, private: &[u8]) -> Result<(), PostError>;

    /// Rejects the request; the connection ends when the answer is sent. Responder, after
    /// [`Event::Request`].
    ///
    /// # Errors
    /// There is no request to answer, or the private data does not fit.
    fn reject(&mut self, now: Time, private: &[u8]) -> Result<(), PostError>;

    /// Takes a send request. The next `poll_transmit` that may sends it.
    ///
    /// # Errors
    /// See [`PostError`]; nothing has changed.
    fn post_send(&mut self, wr: SendWr) -> Result<(), PostError>;

    /// Takes a receive request. It may be posted before the connection is established.
    ///
    /// # Errors
    /// See [`PostError`]; nothing has changed.
    fn post_receive(&mut self, wr: RecvWr) -> Result<(), PostError>;

    /// Finishes posted requests, then closes this end's direction (RFC 5040 §6.2).
    fn close(&mut self, now: Time);

    /// Ends at once. Close the lower layer in a way that the peer notices.
    fn abort(&mut self, now: Time);

    /// Handles the timeout that [`Self::poll_timeout`] named.
    fn handle_timeout(&mut self, now: Time);

    /// Returns when to call [`Self::handle_timeout`].
    fn poll_timeout(&self) -> Option<Time>;

    /// Returns the next event, oldest first.
    fn poll_event(&mut self) -> Option<Event>;

    /// Returns the agreed parameters, once start-up is complete.
    fn params(&self) -> Option<Params>;

    /// Returns the private data of the peer's request or reply.
    fn private_data(&self) -> &[u8];

    /// Returns why the connection failed, if it did.
    fn error(&self) -> Option<Error>;
}
