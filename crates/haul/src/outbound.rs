//! The sending side of a transfer space: the offered entries, and the runs requested of them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use haul_io::file::{Dir, start_reading};
use haul_soft::bulk::{Extent, FileRange, Source};

use crate::early::Prefix;
use crate::entry::Entry;
use crate::fault::Fault;
use crate::fs::meta::Lost;
use crate::limit::{Limit, Pacer};
use crate::source::SourceFile;
use crate::space::{Placed, Segment, Space};
use crate::tree::Blocks;
use crate::wire::{
    ENTRIES_OPEN, FILES_OPEN, FileRun, Locate, REPAIRS_MAX, Repair, Run, WEIGHT_OPEN,
};
use crate::{lock, read, write};

/// Small files that were read lately are kept, so that sending and hashing read each once, bytes …
const SMALLS_KEPT: usize = 16 << 20;
/// … of which each counts as so many more: the maps and the allocator take them.
const SMALL_OVERHEAD: usize = 256;
/// Small files are fetched from the disk so many bytes before the channel takes them, …
const AHEAD_BYTES: u64 = 32 << 20;
/// … and where that is done, it is looked so often how far the channel has come.
const AHEAD_EVERY: Duration = Duration::from_millis(2);
/// Files that failed and whose blocks are known: more than a receiver has open, because it may
/// finish some before it reads of their failure.
const FAILED_KEPT: usize = 4 * FILES_OPEN;

/// An offered entry, and where its content comes from.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) entry: Entry,
    /// Attributes that could not be read.
    pub(crate) lost: Lost,
    origin: Origin,
    /// A member that is moved block by block, once a part of it is read.
    opened: OnceLock<Result<SourceFile, Fault>>,
    /// It is a small file whose seal was sent.
    is_sealed: AtomicBool,
}

/// Where the content of an entry comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// An open file.
    Open(Box<SourceFile>),
    /// A member of a tree, opened when its content is needed.
    Member {
        /// The root of the tree.
        root: Arc<Dir>,
        /// How many bytes of the entry's path lead to the root.
        skip: usize,
    },
}

impl Offered {
    pub(crate) fn new(entry: Entry, origin: Origin) -> Self {
        Self {
            entry,
            lost: Lost::default(),
            origin,
            opened: OnceLock::new(),
            is_sealed: AtomicBool::new(false),
        }
    }

