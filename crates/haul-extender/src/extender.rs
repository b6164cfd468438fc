//! Listeners for applications, and the connections that the host asks for.

#![expect(
    clippy::disallowed_types,
    reason = "haul-io makes the streams that the host and the extender exchange"
)]

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_io::poller::{Poller, Waker};
use haul_io::stream::Stream;
use haul_io::tcp;
use haul_verbs::cm::{EventChannel, Listener};
use haul_verbs::{CompletionChannel, Context, Device, DeviceCaps, Error};

use crate::link::Plan;
use crate::runner::Runner;

/// Applications that wait for an answer at a listener; further ones are rejected.
const BACKLOG: u32 = 64;
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
    /// Asks the host for a byte stream to the far extender. The first argument names the application
    /// in log lines. It must not block.
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

/// Opens listeners for applications, and reaches applications for the host.
#[derive(Debug)]
pub struct Extender {
    context: Context,
    queue: CommandQueue,
    next_listener: AtomicU64,
}

/// A listener for applications. Dropping it closes it; the connections that it accepted go on.
#[derive(Debug)]
pub struct RdmaListener {
    listener: Listener,
    token: u64,
    queue: CommandQueue,
}

impl RdmaListener {
    /// Returns the address that it listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

impl Drop for RdmaListener {
    fn drop(&mut self) {
        self.queue.send(Command::Closed(self.token));
    }
}

impl Extender {
    /// Opens the device. At most `connections` are bridged at a time, each within `plan`. The
    /// [`Runner`] does the work: until it runs, nothing is bridged.
    ///
    /// # Errors
    /// States why the device cannot serve: it has no reliable connections, too short a queue or too
    /// small a message, or no resources.
    pub fn open(device: &Device, plan: Plan, connections: usize) -> Result<(Self, Runner), String> {
        let words = |error: Error| error.to_string();
        let context = device.open().map_err(words)?;
        let attributes = context.attributes().map_err(words)?;
        if !attributes.caps.contains(DeviceCaps::RC) {
            return Err(format!("{} has no reliable connections", device.name()));
        }
        if u64::from(attributes.max_qp_wr) < u64::from(plan.depth)
            || attributes.max_message < plan.message as u64
        {
            return Err(format!(
                "{} takes {} messages at a time of {} bytes (`depth`, `message`)",
                device.name(),
                attributes.max_qp_wr,
                attributes.max_message
            ));
        }
        let poller = Poller::new().map_err(|error| error.to_string())?;
        let (queue, commands) = CommandQueue::new(poller.waker());
        let completions: CompletionChannel = context.create_completion_channel().map_err(words)?;
        let events = context.create_event_channel().map_err(words)?;
        let runner = Runner::new(
            (context.clone(), plan, connections),
            poller,
            (queue.clone(), commands),
            (completions, events),
        );
        let extender = Self {
            context,
            queue,
            next_listener: AtomicU64::new(OWN_CHANNEL + 1),
        };
        Ok((extender, runner.map_err(|error| error.to_string())?))
    }

    /// Opens a listener for applications.
    ///
    /// # Errors
    /// The address is in use, or is not one of the device's.
    pub fn listen(&self, listen: Listen) -> io::Result<RdmaListener> {
        let events = self.context.create_event_channel().map_err(system)?;
        let listener = self.context.listen(listen.address, &events, BACKLOG);
        let listener = listener.map_err(system)?;
        let token = self.next_listener.fetch_add(1, Ordering::Relaxed);
        let entrance = Entrance {
            listen,
            events,
            is_open: true,
        };
        self.queue.send(Command::Open(token, entrance));
        Ok(RdmaListener {
            listener,
            token,
            queue: self.queue.clone(),
        })
    }

    /// Returns a byte stream to the application at the first address of `to` that accepts. It is
    /// reset if none does.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn reach(&self, to: Vec<SocketAddr>) -> io::Result<Stream> {
        let (own, theirs) = tcp::pair()?;
        self.queue.send(Command::Reach(to, Stream::adopt(theirs)?));
        Stream::adopt(own)
    }
}

fn system(error: Error) -> io::Error {
    match error {
        Error::Os { source, .. } => source,
        other => io::Error::other(other.to_string()),
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
