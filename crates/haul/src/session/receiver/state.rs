//! What a receiver knows of the offered files.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crossbeam_channel::Sender;

use crate::entry::Entry;
use crate::fault::Fault;
use crate::fs::path::Relative;
use crate::journal::Verified;
use crate::limit::Limit;
use crate::link::Link;
use crate::report::Observer;
use crate::session::directories::Directories;
use crate::session::durable::Job;
use crate::session::outcome::{Counts, Operand};
use crate::session::plan::Destination;
use crate::session::{Carrier, Meter, saturating_sum};
use crate::sink::{BlockId, FileSink};
use crate::target::{Target, Targets};
use crate::tree::Digest;
use crate::wire::{Attributes, Commit, Complete, Policy, Run};

/// Maximum number of repairs of a block. If one packet in 20 is damaged, one piece in two arrives
/// whole, and 32 rounds fail for a mebibyte once in 10^9 times.
pub(super) const ATTEMPTS: u8 = 32;

/// Maximum number of blocks in repair: of each, 8 to 32 KiB of digests are in memory.
pub(super) const IN_REPAIR: usize = 1 << 10;

/// The terms of the request for its files.
pub(crate) struct Terms<'a> {
    pub(crate) policy: Policy,
    /// Of the request, for [`Entry::seal`].
    pub(crate) binding: [u8; 32],
    /// Refuses entries that the request does not cover.
    pub(crate) allows: &'a (dyn Fn(&Entry) -> Result<(), Fault> + Sync),
    /// Of what is no directory, only these are made as they are offered; others stay as they are.
    pub(crate) only: Option<&'a HashSet<Relative>>,
    /// The sender changes nothing that exists.
    pub(crate) adds_only: bool,
    /// The rate that the sender is to keep, and the one that the request was sent with.
    pub(crate) limit: Option<(&'a Limit, Option<u64>)>,
}

/// Result of a receiver; after a failure, the state until then.
#[derive(Debug, Default)]
pub(crate) struct ReceiverOutcome {
    /// The files that were offered by themselves, by id.
    pub(crate) operands: HashMap<u32, Operand>,
    pub(crate) counts: Counts,
    /// Bytes of members of trees that were present at the beginning.
    pub(crate) resumed: u64,
    /// Attributes of members that could not be kept.
    pub(crate) lost: Attributes,
    /// Counters of this end.
    pub(crate) spent: Complete,
    /// The sender's counters.
    pub(crate) peer: Complete,
}

impl ReceiverOutcome {
    /// Returns the bytes that were present at the beginning.
    pub(super) fn resumed(&self) -> u64 {
        let operands = self.operands.values().map(|operand| operand.present);
        self.resumed.saturating_add(saturating_sum(operands))
    }
}

pub(super) struct Session<'a> {
    pub(super) link: &'a Link,
    pub(super) root: Destination,
    pub(super) terms: &'a Terms<'a>,
    pub(super) observer: &'a dyn Observer,
    pub(super) carrier: &'a Carrier,
    pub(super) sink: &'a FileSink,
    pub(super) targets: &'a Targets,
    pub(super) jobs: Sender<Job>,
    pub(super) meter: Meter,
    /// Entries that are not finished; boxed, because the table becomes twice as large as they are.
    pub(super) files: HashMap<u32, Box<Incoming>>,
    /// Their paths.
    pub(super) paths: HashSet<Relative>,
    /// [`Entry::weight`] of these entries together.
    pub(super) weight: usize,
    pub(super) directories: Directories,
    /// Files with further names, by the short hashes of their paths.
    pub(super) links: HashMap<[u8; 16], Linked>,
    /// Id of the next entry that is offered.
    pub(super) next: u32,
    /// All entries are offered.
    pub(super) is_last: bool,
    /// Files that are not requested yet, in the order of the offer.
    pub(super) queue: VecDeque<u32>,
    /// Bytes of small files that were requested, less those that will not be written.
    pub(super) requested: u64,
    /// Those that have been written.
    pub(super) written: &'a AtomicU64,
    /// Bytes of all files offered so far.
    pub(super) total: u64,
    /// Bytes that were present at the beginning.
    pub(super) present_before: u64,
    /// Bytes requested again.
    pub(super) repaired: u64,
    /// The number of their runs.
    pub(super) repairs: usize,
    /// Blocks that arrived damaged and wait for their repair …
    pub(super) damaged: VecDeque<BlockId>,
    /// … how many are in repair, and how many may be: one more for each that was repaired. A path
    /// that damages data damages control messages as well, and a session that repairs all at once
    /// ends before it has repaired any.
    pub(super) in_repair: usize,
    pub(super) in_repair_max: usize,
    /// The attributes of directories are being set.
    pub(super) is_finishing: bool,
    /// The attributes of directories are set.
    pub(super) is_finished: bool,
    /// The sender has reported its counters.
    pub(super) has_peer: bool,
}

