//! Careful resume: a flow that remembers a path starts faster where the path is the same, and does
//! no harm where it is another one. `HAUL_SIM_SEEDS` is how many random paths (21 when not told).
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "rates of a test are small, and the environment chooses the seeds"
)]

use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_cc::{Rate, Remembered, Time};
use haul_netem::{LossModel, Rng};
use haul_sim::{Flow, Path, World, scenario};

use crate::workers::on_all_processors;

/// Random paths of each kind in the short form.
const SEEDS: u64 = 3;
/// How long each is watched after its start, round trips.
const WATCHED_RTTS: u64 = 14;
/// Lost for the memory's sake at most, of what was sent meanwhile, unless chance alone makes a
/// greater difference, …
const LOST_MAX: f64 = 0.02;
/// … to this at most, …
const LOST_WITH_NEIGHBOUR_MAX: f64 = 0.04;
/// … and in the mean of the paths of a kind.
const LOST_MEAN_MAX: f64 = 0.005;
const OTHER_SEED: u64 = 1 << 32;
/// Round trips in which the flow takes more than its share for the memory's sake, at most, …
const GREEDY_RTTS_MAX: usize = 2;
/// … of so many: two until the rate is known, and those in which its neighbours answer.
const FOLLOWED_RTTS: usize = 6;
/// What a neighbour keeps of its share at least.
const KEPT_MIN: f64 = 0.8;

/// How the path differs from the remembered one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    None,
    Slower,
    Faster,
    Longer,
    Shorter,
    Lossy,
    /// Another flow fills it.
    Shared,
}

const CHANGES: [Change; 7] = [
    Change::None,
    Change::Slower,
    Change::Faster,
    Change::Longer,
    Change::Shorter,
    Change::Lossy,
    Change::Shared,
];

#[derive(Debug)]
struct Scene {
    path: Path,
    rate_bps: u64,
    rtt_ns: u64,
    remembered: Remembered,
    change: Change,
}

impl Scene {
    fn new(change: Change, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (rate_bps, rtt_ms) = (100_000_000 + rng.below(300_000_000), 20 + rng.below(100));
        let times = |rng: &mut Rng, least: f64, most: f64| least + (most - least) * rng.unit();
        let (mut old_bps, mut old_ms, mut loss) = (rate_bps as f64, rtt_ms as f64, 0.0);
        match change {
            Change::None | Change::Shared => {}
            Change::Slower => old_bps *= times(&mut rng, 1.5, 20.0),
            Change::Faster => old_bps /= times(&mut rng, 1.5, 20.0),
            Change::Longer => old_ms /= times(&mut rng, 1.2, 10.0),
            Change::Shorter => old_ms *= times(&mut rng, 1.2, 10.0),
            Change::Lossy => loss = times(&mut rng, 1e-4, 1e-2),
        }
        let mut path = scenario::plain(rate_bps, rtt_ms, 0.0);
        if loss > 0.0 {
            path.forward.loss = LossModel::Random(loss);
        }
        Self {
            path,
            rate_bps,
            rtt_ns: rtt_ms * MILLISECOND_NS,
            remembered: Remembered {
                rate: Rate::from_bps(old_bps as u64),
                rtt_ns: (old_ms * MILLISECOND_NS as f64) as u64,
            },
            change,
        }
    }
}

/// What became of a flow.
#[derive(Debug, Default)]
struct Run {
    /// Payload that arrived in each round trip since it was connected.
    arrived: Vec<u64>,
    /// Payload that left in each of them.
    left: Vec<u64>,
    /// Packets that all flows sent, and of them what the queue dropped, in the time watched.
    sent_packets: u64,
    dropped_packets: u64,
    /// Payload of the other flow in the time watched.
    other: u64,
}

fn run(scene: &Scene, seed: u64, remembered: Option<Remembered>) -> Run {
    let mut world = World::new(&scene.path, seed);
    let endless = [u64::MAX / 4, 0];
    let placed = |world: &World, flow| world.host(flow, 1).map_or(0, |host| host.rx.placed_bytes);
    let sent = |world: &World, flow| {
        let stats = world.host(flow, 0).and_then(|host| host.connection.stats());
        stats.map_or(0, |stats| {
            stats.sent.payload_bytes + stats.sent.resent_bytes
        })
    };
    let other = (scene.change == Change::Shared).then(|| {
        world.add(Flow {
            stream_bytes: endless,
            ..Flow::default()
        })
    });
    let starts = Time::from_ns(other.map_or(1, |_| 10 * scene.rtt_ns + SECOND_NS));
    world.run_until(starts);
    let before = *world.link(0).stats();
    let other_before = other.map_or(0, |flow| placed(&world, flow));
    let flow = world.add(Flow {
        starts,
        stream_bytes: endless,
        remembered,
        ..Flow::default()
    });
    // Induction and conclusion.
    let open = starts.after(2 * scene.rtt_ns);
    let mut run = Run::default();
    for rtt in 1..=WATCHED_RTTS {
        world.run_until(open.after(rtt * scene.rtt_ns));
        let before: u64 = run.arrived.iter().sum();
        run.arrived.push(placed(&world, flow) - before);
        let before: u64 = run.left.iter().sum();
        run.left.push(sent(&world, flow) - before);
    }
    let after = world.link(0).stats();
    run.sent_packets = after.offered - before.offered;
    run.dropped_packets = after.queue_dropped - before.queue_dropped;
    run.other = other.map_or(0, |flow| placed(&world, flow) - other_before);
    run
}

