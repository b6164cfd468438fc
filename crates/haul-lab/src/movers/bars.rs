//! Requirements on `haul` relative to other tools, checked by medians.

use super::record::{Cell, Journal, Outcome, Run};
use super::sets::Set;
use super::tool::{ALL, ours};
use crate::compare::cell;

/// Overhead of a full IPv4 packet of our channel: IP, UDP, UDT and the seal's tag.
const HEADER_BYTES: u16 = 20 + 8 + 16 + 16;

/// Round trips that the start and the end of a transfer may take beside its data.
const STARTS: f64 = 5.0;

/// A requirement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bar {
    /// At least so many times as fast as this mover.
    Peer(&'static str, f64),
    /// At most so many times the time of this mover.
    AtMost(&'static str, f64),
    /// At least so many times as fast as every other mover.
    EveryPeer(f64),
    /// At least this share of the path's ceiling, if the rest is more than [`STARTS`].
    Ceiling(f64),
    /// At most so many times the data of the set, in bytes on the path.
    Wire(f64),
    /// At most so many times the data of the set, in blocks of the copy.
    Blocks(f64),
}

/// A requirement, and whether it is met where that is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judged {
    pub(super) text: String,
    pub(super) is_met: Option<bool>,
}

/// The requirements of a cell.
fn bars(cell: Cell) -> Vec<Bar> {
    let is_at = |rtts: &[f64], loss: f64| {
        let same = |one: f64, other: f64| (one - other).abs() < 1e-9;
        rtts.iter().any(|rtt| same(*rtt, cell.rtt_ms)) && same(cell.loss, loss)
    };
    match cell.set {
        Set::Tiny if is_at(&[0.0], 0.0) => {
            vec![Bar::Peer("rsync-ssh", 1.2), Bar::Peer("tar-nc", 0.9)]
        }
        Set::Tiny if is_at(&[100.0], 1e-4) => vec![Bar::EveryPeer(3.0)],
        Set::Climate | Set::Kernel | Set::Flat if is_at(&[50.0, 100.0], 1e-4) => {
            let mut bars = vec![Bar::EveryPeer(1.0)];
            if is_at(&[100.0], 1e-4) {
                bars.push(Bar::Peer("rsync-ssh", 3.0));
            }
            if cell.set == Set::Climate {
                bars.push(Bar::Ceiling(0.9));
            }
            bars
        }
        Set::Again if is_at(&[0.0, 100.0], 0.0) => vec![Bar::Peer("rsync-ssh", 1.0)],
        Set::Sparse if is_at(&[100.0], 1e-4) => {
            vec![
                Bar::Peer("rsync-ssh", 2.0),
                Bar::Wire(1.05),
                Bar::Blocks(1.05),
            ]
        }
        Set::Changed if is_at(&[100.0], 0.0) => vec![Bar::Wire(0.03)],
        Set::Single if is_at(&[50.0], 0.0) => vec![Bar::AtMost("scp", 1.5)],
        _ => Vec::new(),
    }
}

/// Whether anything is required in a cell.
pub(super) fn has_bars(cell: Cell) -> bool {
    !bars(cell).is_empty()
}

/// The requirements of a cell, judged.
pub(super) fn judge(journal: &Journal, cell: Cell) -> Vec<Judged> {
    let judge = |bar: Bar| Judged {
        text: bar.text(),
        is_met: bar.is_met(journal, cell),
    };
    bars(cell).into_iter().map(judge).collect()
}

impl Bar {
    fn text(self) -> String {
        match self {
            Self::Peer(peer, times) => format!("at least {times} x {peer}"),
            Self::AtMost(peer, times) => format!("at most {times} x the time of {peer}"),
            Self::EveryPeer(times) => format!("at least {times} x every peer"),
            Self::Ceiling(share) => format!(
                "at least {share} of the ceiling, if the rest of its time is over {STARTS} RTT"
            ),
            Self::Wire(times) => format!("at most {times} x the data on the path"),
            Self::Blocks(times) => format!("at most {times} x the data on disk"),
        }
    }

