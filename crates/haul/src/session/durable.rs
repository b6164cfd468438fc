//! Makes verified blocks durable and publishes files, on a thread of its own, because both wait for
//! the disk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::directories::Directories;
use super::members::{Ended, Members};
use crate::entry::Entry;
use crate::fault::Fault;
use crate::fs::meta::Lost;
use crate::journal::Verified;
use crate::target::Targets;

/// Verified blocks wait at most this long to become durable …
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// … or until this many bytes of them have gathered.
const COMMIT_BYTES: u64 = 256 << 20;
/// Writeback starts after this many bytes, so that the final fsync is short.
const WRITEBACK_BYTES: u64 = 4 << 20;

/// Work for this thread.
#[derive(Debug)]
pub(super) enum Job {
    /// A block is complete, and may still be damaged.
    Complete { file: u32 },
    /// Note a verified block.
    Verified { file: u32, block: Verified },
    /// Make the file durable: all its blocks are verified.
    Settle { file: u32 },
    /// Give the durable file its final name, unless the session is over.
    Publish { file: u32 },
    /// Write a small file whose content is verified, or make a link.
    Member {
        file: u32,
        entry: Box<Entry>,
        content: Vec<u8>,
    },
    /// All entries are finished but the attributes of these directories.
    Finish(Directories),
}

/// What this thread reports.
#[derive(Debug)]
pub(super) enum Report {
    /// The file is durable under its name.
    Published(u32),
    /// These members have ended.
    Members(Vec<Ended>),
    /// A file failed.
    Failed(u32, Fault),
    /// What members lost since the latest of these reports.
    Lost(Lost),
    /// The attributes of directories are set, or what failed.
    Finished(Result<(), Fault>),
}

/// Works until the other end of `jobs` is dropped, then makes durable what it has. What becomes of
/// files goes to `report`. Publishes nothing more once `stop` is set: the sender may have withdrawn
/// its commit.
pub(super) fn make_durable(
    targets: &Targets,
    mut members: Members<'_>,
    jobs: &Receiver<Job>,
    stop: &AtomicBool,
    mut report: impl FnMut(Report),
) {
    let mut pending: HashMap<u32, Vec<Verified>> = HashMap::new();
    let (mut bytes, mut due, mut unwritten) = (0, None, 0);
    loop {
        if members.is_full() || jobs.is_empty() && !members.is_empty() {
            let ended = members.flush(stop);
            members.take_lost().map(Report::Lost).map(&mut report);
            report(Report::Members(ended));
        }
        let job = match due {
            Some(due) => jobs.recv_deadline(due),
            None => jobs.recv().map_err(RecvTimeoutError::from),
        };
        let mut over = false;
        match job {
            Ok(Job::Complete { file }) => {
                if let Some(target) = targets.get(file) {
                    unwritten += target.blocks.block_size();
                    if unwritten >= WRITEBACK_BYTES {
                        target.start_writeback();
                        unwritten = 0;
                    }
                }
            }
            Ok(Job::Verified { file, block }) => {
                if let Some(target) = targets.get(file) {
                    bytes += target.blocks.block_size();
                    pending.entry(file).or_default().push(block);
                    due.get_or_insert_with(|| Instant::now() + COMMIT_EVERY);
                }
            }
            Ok(Job::Settle { file }) => match targets.get(file).map(|target| target.settle()) {
                Some(Ok(lost)) => members.add_lost(lost),
                Some(Err(fault)) => {
                    pending.remove(&file);
                    report(Report::Failed(file, fault));
                }
                None => {}
            },
            Ok(Job::Publish { .. } | Job::Member { .. } | Job::Finish(_))
                if stop.load(Ordering::Acquire) => {}
            Ok(Job::Publish { file }) => {
                pending.remove(&file);
                if let Some(target) = targets.get(file) {
                    let published = target.publish().and_then(|()| members.sync_names());
                    members.take_lost().map(Report::Lost).map(&mut report);
                    report(match published {
                        Ok(()) => Report::Published(file),
                        Err(fault) => Report::Failed(file, fault),
                    });
                }
            }
            Ok(Job::Member {
                file,
                entry,
                content,
            }) => members.take(file, &entry, &content),
            Ok(Job::Finish(directories)) => {
                let finished = members.finish(directories);
                members.take_lost().map(Report::Lost).map(&mut report);
                report(Report::Finished(finished));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => over = true,
        }
        let due_now = due.is_some_and(|due| Instant::now() >= due);
        if over || due_now || bytes >= COMMIT_BYTES {
            for (file, blocks) in pending.drain() {
                let Some(target) = targets.get(file) else {
                    continue;
                };
                if let Err(fault) = target.commit(&blocks) {
                    report(Report::Failed(file, fault));
                }
            }
            (bytes, due) = (0, None);
        }
        if over {
            return;
        }
    }
}
