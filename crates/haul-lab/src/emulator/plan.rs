//! Turns the fates of a super-packet's wire packets into runs.

use haul_netem::{Fate, Link};

use super::pool::Ticket;
use super::schedule::{Run, Schedule};
use crate::packet::Packet;

/// Decides the fate of a super-packet that arrives now. Returns how many runs were scheduled under
/// `ticket`.
///
/// Surviving neighbours are joined if they are close in time: no more than `run_ns_max` between the
/// first and the last, all marked or none, and none held back to be overtaken. A damaged wire
/// packet, and a second copy, go alone.
pub(super) fn plan(
    link: &mut Link,
    overhead_bytes: u32,
    run_ns_max: u64,
    now_ns: u64,
    packet: &Packet,
    ticket: Ticket,
    schedule: &mut Schedule,
) -> u32 {
    let mut joiner = Joiner {
        ticket,
        run_ns_max,
        open: None,
        opened_ns: 0,
        runs: 0,
        schedule,
    };
    for segment in 0..packet.segments() {
        let reordered = link.stats().reordered;
        let fate = link.admit(now_ns, packet.wire_bytes(segment) + overhead_bytes);
        let Fate::Delivered {
            at_ns,
            marked,
            corrupted,
            duplicate_at_ns,
        } = fate
        else {
            joiner.close();
            continue;
        };
        let alone = corrupted || link.stats().reordered != reordered;
        let fate = (marked, corrupted);
        joiner.add(segment, at_ns, fate, alone);
        if let Some(at_ns) = duplicate_at_ns {
            joiner.close();
            joiner.add(segment, at_ns, fate, true);
        }
    }
    joiner.close();
    joiner.runs
}

struct Joiner<'a> {
    ticket: Ticket,
    run_ns_max: u64,
    open: Option<Run>,
    /// When the first wire packet of the open run is due.
    opened_ns: u64,
    runs: u32,
    schedule: &'a mut Schedule,
}

