//! Push: writes, and marks behind them.

use haul_xsp::bag::Put;
use haul_xsp::{SlabSeq, State, Time};

use super::{Happening, MS, World};

/// The mark that follows the writes of a slab.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    half: usize,
    way: u32,
    epoch: u32,
    seq: SlabSeq,
    /// Nothing had to be written where there is none.
    attempt: Option<u64>,
}

impl World {
    /// Hands writes, and the mark of each slab behind its own, to the data channels.
    pub(super) fn push(&mut self, half: usize, now: Time, latency: u64) {
        let ways = [half, half ^ 1].map(|half| self.benches[half].way);
        loop {
            let put = self.session(half).unwrap().producer().poll_put(now, 1_000);
            while let Some(seq) = self.session(half).unwrap().producer().poll_mark() {
                let after = self.benches[half].written_at.since(now) + self.random.below(latency);
                let attempt = self.benches[half].attempts.remove(&seq);
                let mark = Mark {
                    half,
                    way: ways[0],
                    epoch: self.epochs[half / 2],
                    seq,
                    attempt,
                };
                self.at(after, Happening::Mark(mark));
            }
            let Some(put) = put else {
                break;
            };
            let after = self.random.below(latency);
            let bench = &mut self.benches[half];
            bench.written_at = bench.written_at.max(now.after(after));
            bench.attempts.insert(put.id.0, put.id.1);
            self.at(after, Happening::Write { half, ways, put });
        }
    }

    /// Bytes that are pushed arrive.
    pub(super) fn push_arrives(&mut self, half: usize, [way, theirs]: [u32; 2], put: Put) {
        if way != self.benches[half].way || self.session(half).is_none() {
            return;
        }
        let octets = self.local(half, put.place);
        let target = self.benches[half ^ 1].stags.get(&put.key.stag).copied();
        let target = target.filter(|_| self.benches[half ^ 1].way == theirs);
        let fits = target.filter(|target| put.key.to + put.place.len <= target.len);
        if let Some(target) = fits {
            let at = (target.at + put.key.to) as usize;
            self.benches[half ^ 1].arena[at..at + octets.len()].copy_from_slice(&octets);
        } else {
            let failed = (self.epochs[half / 2], put.id.0, put.id.1);
            self.benches[half].failed_puts.insert(failed);
        }
        let session = self.session(half).unwrap();
        if let Err(breach) = session.producer().handle_put(put.id, fits.is_some()) {
            session.fail_slab(breach);
        }
    }

    /// A mark arrives, unless its data channel has ended before.
    pub(super) fn mark_arrives(&mut self, mark: Mark) {
        let (bench, now) = (&self.benches[mark.half], self.now);
        let has_failed = mark
            .attempt
            .is_some_and(|of| bench.failed_puts.contains(&(mark.epoch, mark.seq, of)));
        if mark.way != bench.way || mark.epoch != self.epochs[mark.half / 2] || has_failed {
            return;
        }
        let peer = self.session(mark.half ^ 1);
        let Some(peer) = peer.filter(|peer| peer.state() != State::Greeting) else {
            // There is no data channel yet.
            return self.at(MS, Happening::Mark(mark));
        };
        if let Err(breach) = peer.consumer().handle_written(now, mark.seq) {
            peer.fail_slab(breach);
        }
    }
}