/// A file to which hard links were announced.
pub(super) enum Linked {
    /// It is not finished; these entries wait for it.
    Pending(Vec<u32>),
    Failed,
    /// It has its name.
    Done,
}

/// An entry that is not finished.
pub(super) struct Incoming {
    pub(super) entry: Entry,
    pub(super) state: State,
}

pub(super) enum State {
    /// It is not requested yet. The commit of a file without data comes with its offer.
    Waiting(Option<Commit>),
    /// It arrives block by block.
    Blocks(Box<Blockwise>),
    /// It arrives whole.
    Small(Small),
    /// It is being written.
    Writing,
}

/// A small file that was requested.
#[derive(Default)]
pub(super) struct Small {
    /// The sender's seal.
    pub(super) seal: Option<[u8; 32]>,
    /// What arrived, and its hash.
    pub(super) content: Option<(Digest, Vec<u8>)>,
    pub(super) attempts: u8,
}

/// A file that arrives block by block.
pub(super) struct Blockwise {
    pub(super) target: Arc<Target>,
    /// The digests of the blocks that are verified.
    pub(super) digests: Vec<Option<Digest>>,
    pub(super) unverified: u32,
    pub(super) doubtful: HashMap<u32, Doubtful>,
    /// A present block differs from the source.
    pub(super) is_stale: bool,
    /// A block arrived damaged.
    pub(super) is_damaged: bool,
    pub(super) root: Option<[u8; 32]>,
    /// Where its requested runs end in the space.
    pub(super) end: u64,
    /// The sender's latest.
    pub(super) commit: Option<Commit>,
    pub(super) is_publishing: bool,
    /// All of it is early data: nothing is requested.
    pub(super) is_early: bool,
}

/// A block that is not verified yet.
#[derive(Default)]
pub(super) struct Doubtful {
    pub(super) announced: Option<Digest>,
    pub(super) computed: Option<Digest>,
    /// The digests of the pieces of a block that arrived damaged; empty until the sender has sent
    /// them.
    pub(super) pieces: Option<Vec<Digest>>,
    pub(super) attempts: u8,
    /// An earlier session left it here, and the sender has not confirmed it yet.
    pub(super) is_left: bool,
    /// It is taken from the file that is replaced, and it is not known yet what of it differs.
    pub(super) is_old: bool,
}

impl Blockwise {
    pub(super) fn new(target: Arc<Target>, verified: Vec<Verified>) -> Self {
        let count = target.blocks.count();
        let left = |(block, digest)| {
            let doubtful = Doubtful {
                computed: Some(digest),
                is_left: true,
                ..Doubtful::default()
            };
            (block, doubtful)
        };
        let mut doubtful: HashMap<_, _> = verified.into_iter().map(left).collect();
        for block in target.old_blocks() {
            doubtful.entry(block).or_insert_with(|| Doubtful {
                is_old: true,
                ..Doubtful::default()
            });
        }
        Self {
            target,
            unverified: count,
            digests: vec![None; count as usize],
            doubtful,
            is_stale: false,
            is_damaged: false,
            root: None,
            end: 0,
            commit: None,
            is_publishing: false,
            is_early: false,
        }
    }

    /// Returns the runs of blocks that may be present, or those that are missing.
    pub(super) fn runs(&self, file: u32, may_be_present: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for block in (0..u32::try_from(self.digests.len()).unwrap_or(u32::MAX))
            .filter(|block| self.doubtful.contains_key(block) == may_be_present && !self.is_early)
        {
            match runs.last_mut() {
                Some(run) if run.first + run.count == block => run.count += 1,
                _ => runs.push(Run {
                    file,
                    first: block,
                    count: 1,
                }),
            }
        }
        runs
    }
}
