//! The processor's own counters: cycles, instructions, cache misses (`perf_event_open(2)`).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `PERF_TYPE_HARDWARE` and its events (`linux/perf_event.h`).
const HARDWARE: u32 = 0;
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
const CACHE_REFERENCES: u64 = 2;
const CACHE_MISSES: u64 = 3;
/// Bits of `perf_event_attr`: threads made later count too; the kernel's work does not; nor the
/// hypervisor's.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`.
const READ_TIMES: u64 = 1 | 2;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 1 << 3;

/// The first published form of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`), which every kernel
/// takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_kind: u32,
    config1: u64,
}

/// Counters of the calling thread and of all threads that it makes from now on.
#[derive(Debug)]
pub struct Counters {
    cycles: Option<OwnedFd>,
    instructions: Option<OwnedFd>,
    cache_references: Option<OwnedFd>,
    cache_misses: Option<OwnedFd>,
    user_only: bool,
}

/// The counts; `None` if the processor has no such counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cycles in which it worked.
    pub cycles: Option<u64>,
    /// Instructions.
    pub instructions: Option<u64>,
    /// Accesses to the last level of cache.
    pub cache_references: Option<u64>,
    /// Those that went on to memory.
    pub cache_misses: Option<u64>,
    /// Work in the kernel is left out: the system lets this user count no more
    /// (`perf_event_paranoid`).
    pub user_only: bool,
}

impl Counters {
    /// Begins to count.
    ///
    /// # Errors
    /// `PermissionDenied` where the system forbids it, `NotFound` where the processor, or the
    /// virtual machine, has no counters, `Unsupported` where the kernel has no such call.
    pub fn start() -> io::Result<Self> {
        let (cycles, user_only) = match open(CYCLES, 0) {
            Ok(counter) => (counter, false),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (open(CYCLES, EXCLUDE_KERNEL)?, true)
            }
            Err(error) => return Err(error),
        };
        let flags = if user_only { EXCLUDE_KERNEL } else { 0 };
        Ok(Self {
            cycles: Some(cycles),
            instructions: open(INSTRUCTIONS, flags).ok(),
            cache_references: open(CACHE_REFERENCES, flags).ok(),
            cache_misses: open(CACHE_MISSES, flags).ok(),
            user_only,
        })
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn read(&self) -> Counts {
        let of =
            |counter: &Option<OwnedFd>| counter.as_ref().and_then(|counter| read(counter).ok());
        Counts {
            cycles: of(&self.cycles),
            instructions: of(&self.instructions),
            cache_references: of(&self.cache_references),
            cache_misses: of(&self.cache_misses),
            user_only: self.user_only,
        }
    }
}

fn open(event: u64, flags: u64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: HARDWARE,
        size: u32::try_from(size_of::<Attributes>()).map_err(io::Error::other)?,
        config: event,
        read_format: READ_TIMES,
        flags: flags | INHERIT | EXCLUDE_HV,
        ..Attributes::default()
    };
    let (this_thread, any_processor, no_group) = (0, -1, -1);
    // SAFETY: `attributes` is initialised, states its own size, and outlives the call, which only
    // reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            this_thread,
            any_processor,
            no_group,
            CLOEXEC,
        )
    };
    let Ok(fd) = i32::try_from(fd) else {
        return Err(io::ErrorKind::Other.into());
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The count, scaled up where the counter had to be shared with others.
fn read(counter: &OwnedFd) -> io::Result<u64> {
    let mut raw = [0; 24];
    if rustix::io::read(counter, &mut raw)? != raw.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&raw[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let (count, enabled, running) = (word(0), word(8), word(16));
    if running == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let scaled = u128::from(count) * u128::from(enabled) / u128::from(running);
    u64::try_from(scaled).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_the_size_of_the_first_version() {
        assert_eq!(size_of::<Attributes>(), 64);
    }

    #[test]
    fn work_is_counted_where_the_machine_can() {
        match Counters::start() {
            Ok(counters) => {
                let before = counters.read();
                let thread =
                    std::thread::spawn(|| (0..1_000_000_u64).fold(0, |a, b| a ^ b.rotate_left(3)));
                assert_ne!(thread.join().unwrap(), 1);
                let after = counters.read();
                assert!(after.cycles >= before.cycles, "{before:?} {after:?}");
            }
            Err(error) => println!("SKIPPED: no counters: {error}"),
        }
    }
}
