//! Processes inside a namespace, and the signals that end them.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use rustix::thread::LinkNameSpaceType;

use crate::tun::check;

/// Where a child process starts. Nothing of it needs to outlive the call to [`on`](Self::on) but
/// the file descriptors, which must stay open until the child is started.
#[derive(Debug, Default)]
pub struct Inside<'a> {
    /// A user namespace to enter first, for the privileges to enter the others.
    pub user: Option<BorrowedFd<'a>>,
    /// The network namespace.
    pub network: Option<BorrowedFd<'a>>,
    /// Files that the child sees in place of others: (source, target).
    pub binds: Vec<(&'a Path, &'a Path)>,
    /// The child is killed when the thread that starts it ends.
    pub dies_with_parent: bool,
}

impl Inside<'_> {
    /// Makes `command` start there, with no signal blocked.
    ///
    /// A child that cannot enter does not start: `spawn` returns the error.
    ///
    /// # Errors
    /// If a path holds a NUL byte.
    pub fn on(&self, command: &mut Command) -> io::Result<()> {
        let user = self.user.map(|fd| fd.as_raw_fd());
        let network = self.network.map(|fd| fd.as_raw_fd());
        let binds = self
            .binds
            .iter()
            .map(|(from, to)| Ok((c_path(from)?, c_path(to)?)));
        let binds = binds.collect::<io::Result<Vec<_>>>()?;
        let parent = self.dies_with_parent.then(rustix::process::getpid);
        let enter = move || {
            enter(user, LinkNameSpaceType::User)?;
            enter(network, LinkNameSpaceType::Network)?;
            bind_all(&binds)?;
            block_no_signal()?;
            parent.map_or(Ok(()), die_with)
        };
        // SAFETY: between `fork` and `exec` the closure makes system calls only; it does not
        // allocate, lock or unwind.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

/// Signals, taken from a file descriptor instead of interrupting anything.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

/// A signal that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// A child process has ended.
    Child,
    /// This process is asked to end, by the signal of this number.
    End(i32),
}

impl Signals {
    /// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD for the calling thread and those it starts later,
    /// and collects them here.
    ///
    /// # Errors
    /// Those of `pthread_sigmask` and `signalfd`.
    pub fn block() -> io::Result<Self> {
        Self::block_these(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD])
    }

    /// The same for whatever a process that stands for another one may be sent: also SIGQUIT,
    /// SIGUSR1, SIGUSR2, SIGALRM and SIGWINCH.
    ///
    /// # Errors
    /// As [`Self::block`].
    pub fn block_all() -> io::Result<Self> {
        Self::block_these(&[
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGCHLD,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGALRM,
            libc::SIGWINCH,
        ])
    }

    fn block_these(signals: &[i32]) -> io::Result<Self> {
        let mut set = empty_set();
        for &signal in signals {
            // SAFETY: `set` is an initialised signal set and `signal` a valid number.
            check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        }
        // SAFETY: `set` is initialised, and the previous mask is not asked for.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: `set` is initialised, and -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, flags) };
        check(fd)?;
        // SAFETY: the descriptor was just created and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// The next signal, or `None` if none comes in time.
    ///
    /// # Errors
    /// Those of `poll` and `read`.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<Caught>> {
        Ok(self.wait_sent(timeout)?.map(|(caught, _)| caught))
    }

    /// The next signal, and whether a process sent it; else the kernel did, as a terminal's, to all
    /// in its foreground.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_sent(&self, timeout: Duration) -> io::Result<Option<(Caught, bool)>> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            result => result?,
        };
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            Ok(_) => {
                let word =
                    |at| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
                // `ssi_signo` and `ssi_code` of signalfd(2).
                let (number, code) = (word(0), word(8));
                let caught = if number == libc::SIGCHLD {
                    Caught::Child
                } else {
                    Caught::End(number)
                };
                Ok(Some((caught, code <= 0)))
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn enter(namespace: Option<RawFd>, kind: LinkNameSpaceType) -> io::Result<()> {
    let Some(fd) = namespace else { return Ok(()) };
    // SAFETY: the caller that prepared the command keeps the descriptor open until the child has
    // started.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    super::enter(fd, kind)
}

/// Replaces files in a mount namespace of the child's own. What is not there to be replaced is left
/// out.
fn bind_all(binds: &[(CString, CString)]) -> io::Result<()> {
    if binds.is_empty() {
        return Ok(());
    }
    // SAFETY: only the mount namespace becomes the child's own, which has one thread.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?;
    keep_mounts()?;
    for (from, to) in binds {
        match mount(from, to, libc::MS_BIND) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// Has mounts from now on stay in the mount namespace, which is new.
fn keep_mounts() -> io::Result<()> {
    const SLAVES: libc::c_ulong = libc::MS_REC | libc::MS_SLAVE;
    match mount(c"none", c"/", SLAVES) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        result => return result,
    }
    // After chroot(2) the root need not be a mount point, and mount propagation can be set only at
    // one. A bind mount of it is one: it is placed on a mount, so that it appears nowhere else.
    let mut folder = [0; libc::PATH_MAX as usize];
    // SAFETY: the buffer has the stated length, and the kernel ends the path in it with NUL.
    let has_folder = !unsafe { libc::getcwd(folder.as_mut_ptr(), folder.len()) }.is_null();
    mount(c"none", c"/proc", SLAVES)?;
    mount(c"/", c"/proc", libc::MS_BIND | libc::MS_REC)?;
    mount(c"none", c"/proc", SLAVES)?;
    rustix::process::chroot(c"/proc")?;
    // SAFETY: `getcwd` has written a path that ends in NUL; without one the buffer is empty, which
    // is no path.
    let folder = unsafe { CStr::from_ptr(folder.as_ptr()) };
    Ok(rustix::process::chdir(if has_folder {
        folder
    } else {
        c"/"
    })?)
}

fn mount(from: &CStr, to: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: both paths end in NUL, and these operations read neither a type nor data.
    check(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), none, flags, none.cast()) })
}

fn block_no_signal() -> io::Result<()> {
    let set = empty_set();
    // SAFETY: `set` is initialised, and the previous mask is not asked for.
    let failed =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(failed))
    }
}

/// Comes after every change of credentials, since those clear the setting.
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(parent) {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ESRCH))
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: a `sigset_t` is an array of integers, for which zero is a value; on Linux it is the
    // empty set.
    unsafe { std::mem::zeroed() }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::netns::NetNs;

    #[test]
    fn a_child_starts_inside_the_namespace() {
        let Ok(namespace) = NetNs::new() else {
            println!("SKIPPED: no right to make a network namespace");
            return;
        };
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net");
        Inside {
            network: Some(namespace.as_fd()),
            dies_with_parent: true,
            ..Inside::default()
        }
        .on(&mut command)
        .unwrap();
        let output = command.output().unwrap();
        let expected = format!("net:[{}]", namespace.inode().unwrap());
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
    }
}