impl Joiner<'_> {
    fn add(&mut self, segment: u16, at_ns: u64, (marked, damaged): (bool, bool), alone: bool) {
        let fits = !alone && at_ns.saturating_sub(self.opened_ns) <= self.run_ns_max;
        match &mut self.open {
            Some(run) if fits && at_ns >= run.at_ns && marked == run.marked => {
                (run.end, run.at_ns) = (segment + 1, at_ns);
                return;
            }
            _ => self.close(),
        }
        self.opened_ns = at_ns;
        self.open = Some(Run {
            at_ns,
            ticket: self.ticket,
            first: segment,
            end: segment + 1,
            marked,
            damaged,
        });
        if alone {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(run) = self.open.take() {
            self.schedule.push(run);
            self.runs += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_io::tun::{VNET_HEADER_LEN, VnetHeader};
    use haul_netem::{LinkConfig, LossModel, Reorder, Shaper};

    use super::*;

    const SEGMENTS: u16 = 40;

    /// A UDP super-packet over IPv4 with segments of 1500 bytes.
    fn packet() -> Packet {
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            gso_type: VnetHeader::GSO_UDP_L4,
            header_len: 28,
            gso_size: 1472,
            checksum_start: 20,
            checksum_offset: 6,
        };
        let mut bytes = vec![0; VNET_HEADER_LEN + 28 + usize::from(SEGMENTS) * 1472];
        bytes[..VNET_HEADER_LEN].copy_from_slice(&vnet.emit());
        (bytes[10], bytes[19]) = (0x45, 17);
        Packet::parse(&bytes).unwrap()
    }

    fn runs(config: LinkConfig, run_ns_max: u64) -> Vec<Run> {
        let mut schedule = Schedule::new();
        let mut link = Link::new(config, 1);
        let count = plan(
            &mut link,
            0,
            run_ns_max,
            0,
            &packet(),
            Ticket::TEST,
            &mut schedule,
        );
        let runs: Vec<Run> = std::iter::from_fn(|| schedule.pop_due(u64::MAX)).collect();
        assert_eq!(runs.len(), usize::try_from(count).unwrap());
        assert!(
            runs.iter().all(|run| run.ticket == Ticket::TEST
                && run.first < run.end
                && run.end <= SEGMENTS)
        );
        runs
    }

    fn covered(runs: &[Run]) -> Vec<u16> {
        let mut segments: Vec<u16> = runs.iter().flat_map(|run| run.first..run.end).collect();
        segments.sort_unstable();
        segments
    }

    #[test]
    fn a_packet_without_loss_stays_whole() {
        let config = LinkConfig {
            delay_ns: 1000,
            ..LinkConfig::default()
        };
        assert_eq!(
            runs(config, 50_000),
            [Run {
                at_ns: 1000,
                ticket: Ticket::TEST,
                first: 0,
                end: SEGMENTS,
                marked: false,
                damaged: false
            }]
        );
    }

    #[test]
    fn a_slow_link_spreads_a_packet_over_time() {
        let rate = Some(Shaper {
            rate_bps: 1_000_000_000,
            queue_bytes: None,
            queue_packets: None,
        });
        let runs = runs(
            LinkConfig {
                rate,
                ..LinkConfig::default()
            },
            100_000,
        );
        assert_eq!(covered(&runs), (0..SEGMENTS).collect::<Vec<_>>());
        for run in &runs {
            assert_eq!(
                run.at_ns,
                u64::from(run.end) * 12_000,
                "a run is due when its last packet is"
            );
            assert!(u64::from(run.end - run.first - 1) * 12_000 <= 100_000);
        }
        assert_eq!(runs.len(), 5);
    }

    #[test]
    fn marked_packets_are_not_joined_with_others() {
        let config = LinkConfig {
            rate: Some(Shaper {
                rate_bps: 1_000_000_000_000,
                queue_bytes: None,
                queue_packets: None,
            }),
            ecn_mark_bytes: Some(15_000),
            ..LinkConfig::default()
        };
        let runs = runs(config, 100_000);
        let marks: Vec<_> = runs
            .iter()
            .map(|run| (run.first, run.end, run.marked))
            .collect();
        assert_eq!(marks, [(0, 10, false), (10, SEGMENTS, true)]);
    }

    #[test]
    fn losses_leave_gaps() {
        let runs = runs(
            LinkConfig {
                loss: LossModel::Random(0.2),
                ..LinkConfig::default()
            },
            100_000,
        );
        let survivors = covered(&runs);
        assert!(
            survivors.len() < SEGMENTS.into() && runs.len() > 3,
            "{runs:?}"
        );
        assert!(
            runs.windows(2).all(|pair| pair[0].end < pair[1].first),
            "{runs:?}"
        );
    }

    #[test]
    fn a_packet_held_back_goes_alone_and_does_not_hold_its_neighbours() {
        let reorder = Some(Reorder {
            probability: 0.1,
            delay_ns: 10_000,
        });
        let runs = runs(
            LinkConfig {
                reorder,
                ..LinkConfig::default()
            },
            500_000,
        );
        assert_eq!(covered(&runs), (0..SEGMENTS).collect::<Vec<_>>());
        let (held, straight): (Vec<&Run>, Vec<&Run>) =
            runs.iter().partition(|run| run.at_ns == 10_000);
        assert!(
            !held.is_empty() && held.iter().all(|run| run.end - run.first == 1),
            "{runs:?}"
        );
        assert!(straight.iter().all(|run| run.at_ns == 0));
    }

    #[test]
    fn damage_and_second_copies_go_alone() {
        let runs = runs(
            LinkConfig {
                corrupt: 0.1,
                duplicate: 0.1,
                ..LinkConfig::default()
            },
            500_000,
        );
        let segments = covered(&runs);
        assert!(segments.len() > SEGMENTS.into());
        let damaged: Vec<&Run> = runs.iter().filter(|run| run.damaged).collect();
        assert!(!damaged.is_empty() && damaged.iter().all(|run| run.end - run.first == 1));
        let doubles = segments
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .count();
        assert_eq!(doubles + usize::from(SEGMENTS), segments.len());
    }
}