    /// Notes that its seal was sent.
    pub(crate) fn seal(&self) {
        self.is_sealed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the receiver needs no more of it than the entry and, if it is a small file,
    /// what was sent already.
    pub(crate) fn is_sent(&self) -> bool {
        let has_data = self.entry.data() > 0 || self.entry.is_blank();
        !has_data || self.is_sealed.load(Ordering::Relaxed)
    }

    /// Returns how the data is cut into blocks; a small file has one, unless it is empty.
    pub(crate) fn blocks(&self) -> Blocks {
        Blocks::new(self.entry.data())
    }

    /// Returns the open file.
    ///
    /// # Errors
    /// It cannot be opened, or is not what was offered.
    pub(crate) fn source(&self) -> Result<&SourceFile, Fault> {
        match &self.origin {
            Origin::Open(file) => Ok(file),
            Origin::Member { root, skip } => {
                let opened = self.opened.get_or_init(|| self.open(root, *skip));
                opened.as_ref().map_err(Fault::clone)
            }
        }
    }

    fn open(&self, root: &Dir, skip: usize) -> Result<SourceFile, Fault> {
        let path = &self.entry.path.as_bytes()[skip..];
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let file = root.open_file(path).map_err(|error| {
            Fault::file(&format!("cannot read '{}'", self.entry.shown()), &error)
        })?;
        SourceFile::offered(file, &self.entry)
    }

    /// Begins to read a small file that is not open.
    fn fetch(&self) {
        if let Origin::Member { root, skip } = &self.origin {
            let path = &self.entry.path.as_bytes()[*skip..];
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            // Whoever reads it tells what is wrong with it.
            if let Ok(file) = root.open_file(path) {
                start_reading(&file, self.entry.data());
            }
        }
    }

    /// Reads a small file whole.
    fn load(&self) -> Result<Vec<u8>, Fault> {
        let opened;
        let source = match &self.origin {
            Origin::Open(file) => file,
            Origin::Member { root, skip } => {
                opened = self.open(root, *skip)?;
                &opened
            }
        };
        source.read_whole()
    }
}

/// The transfer space as the channel reads it.
#[derive(Debug)]
pub(crate) struct FileSource {
    /// What is offered and not finished.
    offered: RwLock<HashMap<u32, Arc<Offered>>>,
    /// The operands that are open from the beginning; their ids are the first.
    operands: Vec<Arc<Offered>>,
    /// [`Entry::weight`] of what is offered and not finished.
    weight: AtomicUsize,
    /// Members of which blocks were requested.
    active: Mutex<HashSet<u32>>,
    failed: Mutex<Failed>,
    /// Blocks of everything offered so far.
    blocks: AtomicUsize,
    space: RwLock<Space<Purpose>>,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// Offsets below this one have been taken by the channel.
    taken: AtomicU64,
    /// The hasher sleeps until `taken` reaches this.
    hasher_waits_for: AtomicU64,
    smalls: Mutex<Smalls>,
    /// The early data of a file whose first block has more.
    begun: Mutex<Option<Prefix>>,
}

#[derive(Debug)]
struct Gate {
    end: u64,
    complete: bool,
    pacer: Pacer,
    /// The hasher's work beside the runs of the space.
    aside: VecDeque<Aside>,
    /// Blocks whose digests were requested without their content; at most all.
    confirmed: usize,
    /// Blocks whose pieces were requested; at most all.
    located: usize,
}

/// A small file as it was read.
type Small = Arc<Result<Vec<u8>, Fault>>;

/// The small files that were read lately.
#[derive(Debug, Default)]
struct Smalls {
    known: HashMap<u32, Small>,
    order: VecDeque<u32>,
    bytes: usize,
}

impl Smalls {
    fn insert(&mut self, file: u32, small: &Small) {
        let len = |small: &Small| SMALL_OVERHEAD + small.as_ref().as_ref().map_or(0, Vec::len);
        if self.known.insert(file, Arc::clone(small)).is_some() {
            return;
        }
        self.order.push_back(file);
        self.bytes += len(small);
        while self.bytes > SMALLS_KEPT
            && let Some(oldest) = self.order.pop_front()
            && let Some(small) = self.known.remove(&oldest)
        {
            self.bytes -= len(&small);
        }
    }
}

/// Files that failed lately: requests for their blocks may still be in flight.
///
/// A receiver that has not read of a failure has the file open, so that those are few.
#[derive(Debug, Default)]
struct Failed {
    blocks: HashMap<u32, Blocks>,
    order: VecDeque<u32>,
}

impl Failed {
    fn insert(&mut self, file: u32, blocks: Blocks) {
        if self.order.len() == FAILED_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.blocks.remove(&oldest);
        }
        self.order.push_back(file);
        self.blocks.insert(file, blocks);
    }
}

/// Purpose of a run of the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The receiver waits for the digests of its blocks.
    Blocks,
    /// It repairs pieces whose digests the receiver has, or is the beginning of a block.
    Pieces,
    /// It is a small file, whose seal the receiver waits for.
    Whole,
}

/// Work for the hasher that does not depend on the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aside {
    /// Hash these blocks, which are present at the receiver.
    Confirm(Run),
    /// Hash the pieces of this block.
    Locate(Locate),
    /// Check whether the file still is what was hashed.
    Prove(u32),
}

/// The hasher's next work.
#[derive(Debug)]
pub(crate) enum Work {
    /// Hash this run of the space.
    Run(Run, Segment),
    /// Hash this small file, whose bytes end at an offset of the space.
    Whole(u32, u64),
    Aside(Aside),
}

/// Number of blocks confirmed at a time, so that those of the space do not wait long.
const CONFIRM_PIECE: u32 = 8;

