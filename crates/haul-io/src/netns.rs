//! Network namespaces without names: they exist as long as a holder does, and vanish with the last
//! one.
//!
//! A [`NetNs`] is held by a file descriptor. [`NetNs::run`] runs a closure inside it on a new
//! thread, [`child::Inside`] starts a child process inside it. Nothing is left under `/run/netns`,
//! so nothing has to be cleaned up after a crash. [`become_root_in_user_namespace`] lets an
//! ordinary user create them, where the system allows it.
//!
//! Map: [`child`] processes inside, and the signals that end them · [`device`] switches of a
//! network device · [`priority`] scheduling.

pub mod child;
pub mod device;
pub mod priority;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// A network namespace, kept alive by this handle.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// A new namespace, with nothing in it but a loopback device that is down.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn new() -> io::Result<Self> {
        on_fresh_thread(|| {
            // SAFETY: the thread shares its file descriptor table as before: only the network
            // namespace is new.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            Self::open(Path::new("/proc/thread-self/ns/net"))
        })?
    }

    /// The namespace behind a path such as `/proc/PID/ns/net` or `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// Those of opening the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd })
    }

    /// The kernel's number of this namespace, as in brackets in `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.fd)?.st_ino)
    }

    /// Runs `work` inside this namespace, on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the thread not started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_fresh_thread(|| {
            enter(self.fd.as_fd(), LinkNameSpaceType::Network)?;
            Ok(work())
        })?
    }

    /// The file descriptor that keeps the namespace alive, for others to open as `/proc/PID/fd/N`.
    #[must_use]
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes the calling process root in a user namespace of its own, in which the present user is the
/// only one.
///
/// # Errors
/// `InvalidInput` if the process has more than one thread; `PermissionDenied` or an OS error where
/// user namespaces are forbidden.
pub fn become_root_in_user_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    // SAFETY: the kernel refuses this to a process with several threads, so no other thread can be
    // surprised.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    write_file(Path::new("/proc/self/setgroups"), b"deny")?;
    write_file(
        Path::new("/proc/self/uid_map"),
        format!("0 {} 1", uid.as_raw()).as_bytes(),
    )?;
    write_file(
        Path::new("/proc/self/gid_map"),
        format!("0 {} 1", gid.as_raw()).as_bytes(),
    )
}

/// Writes a file of `/proc` with a single `write`.
///
/// # Errors
/// Those of opening and writing.
pub fn write_file(path: &Path, text: &[u8]) -> io::Result<()> {
    let fd = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, text)?;
    Ok(())
}

fn enter(namespace: BorrowedFd<'_>, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(
        namespace,
        Some(kind),
    )?)
}

/// A thread that has changed its namespace is not fit for anything else, so it ends with the work.
fn on_fresh_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)?;
        thread
            .join()
            .map_err(|_| io::Error::other("the work inside the namespace panicked"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> String {
        let fd =
            rustix::fs::open("/proc/thread-self/net/dev", OFlags::RDONLY, Mode::empty()).unwrap();
        let mut text = vec![0; 65536];
        let len = rustix::io::read(&fd, &mut text).unwrap();
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    /// The new namespace, or `None` after saying why there is none.
    fn namespace() -> Option<NetNs> {
        match NetNs::new() {
            Ok(namespace) => Some(namespace),
            Err(error) => {
                println!("SKIPPED: no right to make a network namespace ({error})");
                None
            }
        }
    }

    #[test]
    fn a_new_namespace_holds_only_loopback_and_leaves_the_caller_where_it_was() {
        let before = NetNs::open(Path::new("/proc/thread-self/ns/net"))
            .unwrap()
            .inode()
            .unwrap();
        let Some(namespace) = namespace() else { return };
        let inside = namespace.run(interfaces).unwrap();
        let names: Vec<_> = inside
            .lines()
            .skip(2)
            .map(|line| line.split(':').next().unwrap().trim())
            .collect();
        assert_eq!(
            names
                .iter()
                .filter(|&&name| name != "lo" && !name.starts_with("ifb"))
                .count(),
            0,
            "{inside}"
        );
        let after = NetNs::open(Path::new("/proc/thread-self/ns/net"))
            .unwrap()
            .inode()
            .unwrap();
        assert_eq!(before, after);
        assert_ne!(namespace.inode().unwrap(), before);
    }

    #[test]
    fn a_panic_inside_is_an_error_outside() {
        let Some(namespace) = namespace() else { return };
        assert!(namespace.run(|| panic!("inside")).is_err());
    }
}
