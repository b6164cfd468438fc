//! From names to memory: the pieces of work requests and what the core calls a region, as ranges
//! that are held while a system call or a copy uses them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use haul_iwarp::datagram::Source as Sender;
use haul_iwarp::{AtomicAccess, Memory, Payload, Pd, RecvWr, Rights, StagEntry, Target};
use haul_slab::{AccessFlags, Entry, Guard, Region, Registry, Stag};
use haul_verbs::{Peer, QpCapacity, SGE_MAX, Sge, SgeList, Sources, WcOpcode};

use super::places::Places;
use super::shared_receives::SharedReceives;
use super::slots::Slots;

/// A range of registered memory that cannot be taken away while it is held.
#[derive(Debug)]
pub(super) struct Range<'r> {
    guard: Guard<'r>,
    /// offset + len <= region.len()
    offset: usize,
    len: usize,
}

/// The ranges of one message's part.
pub(super) type Ranges<'r> = ArrayVec<Range<'r>, SGE_MAX>;

impl<'r> Range<'r> {
    /// `len` bytes from `offset` on in the region that the core knows by this number, if it is
    /// still there.
    pub(super) fn of_region(
        registry: &'r Registry,
        region: u64,
        offset: u64,
        len: u32,
    ) -> Option<Self> {
        let guard = registry.lookup(Stag(u32::try_from(region).ok()?))?;
        let offset = usize::try_from(offset).ok()?;
        let len = len as usize;
        let fits = offset.checked_add(len)? <= guard.region.len();
        fits.then_some(Self { guard, offset, len })
    }

    fn of_piece(registry: &'r Registry, pd: u32, piece: Sge, wanted: AccessFlags) -> Option<Self> {
        let guard = registry.lookup(Stag(piece.lkey))?;
        if guard.pd != pd || !guard.access.contains(wanted) {
            return None;
        }
        let offset = guard.offset(piece.addr, piece.len.into())?;
        let len = piece.len as usize;
        Some(Self { guard, offset, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The range as a source of a system call.
    pub(super) fn gather(&self) -> Option<haul_slab::Gather<'_>> {
        self.guard.region.gather(self.offset, self.len).ok()
    }

    /// The range as a target of a system call.
    pub(super) fn scatter(&self) -> Option<haul_slab::Scatter<'_>> {
        self.guard.region.scatter(self.offset, self.len).ok()
    }

    /// Copies `bytes`, no more than the range holds, to its `at`th byte.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let fits = at + bytes.len() <= self.len;
        debug_assert!(fits, "more bytes than were asked for");
        if fits {
            // The range was checked when it was made, so this cannot fail.
            let _ = self.guard.region.write(self.offset + at, bytes);
        }
    }

    /// Shows the first `len` bytes.
    pub(super) fn visit(&self, len: usize, show: impl FnMut(&[u8])) {
        // As for `write`.
        let _ = self
            .guard
            .region
            .visit(self.offset, len.min(self.len), show);
    }
}

/// `len` bytes of the message behind `pieces`, from `skip` on; none where a piece is not
/// accessible so.
pub(super) fn ranges<'r>(
    registry: &'r Registry,
    pd: u32,
    pieces: &[Sge],
    mut skip: u32,
    mut len: u32,
    wanted: AccessFlags,
) -> Option<Ranges<'r>> {
    let mut ranges = Ranges::new();
    for piece in pieces {
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        if len == 0 {
            break;
        }
        let part = Sge {
            addr: piece.addr.checked_add(skip.into())?,
            len: (piece.len - skip).min(len),
            lkey: piece.lkey,
        };
        skip = 0;
        len -= part.len;
        ranges.push(Range::of_piece(registry, pd, part, wanted)?);
    }
    (len == 0).then_some(ranges)
}

/// A queue pair's memory, as its core sees it.
#[derive(Debug)]
pub(super) struct PairMemory<'a> {
    pub(super) registry: &'a Registry,
    /// Buffers of the receives that the core has.
    pub(super) receives: &'a mut Slots<SgeList>,
    pub(super) srq: Option<&'a SharedReceives>,
}

impl Memory for PairMemory<'_> {
    fn lookup(&self, stag: haul_iwarp::Stag) -> Option<StagEntry> {
        let guard = self.registry.lookup(Stag(stag.0))?;
        Some(entry_of(stag, &guard))
    }

    fn invalidate(&mut self, stag: haul_iwarp::Stag) {
        self.registry.invalidate(Stag(stag.0));
    }

    fn atomic(&mut self, access: &AtomicAccess) -> u64 {
        let range = Range::of_region(self.registry, access.region.0, access.offset, 8);
        let Some(range) = range else { return 0 };
        let moved = AtomicAccess {
            offset: range.offset as u64,
            ..*access
        };
        change_word(&range.guard.region, &moved).unwrap_or(0)
    }

    fn take_receive(&mut self) -> Option<RecvWr> {
        take_shared(self.srq, self.receives)
    }
}

