//! What a session tells while it runs and when it is over.

use std::time::Duration;

use serde::Serialize;

use crate::fault::Fault;
pub use crate::wire::Causes;

/// Follows a session. Called from its threads, a few times a second.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event<'_>);
}

/// What happens in a session.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// Both ends have said hello.
    Connected {
        /// The other end's address.
        peer: &'a str,
        /// Its software and version.
        software: &'a str,
    },
    /// It is known what there is to move.
    Planned {
        /// How many files are offered.
        files: usize,
        /// Bytes of all of them.
        total: u64,
        /// Bytes that are at the receiver already.
        present: u64,
    },
    /// Bytes have arrived.
    Progress {
        /// Bytes at the receiver, those there before included.
        present: u64,
        /// Bytes of all files.
        total: u64,
        /// Payload that this attempt has moved: at the sender what has left, at the receiver what
        /// was placed.
        moved: u64,
    },
    /// A measurement goes on.
    Measured {
        /// Payload that it has moved: at the sender what has left, at the receiver what arrived.
        bytes: u64,
    },
    /// An attempt has ended, whether it succeeded or not.
    AttemptOver {
        /// Payload that it has moved.
        moved: u64,
    },
    /// A file is durable under its final name.
    FileDone(&'a FileResult),
    /// Something the user should know, one line.
    Note(&'a str),
    /// The connection broke; it is tried again after a pause.
    Retrying {
        /// Why.
        fault: &'a Fault,
        /// The pause.
        after: Duration,
    },
}

/// Which way the files went, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Client to server.
    Send,
    /// Server to client.
    Get,
}

/// One file of a finished transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileResult {
    /// Its name, printable.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of the whole file in hexadecimal; none for a file that was there already.
    pub blake3: Option<String>,
    /// Bytes that were at the receiver before this command.
    pub resumed_bytes: u64,
    /// Whether it was copied.
    pub status: FileStatus,
}

impl FileResult {
    pub(crate) fn copied(
        name: &impl std::fmt::Display,
        bytes: u64,
        root: [u8; 32],
        resumed_bytes: u64,
    ) -> Self {
        Self {
            name: name.to_string(),
            bytes,
            blake3: Some(blake3::Hash::from_bytes(root).to_hex().to_string()),
            resumed_bytes,
            status: FileStatus::Copied,
        }
    }
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    /// It was moved, verified and named.
    Copied,
    /// A file of the same name, size and time was there.
    AlreadyThere,
}

/// Processor time of one end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// Seconds in the program.
    pub cpu_user_s: f64,
    /// Seconds in the kernel on its behalf.
    pub cpu_system_s: f64,
    /// Both, for each 10^9 bytes moved; none where nothing was moved.
    pub cpu_s_per_gb: Option<f64>,
}

/// A finished transfer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Which way.
    pub direction: Direction,
    /// The server's address.
    pub peer: String,
    /// Kind of channel.
    pub channel: &'static str,
    /// Parallel streams.
    pub streams: u16,
    /// Every file.
    pub files: Vec<FileResult>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were at the receiver before this command.
    pub resumed_bytes: u64,
    /// Payload that the receiver placed, repairs included. Of an attempt that broke, a sender knows
    /// only what has left.
    pub moved_bytes: u64,
    /// Payload sent a second time because a block arrived damaged.
    pub repaired_bytes: u64,
    /// Payload that the channel's transport sent again.
    pub retransmitted_bytes: u64,
    /// Of `retransmitted_bytes`; none where the transport does not count by cause (TCP).
    pub retransmitted_by_cause: Option<Causes>,
    /// Share of `moved_bytes`; none where nothing was moved.
    pub retransmitted_share: Option<f64>,
    /// Smoothed round-trip time at the end.
    pub rtt_ms: Option<f64>,
    /// From the first connection to the last file's name.
    pub seconds: f64,
    /// `moved_bytes` in bits over `seconds`.
    pub goodput_bps: f64,
    /// How often the connection was made anew.
    pub reconnects: u32,
    /// The end that had the files.
    pub sender: Cpu,
    /// The end that got them.
    pub receiver: Cpu,
}

/// A finished memory-to-memory measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchSummary {
    /// The server's address.
    pub peer: String,
    /// Kind of channel.
    pub channel: &'static str,
    /// Parallel streams.
    pub streams: u16,
    /// The server sent.
    pub reverse: bool,
    /// From the first byte received to the last.
    pub seconds: f64,
    /// Bytes received.
    pub bytes: u64,
    /// `bytes` in bits over `seconds`.
    pub goodput_bps: f64,
    /// Payload that the transport sent again.
    pub retransmitted_bytes: u64,
    /// Share of `bytes`; none where nothing was received.
    pub retransmitted_share: Option<f64>,
    /// Smoothed round-trip time at the end.
    pub rtt_ms: Option<f64>,
    /// What the receiver counted, every 100 ms since the first byte.
    pub intervals: Vec<Interval>,
    /// The sending end.
    pub sender: Cpu,
    /// The receiving end.
    pub receiver: Cpu,
}

/// Bytes received in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Seconds since the first byte.
    pub start_s: f64,
    /// Seconds since the first byte.
    pub end_s: f64,
    /// Bytes received in between.
    pub bytes: u64,
}
