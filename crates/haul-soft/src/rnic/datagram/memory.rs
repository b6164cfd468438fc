//! A service's memory while datagrams of one batch are looked at.
//!
//! The region that was used last stays held until another is wanted or the batch ends: counting in
//! and out of it for each segment would make the processor wait, each time, until the bytes of the
//! segment before have reached memory. For the same reason the next segment's place is asked for
//! while this one is copied: in a message it lies behind it.

use std::cell::RefCell;

use haul_iwarp::datagram::Source as Sender;
use haul_iwarp::{AtomicAccess, Payload, RecvWr, StagEntry, Target};
use haul_slab::{AccessFlags, Entry, Guard, Registry, Stag};
use haul_verbs::Sge;

use crate::rnic::buffers::{Buffers, OutgoingData, admits, change_word, entry_of, take_shared};

/// The region that was looked up last.
#[derive(Debug)]
pub(super) struct Held<'r> {
    registry: &'r Registry,
    last: RefCell<Option<(Stag, Guard<'r>)>>,
}

impl<'r> Held<'r> {
    pub(super) fn new(registry: &'r Registry) -> Self {
        Self {
            registry,
            last: RefCell::new(None),
        }
    }

    /// Uses the region of this name, if there is one.
    fn with<R>(&self, stag: Stag, work: impl FnOnce(&Entry) -> R) -> Option<R> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(held, _)| *held != stag) {
            // Never two at once: who takes one away may wait for the other.
            *last = None;
            *last = self.registry.lookup(stag).map(|guard| (stag, guard));
        }
        last.as_ref().map(|(_, guard)| work(guard))
    }

    /// The parts of `pieces` that `len` bytes of the message from `skip` on lie in: each is shown
    /// with where it starts in its region. False, after some were shown or none, where one is not
    /// accessible so.
    fn each_part(
        &self,
        pieces: &[Sge],
        (mut skip, mut len): (u32, u32),
        allowed: impl Fn(&Entry) -> bool,
        mut work: impl FnMut(&Entry, usize, usize) -> bool,
    ) -> bool {
        for piece in pieces {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            if len == 0 {
                break;
            }
            let part = (piece.len - skip).min(len);
            let addr = piece.addr.checked_add(skip.into());
            let done = self.with(Stag(piece.lkey), |entry| {
                let offset = entry.offset(addr?, part.into())?;
                (allowed(entry) && work(entry, offset, part as usize)).then_some(())
            });
            if done.flatten().is_none() {
                return false;
            }
            (skip, len) = (0, len - part);
        }
        len == 0
    }

    /// Copies payload to where the core wants it; false where that memory is not accessible any
    /// more.
    pub(super) fn place(&self, buffers: &Buffers, target: Target, payload: &[u8]) -> bool {
        match target {
            Target::Discard => true,
            Target::Region { region, offset } => {
                let stag = u32::try_from(region.0).ok().map(Stag);
                let place = stag.zip(usize::try_from(offset).ok());
                let done = place.and_then(|(stag, offset)| {
                    self.with(stag, |entry| {
                        ask_ahead(entry, offset, payload.len(), true);
                        entry.region.write(offset, payload).is_ok()
                    })
                });
                done.unwrap_or(false)
            }
            Target::Receive { slot, offset } => {
                let Some(list) = buffers.receives.get(slot) else {
                    return false;
                };
                let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                let pd = buffers.receive_pd;
                let allowed = |entry: &Entry| {
                    entry.pd == pd && entry.access.contains(AccessFlags::LOCAL_WRITE)
                };
                let mut rest = payload;
                self.each_part(list.as_slice(), (offset, len), allowed, |entry, at, len| {
                    let (now, later) = rest.split_at(len.min(rest.len()));
                    rest = later;
                    ask_ahead(entry, at, len, true);
                    entry.region.write(at, now).is_ok()
                })
            }
        }
    }

    /// Copies the payload that the core names to `to`, which is as long; false where its memory is
    /// not accessible any more.
    pub(super) fn fetch(&self, buffers: &Buffers, payload: Payload, to: &mut [u8]) -> bool {
        match payload {
            Payload::None => to.is_empty(),
            Payload::Region { region, offset } => {
                let stag = u32::try_from(region.0).ok().map(Stag);
                let place = stag.zip(usize::try_from(offset).ok());
                let done = place.and_then(|(stag, offset)| {
                    self.with(stag, |entry| {
                        ask_ahead(entry, offset, to.len(), false);
                        entry.region.read(offset, to).is_ok()
                    })
                });
                done.unwrap_or(false)
            }
            Payload::Request { slot, offset } => {
                let Some(outgoing) = buffers.sends.get(slot) else {
                    return false;
                };
                let OutgoingData::Sges(list) = &outgoing.data else {
                    return buffers.fetch_inline(slot, offset, to);
                };
                let len = u32::try_from(to.len()).unwrap_or(u32::MAX);
                let pd = buffers.pd;
                let mut rest = to;
                let allowed = |entry: &Entry| entry.pd == pd;
                self.each_part(list.as_slice(), (offset, len), allowed, |entry, at, len| {
                    let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
                    rest = later;
                    ask_ahead(entry, at, len, false);
                    entry.region.read(at, now).is_ok()
                })
            }
        }
    }
}

/// Segments ahead of the one that is copied that are asked for.
const AHEAD: usize = 3;

fn ask_ahead(entry: &Entry, offset: usize, len: usize, to_write: bool) {
    let next = offset.saturating_add(AHEAD.saturating_mul(len));
    entry.region.prefetch(next, len, to_write);
}

/// A service's memory, as its core sees it.
#[derive(Debug)]
pub(super) struct Memory<'a, 'r> {
    pub(super) held: &'a Held<'r>,
    pub(super) buffers: &'a mut Buffers,
    /// Whose datagram is being looked at, where the core does not ask who may use what.
    pub(super) sender: Option<Sender>,
}

impl haul_iwarp::Memory for Memory<'_, '_> {
    fn lookup(&self, stag: haul_iwarp::Stag) -> Option<StagEntry> {
        let found = self.held.with(Stag(stag.0), |entry| {
            let sender = self.sender.as_ref();
            sender
                .is_none_or(|sender| admits(entry, sender, true))
                .then(|| entry_of(stag, entry))
        });
        found.flatten()
    }

    fn invalidate(&mut self, stag: haul_iwarp::Stag) {
        // It waits until nobody holds the region: nor may this.
        *self.held.last.borrow_mut() = None;
        self.held.registry.invalidate(Stag(stag.0));
    }

    fn atomic(&mut self, access: &AtomicAccess) -> u64 {
        let stag = u32::try_from(access.region.0).ok().map(Stag);
        let old = stag.and_then(|stag| {
            self.held
                .with(stag, |entry| change_word(&entry.region, access))
        });
        old.flatten().unwrap_or(0)
    }

    fn take_receive(&mut self) -> Option<RecvWr> {
        take_shared(self.buffers.srq.as_deref(), &mut self.buffers.receives)
    }

    fn admits(&self, stag: haul_iwarp::Stag, source: &Sender, is_validated: bool) -> bool {
        let may = |entry: &Entry| admits(entry, source, is_validated);
        self.held.with(Stag(stag.0), may).unwrap_or(false)
    }
}
