//! The list of measurements.

use std::time::Duration;

use haul_report::axis::{bytes, rate};

use crate::path::plan::{Engine, Medium, PathLimit, PathPlan};
use crate::plan::SIZE_MAX;

/// Other traffic begins so much earlier, and ends so much later.
pub(super) const LEAD: Duration = Duration::from_millis(500);

/// The extent of a profile.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its parts.
    pub sections: Vec<Section>,
    /// The reliable engines that are compared.
    pub engines: Vec<Engine>,
    /// All of it takes no longer.
    pub budget: Duration,
    /// Repetitions of the stability profile.
    pub repetitions: u32,
    /// The disks of both ends are measured too: the source's file is named.
    pub source_file: bool,
    /// The server has a sink file.
    pub sink_file: bool,
    /// Every number of streams and every message size.
    pub full: bool,
}

/// A part of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Throughput by parallel streams.
    Streams,
    /// Throughput by message size.
    Messages,
    /// Both together.
    Grid,
    /// The same again and again.
    Stability,
    /// Other traffic on the path.
    Cross,
    /// Memory and files at each end: which stage is the limit.
    Stages,
}

impl Section {
    /// All of them, in their order.
    pub const ALL: [Self; 6] = [
        Self::Streams,
        Self::Messages,
        Self::Grid,
        Self::Stability,
        Self::Cross,
        Self::Stages,
    ];

    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Messages => "messages",
            Self::Grid => "grid",
            Self::Stability => "stability",
            Self::Cross => "cross",
            Self::Stages => "stages",
        }
    }
}

/// One run of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The part that it belongs to.
    pub section: Section,
    /// The measurement; its duration is decided later.
    pub plan: PathPlan,
    /// The other traffic.
    pub cross: Option<Cross>,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// If a profile does not fit its time, steps of higher rank are left out first.
    pub rank: u8,
}

/// The order of importance: the last are left out first.
mod rank {
    pub(super) const FIRST: u8 = 0;
    pub(super) const SECOND: u8 = 1;
    pub(super) const THIRD: u8 = 2;
    /// Streams combined with message sizes: each alone shows most of the effect.
    pub(super) const GRID: u8 = 3;
    /// Only in a full profile.
    pub(super) const FULL: u8 = 4;
}

impl Step {
    fn new(section: Section, plan: PathPlan) -> Self {
        Self {
            section,
            plan,
            cross: None,
            repetition: 0,
            rank: rank::FIRST,
        }
    }

    fn ranked(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// The overhead in multiples of a run's, and an addition: for queue pairs to connect, warm up
    /// and flush, and for other traffic to begin and end.
    pub(super) fn overheads(&self) -> (u32, Duration) {
        let verbs = self.plan.engine.verbs().is_some();
        let lead = if self.cross.is_some() {
            2 * LEAD
        } else {
            Duration::ZERO
        };
        (1 + u32::from(verbs) + u32::from(self.cross.is_some()), lead)
    }

    /// In few words.
    #[must_use]
    pub fn words(&self) -> String {
        let plan = &self.plan;
        let mut words = format!("{}: {}", self.section.name(), plan.engine.name());
        match self.section {
            Section::Stability => words += &format!(", run {}", self.repetition + 1),
            Section::Cross if self.cross.is_none() => words += ", alone",
            Section::Cross => {}
            Section::Stages => {
                words += &format!(", {:?} to {:?}", plan.source, plan.sink).to_lowercase()
            }
            _ => {
                let streams = if plan.streams == 1 { "" } else { "s" };
                words += &format!(", {} stream{streams}", plan.streams);
                if plan.engine.has_messages() {
                    words += &format!(", {}", bytes(plan.message.into()));
                }
            }
        }
        if let Some(cross) = &self.cross {
            words += &format!(", beside {}", cross.short());
        }
        words
    }
}

/// Other traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cross {
    /// Datagrams at this share of the measured capacity, without congestion control.
    Udp(f64),
    /// TCP flows.
    Tcp(u16),
    /// A flow of RDMA over UDT.
    Rdma,
}

