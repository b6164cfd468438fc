//! The hashers of the two ends, each on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::fault::Fault;
use crate::sink::BlockId;
use crate::source::{Aside, FileSource, Work, blame};
use crate::space::Segment;
use crate::target::{HASH_PIECE, Target};
use crate::tree::Digest;
use crate::wire::{Digests, Run};

/// Digests sent in one message …
const BATCH: usize = 8;
/// … which waits no longer than this for more of them: a block without its digest is not verified, and is sent again if
/// an end dies.
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// What the hasher of a source has found.
#[derive(Debug)]
pub(super) enum Hashed {
    Digests(Digests),
    /// The file still is what the digests say.
    Proved(u32),
}

/// Hashes the asked-for blocks of the source in the order of the space, close behind the channel,
/// and, while it would wait for the channel, what the receiver has already. Hands the digests to
/// `send` until that refuses or the space is complete.
pub(super) fn hash_source(source: &FileSource, send: impl FnMut(Result<Hashed, Fault>) -> bool) {
    let digests = source.files().iter().map(|file| file.blocks().count());
    let mut hasher = SourceHasher {
        source,
        send,
        buffer: vec![0; HASH_PIECE],
        digests: digests.map(|count| vec![None; count as usize]).collect(),
    };
    let mut index = 0;
    while let Some(work) = source.work(index) {
        let goes_on = match work {
            Work::Run(run, segment) => {
                index += 1;
                hasher.hash(run, Some(segment))
            }
            Work::Aside(aside) => hasher.work_aside(aside),
        };
        if !goes_on {
            return;
        }
    }
}

struct SourceHasher<'a, F> {
    source: &'a FileSource,
    send: F,
    buffer: Vec<u8>,
    /// The latest digest of each block, by file.
    digests: Vec<Vec<Option<Digest>>>,
}

impl<F: FnMut(Result<Hashed, Fault>) -> bool> SourceHasher<'_, F> {
    fn work_aside(&mut self, aside: Aside) -> bool {
        match aside {
            Aside::Confirm(run) => self.hash(run, None),
            Aside::Prove(file) => self.prove(file),
        }
    }

    /// Hashes the blocks of a run, each once the channel has taken it where the run is in the space.
    /// False when nobody wants to know any more.
    fn hash(&mut self, run: Run, segment: Option<Segment>) -> bool {
        let blocks = self.source.files()[run.file as usize].blocks();
        let (run_start, _) = blocks.range(run.first, 0);
        let mut batch = Digests {
            file: run.file,
            first: run.first,
            digests: Vec::new(),
        };
        let mut begun = Instant::now();
        for block in run.first..run.first + run.count {
            if let Some(segment) = segment {
                let (position, len) = blocks.range(block, 1);
                let end = segment.start + (position - run_start) + len;
                while let Some(aside) = self.source.work_until_taken(end) {
                    if !self.work_aside(aside) {
                        return false;
                    }
                }
                self.source.wait_taken(end);
            }
            let digest = match self.hash_block(run.file, block) {
                Ok(digest) => digest,
                Err(error) => {
                    (self.send)(Err(blame(self.source, &error)));
                    return false;
                }
            };
            self.digests[run.file as usize][block as usize] = Some(digest);
            batch.digests.extend_from_slice(&digest);
            let full = batch.digests.len() >= BATCH * size_of::<Digest>();
            if full || begun.elapsed() >= BATCH_WAIT || block + 1 == run.first + run.count {
                begun = Instant::now();
                let next = Digests {
                    file: run.file,
                    first: block + 1,
                    digests: Vec::new(),
                };
                let full = std::mem::replace(&mut batch, next);
                if !(self.send)(Ok(Hashed::Digests(full))) {
                    return false;
                }
            }
        }
        true
    }

    /// Reads a file again, to see whether it still is what its digests say.
    fn prove(&mut self, file: u32) -> bool {
        let source = self.source;
        let proved = source.files()[file as usize].prove(|| {
            for block in 0..source.files()[file as usize].blocks().count() {
                let digest = self.hash_block(file, block)?;
                if self.digests[file as usize][block as usize] != Some(digest) {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        let goes_on = proved.is_ok();
        (self.send)(proved.map(|()| Hashed::Proved(file))) && goes_on
    }

    fn hash_block(&mut self, file: u32, block: u32) -> io::Result<Digest> {
        let file = &self.source.files()[file as usize];
        let (mut at, len) = file.blocks().range(block, 1);
        let (mut hasher, end) = (file.blocks().hasher(block), at + len);
        while at < end {
            let piece = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(self.buffer.len());
            file.read_exact_at(&mut self.buffer[..piece], at)?;
            hasher.update(&self.buffer[..piece]);
            at += piece as u64;
        }
        Ok(hasher.finish())
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
