//! The receiving side of a transfer space: places bytes in the part files, in any order, and
//! reports each block when its last byte is written. Small files are assembled in memory.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use crossbeam_channel::Sender;
use haul_soft::bulk::Sink;

use crate::early::Prefix;
use crate::fault::Fault;
use crate::space::{Placed, Space};
use crate::target::{Target, Targets};
use crate::wire::{PieceRun, Run};
use crate::{lock, read, write};

/// Maximum number of slices of one `pwritev`.
const SLICES: usize = 64;

/// A block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockId {
    pub(crate) file: u32,
    pub(crate) block: u32,
}

/// Work for the hasher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Complete {
    /// Hash the block: all its bytes have been written.
    Block(BlockId),
    /// Copy the block from the file that is replaced, and hash it.
    Old(BlockId),
    /// Hash each piece of the block: the damaged ones have been written again, or are to be found.
    Pieces(BlockId),
    /// Hash this small file.
    Small(u32, Vec<u8>),
}

/// The transfer space as the channel writes it.
#[derive(Debug)]
pub(crate) struct FileSink {
    targets: Arc<Targets>,
    space: RwLock<Space<Missing>>,
    complete: Sender<Complete>,
    placed: AtomicU64,
    /// Set once the beginning of the space is known: early data may arrive before.
    begun: OnceLock<()>,
    /// The early data of a file whose first block has more, and the runs of that block that are not
    /// whole.
    first: Mutex<Option<(Prefix, Arc<AtomicUsize>)>>,
}

/// What of a run is still missing.
#[derive(Debug)]
struct Missing {
    /// Bytes that are not written yet.
    left: AtomicU64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Of each of its blocks.
    Blocks(Arc<Target>, Box<[Count]>),
    /// Of pieces of a block, how many such runs of it are not whole yet, and what to do then.
    Pieces(
        Arc<Target>,
        Count,
        Arc<AtomicUsize>,
        fn(BlockId) -> Complete,
    ),
    /// Of a small file, with what has arrived.
    Small(Count, Mutex<Vec<u8>>),
    /// Of early data that this end discards.
    Nothing(Count),
}

impl Missing {
    fn new(len: u64, what: What) -> Self {
        Self {
            left: AtomicU64::new(len),
            what,
        }
    }

    fn count(&self, index: usize) -> Option<&Count> {
        match &self.what {
            What::Blocks(_, counts) => counts.get(index),
            What::Pieces(_, count, ..) | What::Small(count, _) | What::Nothing(count) => {
                (index == 0).then_some(count)
            }
        }
    }

    /// Returns the number of bytes that are counted together.
    fn block_size(&self) -> u64 {
        match &self.what {
            What::Blocks(target, _) => target.blocks.block_size(),
            What::Pieces(..) | What::Small(..) | What::Nothing(_) => u64::MAX,
        }
    }
}

/// How much of a block, or of a run of its pieces, is still missing.
#[derive(Debug)]
struct Count {
    /// Bytes that no `place` has claimed; `unreserved <= unwritten`.
    unreserved: AtomicU64,
    /// Bytes that are not in the file yet.
    unwritten: AtomicU64,
}

impl FileSink {
    /// Makes a sink that reports each complete block to `complete`.
    pub(crate) fn new(targets: Arc<Targets>, complete: Sender<Complete>) -> Self {
        Self {
            targets,
            space: RwLock::new(Space::new()),
            complete,
            placed: AtomicU64::new(0),
            begun: OnceLock::new(),
            first: Mutex::default(),
        }
    }

