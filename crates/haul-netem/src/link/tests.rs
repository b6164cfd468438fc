use proptest::prelude::*;

use super::*;
use crate::config::{LossModel, Policer, Reorder};

const MS: u64 = 1_000_000;
const GBIT: u64 = 1_000_000_000;

fn shaper(rate_bps: u64, queue_bytes: Option<u64>) -> Option<Shaper> {
    Some(Shaper {
        rate_bps,
        queue_bytes,
        queue_packets: None,
    })
}

fn everything() -> LinkConfig {
    LinkConfig {
        delay_ns: 50 * MS,
        jitter_ns: 2 * MS,
        loss: LossModel::Random(0.01),
        rate: shaper(GBIT, Some(1 << 20)),
        ecn_mark_bytes: Some(1 << 19),
        policer: Some(Policer {
            rate_bps: GBIT,
            burst_bytes: 1 << 20,
        }),
        reorder: Some(Reorder {
            probability: 0.05,
            delay_ns: MS,
        }),
        duplicate: 0.01,
        corrupt: 0.01,
    }
}

fn arrival(fate: Fate) -> Option<u64> {
    match fate {
        Fate::Delivered { at_ns, .. } => Some(at_ns),
        Fate::Dropped(_) => None,
    }
}

/// The fates of packets offered this far apart.
fn fates(config: LinkConfig, seed: u64, packets: u64, spacing_ns: u64) -> (Vec<Fate>, Link) {
    let mut link = Link::new(config, seed);
    let fates = (0..packets)
        .map(|i| link.admit(i * spacing_ns, 1500))
        .collect();
    (fates, link)
}

#[test]
fn a_perfect_wire_delivers_at_once() {
    let (fates, _) = fates(LinkConfig::default(), 1, 3, 7);
    let expected = [0, 7, 14].map(|at_ns| Fate::Delivered {
        at_ns,
        marked: false,
        corrupted: false,
        duplicate_at_ns: None,
    });
    assert_eq!(fates, expected);
}

#[test]
fn delay_follows_the_time_on_the_wire() {
    let config = LinkConfig {
        delay_ns: 50 * MS,
        rate: shaper(GBIT, None),
        ..LinkConfig::default()
    };
    let (fates, _) = fates(config, 1, 3, 0);
    let arrivals: Vec<_> = fates.into_iter().filter_map(arrival).collect();
    assert_eq!(
        arrivals,
        [50 * MS + 12_000, 50 * MS + 24_000, 50 * MS + 36_000]
    );
}

