//! The receiving side of one peer: which packets have arrived, and their effects once all before
//! them have arrived.
//!
//! A packet counts once, by its number. The packets of a message follow one another, so a message
//! of which every packet fits one first number, and of which as many came as it has, is complete:
//! no ranges are kept. Effects wait for all packets before theirs, which is the order of messages.
//! This state exists only while packets are missing.

use std::collections::BTreeMap;
use std::ops::Range;

use super::bits::Bits;
use crate::datagram::wire::MsgId;
use crate::operation::RecvWr;
use crate::stag::Stag;
use crate::wire::rdmap::{AtomicRequest, AtomicResponse, ReadRequest};

/// The receiving side of a peer, kept as long as the peer: the next packet expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// All packets before it have arrived.
    pub(super) cum: u64,
    /// One above the highest packet that has arrived; `cum <= top`.
    pub(super) top: u64,
}

/// Exists while packets are missing or a message is incomplete.
#[derive(Debug)]
pub(super) struct Receiving {
    bits: Bits,
    effects: BTreeMap<u64, Effect>,
    /// Incomplete messages of several packets, by number; responses and requests have numbers of
    /// their own.
    open: BTreeMap<(bool, u32), Open>,
    /// Packets that came out of order since the last ACK.
    recent: Vec<u64>,
}

/// A message of which some packets have arrived.
#[derive(Debug, Clone, Copy)]
struct Open {
    first: u64,
    total: u32,
    count: u32,
    /// The receive of a Send.
    receive: Option<RecvWr>,
}

/// The pending effect of a message, due when all messages before it have arrived.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effect {
    Send {
        receive: RecvWr,
        len: u32,
        solicited: bool,
        invalidate: Option<Stag>,
    },
    Immediate {
        receive: RecvWr,
        data: u64,
        solicited: bool,
    },
    Record {
        msg: MsgId,
        stag: Stag,
        to: u64,
        len: u32,
        immediate: Option<u64>,
    },
    Read(MsgId, ReadRequest),
    Atomic(MsgId, AtomicRequest),
    ReadDone(MsgId),
    AtomicDone(MsgId, AtomicResponse),
}

impl Effect {
    /// The receive that it holds.
    pub(super) fn receive(&self) -> Option<RecvWr> {
        match self {
            Self::Send { receive, .. } | Self::Immediate { receive, .. } => Some(*receive),
            _ => None,
        }
    }
}

/// Which packet of which message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) msg: MsgId,
    pub(super) response: bool,
    /// Number of the message's first packet.
    pub(super) first: u64,
    /// Packets of the message.
    pub(super) total: u32,
}

impl Part {
    fn key(&self) -> (bool, u32) {
        (self.response, self.msg.0)
    }
}

/// A message that contradicts its own earlier packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contradiction;

/// Packets out of order that are remembered for one ACK.
const RECENT: usize = 16;

impl Receiving {
    pub(super) fn new(window: u32) -> Self {
        Self {
            bits: Bits::new(window),
            effects: BTreeMap::new(),
            open: BTreeMap::new(),
            recent: Vec::new(),
        }
    }

    pub(super) fn has(&self, psn: u64) -> bool {
        self.bits.is_set(psn)
    }

    /// Whether no packet is missing and no message incomplete.
    pub(super) fn is_over(&self, expected: &Expected) -> bool {
        expected.cum == expected.top && self.open.is_empty() && self.effects.is_empty()
    }

    /// Returns the receive of a message's earlier packets.
    ///
    /// # Errors
    /// The message does not fit its earlier packets.
    pub(super) fn receive_of(&self, part: &Part) -> Result<Option<RecvWr>, Contradiction> {
        match self.open.get(&part.key()) {
            Some(open) if (open.first, open.total) != (part.first, part.total) => {
                Err(Contradiction)
            }
            Some(open) => Ok(open.receive),
            None => Ok(None),
        }
    }

    /// Assigns a receive to a message.
    pub(super) fn give(&mut self, part: &Part, receive: RecvWr) {
        let open = Open {
            first: part.first,
            total: part.total,
            count: 0,
            receive: Some(receive),
        };
        self.open.insert(part.key(), open);
    }

    /// Records the arrival of packet `psn`: a part of a message, whose `effect` waits for its last
    /// packet.
    pub(super) fn take(
        &mut self,
        expected: &mut Expected,
        psn: u64,
        part: Option<Part>,
        effect: Option<Effect>,
    ) {
        self.bits.set(psn);
        expected.top = expected.top.max(psn + 1);
        if psn != expected.cum && self.recent.len() < RECENT {
            self.recent.push(psn);
        }
        match part {
            Some(part) if part.total > 1 => {
                let open = self.open.entry(part.key()).or_insert(Open {
                    first: part.first,
                    total: part.total,
                    count: 0,
                    receive: None,
                });
                open.count += 1;
                if open.count == open.total {
                    self.open.remove(&part.key());
                    if let Some(effect) = effect {
                        let last = part.first + u64::from(part.total) - 1;
                        self.effects.insert(last, effect);
                    }
                }
            }
            _ => {
                if let Some(effect) = effect {
                    self.effects.insert(psn, effect);
                }
            }
        }
    }

    /// Takes the next effect whose packet and all before it have arrived.
    pub(super) fn advance(&mut self, expected: &mut Expected) -> Option<Effect> {
        let end = self.bits.find(expected.cum..expected.top, false);
        let due = self.effects.first_key_value().map(|(&psn, _)| psn);
        let stop = due.filter(|&psn| psn < end).map_or(end, |psn| psn + 1);
        while expected.cum < stop {
            self.bits.clear(expected.cum);
            expected.cum += 1;
        }
        if due.is_some_and(|psn| psn < expected.cum) {
            return self.effects.pop_first().map(|(_, effect)| effect);
        }
        None
    }

    /// Whether a message is incomplete although its last packet has arrived: its sender broke the
    /// protocol.
    pub(super) fn has_impossible(&self, expected: &Expected) -> bool {
        self.open
            .values()
            .any(|open| open.first + u64::from(open.total) <= expected.cum)
    }

    /// Takes the receives of messages that will not be completed now.
    pub(super) fn into_receives(self) -> impl Iterator<Item = RecvWr> {
        let open = self.open.into_values().filter_map(|open| open.receive);
        open.chain(
            self.effects
                .into_values()
                .filter_map(|effect| effect.receive()),
        )
    }

    /// Writes ranges of packets that arrived beyond the next expected one, in order: those since
    /// the last ACK, then the highest, as many as fit. Returns how many.
    pub(super) fn ranges(&mut self, expected: &Expected, out: &mut [(u64, u64)]) -> usize {
        let mut count = 0;
        let mut add = |run: Range<u64>| {
            let run = (run.start, run.end);
            if count < out.len() && !out[..count].contains(&run) {
                out[count] = run;
                count += 1;
            }
            count < out.len()
        };
        let mut window = expected.cum..expected.top;
        for &psn in self.recent.iter().filter(|&&psn| psn >= expected.cum) {
            add(self.bits.run(psn, window.clone()));
        }
        self.recent.clear();
        while let Some(run) = self.bits.last_run(window.clone()) {
            window.end = run.start;
            if !add(run) {
                break;
            }
        }
        out[..count].sort_unstable();
        count
    }
}
