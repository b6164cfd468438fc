//! The whole picture of a path: throughput over streams and message sizes, its stability, what other traffic does to it, and
//! which stage is its limit. What papers call distance, stability and cross-traffic profiles (docs/bench.md).
//!
//! It is a list of steps that is made before the first one, so that it is known how long it takes; a step that the time is up
//! for is left out, and said to be.
//!
//! Map: [`Options`] what is asked for · [`mod@steps`] the list · [`run`] the work · [`findings`] what a reader is to take home ·
//! [`page`] the pictures.

pub mod findings;
pub(crate) mod page;
mod steps;

use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};

use crate::path::document::Document;
use crate::path::plan::{Engine, Plan};
use crate::path::record::{Beside, Run};
use crate::path::{Config, measure};
pub use steps::{Cross, Section, Step, steps};

/// A run takes so much longer than it sends: connecting, and what is on its way at the end.
const OVERHEAD: Duration = Duration::from_millis(400);
/// Other traffic begins so much earlier, and ends so much later.
const LEAD: Duration = Duration::from_millis(500);
/// So many round trips, and so long at least, say as much as more would.
const ROUND_TRIPS: f64 = 60.0;
const ENOUGH: Duration = Duration::from_secs(2);
/// The shortest run, and the longest.
const SHORTEST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(10);

/// What a profile is to have.
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

/// Follows a profile.
pub trait Observer {
    /// Step `number` of `count` begins; the rest takes about `left`.
    fn step(&self, number: usize, count: usize, left: Duration, step: &Step);
    /// It is done.
    fn run(&self, run: &Run);
    /// It is left out.
    fn left_out(&self, why: &str);
}

/// Measures everything that `options` ask for, into `document`.
///
/// # Errors
/// The very first run failed: the server cannot be reached. Later failures leave single steps out.
pub fn run(
    config: &Config<'_>,
    options: &Options,
    document: &mut Document,
    observer: &dyn Observer,
) -> Result<(), Fault> {
    let steps = steps(options);
    let mut schedule = Schedule::new(options.budget, steps.len());
    let begun = Instant::now();
    let mut skipped = 0;
    for (index, step) in steps.iter().enumerate() {
        let spent = begun.elapsed();
        let Some(time) = schedule.time(spent, steps.len() - index) else {
            skipped += 1;
            continue;
        };
        let left = schedule.left(spent, steps.len() - index);
        observer.step(index + 1, steps.len(), left, step);
        let result = take(config, step, time, document);
        schedule.took(time, begun.elapsed().saturating_sub(spent));
        match result {
            Ok(run) => {
                observer.run(&run);
                schedule.enough(run.path.rtt_min_ms);
                document.runs.push(run);
            }
            Err(fault) if document.runs.is_empty() => return Err(fault),
            Err(fault) => {
                let why = format!("{}: {fault}", step.words());
                observer.left_out(&why);
                document.left_out.push(why);
            }
        }
    }
    if skipped > 0 {
        let why = format!("there was no time for {skipped} of {} steps", steps.len());
        observer.left_out(&why);
        document.left_out.push(why);
    }
    document.findings = findings::of(document);
    Ok(())
}

/// How long runs send, so that all fit into the budget.
#[derive(Debug)]
struct Schedule {
    budget: Duration,
    /// No run need send longer.
    most: Duration,
    /// What a run takes beyond what it sends, of late.
    overhead: Duration,
    /// The part of the next step that there is time for; it is taken once it is whole.
    credit: f64,
    /// What the latest run was to send.
    latest: Duration,
}

impl Schedule {
    fn new(budget: Duration, count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let mut schedule = Self {
            budget,
            most: LONGEST,
            overhead: OVERHEAD,
            // The first step is always taken.
            credit: 1.0,
            latest: SHORTEST,
        };
        schedule.latest = schedule.share(budget / count);
        schedule
    }

    /// How long the next of `remaining` steps is to send; none where there is no time for it. Where not all fit even if they are
    /// short, some of every part are left out rather than the last parts.
    fn time(&mut self, spent: Duration, remaining: usize) -> Option<Duration> {
        let left = self.budget.saturating_sub(spent);
        let shortest = SHORTEST + self.overhead;
        if left < shortest && !spent.is_zero() {
            return None;
        }
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX).max(1);
        let fit = left.as_secs_f64() / (shortest.as_secs_f64() * f64::from(remaining));
        self.credit += fit.min(1.0);
        if self.credit < 1.0 {
            return None;
        }
        self.credit = (self.credit - 1.0).min(1.0);
        self.latest = self.share(left / remaining);
        Some(self.latest)
    }

    fn share(&self, each: Duration) -> Duration {
        let sends = each.mul_f64(0.97).saturating_sub(self.overhead);
        sends.min(self.most).max(SHORTEST)
    }

    /// What the rest takes, about.
    fn left(&self, spent: Duration, remaining: usize) -> Duration {
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        let all = (self.latest + self.overhead).saturating_mul(remaining);
        all.min(self.budget.saturating_sub(spent))
    }

    /// A step that was to send for `time` took so long.
    fn took(&mut self, time: Duration, all: Duration) {
        self.overhead = (self.overhead * 3 + all.saturating_sub(time)) / 4;
    }

    /// The round trip is known.
    fn enough(&mut self, rtt_ms: Option<f64>) {
        self.most = self.most.min(enough(rtt_ms));
    }
}

