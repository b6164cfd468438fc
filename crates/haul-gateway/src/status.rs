//! The state of a session as shown by the page, the metrics and the log.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::ChannelKind;

/// A session at a recent moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// Its identifier, in hexadecimal.
    pub session: String,
    /// The role of this gateway in the session.
    pub role: Role,
    /// The state of the session, or of its segment that is not open.
    pub state: String,
    /// When it was opened, monotonic ns.
    pub since_ns: u64,
    /// When this was taken, monotonic ns.
    pub at_ns: u64,
    /// The hops from the first behind the opener to the terminus.
    pub hops: Vec<String>,
    /// This gateway's place among the hops: 0 at the opener, `hops.len()` at the terminus.
    pub position: usize,
    /// The channel kinds agreed for the segments from here to the terminus, nearest first. A remote
    /// segment may have fallen back since.
    pub agreed: Vec<Option<ChannelKind>>,
    /// Its segments at this gateway: towards the opener, towards the terminus.
    pub segments: Vec<Segment>,
    /// Applications' connections.
    pub connections: Vec<Connection>,
    /// Connections that are not listed.
    pub more_connections: usize,
    /// Bytes of slab memory that the session holds.
    pub memory: u64,
    /// The paths that it has asked of the network.
    pub paths: Vec<Path>,
    /// Metadata from the application.
    pub metadata: BTreeMap<String, String>,
    /// The name of the gateway that opened it, as that gateway states it.
    pub opener: String,
    /// When it ends unless it is resumed, monotonic ns; `None` while it is not suspended.
    pub ends_at_ns: Option<u64>,
}

/// A path that a session has asked for, as one gateway reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Path {
    /// The rules that were asked for.
    pub rules: String,
    /// The reporting gateway; empty until one has reported.
    pub gateway: String,
    /// `pending`, `up`, `failed` or `down`.
    pub state: &'static str,
    /// The gateway's text.
    pub text: String,
}

/// The role of a gateway in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A control connection that has not asked for a session.
    #[default]
    Pending,
    /// It opened the session.
    Opener,
    /// The session passes through.
    Relay,
    /// The session ends here.
    Terminus,
}

impl Role {
    /// Returns the name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Opener => "opener",
            Self::Relay => "relay",
            Self::Terminus => "terminus",
        }
    }
}

/// One side of one segment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Segment {
    /// The hop at the other side.
    pub peer: String,
    /// The state of the segment.
    pub state: String,
    /// The authenticated identity of the peer.
    pub identity: Option<String>,
    /// The kind of data channel in use; none while there is none.
    pub channel: Option<ChannelKind>,
    /// Queue pairs or streams that are up.
    pub lanes: usize,
    /// Round-trip time without queueing, ns.
    pub rtt_ns: u64,
    /// Bytes sent in slabs.
    pub octets_out: u64,
    /// Bytes received in slabs.
    pub octets_in: u64,
    /// Recent sending rate, bytes per second; computed when it is shown.
    pub rate_out: f64,
    /// Recent receiving rate, bytes per second.
    pub rate_in: f64,
    /// Bytes of the ring that are occupied.
    pub ring_used: u64,
    /// Bytes of the ring in use at present.
    pub ring_size: u64,
    /// Bytes of the arena that are promised or occupied.
    pub arena_used: u64,
    /// Bytes of the arena.
    pub arena_size: u64,
    /// Bytes announced and not acknowledged.
    pub window_used: u64,
    /// The peer's limit of such bytes; none until it has sent one.
    pub window_size: Option<u64>,
    /// Slabs announced and not acknowledged.
    pub slabs_unacked: usize,
    /// Reads and writes in flight.
    pub posts: usize,
    /// Packets retransmitted.
    pub resent: u64,
    /// Packets that arrived out of order, because earlier ones were lost or overtaken.
    pub out_of_order: u64,
    /// The limit of the segment.
    pub limit: Limit,
}

/// Counters since the gateway was started.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Totals {
    /// Sessions opened, ended here or passed through.
    pub sessions: u64,
    /// Sessions refused, or whose peer could not authenticate.
    pub sessions_refused: u64,
    /// Sessions that have ended because a gateway was lost, or otherwise than in order.
    pub sessions_lost: u64,
    /// Applications' connections accepted or made.
    pub connections: u64,
    /// Applications' connections refused.
    pub connections_refused: u64,
    /// The same by reason: `refused`, `unresolved` …
    pub refusals: BTreeMap<&'static str, u64>,
    /// Applications' connections reset because their session has ended.
    pub connections_lost: u64,
    /// Configurations applied.
    pub reloads: u64,
    /// Configurations rejected.
    pub reloads_failed: u64,
}

impl Totals {
    /// Counts a refused connection.
    pub(crate) fn refuse(&mut self, reason: &'static str) {
        self.connections_refused += 1;
        *self.refusals.entry(reason).or_default() += 1;
    }
}

/// The limit of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Nothing: there is no data to move.
    #[default]
    Idle,
    /// The sending applications: the ring has room.
    Source,
    /// Data arrives, and what limits it is known where it is sent.
    Arriving,
    /// The ring: at this rate and round trip it is used whole.
    Ring,
    /// The class has used its share of the gateway's rate, or its own rate.
    Share,
    /// The path: applications have more to send than it carries.
    Path,
    /// The receiving applications: their socket buffers are full, and no other receives.
    Sink,
    /// The next segment, which does not take the arrived data.
    Next,
    /// There is no data channel.
    Channel,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 9] = [
        Self::Idle,
        Self::Source,
        Self::Arriving,
        Self::Ring,
        Self::Share,
        Self::Path,
        Self::Sink,
        Self::Next,
        Self::Channel,
    ];

    /// Returns the name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Source => "source",
            Self::Arriving => "arriving",
            Self::Ring => "ring",
            Self::Share => "share",
            Self::Path => "path",
            Self::Sink => "sink",
            Self::Next => "next",
            Self::Channel => "channel",
        }
    }
}

/// An application's connection.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Connection {
    /// Its number in the session.
    pub number: u32,
    /// Its opener.
    pub from: String,
    /// Its destination.
    pub to: String,
    /// Bytes from the application.
    pub octets_in: u64,
    /// Bytes to the application.
    pub octets_out: u64,
    /// The application sends and is held back.
    pub waits: bool,
    /// Metadata from the application.
    pub metadata: BTreeMap<String, String>,
}
