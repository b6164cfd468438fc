//! The application's side of the supervisor: its descriptors and its memory.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use libc::sockaddr_storage;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::sys;

/// A thread of an application that waits for a decision.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) id: u64,
    /// The thread, and the process.
    thread: Pid,
    pub(super) process: Pid,
}

/// Why the supervisor cannot look into a process: what failed, and how.
pub(super) type Blind = (&'static str, io::Error);

impl Asker {
    pub(super) fn of(notification: &libc::seccomp_notif) -> Option<Self> {
        let thread = Pid::from_raw(notification.pid.try_into().ok()?)?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", notification.pid)).ok()?;
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        Some(Self {
            id: notification.id,
            thread,
            process: Pid::from_raw(process.trim().parse().ok()?)?,
        })
    }
}

/// A duplicate of an application's descriptor; `None` if there is none of that number.
pub(super) fn duplicate(asker: Asker, fd: u64) -> Result<Option<OwnedFd>, Blind> {
    // The kernel takes the lower half of the register.
    let Ok(fd) = RawFd::try_from(fd & 0xffff_ffff) else {
        return Ok(None);
    };
    let process = rustix::process::pidfd_open(asker.process, PidfdFlags::empty());
    let process = process.map_err(|error| ("pidfd_open(2)", error.into()))?;
    match rustix::process::pidfd_getfd(process, fd, PidfdGetfdFlags::empty()) {
        Err(rustix::io::Errno::BADF) => Ok(None),
        Err(error) => Err(("pidfd_getfd(2)", error.into())),
        Ok(socket) => Ok(Some(socket)),
    }
}

/// The bytes of numbers.
pub(super) fn octets(words: &mut [u64]) -> &mut [u8] {
    let (start, len) = (words.as_mut_ptr(), size_of_val(words));
    // SAFETY: any bytes are numbers, and numbers are bytes.
    unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }
}

/// Reads the memory of an application; false if it has none there.
pub(super) fn read(asker: Asker, from: u64, into: &mut [u8]) -> Result<bool, Blind> {
    transfer(asker, from, into, libc::SYS_process_vm_readv)
}

/// Writes to it.
pub(super) fn write(asker: Asker, to: u64, from: &[u8]) -> Result<bool, Blind> {
    let mut octets = [0; size_of::<sockaddr_storage>()];
    let octets = &mut octets[..from.len()];
    octets.copy_from_slice(from);
    transfer(asker, to, octets, libc::SYS_process_vm_writev)
}

fn transfer(asker: Asker, there: u64, here: &mut [u8], call: libc::c_long) -> Result<bool, Blind> {
    let Ok(start) = usize::try_from(there) else {
        return Ok(false);
    };
    let own = libc::iovec {
        iov_base: here.as_mut_ptr().cast(),
        iov_len: here.len(),
    };
    let theirs = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(start),
        iov_len: here.len(),
    };
    let thread = asker.thread.as_raw_pid();
    // As wide as registers: one is passed on the stack.
    let (one, flags): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let (own, theirs) = (&raw const own, &raw const theirs);
    // SAFETY: the kernel reads or writes `here`, whose length is the stated one, and checks the
    // other process's memory.
    let count = unsafe { libc::syscall(call, thread, own, one, theirs, one, flags) };
    if usize::try_from(count) == Ok(here.len()) {
        return Ok(true);
    }
    match sys::errno() {
        _ if count >= 0 => Ok(false),
        libc::EFAULT => Ok(false),
        errno => Err(("process_vm_readv(2)", io::Error::from_raw_os_error(errno))),
    }
}
