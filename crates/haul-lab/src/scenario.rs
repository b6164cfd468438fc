//! A scenario: the TOML file with the path to emulate, checked and resolved.
//!
//! The file describes a path in a network engineer's terms (rate, round-trip time, loss, queue);
//! resolving turns it into one [`LinkConfig`] per direction. Every key has a default except `rtt`
//! and, if a queue is measured in bandwidth-delay products, `rate`.

mod builtin;
pub mod unit;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use haul_netem::{LinkConfig, LossModel, Policer, Reorder, Shaper};
use serde::Deserialize;

use crate::usage::Usage;
pub use builtin::BUILTIN;
use unit::{Probability, QueueSize, Rate, Size, Span};

/// The queue when none is asked for: one bandwidth-delay product, but at least this, so that a
/// short path does not drop every burst…
pub const DEFAULT_QUEUE_BYTES_MIN: u64 = 256 << 10;

/// …and at most this: few routers have more per port.
pub const DEFAULT_QUEUE_BYTES_MAX: u64 = 16 << 20;

/// A lab to be.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name of its file, without directory and ending.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// Which hosts there are and how they are joined.
    pub topology: Topology,
    /// Hosts behind each gateway; 1 in a pair.
    pub hosts_per_side: u8,
    /// Seed of every random decision of the path.
    pub seed: u64,
    /// Largest IP packet on every link.
    pub mtu: u16,
    /// From `a` to `b`.
    pub forward: Direction,
    /// From `b` to `a`.
    pub reverse: Direction,
    /// Between each host and its gateway, as the path: from `a` to `b`, and from `b` to `a`.
    /// Without settings, links as fast as the machine.
    pub edge: Option<[Direction; 2]>,
    /// Kernel parameters of single hosts, beyond the lab's own tuning: host, then parameter.
    pub sysctls: BTreeMap<String, BTreeMap<String, String>>,
    /// Commands that `lab run` starts.
    pub runs: Vec<Run>,
}

/// How the hosts are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Hosts `a` and `b`, with the path between them.
    #[default]
    Pair,
    /// Hosts `a`… behind gateway `ga`, the path, gateway `gb`, hosts `b`…
    Gateways,
}

/// One direction of the path.
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    /// The emulator's parameters.
    pub link: LinkConfig,
    /// Bytes that each packet takes on the wire beyond its IP packet.
    pub overhead_bytes: u32,
    /// Damaged packets keep a valid checksum.
    pub corrupt_undetected: bool,
}

/// A command that `lab run` starts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Where.
    pub host: String,
    /// A line for `sh -c`.
    pub command: String,
    /// Start it and go on; it is ended with the lab.
    #[serde(default)]
    pub background: bool,
    /// Wait this long before starting it.
    #[serde(default)]
    pub after: Span,
}

