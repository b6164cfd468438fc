//! Records of what peers have written, until the application takes them.

use std::collections::VecDeque;

use haul_verbs::WriteRecord;

/// Records that nobody took.
const KEPT_MAX: usize = 1_024;
/// Numbers of records' completions have this bit, so that they are not taken for a work request's.
const OWN_ID: u64 = 1 << 63;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Records {
    kept: VecDeque<(u64, WriteRecord)>,
    numbered: u64,
}

impl Records {
    /// Keeps a peer's record; the number that its completion announces it by.
    pub(super) fn keep(&mut self, record: WriteRecord) -> u64 {
        let wr_id = OWN_ID | self.numbered;
        self.numbered = self.numbered.wrapping_add(1);
        self.keep_as(wr_id, record);
        wr_id
    }

    /// Keeps the record of a Read of this end's.
    pub(super) fn keep_as(&mut self, wr_id: u64, record: WriteRecord) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((wr_id, record));
    }

    pub(super) fn take(&mut self, wr_id: u64) -> Option<WriteRecord> {
        let place = self.kept.iter().position(|(id, _)| *id == wr_id)?;
        self.kept.remove(place).map(|(_, record)| record)
    }

    /// Those of a region.
    pub(super) fn of(&self, rkey: u32) -> impl Iterator<Item = &WriteRecord> {
        let records = self.kept.iter().map(|(_, record)| record);
        records.filter(move |record| record.target.rkey == rkey)
    }
}

#[cfg(test)]
mod tests {
    use haul_verbs::{Peer, RecordStatus, Remote};

    use super::*;

    fn record(message: u32) -> WriteRecord {
        let source = Peer::new(([127, 0, 0, 1], 1).into(), 2);
        WriteRecord::new(
            RecordStatus::Full,
            source,
            message,
            Remote { addr: 0, rkey: 7 },
            0,
        )
    }

    #[test]
    fn a_record_is_taken_once_and_the_oldest_make_room() {
        let mut records = Records::default();
        let first = records.keep(record(1));
        assert_eq!(records.take(first).map(|record| record.message), Some(1));
        assert_eq!(records.take(first), None);
        let ids: Vec<u64> = (0..1_025).map(|n| records.keep(record(n))).collect();
        assert_eq!(records.take(ids[0]), None);
        assert_eq!(records.take(ids[1]).map(|record| record.message), Some(1));
        assert_eq!((records.of(7).count(), records.of(8).count()), (1_023, 0));
    }
}
