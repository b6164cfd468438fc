//! Messages of a session in CBOR (RFC 8949), as docs/protocol/session.md lays down.
//!
//! A field or a kind of message that a newer peer adds is skipped by an older one.

use haul_io::file::FileTime;
use minicbor::{Decode, Encode};
use serde::Serialize;

use haul_control::abridged;

use crate::choice::Chosen;
use crate::fault::{Code, Fault, RESUME};
pub use crate::fs::batch::Durable;
use crate::fs::meta::{Keep, Lost};

/// First bytes of a TCP data connection.
pub(crate) const DATA_PREAMBLE: &[u8; 8] = b"hauldat\n";

/// Name of the service in the greeting of a control connection: it carries the version of the
/// session protocol.
pub(crate) const SERVICE: &str = "files/7";
/// Name of the service that reads ranges of files.
pub(crate) const READ_SERVICE: &str = "read";

/// Maximum message, bytes.
pub(crate) const MESSAGE_MAX: usize = 4 << 20;
/// Maximum number of operands of one request.
pub(crate) const OPERANDS_MAX: usize = 65_536;
/// Maximum number of entries that are offered and not finished.
pub(crate) const ENTRIES_OPEN: usize = 65_536;
/// Maximum of [`crate::entry::Entry::weight`] of these entries together, bytes.
pub(crate) const WEIGHT_OPEN: usize = 32 << 20;
/// Maximum number of files that are moved block by block at a time, and so open at both ends.
pub(crate) const FILES_OPEN: usize = 64;
/// Maximum number of runs in one `Wants` message.
pub(crate) const RUNS_MAX: usize = 65_536;

