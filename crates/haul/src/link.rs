//! The control connection of a session: its messages over `haul-control`.

use std::time::Duration;

use haul_control::SOFTWARE;
use haul_control::connection::{Connection, Exported};
use haul_control::duplex;
use haul_control::frame::{Greeting, TaskId};
use haul_seal::Cipher;

use crate::cancel::Cancel;
use crate::fault::Fault;
use crate::wire::{self, Message};

/// One end of a control connection after the greetings.
#[derive(Debug)]
pub(crate) struct Link {
    sender: duplex::Sender,
    receiver: duplex::Receiver<Message>,
}

impl Link {
    /// Takes over a connection after this end has greeted.
    pub(crate) fn start(connection: Connection, dead_after: Duration) -> Result<Self, Fault> {
        let (sender, receiver) = connection.split(dead_after, wire::decode)?;
        Ok(Self { sender, receiver })
    }

    /// Sends one message. Blocks while the peer's buffers are full.
    pub(crate) fn send(&self, message: &Message) -> Result<(), Fault> {
        self.sender.send(wire::encode(message)?)
    }

    /// Returns the queue of received messages. Nothing follows an error.
    pub(crate) const fn incoming(&self) -> &crossbeam_channel::Receiver<Result<Message, Fault>> {
        self.receiver.incoming()
    }

    /// Blocks for the next message.
    pub(crate) fn receive(&self) -> Result<Message, Fault> {
        self.receiver.receive()
    }

    /// Returns the greeting of the peer, if it has arrived since this began.
    pub(crate) fn greeting(&self) -> Option<&Greeting> {
        self.sender.greeting()
    }

    /// Returns whether the peer has greeted.
    pub(crate) fn is_greeted(&self) -> bool {
        self.sender.is_greeted()
    }

    /// Returns a secret of the control connection, which both ends derive alike.
    pub(crate) fn export(&self, label: &str, context: &[u8]) -> Result<Exported, Fault> {
        self.sender.export(label, context)
    }

    /// Returns the cipher of sealed channels, which both ends have agreed on.
    pub(crate) fn cipher(&self) -> Cipher {
        self.sender.cipher()
    }

    /// Returns the handle that ends this link from another thread.
    pub(crate) fn cancel(&self) -> Cancel {
        self.sender.closer()
    }

    /// Ends the connection at once: the peer has sent its last message and expects none.
    pub(crate) fn hang_up(self) {
        self.sender.closer().cancel();
    }

    /// Tells the peer, once, why the session ends.
    pub(crate) fn report(&self, fault: &Fault) {
        self.sender.report(fault);
    }
}

/// Makes a client's greeting.
pub(crate) fn greeting(service: &str, task: TaskId, dead_after: Duration) -> Greeting {
    Greeting {
        software: SOFTWARE.to_owned(),
        service: service.to_owned(),
        features: 0,
        dead_after_ms: u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX),
        task,
    }
}
