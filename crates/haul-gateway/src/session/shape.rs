//! Sizes and rates of a session, from the configuration.

use haul_xsp::bag::{ConsumerConfig, ProducerConfig};
use haul_xsp::wire::{AuthMethod, Hop, HopFlags, Params, ProtoOffer};
use haul_xsp::{AuthConfig, SECOND_NS, SessionConfig, SharedKey};

use super::side::SideMemory;
use crate::channel::{GET_BYTES_MAX, READS_MAX, burst, proto};
use crate::config::{ChannelKind, Config, Route, RouteMode, Via, Waits};
use crate::shared::Shared;

/// Smallest extent of an arena, bytes.
const EXTENT_BYTES_MIN: u64 = 4 << 10;
/// Most connections of a session.
const CONNS_MAX: usize = 16 << 10;
/// Bytes of a region used at first.
const REGION_BYTES_START: u64 = 1 << 20;

/// Bytes of a ring and of an arena that a session has from its opening on. It gets more when its
/// path waits for more.
const FIRST_BYTES: u64 = 8 << 20;

/// Bytes of the ring and of the arena of one side that the session may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) ring: u64,
    pub(crate) arena: u64,
}

impl Granted {
    pub(crate) const fn bytes(self) -> u64 {
        self.ring + self.arena
    }
}

/// Sizes and rates of a session.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) regions: u16,
    pub(crate) ring: u64,
    pub(crate) rate_bps: Option<u64>,
    pub(crate) burst_bytes: Option<u64>,
    /// Responses to reads may leave at line rate, each in one burst: for devices that do not pace.
    bursts: bool,
    /// The device of a data channel keeps the whole memory in place.
    pins: bool,
    pub(crate) verifies: bool,
    keepalive_ns: u64,
    waits: Waits,
}

impl Shape {
    /// Returns the shape of sessions that this gateway opens.
    pub(crate) fn of_route(config: &Config, route: &Route) -> Self {
        Self {
            regions: route.regions.max(3),
            ring: route.ring.0,
            rate_bps: route.rate.map(|rate| rate.0),
            burst_bytes: route.burst.map(|burst| burst.0),
            bursts: route.channels.contains(&ChannelKind::Verbs),
            pins: route.all_channels().any(|kind| kind == ChannelKind::Verbs),
            verifies: route.checksum,
            keepalive_ns: config.keepalive_ns(),
            waits: config.session,
        }
    }

    /// Returns the shape of inbound sessions.
    pub(crate) fn of_incoming(config: &Config) -> Self {
        Self {
            regions: 8,
            ring: config.ring.0,
            rate_bps: None,
            burst_bytes: None,
            bursts: false,
            pins: config.has_device(),
            verifies: true,
            keepalive_ns: config.keepalive_ns(),
            waits: config.session,
        }
    }

    /// Returns the memory of one side: with a ring at an end of the session, without one at a
    /// relay.
    pub(crate) fn memory(&self, is_end: bool) -> SideMemory {
        SideMemory {
            regions: self.regions,
            region_bytes: if is_end { self.region_bytes() } else { 0 },
            arena_bytes: self.arena_bytes(),
        }
    }

    /// Returns the most bytes that a session of this shape takes, at an end or at a relay.
    pub(crate) fn bytes(&self, is_end: bool) -> u64 {
        self.all(is_end).bytes() * sides(is_end)
    }

    /// Returns the bytes that it takes from its opening on.
    pub(crate) fn first_bytes(&self, is_end: bool) -> u64 {
        self.first(is_end).bytes() * sides(is_end)
    }

    /// Returns all that one side may use.
    pub(crate) fn all(&self, is_end: bool) -> Granted {
        let plan = self.memory(is_end);
        Granted {
            ring: u64::from(plan.regions) * plan.region_bytes,
            arena: plan.arena_bytes,
        }
    }

    /// Returns what one side may use from the beginning. Devices register the whole memory.
    pub(crate) fn first(&self, is_end: bool) -> Granted {
        let all = self.all(is_end);
        if self.pins {
            return all;
        }
        Granted {
            ring: all.ring.min(FIRST_BYTES),
            arena: all.arena.min(FIRST_BYTES),
        }
    }

    /// Returns the memory that one side with `granted` should have: the ring that its path needs,
    /// and twice the arena in use, in steps of [`FIRST_BYTES`].
    pub(crate) fn wanted(&self, is_end: bool, granted: Granted, used: Granted) -> Granted {
        let all = self.all(is_end);
        let arena = if used.arena > granted.arena / 2 {
            // In steps, because each growth looks at every connection to grant it more.
            let twice = used.arena.saturating_mul(2);
            twice.checked_next_multiple_of(FIRST_BYTES).unwrap_or(twice)
        } else {
            0
        };
        Granted {
            ring: used.ring.min(all.ring).max(granted.ring),
            arena: arena.min(all.arena).max(granted.arena),
        }
    }

    fn region_bytes(&self) -> u64 {
        (self.ring / u64::from(self.regions)).max(64 << 10)
    }

    fn arena_bytes(&self) -> u64 {
        self.ring.next_power_of_two().max(1 << 20)
    }