/// How long a run on a path of this round trip need send.
fn enough(rtt_ms: Option<f64>) -> Duration {
    let needed = rtt_ms.and_then(|ms| Duration::try_from_secs_f64(ms * ROUND_TRIPS / 1e3).ok());
    needed.map_or(LONGEST, |needed| needed.max(ENOUGH))
}

/// Takes a step.
fn take(
    config: &Config<'_>,
    step: &Step,
    time: Duration,
    document: &mut Document,
) -> Result<Run, Fault> {
    let plan = timed(&step.plan, time);
    let (found, beside) = match &step.cross {
        None => (measure(config, &plan, &|_| {})?, None),
        Some(cross) => {
            let capacity = findings::best_goodput(&document.runs);
            let other = cross
                .plan(capacity, time + 2 * LEAD)
                .ok_or_else(|| Fault::new(Code::Other, "how fast the path is was not measured"))?;
            with_traffic(config, &plan, &other, cross, capacity)?
        }
    };
    document.peer = found.peer.to_string();
    if found.server.is_some() {
        document.server = found.server;
    }
    let mut run = found.run;
    run.section = step.section.name().into();
    run.setting = step.plan.engine.name().into();
    run.repetition = step.repetition;
    run.beside = beside;
    Ok(run)
}

/// The plan for so long, without its first quarter.
fn timed(plan: &Plan, time: Duration) -> Plan {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let omit = if plan.engine.verbs().is_some() {
        0
    } else {
        ms(time / 4) / 100 * 100
    };
    Plan {
        limit: crate::path::plan::PathLimit::TimeMs(ms(time)),
        omit_ms: omit,
        interval_ms: 200,
        ..plan.clone()
    }
}

/// Measures while other traffic goes.
fn with_traffic(
    config: &Config<'_>,
    plan: &Plan,
    other: &Plan,
    cross: &Cross,
    capacity: f64,
) -> Result<(crate::path::Found, Option<Beside>), Fault> {
    std::thread::scope(|scope| {
        let (host, port) = (config.host.clone(), config.port);
        let (connect_timeout, dead_after) = (config.connect_timeout, config.dead_after);
        let devices = config.devices;
        let traffic = move || {
            let config = Config {
                host,
                port,
                files: crate::path::Files::default(),
                devices,
                connect_timeout,
                dead_after,
            };
            measure(&config, other, &|_| {})
        };
        let spawned = std::thread::Builder::new()
            .name("haul-traffic".into())
            .spawn_scoped(scope, traffic);
        let traffic = spawned
            .map_err(|error| Fault::new(Code::Other, format!("cannot start a thread: {error}")))?;
        std::thread::sleep(LEAD);
        let found = measure(config, plan, &|_| {});
        let theirs = traffic
            .join()
            .unwrap_or_else(|_| Err(Fault::new(Code::Other, "the other traffic failed")))?;
        let mut found = found?;
        // One process did both.
        for end in [&mut found.run.sender, &mut found.run.receiver] {
            end.cpu_s_per_gb = None;
        }
        found
            .run
            .warnings
            .push("processor time is that of the other traffic too".into());
        let beside = Beside {
            what: cross.words(capacity),
            level: cross.level(capacity),
            goodput_bps: Some(theirs.run.goodput_bps),
        };
        Ok((found, Some(beside)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_path_takes_less_time_than_a_long_one() {
        assert_eq!(enough(Some(0.1)), ENOUGH);
        assert_eq!(enough(Some(100.0)), Duration::from_secs(6));
        assert_eq!(enough(None), LONGEST);
    }

    #[test]
    fn where_not_all_fit_some_of_every_part_are_left_out() {
        let mut schedule = Schedule::new(Duration::from_secs(60), 100);
        let (mut spent, mut taken) = (Duration::ZERO, Vec::new());
        for index in 0..100 {
            if let Some(time) = schedule.time(spent, 100 - index) {
                spent += time + OVERHEAD;
                schedule.took(time, time + OVERHEAD);
                taken.push(index);
            }
        }
        assert!(spent <= Duration::from_secs(60), "{spent:?}");
        assert!((45..=50).contains(&taken.len()), "{taken:?}");
        assert!(
            taken.iter().filter(|index| **index >= 50).count() > 20,
            "{taken:?}"
        );
    }

    #[test]
    fn a_default_profile_fits_its_budget() {
        for full in [false, true] {
            let options = Options {
                sections: Section::ALL.to_vec(),
                engines: vec![Engine::Tcp, Engine::Udt],
                budget: Duration::from_secs(600),
                repetitions: 10,
                source_file: false,
                sink_file: false,
                full,
            };
            let steps = steps(&options);
            let mut schedule = Schedule::new(options.budget, steps.len());
            let mut spent = Duration::ZERO;
            for index in 0..steps.len() {
                let time = schedule.time(spent, steps.len() - index).unwrap();
                assert!(time >= SHORTEST, "{time:?}");
                // On a path of 100 ms.
                let all = time + Duration::from_millis(1500);
                schedule.took(time, all);
                spent += all;
            }
            assert!(spent <= options.budget, "{spent:?}");
            let time = Duration::from_secs(2);
            for step in &steps {
                assert_eq!(
                    timed(&step.plan, time).validate(),
                    Ok(()),
                    "{}",
                    step.words()
                );
            }
        }
    }
}
