//! What the extender's thread is asked to do, and what it asks of its host.

#![expect(
    clippy::disallowed_types,
    reason = "haul-io makes the streams that the host and the extender exchange"
)]

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Weak;

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_io::poller::Waker;
use haul_io::stream::Stream;
use haul_io::tcp;
use haul_verbs::cm::EventChannel;

/// Bit of the tokens of event channels, which are numbered.
pub(crate) const CHANNEL: u64 = 1 << 41;
/// The event channel of connections that this end makes.
pub(crate) const OWN_CHANNEL: u64 = CHANNEL;

/// A command for the extender's thread.
pub(crate) enum Command {
    /// A listener is open; its events come by the channel with this token.
    Open(u64, Entrance),
    /// A listener is closed. The connections that it accepted go on.
    Closed(u64),
    /// The host has connected for this bridge, or states why it could not.
    Connected(u64, Result<TcpStream, String>),
    /// The host wants to reach an application at one of these addresses.
    Reach(Vec<SocketAddr>, Stream),
}

/// A listener as the extender's thread sees it.
pub(crate) struct Entrance {
    pub(crate) listen: Listen,
    pub(crate) events: EventChannel,
    pub(crate) is_open: bool,
}

/// Where applications connect, and what becomes of their connections.
pub struct Listen {
    /// The address to listen at, one of the device's.
    pub address: SocketAddr,
    /// Whether an application at this address may connect.
    pub admits: Box<dyn Fn(SocketAddr) -> bool + Send>,
    /// Names the destination in log lines.
    pub destination: String,
    /// Asks the host for a byte stream to the far extender. The first argument names the
    /// application in log lines. It must not block.
    pub connect: Box<dyn Fn(String, PendingConnect) + Send>,
}

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listen({} to {})", self.address, self.destination)
    }
}

/// Commands to the extender's thread, which is woken for each.
#[derive(Debug, Clone)]
pub(crate) struct CommandQueue {
    sender: Sender<Command>,
    waker: Waker,
}

impl CommandQueue {
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<Command>) {
        let (sender, receiver) = unbounded();
        (Self { sender, waker }, receiver)
    }

    pub(crate) fn send(&self, command: Command) {
        // The thread is gone only if the host has stopped it.
        let _ = self.sender.send(command);
        self.waker.wake();
    }
}

/// An application that waits until the host has connected to the far extender.
#[derive(Debug)]
pub struct PendingConnect {
    number: u64,
    /// Present while the bridge wants the connection.
    wanted: Weak<()>,
    queue: CommandQueue,
}

impl PendingConnect {
    pub(crate) const fn new(number: u64, wanted: Weak<()>, queue: CommandQueue) -> Self {
        Self {
            number,
            wanted,
            queue,
        }
    }

    /// Takes the connection: returns the host's end of its byte stream.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn accepted(self) -> io::Result<TcpStream> {
        let (own, theirs) = tcp::pair()?;
        self.queue.send(Command::Connected(self.number, Ok(theirs)));
        Ok(own)
    }

    /// States in one line why the host could not connect. The application is rejected.
    pub fn refused(self, why: String) {
        self.queue.send(Command::Connected(self.number, Err(why)));
    }

    /// Returns whether the application still waits.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}
