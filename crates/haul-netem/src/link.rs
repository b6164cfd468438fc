//! The pipeline that a packet passes, and its counters.

use crate::config::{LinkConfig, Shaper};
use crate::jitter::Jitter;
use crate::loss::Loss;
use crate::policer::Bucket;
use crate::rng::Rng;
use crate::shaper::{Backlog, Queue};

/// One direction of a path. Offer packets in the order of time with [`admit`](Self::admit).
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    policer: Option<Bucket>,
    queue: Option<Queue>,
    loss: Loss,
    jitter: Jitter,
    reorder: Rng,
    duplicate: Rng,
    corrupt: Rng,
    /// Time never runs backwards: an earlier `now` counts as this one.
    now_ns: u64,
    /// Arrival of the last packet that was not held back.
    last_at_ns: u64,
    stats: LinkStats,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It never arrives.
    Dropped(DropCause),
    /// It arrives, perhaps damaged, perhaps twice.
    Delivered {
        /// When its last bit arrives at the far end.
        at_ns: u64,
        /// The queue was above its threshold: if the packet shows that its ends understand marks
        /// (ECT, RFC 3168 §5), it arrives with one (CE), and so does its duplicate.
        marked: bool,
        /// It arrives damaged, and so does its duplicate.
        corrupted: bool,
        /// When a second copy arrives, right behind the first.
        duplicate_at_ns: Option<u64>,
    },
}

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// Lost on the wire.
    Loss,
    /// The queue was full.
    Queue,
    /// The policer's bucket was empty.
    Policer,
}

/// Counters since the link was made. `offered = delivered + lost + queue_dropped + policed`, in
/// packets; the duplicates are not in `delivered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets offered.
    pub offered: u64,
    /// Bytes offered.
    pub offered_bytes: u64,
    /// Packets that arrive, each counted once.
    pub delivered: u64,
    /// Bytes that arrive, each packet counted once.
    pub delivered_bytes: u64,
    /// Packets lost on the wire.
    pub lost: u64,
    /// Packets that found the queue full.
    pub queue_dropped: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Packets that arrive with their congestion marked, if their ends understand it.
    pub marked: u64,
    /// Packets that arrive twice.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets that arrive damaged.
    pub corrupted: u64,
    /// The fullest that the queue was.
    pub backlog_max: Backlog,
}

impl Link {
    /// A link that has been idle for ever. The same seed and the same calls give the same fates.
    ///
    /// Any configuration is taken; see [`LinkConfig::check`] for what is made of nonsense.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            policer: config.policer.map(Bucket::new),
            queue: config.rate.map(Queue::new),
            loss: Loss::new(config.loss, rng.fork()),
            jitter: Jitter::new(config.jitter_ns, rng.fork()),
            reorder: rng.fork(),
            duplicate: rng.fork(),
            corrupt: rng.fork(),
            now_ns: 0,
            last_at_ns: 0,
            stats: LinkStats::default(),
            config,
        }
    }

    /// What the link is asked to be.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the link while it carries packets: an outage, a new rate, a longer route. Packets
    /// already admitted keep their fates; random numbers and counters go on. A policer that changes
    /// starts with a full bucket.
    pub fn reconfigure(&mut self, config: LinkConfig) {
        if config.policer != self.config.policer {
            self.policer = config.policer.map(Bucket::new);
        }
        self.set_rate(config.rate);
        self.loss.model = config.loss;
        self.jitter.set(config.jitter_ns);
        self.config = config;
    }

    /// One packet of `wire_bytes` offered at `now_ns`.
    #[inline]
    pub fn admit(&mut self, now_ns: u64, wire_bytes: u32) -> Fate {
        self.now_ns = self.now_ns.max(now_ns);
        self.stats.offered += 1;
        self.stats.offered_bytes += u64::from(wire_bytes);
        if self
            .policer
            .as_mut()
            .is_some_and(|bucket| !bucket.admit(self.now_ns, wire_bytes))
        {
            self.stats.policed += 1;
            return Fate::Dropped(DropCause::Policer);
        }
        let Some((departure_ns, marked)) = self.enqueue(wire_bytes) else {
            self.stats.queue_dropped += 1;
            return Fate::Dropped(DropCause::Queue);
        };
        if self.loss.hits() {
            self.stats.lost += 1;
            return Fate::Dropped(DropCause::Loss);
        }
        self.stats.delivered += 1;
        self.stats.delivered_bytes += u64::from(wire_bytes);
        let at_ns = self.arrival(departure_ns);
        let duplicate = self.duplicate.chance(self.config.duplicate);
        let corrupted = self.corrupt.chance(self.config.corrupt);
        self.stats.marked += u64::from(marked);
        self.stats.duplicated += u64::from(duplicate);
        self.stats.corrupted += u64::from(corrupted);
        Fate::Delivered {
            at_ns,
            marked,
            corrupted,
            duplicate_at_ns: duplicate.then_some(at_ns),
        }
    }

    /// Counters since the link was made.
    #[must_use]
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// What waits for the link's rate at this time. Nothing does on a link without one.
    pub fn backlog(&mut self, now_ns: u64) -> Backlog {
        self.now_ns = self.now_ns.max(now_ns);
        self.queue
            .as_mut()
            .map(|queue| queue.backlog(self.now_ns))
            .unwrap_or_default()
    }

    /// When the packet leaves, and whether it finds the queue above its threshold; `None` if the
    /// queue is full.
    #[inline]
    fn enqueue(&mut self, wire_bytes: u32) -> Option<(u64, bool)> {
        let Some(queue) = &mut self.queue else {
            return Some((self.now_ns, false));
        };
        let departure_ns = queue.admit(self.now_ns, wire_bytes)?;
        let backlog = queue.backlog(self.now_ns);
        let most = &mut self.stats.backlog_max;
        most.bytes = most.bytes.max(backlog.bytes);
        most.packets = most.packets.max(backlog.packets);
        let threshold = self.config.ecn_mark_bytes;
        let marked = threshold.is_some_and(|threshold| backlog.bytes > threshold);
        Some((departure_ns, marked))
    }

    /// When a packet that leaves at this time arrives. Only a packet held back lets others pass.
    #[inline]
    fn arrival(&mut self, departure_ns: u64) -> u64 {
        let delay_ns = self.jitter.delay_ns(departure_ns, self.config.delay_ns);
        let at_ns = departure_ns.saturating_add(delay_ns).max(self.last_at_ns);
        if let Some(reorder) = self.config.reorder
            && self.reorder.chance(reorder.probability)
        {
            self.stats.reordered += 1;
            return at_ns.saturating_add(reorder.delay_ns);
        }
        self.last_at_ns = at_ns;
        at_ns
    }

    fn set_rate(&mut self, rate: Option<Shaper>) {
        match (&mut self.queue, rate) {
            (Some(queue), Some(limits)) if Some(limits) != self.config.rate => {
                queue.set_limits(limits)
            }
            (Some(_), Some(_)) => {}
            (queue, rate) => *queue = rate.map(Queue::new),
        }
    }
}

#[cfg(test)]
mod tests;
