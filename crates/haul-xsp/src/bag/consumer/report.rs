//! Reports to the producer, their repetition after a loss, and measurements.

use super::{Consumer, Grant, Mode, PathEstimate, Plan, SlabState};
use crate::bag::plan::{Estimate, RATE_START_BPS};
use crate::time::Time;
use crate::wire::{Key, Pdu, Record, SlabAck, SlabAnnounce, SlabStatus};
use crate::{ConnId, SlabSeq};

impl Consumer {
    /// Reports for the peer.
    pub(crate) fn poll_pdu(&mut self) -> Option<Pdu> {
        if let Some((seq, code, records)) = self.nacks.pop_front() {
            return Some(Pdu::SlabNack { seq, code, records });
        }
        if std::mem::take(&mut self.ack_due) {
            return Some(Pdu::SlabAck(self.ack()));
        }
        if let Some(conn) = self.credits.pop_first() {
            let credit = self.conns.get(&conn)?.credit;
            return Some(Pdu::ConnCredit { conn, credit });
        }
        if let Some(conn) = self.acked_conns.pop_first() {
            self.touched.push(conn);
            let (delivered, ended) = self.delivered(conn)?;
            return Some(Pdu::ConnAcked {
                conn,
                delivered: delivered + u64::from(ended),
            });
        }
        self.grant_pdu()
    }

    fn grant_pdu(&mut self) -> Option<Pdu> {
        let mut records = Vec::new();
        while records.len() < 64
            && let Some((grant, Some(key))) = self.grants.front().copied()
        {
            self.grants.pop_front();
            self.keyed = self.keyed.saturating_sub(1);
            records.push(Record {
                conn: grant.conn,
                offset: grant.offset,
                len: u32::try_from(grant.len).unwrap_or(u32::MAX),
                crc: None,
                fin: grant.len == 0,
                reset: None,
                key,
            });
        }
        let announce = SlabAnnounce {
            seq: SlabSeq(0),
            last: false,
            grant: true,
            t_us: 0,
            records,
            inline: Vec::new(),
        };
        (!announce.records.is_empty()).then_some(Pdu::SlabAnnounce(announce))
    }

    fn ack(&self) -> SlabAck {
        let numbered = (self.first.0..).map(SlabSeq).zip(&self.slabs);
        let others = numbered.filter_map(|(seq, slab)| match slab.state {
            SlabState::Placed => Some((seq, SlabStatus::Placed)),
            SlabState::Revoked => Some((seq, SlabStatus::Revoked)),
            SlabState::Open | SlabState::Revoking => None,
        });
        SlabAck {
            next: self.first,
            window_bytes: self.arena.bytes(),
            window_slabs: self.config.window_slabs,
            others: others.collect(),
        }
    }

    /// Notes progress of a stream that has ended: only then can its connection be over.
    pub(super) fn touch(&mut self, conn: ConnId) {
        if self.conns.get(&conn).is_some_and(|rx| rx.end.is_some()) {
            self.touched.push(conn);
        }
    }