    /// Begins the space with the early data of a file, which is discarded unless `is_wanted`.
    /// Returns its end in the space.
    pub(crate) fn begin(&self, prefix: Prefix, is_wanted: bool) -> Result<u64, Fault> {
        let (file, len, block) = (prefix.file, prefix.len, 0);
        let id = BlockId { file, block };
        let runs = Arc::new(AtomicUsize::new(if prefix.is_whole { 1 } else { 2 }));
        let what = if !is_wanted {
            What::Nothing(Count::new(len))
        } else if prefix.is_small {
            What::Small(Count::new(len), Mutex::default())
        } else {
            let whole = Arc::clone(&runs);
            What::Pieces(self.target(file)?, Count::new(len), whole, Complete::Block)
        };
        let mut space = write(&self.space);
        if !space.append(id.run(), 0, len, Missing::new(len, what)) {
            return Err(too_much());
        }
        if is_wanted && !prefix.is_whole {
            *lock(&self.first) = Some((prefix, runs));
        }
        Ok(space.end())
    }

    /// Has [`Sink::place`] take data: the space has its early data, or never will.
    pub(crate) fn open(&self) {
        // It may be open.
        let _ = self.begun.set(());
    }

    /// Appends runs to the space, before the sender is asked for them. Returns the file and the end
    /// in the space of each.
    pub(crate) fn append(&self, runs: &[Run]) -> Result<Vec<(u32, u64)>, Fault> {
        let mut space = self.space_to_append();
        let mut ends = Vec::with_capacity(runs.len());
        for run in runs {
            let (target, mut rest) = (self.target(run.file)?, *run);
            let is_begun = |(prefix, _): &mut (Prefix, _)| {
                prefix.file == run.file && run.first == 0 && run.count > 0
            };
            if let Some((prefix, whole)) = lock(&self.first).take_if(is_begun) {
                let id = BlockId {
                    file: run.file,
                    block: 0,
                };
                let len = target.blocks.range(0, 1).1 - prefix.len;
                let target = Arc::clone(&target);
                let what = What::Pieces(target, Count::new(len), whole, Complete::Block);
                if !space.append(id.run(), prefix.len, len, Missing::new(len, what)) {
                    return Err(too_much());
                }
                (rest.first, rest.count) = (1, run.count - 1);
            }
            let (position, len) = target.blocks.range(rest.first, rest.count);
            let counts = (rest.first..rest.first + rest.count)
                .map(|block| Count::new(target.blocks.range(block, 1).1))
                .collect();
            let missing = Missing::new(len, What::Blocks(target, counts));
            if rest.count > 0 && !space.append(rest, position, len, missing) {
                return Err(too_much());
            }
            ends.push((run.file, space.end()));
        }
        Ok(ends)
    }

    /// Appends small files, each with its size, before the sender is asked for them.
    pub(crate) fn append_files(&self, files: &[(u32, u64)]) -> Result<(), Fault> {
        let mut space = self.space_to_append();
        for (file, len) in files {
            let missing = What::Small(Count::new(*len), Mutex::default());
            let run = Run {
                file: *file,
                first: 0,
                count: 1,
            };
            if !space.append(run, 0, *len, Missing::new(*len, missing)) {
                return Err(too_much());
            }
        }
        Ok(())
    }

    /// Appends pieces of a block to the space, before the sender is asked for them. Returns their
    /// bytes.
    pub(crate) fn append_pieces(&self, id: BlockId, runs: &[PieceRun]) -> Result<u64, Fault> {
        let target = self.target(id.file)?;
        let pieces = target.blocks.pieces(id.block);
        let left = Arc::new(AtomicUsize::new(runs.len()));
        let (mut space, mut bytes) = (self.space_to_append(), 0);
        for run in runs {
            let (position, len) = pieces.range(run.first, run.count);
            let (target, left) = (Arc::clone(&target), Arc::clone(&left));
            let what = What::Pieces(target, Count::new(len), left, Complete::Pieces);
            if !space.append(id.run(), position, len, Missing::new(len, what)) {
                return Err(too_much());
            }
            bytes += len;
        }
        Ok(bytes)
    }

