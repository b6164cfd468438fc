//! The requests between the two ends of data channels over byte streams, and the memory that they
//! use. This module knows no socket.

use std::collections::{BTreeSet, HashMap, VecDeque};

use haul_slab::{AccessFlags, Entry, Region, Registration, Registry, Stag};
use haul_xsp::SlabSeq;
use haul_xsp::bag::{Get, Put, PutId};
use haul_xsp::wire::Key;

use super::fabric::{Lost, News, READS_MAX};
use super::frame::{Frame, FrameError, PIECE_BYTES};

/// GETs in flight of an end.
const GETS_MAX: usize = READS_MAX as usize;
/// PUTs sent and not acknowledged, at most.
const PUTS_MAX: usize = 256;

/// A protocol violation of the peer, which ends the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breach {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a frame that begins a connection, in its middle, or none where one begins")]
    Order,
    #[error("the peer has no such right to {len} bytes at {to:#x} of STag {stag:#010x}", stag = .0.stag, to = .0.to, len = .1)]
    Access(Key, usize),
    #[error("more requests than may be outstanding")]
    TooMany,
    #[error("an answer to what was not asked")]
    Unasked,
}

/// Bytes to send from, or to receive into, in place.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    memory: Memory,
    left: usize,
}

#[derive(Debug, Clone)]
enum Memory {
    /// This end's own memory.
    Own(Region, usize),
    /// Memory opened to the peer with this access, which is checked whenever bytes move.
    Opened(Key, AccessFlags),
}

impl Span {
    fn own(region: &Region, at: u64, len: u64) -> Self {
        Self {
            memory: Memory::Own(region.clone(), index(at)),
            left: index(len),
        }
    }

    const fn opened(key: Key, access: AccessFlags, len: u32) -> Self {
        Self {
            memory: Memory::Opened(key, access),
            left: len as usize,
        }
    }

    /// The number of bytes.
    pub(crate) const fn len(&self) -> usize {
        self.left
    }

    /// Counts the first bytes as moved.
    pub(crate) fn advance(&mut self, octets: usize) {
        let octets = octets.min(self.left);
        self.left -= octets;
        match &mut self.memory {
            Memory::Own(_, at) => *at += octets,
            Memory::Opened(key, _) => key.to += octets as u64,
        }
    }
}

/// A range of a region; refused when it is used outside of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) region: &'a Region,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// Payload that is arriving.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) span: Span,
    of: Of,
}

#[derive(Debug, Clone, Copy)]
enum Of {
    Data { id: u32, len: u32 },
    Put { id: u32 },
}

/// A write that waits.
#[derive(Debug)]
enum ToPut {
    Put(PutId, Key, Span),
    /// A mark: all PUTs of the slab come before it.
    Mark(SlabSeq),
}

/// The peer's PUTs, numbered from 1 in the order in which they were begun, on any connection.
#[derive(Debug, Default)]
struct Puts {
    /// All up to this number are in place.
    whole: u32,
    /// The PUTs beyond that have begun, and those that are in place. At most `PUTS_MAX`.
    begun: BTreeSet<u32>,
    placed: BTreeSet<u32>,
    /// Slabs whose PUTs end at a number not reached yet: at most `PUTS_MAX`.
    marks: Vec<(u32, SlabSeq)>,
}

impl Puts {
    fn begin(&mut self, id: u32) -> Result<(), Breach> {
        let ahead = id.wrapping_sub(self.whole);
        if ahead == 0 || ahead as usize > PUTS_MAX {
            return Err(Breach::TooMany);
        }
        let is_new = self.begun.insert(id);
        is_new.then_some(()).ok_or(Breach::Unasked)
    }

    fn place(&mut self, id: u32, news: &mut Vec<News>) {
        self.placed.insert(id);
        while self.placed.remove(&self.whole.wrapping_add(1)) {
            self.whole = self.whole.wrapping_add(1);
            self.begun.remove(&self.whole);
        }
        self.tell(news);
    }

    fn mark(&mut self, id: u32, seq: SlabSeq, news: &mut Vec<News>) -> Result<(), Breach> {
        let ahead = id.wrapping_sub(self.whole);
        let is_behind = ahead == 0 || ahead > u32::MAX / 2;
        if self.marks.len() >= PUTS_MAX || !is_behind && ahead as usize > PUTS_MAX {
            return Err(Breach::TooMany);
        }
        self.marks.push((id, seq));
        self.tell(news);
        Ok(())
    }

    fn tell(&mut self, news: &mut Vec<News>) {
        let whole = self.whole;
        // A number already passed is not at most `PUTS_MAX` ahead.
        let is_reached = |(id, _): &mut (u32, SlabSeq)| {
            let ahead = id.wrapping_sub(whole) as usize;
            ahead == 0 || ahead > PUTS_MAX
        };
        let reached = self.marks.extract_if(.., is_reached);
        news.extend(reached.map(|(_, seq)| News::Written(seq)));
    }
}

