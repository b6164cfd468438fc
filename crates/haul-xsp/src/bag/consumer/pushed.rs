//! Push: a slab is in place when its announcement and the peer's mark on each data channel, which
//! follows its writes, have both arrived. They take different connections and arrive in any order.

use super::{Breach, Consumer, Grant, Mode, Slab, SlabState};
use crate::SlabSeq;
use crate::time::Time;
use crate::wire::Key;

impl Consumer {
    /// Grants the peer credit without keys while there is no data channel (push): the peer may use
    /// it inline.
    pub(crate) fn set_channel(&mut self, is_up: bool) {
        let was_channelless = std::mem::replace(&mut self.is_channelless, !is_up);
        if self.config.mode == Mode::Push && self.is_channelless && !was_channelless {
            let unkeyed = self.grants.iter().filter(|(_, key)| key.is_none());
            self.credits.extend(unkeyed.map(|(grant, _)| grant.conn));
        }
    }

    /// Memory to be opened to the peer (push): give its key with [`Self::granted`].
    pub fn poll_grant(&mut self) -> Option<Grant> {
        while let Some((grant, key)) = self.grants.get(self.keyed) {
            if key.is_none() {
                return Some(*grant);
            }
            self.keyed += 1;
        }
        None
    }

    /// Memory that the peer may not write any more (push): offset in the arena and bytes. Its key
    /// is to be made invalid before anything else is called.
    pub fn poll_closed(&mut self) -> Option<(u64, u64)> {
        self.closed.pop_front()
    }

    /// Bytes that the peer has written into the arena since the session's start (push).
    #[must_use]
    pub const fn pushed_bytes(&self) -> u64 {
        self.pushed_bytes
    }

    /// Sets the key of a grant from [`Self::poll_grant`].
    pub fn granted(&mut self, grant: &Grant, key: Key) {
        let mut others = self.grants.iter_mut().skip(self.keyed);
        if let Some((_, slot)) = others.find(|(known, _)| known == grant) {
            *slot = Some(key);
        }
    }

    /// A slab was announced, perhaps again.
    pub(super) fn await_writes(&mut self, now: Time, seq: SlabSeq) {
        self.count_writes(seq, true);
        let octets = |slab: &Slab| slab.records.iter().any(|item| item.record.len > 0);
        if self.written.remove(&seq) || !self.slab(seq).is_some_and(octets) {
            self.writes_over(now, seq);
        }
    }

    /// All writes of a slab are in place: the marks behind them have arrived on the data channels.
    /// Call once for each time that the slab is written.
    ///
    /// # Errors
    /// Nothing is pushed, or no such slab may be written yet.
    pub fn handle_written(&mut self, now: Time, seq: SlabSeq) -> Result<(), Breach> {
        if self.config.mode == Mode::Pull {
            return Err(Breach::Push);
        }
        let Some(ahead) = seq.0.checked_sub(self.first.0) else {
            // It was done with before.
            return Ok(());
        };
        match self.slab(seq) {
            Some(slab) if slab.awaits_writes => self.writes_over(now, seq),
            Some(slab) if slab.state != SlabState::Open => {}
            // It will be announced, or announced again.
            _ if ahead < u64::from(self.config.window_slabs) => {
                self.written.insert(seq);
            }
            _ => return Err(Breach::Window),
        }
        Ok(())
    }

    /// Notes that the data channels were replaced: nothing is in flight on them.
    pub fn forget_writes(&mut self) {
        self.written.clear();
        for index in 0..self.slabs.len() as u64 {
            let seq = SlabSeq(self.first.0 + index);
            self.count_writes(seq, false);
            if self
                .slab(seq)
                .is_some_and(|slab| slab.state == SlabState::Revoking)
            {
                self.settle_revoked(seq);
            }
        }
    }

    fn writes_over(&mut self, now: Time, seq: SlabSeq) {
        self.count_writes(seq, false);
        let Some(slab) = self.slab(seq) else {
            return;
        };
        if slab.state == SlabState::Revoking {
            self.settle_revoked(seq);
            return;
        }
        let lens = slab.records.iter().map(|item| item.record.len);
        let lens: Vec<u32> = lens.collect();
        for (index, len) in lens.into_iter().enumerate() {
            self.pushed_bytes += u64::from(len);
            self.estimate_arrival(now, len.into());
            self.come(seq, index);
        }
    }

    /// Writes of the peer's may be in flight into a slab's memory, or are not: as reads of this
    /// end's.
    pub(super) fn count_writes(&mut self, seq: SlabSeq, are_under_way: bool) {
        let Some(slab) = self.slab_mut(seq) else {
            return;
        };
        if std::mem::replace(&mut slab.awaits_writes, are_under_way) == are_under_way {
            return;
        }
        let items = slab.records.iter_mut().filter(|item| item.record.len > 0);
        let conns: Vec<_> = items
            .map(|item| {
                item.outstanding = are_under_way.into();
                item.record.conn
            })
            .collect();
        for conn in conns {
            if let Some(rx) = self.conns.get_mut(&conn) {
                rx.gets = if are_under_way {
                    rx.gets + 1
                } else {
                    rx.gets.saturating_sub(1)
                };
            }
            self.touch(conn);
        }
    }
}
