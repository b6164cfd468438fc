//! The kernel's side of the supervisor: the filter in the child, and the notifications that come of
//! it (seccomp_unotify(2)).

use std::ffi::c_int;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::net::{self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};

use super::filter;
use crate::sys;

/// Where notifications come from.
#[derive(Debug)]
pub(super) struct Listener(OwnedFd);

/// Where the child hands the listener over.
#[derive(Debug)]
pub(super) struct Handover {
    ours: OwnedFd,
    _theirs: OwnedFd,
}

impl Handover {
    /// Has `command` start with the filter.
    ///
    /// # Errors
    /// Of the system calls.
    pub(super) fn new(command: &mut Command) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) =
            net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let program = filter::program();
        let child = theirs.try_clone()?;
        let install = move || {
            let listener = install(&program)?;
            hand_over(child.as_fd(), &listener)
        };
        // SAFETY: between `fork` and `exec` the closure makes system calls only; it does not
        // allocate, lock or unwind.
        unsafe { command.pre_exec(install) };
        Ok(Self {
            ours,
            _theirs: theirs,
        })
    }

    /// The listener, if the child was started or has come as far as the filter.
    pub(super) fn listener(&self) -> Option<Listener> {
        let mut octet = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut octet)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        net::recvmsg(&self.ours, &mut buffers, &mut control, flags).ok()?;
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next().map(Listener),
            _ => None,
        })
    }
}

/// Installs the filter in this process, which has one thread; the listener.
fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel reads the program, of the length that is given.
    let install = || unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    let mut listener = install();
    if listener < 0 && sys::errno() == libc::EACCES {
        // Without the right to do it to set-user-ID programs: they start without their rights.
        rustix::thread::set_no_new_privs(true)?;
        listener = install();
    }
    let listener = RawFd::try_from(listener).ok().filter(|fd| *fd >= 0);
    let listener = listener.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

fn hand_over(to: impl AsFd, listener: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let buffers = [IoSlice::new(&[0])];
    net::sendmsg(to, &buffers, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// Lets the kernel make the call.
    pub(super) fn go_on(&self, id: u64) {
        self.respond(id, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE);
    }

    /// The call returns 0, or this error; false if nobody waits for it any more.
    pub(super) fn answer(&self, id: u64, errno: c_int) -> bool {
        self.respond(id, -errno, 0)
    }

    fn respond(&self, id: u64, error: c_int, flags: libc::c_ulong) -> bool {
        let mut response = libc::seccomp_notif_resp {
            id,
            val: 0,
            error,
            flags: u32::try_from(flags).unwrap_or(0),
        };
        let (listener, send) = (self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND);
        // SAFETY: the kernel reads one response.
        unsafe { libc::ioctl(listener, send, &raw mut response) == 0 }
    }

    /// Whether the thread that asked still waits, so that its number is still its own.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        let (listener, valid) = (self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID);
        // SAFETY: the kernel reads one number.
        unsafe { libc::ioctl(listener, valid, &raw const id) == 0 }
    }

    /// The next notification.
    pub(super) fn receive(&self) -> io::Result<libc::seccomp_notif> {
        // SAFETY: a `seccomp_notif` is numbers, for which zero is a value; the kernel wants zeros.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        let (listener, receive) = (self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV);
        // SAFETY: the kernel writes one notification.
        if unsafe { libc::ioctl(listener, receive, &raw mut notification) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(notification)
    }
}