/// A GET of this end.
#[derive(Debug)]
struct Want {
    get: Get,
    /// One bit for each piece that is arriving or has arrived.
    pieces: u64,
    /// Bytes that are not in place.
    left: u32,
}

/// A GET of the peer.
#[derive(Debug)]
struct Owed {
    id: u32,
    key: Key,
    len: u32,
    /// Pieces in flight.
    pieces: u8,
}

/// The requests of both ends. See the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    registry: Registry,
    arena: Region,
    next_get: u32,
    next_put: u32,
    /// The first unacknowledged PUT; at most `PUTS_MAX` follow it.
    first_put: u32,
    /// At most `GETS_MAX`.
    wants: HashMap<u32, Want>,
    /// At most `PUTS_MAX`.
    puts: HashMap<u32, PutId>,
    /// Not begun.
    to_get: VecDeque<Get>,
    to_put: VecDeque<ToPut>,
    theirs: Puts,
    /// The peer's PUTs in place, to be acknowledged: at most `PUTS_MAX`.
    to_confirm: VecDeque<u32>,
    /// At most `GETS_MAX`.
    owed: VecDeque<Owed>,
}

impl Ledger {
    /// Creates an empty ledger. Reads go to `arena`. `seed` is random, so that keys are hard to
    /// guess.
    pub(crate) fn new(arena: &Region, seed: [u64; 2]) -> Self {
        Self {
            registry: Registry::new(seed),
            arena: arena.clone(),
            next_get: 0,
            next_put: 0,
            first_put: 1,
            wants: HashMap::new(),
            puts: HashMap::new(),
            to_get: VecDeque::new(),
            to_put: VecDeque::new(),
            theirs: Puts::default(),
            to_confirm: VecDeque::new(),
            owed: VecDeque::new(),
        }
    }

