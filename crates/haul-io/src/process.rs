//! Child processes that are waited for together with what they used; limits of this process.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal};

/// Lets this process open as many files and sockets as its owner may allow it (the hard limit); how
/// many that are, none being no limit.
///
/// # Errors
/// Those of `setrlimit`: a sandbox may forbid it.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        rustix::process::setrlimit(Resource::Nofile, raised)?;
    }
    Ok(limit.maximum)
}

/// Returns how many files and sockets this process may have open.
#[must_use]
pub fn open_file_limit() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Keeps the memory of this process, and of those that it starts, out of core dumps: it may hold
/// keys. The usual programs to which the kernel pipes dumps respect a limit of 0, too.
///
/// # Errors
/// Those of `setrlimit`: a sandbox may forbid it.
pub fn forbid_core_dumps() -> io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none)?;
    Ok(())
}

/// Returns whether this process acts as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process ignores the signal of this number: so it was started by `nohup`, or in a
/// shell's background.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: a `sigaction` is numbers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and the pointer is to an initialised value that outlives the call.
    let got = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    got == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// A child process; waiting for its end returns the resources that it used.
#[derive(Debug)]
pub struct Process {
    child: Child,
    ended: Option<Ended>,
}

/// How a process ended, and what it and those of its children that it waited for used.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// Processor time in user space.
    pub user: Duration,
    /// Processor time in the kernel on its behalf.
    pub system: Duration,
    /// The most memory that was resident, bytes.
    pub peak_rss_bytes: u64,
}

impl Process {
    /// Takes over a child that has not been waited for.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self { child, ended: None }
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    /// Those of `wait4`.
    pub fn try_wait(&mut self) -> io::Result<Option<Ended>> {
        if self.ended.is_none() {
            self.ended = poll(self.pid())?;
        }
        Ok(self.ended)
    }

    /// Sends it a signal, unless it has ended.
    ///
    /// # Errors
    /// Those of `kill`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        // Until it is waited for, its process id is not reused.
        let pid = Pid::from_raw(self.pid()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }
}

/// Ends a child that was made the leader of a process group, all of that group with it, and waits
/// for the child.
///
/// # Errors
/// Those of `kill` and of `wait4`.
pub fn kill_group(child: &mut Child) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // Until the child is waited for, its process id and that of its group are not reused.
    match rustix::process::kill_process_group(pid.ok_or(io::ErrorKind::InvalidInput)?, Signal::KILL)
    {
        Ok(()) | Err(rustix::io::Errno::SRCH) => child.wait(),
        Err(error) => Err(error.into()),
    }
}

fn poll(pid: i32) -> io::Result<Option<Ended>> {
    let mut status = 0;
    // SAFETY: a `rusage` is numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to initialised values that outlive the call.
    let got = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
    match got {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some(Ended {
            status: ExitStatus::from_raw(status),
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            // Linux counts in KiB.
            peak_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10,
        })),
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    fn wait(process: &mut Process) -> Ended {
        loop {
            if let Some(ended) = process.try_wait().unwrap() {
                return ended;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn as_many_files_may_be_opened_as_the_owner_allows() {
        let most = raise_open_files().unwrap();
        let limit = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!((limit.current, limit.maximum), (most, most));
    }

    #[test]
    fn a_signal_is_ignored_where_the_program_requests_it() {
        // The runtime of Rust ignores it, and nothing here takes the other.
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGWINCH));
        assert!(!is_ignored(-1));
    }

    #[test]
    fn a_process_reports_the_resources_that_it_used() {
        let work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3";
        let child = Command::new("sh").args(["-c", work]).spawn().unwrap();
        let mut process = Process::new(child);
        let ended = wait(&mut process);
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.user + ended.system > Duration::ZERO);
        assert!(ended.peak_rss_bytes > 100_000, "{ended:?}");
        assert!(process.signal(Signal::KILL).is_ok());
    }

    #[test]
    fn a_signal_ends_it() {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let mut process = Process::new(child);
        assert!(process.try_wait().unwrap().is_none());
        process.signal(Signal::KILL).unwrap();
        assert_eq!(wait(&mut process).status.signal(), Some(9));
    }

    #[test]
    fn a_group_ends_with_its_leader() {
        // Processes that the shell leaves behind hold the pipe open until they are ended too.
        let mut child = Command::new("sh")
            .args(["-c", "sleep 100 & echo there; wait"])
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut said = [0; 6];
        stdout.read_exact(&mut said).unwrap();
        assert_eq!(kill_group(&mut child).unwrap().signal(), Some(9));
        assert_eq!(stdout.read(&mut said).unwrap(), 0);
    }
}
