//! Selective feedback between Longhaul ends: a user-defined control packet, which plain UDT ignores
//! (docs/protocol/udt.md).

use super::field::{ParseError, double_word, word};
use super::ranges::LossRanges;
use crate::seq::Seq;

/// The receiver's report on arrived packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback<'a> {
    /// Counts up; older feedback that comes late is void.
    pub number: u32,
    /// Everything before it has arrived.
    pub next: Seq,
    /// One past the highest packet that arrived.
    pub highest: Seq,
    /// The packet that arrived last.
    pub echo: Seq,
    /// How long ago it arrived, microseconds.
    pub echo_age_us: u32,
    /// Wire bytes that arrived so far, repeats included.
    pub arrived_bytes: u64,
    /// When the last of them arrived, by the receiver's clock, nanoseconds.
    pub arrived_at_ns: u64,
    /// Packets from here on would not be taken.
    pub packet_limit: Seq,
    /// Payload from this stream offset on would not be taken.
    pub offset_limit: u64,
    /// Packets that arrived again, so far.
    pub duplicates: u32,
    /// How late a packet overtaken by others has come lately, microseconds.
    pub reorder_us: u32,
    /// The packet that a back-to-back train begins with …
    pub train_from: Seq,
    /// … wire bytes of it that came after its first arrival …
    pub train_bytes: u32,
    /// … and how long they took, nanoseconds: its dispersion.
    pub train_ns: u32,
    /// Packets that arrived with a mark of congestion, so far; the count wraps.
    pub marked_packets: u32,
    /// Number of the latest sender info that arrived: this feedback was written after it.
    pub probe: u32,
    /// Packets that arrived and were not taken for want of room, so far; the count wraps.
    pub refused: u32,
    /// `gaps` list all that is missing from here …
    pub covered_from: Seq,
    /// … to here, excluded.
    pub covered_to: Seq,
    /// The missing packets, ascending.
    pub gaps: LossRanges<'a>,
}

const FIXED_WORDS: usize = 21;
/// Words of gaps that a feedback packet may carry: it fits every path that IPv6 allows (1,280
/// bytes).
pub const FEEDBACK_GAP_WORDS_MAX: usize = 280;

impl<'a> Feedback<'a> {
    pub(super) fn parse(number: u32, body: &'a [u8]) -> Result<Self, ParseError> {
        let short = ParseError::Short {
            what: "feedback",
            len: body.len(),
        };
        let (fixed, gaps) = body.split_at_checked(FIXED_WORDS * 4).ok_or(short)?;
        Ok(Self {
            number,
            next: Seq::new(word(fixed, 0)),
            highest: Seq::new(word(fixed, 1)),
            echo: Seq::new(word(fixed, 2)),
            echo_age_us: word(fixed, 3),
            arrived_bytes: double_word(fixed, 4),
            arrived_at_ns: double_word(fixed, 6),
            packet_limit: Seq::new(word(fixed, 8)),
            offset_limit: double_word(fixed, 9),
            duplicates: word(fixed, 11),
            reorder_us: word(fixed, 12),
            covered_from: Seq::new(word(fixed, 13)),
            covered_to: Seq::new(word(fixed, 14)),
            train_bytes: word(fixed, 15),
            train_ns: word(fixed, 16),
            marked_packets: word(fixed, 17),
            train_from: Seq::new(word(fixed, 18)),
            probe: word(fixed, 19),
            refused: word(fixed, 20),
            gaps: LossRanges::parse(gaps)?,
        })
    }

    /// Writes all but the gaps.
    pub(super) fn emit_fixed(&self, out: &mut Vec<u8>) {
        let mut push = |word: u32| out.extend_from_slice(&word.to_be_bytes());
        push(self.next.get());
        push(self.highest.get());
        push(self.echo.get());
        push(self.echo_age_us);
        push(upper(self.arrived_bytes));
        push(lower(self.arrived_bytes));
        push(upper(self.arrived_at_ns));
        push(lower(self.arrived_at_ns));
        push(self.packet_limit.get());
        push(upper(self.offset_limit));
        push(lower(self.offset_limit));
        push(self.duplicates);
        push(self.reorder_us);
        push(self.covered_from.get());
        push(self.covered_to.get());
        push(self.train_bytes);
        push(self.train_ns);
        push(self.marked_packets);
        push(self.train_from.get());
        push(self.probe);
        push(self.refused);
    }
}

fn upper(value: u64) -> u32 {
    (value >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn lower(value: u64) -> u32 {
    value as u32
}

/// The data sender's request for feedback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderInfo {
    /// Interval between feedback while data arrives, microseconds.
    pub feedback_interval_us: u32,
    /// The start of the train whose dispersion is requested.
    pub train_from: Seq,
    /// Counts up; the feedback that answers carries it.
    pub number: u32,
}

impl SenderInfo {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() < 12 {
            return Err(ParseError::Short {
                what: "sender info",
                len: body.len(),
            });
        }
        Ok(Self {
            feedback_interval_us: word(body, 0),
            train_from: Seq::new(word(body, 1)),
            number: word(body, 2),
        })
    }

    pub(super) fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.feedback_interval_us.to_be_bytes());
        out.extend_from_slice(&self.train_from.get().to_be_bytes());
        out.extend_from_slice(&self.number.to_be_bytes());
    }
}
