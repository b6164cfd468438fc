//! The role of this gateway in a session, with its state.

use std::collections::VecDeque;
use std::net::IpAddr;

use crossbeam_channel::Sender;
use haul_xsp::wire::{NackStatus, SessOpen};
use haul_xsp::{Misuse, Session, SessionId, Time};

use super::ways::Ways;
use crate::caller::Call;
use crate::config::ChannelKind;
use crate::refusal::Refusal;
use crate::shared::Idle;
use crate::status::Role;

/// The channel kinds that the segments of a session would use, nearest first; or why it cannot be
/// opened.
pub(crate) type Probed = Result<Vec<Option<ChannelKind>>, Refusal>;

/// The role of this gateway in the session.
#[derive(Debug)]
pub(super) enum Part {
    /// It opened the session.
    Opener(Box<Opener>),
    /// A control connection that has not asked for a session.
    Pending(Owner),
    /// The session ends here.
    Terminus(Owner),
    /// The session passes through.
    Relay(Box<RelayPart>),
}

/// State of a session that this gateway opened.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) ways: Ways,
    /// The request for the first hop.
    pub(super) wanted: Option<(SessionId, SessOpen)>,
    /// Connections that wait for the session to be open.
    pub(super) calls: VecDeque<Waiting>,
    /// Callers that wait until bytes can flow.
    pub(super) waiters: Vec<Sender<Result<(), Refusal>>>,
    /// Callers that only probe whether the session can be opened.
    pub(super) probe: Option<Sender<Probed>>,
    /// It tries data channels: a gateway that loses it forgets it.
    pub(super) is_trial: bool,
}

/// A connection that waits for its session.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) since: Time,
    pub(super) call: Call,
}

/// The owner of a session that came in: the peer that opened it, or whose control connection this
/// is.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// Where the control connection came from.
    pub(super) from: Option<IpAddr>,
    /// If the owner has not authenticated: since when the session has carried nothing.
    pub(super) idle: Option<Idle>,
    /// Which gateway is being stopped, for the owner to know.
    pub(super) stopping: Option<String>,
    /// Until then a draining session takes connections: the notice to its owner may still be in
    /// flight.
    pub(super) open_until: Option<Time>,
    /// The waiters for this session's memory: dropped last.
    pub(super) room: Option<Sender<()>>,
}

/// State of a session that passes through.
#[derive(Debug)]
pub(super) struct RelayPart {
    pub(super) next: NextHop,
    pub(super) owner: Owner,
}

/// The next hop of a session that passes through.
#[derive(Debug, Default)]
pub(super) struct NextHop {
    /// The request for that side.
    pub(super) wanted: Option<(SessionId, SessOpen)>,
    /// The request that opened it, or is pending.
    pub(super) relayed: Option<(SessionId, SessOpen)>,
    /// Since when it is lost.
    pub(super) since: Option<Time>,
    /// Attempts since then that have failed.
    pub(super) tries: u32,
    /// The owner has been notified.
    pub(super) has_notified: bool,
    /// Why it is lost, in words.
    pub(super) why: String,
}

impl Opener {
    pub(super) const fn new(ways: Ways, probe: Option<Sender<Probed>>) -> Self {
        Self {
            ways,
            wanted: None,
            calls: VecDeque::new(),
            waiters: Vec::new(),
            probe,
            is_trial: false,
        }
    }
}

impl Part {
    pub(super) const fn role(&self) -> Role {
        match self {
            Self::Opener(_) => Role::Opener,
            Self::Pending(_) => Role::Pending,
            Self::Terminus(_) => Role::Terminus,
            Self::Relay(_) => Role::Relay,
        }
    }

    /// A pending control connection becomes one of a session that ends here or passes through.
    pub(super) fn join(&mut self, role: Role) {
        let owner = self.owner_mut().map(std::mem::take).unwrap_or_default();
        *self = match role {
            Role::Relay => Self::Relay(Box::new(RelayPart {
                next: NextHop::default(),
                owner,
            })),
            _ => Self::Terminus(owner),
        };
    }