impl Run {
    fn dropped(&self) -> f64 {
        self.dropped_packets as f64 / self.sent_packets.max(1) as f64
    }
}

/// What remembering has made of one path.
#[derive(Debug)]
struct Verdict {
    change: Change,
    seed: u64,
    /// Lost more, of what was sent.
    lost: f64,
    /// The same of another start without memory: with a neighbour, chance decides much.
    lost_by_chance: f64,
    /// What a neighbour has, as a multiple of half of the path or of what it has without memory,
    /// if that is less. Without one: what the flow has, once it knows the rate, as a multiple of
    /// that without memory.
    kept: f64,
    /// How many times as much arrives in the first four round trips.
    gain: f64,
    /// Of the first [`FOLLOWED_RTTS`], those in which more leaves than the flow's share and a
    /// probe's quarter, and than without memory.
    greedy_rtts: usize,
}

fn judge(change: Change, seed: u64) -> Verdict {
    let scene = Scene::new(change, seed);
    let anew = run(&scene, seed, None);
    let resumed = run(&scene, seed, Some(scene.remembered));
    // Once the rate is validated, the flow has about what it would have without memory.
    let settled = |run: &Run| run.arrived[4..].iter().sum::<u64>() as f64;
    let kept = if change == Change::Shared {
        let fair = scene.rate_bps / 8 * (2 + WATCHED_RTTS) * scene.rtt_ns / SECOND_NS / 2;
        resumed.other as f64 / anew.other.clamp(1, fair) as f64
    } else {
        settled(&resumed) / settled(&anew).max(1.0)
    };
    let lost_by_chance = if change == Change::Shared {
        run(&scene, seed ^ OTHER_SEED, None).dropped() - anew.dropped()
    } else {
        0.0
    };
    let flows = if change == Change::Shared { 2 } else { 1 };
    let share = scene.rate_bps / 8 * scene.rtt_ns / SECOND_NS / flows;
    let rounds = resumed.left.iter().zip(&anew.left);
    let greedy = rounds.map(|(&left, &without)| left * 4 > without.max(share) * 5);
    Verdict {
        change,
        seed,
        lost: resumed.dropped() - anew.dropped(),
        lost_by_chance,
        kept,
        gain: first(&resumed) as f64 / first(&anew).max(1) as f64,
        greedy_rtts: greedy.take(FOLLOWED_RTTS).filter(|more| *more).count(),
    }
}

fn seeds() -> u64 {
    let told = std::env::var("HAUL_SIM_SEEDS").ok();
    let told: Option<u64> = told.and_then(|told| told.parse().ok());
    told.map_or(SEEDS, |seeds| seeds.div_ceil(CHANGES.len() as u64))
}

/// Judges all paths.
fn judge_all() -> Vec<Verdict> {
    let paths = (0..seeds()).flat_map(|seed| CHANGES.map(|change| (change, seed)));
    on_all_processors(paths, |(change, seed)| judge(change, seed))
}

#[test]
fn a_path_that_has_changed_loses_no_more_and_a_neighbour_keeps_its_share() {
    let verdicts = judge_all();
    for change in CHANGES {
        let of_change = || verdicts.iter().filter(|verdict| verdict.change == change);
        let most = |value: fn(&Verdict) -> f64| of_change().map(value).fold(f64::MIN, f64::max);
        let mean =
            |value: fn(&Verdict) -> f64| of_change().map(value).sum::<f64>() / seeds() as f64;
        let (lost, chance) = (most(|it| it.lost), most(|it| it.lost_by_chance));
        let lost_mean = mean(|it| it.lost);
        println!(
            "{change:?}: {:.2} % more lost in the mean, {:.2} % at worst (by chance {:.2} %); \
             share kept at least {:.2}; first four round trips {:.2} times as much",
            lost_mean * 100.0,
            lost * 100.0,
            chance * 100.0,
            -most(|it| -it.kept),
            mean(|it| it.gain),
        );
        assert!(
            lost_mean <= LOST_MEAN_MAX && lost <= chance.clamp(LOST_MAX, LOST_WITH_NEIGHBOUR_MAX),
            "{change:?}"
        );
    }
    for it in verdicts {
        let (kept, rtts) = (it.kept, it.greedy_rtts);
        let is_harmless = kept >= KEPT_MIN && rtts <= GREEDY_RTTS_MAX;
        assert!(
            is_harmless,
            "{:?}, seed {}: {kept:.2}, {rtts}",
            it.change, it.seed
        );
    }
}

/// Payload of the first four round trips.
fn first(run: &Run) -> u64 {
    run.arrived[..4].iter().sum()
}

#[test]
fn a_path_that_is_the_same_is_filled_a_round_trip_earlier() {
    let (rate_bps, rtt_ms) = (1_000_000_000, 100);
    let scene = Scene {
        path: scenario::plain(rate_bps, rtt_ms, 0.0),
        rate_bps,
        rtt_ns: rtt_ms * MILLISECOND_NS,
        remembered: Remembered {
            rate: Rate::from_bps(rate_bps),
            rtt_ns: rtt_ms * MILLISECOND_NS,
        },
        change: Change::None,
    };
    let anew = run(&scene, 1, None);
    let resumed = run(&scene, 1, Some(scene.remembered));
    println!(
        "anew {:?}\nresumed {:?}",
        &anew.arrived[..6],
        &resumed.arrived[..6]
    );
    let product = scene.rate_bps / 8 * scene.rtt_ns / SECOND_NS;
    assert!(first(&resumed) > first(&anew) + product / 3);
    assert!(resumed.dropped() <= anew.dropped() + 0.001);
}
