//! The hashers of the two ends, each on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::fault::Fault;
use crate::sink::{BlockId, Complete};
use crate::source::{Aside, FileSource, SourceFile, Work, changed};
use crate::space::Segment;
use crate::target::{HASH_PIECE, Target, hash_pieces, hash_range};
use crate::tree::{Blocks, Digest};
use crate::wire::{Digests, Locate, Pieces, Run};

/// Digests sent in one message …
const BATCH: usize = 8;
/// … which waits no longer than this for more of them: a block without its digest is not verified,
/// and moves again if an end dies.
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// Results of the hasher of a source; a failure comes with the index of its file.
pub(super) type HashedOr = Result<Hashed, (u32, Fault)>;

#[derive(Debug)]
pub(super) enum Hashed {
    Digests(Digests),
    /// Digests of the pieces of a block that arrived damaged.
    Pieces(Pieces),
    /// Every block of a file has been hashed.
    Whole(Whole),
    /// The file still matches its digests.
    Proved(u32),
}

/// A file all of whose blocks have been hashed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole {
    pub(super) file: u32,
    pub(super) root: [u8; 32],
    /// Where its requested runs end in the space.
    pub(super) end: u64,
}

/// Hashes the requested blocks of the source in the order of the space, close behind the channel;
/// while it would wait for the channel, the blocks that are present at the receiver. Hands the
/// digests to `send` until that returns false or the space is complete.
pub(super) fn hash_source(source: &FileSource, send: impl FnMut(HashedOr) -> bool) {
    let blocks = source.files().iter().map(SourceFile::blocks);
    let mut hasher = SourceHasher {
        source,
        send,
        buffer: vec![0; HASH_PIECE],
        files: blocks.map(FileDigests::new).collect(),
    };
    let mut index = 0;
    while let Some(work) = source.work(&mut index) {
        let goes_on = match work {
            Work::Run(run, segment) => hasher.hash(run, Some(segment)),
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
    files: Vec<FileDigests>,
}

/// Digests of a file.
struct FileDigests {
    blocks: Vec<Option<Digest>>,
    /// How many of them are missing.
    missing: u32,
    /// Merged from `blocks` once none is missing.
    root: Option<[u8; 32]>,
    /// Where the file's latest run ends in the space.
    end: u64,
}

impl FileDigests {
    fn new(blocks: Blocks) -> Self {
        Self {
            blocks: vec![None; blocks.count() as usize],
            missing: blocks.count(),
            root: None,
            end: 0,
        }
    }

    /// False if the block had another digest before.
    fn note(&mut self, block: u32, digest: Digest) -> bool {
        let known = &mut self.blocks[block as usize];
        if known.is_none() {
            self.missing -= 1;
        }
        *known.get_or_insert(digest) == digest
    }
}

impl<F: FnMut(HashedOr) -> bool> SourceHasher<'_, F> {
    fn work_aside(&mut self, aside: Aside) -> bool {
        match aside {
            Aside::Confirm(run) => self.hash(run, None),
            Aside::Locate(locate) => self.locate(locate),
            Aside::Prove(file) => self.prove(file),
        }
    }

    /// Hashes the pieces of a block, so that the receiver finds the damaged ones.
    fn locate(&mut self, Locate { file, block }: Locate) -> bool {
        let source = &self.source.files()[file as usize];
        let pieces = source.blocks().pieces(block);
        let read = |buf: &mut [u8], at| source.read_exact_at(buf, at);
        let digests = match hash_pieces(pieces, &mut self.buffer, read) {
            Ok(digests) => digests,
            Err(fault) => {
                (self.send)(Err((file, fault)));
                return false;
            }
        };
        if !self.note(file, block, pieces.block(&digests)) {
            return false;
        }
        (self.send)(Ok(Hashed::Pieces(Pieces {
            file,
            block,
            digests: digests.concat(),
        })))
    }

    /// Notes the digest of a block. If the block had another before, the file has changed: reports
    /// that and returns false.
    fn note(&mut self, file: u32, block: u32, digest: Digest) -> bool {
        let is_same = self.files[file as usize].note(block, digest);
        if !is_same {
            let name = &self.source.files()[file as usize].name;
            (self.send)(Err((file, changed(name, "was written to"))));
        }
        is_same
    }

    /// Hashes the blocks of a run, each after the channel has taken it if the run is in the space.
    /// Returns false once the session has ended.
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
                Err(fault) => {
                    (self.send)(Err((run.file, fault)));
                    return false;
                }
            };
            if !self.note(run.file, block, digest) {
                return false;
            }
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
        let file = &mut self.files[run.file as usize];
        file.end = segment.map_or(file.end, |segment| segment.start + segment.len);
        if file.missing > 0 {
            return true;
        }
        let root = *file.root.get_or_insert_with(|| {
            let digests: Vec<Digest> = file.blocks.iter().flatten().copied().collect();
            *blocks.root(&digests).as_bytes()
        });
        (self.send)(Ok(Hashed::Whole(Whole {
            file: run.file,
            root,
            end: file.end,
        })))
    }

    /// Reads a file again and checks that it still matches its digests. Gives up without a result
    /// once the session is over.
    fn prove(&mut self, file: u32) -> bool {
        let source = self.source;
        let proved = source.files()[file as usize].prove(|| {
            for block in 0..source.files()[file as usize].blocks().count() {
                if source.is_complete() {
                    return Ok(false);
                }
                let digest = self.hash_block(file, block)?;
                if !self.files[file as usize].note(block, digest) {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        // A file that changed after it was published does not end the work for the others.
        let proved = proved.map(|()| Hashed::Proved(file));
        !source.is_complete() && (self.send)(proved.map_err(|fault| (file, fault)))
    }

    fn hash_block(&mut self, file: u32, block: u32) -> Result<Digest, Fault> {
        let file = &self.source.files()[file as usize];
        let (hasher, range) = (file.blocks().hasher(block), file.blocks().range(block, 1));
        hash_range(hasher, range, &mut self.buffer, |buf, at| {
            file.read_exact_at(buf, at)
        })
    }
}

/// Results of reading targets back.
#[derive(Debug)]
pub(super) enum Found {
    Block(BlockId, Digest),
    Pieces(BlockId, Vec<Digest>),
}

/// Reads complete blocks back and hashes them.
pub(super) fn hash_targets(
    targets: &[Option<Arc<Target>>],
    complete: &Receiver<Complete>,
    stop: &AtomicBool,
    mut send: impl FnMut(Result<Found, Fault>) -> bool,
) {
    let mut buffer = vec![0; HASH_PIECE];
    while let Ok(complete) = complete.recv() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let (Complete::Block(id) | Complete::Pieces(id)) = complete;
        let Some(Some(target)) = targets.get(id.file as usize) else {
            continue;
        };
        let found = match complete {
            Complete::Block(_) => target
                .hash_block(id.block, &mut buffer)
                .map(|digest| Found::Block(id, digest)),
            Complete::Pieces(_) => target
                .hash_pieces(id.block, &mut buffer)
                .map(|digests| Found::Pieces(id, digests)),
        };
        if !send(found.map_err(|error| target.fault("cannot read back", &error))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::fault::Code;
    use crate::name::Name;

    #[test]
    fn a_file_is_whole_once_and_a_block_with_two_digests_has_changed() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 1000]).unwrap();
        let writer = file.try_clone().unwrap();
        let name = Name::new(b"a").unwrap();
        let source = FileSource::new(vec![SourceFile::new(name, file, "a").unwrap()]);
        let run = Run {
            file: 0,
            first: 0,
            count: 1,
        };
        source.confirm(&[run]).unwrap();
        let mut wholes = Vec::new();
        let mut faults = Vec::new();
        hash_source(&source, |hashed| match hashed {
            Ok(Hashed::Whole(whole)) => {
                wholes.push((whole.file, whole.root, whole.end));
                writer.write_all_at(b"another", 3).unwrap();
                source.locate(Locate { file: 0, block: 0 }).unwrap();
                true
            }
            Ok(_) => true,
            Err(fault) => {
                faults.push((fault.0, fault.1.code));
                true
            }
        });
        let root = *blake3::hash(&[1; 1000]).as_bytes();
        assert_eq!(wholes, [(0, root, 0)]);
        assert_eq!(faults, [(0, Code::SourceChanged)]);
    }
}