    pub(super) fn opener(&self) -> Option<&Opener> {
        match self {
            Self::Opener(opener) => Some(opener),
            _ => None,
        }
    }

    pub(super) fn opener_mut(&mut self) -> Option<&mut Opener> {
        match self {
            Self::Opener(opener) => Some(opener),
            _ => None,
        }
    }

    pub(super) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Opener(_) => None,
            Self::Pending(owner) | Self::Terminus(owner) => Some(owner),
            Self::Relay(relay) => Some(&relay.owner),
        }
    }

    pub(super) fn owner_mut(&mut self) -> Option<&mut Owner> {
        match self {
            Self::Opener(_) => None,
            Self::Pending(owner) | Self::Terminus(owner) => Some(owner),
            Self::Relay(relay) => Some(&mut relay.owner),
        }
    }

    /// Notes why the next hop is lost, in words.
    pub(super) fn note(&mut self, why: &str) {
        match self {
            Self::Opener(opener) => opener.ways.note(why),
            Self::Relay(relay) => why.clone_into(&mut relay.next.why),
            Self::Pending(_) | Self::Terminus(_) => {}
        }
    }

    /// The next hop has refused for now what was asked for again.
    pub(super) fn put_off(&mut self, status: NackStatus, text: &str) {
        match self {
            Self::Opener(opener) => opener.ways.put_off(status, text),
            other => other.note(text),
        }
    }

    /// The next hop has the session.
    pub(super) fn settle(&mut self) {
        match self {
            Self::Opener(opener) => opener.ways.settle(),
            Self::Relay(relay) => {
                (relay.next.since, relay.next.tries) = (None, 0);
                relay.next.has_notified = false;
            }
            Self::Pending(_) | Self::Terminus(_) => {}
        }
    }

    /// The owner is back: the notice may have been lost.
    pub(super) const fn owner_is_back(&mut self) {
        if let Self::Relay(relay) = self {
            relay.next.has_notified = false;
        }
    }

    /// On a new control connection to the next hop: the session is resumed there, or opened anew by
    /// another way.
    pub(super) fn go_on(&mut self, now: Time, session: &mut Session) -> Result<(), Misuse> {
        match self {
            Self::Opener(opener) => opener.ways.go_on(now, session),
            _ => session.reattach(now),
        }
    }

    /// Why the session has ended, with what became of the ways that were tried before.
    pub(super) fn end_reason(&self, last: &str) -> String {
        match self {
            Self::Opener(opener) => opener.ways.end_reason(last),
            _ => last.to_owned(),
        }
    }

    /// Takes what is to be opened at the next hop.
    pub(super) fn take_wanted(&mut self) -> Option<(SessionId, SessOpen)> {
        match self {
            Self::Opener(opener) => opener.wanted.take(),
            Self::Relay(relay) => relay.next.wanted.take(),
            Self::Pending(_) | Self::Terminus(_) => None,
        }
    }

    pub(super) fn take_probe(&mut self) -> Option<Sender<Probed>> {
        self.opener_mut()?.probe.take()
    }

    /// Whether the session is asked for, and not opened.
    pub(super) fn is_probe(&self) -> bool {
        self.opener().is_some_and(|opener| opener.probe.is_some())
    }

    /// Whether connections wait for the session to be open.
    pub(super) fn has_calls(&self) -> bool {
        self.opener().is_some_and(|opener| !opener.calls.is_empty())
    }

    pub(super) fn take_calls(&mut self) -> VecDeque<Call> {
        let calls = self
            .opener_mut()
            .map(|opener| std::mem::take(&mut opener.calls));
        let calls = calls.unwrap_or_default().into_iter();
        calls.map(|waiting| waiting.call).collect()
    }

    pub(super) fn take_first_calls(&mut self, count: usize) -> Vec<Call> {
        let opener = self.opener_mut();
        opener.map_or_else(Vec::new, |opener| {
            let first = opener.calls.drain(..count);
            first.map(|waiting| waiting.call).collect()
        })
    }
}
