//! Events of a running session and summaries of a finished one.

use std::time::Duration;

use serde::Serialize;

use crate::fault::Fault;
pub use crate::wire::{Attributes, Causes};

/// Formats a count: `1 entry`, `2 entries`.
#[must_use]
pub fn count_of(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Follows a session.
pub trait Observer: Send + Sync {
    /// Takes an event. Called from the session's threads, a few times a second; must not block.
    fn event(&self, event: &Event<'_>);
}

/// Events of a session.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// Both ends have exchanged `Hello`.
    Connected {
        /// The other end's address.
        peer: &'a str,
        /// Its software and version.
        software: &'a str,
    },
    /// The receiver has planned the transfer.
    Planned {
        /// Number of offered files.
        files: usize,
        /// Bytes of all of them.
        total: u64,
        /// Bytes already present at the receiver.
        present: u64,
    },
    /// Bytes have arrived.
    Progress {
        /// Bytes present at the receiver, including those from before.
        present: u64,
        /// Bytes of all files.
        total: u64,
        /// Payload that this attempt has moved: sent by the sender, or placed by the receiver.
        moved: u64,
        /// Bytes that were present at the receiver before this attempt, as far as it is known.
        resumed: u64,
        /// Files and links that are finished.
        files: u64,
        /// All files are known: `total` is final.
        is_scanned: bool,
    },
    /// Progress of a measurement.
    Measured {
        /// Payload moved: sent by the sender, or received by the receiver.
        bytes: u64,
    },
    /// An attempt has ended, with or without success.
    AttemptOver {
        /// Payload moved.
        moved: u64,
    },
    /// A file is durable under its final name.
    FileDone(&'a FileResult),
    /// A member of a tree failed; the transfer goes on.
    Failed {
        /// As it was offered.
        path: &'a [u8],
        /// Why.
        fault: &'a Fault,
    },
    /// A line for the user.
    Note(&'a str),
    /// The connection failed; the client reconnects after a pause.
    Retrying {
        /// Why.
        fault: &'a Fault,
        /// The pause.
        after: Duration,
    },
}

/// Direction of a transfer, as the client sees it.
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
    /// BLAKE3 of the whole file in hexadecimal; `None` for a file that was present already, or that
    /// has holes.
    pub blake3: Option<String>,
    /// Bytes present at the receiver before this command.
    pub resumed_bytes: u64,
    /// What became of it.
    pub status: FileStatus,
}

impl FileResult {
    pub(crate) fn copied(
        name: &impl std::fmt::Display,
        bytes: u64,
        root: Option<[u8; 32]>,
        resumed_bytes: u64,
    ) -> Self {
        Self {
            name: name.to_string(),
            bytes,
            blake3: root.map(|root| blake3::Hash::from_bytes(root).to_hex().to_string()),
            resumed_bytes,
            status: FileStatus::Copied,
        }
    }
}

/// The outcome of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    /// It was moved, verified and published.
    Copied,
    /// A file of the same name, size and time was present.
    AlreadyThere,
}

/// Numbers of the entries of a transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Entries {
    /// Regular files; further names of one are links.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic and hard links.
    pub links: u64,
    /// Files and links that were made.
    pub copied: u64,
    /// Files and links that were present as offered.
    pub skipped: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Devices, pipes and sockets, which are not copied.
    pub special: u64,
}

/// Processor time of one end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// Seconds in user mode.
    pub cpu_user_s: f64,
    /// Seconds in the kernel.
    pub cpu_system_s: f64,
    /// Both, per 10^9 bytes moved; `None` if nothing was moved.
    pub cpu_s_per_gb: Option<f64>,
}

/// A finished transfer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Direction.
    pub direction: Direction,
    /// The server's address.
    pub peer: String,
    /// Kind of channel.
    pub channel: &'static str,
    /// Parallel streams.
    pub streams: u16,
    /// Each file that was named by itself; the members of trees are only counted.
    pub files: Vec<FileResult>,
    /// Numbers of everything offered.
    pub entries: Entries,
    /// Entries of which an attribute could not be kept.
    pub lost: Attributes,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes present at the receiver before this command.
    pub resumed_bytes: u64,
    /// Payload that the receiver placed, repairs included. Of an attempt that failed, a sender
    /// counts what it sent.
    pub moved_bytes: u64,
    /// Payload repaired because a block arrived damaged.
    pub repaired_bytes: u64,
    /// Payload that the transport retransmitted.
    pub retransmitted_bytes: u64,
    /// Causes of `retransmitted_bytes`; `None` where the transport does not count them (TCP).
    pub retransmitted_by_cause: Option<Causes>,
    /// Share of `moved_bytes`; `None` if nothing was moved.
    pub retransmitted_share: Option<f64>,
    /// Smoothed round-trip time at the end.
    pub rtt_ms: Option<f64>,
    /// From the first connection to the last file's name.
    pub seconds: f64,
    /// `moved_bytes` in bits over `seconds`.
    pub goodput_bps: f64,
    /// Number of reconnects.
    pub reconnects: u32,
    /// The data sender.
    pub sender: Cpu,
    /// The data receiver.
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
    /// Whether the server sent.
    pub reverse: bool,
    /// From the first byte received to the last.
    pub seconds: f64,
    /// Bytes received.
    pub bytes: u64,
    /// `bytes` in bits over `seconds`.
    pub goodput_bps: f64,
    /// Payload that the transport retransmitted.
    pub retransmitted_bytes: u64,
    /// Share of `bytes`; `None` if nothing was received.
    pub retransmitted_share: Option<f64>,
    /// Smoothed round-trip time at the end.
    pub rtt_ms: Option<f64>,
    /// The receiver's counts, per 100 ms since the first byte.
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
