//! A session after the handshake: one role at each end.

use std::sync::{Arc, Mutex};
use std::thread::Scope;
use std::time::Duration;

use haul_io::clock::{CpuTime, process_cpu};

use crate::cancel::Cancel;
use crate::channel::{Channel, ChannelError, ChannelStats, Opening};
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::lock;
use crate::report::Cpu;
use crate::wire::{Causes, Complete};

pub(crate) mod bench;
mod directories;
mod durable;
mod hash;
mod members;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod ranges;
pub(crate) mod reader;
pub(crate) mod receiver;
pub(crate) mod sender;
#[cfg(test)]
mod tests;

/// If a data connection fails, the reason may still be in flight on the control connection.
const GRACE: Duration = Duration::from_secs(2);

/// The channel of a session, from opening to closing.
struct Carrier {
    cancel: Cancel,
    state: Mutex<State>,
}

enum State {
    Opening,
    Open(Arc<dyn Channel>),
    Closed(ChannelStats),
}

/// How a channel ended.
#[derive(Debug)]
enum CarrierEnd {
    /// Opening failed.
    NotOpened(Fault),
    /// It ran and returned this.
    Ran(Result<(), ChannelError>),
}

impl Carrier {
    fn new(opening: &Opening) -> Self {
        Self {
            cancel: opening.cancel(),
            state: Mutex::new(State::Opening),
        }
    }

    /// Waits until the channel is open and runs `work` with it.
    fn run(
        &self,
        opening: Opening,
        work: impl FnOnce(&dyn Channel) -> Result<(), ChannelError>,
    ) -> CarrierEnd {
        let channel = match opening.finish() {
            Ok(channel) => channel,
            Err(fault) => return CarrierEnd::NotOpened(fault),
        };
        let closing = Arc::clone(&channel);
        self.cancel.set(move || closing.close());
        {
            let mut state = lock(&self.state);
            if matches!(*state, State::Closed(_)) {
                return CarrierEnd::Ran(Ok(()));
            }
            *state = State::Open(Arc::clone(&channel));
        }
        CarrierEnd::Ran(work(&*channel))
    }

    /// Ends the channel, now or as soon as it opens.
    fn close(&self) {
        let stats = self.stats();
        *lock(&self.state) = State::Closed(stats);
        self.cancel.cancel();
    }

    /// Returns how many of the `taken` bytes given to the channel have left.
    fn moved(&self, taken: u64) -> u64 {
        self.stats().moved(taken)
    }

    fn stats(&self) -> ChannelStats {
        match &*lock(&self.state) {
            State::Opening => ChannelStats::default(),
            State::Open(channel) => channel.stats(),
            State::Closed(stats) => *stats,
        }
    }
}

/// Processor time since the session began.
#[derive(Debug, Clone, Copy)]
struct Meter(CpuTime);

impl Meter {
    fn start() -> Self {
        Self(process_cpu().unwrap_or_default())
    }

    /// Returns the counters of an end that has moved `moved` bytes.
    fn spent(self, moved: u64, repaired: u64, stats: ChannelStats) -> Complete {
        let used = process_cpu().unwrap_or_default().since(self.0);
        Complete {
            cpu_user_us: used.user_ns / 1000,
            cpu_system_us: used.system_ns / 1000,
            moved,
            retransmitted: stats.retransmitted,
            rtt_us: stats.rtt_us,
            repaired,
            causes: stats.causes,
            lost: None,
        }
    }
}

/// Calls its function if a thread panics while it holds this.
struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

fn threads_ended() -> Fault {
    Fault::new(Code::Other, "the session's threads ended")
}

/// Starts one of a session's threads.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), Fault> {
    let builder = std::thread::Builder::new().name(name.into());
    let started = builder.spawn_scoped(scope, work);
    started.map(drop).map_err(|error| Fault::system(&error))
}

/// Adds the counters of a further attempt.
pub(crate) fn add(sum: &mut Complete, more: &Complete) {
    sum.cpu_user_us = sum.cpu_user_us.saturating_add(more.cpu_user_us);
    sum.cpu_system_us = sum.cpu_system_us.saturating_add(more.cpu_system_us);
    sum.moved = sum.moved.saturating_add(more.moved);
    sum.retransmitted = sum.retransmitted.saturating_add(more.retransmitted);
    sum.repaired = sum.repaired.saturating_add(more.repaired);
    sum.rtt_us = more.rtt_us.or(sum.rtt_us);
    sum.lost = more.lost.or(sum.lost);
    sum.causes = match (sum.causes, more.causes) {
        (Some(one), Some(other)) => Some(Causes {
            lost: one.lost.saturating_add(other.lost),
            reordered: one.reordered.saturating_add(other.reordered),
            refused: one.refused.saturating_add(other.refused),
            timer: one.timer.saturating_add(other.timer),
        }),
        (one, other) => one.or(other),
    };
}

/// Converts processor time for the summary.
pub(crate) fn cpu(spent: &Complete, moved: u64) -> Cpu {
    let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
    let (user, system) = (seconds(spent.cpu_user_us), seconds(spent.cpu_system_us));
    Cpu {
        cpu_user_s: user,
        cpu_system_s: system,
        cpu_s_per_gb: ratio((user + system) * 1e9, moved),
    }
}

/// Returns `part / whole`, unless the whole is 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share for people, not a count"
)]
pub(crate) fn ratio(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

/// Waits up to [`GRACE`] for the peer's own report of a failure that the data channel showed first.
fn account_of(link: &Link, otherwise: Fault) -> Fault {
    let deadline = std::time::Instant::now() + GRACE;
    loop {
        match link.incoming().recv_deadline(deadline) {
            Ok(Ok(_)) => {}
            Ok(Err(fault)) if fault.code != Code::PeerGone => return fault,
            Ok(Err(_)) | Err(_) => return otherwise,
        }
    }
}

/// Returns the failure behind an error of the channel.
fn channel_fault(link: &Link, error: &ChannelError) -> Fault {
    match error.fault() {
        fault if fault.code == Code::PeerGone => account_of(link, fault),
        fault => fault,
    }
}

/// Adds numbers that a peer may have chosen.
pub(crate) fn saturating_sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}
