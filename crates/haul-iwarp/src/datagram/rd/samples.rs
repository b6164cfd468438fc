//! How fast data arrived at the peer, by the clock and the count that its ACKs carry.

use haul_cc::time::MICROSECOND_NS;
use haul_cc::{Arrivals, RateSample, Time};

use super::control::low;

/// Reports of a peer.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// The peer's clock, us, and wire bytes that had arrived.
    last: Option<(u64, u64)>,
    pub(super) arrivals: Arrivals,
}

impl Samples {
    /// Takes a report; returns the rate since the youngest one that is `interval_ns` back.
    /// `newest_sent`: when the latest of the packets that have arrived was sent.
    pub(super) fn take(
        &mut self,
        clock_us: u32,
        octets: u32,
        newest_sent: Time,
        interval_ns: u64,
    ) -> Option<RateSample> {
        let (at_us, octets) = match self.last {
            Some((last_us, last_octets)) => {
                (forward(last_us, clock_us)?, forward(last_octets, octets)?)
            }
            None => (clock_us.into(), octets.into()),
        };
        self.last = Some((at_us, octets));
        self.arrivals
            .take(at_us * MICROSECOND_NS, octets, newest_sent, interval_ns)
    }
}

/// The number with the low half `low` that is `last` or up to 2^31 further; none if it is before.
fn forward(last: u64, bits: u32) -> Option<u64> {
    let ahead = bits.wrapping_sub(low(last));
    (ahead < 1 << 31).then(|| last + u64::from(ahead))
}
