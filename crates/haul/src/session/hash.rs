//! The hashers of the two ends, each on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::fault::Fault;
use crate::sink::BlockId;
use crate::source::{FileSource, blame};
use crate::target::{HASH_PIECE, Target};
use crate::tree::Digest;
use crate::wire::Digests;

/// Digests sent in one message …
const BATCH: usize = 8;
/// … which waits no longer than this for more of them: a block without its digest is not verified, and is sent again if
/// an end dies.
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// Hashes the asked-for blocks of the source in the order of the space, close behind the channel,
/// and hands the digests to `send` until that refuses or the space is complete.
pub(super) fn hash_source(
    source: &FileSource,
    mut send: impl FnMut(Result<Digests, Fault>) -> bool,
) {
    let mut buffer = vec![0; HASH_PIECE];
    let mut index = 0;
    while let Some((run, segment)) = source.run(index) {
        index += 1;
        let file = &source.files()[segment.file];
        let blocks = file.blocks();
        let (run_start, _) = blocks.range(run.first, 0);
        let mut batch = Digests {
            file: run.file,
            first: run.first,
            digests: Vec::new(),
        };
        let mut begun = Instant::now();
        for block in run.first..run.first + run.count {
            let (position, len) = blocks.range(block, 1);
            source.wait_taken(segment.start + (position - run_start) + len);
            let mut hasher = blocks.hasher(block);
            let (mut at, end) = (position, position + len);
            while at < end {
                let piece = usize::try_from(end - at)
                    .unwrap_or(usize::MAX)
                    .min(buffer.len());
                if let Err(error) = file.read_exact_at(&mut buffer[..piece], at) {
                    send(Err(blame(source, &error)));
                    return;
                }
                hasher.update(&buffer[..piece]);
                at += piece as u64;
            }
            batch.digests.extend_from_slice(&hasher.finish());
            let full = batch.digests.len() >= BATCH * size_of::<Digest>();
            if full || begun.elapsed() >= BATCH_WAIT {
                begun = Instant::now();
                let next = Digests {
                    file: run.file,
                    first: block + 1,
                    digests: Vec::new(),
                };
                if !send(Ok(std::mem::replace(&mut batch, next))) {
                    return;
                }
            }
        }
        if !batch.digests.is_empty() && !send(Ok(batch)) {
            return;
        }
    }
}

/// Reads complete blocks back and hashes them.
pub(super) fn hash_targets(
    targets: &[Option<Arc<Target>>],
    complete: &Receiver<BlockId>,
    stop: &AtomicBool,
    mut send: impl FnMut(BlockId, Result<Digest, Fault>) -> bool,
) {
    let mut buffer = vec![0; HASH_PIECE];
    while let Ok(id) = complete.recv() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Some(Some(target)) = targets.get(id.file as usize) else {
            continue;
        };
        let digest = target.hash_block(id.block, &mut buffer);
        let digest = digest.map_err(|error| target.fault("cannot read back", &error));
        if !send(id, digest) {
            return;
        }
    }
}
