//! The monotonic clock, in nanoseconds, and the processor time that threads have used.

use std::io;
use std::mem::MaybeUninit;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The machine's monotonic clock (`CLOCK_MONOTONIC`, read through the vDSO: no system call).
///
/// All readings share one epoch, also across threads and processes of one machine.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Clock;

impl Clock {
    /// A handle to the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self
    }

    /// Nanoseconds since the clock's epoch (the machine's start, time asleep left out).
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        timespec_ns(clock_gettime(ClockId::Monotonic))
    }

    /// Nanoseconds since 1970 by the wall clock, which may be set back: for stamps that leave the
    /// machine, and to compute the age of a kernel stamp.
    #[must_use]
    pub fn realtime_ns(&self) -> u64 {
        timespec_ns(clock_gettime(ClockId::Realtime))
    }
}

/// Seconds since midnight by the wall clock, in the time zone of this process (`TZ`, or the
/// machine's).
///
/// # Errors
/// The error of `localtime_r(3)`, for a year that it cannot represent.
pub fn local_second_of_day() -> io::Result<u32> {
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    let mut local = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: `now` and `local` are valid for reads and writes of one value each, which is all that
    // the call reads and writes.
    let found = unsafe { libc::localtime_r(&raw const now, local.as_mut_ptr()) };
    if found.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let local = unsafe { local.assume_init() };
    let seconds = (local.tm_hour * 60 + local.tm_min) * 60 + local.tm_sec;
    Ok(u32::try_from(seconds).unwrap_or(0))
}

/// Processor time used, nanoseconds. The kernel counts in steps of its tick or better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in user code.
    pub user_ns: u64,
    /// Time in the kernel on behalf of the thread; network work that the kernel does in its own
    /// threads is not in it.
    pub system_ns: u64,
}

impl CpuTime {
    /// Returns the time used since `earlier`, a reading of the same kind.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }

    /// User and system time together.
    #[must_use]
    pub fn total_ns(self) -> u64 {
        self.user_ns + self.system_ns
    }
}

/// Processor time of the calling thread.
///
/// # Errors
/// The error of `getrusage(2)`; none is known on Linux.
pub fn thread_cpu() -> io::Result<CpuTime> {
    usage(libc::RUSAGE_THREAD)
}

/// Processor time of all threads of this process, those that have ended included.
///
/// # Errors
/// As for [`thread_cpu`].
pub fn process_cpu() -> io::Result<CpuTime> {
    usage(libc::RUSAGE_SELF)
}

/// How often the threads of this process gave a processor up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Switches {
    /// To wait for something.
    pub voluntary: u64,
    /// Because others were to run.
    pub involuntary: u64,
}

impl Switches {
    /// Those since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// Context switches of all threads of this process, those that have ended included.
///
/// # Errors
/// As for [`thread_cpu`].
pub fn process_switches() -> io::Result<Switches> {
    let usage = rusage(libc::RUSAGE_SELF)?;
    Ok(Switches {
        voluntary: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
        involuntary: u64::try_from(usage.ru_nivcsw).unwrap_or(0),
    })
}

fn usage(who: libc::c_int) -> io::Result<CpuTime> {
    let usage = rusage(who)?;
    Ok(CpuTime {
        user_ns: timeval_ns(usage.ru_utime),
        system_ns: timeval_ns(usage.ru_stime),
    })
}

fn rusage(who: libc::c_int) -> io::Result<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` is valid for writes of one `rusage`, which is all that the call writes.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the whole structure.
    Ok(unsafe { usage.assume_init() })
}

fn timeval_ns(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    seconds * 1_000_000_000 + micros * 1_000
}

/// Times before the epoch read as zero.
pub(crate) fn timespec_ns(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_goes_back() {
        let clock = Clock::new();
        let mut last = clock.now_ns();
        for _ in 0..10_000 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn work_shows_in_the_thread_and_in_the_process() {
        let thread = thread_cpu().unwrap();
        let process = process_cpu().unwrap();
        let clock = Clock::new();
        let end = clock.now_ns() + 30_000_000;
        while clock.now_ns() < end {}
        let thread = thread_cpu().unwrap().since(thread).total_ns();
        let process = process_cpu().unwrap().since(process).total_ns();
        assert!(thread > 0 && process > 0, "{thread} {process}");
        let before = process_switches().unwrap();
        std::thread::park_timeout(std::time::Duration::from_millis(1));
        assert!(process_switches().unwrap().since(before).voluntary > 0);
    }
}