    /// `None` where a run is missing that it needs.
    fn is_met(self, journal: &Journal, cell: Cell) -> Option<bool> {
        let name = ours(cell.set);
        let ours = journal.seconds(cell, name)?;
        let made = journal.about.made(cell.set)?;
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let within = |times: f64, bytes: fn(&Run) -> u64| {
            let runs = journal.of(cell, name).filter(|run| run.seconds().is_some());
            let most = runs.map(bytes).max()?;
            Some(most as f64 <= times * made.data_bytes as f64)
        };
        match self {
            Self::Peer(peer, times) => is_ahead(journal, cell, peer, ours * times),
            Self::AtMost(peer, times) => is_ahead(journal, cell, peer, ours / times),
            Self::EveryPeer(times) => {
                let peers = ALL.iter().filter(|mover| !mover.is_ours);
                let judged: Vec<bool> = peers
                    .filter_map(|peer| is_ahead(journal, cell, peer.name, ours * times))
                    .collect();
                (!judged.is_empty()).then(|| judged.iter().all(|is_met| *is_met))
            }
            Self::Ceiling(share) => {
                let path = cell.path(journal.about.rate_bps).ok()?;
                let path = cell::Cell {
                    name: String::new(),
                    scenario: path,
                    engine: crate::Engine::Tun,
                    in_matrix: false,
                };
                #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
                let bits = made.data_bytes as f64 * 8.0;
                let most = bits / (share * path.ceiling_bps(HEADER_BYTES)?);
                let can_be_met = most * (1.0 - share) > STARTS * cell.rtt_ms / 1e3;
                can_be_met.then_some(ours <= most)
            }
            Self::Wire(times) => within(times, |run| run.wire_bytes),
            Self::Blocks(times) => within(times, |run| run.allocated_bytes),
        }
    }
}

/// Whether a peer takes at least this time.
fn is_ahead(journal: &Journal, cell: Cell, peer: &str, seconds: f64) -> Option<bool> {
    if let Some(median) = journal.seconds(cell, peer) {
        return Some(median >= seconds);
    }
    let is_cut = journal.of(cell, peer).any(|run| match run.outcome {
        Outcome::CutAfterS(after) => after >= seconds,
        _ => false,
    });
    is_cut.then_some(true)
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{CELL, journal, run};
    use super::super::sets::Made;
    use super::super::tool::OURS;
    use super::*;

    fn judged(runs: Vec<Run>) -> Vec<Option<bool>> {
        let judged = judge(&journal(runs), CELL);
        judged.into_iter().map(|judged| judged.is_met).collect()
    }

    #[test]
    fn a_bar_is_judged_by_medians_and_by_runs_that_were_ended() {
        let ours = || run(OURS, 0, Outcome::Seconds(1.0));
        let peer = |name, seconds| run(name, 0, Outcome::Seconds(seconds));
        assert_eq!(judged(vec![]), [None]);
        assert_eq!(judged(vec![ours()]), [None]);
        assert_eq!(judged(vec![ours(), peer("tar-nc", 3.0)]), [Some(true)]);
        let runs = vec![ours(), peer("tar-nc", 3.1), peer("scp-8", 2.9)];
        assert_eq!(judged(runs), [Some(false)]);
        let cut = run("scp-8", 0, Outcome::CutAfterS(10.0));
        assert_eq!(judged(vec![ours(), cut]), [Some(true)]);
        // Other movers of ours are no peers.
        assert_eq!(judged(vec![ours(), peer("haul-get", 0.1)]), [None]);
    }

    #[test]
    fn a_single_file_is_compared_with_scp() {
        let cell = Cell {
            set: Set::Single,
            rtt_ms: 50.0,
            loss: 0.0,
        };
        let run = |mover, seconds| Run {
            cell,
            ..run(mover, 0, Outcome::Seconds(seconds))
        };
        let is_met = |ours| {
            let mut journal = journal(vec![run("haul-ssh", ours), run("scp", 2.0)]);
            let made = journal.about.sets[0].clone();
            let set = Set::Single;
            journal.about.sets.push(Made { set, ..made });
            judge(&journal, cell)[0].is_met
        };
        assert_eq!(is_met(3.0), Some(true));
        assert_eq!(is_met(3.1), Some(false));
    }

    #[test]
    fn the_path_and_the_disk_carry_little_more_than_the_data() {
        let ours = |bytes| {
            let mut run = run(OURS, 0, Outcome::Seconds(1.0));
            run.wire_bytes = bytes;
            run
        };
        let wire = |bytes| Bar::Wire(1.05).is_met(&journal(vec![ours(bytes)]), CELL);
        assert_eq!(wire(4_300_000), Some(true));
        assert_eq!(wire(4_301_000), Some(false));
        let blocks = Bar::Blocks(1.05).is_met(&journal(vec![ours(0)]), CELL);
        assert_eq!(blocks, Some(true));
    }

    #[test]
    fn the_ceiling_leaves_headers_and_losses_out() {
        // 4,096,000 bytes at 0.9 of 960 Mb/s take 38 ms, of which 3.8 ms are the rest.
        let near = Cell {
            rtt_ms: 0.5,
            ..CELL
        };
        let judged = |cell, seconds| {
            let run = Run {
                cell,
                ..run(OURS, 0, Outcome::Seconds(seconds))
            };
            Bar::Ceiling(0.9).is_met(&journal(vec![run]), cell)
        };
        assert_eq!(judged(near, 0.037), Some(true));
        assert_eq!(judged(near, 0.039), Some(false));
        // Where starts alone take longer, it is not known.
        assert_eq!(judged(CELL, 0.039), None);
    }
}