    /// Opens a part of a region to the peer until the registration is dropped.
    pub(crate) fn open(
        &self,
        region: &Region,
        at: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<(Registration, Key), Lost> {
        let part = region.cut(index(at), index(len));
        let entry = Entry {
            region: part.map_err(|error| Lost(error.to_string()))?,
            base: 0,
            access,
            pd: 0,
            note: None,
        };
        let registration = self.registry.register(entry);
        let registration = registration
            .ok_or_else(|| Lost("as much memory is open as there may be".to_owned()))?;
        let stag = registration.stag().0;
        Ok((registration, Key { stag, to: 0 }))
    }

    pub(crate) fn get(&mut self, get: Get) {
        self.to_get.push_back(get);
    }

    pub(crate) fn put(&mut self, put: &Put, region: &Region) {
        let span = Span::own(region, put.place.at, put.place.len);
        self.to_put.push_back(ToPut::Put(put.id, put.key, span));
    }

    /// Marks a slab behind all writes so far.
    pub(crate) fn mark(&mut self, seq: SlabSeq) {
        self.to_put.push_back(ToPut::Mark(seq));
    }

    /// Reads and writes in flight.
    pub(crate) fn posts(&self) -> usize {
        self.wants.len() + self.to_get.len() + self.puts.len() + self.to_put.len()
    }

    // Output.

    /// Returns the next frame without payload.
    pub(crate) fn poll_short(&mut self) -> Option<Frame> {
        if let Some(id) = self.to_confirm.pop_front() {
            return Some(Frame::Placed { id });
        }
        if let Some(ToPut::Mark(seq)) = self.to_put.front() {
            let (id, slab) = (self.next_put, seq.0);
            self.to_put.pop_front();
            return Some(Frame::Written { id, slab });
        }
        if self.wants.len() >= GETS_MAX {
            return None;
        }
        let get = self.to_get.pop_front()?;
        self.next_get = self.next_get.wrapping_add(1);
        let (id, key, len) = (self.next_get, get.key, get.len);
        let want = Want {
            get,
            pieces: 0,
            left: len,
        };
        self.wants.insert(id, want);
        Some(Frame::Get { id, key, len })
    }

    /// Returns the next frame with payload.
    pub(crate) fn poll_long(&mut self) -> Option<(Frame, Span)> {
        if let Some(owed) = self.owed.front_mut() {
            let offset = u32::from(owed.pieces) * PIECE_BYTES;
            let (id, piece) = (owed.id, owed.pieces);
            let len = PIECE_BYTES.min(owed.len - offset);
            let key = Key {
                to: owed.key.to + u64::from(offset),
                ..owed.key
            };
            owed.pieces += 1;
            if offset + len == owed.len {
                self.owed.pop_front();
            }
            let span = Span::opened(key, AccessFlags::REMOTE_READ, len);
            return Some((Frame::Data { id, piece, len }, span));
        }
        let ahead = self.next_put.wrapping_add(1).wrapping_sub(self.first_put);
        if ahead as usize >= PUTS_MAX {
            return None;
        }
        if let Some(ToPut::Mark(_)) = self.to_put.front() {
            // `poll_short` returns it.
            return None;
        }
        let Some(ToPut::Put(put, key, span)) = self.to_put.pop_front() else {
            return None;
        };
        self.next_put = self.next_put.wrapping_add(1);
        let (id, len) = (self.next_put, u32::try_from(span.left).unwrap_or(u32::MAX));
        self.puts.insert(id, put);
        Some((Frame::Put { id, key, len }, span))
    }

    // Input.

    /// Handles a frame. Returns the payload that follows it, and appends events to `news`.
    pub(crate) fn handle(
        &mut self,
        frame: Frame,
        news: &mut Vec<News>,
    ) -> Result<Option<Incoming>, Breach> {
        match frame {
            Frame::Ready => Err(Breach::Order),
            Frame::Get { id, key, len } => {
                if self.owed.len() >= GETS_MAX {
                    return Err(Breach::TooMany);
                }
                let span = Span::opened(key, AccessFlags::REMOTE_READ, len);
                self.part(&span, |_| ())?;
                let pieces = 0;
                self.owed.push_back(Owed {
                    id,
                    key,
                    len,
                    pieces,
                });
                Ok(None)
            }
            Frame::Data { id, piece, len } => self.on_data(id, piece, len).map(Some),
            Frame::Put { id, key, len } => {
                if self.to_confirm.len() >= PUTS_MAX {
                    return Err(Breach::TooMany);
                }
                let span = Span::opened(key, AccessFlags::REMOTE_WRITE, len);
                self.part(&span, |_| ())?;
                self.theirs.begin(id)?;
                let of = Of::Put { id };
                Ok(Some(Incoming { span, of }))
            }
            Frame::Placed { id } => {
                let put = self.puts.remove(&id).ok_or(Breach::Unasked)?;
                let next = self.next_put.wrapping_add(1);
                while self.first_put != next && !self.puts.contains_key(&self.first_put) {
                    self.first_put = self.first_put.wrapping_add(1);
                }
                news.push(News::Put(put, true));
                Ok(None)
            }
            Frame::Written { id, slab } => {
                self.theirs.mark(id, SlabSeq(slab), news)?;
                Ok(None)
            }
        }
    }

    fn on_data(&mut self, id: u32, piece: u8, len: u32) -> Result<Incoming, Breach> {
        let want = self.wants.get_mut(&id).ok_or(Breach::Unasked)?;
        let offset = u32::from(piece) * PIECE_BYTES;
        let rest = want.get.len.checked_sub(offset);
        let bit = 1 << piece;
        if rest.map(|rest| rest.min(PIECE_BYTES)) != Some(len) || want.pieces & bit != 0 {
            return Err(Breach::Unasked);
        }
        want.pieces |= bit;
        let at = want.get.at + u64::from(offset);
        Ok(Incoming {
            span: Span::own(&self.arena, at, len.into()),
            of: Of::Data { id, len },
        })
    }

    /// Handles the end of a payload.
    pub(crate) fn handle_placed(&mut self, incoming: &Incoming, news: &mut Vec<News>) {
        match incoming.of {
            Of::Put { id } => {
                self.to_confirm.push_back(id);
                self.theirs.place(id, news);
            }
            Of::Data { id, len } => {
                let Some(want) = self.wants.get_mut(&id) else {
                    return;
                };
                want.left -= len;
                if want.left == 0 {
                    news.push(News::Got(want.get.id, true));
                    self.wants.remove(&id);
                }
            }
        }
    }

    /// Calls `what` with the memory of a span. It is a breach if the peer has no such access, or no
    /// longer.
    pub(crate) fn part<R>(
        &self,
        span: &Span,
        what: impl FnOnce(Part<'_>) -> R,
    ) -> Result<R, Breach> {
        let len = span.left;
        match &span.memory {
            Memory::Own(region, at) => Ok(what(Part {
                region,
                at: *at,
                len,
            })),
            Memory::Opened(key, access) => {
                let breach = Breach::Access(*key, len);
                let guard = self.registry.lookup(Stag(key.stag)).ok_or(breach)?;
                let entry = guard.access.contains(*access).then_some(&*guard);
                let at = entry.and_then(|entry| entry.offset(key.to, len as u64));
                let (region, at) = (&guard.region, at.ok_or(breach)?);
                Ok(what(Part { region, at, len }))
            }
        }
    }

    /// Ends everything: nothing is sent or placed, and everything in flight fails.
    pub(crate) fn end(self, news: &mut Vec<News>) {
        let gets = self.wants.into_values().map(|want| want.get);
        news.extend(gets.chain(self.to_get).map(|get| News::Got(get.id, false)));
        let waiting = self.to_put.into_iter().filter_map(|next| match next {
            ToPut::Put(id, ..) => Some(id),
            ToPut::Mark(_) => None,
        });
        let puts = self.puts.into_values().chain(waiting);
        news.extend(puts.map(|id| News::Put(id, false)));
    }
}

/// An impossible index is outside any region.
fn index(octets: u64) -> usize {
    usize::try_from(octets).unwrap_or(usize::MAX)
}
