//! The receiving side of a transfer space: bytes go straight to their place in the part files, in
//! any order, and every block is reported when its last byte is written.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crossbeam_channel::Sender;
use haul_io::file::write_all_at;
use haul_soft::bulk::Sink;

use crate::fault::Fault;
use crate::space::{Placed, Space};
use crate::target::Target;
use crate::wire::Run;
use crate::{lock, read, write};

/// Slices handed to one `pwritev`.
const SLICES: usize = 64;

/// A block whose bytes have all been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockId {
    pub(crate) file: u32,
    pub(crate) block: u32,
}

/// What the channel writes.
#[derive(Debug)]
pub(crate) struct FileSink {
    /// `None` for a file that is there already.
    targets: Vec<Option<Arc<Target>>>,
    space: RwLock<Space<Box<[Count]>>>,
    complete: Sender<BlockId>,
    placed: AtomicU64,
    fault: Mutex<Option<Fault>>,
}

/// How much of a block is still to come.
#[derive(Debug)]
struct Count {
    /// Bytes that no `place` has claimed; `unreserved <= unwritten`.
    unreserved: AtomicU64,
    /// Bytes that are not in the file yet.
    unwritten: AtomicU64,
}

impl FileSink {
    /// A sink that reports each complete block to `complete`.
    pub(crate) fn new(targets: Vec<Option<Arc<Target>>>, complete: Sender<BlockId>) -> Self {
        Self {
            targets,
            space: RwLock::new(Space::new()),
            complete,
            placed: AtomicU64::new(0),
            fault: Mutex::new(None),
        }
    }

    /// Appends runs to the space, before the sender is told of them.
    pub(crate) fn append(&self, runs: &[Run]) -> Result<(), Fault> {
        let mut space = write(&self.space);
        for run in runs {
            let target = self.targets.get(run.file as usize).and_then(Option::as_ref);
            let Some(target) = target else {
                return Err(Fault::protocol(
                    "a run of a file that is not being received",
                ));
            };
            let (position, len) = target.blocks.range(run.first, run.count);
            let counts = (run.first..run.first + run.count)
                .map(|block| {
                    let (_, len) = target.blocks.range(block, 1);
                    Count {
                        unreserved: AtomicU64::new(len),
                        unwritten: AtomicU64::new(len),
                    }
                })
                .collect();
            if !space.append(*run, position, len, counts) {
                return Err(Fault::protocol("more was asked for than offsets can name"));
            }
        }
        Ok(())
    }

    /// Bytes written so far; a repaired block counts again.
    pub(crate) fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Why a write failed, if one did.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.fault).clone()
    }

    fn write(
        &self,
        placed: &Placed<Box<[Count]>>,
        inside: u64,
        len: u64,
        parts: &mut Parts<'_>,
    ) -> io::Result<()> {
        let Some(target) = self
            .targets
            .get(placed.segment.file)
            .and_then(Option::as_ref)
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut position = placed.segment.position + inside;
        let mut left = len;
        while left > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (count, bytes) = parts.take(&mut slices, left);
            let written = write_all_at(target.file.as_fd(), &mut slices[..count], position);
            if let Err(error) = written {
                let fault = Fault::file(&format!("cannot write '{}'", target.name), &error);
                lock(&self.fault).get_or_insert(fault);
                return Err(error);
            }
            position += bytes;
            left -= bytes;
        }
        Ok(())
    }
}

impl Sink for FileSink {
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let space = read(&self.space);
        let end = offset.checked_add(total).filter(|end| *end <= space.end());
        let Some(end) = end else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut parts = Parts { parts, skip: 0 };
        let mut at = offset;
        while at < end {
            let index = space.index_of(at).ok_or(io::ErrorKind::InvalidInput)?;
            let placed = &space.runs()[index];
            let inside = at - placed.segment.start;
            let len = (placed.segment.len - inside).min(end - at);
            // Claimed before it is written: a byte that comes twice must not touch what may have
            // been verified meanwhile.
            self.each_block(placed, inside, len, |count, piece| count.reserve(piece))?;
            self.write(placed, inside, len, &mut parts)?;
            let mut block = 0;
            self.each_block(placed, inside, len, |count, piece| {
                if count.unwritten.fetch_sub(piece, Ordering::AcqRel) == piece {
                    let first = self.first_block(placed, inside);
                    let id = BlockId {
                        file: placed.run.file,
                        block: first + block,
                    };
                    // Nobody listens once the session is over.
                    let _ = self.complete.send(id);
                }
                block += 1;
                Ok(())
            })?;
            self.placed.fetch_add(len, Ordering::Relaxed);
            at += len;
        }
        Ok(())
    }
}

impl FileSink {
    fn block_size(&self, placed: &Placed<Box<[Count]>>) -> u64 {
        let target = self
            .targets
            .get(placed.segment.file)
            .and_then(Option::as_ref);
        target.map_or(u64::MAX, |target| target.blocks.block_size())
    }

    fn first_block(&self, placed: &Placed<Box<[Count]>>, inside: u64) -> u32 {
        let skipped = inside / self.block_size(placed);
        placed.run.first + u32::try_from(skipped).unwrap_or(u32::MAX - placed.run.first)
    }

    /// Calls `act` with every block that `inside..inside + len` of the run touches, and how many
    /// of its bytes that are.
    fn each_block(
        &self,
        placed: &Placed<Box<[Count]>>,
        inside: u64,
        len: u64,
        mut act: impl FnMut(&Count, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let size = self.block_size(placed);
        let (mut at, end) = (inside, inside + len);
        while at < end {
            let index = usize::try_from(at / size).unwrap_or(usize::MAX);
            let piece = (size - at % size).min(end - at);
            let count = placed.extra.get(index).ok_or(io::ErrorKind::InvalidInput)?;
            act(count, piece)?;
            at += piece;
        }
        Ok(())
    }
}

impl Count {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.unreserved
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(bytes)
            })
            .map(drop)
            .map_err(|_| io::ErrorKind::InvalidInput.into())
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
    use crate::target::Found;
    use crate::wire::{Entry, Policy};

    const MIB: u64 = 1 << 20;
    const SIZES: [u64; 2] = [2 * MIB + 5, 3 * MIB];

    /// A sink that wants both files whole, the second before the last block of the first.
    fn sink() -> (FileSink, Receiver<BlockId>, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::open(place.path()).unwrap());
        let targets = (0..).zip(SIZES).map(|(index, size): (u8, u64)| {
            let entry = Entry {
                name: vec![b'a' + index],
                size,
                modified: crate::wire::Time {
                    seconds: 0,
                    nanos: 0,
                },
                unproven: false,
                mode: 0o600,
            };
            let policy = Policy {
                replace: true,
                recheck: false,
            };
            let Found::Part { target, .. } = Target::find(&dir, &entry, policy).unwrap() else {
                panic!("there is nothing yet");
            };
            target.reserve().unwrap();
            Some(Arc::from(target))
        });
        let (complete, completed) = unbounded();
        let sink = FileSink::new(targets.collect(), complete);
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
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{offset}");
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
            let different: HashSet<_> = blocks.iter().map(|id| (id.file, id.block)).collect();
            prop_assert_eq!(different.len(), 6);
            let a = std::fs::read(place.path().join(".a.haul-part")).unwrap();
            let b = std::fs::read(place.path().join(".b.haul-part")).unwrap();
            prop_assert!(a == [&space[..2 << 20], &space[5 << 20..]].concat());
            prop_assert!(b == space[2 << 20..5 << 20]);
        }
    }
}
