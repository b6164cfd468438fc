//! Scheduling of a thread that must be on time.

use std::io;
use std::num::NonZeroU64;

use crate::tun::check;

/// How much precedence a thread was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// First in, first out, before every ordinary thread (`SCHED_FIFO`).
    RealTime,
    /// An ordinary thread with a large share (`nice -n -20`).
    Nice,
    /// The system allows neither.
    None,
}

/// Gives the calling thread the most precedence that the system allows.
#[must_use]
pub fn take_precedence() -> Precedence {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and `parameters` is initialised and outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if check(result).is_ok() {
        return Precedence::RealTime;
    }
    if rustix::process::nice(-20).is_ok() {
        Precedence::Nice
    } else {
        Precedence::None
    }
}

/// Lets the calling thread's timers expire when they are due: by default the kernel may add 50 µs to save power.
///
/// # Errors
/// Those of `prctl`.
pub fn wake_on_time() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(
        NonZeroU64::MIN,
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_ask_to_be_woken_on_time() {
        std::thread::spawn(|| {
            wake_on_time().unwrap();
            assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1);
        })
        .join()
        .unwrap();
    }
}
