//! The hashers of the two ends, each on a thread of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::fault::Fault;
use crate::outbound::{Aside, FileSource, Offered, Work};
use crate::sink::{BlockId, Complete};
use crate::source::changed;
use crate::space::Segment;
use crate::target::{HASH_PIECE, Targets, hash_pieces, hash_range};
use crate::tree::{Blocks, Digest};
use crate::wire::{Digests, FILES_OPEN, Locate, Pieces, Run};

/// Digests sent in one message …
const BATCH: usize = 8;
/// … which waits no longer than this for more of them: a block without its digest is not verified,
/// and moves again if an end dies.
const BATCH_WAIT: Duration = Duration::from_millis(200);
/// Seals of small files sent in one message.
const SEALS: usize = 512;

/// Results of the hasher of a source; a failure comes with the id of its file.
pub(super) type HashedOr = Result<Hashed, (u32, Fault)>;

#[derive(Debug)]
pub(super) enum Hashed {
    Digests(Digests),
    /// Digests of the pieces of a block that arrived damaged.
    Pieces(Pieces),
    /// Every block of a file has been hashed.
    Whole(Whole),
    /// The hashes of consecutive small files, the first of which has this id.
    Smalls(u32, Vec<Digest>),
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
    let mut hasher = SourceHasher {
        source,
        send,
        buffer: vec![0; HASH_PIECE],
        files: HashMap::new(),
        smalls: (0, Vec::new()),
    };
    let mut index = 0;
    loop {
        let work = source.work_now(&mut index);
        if work.is_none() && !hasher.flush() {
            return;
        }
        let Some(work) = work.or_else(|| source.work(&mut index)) else {
            return;
        };
        let goes_on = match work {
            Work::Run(run, segment) => hasher.hash(run, Some(segment)),
            Work::Whole(file, end) => hasher.hash_small(file, end),
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
    files: HashMap<u32, FileDigests>,
    /// Hashes of consecutive small files that were not sent yet, and the id of the first.
    smalls: (u32, Vec<Digest>),
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

    /// Returns the digests of a file that is not finished.
    fn digests(&mut self, file: u32, offered: &Offered) -> &mut FileDigests {
        if !self.files.contains_key(&file) && self.files.len() > 2 * FILES_OPEN {
            let source = self.source;
            self.files.retain(|file, _| source.get(*file).is_some());
        }
        let new = || FileDigests::new(offered.blocks());
        self.files.entry(file).or_insert_with(new)
    }

    /// Reports why a file fails. Returns whether the session goes on.
    fn fail(&mut self, file: u32, offered: &Offered, fault: Fault) -> bool {
        (self.send)(Err((file, fault))) && offered.entry.is_member
    }

    /// Sends the hashes of small files that wait.
    fn flush(&mut self) -> bool {
        let (first, digests) = std::mem::take(&mut self.smalls);
        digests.is_empty() || (self.send)(Ok(Hashed::Smalls(first, digests)))
    }

    /// Hashes a small file once the channel has taken it.
    fn hash_small(&mut self, file: u32, end: u64) -> bool {
        let Some(offered) = self.source.get(file) else {
            return true;
        };
        if self.source.taken() < end {
            if !self.flush() {
                return false;
            }
            self.source.wait_taken(end);
        }
        let digest = match self.source.small(file, &offered).as_ref() {
            Ok(content) => *blake3::hash(content).as_bytes(),
            Err(fault) => return self.flush() && self.fail(file, &offered, fault.clone()),
        };
        let (first, digests) = &self.smalls;
        let next = u64::from(*first) + digests.len() as u64;
        if (digests.len() >= SEALS || next != u64::from(file)) && !self.flush() {
            return false;
        }
        if self.smalls.1.is_empty() {
            self.smalls.0 = file;
        }
        self.smalls.1.push(digest);
        true
    }

    /// Hashes the pieces of a block, so that the receiver finds the damaged ones.
    fn locate(&mut self, Locate { file, block }: Locate) -> bool {
        let Some(offered) = self.source.get(file) else {
            return true;
        };
        let pieces = offered.blocks().pieces(block);
        let digests = offered.source().and_then(|source| {
            let read = |buf: &mut [u8], at| source.read_exact_at(buf, at);
            hash_pieces(pieces, &mut self.buffer, read)
        });
        let digests = match digests {
            Ok(digests) => digests,
            Err(fault) => return self.fail(file, &offered, fault),
        };
        match self.note(file, &offered, block, pieces.block(&digests)) {
            Noted::Same => (self.send)(Ok(Hashed::Pieces(Pieces {
                file,
                block,
                digests: digests.concat(),
            }))),
            Noted::Changed { goes_on } => goes_on,
        }
    }

    /// Notes the digest of a block. If the block had another before, the file has changed: reports
    /// that.
    fn note(&mut self, file: u32, offered: &Offered, block: u32, digest: Digest) -> Noted {
        if self.digests(file, offered).note(block, digest) {
            return Noted::Same;
        }
        let fault = changed(&offered.entry.path, "was written to");
        let goes_on = self.fail(file, offered, fault);
        Noted::Changed { goes_on }
    }

    /// Hashes the blocks of a run, each after the channel has taken it if the run is in the space.
    /// Returns false once the session has ended.
    fn hash(&mut self, run: Run, segment: Option<Segment>) -> bool {
        let Some(offered) = self.source.get(run.file) else {
            return true;
        };
        let blocks = offered.blocks();
        let mut batch = Digests {
            file: run.file,
            first: run.first,
            digests: Vec::new(),
        };
        let mut begun = Instant::now();
        for block in run.first..run.first + run.count {
            if let Some(segment) = segment {
                let (position, len) = blocks.range(block, 1);
                let end = segment.start + (position + len - segment.position);
                while let Some(aside) = self.source.work_until_taken(end) {
                    if !self.work_aside(aside) {
                        return false;
                    }
                }
                if self.source.taken() < end && !self.flush() {
                    return false;
                }
                self.source.wait_taken(end);
            }
            // A member may have failed meanwhile.
            if self.source.get(run.file).is_none() {
                return true;
            }
            let digest = match self.hash_block(&offered, block) {
                Ok(digest) => digest,
                Err(fault) => return self.fail(run.file, &offered, fault),
            };
            if let Noted::Changed { goes_on } = self.note(run.file, &offered, block, digest) {
                return goes_on;
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
        let file = self.digests(run.file, &offered);
        file.end = segment.map_or(file.end, |segment| segment.start + segment.len);
        if file.missing > 0 {
            return true;
        }
        let root = *file.root.get_or_insert_with(|| {
            let digests: Vec<Digest> = file.blocks.iter().flatten().copied().collect();
            *blocks.root(&digests).as_bytes()
        });
        let end = file.end;
        (self.send)(Ok(Hashed::Whole(Whole {
            file: run.file,
            root,
            end,
        })))
    }

    /// Reads a file again and checks that it still matches its digests. Gives up without a result
    /// once the session is over.
    fn prove(&mut self, file: u32) -> bool {
        let source = self.source;
        let Some(offered) = source.get(file) else {
            return true;
        };
        let proved = offered.source().and_then(|opened| {
            opened.prove(|| {
                for block in 0..offered.blocks().count() {
                    if source.is_complete() {
                        return Ok(false);
                    }
                    let digest = self.hash_block(&offered, block)?;
                    if !self.digests(file, &offered).note(block, digest) {
                        return Ok(false);
                    }
                }
                Ok(true)
            })
        });
        // A file that changed after it was published does not end the work for the others.
        let proved = proved.map(|()| Hashed::Proved(file));
        !source.is_complete() && (self.send)(proved.map_err(|fault| (file, fault)))
    }

    fn hash_block(&mut self, offered: &Offered, block: u32) -> Result<Digest, Fault> {
        let (source, blocks) = (offered.source()?, offered.blocks());
        let (hasher, range) = (blocks.hasher(block), blocks.range(block, 1));
        hash_range(hasher, range, &mut self.buffer, |buf, at| {
            source.read_exact_at(buf, at)
        })
    }
}

/// Result of noting the digest of a block.
enum Noted {
    Same,
    /// It had another before; whether the session goes on.
    Changed {
        goes_on: bool,
    },
}

/// Results of hashing what arrived.
#[derive(Debug)]
pub(super) enum Found {
    Block(BlockId, Digest),
    Pieces(BlockId, Vec<Digest>),
    /// A small file with its content.
    Small(u32, Digest, Vec<u8>),
}

/// Reads complete blocks back and hashes them, and hashes small files.
pub(super) fn hash_targets(
    targets: &Targets,
    complete: &Receiver<Complete>,
    stop: &AtomicBool,
    mut send: impl FnMut(Result<Found, (u32, Fault)>) -> bool,
) {
    let mut buffer = vec![0; HASH_PIECE];
    while let Ok(complete) = complete.recv() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let found = match complete {
            Complete::Small(file, content) => {
                let digest = *blake3::hash(&content).as_bytes();
                Ok(Found::Small(file, digest, content))
            }
            Complete::Block(id) | Complete::Old(id) | Complete::Pieces(id) => {
                let Some(target) = targets.get(id.file) else {
                    continue;
                };
                let found = match complete {
                    Complete::Pieces(_) => target
                        .hash_pieces(id.block, &mut buffer)
                        .map(|digests| Found::Pieces(id, digests)),
                    Complete::Old(_) => target
                        .take_old(id.block, &mut buffer)
                        .map(|digest| Found::Block(id, digest)),
                    _ => target
                        .hash_block(id.block, &mut buffer)
                        .map(|digest| Found::Block(id, digest)),
                };
                found.map_err(|error| (id.file, target.fault("cannot read back", &error)))
            }
        };
        if !send(found) {
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
    use crate::fs::path::Relative;
    use crate::outbound::Origin;
    use crate::source::SourceFile;

    #[test]
    fn a_file_is_whole_once_and_a_block_with_two_digests_has_changed() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 1000]).unwrap();
        let writer = file.try_clone().unwrap();
        let file = SourceFile::new(file, "a").unwrap();
        let entry = file.entry(Relative::new(b"a").unwrap());
        let offered = Offered::new(entry, Origin::Open(Box::new(file)));
        let source = FileSource::new(vec![offered]);
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
