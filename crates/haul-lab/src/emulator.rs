//! The path in real time: two TUN devices, and a thread for each direction that carries packets
//! from one to the other.
//!
//! Data flow: super-packets are read whole from one device into a `pool`; `haul-netem` decides the
//! fate of each wire packet in them; the survivors go into a `schedule` as runs of neighbours; when
//! a run's last wire packet is due, the run is written to the other device, with headers cut to
//! measure (`packet`). A super-packet of which nothing is lost leaves as it came.
//!
//! The directions share nothing, so there are no locks; each publishes its counters now and then.
//! After start nothing is allocated per packet.
//!
//! Map: `pool` the bytes in flight · `plan` fates into runs · `schedule` runs in the order of time
//! · `direction` the loop · `stats` counters and the histogram of lateness.

mod direction;
mod plan;
mod pool;
mod schedule;
mod stats;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use haul_io::tun::Tun;
use rustix::event::EventfdFlags;

use crate::scenario::{Direction, Scenario};

pub use stats::{DirectionStats, Lateness};

/// The most memory that one direction may hold in flight.
const POOL_BYTES_MAX: u64 = 2 << 30;

/// Wire packets may be joined into a run over at most this much time, so that a slow link does not
/// turn into bursts.
const RUN_NS_MAX: u64 = 500_000;
const RUN_NS_MIN: u64 = 50_000;

/// While packets are many, a direction wakes up this many times in the time that a run may span.
const REST_SHARE: u64 = 4;

/// The running path. It stops when this is dropped.
#[derive(Debug)]
pub struct Emulator {
    directions: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    stats: Arc<Mutex<DirectionStats>>,
    stop: Arc<rustix::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The counters of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathStats {
    /// From `a` to `b`.
    pub forward: DirectionStats,
    /// From `b` to `a`.
    pub reverse: DirectionStats,
}

impl Emulator {
    /// Starts carrying packets between `a` and `b`.
    ///
    /// # Errors
    /// If the path holds more than can be kept in memory, or a thread cannot be started.
    pub fn start(scenario: &Scenario, a: Tun, b: Tun) -> Result<Self> {
        let (a, b) = (Arc::new(a), Arc::new(b));
        let forward = start(
            scenario,
            &scenario.forward,
            scenario.seed,
            "wan-forward",
            &a,
            &b,
        )?;
        let reverse = start(
            scenario,
            &scenario.reverse,
            !scenario.seed,
            "wan-reverse",
            &b,
            &a,
        )?;
        Ok(Self {
            directions: vec![forward, reverse],
        })
    }

    /// The counters, at most a fraction of a second old.
    #[must_use]
    pub fn stats(&self) -> PathStats {
        let read =
            |running: &Running| *running.stats.lock().unwrap_or_else(PoisonError::into_inner);
        PathStats {
            forward: read(&self.directions[0]),
            reverse: read(&self.directions[1]),
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for running in &self.directions {
            // The counter of an event file overflows only after 2^64 writes.
            let _ = rustix::io::write(&running.stop, &1_u64.to_ne_bytes());
        }
        for running in &mut self.directions {
            let _ = running.thread.take().map(JoinHandle::join);
        }
    }
}

fn start(
    scenario: &Scenario,
    direction: &Direction,
    seed: u64,
    name: &str,
    from: &Arc<Tun>,
    to: &Arc<Tun>,
) -> Result<Running> {
    let pool_bytes = pool_bytes(scenario, direction)?;
    let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(io::Error::from)
        .context("cannot make an event file")?;
    let stop = Arc::new(stop);
    let stats = Arc::new(Mutex::new(DirectionStats::default()));
    let run_ns_max = run_ns_max(scenario.rtt_ns());
    let work = direction::Loop::new(direction::Setup {
        direction: direction.clone(),
        seed,
        run_ns_max,
        rest_ns: run_ns_max / REST_SHARE,
        pool_bytes,
        from: Arc::clone(from),
        to: Arc::clone(to),
        stop: Arc::clone(&stop),
        stats: Arc::clone(&stats),
    });
    let thread = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || work.run())
        .context("cannot start the emulator's thread")?;
    Ok(Running {
        stats,
        stop,
        thread: Some(thread),
    })
}

/// Short paths are timed more finely than long ones.
fn run_ns_max(rtt_ns: u64) -> u64 {
    (rtt_ns / 50).clamp(RUN_NS_MIN, RUN_NS_MAX)
}

/// Memory for all packets that can be in flight: rate × longest delay, and the queue.
fn pool_bytes(scenario: &Scenario, direction: &Direction) -> Result<usize> {
    const UNSHAPED_BPS: u64 = 40_000_000_000;
    const SLACK_NS: u64 = 20_000_000;
    const SLACK_BYTES: u64 = 32 << 20;
    const ENDLESS_QUEUE_BYTES: u64 = 256 << 20;

    let link = &direction.link;
    let rate_bps = link.rate.map_or(UNSHAPED_BPS, |shaper| shaper.rate_bps);
    let held_ns = link.delay_ns
        + link.jitter_ns
        + link.reorder.map_or(0, |reorder| reorder.delay_ns)
        + SLACK_NS;
    let in_flight = u128::from(rate_bps) * u128::from(held_ns) / 8_000_000_000;
    let packet_bytes = u64::from(scenario.mtu);
    let queue = link.rate.map_or(0, |shaper| {
        match (shaper.queue_bytes, shaper.queue_packets) {
            (Some(bytes), _) => bytes,
            (None, Some(packets)) => packets.saturating_mul(packet_bytes),
            (None, None) => ENDLESS_QUEUE_BYTES,
        }
    });
    // Twice that: buffers are larger than the packets in them, and a super-packet stays until its
    // last wire packet has left.
    let bytes = (in_flight + u128::from(queue)) * 2 + u128::from(SLACK_BYTES);
    if link.rate.is_none() {
        return Ok(usize::try_from(bytes.min(u128::from(POOL_BYTES_MAX)))?);
    }
    if bytes > u128::from(POOL_BYTES_MAX) {
        bail!(
            "this path holds {} MiB in flight; the emulator holds at most {}",
            bytes >> 20,
            POOL_BYTES_MAX >> 20
        );
    }
    Ok(usize::try_from(bytes)?)
}
