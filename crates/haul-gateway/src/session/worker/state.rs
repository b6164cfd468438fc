//! State of a session's thread that every role has.

use std::sync::{Arc, Mutex};

use haul_io::poller::Interest;
use haul_xsp::wire::{Hop, Metadata};
use haul_xsp::{Relay, Session, Side, Time};

use super::super::attempts::Attempts;
use super::super::shape::Granted;
use super::super::side::SegmentSide;
use crate::channel::kind;
use crate::config::ChannelKind;
use crate::host::Shown;
use crate::shared::Shared;
use crate::status::{Role, Status};

/// The state machines: of one segment, or of both at a relay.
#[derive(Debug)]
pub(super) enum Body {
    /// There is no control connection yet.
    None,
    One(Box<Session>),
    Two(Box<Relay>),
}

impl Body {
    pub(super) fn session(&mut self, side: usize) -> Option<&mut Session> {
        match self {
            Self::None => None,
            Self::One(session) => (side == 0).then_some(session),
            Self::Two(relay) => Some(relay.side(if side == 0 { Side::Near } else { Side::Far })),
        }
    }
}

/// A segment of the session at this gateway: towards the opener, or towards the terminus.
#[derive(Debug, Default)]
pub(super) struct Segment {
    pub(super) side: Option<SegmentSide>,
    /// Its registration with the poller.
    pub(super) watched: Watched,
    pub(super) attempts: Attempts,
    pub(super) dial: Dial,
    /// The share of this side's memory that the session may use.
    pub(super) granted: Granted,
    /// Before, it does not ask for more: there was none.
    pub(super) more_at: Option<Time>,
}

/// The poller's registrations of a segment: its control connection, and the descriptors of its data
/// channels.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) control: Option<Interest>,
    pub(super) has_fabric: bool,
}

/// How a side is dialled.
#[derive(Debug, Clone, Default)]
pub(super) struct Dial {
    pub(super) hop: String,
    pub(super) offered: Vec<ChannelKind>,
    pub(super) streams: u16,
    pub(super) key: Option<String>,
    pub(super) is_under_way: bool,
    pub(super) again_at: Option<Time>,
    pub(super) wait_ns: u64,
    /// The last failed attempt, and whether it showed that the hop is gone.
    pub(super) failed_at: Option<Time>,
    pub(super) is_gone: bool,
}

impl Dial {
    /// Dials the next hop of a relayed session.
    pub(super) fn to(hop: &Hop) -> Self {
        let streams = hop.offers.iter().find_map(|offer| offer.params.streams);
        let offered = hop.offers.iter().filter_map(|offer| kind(offer.proto));
        Self {
            hop: Shown(&hop.endpoint).to_string(),
            offered: offered.collect(),
            streams: streams.unwrap_or(1),
            ..Self::default()
        }
    }
}

/// Metadata of applications about the session.
#[derive(Debug, Default)]
pub(super) struct Described {
    pub(super) metadata: Metadata,
    /// It, or that it was dropped, has been logged.
    pub(super) is_logged: bool,
}

/// The session as the page shows it. Dropping it removes the session from there.
#[derive(Debug)]
pub(super) struct Report {
    shared: Arc<Shared>,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) number: u64,
    /// When `status` was taken.
    pub(super) at: Time,
    /// Something happened that `status` does not show.
    pub(super) has_news: bool,
    /// When the session was begun.
    pub(super) since: Time,
}

impl Report {
    pub(super) fn new(shared: Arc<Shared>, role: Role) -> Self {
        let now = shared.now();
        let status = Arc::new(Mutex::new(Status {
            role,
            since_ns: now.as_ns(),
            ..Status::default()
        }));
        let mut registers = shared.registers();
        registers.next_status += 1;
        let number = registers.next_status;
        registers.statuses.insert(number, Arc::clone(&status));
        drop(registers);
        Self {
            shared,
            status,
            number,
            at: now,
            has_news: false,
            since: now,
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let mut registers = self.shared.registers();
        registers.statuses.remove(&self.number);
        registers.pending_peers.remove(self.number);
    }
}

/// How the session ends.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The current problem, or why it has ended.
    pub(super) trouble: Option<String>,
    /// The problem is that one end could not authenticate the other.
    pub(super) auth_failed: bool,
    pub(super) is_draining: bool,
    pub(super) is_over: bool,
}
