//! Control messages: CBOR (RFC 8949) between a 32-bit length and a CRC32C, as
//! docs/protocol/session.md lays down.
//!
//! A field or a kind of message that a newer peer adds is skipped by an older one.

use minicbor::{Decode, Decoder, Encode};
use serde::Serialize;

use crate::fault::{Code, Fault, RESUME};

/// First bytes of a control connection, in both directions.
pub(crate) const CONTROL_PREAMBLE: &[u8; 8] = b"haulctl\n";
/// First bytes of a TCP data connection.
pub(crate) const DATA_PREAMBLE: &[u8; 8] = b"hauldat\n";

/// The protocol versions that this build speaks.
pub(crate) const VERSIONS: std::ops::RangeInclusive<u16> = 4..=4;

/// Length field before a message, bytes.
pub(crate) const LENGTH: usize = 4;
/// CRC32C after a message, bytes.
pub(crate) const CHECK: usize = 4;
/// Maximum control message with its check, bytes.
pub(crate) const MESSAGE_MAX: usize = 4 << 20;
/// Maximum number of files in one transfer.
pub(crate) const FILES_MAX: usize = 4096;
/// Maximum number of runs in one `Wants` message.
pub(crate) const RUNS_MAX: usize = 65_536;

/// Maximum number of runs of pieces that a receiver requests again in one session.
pub(crate) const REPAIRS_MAX: usize = 1 << 16;

