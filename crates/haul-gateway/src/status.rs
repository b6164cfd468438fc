//! What there is to show of a session: for the page, the metrics, the log.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::ChannelKind;

/// A session as it was a moment ago.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// Its name, in hexadecimal.
    pub session: String,
    /// What this gateway is in it.
    pub role: Role,
    /// How far it is, or that of its segments that is not open.
    pub state: String,
    /// When it was opened: nanoseconds of the monotonic clock.
    pub since_ns: u64,
    /// When it was like this: nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Hops from the opener, which is none of them, to the terminus.
    pub hops: Vec<String>,
    /// Hops between the opener and this gateway, itself counted: 0 at the opener, `hops.len()` at
    /// the terminus.
    pub position: usize,
    /// What the segments from here to the terminus have agreed to use, the nearest first. A segment
    /// of others may have fallen back since.
    pub agreed: Vec<Option<ChannelKind>>,
    /// Its segments at this gateway: towards the opener, towards the terminus.
    pub segments: Vec<Segment>,
    /// Connections of programs.
    pub connections: Vec<Connection>,
    /// Connections that there are and that are not listed.
    pub more_connections: usize,
    /// Octets of memory that the session holds for slabs.
    pub memory: u64,
    /// What it has asked of the network.
    pub paths: Vec<Path>,
    /// What the application says about it.
    pub metadata: BTreeMap<String, String>,
}

/// What a session has asked of the network, and what one of those asked says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Path {
    /// What is wanted.
    pub rules: String,
    /// Which gateway says how it is; empty, until one has.
    pub gateway: String,
    /// How it is: `pending`, `up`, `failed` or `down`.
    pub state: &'static str,
    /// In words.
    pub text: String,
}

/// What a gateway is in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A control connection that has not said what it wants.
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
    /// In a word.
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

/// One end of one segment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Segment {
    /// The hop at its other end.
    pub peer: String,
    /// How far it is.
    pub state: String,
    /// Who that has proved to be.
    pub identity: Option<String>,
    /// What moves the octets; none while there is no data channel.
    pub channel: Option<ChannelKind>,
    /// Queue pairs of it.
    pub lanes: usize,
    /// Round trip without queues, ns.
    pub rtt_ns: u64,
    /// Octets that went out in slabs, and came in.
    pub octets_out: u64,
    /// Octets that came in.
    pub octets_in: u64,
    /// Octets per second that went out of late; whoever looks computes them.
    pub rate_out: f64,
    /// Octets per second that came in of late.
    pub rate_in: f64,
    /// Octets of the ring that are occupied.
    pub ring_used: u64,
    /// Octets of the ring that are in use at present.
    pub ring_size: u64,
    /// Octets of the arena that are promised or hold something.
    pub arena_used: u64,
    /// Octets of the arena.
    pub arena_size: u64,
    /// Octets that are announced and not acknowledged.
    pub window_used: u64,
    /// How many of them the peer lets there be; none until it has said so.
    pub window_size: Option<u64>,
    /// Slabs that are announced and not acknowledged.
    pub slabs_unacked: usize,
    /// Reads or writes under way.
    pub posts: usize,
    /// Segments that were sent more than once.
    pub resent: u64,
    /// What keeps it from being faster.
    pub limit: Limit,
}

/// What a gateway has done since it was started.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Totals {
    /// Sessions that it opened, that ended at it, or that passed through it.
    pub sessions: u64,
    /// Sessions that it refused to others, or whose peer could not prove who it is.
    pub sessions_refused: u64,
    /// Connections of programs that it took, or made for others.
    pub connections: u64,
    /// Connections of programs that came to nothing.
    pub connections_refused: u64,
    /// Times that a changed configuration was taken.
    pub reloads: u64,
    /// Times that one was not.
    pub reloads_failed: u64,
}

/// The stage that limits a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Nothing: there is nothing to move.
    #[default]
    Idle,
    /// The programs that send: there is room for more.
    Source,
    /// The ring is full: the path, or its round trip, is more than the ring holds.
    Ring,
    /// Its class has had its share of the gateway's rate, or all of its own.
    Share,
    /// The path: all reads that it may have are under way.
    Path,
    /// The programs that receive: what is here is not taken.
    Sink,
    /// The next segment: what has come in cannot go on.
    Next,
    /// There is no data channel.
    Channel,
}

impl Limit {
    /// All that there are.
    pub const ALL: [Self; 8] = [
        Self::Idle,
        Self::Source,
        Self::Ring,
        Self::Share,
        Self::Path,
        Self::Sink,
        Self::Next,
        Self::Channel,
    ];

    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Source => "source",
            Self::Ring => "ring",
            Self::Share => "share",
            Self::Path => "path",
            Self::Sink => "sink",
            Self::Next => "next",
            Self::Channel => "channel",
        }
    }
}

/// A program's connection.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Connection {
    /// Its number.
    pub number: u32,
    /// Whence.
    pub from: String,
    /// Where to.
    pub to: String,
    /// Octets from the program.
    pub octets_in: u64,
    /// Octets to it.
    pub octets_out: u64,
    /// It sends, and is made to wait.
    pub waits: bool,
    /// What its application says about it.
    pub metadata: BTreeMap<String, String>,
}
