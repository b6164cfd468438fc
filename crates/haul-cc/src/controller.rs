//! The interface of a congestion control: its inputs and outputs.
//!
//! A transport feeds every control the same two inputs, [`Ack`] and [`Loss`], and obeys the same
//! two answers, a pacing rate and a window. A new control is one file and one variant of
//! [`Algorithm`](crate::Algorithm); one that keeps a window and reduces it on loss is a
//! [`Law`](crate::window::Law).

use std::fmt::Debug;

use crate::time::{MILLISECOND_NS, SECOND_NS, Time};

/// Wire bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// More than any link of today: unpaced.
    pub const UNLIMITED: Self = Self(1 << 40);

    /// Makes a rate from bits per second.
    #[must_use]
    pub const fn from_bps(bits_per_second: u64) -> Self {
        Self(bits_per_second / 8)
    }

    /// Makes a rate from bytes per second.
    #[must_use]
    pub const fn from_bytes_per_second(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the rate of `bytes` in `ns` nanoseconds.
    #[must_use]
    pub fn of(bytes: u64, ns: u64) -> Self {
        let per_second = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(ns.max(1));
        Self(
            u64::try_from(per_second)
                .unwrap_or(u64::MAX)
                .min(Self::UNLIMITED.0),
        )
    }

    /// Returns the bytes per second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }

    /// Returns the bits per second.
    #[must_use]
    pub const fn bps(self) -> u64 {
        self.0 * 8
    }

    /// Returns the bytes that `ns` nanoseconds carry.
    #[must_use]
    pub fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(self.0) * u128::from(ns) / u128::from(SECOND_NS);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Returns the nanoseconds that `bytes` take.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(self.0.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns this rate times `gain`, a ratio in percent.
    #[must_use]
    pub fn percent(self, gain: u64) -> Self {
        self.per_mille(10 * gain)
    }

    /// Returns this rate times `gain`, a ratio in thousandths.
    #[must_use]
    pub fn per_mille(self, gain: u64) -> Self {
        let scaled = u128::from(self.0) * u128::from(gain) / 1_000;
        Self(
            u64::try_from(scaled)
                .unwrap_or(u64::MAX)
                .min(Self::UNLIMITED.0),
        )
    }
}

/// How fast data arrived at the receiver, by the receiver's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Arrivals per second over the interval.
    pub rate: Rate,
    /// Length of the interval, ns.
    pub interval_ns: u64,
    /// Wire bytes that arrived in it.
    pub bytes: u64,
    /// The sender had too little to send during a part of it, so the path may carry more.
    pub app_limited: bool,
    /// The sender's machine could not keep the pace during a part of it, so the path may carry
    /// more.
    pub late: bool,
    /// The dispersion of a whole train of packets that left back to back: more of it there will not
    /// be.
    pub whole_train: bool,
}

/// A report of data that arrived.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ack {
    /// Wire bytes acknowledged by this report for the first time.
    pub acked_bytes: u64,
    /// Round-trip time of the newest packet acknowledged, ns.
    pub rtt_ns: Option<u64>,
    /// Smoothed round-trip time, ns.
    pub smoothed_rtt_ns: u64,
    /// Arrival rate, where the receiver reports it.
    pub arrival: Option<RateSample>,
    /// UDT's packet-pair estimate of the link's capacity, packets per second.
    pub link_capacity_pps: Option<u64>,
    /// Wire bytes sent and neither acknowledged nor known lost, after this report.
    pub in_flight_bytes: u64,
    /// The sender had nothing more to send when it last looked.
    pub app_limited: bool,
}

/// A report of data that did not arrive.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loss {
    /// Wire bytes declared lost by this report.
    pub lost_bytes: u64,
    /// Packet number of the first packet lost.
    pub first_packet: u64,
    /// Packet number that will be sent next.
    pub next_packet: u64,
    /// Wire bytes in flight after the loss.
    pub in_flight_bytes: u64,
}

/// A report of data that arrived through a filling queue: congestion experienced (RFC 3168 §5).
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks {
    /// Wire bytes of the marked packets in this report.
    pub marked_bytes: u64,
    /// Packet number that none of them is above.
    pub highest_packet: u64,
    /// Packet number that will be sent next.
    pub next_packet: u64,
    /// Wire bytes in flight.
    pub in_flight_bytes: u64,
}

/// State of a path measured by an earlier connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// The rate that the path has shown, wire bytes per second.
    pub rate: Rate,
    /// The base round-trip time, ns.
    pub rtt_ns: u64,
}

/// A control's state for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the control and, after a slash, of its present state.
    pub state: &'static str,
    /// The pacing rate in force.
    pub pacing: Rate,
    /// The window in force, wire bytes.
    pub window_bytes: u64,
}

/// A congestion control.
pub trait Controller: Debug + Send {
    /// Data arrived.
    fn handle_ack(&mut self, now: Time, ack: &Ack);
    /// Data was lost.
    fn handle_loss(&mut self, now: Time, loss: &Loss);
    /// Data arrived that had met a filling queue. It counts as if one packet had been lost (RFC
    /// 3168 §6.1.2).
    fn handle_marks(&mut self, now: Time, marks: &Marks) {
        let loss = Loss {
            lost_bytes: 0,
            first_packet: marks.highest_packet,
            next_packet: marks.next_packet,
            in_flight_bytes: marks.in_flight_bytes,
        };
        self.handle_loss(now, &loss);
    }
    /// So many wire bytes left.
    fn handle_sent(&mut self, _bytes: u64) {}
    /// An earlier connection found this on the path; `rtt_ns` is what has been measured on it so
    /// far. Comes before any data. Controls that cannot use it ignore it.
    fn resume(&mut self, _remembered: Remembered, _rtt_ns: Option<u64>) {}
    /// Returns the path state that a later connection may start from; `None` if nothing has been
    /// measured yet, or the control does not measure.
    fn shown(&self) -> Option<Remembered> {
        None
    }
    /// Nothing has been received for a retransmission timeout.
    fn handle_timeout(&mut self, now: Time);
    /// The rate at which to send.
    fn pacing_rate(&self) -> Rate;
    /// The most wire bytes to have in flight.
    fn window_bytes(&self) -> u64;
    /// The most wire bytes that should leave back to back.
    fn batch_bytes(&self) -> u64 {
        u64::MAX
    }
    /// The shortest interval over which an arrival rate is worth a sample, ns; zero while any two
    /// reports will do.
    fn sampling_interval_ns(&self) -> u64 {
        10 * MILLISECOND_NS
    }
    /// How often the receiver should report, ns: often enough for two reports per sample, and no
    /// oftener than pays.
    fn feedback_interval_ns(&self) -> u64 {
        self.sampling_interval_ns() / 2
    }
    /// For people.
    fn snapshot(&self) -> Snapshot;
}
