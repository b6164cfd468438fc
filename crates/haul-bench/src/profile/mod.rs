//! Profiles of a path: throughput over streams and message sizes, its stability, the effect of
//! other traffic, and the limiting stage: the papers' distance, stability and cross-traffic
//! profiles (docs/bench.md).
//!
//! It is a list of steps that is made before the first one. A short run measures the RTT and the
//! time to connect, and so determines how many steps there is time for: the least informative are
//! left out, and listed as such.
//!
//! Map: [`Options`] the extent · [`mod@steps`] the list · [`schedule`] the time of each · [`run`]
//! the work · [`findings`] conclusions · [`page`] charts.

pub mod findings;
pub(crate) mod page;
pub mod schedule;
mod steps;

use std::time::{Duration, Instant};

use haul::fault::{Code, Fault};

use crate::path::document::Document;
use crate::path::plan::{Engine, PathLimit, PathPlan};
use crate::path::record::{Beside, Run};
use crate::path::{Config, measure};
use schedule::{ALL_RAMP, Schedule, omitted};
use steps::LEAD;
pub use steps::{Cross, Options, Section, Step, steps};

/// A first run, which measures the RTT and the time to connect, and does not count.
const PROBE: Duration = Duration::from_millis(600);

/// The least time in which a profile measures anything: a first run, and one that counts, on a path
/// without delay.
pub const LEAST: Duration = Duration::from_secs(3);

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
    let begun = Instant::now();
    let rtt = probe(config, &steps)?;
    let mut schedule = Schedule::new(options.budget, rtt, begun.elapsed().saturating_sub(PROBE));
    let (steps, without) = schedule.choose(steps, begun.elapsed());
    if let Some(why) = without {
        observer.left_out(&why);
        document.left_out.push(why);
    }
    let mut skipped = 0;
    for (index, step) in steps.iter().enumerate() {
        let spent = begun.elapsed();
        let Some(time) = schedule.time(spent, &steps[index..]) else {
            skipped += 1;
            continue;
        };
        let left = schedule.left(spent, &steps[index..]);
        observer.step(index + 1, steps.len(), left, step);
        let result = take(config, step, (time, rtt), document);
        schedule.took(step, time, begun.elapsed().saturating_sub(spent));
        match result {
            Ok(run) => {
                observer.run(&run);
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

/// The RTT, by the first step whose engine measures it.
fn probe(config: &Config<'_>, steps: &[Step]) -> Result<Option<Duration>, Fault> {
    let engines = steps.iter().map(|step| step.plan.engine);
    let Some(engine) = { engines }.find(|engine| matches!(engine, Engine::Tcp | Engine::Udt))
    else {
        return Ok(None);
    };
    let plan = PathPlan {
        limit: PathLimit::TimeMs(milliseconds(PROBE)),
        interval_ms: 100,
        ..PathPlan::new(engine)
    };
    let found = measure(config, &plan, &|_| {})?;
    let ms = found.run.path.rtt_min_ms;
    Ok(ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok()))
}

/// Takes a step.
fn take(
    config: &Config<'_>,
    step: &Step,
    (time, rtt): (Duration, Option<Duration>),
    document: &mut Document,
) -> Result<Run, Fault> {
    let plan = timed(&step.plan, time, rtt);
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
    if plan.engine.verbs().is_none() && rtt.is_some_and(|rtt| time < rtt * ALL_RAMP) {
        let text =
            format!("of fewer than {ALL_RAMP} round trips: a ramp, not what the path carries");
        run.warnings.push(text);
    }
    Ok(run)
}

/// The plan for so long, without its ramp.
fn timed(plan: &PathPlan, time: Duration, rtt: Option<Duration>) -> PathPlan {
    // Arrivals are counted by tenths of a second.
    let tenths = |time: Duration| milliseconds(time) / 100 * 100;
    let omit = if plan.engine.verbs().is_some() {
        0
    } else {
        tenths(omitted(time, rtt))
    };
    PathPlan {
        limit: PathLimit::TimeMs(tenths(time)),
        omit_ms: omit,
        interval_ms: 200,
        ..plan.clone()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Measures while other traffic goes.
fn with_traffic(
    config: &Config<'_>,
    plan: &PathPlan,
    other: &PathPlan,
    cross: &Cross,
    capacity: f64,
) -> Result<(crate::path::Found, Option<Beside>), Fault> {
    std::thread::scope(|scope| {
        let (host, port) = (config.host.clone(), config.port);
        let (connect_timeout, dead_after) = (config.connect_timeout, config.dead_after);
        let devices = config.devices;
        let control = config.control.clone();
        let traffic = move || {
            let config = Config {
                host,
                port,
                files: crate::path::Files::default(),
                devices,
                control,
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
    fn every_step_is_a_plan_that_makes_sense() {
        for full in [false, true] {
            let options = Options {
                full,
                ..steps::tests::options()
            };
            for rtt in [0, 1, 100, 300].map(Duration::from_millis) {
                for step in &steps(&options) {
                    let plan = timed(&step.plan, schedule::SHORTEST, Some(rtt));
                    assert_eq!(plan.validate(), Ok(()), "{}", step.words());
                }
            }
        }
    }
}
