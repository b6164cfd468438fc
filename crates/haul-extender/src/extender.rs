//! Listeners for applications, and the connections that the host asks for.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_io::poller::Poller;
use haul_io::stream::Stream;
use haul_io::tcp;
use haul_verbs::cm::Listener;
use haul_verbs::{Context, Device, DeviceCaps, Error};

use crate::command::{Command, CommandQueue, Entrance, Listen, OWN_CHANNEL};
use crate::link::Plan;
use crate::runner::Runner;

/// Applications that wait for an answer at a listener; further ones are rejected.
const BACKLOG: u32 = 64;
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
        let completions = context.create_completion_channel().map_err(words)?;
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