#[test]
fn the_same_seed_gives_the_same_fates_and_another_does_not() {
    let (first, _) = fates(everything(), 42, 20_000, 11_000);
    let (again, _) = fates(everything(), 42, 20_000, 11_000);
    let (other, _) = fates(everything(), 43, 20_000, 11_000);
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn one_impairment_does_not_change_whom_another_hits() {
    let lossy = LinkConfig {
        loss: LossModel::Random(0.02),
        ..LinkConfig::default()
    };
    let more = LinkConfig {
        duplicate: 0.5,
        corrupt: 0.5,
        jitter_ns: MS,
        ..lossy.clone()
    };
    let lost = |config| -> Vec<bool> {
        fates(config, 9, 10_000, 1000)
            .0
            .into_iter()
            .map(|fate| arrival(fate).is_none())
            .collect()
    };
    assert_eq!(lost(lossy), lost(more));
}

#[test]
fn a_lost_packet_has_used_its_share_of_the_rate() {
    let config = LinkConfig {
        loss: LossModel::Random(0.5),
        rate: shaper(GBIT, None),
        ..LinkConfig::default()
    };
    let (fates, link) = fates(config, 3, 10_000, 0);
    let last = fates.into_iter().filter_map(arrival).max().unwrap();
    assert!(last > 9_990 * 12_000, "{last}");
    assert!((4_800..5_200).contains(&link.stats().lost));
}

#[test]
fn a_policed_or_tail_dropped_packet_uses_no_rate() {
    let policer = Some(Policer {
        rate_bps: GBIT / 2,
        burst_bytes: 15_000,
    });
    let config = LinkConfig {
        policer,
        rate: shaper(GBIT, None),
        ..LinkConfig::default()
    };
    let (fates, link) = fates(config, 3, 100, 0);
    assert_eq!(
        fates.into_iter().filter_map(arrival).max(),
        Some(10 * 12_000)
    );
    assert_eq!(link.stats().policed, 90);
}

#[test]
fn an_overloaded_link_delivers_its_rate_and_drops_the_rest() {
    let config = LinkConfig {
        rate: shaper(GBIT, Some(150_000)),
        ..LinkConfig::default()
    };
    let (fates, mut link) = fates(config, 3, 200_000, 6_000);
    let arrivals: Vec<u64> = fates.into_iter().filter_map(arrival).collect();
    assert!(
        (100_000..=100_101).contains(&arrivals.len()),
        "{}",
        arrivals.len()
    );
    assert_eq!(arrivals.last(), Some(&(arrivals.len() as u64 * 12_000)));
    assert_eq!(
        link.stats().backlog_max,
        Backlog {
            bytes: 150_000,
            packets: 100
        }
    );
    assert_eq!(link.backlog(u64::MAX), Backlog::default());
}

#[test]
fn chosen_packets_are_overtaken() {
    let reorder = Some(Reorder {
        probability: 0.05,
        delay_ns: MS,
    });
    let config = LinkConfig {
        delay_ns: 10 * MS,
        reorder,
        ..LinkConfig::default()
    };
    let (fates, link) = fates(config, 4, 100_000, 12_000);
    let arrivals: Vec<u64> = fates.into_iter().filter_map(arrival).collect();
    let held = arrivals
        .iter()
        .zip(0..)
        .filter(|&(&at, i)| at == i * 12_000 + 11 * MS)
        .count();
    let straight = arrivals
        .iter()
        .zip(0..)
        .filter(|&(&at, i)| at == i * 12_000 + 10 * MS)
        .count();
    assert_eq!(held + straight, 100_000);
    assert!((4_700..5_300).contains(&held), "{held}");
    assert_eq!(link.stats().reordered, held as u64);
}

#[test]
fn duplicates_and_damage_come_at_their_rates() {
    let config = LinkConfig {
        duplicate: 0.1,
        corrupt: 0.2,
        ..LinkConfig::default()
    };
    let (fates, link) = fates(config, 4, 100_000, 1);
    let twice = fates.iter().filter(|f| {
        matches!(
            f,
            Fate::Delivered {
                duplicate_at_ns: Some(_),
                ..
            }
        )
    });
    let twice = twice.count() as u64;
    let damaged = fates.iter().filter(|f| {
        matches!(
            f,
            Fate::Delivered {
                corrupted: true,
                ..
            }
        )
    });
    let damaged = damaged.count() as u64;
    assert!((9_700..10_300).contains(&twice), "{twice}");
    assert!((19_600..20_400).contains(&damaged), "{damaged}");
    assert_eq!(
        (link.stats().duplicated, link.stats().corrupted),
        (twice, damaged)
    );
}

#[test]
fn a_link_can_change_under_way_without_reordering() {
    let config = LinkConfig {
        delay_ns: 50 * MS,
        rate: shaper(GBIT, None),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config.clone(), 1);
    let before = arrival(link.admit(0, 1500)).unwrap();
    link.reconfigure(LinkConfig {
        loss: LossModel::Random(1.0),
        ..config.clone()
    });
    assert_eq!(link.admit(1, 1500), Fate::Dropped(DropCause::Loss));
    link.reconfigure(LinkConfig {
        delay_ns: MS,
        ..config
    });
    let after = arrival(link.admit(2, 1500)).unwrap();
    assert_eq!(
        after, before,
        "a shorter route does not let packets overtake"
    );
    assert_eq!(arrival(link.admit(100 * MS, 1500)), Some(101 * MS + 12_000));
}

#[test]
fn time_that_runs_backwards_counts_as_standing_still() {
    let mut link = Link::new(LinkConfig::default(), 1);
    assert_eq!(arrival(link.admit(100, 1500)), Some(100));
    assert_eq!(arrival(link.admit(50, 1500)), Some(100));
}

prop_compose! {
    fn any_config()(
        delay_ns in 0..200 * MS,
        jitter_ns in prop_oneof![Just(0), 1..20 * MS],
        loss in prop_oneof![
            Just(LossModel::None),
            (0.0..0.3).prop_map(LossModel::Random),
            (0.0..0.1, 0.0..1.0, 0.0..0.1, 0.0..1.0).prop_map(|(p, r, loss_good, loss_bad)| {
                LossModel::GilbertElliott { p, r, loss_good, loss_bad }
            }),
        ],
        rate in prop::option::of((1..100 * GBIT, prop::option::of(0..1_000_000_u64), prop::option::of(0..1000_u64))),
        policer in prop::option::of((1..100 * GBIT, 0..1_000_000_u64)),
        reorder in prop::option::of((0.0..0.5, 0..10 * MS)),
        duplicate in 0.0..0.5,
        corrupt in 0.0..0.5,
    ) -> LinkConfig {
        LinkConfig {
            delay_ns, jitter_ns, loss, duplicate, corrupt,
            rate: rate.map(|(rate_bps, queue_bytes, queue_packets)| Shaper { rate_bps, queue_bytes, queue_packets }),
            policer: policer.map(|(rate_bps, burst_bytes)| Policer { rate_bps, burst_bytes }),
            reorder: reorder.map(|(probability, delay_ns)| Reorder { probability, delay_ns }),
            ecn_mark_bytes: None,
        }
    }
}

#[test]
fn packets_above_the_threshold_are_marked_and_none_below() {
    let config = LinkConfig {
        rate: Some(Shaper {
            rate_bps: 8_000_000_000,
            queue_bytes: Some(10_000),
            queue_packets: None,
        }),
        ecn_mark_bytes: Some(5_000),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1);
    let marks: Vec<bool> = (0..12)
        .filter_map(|_| match link.admit(0, 1_000) {
            Fate::Delivered { marked, .. } => Some(marked),
            Fate::Dropped(_) => None,
        })
        .collect();
    assert_eq!(marks, [[false; 5], [true; 5]].concat());
    assert_eq!((link.stats().marked, link.stats().queue_dropped), (5, 2));
    // Once half of it has left, there is room below the threshold again.
    assert!(matches!(
        link.admit(6_000, 1_000),
        Fate::Delivered { marked: false, .. }
    ));
}

proptest! {
    #[test]
    fn without_reordering_packets_arrive_in_order_and_never_early(
        mut config in any_config(),
        packets in prop::collection::vec((0..5 * MS, 1..70_000_u32), 1..300),
        seed: u64,
    ) {
        config.reorder = None;
        let least = config.delay_ns.saturating_sub(config.jitter_ns);
        let mut link = Link::new(config, seed);
        let (mut now, mut last) = (0, 0);
        for (gap, bytes) in packets {
            now += gap;
            if let Fate::Delivered { at_ns, duplicate_at_ns, .. } = link.admit(now, bytes) {
                prop_assert!(at_ns >= last && at_ns >= now + least);
                prop_assert!(duplicate_at_ns.is_none_or(|second| second >= at_ns));
                last = at_ns;
            }
        }
    }

    #[test]
    fn every_packet_is_counted_once_and_the_queue_keeps_its_bounds(
        config in any_config(),
        packets in prop::collection::vec((0..MS, 1..70_000_u32), 1..300),
        seed: u64,
    ) {
        let limits = config.rate;
        let mut link = Link::new(config, seed);
        let (mut now, mut largest) = (0, 0);
        for (gap, bytes) in &packets {
            now += gap;
            largest = largest.max(u64::from(*bytes));
            link.admit(now, *bytes);
            let backlog = link.backlog(now);
            if let Some(shaper) = limits {
                prop_assert!(shaper.queue_bytes.is_none_or(|max| backlog.bytes <= max.max(largest)));
                prop_assert!(shaper.queue_packets.is_none_or(|max| backlog.packets <= max.max(1)));
            } else {
                prop_assert_eq!(backlog, Backlog::default());
            }
        }
        let stats = link.stats();
        prop_assert_eq!(stats.offered, packets.len() as u64);
        prop_assert_eq!(stats.offered, stats.delivered + stats.lost + stats.queue_dropped + stats.policed);
        prop_assert!(stats.delivered_bytes <= stats.offered_bytes);
    }
}