    /// Locks the space and forgets the runs at its beginning that are whole.
    fn space_to_append(&self) -> std::sync::RwLockWriteGuard<'_, Space<Missing>> {
        let mut space = write(&self.space);
        space.retire(|placed| placed.extra.left.load(Ordering::Acquire) == 0);
        space
    }

    /// Has a block copied from the file that is replaced.
    pub(crate) fn take_old(&self, id: BlockId) {
        // The session may have ended.
        let _ = self.complete.send(Complete::Old(id));
    }

    /// Has the pieces of a block hashed.
    pub(crate) fn rehash(&self, id: BlockId) {
        // The session may have ended.
        let _ = self.complete.send(Complete::Pieces(id));
    }

    fn target(&self, file: u32) -> Result<Arc<Target>, Fault> {
        let target = self.targets.get(file);
        target.ok_or_else(|| Fault::protocol("a run of a file that is not being received"))
    }

    /// Returns the bytes written so far; repaired ones count again, discarded ones do not.
    pub(crate) fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    fn write(
        placed: &Placed<Missing>,
        inside: u64,
        len: u64,
        parts: &mut Parts<'_>,
    ) -> io::Result<()> {
        let mut position = placed.segment.position + inside;
        let mut left = len;
        while left > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (count, bytes) = parts.take(&mut slices, left);
            let slices = &mut slices[..count];
            match &placed.extra.what {
                What::Blocks(target, _) | What::Pieces(target, ..) => target
                    .write_at(slices, position)
                    .map_err(io::Error::other)?,
                What::Small(_, content) => {
                    let mut content = lock(content);
                    content.resize(usize::try_from(placed.segment.len).unwrap_or(0), 0);
                    let mut at = usize::try_from(position).unwrap_or(usize::MAX);
                    for slice in slices {
                        content[at..at + slice.len()].copy_from_slice(slice);
                        at += slice.len();
                    }
                }
                What::Nothing(_) => {}
            }
            position += bytes;
            left -= bytes;
        }
        Ok(())
    }
}

impl Sink for FileSink {
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.begun.wait();
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let space = read(&self.space);
        let end = offset.checked_add(total).filter(|end| *end <= space.end());
        let Some(end) = end else {
            return Err(unasked());
        };
        let mut parts = Parts { parts, skip: 0 };
        let mut at = offset;
        while at < end {
            let placed = space.at(at).ok_or_else(unasked)?;
            let inside = at - placed.segment.start;
            let len = (placed.segment.len - inside).min(end - at);
            // Claimed before it is written: a byte that arrives twice must not overwrite what may
            // have been verified meanwhile.
            each_block(&placed.extra, inside, len, |count, piece| {
                count.reserve(piece)
            })?;
            Self::write(placed, inside, len, &mut parts)?;
            let mut block = first_block(placed, inside);
            each_block(&placed.extra, inside, len, |count, piece| {
                if count.unwritten.fetch_sub(piece, Ordering::AcqRel) == piece {
                    self.note_complete(placed, block);
                }
                block += 1;
                Ok(())
            })?;
            placed.extra.left.fetch_sub(len, Ordering::AcqRel);
            if !matches!(placed.extra.what, What::Nothing(_)) {
                self.placed.fetch_add(len, Ordering::Relaxed);
            }
            at += len;
        }
        Ok(())
    }
}

impl FileSink {
    /// Reports a block, a run of its pieces, or a small file as complete.
    fn note_complete(&self, placed: &Placed<Missing>, block: u32) {
        let file = placed.run.file;
        let id = BlockId { file, block };
        let complete = match &placed.extra.what {
            What::Blocks(..) => Complete::Block(id),
            What::Pieces(_, _, left, complete) if left.fetch_sub(1, Ordering::AcqRel) == 1 => {
                complete(id)
            }
            What::Pieces(..) | What::Nothing(_) => return,
            What::Small(_, content) => Complete::Small(file, std::mem::take(&mut *lock(content))),
        };
        // The session may have ended.
        let _ = self.complete.send(complete);
    }
}

fn first_block(placed: &Placed<Missing>, inside: u64) -> u32 {
    let skipped = inside / placed.extra.block_size();
    placed.run.first + u32::try_from(skipped).unwrap_or(u32::MAX - placed.run.first)
}