/// Identifies a transfer: chosen at random by the client and kept when it reconnects.
pub(crate) type TransferId = [u8; 16];

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) enum Message {
    #[n(0)]
    Hello(#[n(0)] Hello),
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
    /// Data sender to data receiver: the files, in order; their index is their id.
    #[n(5)]
    Offer(#[n(0)] Offer),
    /// Data receiver to data sender: what is present already.
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
    #[n(14)]
    Error(#[n(0)] WireError),
    /// Heartbeat.
    #[n(15)]
    Ping,
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
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Hello {
    #[n(0)]
    pub(crate) version_min: u16,
    #[n(1)]
    pub(crate) version_max: u16,
    /// Software and its version, for people.
    #[n(2)]
    pub(crate) software: String,
    #[cbor(n(3), with = "minicbor::bytes")]
    pub(crate) transfer: TransferId,
    /// Peer timeout of both ends, milliseconds.
    #[n(4)]
    pub(crate) dead_after_ms: u32,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Put {
    /// Relative to the server's directory.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) directory: Vec<u8>,
    #[n(1)]
    pub(crate) policy: Policy,
}

/// How a data receiver treats existing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Policy {
    /// An existing file is replaced.
    #[n(0)]
    pub replace: bool,
    /// Present blocks are hashed again before they count.
    #[n(1)]
    pub recheck: bool,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Get {
    /// Relative to the server's directory.
    #[n(0)]
    pub(crate) paths: Vec<minicbor::bytes::ByteVec>,
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
    pub(crate) token: u64,
    #[n(2)]
    pub(crate) streams: u16,
    /// Declared rate, bits per second.
    #[n(3)]
    pub(crate) rate_bps: Option<u64>,
    /// Congestion control by name.
    #[n(4)]
    pub(crate) congestion: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Offer {
    #[n(0)]
    pub(crate) files: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Entry {
    #[cbor(n(0), with = "minicbor::bytes")]
    pub(crate) name: Vec<u8>,
    #[n(1)]
    pub(crate) size: u64,
    #[n(2)]
    pub(crate) modified: Time,
    #[n(3)]
    pub(crate) mode: u32,
    /// Size and time of the source prove nothing about its content: no file that exists counts as
    /// this one.
    #[n(4)]
    pub(crate) unproven: bool,
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

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct Plan {
    /// One for each offered file.
    #[n(0)]
    pub(crate) files: Vec<FilePlan>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct FilePlan {
    /// Bytes that are present and will not be requested.
    #[n(0)]
    pub(crate) present: u64,
    /// The whole file is present under its final name.
    #[n(1)]
    pub(crate) complete: bool,
    /// A partial copy was thrown away because the source has changed since.
    #[n(2)]
    pub(crate) restarted: bool,
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
    /// [`seal`] of the file as the data sender knows it.
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

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(crate) struct WireError {
    #[n(0)]
    pub(crate) code: u16,
    #[n(1)]
    pub(crate) text: String,
    #[n(2)]
    pub(crate) hint: Option<String>,
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
            Self::Hello(_) => "Hello",
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
            Self::Error(_) => "Error",
            Self::Ping => "Ping",
            Self::BenchEnd(_) => "BenchEnd",
            Self::BenchReport(_) => "BenchReport",
            Self::Confirm(_) => "Confirm",
            Self::Locate(_) => "Locate",
            Self::Pieces(_) => "Pieces",
            Self::Repair(_) => "Repair",
        };
        Fault::protocol(format!("the peer sent '{kind}' at the wrong time"))
    }
}

impl From<&Fault> for WireError {
    fn from(fault: &Fault) -> Self {
        Self {
            code: fault.code.number(),
            text: fault.text.clone(),
            hint: fault.hint.clone(),
        }
    }
}

impl WireError {
    /// Returns the failure as this end reports it; `peer` names where it arose.
    pub(crate) fn into_fault(self, peer: &str) -> Fault {
        let fault = Fault::new(
            Code::from_number(self.code),
            format!("{peer}: {}", abridged(&self.text)),
        );
        match self.hint {
            Some(hint) => fault.hint(abridged(&hint)),
            None => fault,
        }
    }
}

/// Cuts a peer's text to what is shown: more than a screen explains nothing.
pub(crate) fn abridged(words: &str) -> &str {
    /// Room for the longest path and what is wrong with it.
    const CHARS_MAX: usize = 6_000;
    let end = words.char_indices().nth(CHARS_MAX);
    end.map_or(words, |(end, _)| &words[..end])
}

/// Encodes a message: length, CBOR, check.
pub(crate) fn encode(message: &Message) -> Result<Vec<u8>, Fault> {
    let mut frame = vec![0; LENGTH];
    minicbor::encode(message, &mut frame)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode a message: {error}")))?;
    let length = frame.len() - LENGTH + CHECK;
    if length > MESSAGE_MAX {
        return Err(Fault::new(
            Code::Other,
            "the list of files is too long for one transfer",
        )
        .hint("send fewer files at a time"));
    }
    let length = u32::try_from(length).map_err(|_| Fault::protocol("message too long"))?;
    frame[..LENGTH].copy_from_slice(&length.to_be_bytes());
    let check = crc32c(&frame);
    frame.extend_from_slice(&check);
    Ok(frame)
}

/// Hashes the request of a session, `Put` or `Get`: with it a [`seal`] covers directories and
/// paths.
pub(crate) fn binding(request: &Message) -> Result<[u8; 32], Fault> {
    encode(request).map(|frame| *blake3::hash(&frame).as_bytes())
}

/// Hashes what both ends must agree on before a file is published: the request, the file's entry in
/// the offer, and its content. A CRC32C misses one damaged message in 2^32, and a wrong name looks
/// like any other.
pub(crate) fn seal(binding: &[u8; 32], entry: &Entry, root: &[u8; 32]) -> Result<[u8; 32], Fault> {
    let mut bytes = [&binding[..], &root[..]].concat();
    minicbor::encode(entry, &mut bytes)
        .map_err(|error| Fault::new(Code::Other, format!("cannot encode a message: {error}")))?;
    Ok(*blake3::hash(&bytes).as_bytes())
}

/// Returns whether these bytes are this preamble. Damage that TCP's checksum missed may have
/// flipped a bit, and what follows has its own check. The two preambles differ in eight bits.
pub(crate) fn is_preamble(bytes: [u8; 8], preamble: &[u8; 8]) -> bool {
    (u64::from_be_bytes(bytes) ^ u64::from_be_bytes(*preamble)).count_ones() <= 2
}

/// Computes the CRC32C (RFC 3385) of these bytes, big-endian.
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    haul_cc::crc32c(bytes).to_be_bytes()
}

/// Returns the CBOR of a complete frame; `None` if its check fails.
pub(crate) fn checked(frame: &[u8]) -> Option<&[u8]> {
    let (covered, check) = frame.split_last_chunk::<CHECK>()?;
    (crc32c(covered) == *check).then(|| covered.get(LENGTH..))?
}

/// Parses the `Hello` of a peer of another version, whose messages have no check.
pub(crate) fn unchecked_hello(frame: &[u8]) -> Option<Hello> {
    let mut decoder = Decoder::new(frame.get(LENGTH..)?);
    match decoder.decode() {
        Ok(Message::Hello(hello))
            if decoder.position() + LENGTH == frame.len()
                && !(hello.version_min..=hello.version_max).contains(VERSIONS.end()) =>
        {
            Some(hello)
        }
        _ => None,
    }
}

/// Makes the fault of a damaged control message: the connection is lost, and a new one may
/// succeed.
pub(crate) fn damaged() -> Fault {
    Fault::new(Code::PeerGone, "a control message arrived damaged").hint(RESUME)
}

/// Decodes the message in `body`; `None` if its kind is unknown, as of a newer peer.
pub(crate) fn decode(body: &[u8]) -> Result<Option<Message>, Fault> {
    match minicbor::decode(body) {
        Ok(message) => Ok(Some(message)),
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
            files: vec![Entry {
                name: b"a\xff".to_vec(),
                size: 7,
                modified: Time {
                    seconds: -1,
                    nanos: 999_999_999,
                },
                mode: 0o644,
                unproven: false,
            }],
        });
        let frame = encode(&message).unwrap();
        assert_eq!(
            frame[..LENGTH],
            u32::try_from(frame.len() - LENGTH).unwrap().to_be_bytes()
        );
        assert_eq!(decode(checked(&frame).unwrap()).unwrap(), Some(message));
    }

    #[test]
    fn a_seal_covers_the_request_the_name_and_what_else_was_offered() {
        let put = |directory: &[u8]| {
            let policy = Policy {
                replace: true,
                recheck: false,
            };
            let directory = directory.to_vec();
            binding(&Message::Put(Put { directory, policy })).unwrap()
        };
        let entry = Entry {
            name: b"name".to_vec(),
            size: 7,
            modified: Time {
                seconds: 5,
                nanos: 6,
            },
            mode: 0o644,
            unproven: false,
        };
        let sealed = |change: fn(&mut Entry)| {
            let mut entry = entry.clone();
            change(&mut entry);
            seal(&put(b"in"), &entry, &[9; 32]).unwrap()
        };
        let same = sealed(|_| {});
        assert_eq!(seal(&put(b"in"), &entry, &[9; 32]).unwrap(), same);
        for other in [
            sealed(|entry| entry.name[3] ^= 1),
            sealed(|entry| entry.size ^= 1),
            sealed(|entry| entry.modified.seconds ^= 1),
            sealed(|entry| entry.modified.nanos ^= 1),
            sealed(|entry| entry.mode ^= 1),
            sealed(|entry| entry.unproven ^= true),
            seal(&put(b"io"), &entry, &[9; 32]).unwrap(),
            seal(&put(b"in"), &entry, &[8; 32]).unwrap(),
        ] {
            assert_ne!(other, same);
        }
    }

    #[test]
    fn a_preamble_with_a_flipped_bit_is_known_and_the_two_are_not_mistaken() {
        for (ours, other) in [
            (CONTROL_PREAMBLE, DATA_PREAMBLE),
            (DATA_PREAMBLE, CONTROL_PREAMBLE),
        ] {
            for bit in 0..64 {
                let flipped = (u64::from_be_bytes(*ours) ^ 1 << bit).to_be_bytes();
                assert!(is_preamble(flipped, ours) && !is_preamble(flipped, other));
            }
        }
        assert!(!is_preamble(*b"HTTP/1.1", CONTROL_PREAMBLE));
    }

    #[test]
    fn every_flipped_bit_of_a_message_is_noticed() {
        let message = Message::Commit(Commit {
            file: 70_000,
            seal: [7; 32],
            end: 1 << 40,
        });
        let frame = encode(&message).unwrap();
        for bit in 0..frame.len() * 8 {
            let mut frame = frame.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(checked(&frame), None, "bit {bit}");
        }
    }

    #[test]
    fn the_hello_of_an_end_without_checks_is_known_and_a_damaged_one_is_not() {
        let hello = |version| Hello {
            version_min: version,
            version_max: version,
            software: "haul 0".into(),
            transfer: [7; 16],
            dead_after_ms: 1,
        };
        let body = minicbor::to_vec(Message::Hello(hello(1))).unwrap();
        let old = [&[0, 0, 0, 0], &body[..]].concat();
        assert_eq!(unchecked_hello(&old), Some(hello(1)));
        let ours = encode(&Message::Hello(hello(*VERSIONS.end()))).unwrap();
        for bit in 0..ours.len() * 8 {
            let mut ours = ours.clone();
            ours[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unchecked_hello(&ours), None, "bit {bit}");
        }
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

    #[test]
    fn a_peer_that_talks_too_much_is_cut_short() {
        let error = WireError {
            code: 1,
            text: "ä".repeat(1 << 20),
            hint: Some("ß".repeat(1 << 20)),
        };
        let fault = error.into_fault("the server");
        assert!(fault.text.len() < 13_000 && fault.text.starts_with("the server: ä"));
        assert!(fault.hint.is_some_and(|hint| hint.len() < 13_000));
    }

    proptest! {
        #[test]
        fn junk_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&bytes);
        }
    }
}