/// The next receive of a shared queue, under a number of this queue pair's.
pub(super) fn take_shared(
    srq: Option<&SharedReceives>,
    receives: &mut Slots<SgeList>,
) -> Option<RecvWr> {
    let wr = srq?.take()?;
    // The core asks for one when it needs one, so there is a number for it.
    let slot = receives.insert(wr.sges).ok()?;
    let len = u32::try_from(wr.sges.total_len()).unwrap_or(u32::MAX);
    Some(RecvWr::new(wr.wr_id, slot, len))
}

/// What the core is to know of a region.
pub(super) fn entry_of(stag: haul_iwarp::Stag, entry: &Entry) -> StagEntry {
    StagEntry {
        pd: Pd(entry.pd),
        qp: None,
        base: entry.base,
        len: entry.region.len() as u64,
        rights: rights(entry.access),
        region: haul_iwarp::RegionId(stag.0.into()),
    }
}

/// Does an atomic operation; what the word was.
pub(super) fn change_word(region: &Region, access: &AtomicAccess) -> Option<u64> {
    // Registration has seen to it that what is aligned as a tagged offset is aligned in memory.
    let offset = usize::try_from(access.offset).ok()?;
    let Ok(ControlFlow::Continue(word)) = region.atomic(offset) else {
        return None;
    };
    let update = |old| Some(access.op.apply(old));
    let changed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    Some(changed.unwrap_or_else(|old| old))
}

/// Whether the owner of a region lets this sender use it.
pub(super) fn admits(entry: &Entry, sender: &Sender, is_validated: bool) -> bool {
    let sources = entry.note.as_ref().and_then(|note| note.downcast_ref());
    match sources.unwrap_or(&Sources::Validated) {
        Sources::Validated => is_validated,
        Sources::Any => true,
        Sources::Of(list) => list
            .iter()
            .any(|(ip, qpn)| *ip == sender.addr.ip() && qpn.is_none_or(|qpn| qpn == sender.qpn)),
    }
}

fn rights(access: AccessFlags) -> Rights {
    let table = [
        (AccessFlags::LOCAL_WRITE, Rights::LOCAL_WRITE),
        (AccessFlags::REMOTE_WRITE, Rights::REMOTE_WRITE),
        (AccessFlags::REMOTE_READ, Rights::REMOTE_READ),
        (AccessFlags::REMOTE_ATOMIC, Rights::REMOTE_ATOMIC),
        (AccessFlags::REMOTE_INVALIDATE, Rights::REMOTE_INVALIDATE),
    ];
    let granted = table.iter().filter(|(flag, _)| access.contains(*flag));
    granted.fold(Rights::NONE, |rights, (_, right)| rights.with(*right))
}

/// Buffers of a queue pair's work requests.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The protection domain of the queue pair.
    pub(super) pd: u32,
    /// The one of its receives: with a shared receive queue, that queue's.
    pub(super) receive_pd: u32,
    pub(super) sends: Slots<Outgoing>,
    pub(super) receives: Slots<SgeList>,
    pub(super) srq: Option<Arc<SharedReceives>>,
    /// That is the queue pair's own queue, and not a shared one.
    owns_receives: bool,
    /// Inline data: `inline_max` bytes for each number of `sends`, once the first was posted.
    inline: Vec<u8>,
    inline_max: usize,
}

/// A queue that applications post receives to without the shard's baton.
#[derive(Debug)]
pub(super) struct Receives {
    pub(super) queue: Arc<SharedReceives>,
    /// Its protection domain.
    pub(super) pd: u32,
    /// It belongs to one queue pair, whose end flushes it.
    pub(super) own: bool,
}

impl Receives {
    /// The queue, if it belongs to one queue pair.
    pub(super) fn own_queue(&self) -> Option<Arc<SharedReceives>> {
        self.own.then(|| Arc::clone(&self.queue))
    }
}

/// What a send work request left behind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) data: OutgoingData,
    /// The operation in its completion.
    pub(super) opcode: WcOpcode,
    /// The completion of a later request covers it.
    pub(super) silent: bool,
    /// Where to, for datagram services.
    pub(super) peer: Option<Peer>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum OutgoingData {
    Sges(SgeList),
    /// So many bytes of inline data.
    Inline(usize),
}

impl OutgoingData {
    /// Bytes.
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::Sges(list) => u32::try_from(list.total_len()).unwrap_or(u32::MAX),
            Self::Inline(len) => u32::try_from(*len).unwrap_or(u32::MAX),
        }
    }
}

/// Where payload comes from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Ranges(Ranges<'a>),
    Inline(&'a [u8]),
}

impl Source<'_> {
    /// Shows all of it, in order.
    pub(super) fn visit(&self, mut show: impl FnMut(&[u8])) {
        match self {
            Self::Ranges(ranges) => {
                for range in ranges {
                    range.visit(range.len(), &mut show);
                }
            }
            Self::Inline(bytes) => show(bytes),
        }
    }
}

