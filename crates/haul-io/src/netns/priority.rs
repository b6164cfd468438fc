//! Scheduling of a thread that must be on time.

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

/// Raises the calling thread to the highest priority that the system allows.
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