/// Calls `act` with every block that `inside..inside + len` of a run touches, and how many of its
/// bytes that are.
fn each_block(
    missing: &Missing,
    inside: u64,
    len: u64,
    mut act: impl FnMut(&Count, u64) -> io::Result<()>,
) -> io::Result<()> {
    let size = missing.block_size();
    let (mut at, end) = (inside, inside + len);
    while at < end {
        let index = usize::try_from(at / size).unwrap_or(usize::MAX);
        let piece = (size - at % size).min(end - at);
        let count = missing.count(index).ok_or_else(unasked)?;
        act(count, piece)?;
        at += piece;
    }
    Ok(())
}

impl BlockId {
    fn run(self) -> Run {
        Run {
            file: self.file,
            first: self.block,
            count: 1,
        }
    }
}

/// Makes the error of a byte that was not requested, or that arrived before.
fn unasked() -> io::Error {
    io::Error::other(Fault::protocol("the peer sent data that was not requested"))
}

fn too_much() -> Fault {
    Fault::protocol("more was requested than offsets can name")
}

impl Count {
    fn new(len: u64) -> Self {
        Self {
            unreserved: AtomicU64::new(len),
            unwritten: AtomicU64::new(len),
        }
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.unreserved
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(bytes)
            })
            .map(drop)
            .map_err(|_| unasked())
    }
}

/// A position in a list of slices.
struct Parts<'a> {
    parts: &'a [IoSlice<'a>],
    skip: usize,
}