/// Maximum number of runs of pieces that a receiver requests again in one session.
pub(crate) const REPAIRS_MAX: usize = 1 << 16;

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) enum Message {
    /// Client to server: files will be offered for this directory.
    #[n(1)]
    Put(#[n(0)] Put),
    /// Client to server: offer these files.
    #[n(2)]
    Get(#[n(0)] Get),
    #[n(3)]
    Bench(#[n(0)] Bench),
    #[n(4)]
    OpenChannel(#[n(0)] OpenChannel),
    /// Data sender to data receiver: a batch of entries, in order; their index is their id.
    #[n(5)]
    Offer(#[n(0)] Offer),
    /// Data receiver to data sender: what a batch of entries needs.
    #[n(6)]
    Plan(#[n(0)] Plan),
    /// Data receiver to data sender: append these blocks to the transfer space.
    #[n(7)]
    Wants(#[n(0)] Wants),
    /// Data sender to data receiver: digests of consecutive blocks.
    #[n(8)]
    Digests(#[n(0)] Digests),
    #[n(9)]
    Progress(#[n(0)] Progress),
    /// Data sender to data receiver: the source still is what was offered and hashed. The receiver
    /// publishes the file once its own blocks give the same seal.
    #[n(11)]
    Commit(#[n(0)] Commit),
    /// Data receiver to data sender: the file is durable under its final name.
    #[n(12)]
    Done(#[n(0)] FileRoot),
    /// Counters of an end that is done. Sent by the data receiver, answered by the data sender.
    #[n(13)]
    Complete(#[n(0)] Complete),
    /// Data sender to data receiver: the bench space ends here.
    #[n(16)]
    BenchEnd(#[n(0)] BenchEnd),
    /// Data receiver to data sender: its counts.
    #[n(17)]
    BenchReport(#[n(0)] BenchReport),
    /// Data receiver to data sender: send the digests of these blocks, which an earlier session
    /// left here.
    #[n(18)]
    Confirm(#[n(0)] Confirm),
    /// Data receiver to data sender: this block arrived damaged; send the digests of its pieces.
    #[n(19)]
    Locate(#[n(0)] Locate),
    /// Data sender to data receiver: the digests of all pieces of a block.
    #[n(20)]
    Pieces(#[n(0)] Pieces),
    /// Data receiver to data sender: append these pieces of a block to the transfer space.
    #[n(21)]
    Repair(#[n(0)] Repair),
    /// Data receiver to data sender: append these whole files to the transfer space.
    #[n(22)]
    WantFiles(#[n(0)] FileRuns),
    /// Data sender to data receiver: seals of whole files, which it has read unchanged.
    #[n(23)]
    Seals(#[n(0)] Seals),
    /// Data receiver to data sender: these entries are durable under their final names.
    #[n(24)]
    DoneFiles(#[n(0)] FileRuns),
    /// Either end: this entry failed, and the session goes on without it.
    #[n(25)]
    Failed(#[n(0)] Failed),
    /// Data sender to data receiver: this belongs to a tree and is not offered.
    #[n(26)]
    LeftOut(#[n(0)] LeftOut),
    /// Data receiver to data sender: what members lost since the latest of these messages.
    #[n(27)]
    Lost(#[n(0)] Attributes),
    /// Data receiver to data sender: send no faster, until the next one.
    #[n(28)]
    Rate(#[n(0)] Rate),
    /// Client to server, as all of the following in the service `read`: the attributes of a path.
    #[n(29)]
    Stat(#[n(0)] Stat),
    /// Server to client: the answer.
    #[n(30)]
    Found(#[n(0)] Found),
    /// Client to server: append this range of a file to the transfer space.
    #[n(31)]
    Range(#[n(0)] Range),
    /// Server to client: the file still is what the client expects, and the range has this hash.
    #[n(32)]
    Ranged(#[n(0)] Ranged),
    /// Client to server: earlier requests are over.
    #[n(33)]
    Taken(#[n(0)] Taken),
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Put {
    /// Relative to the server's directory.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) directory: Vec<u8>,
    #[n(1)]
    pub(crate) policy: Policy,
    /// [`binding`] of the message as it arrived; zeros in one that is to be sent.
    #[cbor(skip)]
    pub(crate) binding: [u8; 32],
}

/// How the two ends treat files: existing ones, their storage, and what is kept beside content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Policy {
    /// An existing file is replaced.
    #[n(0)]
    pub replace: bool,
    /// Present blocks are hashed again before they count.
    #[n(1)]
    pub recheck: bool,
    /// When the members of a tree become durable.
    #[n(2)]
    pub durable: Durable,
    /// Extended attributes are kept.
    #[n(3)]
    pub xattrs: bool,
    /// Access control lists are kept.
    #[n(4)]
    pub acls: bool,
    /// The set-user-ID and set-group-ID bits and the capabilities of files are kept.
    #[n(5)]
    pub setuid: bool,
    /// A file that is newer at the receiver stays as it is.
    #[cbor(n(6), skip_if = "is_unset", decode_with = "flag")]
    pub update: bool,
    /// What a file that is replaced has in common with the new one, in place, is not transferred.
    #[cbor(n(7), skip_if = "is_unset", decode_with = "flag")]
    pub delta: bool,
    /// The sender will remove what the source does not have. A server that does not let it refuses
    /// the transfer.
    #[cbor(n(8), skip_if = "is_unset", decode_with = "flag")]
    pub deletes: bool,
}

/// Returns whether a flag that later versions added is left out.
pub(crate) const fn is_unset(flag: &bool) -> bool {
    !*flag
}

/// Reads such a flag: it is null where a later version has left it out and more follows.
pub(crate) fn flag<C>(
    decoder: &mut minicbor::Decoder<'_>,
    _: &mut C,
) -> Result<bool, minicbor::decode::Error> {
    if decoder.datatype()? == minicbor::data::Type::Null {
        decoder.null()?;
        return Ok(false);
    }
    decoder.bool()
}

impl Policy {
    /// Returns which attributes are kept; the owner only if this process may set it.
    pub(crate) const fn keep(&self) -> Keep {
        Keep {
            owner: true,
            xattrs: self.xattrs,
            acls: self.acls,
            setuid: self.setuid,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Get {
    /// Relative to the server's directory.
    #[n(0)]
    pub(crate) paths: Vec<minicbor::bytes::ByteVec>,
    #[n(1)]
    pub(crate) policy: Policy,
    /// Which entries of trees; all if absent.
    #[n(2)]
    pub(crate) choice: Option<Chosen>,
    /// As in [`Put`].
    #[cbor(skip)]
    pub(crate) binding: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Bench {
    /// The server sends instead of the client.
    #[n(0)]
    pub(crate) reverse: bool,
    /// End of the space, bytes; `None` where time limits it.
    #[n(1)]
    pub(crate) bytes: Option<u64>,
    /// How long to send, milliseconds.
    #[n(2)]
    pub(crate) time_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct OpenChannel {
    /// 0 TCP, 1 UDT.
    #[n(0)]
    pub(crate) kind: u8,
    /// 62 random bits that the data connections carry: UDT initial sequence number, UDT socket id.
    #[n(1)]
    pub(crate) ticket: u64,
    #[n(2)]
    pub(crate) streams: u16,
    /// Declared rate, bits per second.
    #[n(3)]
    pub(crate) rate_bps: Option<u64>,
    /// Congestion control by name.
    #[n(4)]
    pub(crate) congestion: Option<String>,
    /// Cipher of a sealed channel: 1 AES-128-GCM, 2 ChaCha20-Poly1305.
    #[n(5)]
    pub(crate) cipher: Option<u8>,
    /// The message as it arrived; empty in one that is to be sent.
    #[cbor(skip)]
    pub(crate) arrived: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Offer {
    /// Id of the first entry.
    #[n(0)]
    pub(crate) first: u32,
    /// [`crate::entry::Batch`].
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) entries: Vec<u8>,
    /// No other offer follows.
    #[n(2)]
    pub(crate) is_last: bool,
    /// Bytes of [early data](crate::early); in the first offer only.
    #[n(3)]
    pub(crate) early: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct LeftOut {
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
    /// As in a `Fault`; `None` for a device, pipe or socket.
    #[n(1)]
    pub(crate) code: Option<u16>,
    #[n(2)]
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Rate {
    /// Bits per second; `None` is no limit.
    #[n(0)]
    pub(crate) bps: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Stat {
    /// Relative to the server's directory.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Found {
    /// Number of the request, counted from 0.
    #[n(0)]
    pub(crate) request: u32,
    /// 0 file, 1 directory, 4 special, as in a listing.
    #[n(1)]
    pub(crate) kind: u8,
    #[n(2)]
    pub(crate) size: u64,
    #[n(3)]
    pub(crate) modified: Time,
    /// Permission bits.
    #[n(4)]
    pub(crate) mode: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Range {
    /// Relative to the server's directory.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) path: Vec<u8>,
    #[n(1)]
    pub(crate) offset: u64,
    /// Bytes; at least 1.
    #[n(2)]
    pub(crate) length: u64,
    /// What the file must have.
    #[n(3)]
    pub(crate) size: u64,
    #[n(4)]
    pub(crate) modified: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Ranged {
    #[n(0)]
    pub(crate) request: u32,
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) blake3: [u8; 32],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Taken {
    /// Number of the first request that is not over.
    #[n(0)]
    pub(crate) before: u32,
}

/// The time of the last change of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Time {
    /// Since 1970, rounded down.
    #[n(0)]
    pub(crate) seconds: i64,
    /// Less than 1,000,000,000.
    #[n(1)]
    pub(crate) nanos: u32,
}

impl From<FileTime> for Time {
    fn from(time: FileTime) -> Self {
        Self {
            seconds: time.seconds,
            nanos: time.nanos,
        }
    }
}

impl From<Time> for FileTime {
    fn from(time: Time) -> Self {
        Self {
            seconds: time.seconds,
            nanos: time.nanos,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Encode, Decode)]
pub(crate) struct Plan {
    /// Id of the first entry of the batch.
    #[n(0)]
    pub(crate) first: u32,
    /// Number of its entries.
    #[n(1)]
    pub(crate) count: u32,
    /// A bit for each entry, the lowest of each byte first: it is present already.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub(crate) complete: Vec<u8>,
    /// Files of which parts are present, of this batch or of an earlier one.
    #[n(3)]
    pub(crate) parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Part {
    #[n(0)]
    pub(crate) file: u32,
    /// Bytes that are present and will not be requested.
    #[n(1)]
    pub(crate) present: u64,
    /// A partial copy was thrown away because the source has changed since.
    #[n(2)]
    pub(crate) restarted: bool,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct FileRuns {
    #[n(0)]
    pub(crate) runs: Vec<FileRun>,
}

/// Entries `first..first + count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct FileRun {
    #[n(0)]
    pub(crate) first: u32,
    #[n(1)]
    pub(crate) count: u32,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Seals {
    #[n(0)]
    pub(crate) first: u32,
    /// 32 bytes for each of consecutive files.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) seals: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Failed {
    #[n(0)]
    pub(crate) file: u32,
    /// As in a `Fault`.
    #[n(1)]
    pub(crate) code: u16,
    #[n(2)]
    pub(crate) text: String,
}

impl Failed {
    /// Returns the failure, with no more text than people read.
    pub(crate) fn fault(&self) -> Fault {
        Fault::new(Code::from_number(self.code), abridged(&self.text))
    }
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Wants {
    #[n(0)]
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Confirm {
    #[n(0)]
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Locate {
    #[n(0)]
    pub(crate) file: u32,
    #[n(1)]
    pub(crate) block: u32,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Pieces {
    #[n(0)]
    pub(crate) file: u32,
    #[n(1)]
    pub(crate) block: u32,
    /// 32 bytes for each piece.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub(crate) digests: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Repair {
    #[n(0)]
    pub(crate) file: u32,
    #[n(1)]
    pub(crate) block: u32,
    #[n(2)]
    pub(crate) runs: Vec<PieceRun>,
}

/// Pieces `first..first + count` of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct PieceRun {
    #[n(0)]
    pub(crate) first: u32,
    #[n(1)]
    pub(crate) count: u32,
}

/// Blocks `first..first + count` of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Run {
    #[n(0)]
    pub(crate) file: u32,
    #[n(1)]
    pub(crate) first: u32,
    #[n(2)]
    pub(crate) count: u32,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Digests {
    #[n(0)]
    pub(crate) file: u32,
    #[n(1)]
    pub(crate) first: u32,
    /// 32 bytes for each block.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub(crate) digests: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Progress {
    /// Bytes of the offered files present at the receiver, including those from before.
    #[n(0)]
    pub(crate) present: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Commit {
    #[n(0)]
    pub(crate) file: u32,
    /// [Seal](crate::entry::Entry::seal) of the file as the data sender knows it.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) seal: [u8; 32],
    /// Requested runs of the file beyond this offset of the transfer space need another `Commit`.
    #[n(2)]
    pub(crate) end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct FileRoot {
    #[n(0)]
    pub(crate) file: u32,
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) blake3: [u8; 32],
}

/// Counters of one end of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Complete {
    #[n(0)]
    pub(crate) cpu_user_us: u64,
    #[n(1)]
    pub(crate) cpu_system_us: u64,
    /// Payload that this end placed, or read to send, bytes; repairs included.
    #[n(2)]
    pub(crate) moved: u64,
    /// Payload that the channel retransmitted, bytes.
    #[n(3)]
    pub(crate) retransmitted: u64,
    #[n(4)]
    pub(crate) rtt_us: Option<u32>,
    /// Payload requested again because a block was damaged, bytes.
    #[n(5)]
    pub(crate) repaired: u64,
    /// Causes of `retransmitted`; `None` where the transport does not count them.
    #[n(6)]
    pub(crate) causes: Option<Causes>,
    /// What this end could not keep of members: the data receiver all of it, the data sender what
    /// it could not read.
    #[n(7)]
    pub(crate) lost: Option<Attributes>,
}

/// For each kind of attribute, the number of entries of which it could not be kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Attributes {
    /// Permission bits.
    #[n(0)]
    pub mode: u64,
    /// Set-user-ID, set-group-ID or capabilities.
    #[n(1)]
    pub setuid: u64,
    /// Modification time.
    #[n(2)]
    pub time: u64,
    /// Owner or group.
    #[n(3)]
    pub owner: u64,
    /// Extended attributes.
    #[n(4)]
    pub xattrs: u64,
    /// Access control lists.
    #[n(5)]
    pub acls: u64,
    /// Further names of a file that became files of their own.
    #[n(6)]
    #[cbor(default)]
    pub links: u64,
}

impl Attributes {
    /// Adds what other entries lost.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.mode, other.mode),
            (&mut self.setuid, other.setuid),
            (&mut self.time, other.time),
            (&mut self.owner, other.owner),
            (&mut self.xattrs, other.xattrs),
            (&mut self.acls, other.acls),
            (&mut self.links, other.links),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns whether something was lost.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

impl From<Lost> for Attributes {
    fn from(lost: Lost) -> Self {
        Self {
            mode: lost.mode,
            setuid: lost.setuid,
            time: lost.time,
            owner: lost.owner,
            xattrs: lost.xattrs,
            acls: lost.acls,
            links: lost.links,
        }
    }
}

/// Retransmitted payload by cause, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Causes {
    /// Lost on the path.
    #[n(0)]
    #[serde(rename = "lost_bytes")]
    pub lost: u64,
    /// Arrived after all, later than packets sent after it.
    #[n(1)]
    #[serde(rename = "reordered_bytes")]
    pub reordered: u64,
    /// Refused by the receiver, which had no room.
    #[n(2)]
    #[serde(rename = "refused_bytes")]
    pub refused: u64,
    /// Retransmitted by a timer, because nothing was acknowledged.
    #[n(3)]
    #[serde(rename = "timer_bytes")]
    pub timer: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct BenchEnd {
    #[n(0)]
    pub(crate) end: u64,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct BenchReport {
    /// Bytes received.
    #[n(0)]
    pub(crate) bytes: u64,
    /// From the first byte to the last, microseconds.
    #[n(1)]
    pub(crate) duration_us: u64,
    /// Bytes received in each 100 ms since the first byte.
    #[n(2)]
    pub(crate) intervals: Vec<u64>,
    #[n(3)]
    pub(crate) spent: Complete,
}

impl Message {
    /// Returns the fault of a peer that sends this message in the wrong state.
    pub(crate) fn misplaced(&self) -> Fault {
        let kind = match self {
            Self::Put(_) => "Put",
            Self::Get(_) => "Get",
            Self::Bench(_) => "Bench",
            Self::OpenChannel(_) => "OpenChannel",
            Self::Offer(_) => "Offer",
            Self::Plan(_) => "Plan",
            Self::Wants(_) => "Wants",
            Self::Digests(_) => "Digests",
            Self::Progress(_) => "Progress",
            Self::Commit(_) => "Commit",
            Self::Done(_) => "Done",
            Self::Complete(_) => "Complete",
            Self::BenchEnd(_) => "BenchEnd",
            Self::BenchReport(_) => "BenchReport",
            Self::Confirm(_) => "Confirm",
            Self::Locate(_) => "Locate",
            Self::Pieces(_) => "Pieces",
            Self::Repair(_) => "Repair",
            Self::WantFiles(_) => "WantFiles",
            Self::Seals(_) => "Seals",
            Self::DoneFiles(_) => "DoneFiles",
            Self::Failed(_) => "Failed",
            Self::LeftOut(_) => "LeftOut",
            Self::Lost(_) => "Lost",
            Self::Rate(_) => "Rate",
            Self::Stat(_) => "Stat",
            Self::Found(_) => "Found",
            Self::Range(_) => "Range",
            Self::Ranged(_) => "Ranged",
            Self::Taken(_) => "Taken",
        };
        Fault::protocol(format!("the peer sent '{kind}' at the wrong time"))
    }
}

/// Encodes a message.
pub(crate) fn encode(message: &Message) -> Result<Vec<u8>, Fault> {
    let bytes = minicbor::to_vec(message)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode a message: {error}")))?;
    if bytes.len() > MESSAGE_MAX {
        return Err(Fault::new(
            Code::Other,
            "the list of files is too long for one transfer",
        )
        .hint("send fewer files at a time"));
    }
    Ok(haul_control::next::extend(bytes))
}

/// Hashes the request of a session, `Put` or `Get`: with it a
/// [seal](crate::entry::Entry::seal) covers directories and paths, and fields that only one end
/// knows.
pub(crate) fn binding(request: &Message) -> Result<[u8; 32], Fault> {
    encode(request).map(|bytes| *blake3::hash(&bytes).as_bytes())
}

/// Computes the CRC32C (RFC 3385) of these bytes, big-endian.
pub(crate) fn crc32c(bytes: &[u8]) -> [u8; 4] {
    haul_cc::crc32c(bytes).to_be_bytes()
}

/// Makes the fault of a damaged control message: the connection is lost, and a new one may
/// succeed.
pub(crate) fn damaged() -> Fault {
    Fault::new(Code::PeerGone, "a control message arrived damaged").hint(RESUME)
}

/// Decodes the message in `body`; `None` if its kind is unknown, as of a newer peer.
pub(crate) fn decode(body: &[u8]) -> Result<Option<Message>, Fault> {
    match minicbor::decode(body) {
        Ok(mut message) => {
            match &mut message {
                Message::Put(Put { binding, .. }) | Message::Get(Get { binding, .. }) => {
                    *binding = *blake3::hash(body).as_bytes();
                }
                Message::OpenChannel(open) => open.arrived = body.to_vec(),
                _ => {}
            }
            Ok(Some(message))
        }
        Err(error) if error.is_unknown_variant() => Ok(None),
        Err(error) => Err(Fault::protocol(format!(
            "the peer sent a message that cannot be read: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let message = Message::Offer(Offer {
            first: 9,
            entries: vec![1, 2, 255],
            is_last: true,
            early: Some(7),
        });
        let bytes = encode(&message).unwrap();
        assert_eq!(decode(&bytes).unwrap(), Some(message));
    }

    #[test]
    fn a_field_of_a_newer_version_is_skipped() {
        #[derive(Encode)]
        struct NewerProgress {
            #[n(0)]
            present: u64,
            #[n(1)]
            more: String,
            #[n(7)]
            yet_more: Vec<u64>,
        }
        #[derive(Encode)]
        enum Newer {
            #[n(9)]
            Progress(#[n(0)] NewerProgress),
        }
        let newer = Newer::Progress(NewerProgress {
            present: 5,
            more: "x".into(),
            yet_more: vec![1, 2],
        });
        let bytes = minicbor::to_vec(&newer).unwrap();
        assert_eq!(
            decode(&bytes).unwrap(),
            Some(Message::Progress(Progress { present: 5 }))
        );
    }

    #[test]
    fn a_message_of_a_newer_version_is_skipped() {
        #[derive(Encode)]
        enum Newer {
            #[n(99)]
            Unheard(#[n(0)] u8),
        }
        let bytes = minicbor::to_vec(Newer::Unheard(1)).unwrap();
        assert_eq!(decode(&bytes).unwrap(), None);
    }

    proptest! {
        #[test]
        fn junk_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&bytes);
        }
    }
}
