//! A rate and the finite first-in first-out queue in front of it.

use std::collections::VecDeque;

use crate::config::Shaper;

/// Nanoseconds that one byte takes at 1 bit/s.
const BYTE_NS_BPS: u64 = 8_000_000_000;

/// Larger packets are counted as this large, so that a packet's time fits 64 bits.
const WIRE_BYTES_MAX: u32 = 1 << 30;

/// What waits in the queue, the packet that is being sent included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    limits: Shaper,
    /// The link is busy until `busy_ns + part / rate_bps`, exactly: nothing is rounded away between
    /// packets.
    busy_ns: u64,
    /// `0 <= part < rate_bps`, in units of `1 / rate_bps` ns.
    part: u64,
    /// Departure time and size of every packet that had not left when last looked at, oldest first.
    waiting: VecDeque<(u64, u32)>,
    bytes: u64,
}

impl Queue {
    pub(crate) fn new(limits: Shaper) -> Self {
        Self {
            limits: sane(limits),
            busy_ns: 0,
            part: 0,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    /// New limits for what arrives from now on; packets already queued leave as they were told.
    pub(crate) fn set_limits(&mut self, limits: Shaper) {
        self.limits = sane(limits);
        self.part = 0;
    }

    /// When the last bit of this packet leaves, or `None` if the queue is full.
    #[inline]
    pub(crate) fn admit(&mut self, now_ns: u64, wire_bytes: u32) -> Option<u64> {
        let backlog = self.backlog(now_ns);
        let over =
            |limit: Option<u64>, held: u64, more: u64| limit.is_some_and(|max| held + more > max);
        if backlog.packets > 0
            && (over(self.limits.queue_bytes, backlog.bytes, wire_bytes.into())
                || over(self.limits.queue_packets, backlog.packets, 1))
        {
            return None;
        }
        if self.busy_ns < now_ns {
            (self.busy_ns, self.part) = (now_ns, 0);
        }
        let rate = self.limits.rate_bps;
        let work = u64::from(wire_bytes.min(WIRE_BYTES_MAX)) * BYTE_NS_BPS;
        let (mut whole, part) = (work / rate, self.part + work % rate);
        self.part = part;
        if part >= rate {
            self.part -= rate;
            whole += 1;
        }
        self.busy_ns = self.busy_ns.saturating_add(whole);
        let departure_ns = self.busy_ns.saturating_add(u64::from(self.part > 0));
        self.waiting.push_back((departure_ns, wire_bytes));
        self.bytes += u64::from(wire_bytes);
        Some(departure_ns)
    }

    /// What is queued or on its way out at this time.
    #[inline]
    pub(crate) fn backlog(&mut self, now_ns: u64) -> Backlog {
        while let Some(&(departure_ns, bytes)) = self.waiting.front()
            && departure_ns <= now_ns
        {
            self.waiting.pop_front();
            self.bytes -= u64::from(bytes);
        }
        Backlog {
            bytes: self.bytes,
            packets: self.waiting.len() as u64,
        }
    }
}

/// A rate that can be divided by, and added to once without overflow.
fn sane(limits: Shaper) -> Shaper {
    Shaper {
        rate_bps: limits.rate_bps.clamp(1, u64::MAX / 2),
        ..limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(rate_bps: u64, queue_bytes: Option<u64>, queue_packets: Option<u64>) -> Queue {
        Queue::new(Shaper {
            rate_bps,
            queue_bytes,
            queue_packets,
        })
    }

    #[test]
    fn a_million_packets_leave_at_exactly_the_rate() {
        // 1500 B at 7 Gb/s take 1714 2/7 ns: any rounding per packet would show.
        let mut link = queue(7_000_000_000, None, None);
        let last = (0..1_000_000).filter_map(|_| link.admit(0, 1500)).last();
        assert_eq!(last, Some((1_000_000_u64 * 1500 * 8).div_ceil(7)));
    }

    #[test]
    fn an_idle_link_starts_a_packet_at_once() {
        let mut link = queue(8_000_000_000, None, None);
        assert_eq!(link.admit(0, 1000), Some(1000));
        assert_eq!(link.admit(400, 1000), Some(2000));
        assert_eq!(link.admit(5000, 1000), Some(6000));
    }

    #[test]
    fn tail_drop_counts_bytes_and_packets() {
        let mut link = queue(8_000_000_000, Some(3000), None);
        let taken = (0..5).filter(|_| link.admit(0, 1000).is_some()).count();
        assert_eq!((taken, link.backlog(0).bytes), (3, 3000));
        assert!(
            link.admit(999, 1000).is_none(),
            "the first packet has one more nanosecond to go"
        );
        assert!(link.admit(1000, 1000).is_some());

        let mut link = queue(8_000_000_000, None, Some(2));
        let taken = (0..5).filter(|_| link.admit(0, 40).is_some()).count();
        assert_eq!(
            (taken, link.backlog(0)),
            (
                2,
                Backlog {
                    bytes: 80,
                    packets: 2
                }
            )
        );
    }

    #[test]
    fn a_queue_smaller_than_a_packet_still_passes_packets_one_by_one() {
        let mut link = queue(8_000_000_000, Some(100), None);
        assert_eq!(link.admit(0, 1000), Some(1000));
        assert_eq!(link.admit(500, 1000), None);
        assert_eq!(link.admit(1000, 1000), Some(2000));
    }

    #[test]
    fn extreme_rates_and_sizes_do_not_overflow() {
        let mut link = queue(0, None, None);
        assert_eq!(
            link.admit(0, u32::MAX),
            Some(u64::from(WIRE_BYTES_MAX) * BYTE_NS_BPS)
        );
        let mut link = queue(u64::MAX, None, None);
        assert_eq!(link.admit(9, 1500), Some(10));
        assert_eq!(link.admit(u64::MAX, u32::MAX), Some(u64::MAX));
    }
}
