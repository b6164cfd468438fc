//! A session's thread as others see it, and the commands that it takes.

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

/// Something for a session's thread.
#[derive(Debug)]
pub(crate) enum SessionCommand {
    /// A program's connection.
    Call(Call),
    /// A connection is wanted no more that the far end may not have answered for: its caller says
    /// so when asked.
    Withdrawn,
    /// Somebody waits until octets can go through the session, or it cannot be had.
    Await(Sender<Result<(), Refusal>>),
    /// A control connection to the next hop, or why there is none.
    Dialled(Result<Box<Control>, (NackStatus, String)>),
    /// Addresses of a name.
    Resolved(ConnId, Result<Vec<SocketAddr>, String>),
    /// The session's owner is back on a new control connection.
    Resume {
        fresh: Box<Session>,
        control: Box<Control>,
        request: ResumeRequest,
    },
    /// The session's owner is back over another way.
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
    /// What became of a data connection that was accepted.
    Accepted {
        kind: ChannelKind,
        qp_num: u32,
        news: Accepted,
    },
    /// How a path is, by its number in the session.
    Path(u32, PathState, String),
    /// A control connection that has not said what it wants, or a session that its owner has left,
    /// is in the way of others. What comes with it is dropped when it has made room, or does not.
    MakeRoom(Option<Sender<()>>),
    /// Finish what there is, and end.
    Drain,
    /// End now.
    Abort,
}

/// A session's thread, as others see it.
#[derive(Debug, Clone)]
pub(crate) struct SessionHandle {
    sender: Sender<SessionCommand>,
    waker: Waker,
}

impl SessionHandle {
    /// A handle whose owner is woken by `waker`.
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<SessionCommand>) {
        let (sender, receiver) = unbounded();
        (Self { sender, waker }, receiver)
    }

    /// A handle that nobody reads.
    #[cfg(test)]
    pub(crate) fn detached() -> Self {
        let poller = haul_io::poller::Poller::new().unwrap();
        Self::new(poller.waker()).0
    }

    /// Delivers a command, or gives it back if its reader is gone.
    pub(crate) fn send(&self, command: SessionCommand) -> Result<(), Box<SessionCommand>> {
        self.sender
            .send(command)
            .map_err(|error| Box::new(error.0))?;
        self.waker.wake();
        Ok(())
    }

    /// Whether both are of the same thread.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}
