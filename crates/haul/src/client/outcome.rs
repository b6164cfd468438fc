//! Adds up the attempts of a transfer to one summary.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::config::Config;
use crate::channel::ChannelKind;
use crate::report::{
    Attributes, BenchSummary, Direction, Entries, FileResult, FileStatus, Interval, Summary,
};
use crate::session::outcome::{Counts, Operand};
use crate::session::receiver::ReceiverOutcome;
use crate::session::sender::SenderOutcome;
use crate::session::{add, cpu, ratio, saturating_sum};
use crate::wire::{BenchReport, Complete};

/// Sums over the attempts of a transfer so far.
pub(super) struct Tally {
    begun: Instant,
    peer: String,
    channel: &'static str,
    streams: u16,
    attempts: u32,
    /// The files offered by themselves in the latest attempt, by id.
    operands: BTreeMap<u32, Operand>,
    /// By name: the hash, and the bytes present before the first attempt.
    done: HashMap<String, [u8; 32]>,
    present: HashMap<String, u64>,
    /// Bytes of members of trees that were present before the first attempt.
    resumed: u64,
    /// Of the latest attempt; `copied` of all.
    counts: Counts,
    /// What the receiver could not keep, in all attempts.
    lost: Attributes,
    /// What the sender could not read, in the latest attempt, which examines everything.
    unread: Attributes,
    sender: Complete,
    receiver: Complete,
}

impl Tally {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            begun: Instant::now(),
            peer: String::new(),
            channel: config.channel.name(),
            streams: config.streams,
            attempts: 0,
            operands: BTreeMap::new(),
            done: HashMap::new(),
            present: HashMap::new(),
            resumed: 0,
            counts: Counts::default(),
            lost: Attributes::default(),
            unread: Attributes::default(),
            sender: Complete::default(),
            receiver: Complete::default(),
        }
    }

    pub(super) fn connected(&mut self, peer: &str, channel: ChannelKind) {
        peer.clone_into(&mut self.peer);
        self.channel = channel.name();
        self.attempts += 1;
    }

    pub(super) fn sent(&mut self, outcome: &SenderOutcome) {
        self.attempt(&outcome.operands, outcome.counts, outcome.resumed);
        self.lost.add(&outcome.lost);
        self.unread = outcome.unread;
        add(&mut self.sender, &outcome.spent);
        add(&mut self.receiver, &outcome.peer);
        if outcome.peer == Complete::default() {
            // The attempt failed before the receiver reported its counters.
            self.receiver.moved = self.receiver.moved.saturating_add(outcome.spent.moved);
        }
    }

    pub(super) fn received(&mut self, outcome: &ReceiverOutcome) {
        self.attempt(&outcome.operands, outcome.counts, outcome.resumed);
        self.lost.add(&outcome.lost);
        self.unread = outcome.peer.lost.unwrap_or_default();
        add(&mut self.receiver, &outcome.spent);
        add(&mut self.sender, &outcome.peer);
    }

    fn attempt(&mut self, operands: &HashMap<u32, Operand>, counts: Counts, resumed: u64) {
        // What earlier attempts have moved was not there. Of what they moved some may be lost.
        let resumed = resumed.saturating_sub(self.receiver.moved);
        self.resumed = self.resumed.max(resumed);
        self.operands = operands
            .iter()
            .map(|(id, one)| (*id, one.clone()))
            .collect();
        for operand in operands.values() {
            let present = self.present.entry(operand.name.clone());
            present.or_insert(operand.present);
            if let Some(root) = operand.root {
                self.done.insert(operand.name.clone(), root);
            }
        }
        let copied = self.counts.copied.saturating_add(counts.copied);
        self.counts = Counts { copied, ..counts };
    }

    pub(super) fn into_summary(self, direction: Direction) -> Summary {
        let seconds = self.begun.elapsed().as_secs_f64();
        let files: Vec<FileResult> = self
            .operands
            .values()
            .map(|operand| {
                let root = self.done.get(&operand.name);
                FileResult {
                    name: operand.name.clone(),
                    bytes: operand.size,
                    blake3: root.map(|root| blake3::Hash::from_bytes(*root).to_hex().to_string()),
                    resumed_bytes: self.present.get(&operand.name).copied().unwrap_or(0),
                    status: match root {
                        Some(_) => FileStatus::Copied,
                        None => FileStatus::AlreadyThere,
                    },
                }
            })
            .collect();
        let moved = self.receiver.moved;
        let retransmitted = self.sender.retransmitted;
        let (counts, mut lost) = (self.counts, self.lost);
        lost.add(&self.unread);
        let all = counts.files.saturating_add(counts.links);
        Summary {
            direction,
            peer: self.peer,
            channel: self.channel,
            streams: self.streams,
            bytes: counts.bytes,
            resumed_bytes: saturating_sum(files.iter().map(|file| file.resumed_bytes))
                .saturating_add(self.resumed),
            files,
            entries: Entries {
                files: counts.files,
                directories: counts.directories,
                links: counts.links,
                copied: counts.copied,
                skipped: all.saturating_sub(counts.copied.saturating_add(counts.failed)),
                failed: counts.failed,
                special: counts.special,
            },
            lost,
            moved_bytes: moved,
            repaired_bytes: self.receiver.repaired,
            retransmitted_bytes: retransmitted,
            retransmitted_by_cause: self.sender.causes,
            retransmitted_share: share(retransmitted, moved),
            rtt_ms: self.sender.rtt_us.map(|us| f64::from(us) / 1e3),
            seconds,
            goodput_bps: bits(moved) / seconds.max(1e-9),
            reconnects: self.attempts.saturating_sub(1),
            sender: cpu(&self.sender, moved),
            receiver: cpu(&self.receiver, moved),
        }
    }
}

pub(super) fn bench_summary(
    config: &Config,
    peer: &str,
    reverse: bool,
    report: &BenchReport,
    sender: &Complete,
    receiver: &Complete,
) -> BenchSummary {
    let seconds = std::time::Duration::from_micros(report.duration_us).as_secs_f64();
    let intervals = (0_u32..)
        .zip(&report.intervals)
        .map(|(index, bytes)| Interval {
            start_s: f64::from(index) / 10.0,
            end_s: f64::from(index + 1) / 10.0,
            bytes: *bytes,
        })
        .collect();
    BenchSummary {
        peer: peer.to_owned(),
        channel: config.channel.name(),
        streams: config.streams,
        reverse,
        seconds,
        bytes: report.bytes,
        goodput_bps: bits(report.bytes) / seconds.max(1e-9),
        retransmitted_bytes: sender.retransmitted,
        retransmitted_share: share(sender.retransmitted, report.bytes),
        rtt_ms: sender.rtt_us.map(|us| f64::from(us) / 1e3),
        intervals,
        sender: cpu(sender, report.bytes),
        receiver: cpu(receiver, report.bytes),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people, not a count")]
fn bits(bytes: u64) -> f64 {
    bytes as f64 * 8.0
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share for people, not a count"
)]
fn share(part: u64, whole: u64) -> Option<f64> {
    ratio(part as f64, whole)
}
