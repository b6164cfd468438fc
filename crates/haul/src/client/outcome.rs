//! Adds up the attempts of a transfer to one summary.

use std::collections::HashMap;
use std::time::Instant;

use super::config::Config;
use crate::report::{BenchSummary, Direction, FileResult, FileStatus, Interval, Summary};
use crate::session::receiver::ReceiverOutcome;
use crate::session::sender::SenderOutcome;
use crate::session::{add, cpu, ratio, saturating_sum};
use crate::wire::{BenchReport, Complete, FilePlan};

/// Sums over the attempts of a transfer so far.
pub(super) struct Tally {
    begun: Instant,
    peer: String,
    channel: &'static str,
    streams: u16,
    attempts: u32,
    /// Names and sizes as offered in the latest attempt.
    offered: Vec<(String, u64)>,
    /// By name: the hash, and the bytes present before the first attempt.
    done: HashMap<String, [u8; 32]>,
    present: HashMap<String, u64>,
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
            offered: Vec::new(),
            done: HashMap::new(),
            present: HashMap::new(),
            sender: Complete::default(),
            receiver: Complete::default(),
        }
    }

    pub(super) fn offered(&mut self, files: impl Iterator<Item = (String, u64)>) {
        self.offered = files.collect();
    }

    pub(super) fn connected(&mut self, peer: &str) {
        peer.clone_into(&mut self.peer);
        self.attempts += 1;
    }

    pub(super) fn sent(&mut self, outcome: &SenderOutcome) {
        self.attempt(&outcome.plan, &outcome.roots);
        add(&mut self.sender, &outcome.spent);
        add(&mut self.receiver, &outcome.peer);
        if outcome.peer == Complete::default() {
            // The attempt failed before the receiver reported its counters.
            self.receiver.moved = self.receiver.moved.saturating_add(outcome.spent.moved);
        }
    }

    pub(super) fn received(&mut self, outcome: &ReceiverOutcome) {
        self.attempt(&outcome.plan, &outcome.roots);
        add(&mut self.receiver, &outcome.spent);
        add(&mut self.sender, &outcome.peer);
    }

    fn attempt(&mut self, plan: &[FilePlan], roots: &[Option<[u8; 32]>]) {
        for ((name, _), plan) in self.offered.iter().zip(plan) {
            self.present.entry(name.clone()).or_insert(plan.present);
        }
        for ((name, _), root) in self.offered.iter().zip(roots) {
            if let Some(root) = root {
                self.done.insert(name.clone(), *root);
            }
        }
    }

    pub(super) fn into_summary(self, direction: Direction) -> Summary {
        let seconds = self.begun.elapsed().as_secs_f64();
        let files: Vec<FileResult> = self
            .offered
            .iter()
            .map(|(name, size)| {
                let root = self.done.get(name);
                FileResult {
                    name: name.clone(),
                    bytes: *size,
                    blake3: root.map(|root| blake3::Hash::from_bytes(*root).to_hex().to_string()),
                    resumed_bytes: self.present.get(name).copied().unwrap_or(0),
                    status: match root {
                        Some(_) => FileStatus::Copied,
                        None => FileStatus::AlreadyThere,
                    },
                }
            })
            .collect();
        let moved = self.receiver.moved;
        let retransmitted = self.sender.retransmitted;
        Summary {
            direction,
            peer: self.peer,
            channel: self.channel,
            streams: self.streams,
            bytes: saturating_sum(files.iter().map(|file| file.bytes)),
            resumed_bytes: saturating_sum(files.iter().map(|file| file.resumed_bytes)),
            files,
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
