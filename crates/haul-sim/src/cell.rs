//! One stream over one path with a rate, a round-trip time, random loss and a queue: how much of
//! the path it takes from the first packet on.

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_seal::Seal;
use haul_udt::Config;
use haul_udt::wire::HEADER_LEN;

use crate::flow::Flow;
use crate::scenario;
use crate::world::{Path, World};

/// A path, and how long packets may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// Bits per second of IP packets.
    pub rate_bps: u64,
    /// Round-trip time, milliseconds.
    pub rtt_ms: u64,
    /// Packets lost at random, in both directions.
    pub loss: f64,
    /// Length of the queue in bandwidth-delay products; at least 64 packets.
    pub queue: f64,
    /// Longest IP packet, bytes.
    pub mtu: u32,
}

/// What one stream made of a [`Cell`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Payload placed from the connection's beginning to the end, of what the rate would carry of
    /// packets of full length, less the loss.
    pub share: f64,
    /// The same after the ramp's time: the first eight round trips.
    pub steady: f64,
    /// When the stream first filled nine tenths of the rate, round-trip times from the beginning.
    pub ramp_rtts: Option<f64>,
    /// Payload retransmitted, of that sent.
    pub resent: f64,
    /// The longest that the queue was, bandwidth-delay products.
    pub queue_most: f64,
    /// Most payload that the sender had to keep at a time, bandwidth-delay products.
    pub kept_most: f64,
    /// Packets offered to the path, forward.
    pub packets: u64,
}

/// A whole run is a ramp of so many round trips and then the longer of these.
const RAMP_RTTS: u64 = 8;
const STEADY_RTTS: u64 = 20;
const STEADY_NS: u64 = 3 * SECOND_NS;
const LOWER_LEN: u32 = 28;

/// From this rate on, bits per second, packets are jumbo frames.
const JUMBO_BPS: u64 = 100_000_000_000;

impl Cell {
    /// A cell with the packets that are usual at its rate: 1,500 bytes, jumbo frames from 100 Gb/s.
    #[must_use]
    pub fn new(gbps: u64, rtt_ms: u64, loss: f64, queue: f64) -> Self {
        let rate_bps = gbps * 1_000_000_000;
        Self {
            rate_bps,
            rtt_ms,
            loss,
            queue,
            mtu: if rate_bps < JUMBO_BPS { 1_500 } else { 9_000 },
        }
    }

    /// Round-trip time, ns.
    #[must_use]
    pub fn rtt_ns(&self) -> u64 {
        self.rtt_ms * MILLISECOND_NS
    }

    /// Bandwidth-delay product, bytes.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn bdp_bytes(&self) -> f64 {
        self.rate_bps as f64 / 8.0 * self.rtt_ns() as f64 / SECOND_NS as f64
    }

    fn path(&self) -> Path {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number of bytes"
        )]
        let queue_bytes = (self.queue * self.bdp_bytes()) as u64;
        let mut path = scenario::plain(self.rate_bps, self.rtt_ms, self.loss);
        for link in [&mut path.forward, &mut path.reverse] {
            if let Some(shaper) = &mut link.rate {
                shaper.queue_bytes = Some(queue_bytes.max(64 * u64::from(self.mtu)));
            }
        }
        path
    }

    /// How long a run is that shows the ramp and what follows, ns.
    #[must_use]
    pub fn whole_ns(&self) -> u64 {
        (STEADY_RTTS * self.rtt_ns()).max(STEADY_NS) + RAMP_RTTS * self.rtt_ns()
    }

    /// Runs `flows` streams, which begin at once, for `span_ns`; sealed if `seal` is there. Shares
    /// are those of an equal part of the rate.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn run(&self, seal: Option<&Seal>, flows: usize, span_ns: u64, seed: u64) -> Vec<Figures> {
        let mut world = World::new(&self.path(), seed);
        let mut config = Config::default();
        config.mtu = self.mtu;
        config.seal = seal.is_some();
        let flow = Flow {
            client: config.clone(),
            server: config,
            stream_bytes: [u64::MAX / 4, 0],
            seal: seal.map(|seal| [seal.clone(), seal.clone()]),
            ..Flow::default()
        };
        let flows: Vec<usize> = (0..flows).map(|_| world.add(flow.clone())).collect();
        let payload = f64::from(self.mtu - LOWER_LEN) - HEADER_LEN as f64;
        let ceiling = self.rate_bps as f64 / 8.0 * payload / f64::from(self.mtu)
            * (1.0 - self.loss)
            / flows.len() as f64;
        let step_ns = (self.rtt_ns() / 8).max(MILLISECOND_NS);
        let (mut placed, mut at_ramp) = (vec![0; flows.len()], vec![0; flows.len()]);
        let mut figures = vec![
            Figures {
                share: 0.0,
                steady: 0.0,
                ramp_rtts: None,
                resent: 0.0,
                queue_most: 0.0,
                kept_most: 0.0,
                packets: 0,
            };
            flows.len()
        ];
        let mut now = Time::ZERO;
        while now.as_ns() < span_ns {
            now = now.after(step_ns);
            world.run_until(now);
            let of_flows = flows.iter().zip(&mut placed).zip(&mut at_ramp);
            for (((&flow, placed), at_ramp), figures) in of_flows.zip(&mut figures) {
                let (Some(sender), Some(receiver)) = (world.host(flow, 0), world.host(flow, 1))
                else {
                    continue;
                };
                let Some(stats) = sender.connection.stats() else {
                    continue;
                };
                let step = (receiver.rx.placed_bytes - *placed) as f64 / step_ns as f64;
                *placed = receiver.rx.placed_bytes;
                let is_full = step * SECOND_NS as f64 >= 0.9 * ceiling;
                let rtts = now.as_ns() as f64 / self.rtt_ns() as f64;
                if is_full {
                    figures.ramp_rtts.get_or_insert(rtts);
                }
                let sent = stats.sent.payload_bytes - stats.sent.resent_bytes;
                let kept = (sent - sender.connection.released()) as f64 / self.bdp_bytes();
                figures.kept_most = figures.kept_most.max(kept);
                figures.resent =
                    stats.sent.resent_bytes as f64 / stats.sent.payload_bytes.max(1) as f64;
                let share =
                    |bytes: u64, ns: u64| bytes as f64 * SECOND_NS as f64 / ns as f64 / ceiling;
                figures.share = share(*placed, now.as_ns());
                let ramp_ns = RAMP_RTTS * self.rtt_ns();
                if now.as_ns() <= ramp_ns {
                    *at_ramp = *placed;
                } else {
                    figures.steady = share(*placed - *at_ramp, now.as_ns() - ramp_ns);
                }
            }
        }
        let link = world.link(0).stats();
        for figures in &mut figures {
            figures.queue_most = link.backlog_max.bytes as f64 / self.bdp_bytes();
            figures.packets = link.offered;
        }
        figures
    }
}