impl Cross {
    /// Returns its plan; `None` if the path's capacity, bits per second, is unknown.
    pub(super) fn plan(self, capacity: f64, time: Duration) -> Option<PathPlan> {
        let mut plan = match self {
            Self::Udp(_) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a rate"
                )]
                let rate = self.level(capacity) as u64;
                PathPlan {
                    rate_bps: Some(rate)
                        .filter(|rate| *rate > 0)
                        .map(|rate| rate.max(1_000)),
                    ..PathPlan::new(Engine::Udp)
                }
            }
            Self::Tcp(flows) => PathPlan {
                streams: flows,
                ..PathPlan::new(Engine::Tcp)
            },
            Self::Rdma => PathPlan::new(Engine::IwarpUdt),
        };
        plan.limit = PathLimit::TimeMs(u64::try_from(time.as_millis()).ok()?);
        plan.beside = true;
        (self.level(capacity) > 0.0).then_some(plan)
    }

    /// How much of it: bits per second, or flows.
    pub(super) fn level(self, capacity: f64) -> f64 {
        match self {
            Self::Udp(share) => share * capacity,
            Self::Tcp(flows) => flows.into(),
            Self::Rdma => 1.0,
        }
    }

    /// Describes it, with the path's capacity.
    pub(super) fn words(self, capacity: f64) -> String {
        match self {
            Self::Udp(_) => format!("UDP at {}", rate(self.level(capacity))),
            _ => self.short(),
        }
    }

    fn short(self) -> String {
        match self {
            Self::Udp(share) => format!("UDP at {:.0} %", share * 100.0),
            Self::Tcp(1) => "1 TCP flow".into(),
            Self::Tcp(flows) => format!("{flows} TCP flows"),
            Self::Rdma => "1 RDMA flow".into(),
        }
    }
}

/// Everything that is to be measured, in order.
#[must_use]
pub fn steps(options: &Options) -> Vec<Step> {
    let wanted = |section| options.sections.contains(&section);
    let mut steps = Vec::new();
    if wanted(Section::Streams) {
        steps.extend(by_streams(options));
    }
    if wanted(Section::Messages) {
        steps.extend(by_message(options));
    }
    if wanted(Section::Grid) {
        steps.extend(grid(options));
    }
    if wanted(Section::Stability) {
        // In turns, so that slow changes affect all alike.
        for repetition in 0..options.repetitions {
            let rank = match repetition {
                0..4 => rank::FIRST,
                4..6 => rank::SECOND,
                6..10 => rank::THIRD,
                _ => rank::FULL,
            };
            steps.extend(options.engines.iter().map(|engine| Step {
                repetition,
                ..Step::new(Section::Stability, PathPlan::new(*engine)).ranked(rank)
            }));
        }
    }
    if wanted(Section::Cross) {
        steps.extend(cross(options));
    }
    if wanted(Section::Stages) {
        steps.extend(stages(options));
    }
    steps
}

fn by_streams(options: &Options) -> Vec<Step> {
    let some = [1, 2, 3, 4, 6, 8, 12, 16, 20];
    let all: Vec<u16> = (1..=20).collect();
    let counts: &[u16] = if options.full { &all } else { &some };
    let engines = options.engines.iter();
    let step = |engine: &Engine, streams: u16| {
        let plan = PathPlan {
            streams,
            ..PathPlan::new(*engine)
        };
        Step::new(Section::Streams, plan).ranked(match streams {
            1 | 4 | 16 => rank::FIRST,
            2 | 8 => rank::SECOND,
            _ if some.contains(&streams) => rank::THIRD,
            _ => rank::FULL,
        })
    };
    engines
        .flat_map(|engine| counts.iter().map(move |streams| step(engine, *streams)))
        .collect()
}

/// The engines whose messages the wire sees, or the system calls: TCP and RDMA.
fn by_message(options: &Options) -> Vec<Step> {
    let every = if options.full { 1 } else { 3 };
    let mut sizes: Vec<u32> = (0..=SIZE_MAX.ilog2())
        .step_by(every)
        .map(|power| 1 << power)
        .collect();
    if sizes.last() != Some(&SIZE_MAX) {
        sizes.push(SIZE_MAX);
    }
    let step = |engine: Engine, message: u32| {
        let plan = PathPlan {
            message,
            // RDMA takes no more memory for long messages than for short ones.
            depth: ((64 << 20) / message).clamp(4, 128),
            memory: u64::from(message).max(512 << 10),
            ..PathPlan::new(engine)
        };
        Step::new(Section::Messages, plan).ranked(match message.ilog2() {
            6 | 12 | 18 => rank::FIRST,
            9 | 15 | 21 => rank::SECOND,
            0 | 3 | 23 => rank::THIRD,
            _ => rank::FULL,
        })
    };
    let engines = [Engine::Tcp, Engine::IwarpTcp, Engine::IwarpUdt];
    engines
        .iter()
        .flat_map(|engine| sizes.iter().map(move |message| step(*engine, *message)))
        .collect()
}