impl FileSource {
    /// Makes an empty space over these operands, whose ids are their indexes.
    pub(crate) fn new(operands: Vec<Offered>) -> Self {
        let operands: Vec<_> = operands.into_iter().map(Arc::new).collect();
        let blocks = operands.iter().map(|one| one.blocks().count() as usize);
        Self {
            blocks: AtomicUsize::new(blocks.sum()),
            offered: RwLock::new((0..).zip(operands.iter().map(Arc::clone)).collect()),
            weight: AtomicUsize::new(operands.iter().map(|one| one.entry.weight()).sum()),
            operands,
            active: Mutex::default(),
            failed: Mutex::default(),
            space: RwLock::new(Space::new()),
            gate: Mutex::new(Gate {
                end: 0,
                complete: false,
                pacer: Pacer::new(Limit::default()),
                aside: VecDeque::new(),
                confirmed: 0,
                located: 0,
            }),
            changed: Condvar::new(),
            taken: AtomicU64::new(0),
            hasher_waits_for: AtomicU64::new(u64::MAX),
            smalls: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    /// Has the channel read no faster than this limit.
    pub(crate) fn pace(&self, limit: Limit) {
        lock(&self.gate).pacer = Pacer::new(limit);
    }

    /// Changes the limit, bits per second.
    pub(crate) fn set_rate(&self, rate_bps: Option<u64>) {
        lock(&self.gate).pacer.limit().set(rate_bps);
    }

    /// Adds an entry that is being offered.
    pub(crate) fn offer(&self, file: u32, offered: Offered) {
        let blocks = offered.blocks().count() as usize;
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.weight
            .fetch_add(offered.entry.weight(), Ordering::Relaxed);
        write(&self.offered).insert(file, Arc::new(offered));
    }

    /// Returns an entry that is not finished.
    pub(crate) fn get(&self, file: u32) -> Option<Arc<Offered>> {
        read(&self.offered).get(&file).map(Arc::clone)
    }

    /// Returns whether another entry may be offered: half of what a receiver takes, because it may
    /// finish an entry later than this end.
    pub(crate) fn has_room(&self) -> bool {
        read(&self.offered).len() < ENTRIES_OPEN / 2
            && self.weight.load(Ordering::Relaxed) < WEIGHT_OPEN / 2
    }

    /// Returns whether `is_so` holds of every entry that is not finished.
    pub(crate) fn is_all(&self, mut is_so: impl FnMut(u32, &Offered) -> bool) -> bool {
        read(&self.offered)
            .iter()
            .all(|(file, offered)| is_so(*file, offered))
    }

    /// Returns whether every entry is finished.
    pub(crate) fn is_empty(&self) -> bool {
        read(&self.offered).is_empty()
    }

    /// Forgets an entry that is finished; returns it if it was not before.
    pub(crate) fn finish(&self, file: u32) -> Option<Arc<Offered>> {
        lock(&self.active).remove(&file);
        let finished = write(&self.offered).remove(&file)?;
        self.weight
            .fetch_sub(finished.entry.weight(), Ordering::Relaxed);
        Some(finished)
    }

    /// Forgets an entry that failed; returns it if it was not finished before. Blocks of it that
    /// were requested meanwhile are zeros.
    pub(crate) fn fail(&self, file: u32) -> Option<Arc<Offered>> {
        let offered = self.finish(file)?;
        if !offered.entry.is_small() && offered.entry.data() > 0 {
            lock(&self.failed).insert(file, offered.blocks());
        }
        Some(offered)
    }

    /// Forgets the runs at the beginning of the space whose files are finished.
    pub(crate) fn retire(&self) {
        let offered = read(&self.offered);
        let is_over = |placed: &Placed<_>| !offered.contains_key(&placed.run.file);
        write(&self.space).retire(is_over);
    }

    /// Begins the space with early data.
    pub(crate) fn begin(&self, prefixes: &[Prefix]) -> Result<(), Fault> {
        for prefix in prefixes {
            let run = Run {
                file: prefix.file,
                first: 0,
                count: 1,
            };
            let purpose = match (prefix.is_small, prefix.is_whole) {
                (true, _) => Purpose::Whole,
                (false, true) => Purpose::Blocks,
                (false, false) => Purpose::Pieces,
            };
            if !prefix.is_whole {
                *lock(&self.begun) = Some(*prefix);
            }
            self.extend(vec![(run, 0, prefix.len)], purpose)?;
        }
        Ok(())
    }

    /// Notes that the receiver has discarded the early data of a file.
    pub(crate) fn discard(&self, file: u32) {
        lock(&self.begun).take_if(|prefix| prefix.file == file);
    }

    /// Appends the runs that the receiver requests.
    pub(crate) fn append(&self, runs: &[Run]) -> Result<(), Fault> {
        let placed = runs.iter().map(|run| {
            let (position, len) = self.inside(run)?.range(run.first, run.count);
            let is_begun = |prefix: &mut Prefix| prefix.file == run.file && run.first == 0;
            let begun = lock(&self.begun).take_if(is_begun);
            let begun = begun.map_or(0, |prefix| prefix.len);
            Ok((*run, position + begun, len - begun))
        });
        let placed = placed.collect::<Result<_, Fault>>()?;
        let mut active = lock(&self.active);
        let operands = self.operands.len();
        let files = runs.iter().map(|run| run.file);
        let offered = read(&self.offered);
        active
            .extend(files.filter(|file| *file as usize >= operands && offered.contains_key(file)));
        drop(offered);
        if active.len() > FILES_OPEN {
            return Err(Fault::protocol(
                "the receiver asks for too many files at once",
            ));
        }
        drop(active);
        self.extend(placed, Purpose::Blocks)
    }

    /// Appends the small files that the receiver requests.
    pub(crate) fn append_files(&self, runs: &[FileRun]) -> Result<(), Fault> {
        let mut placed = Vec::new();
        let offered = read(&self.offered);
        for run in runs {
            let end = run.first.checked_add(run.count);
            let end = end.ok_or_else(|| Fault::protocol("no such files"))?;
            if (end - run.first) as usize > offered.len() {
                return Err(Fault::protocol("the receiver asked for files not offered"));
            }
            if placed.len() > offered.len() + REPAIRS_MAX {
                return Err(Fault::protocol(
                    "the receiver asked for the same files often",
                ));
            }
            for file in run.first..end {
                let small = offered.get(&file).filter(|one| one.entry.is_small());
                let small = small.filter(|one| one.entry.size() > 0);
                let small =
                    small.ok_or_else(|| Fault::protocol("the receiver asked for no small file"))?;
                let run = Run {
                    file,
                    first: 0,
                    count: 1,
                };
                placed.push((run, 0, small.entry.size()));
            }
        }
        drop(offered);
        self.extend(placed, Purpose::Whole)
    }

    /// Appends pieces of a block that arrived damaged.
    pub(crate) fn repair(&self, repair: &Repair) -> Result<(), Fault> {
        let (file, first) = (repair.file, repair.block);
        let block = Run {
            file,
            first,
            count: 1,
        };
        let pieces = self.inside(&block)?.pieces(first);
        let placed = repair.runs.iter().map(|run| {
            let end = run.first.checked_add(run.count);
            if run.count == 0 || end.is_none_or(|end| end > pieces.count()) {
                return Err(Fault::protocol(
                    "the receiver asked for pieces that no block has",
                ));
            }
            let (position, len) = pieces.range(run.first, run.count);
            Ok((block, position, len))
        });
        self.extend(placed.collect::<Result<_, Fault>>()?, Purpose::Pieces)
    }

    fn extend(&self, placed: Vec<(Run, u64, u64)>, purpose: Purpose) -> Result<(), Fault> {
        // Each block once, stale ones twice, and pieces as often as a receiver may repair.
        let blocks = self.blocks.load(Ordering::Relaxed);
        let runs_max = blocks.saturating_mul(2).saturating_add(REPAIRS_MAX);
        let mut space = write(&self.space);
        if space.count() + placed.len() > runs_max {
            return Err(over_and_over());
        }
        for (run, position, len) in placed {
            if !space.append(run, position, len, purpose) {
                return Err(Fault::protocol("the receiver asked for too much"));
            }
        }
        let end = space.end();
        drop(space);
        lock(&self.gate).end = end;
        self.changed.notify_all();
        Ok(())
    }

    /// Has the hasher find the digests of a block's pieces.
    pub(crate) fn locate(&self, locate: Locate) -> Result<(), Fault> {
        self.inside(&Run {
            file: locate.file,
            first: locate.block,
            count: 1,
        })?;
        let mut gate = lock(&self.gate);
        gate.located += 1;
        if gate.located > self.blocks.load(Ordering::Relaxed) {
            return Err(over_and_over());
        }
        gate.aside.push_back(Aside::Locate(locate));
        drop(gate);
        self.changed.notify_all();
        Ok(())
    }

    /// Appends blocks whose digests the receiver wants without their content.
    pub(crate) fn confirm(&self, runs: &[Run]) -> Result<(), Fault> {
        let mut gate = lock(&self.gate);
        for run in runs {
            self.inside(run)?;
            gate.confirmed += run.count as usize;
            if gate.confirmed > self.blocks.load(Ordering::Relaxed) {
                return Err(over_and_over());
            }
            gate.aside.push_back(Aside::Confirm(*run));
        }
        drop(gate);
        self.changed.notify_all();
        Ok(())
    }

    /// Returns the length in bytes of a run that [`FileSource::append`] has taken.
    pub(crate) fn len(&self, run: &Run) -> u64 {
        let blocks = self.get(run.file).map(|offered| offered.blocks());
        blocks.map_or(0, |blocks| blocks.range(run.first, run.count).1)
    }

    /// Has the hasher check whether the file still is what it hashed.
    pub(crate) fn prove(&self, file: u32) {
        let mut gate = lock(&self.gate);
        if !gate.aside.contains(&Aside::Prove(file)) {
            gate.aside.push_back(Aside::Prove(file));
        }
        drop(gate);
        self.changed.notify_all();
    }

    /// Returns how the file of a run is cut into blocks, if it has the run's.
    fn inside(&self, run: &Run) -> Result<Blocks, Fault> {
        let offered = self.get(run.file).filter(|one| !one.entry.is_small());
        let blocks = offered.map(|offered| offered.blocks());
        let blocks = blocks.or_else(|| lock(&self.failed).blocks.get(&run.file).copied());
        let inside = blocks.filter(|blocks| {
            let end = run.first.checked_add(run.count);
            run.count > 0 && end.is_some_and(|end| end <= blocks.count())
        });
        inside.ok_or_else(|| Fault::protocol("the receiver asked for blocks that no file has"))
    }

    /// Completes the space: no more runs follow.
    pub(crate) fn complete(&self) {
        lock(&self.gate).complete = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_complete(&self) -> bool {
        lock(&self.gate).complete
    }

    /// Returns the next run from `index` on to hash, or other work, if there is some.
    pub(crate) fn work_now(&self, index: &mut usize) -> Option<Work> {
        self.look(&mut lock(&self.gate), index)
    }

    /// Blocks for what [`FileSource::work_now`] returns; `None` once the space is complete.
    pub(crate) fn work(&self, index: &mut usize) -> Option<Work> {
        let mut gate = lock(&self.gate);
        loop {
            let work = self.look(&mut gate, index);
            if work.is_some() || gate.complete {
                return work;
            }
            gate = self
                .changed
                .wait(gate)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has the disk read small files before the channel takes them, until the space is complete:
    /// many at a time, where the channel would wait for each.
    pub(crate) fn fetch_ahead(&self) {
        let mut index = 0;
        let mut gate = lock(&self.gate);
        while !gate.complete {
            let next = read(&self.space)
                .run(&mut index)
                .map(|placed| placed.segment);
            let Some(segment) = next else {
                gate = self
                    .changed
                    .wait(gate)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if segment.start > self.taken() + AHEAD_BYTES {
                let waited = self.changed.wait_timeout(gate, AHEAD_EVERY);
                (gate, _) = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(gate);
            index += 1;
            let offered = self.get(segment.file);
            if let Some(offered) = offered.filter(|offered| offered.entry.is_small()) {
                offered.fetch();
            }
            gate = lock(&self.gate);
        }
    }

    fn look(&self, gate: &mut Gate, index: &mut usize) -> Option<Work> {
        let space = read(&self.space);
        while let Some(placed) = space.run(index) {
            *index += 1;
            let Placed { run, segment, .. } = *placed;
            match placed.extra {
                Purpose::Blocks => return Some(Work::Run(run, segment)),
                Purpose::Whole => return Some(Work::Whole(run.file, segment.start + segment.len)),
                Purpose::Pieces => {}
            }
        }
        drop(space);
        if gate.complete {
            return None;
        }
        gate.next_aside().map(Work::Aside)
    }

    /// Returns other work while the channel has not taken the bytes below `offset`.
    pub(crate) fn work_until_taken(&self, offset: u64) -> Option<Aside> {
        if self.taken() >= offset {
            return None;
        }
        lock(&self.gate).next_aside()
    }

    /// Blocks until the channel has taken the bytes below `offset`, so that the hasher finds them
    /// in the page cache. Returns early if the channel stands still.
    pub(crate) fn wait_taken(&self, offset: u64) {
        const STANDSTILL: Duration = Duration::from_millis(500);
        let mut gate = lock(&self.gate);
        self.hasher_waits_for.store(offset, Ordering::SeqCst);
        let mut seen = self.taken.load(Ordering::SeqCst);
        while seen < offset && !gate.complete {
            let waited = self.changed.wait_timeout(gate, STANDSTILL);
            let (held, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            gate = held;
            let now = self.taken.load(Ordering::SeqCst);
            if timeout.timed_out() && now == seen {
                break;
            }
            seen = now;
        }
        self.hasher_waits_for.store(u64::MAX, Ordering::SeqCst);
    }

    /// Returns the bytes that the channel has taken to send.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    fn note_taken(&self, end: u64) {
        self.taken.fetch_max(end, Ordering::SeqCst);
        if end >= self.hasher_waits_for.load(Ordering::SeqCst) {
            drop(lock(&self.gate));
            self.changed.notify_all();
        }
    }

    /// Returns a small file, read lately or now.
    pub(crate) fn small(&self, file: u32, offered: &Offered) -> Small {
        if let Some(known) = lock(&self.smalls).known.get(&file) {
            return Arc::clone(known);
        }
        let small = Arc::new(offered.load());
        lock(&self.smalls).insert(file, &small);
        small
    }

    /// Fills `buf` with the bytes of one run. A member that cannot be read any more is zeros: the
    /// hasher reports it, and the receiver drops it.
    fn read_run(&self, segment: Segment, buf: &mut [u8]) -> io::Result<()> {
        let Some(offered) = self.get(segment.file) else {
            buf.fill(0);
            return Ok(());
        };
        let result = if offered.entry.is_small() {
            let small = self.small(segment.file, &offered);
            match small.as_ref() {
                Ok(content) => {
                    let begin = usize::try_from(segment.position).unwrap_or(usize::MAX);
                    buf.copy_from_slice(&content[begin..begin + buf.len()]);
                    Ok(())
                }
                Err(fault) => Err(fault.clone()),
            }
        } else {
            let source = offered.source();
            source.and_then(|source| source.read_exact_at(buf, segment.position))
        };
        match result {
            Err(_) if offered.entry.is_member => {
                buf.fill(0);
                Ok(())
            }
            result => result.map_err(io::Error::other),
        }
    }
}

fn over_and_over() -> Fault {
    Fault::protocol("the receiver requests the same blocks again and again")
}

impl Gate {
    fn next_aside(&mut self) -> Option<Aside> {
        let Some(Aside::Confirm(run)) = self.aside.front_mut() else {
            return self.aside.pop_front();
        };
        if run.count <= CONFIRM_PIECE {
            return self.aside.pop_front();
        }
        let piece = Run {
            count: CONFIRM_PIECE,
            ..*run
        };
        run.first += CONFIRM_PIECE;
        run.count -= CONFIRM_PIECE;
        Some(Aside::Confirm(piece))
    }
}

impl Source for FileSource {
    fn wait(&self, offset: u64, timeout: Duration) -> Extent {
        /// How often a channel that the limit holds back looks again.
        const HELD: Duration = Duration::from_millis(2);
        self.note_taken(offset);
        let begun = Instant::now();
        let mut gate = lock(&self.gate);
        loop {
            let now = Instant::now();
            let taken = self.taken.load(Ordering::SeqCst);
            let may = gate.pacer.end(taken, now);
            let (end, is_held) = (gate.end.min(may), may < gate.end);
            let complete = gate.complete && !is_held;
            let left = timeout.saturating_sub(now - begun);
            if end > offset || complete || left.is_zero() {
                return Extent { end, complete };
            }
            let pause = if is_held { left.min(HELD) } else { left };
            let waited = self.changed.wait_timeout(gate, pause);
            (gate, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        self.note_taken(offset);
        while !buf.is_empty() {
            let space = read(&self.space);
            let (segment, begin) = (space.rest_of_run(offset), space.begin());
            drop(space);
            let len = match &segment {
                Some(segment) => segment.len,
                // The receiver has it.
                None if offset < begin => begin - offset,
                None => return Err(io::ErrorKind::InvalidInput.into()),
            };
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(buf.len());
            let (now, rest) = buf.split_at_mut(len);
            match segment {
                Some(segment) => self.read_run(segment, now)?,
                None => now.fill(0),
            }
            offset += len as u64;
            buf = rest;
        }
        Ok(())
    }

    fn file_at(&self, offset: u64) -> Option<FileRange<'_>> {
        let segment = read(&self.space).rest_of_run(offset)?;
        let operand = self.operands.get(segment.file as usize)?;
        let Origin::Open(source) = &operand.origin else {
            return None;
        };
        Some(FileRange {
            fd: source.file.as_fd(),
            position: segment.position,
            len: segment.len,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::fault::Code;
    use crate::fs::path::Relative;
    use crate::wire::PieceRun;

    const MIB: usize = 1 << 20;

    fn source(sizes: &[usize]) -> FileSource {
        let files = (0_u8..).zip(sizes).map(|(index, size)| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![index; *size]).unwrap();
            let source = SourceFile::new(file, "a file").unwrap();
            let entry = source.entry(Relative::new(&[b'a' + index]).unwrap());
            Offered::new(entry, Origin::Open(Box::new(source)))
        });
        FileSource::new(files.collect())
    }

    fn run(file: u32, first: u32, count: u32) -> Run {
        Run { file, first, count }
    }

    #[test]
    fn of_tiny_files_no_more_are_kept_than_memory_is_set_aside_for() {
        let mut smalls = Smalls::default();
        for file in 0..200_000 {
            smalls.insert(file, &Arc::new(Ok(vec![7; 4])));
        }
        assert!(smalls.known.len() <= SMALLS_KEPT / SMALL_OVERHEAD);
        assert_eq!(smalls.known.len(), smalls.order.len());
        assert!(smalls.known.contains_key(&199_999));
    }

    #[test]
    fn a_read_may_cross_from_one_file_to_the_next() {
        let source = source(&[MIB + 10, 100]);
        source.append(&[run(0, 1, 1), run(1, 0, 1)]).unwrap();
        let extent = source.wait(0, Duration::ZERO);
        assert_eq!(
            extent,
            Extent {
                end: 110,
                complete: false
            }
        );
        let mut bytes = [9; 110];
        source.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..10] == [0; 10] && bytes[10..] == [1; 100]);
        assert_eq!(
            source.file_at(4).map(|range| (range.position, range.len)),
            Some((MIB as u64 + 4, 6))
        );
        assert!(source.read_at(109, &mut [0; 2]).is_err());
    }

    #[test]
    fn blocks_that_no_file_has_cannot_be_asked_for() {
        let source = source(&[MIB + 10, 0]);
        for bad in [
            run(0, 2, 1),
            run(0, 0, 3),
            run(0, 0, 0),
            run(0, u32::MAX, 2),
            run(1, 0, 1),
            run(2, 0, 1),
        ] {
            assert_eq!(
                source.append(&[bad]).unwrap_err().code,
                Code::Protocol,
                "{bad:?}"
            );
        }
        let again = std::iter::repeat_n(run(0, 0, 1), REPAIRS_MAX + 5).collect::<Vec<_>>();
        assert!(source.append(&again).is_err());
    }

    #[test]
    fn pieces_that_no_block_has_cannot_be_asked_for() {
        let source = source(&[MIB + 10]);
        let repair = |block, first, count| {
            let runs = vec![PieceRun { first, count }];
            let file = 0;
            source.repair(&Repair { file, block, runs })
        };
        repair(0, 240, 16).unwrap();
        repair(1, 0, 1).unwrap();
        assert_eq!(source.wait(0, Duration::ZERO).end, (64 << 10) + 10);
        for (block, first, count) in [
            (0, 240, 17),
            (0, 0, 0),
            (1, 1, 1),
            (2, 0, 1),
            (0, u32::MAX, 2),
        ] {
            let refused = repair(block, first, count).unwrap_err();
            assert_eq!(refused.code, Code::Protocol, "{block} {first} {count}");
        }
        let locate = |block| source.locate(Locate { file: 0, block });
        assert!(locate(2).is_err());
        locate(0).unwrap();
        locate(1).unwrap();
        assert!(locate(1).is_err());
    }

    #[test]
    fn waiting_ends_when_the_space_grows_or_is_complete() {
        let source = source(&[10]);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| source.wait(0, Duration::from_secs(20)).end);
            source.append(&[run(0, 0, 1)]).unwrap();
            assert_eq!(waiter.join().unwrap(), 10);
            let waiter = scope.spawn(|| source.wait(10, Duration::from_secs(20)).complete);
            source.complete();
            assert!(waiter.join().unwrap());
        });
    }
}
