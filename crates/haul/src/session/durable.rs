//! Makes verified blocks durable and publishes files, on a thread of its own, because both wait for
//! the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::fault::Fault;
use crate::journal::Verified;
use crate::target::Target;

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
}

/// Works until the other end of `jobs` is dropped, then makes durable what it has. Each published
/// file goes to `published`; the first failure goes there too and ends it. Publishes nothing more
/// once `stop` is set: the sender may have withdrawn its commit.
pub(super) fn make_durable(
    targets: &[Option<Arc<Target>>],
    jobs: &Receiver<Job>,
    stop: &AtomicBool,
    mut published: impl FnMut(Result<u32, Fault>),
) {
    let mut pending: HashMap<u32, Vec<Verified>> = HashMap::new();
    let (mut bytes, mut due, mut unwritten) = (0, None, 0);
    loop {
        let job = match due {
            Some(due) => jobs.recv_deadline(due),
            None => jobs.recv().map_err(RecvTimeoutError::from),
        };
        let mut over = false;
        match job {
            Ok(Job::Complete { file }) => {
                if let Some(Some(target)) = targets.get(file as usize) {
                    unwritten += target.blocks.block_size();
                    if unwritten >= WRITEBACK_BYTES {
                        target.start_writeback();
                        unwritten = 0;
                    }
                }
            }
            Ok(Job::Verified { file, block }) => {
                if let Some(Some(target)) = targets.get(file as usize) {
                    bytes += target.blocks.block_size();
                    pending.entry(file).or_default().push(block);
                    due.get_or_insert_with(|| Instant::now() + COMMIT_EVERY);
                }
            }
            Ok(Job::Settle { file }) => {
                if let Some(Some(target)) = targets.get(file as usize)
                    && let Err(fault) = target.settle()
                {
                    published(Err(fault));
                    // The session queues jobs until it reads the failure.
                    jobs.iter().for_each(drop);
                    return;
                }
            }
            Ok(Job::Publish { .. }) if stop.load(Ordering::Acquire) => {}
            Ok(Job::Publish { file }) => {
                pending.remove(&file);
                if let Some(Some(target)) = targets.get(file as usize) {
                    published(target.publish().map(|()| file));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => over = true,
        }
        let due_now = due.is_some_and(|due| Instant::now() >= due);
        if over || due_now || bytes >= COMMIT_BYTES {
            for (file, blocks) in pending.drain() {
                let Some(Some(target)) = targets.get(file as usize) else {
                    continue;
                };
                if let Err(fault) = target.commit(&blocks) {
                    published(Err(fault));
                    // The session queues jobs until it reads the failure.
                    jobs.iter().for_each(drop);
                    return;
                }
            }
            (bytes, due) = (0, None);
        }
        if over {
            return;
        }
    }
}