    /// Returns the connections for which [`Self::is_done`], [`Self::is_settled`],
    /// [`Self::is_quiet`], [`Self::owes_ack`] or [`Self::delivered`] may have changed since the
    /// last call, of those whose stream has ended.
    pub(crate) fn take_touched(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.touched)
    }

    // Suspend and resume.

    /// The slab before which all is done with.
    pub(crate) const fn next_slab(&self) -> SlabSeq {
        self.first
    }

    /// The progress of streams is about to be reported: nothing is delivered or released until the
    /// peer has answered, or the control connection is lost.
    pub(crate) fn freeze(&mut self) {
        // Only the ends of a session report their progress; a relay goes on.
        self.frozen = self.acknowledge;
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            let readable = self.conns.iter().filter(|(_, rx)| rx.is_readable());
            self.readable.extend(readable.map(|(conn, _)| *conn));
            for (conn, offset, len) in std::mem::take(&mut self.used_meanwhile) {
                self.release(conn, offset, len);
            }
        }
    }

    /// The control connection is gone: keys are not valid until slabs are announced again.
    pub(crate) fn suspend(&mut self) {
        self.thaw();
        self.forget_writes();
        for slab in &mut self.slabs {
            slab.stale |= slab.state == SlabState::Open;
        }
        self.nacks.clear();
    }

    /// The control connection is new, the peer the same: repeats every report that may be lost.
    pub(crate) fn resume(&mut self) {
        self.ack_due = true;
        self.retell();
    }

    fn retell(&mut self) {
        self.thaw();
        match self.config.mode {
            Mode::Pull => self.credits.extend(self.conns.keys()),
            Mode::Push => {
                if self.is_channelless {
                    self.credits.extend(self.conns.keys());
                }
                self.grants.clear();
                self.keyed = 0;
                for (conn, rx) in &self.conns {
                    let grants = rx.open_extents().map(|(offset, at, len)| {
                        (
                            Grant {
                                conn: *conn,
                                offset,
                                at,
                                len,
                            },
                            None,
                        )
                    });
                    self.grants.extend(grants);
                    // Nothing before this has memory but what was just named.
                    let end = Grant {
                        conn: *conn,
                        offset: rx.credit,
                        at: 0,
                        len: 0,
                    };
                    self.grants.push_back((end, Some(Key::default())));
                }
            }
        }
        if self.acknowledge {
            self.acked_conns.extend(self.conns.keys());
        }
    }

    /// The way is new: slabs count from 0 again, and each stream goes on behind the last byte that
    /// was used up. No read of the old way is in flight any more.
    pub(crate) fn restart(&mut self) {
        self.slabs.clear();
        self.first = SlabSeq(0);
        self.records = 0;
        self.to_get.clear();
        self.gets.clear();
        self.written.clear();
        self.to_verify.clear();
        self.nacks.clear();
        self.ack_due = false;
        for rx in self.conns.values_mut() {
            rx.restart();
        }
        // The peer repeats it, from the reported offset.
        self.used_meanwhile.clear();
        self.retell();
    }

    // Measures.

    pub(crate) fn on_rtt(&mut self, now: Time, rtt_ns: u64) {
        let is_first = self.estimate.rtt_ns().is_none();
        self.estimate.on_rtt(now, rtt_ns);
        if is_first {
            self.replan(now);
        }
    }

    pub(super) fn estimate_arrival(&mut self, now: Time, octets: u64) {
        if self.estimate.on_arrival(now, octets) {
            self.replan(now);
        }
    }

    /// Plans the size and depth of reads for the path: by the declared rate, otherwise by twice the
    /// measured one, because the measurement cannot exceed the requested rate; at least
    /// [`RATE_START_BPS`].
    pub(super) fn replan(&mut self, now: Time) {
        let measured = self.estimate.rate_bps();
        let declared = self.config.rate_bps;
        let rate = declared.unwrap_or_else(|| measured.saturating_mul(2).max(RATE_START_BPS));
        if let Some(rtt_ns) = self.estimate.rtt_ns() {
            let wanted = Plan::for_path(&PathEstimate {
                rate_bps: rate,
                rtt_ns,
                burst_bytes: self.config.burst_bytes,
                message_max: self.config.message_max,
                reads_max: self.config.reads_max,
            });
            // Few reads were asked for while nothing was known: only a declared rate is reason to
            // ask for fewer.
            let depth = if declared.is_some() {
                wanted.depth
            } else {
                self.config.reads_max.max(1)
            };
            self.plan = Plan { depth, ..wanted };
        } else if let Some(burst) = self.config.burst_bytes {
            let half = (burst / 2).max(1);
            self.plan.chunk = self.plan.chunk.min(u32::try_from(half).unwrap_or(u32::MAX));
            self.plan.bucket_bytes = half.max(u64::from(self.plan.chunk));
        }
        self.pacer.set(now, declared, self.plan.bucket_bytes);
    }

    /// Returns when [`Self::poll_get`] may have something without another event.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Time> {
        self.paced_until
    }

    /// As of the producer.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.paced_until = self.paced_until.filter(|until| *until > now);
    }

    /// Sizes of reads at present.
    #[must_use]
    pub const fn plan(&self) -> Plan {
        self.plan
    }

    /// Returns the measurements.
    #[must_use]
    pub const fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    /// Bytes of the arena that are promised or occupied, and all.
    #[must_use]
    pub fn occupancy(&self) -> (u64, u64) {
        (self.arena.used_bytes(), self.arena.bytes())
    }

    /// Limits the bytes of the arena that may be promised or occupied, from now on.
    pub fn set_most(&mut self, bytes: u64) {
        if !self.arena.set_most(bytes) {
            return;
        }
        self.feed();
        // Other windows were reduced, because half of the permitted memory was taken.
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.grant(conn));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.slabs.is_empty()
    }
}
