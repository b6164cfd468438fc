//! Packets to deliver, in the order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::pool::Ticket;

/// Neighbouring wire packets of one super-packet that are delivered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// When the last of them is due.
    pub(super) at_ns: u64,
    /// Which super-packet.
    pub(super) ticket: Ticket,
    pub(super) first: u16,
    pub(super) end: u16,
    /// ECN-capable ones are marked with congestion.
    pub(super) marked: bool,
    pub(super) damaged: bool,
}

/// A queue by time; runs due at the same time leave in the order in which they came.
#[derive(Debug)]
pub(super) struct Schedule {
    heap: BinaryHeap<Reverse<Entry>>,
    next_order: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    run: Run,
    order: u64,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::with_capacity(16_384),
            next_order: 0,
        }
    }

    pub(super) fn push(&mut self, run: Run) {
        self.heap.push(Reverse(Entry {
            run,
            order: self.next_order,
        }));
        self.next_order += 1;
    }

    /// When the next run is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.run.at_ns)
    }

    /// The next run that is due now.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<Run> {
        if self.due_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.run)
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.run.at_ns, self.order).cmp(&(other.run.at_ns, other.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_leave_by_time_and_then_in_order() {
        let mut schedule = Schedule::new();
        for (first, at_ns) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
            schedule.push(Run {
                at_ns,
                ticket: Ticket::TEST,
                first,
                end: 9,
                marked: false,
                damaged: false,
            });
        }
        assert_eq!(schedule.due_ns(), Some(10));
        assert_eq!(schedule.pop_due(9), None);
        let order: Vec<u16> = std::iter::from_fn(|| schedule.pop_due(25))
            .map(|run| run.first)
            .collect();
        assert_eq!(order, [1, 3, 2]);
        assert_eq!(schedule.due_ns(), Some(30));
    }
}