impl Buffers {
    pub(super) fn new(
        pd: u32,
        srq: Option<Receives>,
        sends: u32,
        receives: u32,
        inline_max: usize,
    ) -> Self {
        Self {
            pd,
            receive_pd: srq.as_ref().map_or(pd, |srq| srq.pd),
            sends: Slots::new(sends),
            receives: Slots::new(receives),
            owns_receives: srq.as_ref().is_some_and(|srq| srq.own),
            srq: srq.map(|srq| srq.queue),
            inline: Vec::new(),
            inline_max,
        }
    }

    /// The places of the receives that are taken from here.
    pub(super) fn receive_places(&self, capacity: &QpCapacity) -> Arc<Places> {
        match &self.srq {
            Some(srq) => Arc::clone(srq.places()),
            None => Places::new(capacity.max_recv_wr),
        }
    }

    /// Takes the oldest receive of the queue pair's own queue; returns its `wr_id`.
    pub(super) fn take_own(&self) -> Option<u64> {
        let own = self.srq.as_ref().filter(|_| self.owns_receives)?;
        own.take().map(|wr| wr.wr_id)
    }

    pub(super) fn memory<'a>(&'a mut self, registry: &'a Registry) -> PairMemory<'a> {
        PairMemory {
            registry,
            receives: &mut self.receives,
            srq: self.srq.as_deref(),
        }
    }

    /// Keeps inline data under the number of its request.
    pub(super) fn keep_inline(&mut self, slot: u32, bytes: &[u8]) {
        let start = slot as usize * self.inline_max;
        if self.inline.len() < start + self.inline_max {
            self.inline.resize(start + self.inline_max, 0);
        }
        self.inline[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// The payload that the core names; none where its memory is not accessible any more.
    pub(super) fn source<'a>(
        &'a self,
        registry: &'a Registry,
        payload: Payload,
        len: u32,
    ) -> Option<Source<'a>> {
        match payload {
            Payload::None => Some(Source::Inline(&[])),
            Payload::Region { region, offset } => {
                let mut ranges = Ranges::new();
                ranges.push(Range::of_region(registry, region.0, offset, len)?);
                Some(Source::Ranges(ranges))
            }
            Payload::Request { slot, offset } => match &self.sends.get(slot)?.data {
                OutgoingData::Sges(list) => {
                    let none = AccessFlags::empty();
                    ranges(registry, self.pd, list.as_slice(), offset, len, none)
                        .map(Source::Ranges)
                }
                OutgoingData::Inline(have) => {
                    let start = slot as usize * self.inline_max;
                    let bytes = self.inline.get(start..start + have)?;
                    let from = offset as usize;
                    bytes.get(from..from + len as usize).map(Source::Inline)
                }
            },
        }
    }

    /// Copies a request's inline data, from `offset` on, to `to`; false where it has less.
    pub(super) fn fetch_inline(&self, slot: u32, offset: u32, to: &mut [u8]) -> bool {
        let Some(OutgoingData::Inline(have)) = self.sends.get(slot).map(|sent| sent.data) else {
            return false;
        };
        let start = slot as usize * self.inline_max;
        let bytes = self.inline.get(start..start + have);
        let from = bytes.and_then(|bytes| bytes.get(offset as usize..)?.get(..to.len()));
        from.is_some_and(|from| {
            to.copy_from_slice(from);
            true
        })
    }

    /// Puts an atomic's result into its request's buffer; false where that is not accessible.
    pub(super) fn store(&self, registry: &Registry, outgoing: &Outgoing, bytes: &[u8]) -> bool {
        let OutgoingData::Sges(list) = &outgoing.data else {
            return false;
        };
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let wanted = AccessFlags::LOCAL_WRITE;
        let ranges = ranges(registry, self.pd, list.as_slice(), 0, len, wanted);
        ranges.is_some_and(|ranges| {
            place(&ranges, bytes);
            true
        })
    }

    /// Where the core wants payload; none where that memory is not accessible any more.
    pub(super) fn target<'a>(
        &self,
        registry: &'a Registry,
        target: Target,
        len: u32,
    ) -> Option<Ranges<'a>> {
        match target {
            Target::Discard => Some(Ranges::new()),
            Target::Region { region, offset } => {
                let mut ranges = Ranges::new();
                ranges.push(Range::of_region(registry, region.0, offset, len)?);
                Some(ranges)
            }
            Target::Receive { slot, offset } => {
                let list = self.receives.get(slot)?;
                let wanted = AccessFlags::LOCAL_WRITE;
                ranges(
                    registry,
                    self.receive_pd,
                    list.as_slice(),
                    offset,
                    len,
                    wanted,
                )
            }
        }
    }
}

/// Receives of a shared queue that the queue pair has taken and never completed have a place there
/// no longer.
impl Drop for Buffers {
    fn drop(&mut self) {
        if let Some(srq) = &self.srq {
            let left = u32::try_from(self.receives.len()).unwrap_or(u32::MAX);
            srq.places().free(left);
        }
    }
}

/// Copies `bytes` into `ranges`, which hold at least as many.
pub(super) fn place(ranges: &[Range<'_>], mut bytes: &[u8]) {
    for range in ranges {
        let (now, later) = bytes.split_at(range.len().min(bytes.len()));
        range.write(0, now);
        bytes = later;
    }
}