impl Scenario {
    /// Reads a scenario: a file, or else the name of one that this program brings along.
    ///
    /// # Errors
    /// If there is none, or with the line that is wrong in it.
    pub fn load(which: &str) -> Result<Self> {
        let path = Path::new(which);
        if path.exists() {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("cannot read {which}"))?;
            let name = path
                .file_stem()
                .map_or_else(|| which.into(), |stem| stem.to_string_lossy().into_owned());
            return Self::parse(&name, &text)
                .with_context(|| Usage(format!("{which} is not a valid scenario")));
        }
        match BUILTIN.iter().find(|(name, _)| *name == which) {
            Some((name, text)) => Self::parse(name, text),
            None => {
                let names: Vec<_> = BUILTIN.iter().map(|(name, _)| *name).collect();
                let text = format!(
                    "no scenario {which}: give a TOML file or one of {}",
                    names.join(", ")
                );
                Err(Usage(text).into())
            }
        }
    }

    /// Reads a scenario from its text.
    ///
    /// # Errors
    /// The line that is wrong and why.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let (forward, reverse) = file.path.resolve()?;
        let edge = file.edge.map(|edge| edge.resolve_edge()).transpose()?;
        let scenario = Self {
            name: name.into(),
            description: file.description,
            topology: file.topology,
            hosts_per_side: file.hosts_per_side.unwrap_or(1),
            seed: file.seed.unwrap_or(1),
            mtu: file.path.mtu.unwrap_or(1500),
            forward,
            reverse,
            edge,
            sysctls: file
                .hosts
                .into_iter()
                .map(|(name, host)| (name, host.sysctl))
                .collect(),
            runs: file.run,
        };
        scenario.check()?;
        Ok(scenario)
    }

    /// The names of the hosts and gateways, from the `a` side to the `b` side.
    #[must_use]
    pub fn host_names(&self) -> Vec<String> {
        let side = |letter: char| {
            (1..=self.hosts_per_side).map(move |i| match i {
                1 => letter.to_string(),
                _ => format!("{letter}{i}"),
            })
        };
        match self.topology {
            Topology::Pair => side('a').chain(side('b')).collect(),
            Topology::Gateways => {
                let gateways = ["ga".to_string(), "gb".to_string()];
                side('a').chain(gateways).chain(side('b')).collect()
            }
        }
    }

    /// Round-trip time without load, in nanoseconds.
    #[must_use]
    pub fn rtt_ns(&self) -> u64 {
        self.forward
            .link
            .delay_ns
            .saturating_add(self.reverse.link.delay_ns)
    }

    /// Returns the parameters of an edge's emulator: these, with the edge for the path, and another
    /// random seed.
    pub(crate) fn of_edge(&self, index: usize) -> Option<Self> {
        let [forward, reverse] = self.edge.clone()?;
        let number = u64::try_from(index).unwrap_or(u64::MAX).wrapping_add(1);
        Some(Self {
            // Neighbouring seeds are those of repetitions.
            seed: self.seed.wrapping_add(number << 32),
            forward,
            reverse,
            ..self.clone()
        })
    }

    fn check(&self) -> Result<()> {
        if !(576..=65_535).contains(&self.mtu) {
            bail!("mtu = {} is outside 576 to 65535", self.mtu);
        }
        match (self.topology, self.hosts_per_side) {
            (Topology::Pair, 1) | (Topology::Gateways, 1..=100) => {}
            (Topology::Pair, _) => bail!("hosts_per_side needs topology = \"gateways\""),
            (Topology::Gateways, n) => bail!("hosts_per_side = {n} is outside 1 to 100"),
        }
        if self.edge.is_some() && self.topology != Topology::Gateways {
            bail!("[edge] needs topology = \"gateways\"");
        }
        let edges = self.edge.iter().flatten();
        for direction in [&self.forward, &self.reverse].into_iter().chain(edges) {
            direction.link.check()?;
        }
        let names = self.host_names();
        let used = self
            .sysctls
            .keys()
            .chain(self.runs.iter().map(|run| &run.host));
        for host in used {
            if !names.contains(host) {
                bail!(
                    "there is no host `{host}`: this topology has {}",
                    names.join(", ")
                );
            }
        }
        Ok(())
    }
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    description: String,
    #[serde(default)]
    topology: Topology,
    hosts_per_side: Option<u8>,
    seed: Option<u64>,
    path: PathTable,
    edge: Option<PathTable>,
    #[serde(default)]
    hosts: BTreeMap<String, HostTable>,
    #[serde(default)]
    run: Vec<Run>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    #[serde(default)]
    sysctl: BTreeMap<String, String>,
}

/// `[path]`, `[edge]`: both directions, then differences of one of them. The keys of a direction
/// are written out here once more because flattening would lose the rejection of unknown keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathTable {
    rtt: Span,
    mtu: Option<u16>,
    rate: Option<Rate>,
    queue: Option<QueueSize>,
    ecn_mark: Option<QueueSize>,
    jitter: Option<Span>,
    loss: Option<LossTable>,
    policer: Option<PolicerTable>,
    reorder: Option<ReorderTable>,
    duplicate: Option<Probability>,
    corrupt: Option<Probability>,
    corrupt_undetected: Option<bool>,
    overhead: Option<Size>,
    #[serde(default)]
    forward: DirectionTable,
    #[serde(default)]
    reverse: DirectionTable,
}

/// `[path.forward]` and `[path.reverse]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectionTable {
    delay: Option<Span>,
    rate: Option<Rate>,
    queue: Option<QueueSize>,
    ecn_mark: Option<QueueSize>,
    jitter: Option<Span>,
    loss: Option<LossTable>,
    policer: Option<PolicerTable>,
    reorder: Option<ReorderTable>,
    duplicate: Option<Probability>,
    corrupt: Option<Probability>,
    corrupt_undetected: Option<bool>,
    overhead: Option<Size>,
}

