//! Push: writes into the peer's memory, as far as it has opened it, at the pace that channels do
//! not keep themselves.

use super::stream::{Granted, Slab, SlabState};
use super::{Mode, Place, Producer, Put, PutId};
use crate::SlabSeq;
use crate::bag::Breach;
use crate::time::Time;
use crate::wire::SlabAnnounce;

impl Producer {
    /// Limits writes (push), as [`Consumer::set_limit`](crate::bag::Consumer::set_limit) does
    /// reads: bits per second, and the burst that a policer allows, of which at most half leaves at
    /// once. For channels that do not pace.
    pub fn set_limit(&mut self, now: Time, rate_bps: Option<u64>, burst_bytes: Option<u64>) {
        self.put_bytes_max = burst_bytes.map_or(u64::MAX, |burst| (burst / 2).max(1));
        self.pacer.set(now, rate_bps, self.put_bytes_max);
    }

    /// A write of push mode that may be posted, after [`Self::poll_sealed`]. Answer with
    /// [`Self::handle_put`] when it is over.
    pub fn poll_put(&mut self, now: Time, chunk: u32) -> Option<Put> {
        if self.config.mode == Mode::Pull {
            return None;
        }
        self.paced_until = None;
        while let Some(seq) = self.to_put.front().copied() {
            let index = seq
                .0
                .checked_sub(self.first.0)
                .and_then(|index| usize::try_from(index).ok());
            let slab = index
                .and_then(|index| self.slabs.get_mut(index))
                .filter(|slab| slab.state == SlabState::Sealed);
            let Some(slab) = slab else {
                self.to_put.pop_front();
                continue;
            };
            if let Some((record, memory, at)) = slab.records.get(slab.cursor.0) {
                let done = slab.cursor.1;
                let left = u64::from(record.len) - done;
                if left == 0 {
                    slab.cursor = (slab.cursor.0 + 1, 0);
                    continue;
                }
                let (conn, offset) = (record.conn, record.offset + done);
                let granted = match self.conns.get(&conn) {
                    Some(tx) => tx.granted(offset)?,
                    None => Granted::Used(left),
                };
                let (key, room) = match granted {
                    Granted::Key(key, room) => (key, room),
                    Granted::Used(len) => {
                        slab.cursor.1 += left.min(len);
                        continue;
                    }
                };
                let most = self.put_bytes_max.min(u64::from(chunk.max(1)));
                let len = left.min(room).min(most);
                if let Err(at) = self.pacer.take(now, len) {
                    self.paced_until = Some(at);
                    return None;
                }
                slab.cursor.1 += len;
                let place = Place {
                    memory: *memory,
                    at: at + done,
                    len,
                };
                return Some(Put {
                    id: PutId(seq, slab.attempt),
                    place,
                    key,
                });
            }
            self.to_put.pop_front();
            slab.state = SlabState::Announced;
            self.outgoing.push_back(seq);
            self.marks.push_back(seq);
        }
        None
    }

    /// Returns a slab all of whose writes [`Self::poll_put`] has returned: send the mark on the
    /// data channels, behind them
    /// ([`Consumer::handle_written`](crate::bag::Consumer::handle_written)). Before the next call
    /// of `poll_put`, or it waits for the next slab's writes.
    pub fn poll_mark(&mut self) -> Option<SlabSeq> {
        self.marks.pop_front()
    }

    /// Writes unacknowledged slabs again, after the data channels were replaced.
    pub fn write_again(&mut self) {
        if self.config.mode == Mode::Pull {
            return;
        }
        self.attempts += 1;
        let attempt = self.attempts;
        self.marks.clear();
        self.to_put.clear();
        let numbered = (self.first.0..).map(SlabSeq).zip(&mut self.slabs);
        for (seq, slab) in numbered.filter(|(_, slab)| slab.is_pushed) {
            if matches!(slab.state, SlabState::Sealed | SlabState::Announced) {
                slab.tries = slab.tries.max((slab.state == SlabState::Announced).into());
                slab.begin(attempt);
                self.to_put.push_back(seq);
            }
        }
    }

    /// A write is done, or has failed: then the slab is written again.
    ///
    /// # Errors
    /// It failed too often.
    pub fn handle_put(&mut self, id: PutId, is_done: bool) -> Result<(), Breach> {
        // Completions of an earlier attempt do not apply to this one.
        let is_of_now = |slab: &&Slab| slab.attempt == id.1;
        if is_done || self.slab(id.0).filter(is_of_now).is_none() {
            return Ok(());
        }
        self.again(id.0)
    }

    pub(crate) fn on_grant(&mut self, grant: &SlabAnnounce) -> Result<(), Breach> {
        if self.config.mode == Mode::Pull {
            return Err(Breach::Push);
        }
        for record in &grant.records {
            let Some(tx) = self.conns.get_mut(&record.conn) else {
                continue;
            };
            if tx
                .grants
                .back()
                .is_some_and(|(at, len, _)| at + len > record.offset)
            {
                return Err(Breach::Push);
            }
            tx.grants
                .push_back((record.offset, u64::from(record.len), record.key));
            tx.credit = tx.credit.max(record.end());
            self.enqueue(record.conn);
        }
        Ok(())
    }
}
