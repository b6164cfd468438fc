//! A producer whose control connection has gone and come back.

use super::{End, Producer, SLABS_AT_FIRST, SlabState, trim};
use crate::bag::Breach;
use crate::time::Time;
use crate::wire::SlabAck;
use crate::{ConnId, SlabSeq};

impl Producer {
    /// The control connection is gone: the peer's grants for writes are void.
    pub(crate) fn suspend(&mut self) {
        self.attempts += 1;
        let attempt = self.attempts;
        self.marks.clear();
        for slab in self.slabs.iter_mut().filter(|slab| slab.is_pushed) {
            match slab.state {
                SlabState::Sealed => slab.begin(attempt),
                // Failures of its writes are expected now.
                _ => slab.attempt = attempt,
            }
        }
        for tx in self.conns.values_mut() {
            tx.grants.clear();
        }
    }

    /// The control connection is new, the peer the same: it is done with all slabs before `next`;
    /// the others are announced again, with new keys.
    pub(crate) fn resume(&mut self, now: Time, next: SlabSeq) -> Result<(), Breach> {
        let ack = SlabAck {
            next,
            window_bytes: self.window_bytes,
            window_slabs: self.window_slabs,
            others: Vec::new(),
        };
        if next > self.next_seq() || next < self.first {
            return Err(Breach::NoSlab);
        }
        self.on_ack(now, &ack)?;
        self.unannounced = self.first;
        self.attempts += 1;
        let attempt = self.attempts;
        self.outgoing.clear();
        self.to_seal.clear();
        self.to_put.clear();
        self.revokes.clear();
        self.marks.clear();
        for tx in self.conns.values_mut() {
            tx.grants.clear();
        }
        for index in 0..self.slabs.len() as u64 {
            let seq = SlabSeq(self.first.0 + index);
            let Some(slab) = self.slab_mut(seq) else {
                continue;
            };
            match slab.state {
                SlabState::Done => {}
                SlabState::Revoking => self.revokes.push_back(seq),
                SlabState::Sealed | SlabState::Announced => {
                    slab.tries = slab.tries.max(1);
                    slab.begin(attempt);
                    let is_pushed = slab.is_pushed;
                    self.queue_of(is_pushed).push_back(seq);
                }
            }
        }
        Ok(())
    }

    /// The session has a new way: slabs count from 0 again, and data that the far end does not have
    /// is packed again from retained memory. [`Self::on_arrived`] was called for each connection
    /// before.
    pub(crate) fn restart(&mut self) {
        let open = self.first.0..self.next_seq().0;
        self.retired.extend(open.map(SlabSeq));
        self.slabs.clear();
        (self.first, self.unannounced) = (SlabSeq(0), SlabSeq(0));
        self.attempts += 1;
        (self.unacked_bytes, self.inline_bytes) = (0, 0);
        (self.unacked_records, self.moved) = (0, 0);
        (self.window_bytes, self.window_slabs) = (u64::MAX, SLABS_AT_FIRST);
        self.to_seal.clear();
        self.to_put.clear();
        self.outgoing.clear();
        self.revokes.clear();
        self.marks.clear();
        self.round.clear();
        self.little.clear();
        self.ready_bytes = 0;
        let mut used_up = Vec::new();
        for (conn, tx) in &mut self.conns {
            tx.high = tx.high.max(tx.packed + u64::from(tx.end_packed));
            let mut again = std::mem::take(&mut tx.retained);
            again.append(&mut tx.ready);
            tx.ready = again;
            // Data that waits to be packed again may have arrived by the old way after all.
            used_up.extend(
                trim(&mut tx.ready, tx.delivered)
                    .into_iter()
                    .map(|range| (*conn, range)),
            );
            tx.packed = tx.ready.front().map_or(tx.next, |range| range.offset);
            if matches!(tx.end, Some(End::Reset(_))) {
                // A reset drops data that is in no slab, and there are no slabs now. On a way that
                // never reached the far end, it may have dropped data that arrived by the previous
                // way.
                if !tx.end_told {
                    tx.packed = tx.packed.max(tx.delivered);
                }
                tx.next = tx.packed;
                used_up.extend(tx.ready.drain(..).map(|range| (*conn, range)));
            }
            tx.credit = tx.packed;
            tx.grants.clear();
            (tx.in_round, tx.in_slabs, tx.unacked) = (false, 0, 0);
            (tx.end_packed, tx.end_acked) = (tx.end_told, tx.end_told);
            self.ready_bytes += tx.ready.iter().map(|range| range.place.len).sum::<u64>();
        }
        for (conn, range) in used_up {
            self.free(conn, range.offset, range.place);
        }
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.enqueue(conn));
        self.urgent = true;
    }
}