/// A probability, or a table that asks for bursts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a probability, { share = …, burst = … } or { p = …, r = …, good = …, bad = … }"
)]
enum LossTable {
    Random(Probability),
    /// The share of packets lost, in bursts of this mean length.
    Burst(BurstTable),
    Chain(ChainTable),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BurstTable {
    share: Probability,
    burst: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainTable {
    p: Probability,
    r: Probability,
    good: Option<Probability>,
    bad: Option<Probability>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicerTable {
    rate: Rate,
    burst: Size,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReorderTable {
    probability: Probability,
    delay: Span,
}

impl PathTable {
    fn resolve(&self) -> Result<(Direction, Direction)> {
        let [forward, reverse] = [&self.forward, &self.reverse].map(|own| self.overridden_by(own));
        Ok((forward.resolve(self.rtt)?, reverse.resolve(self.rtt)?))
    }

    fn resolve_edge(&self) -> Result<[Direction; 2]> {
        if self.mtu.is_some() {
            bail!("an edge's mtu is the path's");
        }
        let (forward, reverse) = self.resolve()?;
        Ok([forward, reverse])
    }

    fn overridden_by(&self, own: &DirectionTable) -> DirectionTable {
        DirectionTable {
            delay: own.delay.or(Some(Span {
                ns: self.rtt.ns / 2,
            })),
            rate: own.rate.or(self.rate),
            queue: own.queue.or(self.queue),
            ecn_mark: own.ecn_mark.or(self.ecn_mark),
            jitter: own.jitter.or(self.jitter),
            loss: own.loss.or(self.loss),
            policer: own.policer.or(self.policer),
            reorder: own.reorder.or(self.reorder),
            duplicate: own.duplicate.or(self.duplicate),
            corrupt: own.corrupt.or(self.corrupt),
            corrupt_undetected: own.corrupt_undetected.or(self.corrupt_undetected),
            overhead: own.overhead.or(self.overhead),
        }
    }
}

impl DirectionTable {
    fn resolve(&self, rtt: Span) -> Result<Direction> {
        let link = LinkConfig {
            delay_ns: self.delay.unwrap_or_default().ns,
            jitter_ns: self.jitter.unwrap_or_default().ns,
            loss: self.loss.map_or(Ok(LossModel::None), LossTable::resolve)?,
            rate: self.shaper(rtt)?,
            ecn_mark_bytes: self.ecn_mark_bytes(rtt)?,
            policer: self.policer.map(|table| Policer {
                rate_bps: table.rate.bps,
                burst_bytes: table.burst.bytes,
            }),
            reorder: self.reorder.map(|table| Reorder {
                probability: table.probability.0,
                delay_ns: table.delay.ns,
            }),
            duplicate: self.duplicate.unwrap_or_default().0,
            corrupt: self.corrupt.unwrap_or_default().0,
        };
        Ok(Direction {
            link,
            overhead_bytes: u32::try_from(self.overhead.unwrap_or_default().bytes)
                .ok()
                .filter(|&bytes| bytes <= 1000)
                .context("overhead is above 1000 bytes per packet")?,
            corrupt_undetected: self.corrupt_undetected.unwrap_or(false),
        })
    }

    fn ecn_mark_bytes(&self, rtt: Span) -> Result<Option<u64>> {
        match (self.ecn_mark, self.rate) {
            (None, _) => Ok(None),
            (Some(_), None) => bail!("ecn_mark needs a rate that the queue waits for"),
            (Some(QueueSize::Bytes(bytes)), _) => Ok(Some(bytes)),
            (Some(QueueSize::Bdp(times)), Some(rate)) => {
                Ok(Some(scale(bdp_bytes(rate.bps, rtt)?, times)))
            }
            (Some(QueueSize::Packets(_)), _) => {
                bail!("ecn_mark counts bytes (\"200KiB\") or bandwidth-delay products (\"0.1bdp\")")
            }
        }
    }

    fn shaper(&self, rtt: Span) -> Result<Option<Shaper>> {
        let Some(Rate { bps: rate_bps }) = self.rate else {
            if self.queue.is_some() {
                bail!("a queue needs a rate that it waits for");
            }
            return Ok(None);
        };
        let bdp_bytes = bdp_bytes(rate_bps, rtt)?;
        let (queue_bytes, queue_packets) = match self.queue {
            None => (
                Some(bdp_bytes.clamp(DEFAULT_QUEUE_BYTES_MIN, DEFAULT_QUEUE_BYTES_MAX)),
                None,
            ),
            Some(QueueSize::Bytes(bytes)) => (Some(bytes), None),
            Some(QueueSize::Packets(packets)) => (None, Some(packets)),
            Some(QueueSize::Bdp(times)) => (Some(scale(bdp_bytes, times)), None),
        };
        Ok(Some(Shaper {
            rate_bps,
            queue_bytes,
            queue_packets,
        }))
    }
}

fn bdp_bytes(rate_bps: u64, rtt: Span) -> Result<u64> {
    let bytes = u128::from(rate_bps) * u128::from(rtt.ns) / 8_000_000_000;
    Ok(u64::try_from(bytes)?)
}

impl LossTable {
    fn resolve(self) -> Result<LossModel> {
        match self {
            Self::Random(Probability(p)) if p <= 0.0 => Ok(LossModel::None),
            Self::Random(Probability(p)) => Ok(LossModel::Random(p)),
            Self::Burst(BurstTable {
                share: Probability(share),
                burst,
            }) => {
                if !(burst >= 1.0 && share < 1.0) {
                    bail!("bursts of loss have at least 1 packet, and a share below 1");
                }
                let r = 1.0 / burst;
                let p = r * share / (1.0 - share);
                if p > 1.0 {
                    bail!(
                        "a share of {share} cannot be lost in bursts as short as {burst} packets"
                    );
                }
                Ok(LossModel::GilbertElliott {
                    p,
                    r,
                    loss_good: 0.0,
                    loss_bad: 1.0,
                })
            }
            Self::Chain(table) => Ok(LossModel::GilbertElliott {
                p: table.p.0,
                r: table.r.0,
                loss_good: table.good.map_or(0.0, |good| good.0),
                loss_bad: table.bad.map_or(1.0, |bad| bad.0),
            }),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a queue needs no more than 53 bits; the cast saturates"
)]
fn scale(bytes: u64, times: f64) -> u64 {
    (bytes as f64 * times).round() as u64
}

#[cfg(test)]
mod tests;