fn grid(options: &Options) -> Vec<Step> {
    let (streams, messages): (&[u16], &[u32]) = if options.full {
        (&[1, 2, 4, 8, 16], &[6, 10, 14, 17, 20, 23])
    } else {
        (&[1, 4, 16], &[8, 14, 17, 20])
    };
    let step = |streams: u16, power: u32| {
        let plan = PathPlan {
            streams,
            message: 1 << power,
            memory: 1 << power.max(19),
            ..PathPlan::new(Engine::Tcp)
        };
        Step::new(Section::Grid, plan).ranked(rank::GRID)
    };
    let rows = messages.iter();
    rows.flat_map(|power| streams.iter().map(move |streams| step(*streams, *power)))
        .collect()
}

fn cross(options: &Options) -> Vec<Step> {
    let levels: &[Cross] = if options.full {
        &[
            Cross::Udp(0.1),
            Cross::Udp(0.25),
            Cross::Udp(0.5),
            Cross::Udp(0.75),
            Cross::Udp(0.9),
            Cross::Tcp(1),
            Cross::Tcp(2),
            Cross::Tcp(4),
            Cross::Tcp(8),
            Cross::Tcp(16),
            Cross::Tcp(32),
            Cross::Rdma,
        ]
    } else {
        &[
            Cross::Udp(0.25),
            Cross::Udp(0.5),
            Cross::Udp(0.75),
            Cross::Tcp(1),
            Cross::Tcp(8),
            Cross::Tcp(32),
            Cross::Rdma,
        ]
    };
    let alone = |engine: Engine| Step::new(Section::Cross, PathPlan::new(engine));
    let step = |engine: Engine, level: Cross| Step {
        cross: Some(level),
        ..alone(engine).ranked(match level {
            Cross::Udp(0.5) | Cross::Tcp(1 | 8) => rank::FIRST,
            Cross::Udp(0.25 | 0.75) | Cross::Tcp(32) => rank::SECOND,
            Cross::Rdma => rank::THIRD,
            _ => rank::FULL,
        })
    };
    // The path's capacity is measured first.
    let engines = || options.engines.iter();
    let beside = engines().flat_map(|engine| levels.iter().map(move |level| step(*engine, *level)));
    engines()
        .map(|engine| alone(*engine))
        .chain(beside)
        .collect()
}

/// Without a disk there is nothing to compare.
fn stages(options: &Options) -> Vec<Step> {
    if !options.source_file && !options.sink_file {
        return Vec::new();
    }
    let step = |source: Medium, sink: Medium| {
        let plan = PathPlan {
            source,
            sink,
            message: 1 << 20,
            memory: 1 << 20,
            ..PathPlan::new(Engine::Tcp)
        };
        Step::new(Section::Stages, plan)
    };
    let mut steps = vec![step(Medium::Memory, Medium::Memory)];
    if options.source_file {
        steps.push(step(Medium::File, Medium::Memory));
    }
    if options.sink_file {
        steps.push(step(Medium::Memory, Medium::File));
    }
    if options.source_file && options.sink_file {
        steps.push(step(Medium::File, Medium::File));
    }
    steps
}

/// The goodput of the others, if all are equal.
pub(crate) fn equal_share(capacity: f64, flows: f64) -> f64 {
    capacity / (flows + 1.0)
}

/// The goodput beside datagrams without congestion control.
pub(crate) fn residual(capacity: f64, offered: f64) -> f64 {
    (capacity - offered).max(0.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The default extent of a profile.
    pub(in crate::profile) fn options() -> Options {
        Options {
            sections: Section::ALL.to_vec(),
            engines: vec![Engine::Tcp, Engine::Udt],
            budget: Duration::from_secs(600),
            repetitions: 10,
            source_file: false,
            sink_file: false,
            full: false,
        }
    }

    #[test]
    fn the_first_ranks_have_something_of_every_part() {
        let first = |step: &&Step| step.rank == rank::FIRST;
        let all = steps(&options());
        for section in [
            Section::Streams,
            Section::Messages,
            Section::Stability,
            Section::Cross,
        ] {
            let of = all.iter().filter(|step| step.section == section);
            assert!(of.filter(first).count() >= 6, "{section:?}");
        }
        assert!(all.iter().all(|step| step.rank < rank::FULL));
    }
}
