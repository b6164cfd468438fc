//! Processor time that this process has used.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Processor time since the process began, all threads together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Spent in the program itself.
    pub user: Duration,
    /// Spent in the kernel on the program's behalf.
    pub system: Duration,
}

/// Reads `getrusage(RUSAGE_SELF)`.
///
/// # Errors
/// That of `getrusage(2)`.
pub fn cpu_time() -> io::Result<CpuTime> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for a write of one `rusage`.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers, zeroed above and filled in by the successful call.
    let usage = unsafe { usage.assume_init() };
    Ok(CpuTime {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
    })
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::cpu_time;

    #[test]
    fn processor_time_never_goes_back() {
        let before = cpu_time().unwrap();
        let work: u64 = (0..2_000_000_u64).map(|n| n ^ (n >> 3)).sum();
        let after = cpu_time().unwrap();
        assert!(work > 0 && after.user + after.system >= before.user + before.system);
    }
}
