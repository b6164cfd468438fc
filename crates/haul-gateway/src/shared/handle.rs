//! The handle of a session's thread, and the commands that the thread takes.

use std::net::SocketAddr;

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_io::poller::Waker;
use haul_xsp::wire::{NackStatus, PathState, SessOpen};
use haul_xsp::{ConnId, ResumeRequest, Session};

use crate::caller::Call;
use crate::channel::{Accepted, DataConnection};
use crate::config::ChannelKind;
use crate::control::Control;
use crate::refusal::Refusal;

/// A command for a session's thread.
#[derive(Debug)]
pub(crate) enum SessionCommand {
    /// An application's connection.
    Call(Call),
    /// Some caller may no longer want its connection; each is asked.
    Withdrawn,
    /// Report when the session can carry data, or why it cannot.
    Await(Sender<Result<(), Refusal>>),
    /// A control connection to the next hop, or why there is none.
    Dialled(Result<Box<Control>, (NackStatus, String)>),
    /// Addresses of a name.
    Resolved(ConnId, Result<Vec<SocketAddr>, String>),
    /// The session's owner has reconnected.
    Resume {
        fresh: Box<Session>,
        control: Box<Control>,
        request: ResumeRequest,
    },
    /// The session's owner has reconnected over another way.
    Anew {
        fresh: Box<Session>,
        control: Box<Control>,
        open: Box<SessOpen>,
    },
    /// A data connection that began with a cookie of this session.
    DataConnection {
        kind: ChannelKind,
        cookie: [u8; 16],
        connection: DataConnection,
    },
    /// The outcome of an accepted queue pair.
    Accepted {
        kind: ChannelKind,
        qp_num: u32,
        news: Accepted,
    },
    /// The state of a path, by its number in the session.
    Path(u32, PathState, String),
    /// End to free memory, if that loses no data. The sender is dropped when the memory is free, or
    /// the session stays.
    MakeRoom(Option<Sender<()>>),
    /// Finish open connections, and end.
    Drain,
    /// End now.
    Abort,
}

/// The handle of a session's thread.
#[derive(Debug, Clone)]
pub(crate) struct SessionHandle {
    sender: Sender<SessionCommand>,
    waker: Waker,
}

impl SessionHandle {
    /// Creates a handle whose thread `waker` wakes.
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<SessionCommand>) {
        let (sender, receiver) = unbounded();
        (Self { sender, waker }, receiver)
    }

    /// Creates a handle without a thread.
    #[cfg(test)]
    pub(crate) fn detached() -> Self {
        let poller = haul_io::poller::Poller::new().unwrap();
        Self::new(poller.waker()).0
    }

    /// Sends a command; returns it if the thread has ended.
    pub(crate) fn send(&self, command: SessionCommand) -> Result<(), Box<SessionCommand>> {
        self.sender
            .send(command)
            .map_err(|error| Box::new(error.0))?;
        self.waker.wake();
        Ok(())
    }

    /// Whether both are handles of the same thread.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}