    /// Returns the configuration of the state machine.
    pub(crate) fn session(
        &self,
        is_end: bool,
        protocols: Vec<ProtoOffer>,
        auth: AuthConfig,
    ) -> SessionConfig {
        let arena = self.arena_bytes();
        let conns_max = usize::try_from(arena / EXTENT_BYTES_MIN / 4).unwrap_or(CONNS_MAX);
        SessionConfig {
            protocols,
            auth,
            is_end,
            keepalive_ns: self.keepalive_ns,
            lifetime_ns: u64::from(self.waits.outage) * SECOND_NS,
            hold_ns: u64::from(self.waits.hold) * SECOND_NS,
            conns_max: conns_max.min(CONNS_MAX),
            producer: ProducerConfig {
                regions: self.regions,
                region_bytes: self.region_bytes(),
                region_bytes_start: self.region_bytes().min(REGION_BYTES_START),
                ..ProducerConfig::default()
            },
            consumer: ConsumerConfig {
                arena_bytes: arena,
                extent_bytes_min: EXTENT_BYTES_MIN,
                extent_bytes_max: (arena / 16).clamp(EXTENT_BYTES_MIN, 4 << 20),
                verify: self.verifies,
                message_max: GET_BYTES_MAX,
                reads_max: READS_MAX,
                rate_bps: self.rate_bps,
                burst_bytes: burst(self.rate_bps, self.burst_bytes).filter(|_| self.bursts),
                ..ConsumerConfig::default()
            },
            ..SessionConfig::default()
        }
    }
}

const fn sides(is_end: bool) -> u64 {
    if is_end { 1 } else { 2 }
}

/// Returns the channel kinds that this gateway accepts, as offered.
pub(crate) fn protocols(shared: &Shared) -> Vec<ProtoOffer> {
    let own = shared
        .networks
        .iter()
        .filter(|network| network.listen.is_some());
    let kinds: Vec<ChannelKind> = own.map(|network| network.kind).collect();
    offers(&kinds, None, RouteMode::Push)
}

/// Returns kinds as offered, best first.
fn offers(kinds: &[ChannelKind], streams: Option<u16>, mode: RouteMode) -> Vec<ProtoOffer> {
    let preferences = (1..=u8::MAX).rev();
    let offer = |(kind, preference): (&ChannelKind, u8)| ProtoOffer {
        proto: proto(*kind),
        preference,
        params: Params {
            streams,
            push: Some((mode == RouteMode::Push).into()),
            ..Params::default()
        },
    };
    kinds.iter().zip(preferences).map(offer).collect()
}

/// Returns the hops of a way.
pub(crate) fn hops(route: &Route, way: &[Via]) -> Option<Vec<Hop>> {
    let last = way.len().checked_sub(1)?;
    let hop = |(index, via): (usize, &Via)| {
        let channels = via.channels().unwrap_or(&route.channels);
        Some(Hop {
            depth: u8::try_from(index).ok()?,
            flags: HopFlags {
                gateway: index < last,
                optional: via.is_optional() && index < last,
                last: index == last,
            },
            endpoint: via.gateway().endpoint().clone(),
            offers: offers(channels, Some(route.streams), route.mode),
        })
    };
    way.iter().enumerate().map(hop).collect()
}

/// Returns how this gateway authenticates, and what it requires of an inbound peer, or of the next
/// hop (`key`).
pub(crate) fn auth(
    shared: &Shared,
    key: Option<&str>,
    is_opener: bool,
    binding: [u8; 32],
    peer_below: Option<String>,
) -> AuthConfig {
    let config = shared.config();
    let all = shared.keys();
    let keys: Vec<SharedKey> = all
        .iter()
        .filter(|(name, _)| !is_opener || key.is_none_or(|key| key == name))
        .map(|(_, key)| key.clone())
        .collect();
    let mut methods = Vec::new();
    if peer_below.is_some() && key.is_none() {
        methods.push(AuthMethod::Tls);
    }
    if !keys.is_empty() {
        methods.push(AuthMethod::SharedKey);
    }
    if config.anonymous && key.is_none() {
        methods.push(AuthMethod::Anonymous);
    }
    AuthConfig {
        methods,
        keys,
        binding,
        peer_below,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn shape(more: &str) -> Shape {
        let text = format!("name = 'g'\n[[route]]\nto = ['*']\nvia = ['a:1']\n{more}\n");
        let config = Config::parse(&text).unwrap();
        Shape::of_route(&config, &config.routes[0])
    }

    #[test]
    fn a_session_begins_with_little_and_gets_twice_what_it_uses() {
        let plain = shape("");
        assert_eq!(plain.bytes(true), 128 * MIB);
        assert_eq!(
            (plain.first_bytes(true), plain.first_bytes(false)),
            (16 * MIB, 16 * MIB)
        );
        let first = plain.first(true);
        let used = |ring, arena| Granted { ring, arena };
        assert_eq!(plain.wanted(true, first, used(8 * MIB, 4 * MIB)), first);
        let more = plain.wanted(true, first, used(10 * MIB, 8 * MIB));
        assert_eq!(more, used(10 * MIB, 16 * MIB));
        let step = plain.wanted(true, first, used(8 * MIB, 5 * MIB));
        assert_eq!(step, used(8 * MIB, 16 * MIB));
        assert_eq!(plain.wanted(true, more, used(0, 0)), more);
        let most = plain.wanted(true, more, used(100 * MIB, 64 * MIB));
        assert_eq!(most, used(64 * MIB, 64 * MIB));
        assert_eq!(plain.wanted(false, first, used(0, 0)), first);
    }

    #[test]
    fn a_small_ring_and_a_device_take_all_at_once() {
        let small = shape("ring = '8MiB'");
        assert_eq!(small.first_bytes(true), small.bytes(true));
        let pinned = shape("channels = ['verbs', 'tcp']");
        assert_eq!(pinned.first_bytes(true), 128 * MIB);
    }
}