impl<'a> Parts<'a> {
    /// Puts up to `len` bytes' worth of slices into `out`; returns how many slices and bytes.
    fn take(&mut self, out: &mut [IoSlice<'a>; SLICES], len: u64) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        while let [first, rest @ ..] = self.parts
            && count < SLICES
            && bytes < len
        {
            let wanted = usize::try_from(len - bytes).unwrap_or(usize::MAX);
            let piece = (first.len() - self.skip).min(wanted);
            out[count] = IoSlice::new(&first[self.skip..self.skip + piece]);
            count += 1;
            bytes += piece as u64;
            self.skip += piece;
            if self.skip == first.len() {
                (self.parts, self.skip) = (rest, 0);
            }
        }
        (count, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crossbeam_channel::{Receiver, unbounded};
    use haul_io::file::Dir;
    use proptest::prelude::*;

    use super::*;
    use crate::entry::{Entry, FileEntry, What};
    use crate::fault::Code;
    use crate::fs::path::Relative;
    use crate::target::Found;
    use crate::wire::Policy;

    const MIB: u64 = 1 << 20;
    const SIZES: [u64; 2] = [2 * MIB + 5, 3 * MIB];

    /// A sink that wants both files whole, the second before the last block of the first.
    fn sink() -> (FileSink, Receiver<Complete>, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::open(place.path()).unwrap());
        let targets = Arc::new(Targets::default());
        for (index, size) in (0_u8..).zip(SIZES) {
            let entry = Entry {
                path: Relative::new(&[b'a' + index]).unwrap(),
                modified: crate::wire::Time {
                    seconds: 0,
                    nanos: 0,
                },
                is_member: false,
                mode: 0o600,
                what: What::File(FileEntry::dense(size)),
                extra: None,
            };
            let policy = Policy {
                replace: true,
                ..Policy::default()
            };
            let Found::Part { target, .. } = Target::find(&dir, &entry, policy).unwrap() else {
                panic!("there is nothing yet");
            };
            target.reserve().unwrap();
            targets.insert(index.into(), Arc::from(target));
        }
        let (complete, completed) = unbounded();
        let sink = FileSink::new(targets, complete);
        sink.open();
        let runs = [(0, 0, 2), (1, 0, 3), (0, 2, 1)];
        let runs = runs.map(|(file, first, count)| Run { file, first, count });
        sink.append(&runs).unwrap();
        (sink, completed, place)
    }

    fn space() -> Vec<u8> {
        (0..251_u8).cycle().take(5 << 20 | 5).collect()
    }

    #[test]
    fn bytes_outside_the_space_and_bytes_that_come_twice_are_refused() {
        let (sink, _completed, place) = sink();
        let end = SIZES.iter().sum::<u64>();
        for offset in [end, end - 3, u64::MAX - 1, u64::MAX] {
            let error = sink.place(offset, &[IoSlice::new(b"four")]).unwrap_err();
            let fault = error.downcast::<Fault>().unwrap();
            assert_eq!(fault.code, Code::Protocol, "{offset}");
        }
        let space = space();
        sink.place(0, &[IoSlice::new(&space[..1 << 20])]).unwrap();
        for offset in [0, MIB - 1] {
            assert!(
                sink.place(offset, &[IoSlice::new(b"X")]).is_err(),
                "{offset}"
            );
        }
        let written = std::fs::read(place.path().join(".a.haul-part")).unwrap();
        assert!(
            written[..1 << 20] == space[..1 << 20],
            "what was whole is as it was"
        );
    }

    #[test]
    fn pieces_are_whole_when_all_that_were_asked_for_have_come() {
        let (sink, completed, place) = sink();
        let space = space();
        sink.place(0, &[IoSlice::new(&space)]).unwrap();
        assert_eq!(completed.try_iter().count(), 6);
        let id = BlockId { file: 0, block: 1 };
        let runs = [(12, 8), (252, 4)].map(|(first, count)| PieceRun { first, count });
        assert_eq!(sink.append_pieces(id, &runs).unwrap(), 48 << 10);
        let end = space.len() as u64;
        sink.place(end, &[IoSlice::new(&[1; 33 << 10])]).unwrap();
        assert_eq!(completed.try_recv().ok(), None);
        assert!(sink.place(end + 5, &[IoSlice::new(b"twice")]).is_err());
        let rest = [2; 15 << 10];
        sink.place(end + (33 << 10), &[IoSlice::new(&rest)])
            .unwrap();
        assert_eq!(completed.try_recv().ok(), Some(Complete::Pieces(id)));
        let a = std::fs::read(place.path().join(".a.haul-part")).unwrap();
        let repaired = (1 << 20) + (3 << 14)..(1 << 20) + (5 << 14);
        assert!(a[repaired.clone()] == [1; 32 << 10]);
        assert!(a[..repaired.start] == space[..repaired.start]);
        assert!(a[(2 << 20) - (16 << 10)..2 << 20] == [[1; 1 << 10].as_slice(), &rest].concat());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn pieces_in_any_order_and_of_any_shape_land_in_their_place(
            cuts in proptest::collection::btree_set(1_usize..5 << 20, 0..40),
            slices in 1_usize..200,
            seed in any::<u64>(),
        ) {
            let (sink, completed, place) = sink();
            let space = space();
            let mut ends: Vec<usize> = cuts.into_iter().collect();
            ends.push(space.len());
            let mut start = 0;
            let mut pieces: Vec<_> = ends
                .into_iter()
                .map(|end| std::mem::replace(&mut start, end)..end)
                .collect();
            let mut state = seed | 1;
            pieces.sort_by_cached_key(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 20
            });
            for piece in pieces {
                let offset = piece.start as u64;
                let len = piece.len().div_ceil(slices);
                let parts: Vec<_> = space[piece].chunks(len).map(IoSlice::new).collect();
                sink.place(offset, &parts).unwrap();
            }
            let blocks: Vec<_> = completed.try_iter().collect();
            prop_assert_eq!(blocks.len(), 6);
            let different: HashSet<_> = blocks
                .iter()
                .map(|complete| match complete {
                    Complete::Block(id) => (id.file, id.block),
                    other => panic!("{other:?} was not asked for"),
                })
                .collect();
            prop_assert_eq!(different.len(), 6);
            let a = std::fs::read(place.path().join(".a.haul-part")).unwrap();
            let b = std::fs::read(place.path().join(".b.haul-part")).unwrap();
            prop_assert!(a == [&space[..2 << 20], &space[5 << 20..]].concat());
            prop_assert!(b == space[2 << 20..5 << 20]);
        }
    }
}
