//! The system calls of this module, each behind a function that safe code cannot misuse.

use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::address::{Address, socklen};
use super::control::{ControlBuffer, SegmentSize, SegmentSource, SourceAddress};
use super::pool::Buffer;

/// The most messages that one call sends or receives.
pub(super) const MESSAGES_MAX: usize = 32;

/// Where a message goes.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    address: Address,
    len: libc::socklen_t,
}

impl Destination {
    pub(super) const NONE: Self = Self {
        address: Address::EMPTY,
        len: 0,
    };

    pub(super) fn new(to: SocketAddr) -> Self {
        let (address, len) = Address::new(to);
        Self { address, len }
    }
}

/// Ancillary data for the kernel with a message.
#[derive(Clone, Copy)]
pub(super) enum Ancillary<'a> {
    Nothing,
    Segment(&'a SegmentSize),
    Source(&'a SourceAddress),
    SegmentSource(&'a SegmentSource),
}

impl Ancillary<'_> {
    fn as_raw(self) -> (*mut libc::c_void, usize) {
        fn raw<T>(record: &T) -> (*mut libc::c_void, usize) {
            (ptr::from_ref(record).cast_mut().cast(), size_of::<T>())
        }
        match self {
            Self::Nothing => (ptr::null_mut(), 0),
            Self::Segment(record) => raw(record),
            Self::Source(SourceAddress::V4(record)) => raw(record),
            Self::Source(SourceAddress::V6(record)) => raw(record),
            Self::SegmentSource(SegmentSource::V4(records)) => raw(records),
            Self::SegmentSource(SegmentSource::V6(records)) => raw(records),
        }
    }
}

/// One message to send. Every pointer in it is to something borrowed for `'a`.
#[repr(transparent)]
pub(super) struct OutMessage<'a>(libc::mmsghdr, PhantomData<&'a ()>);

impl<'a> OutMessage<'a> {
    pub(super) fn new(
        to: &'a Destination,
        slices: &'a [IoSlice<'a>],
        ancillary: Ancillary<'a>,
    ) -> Self {
        let (control, control_len) = ancillary.as_raw();
        let header = libc::msghdr {
            msg_name: ptr::from_ref(&to.address).cast_mut().cast(),
            msg_namelen: to.len,
            // `IoSlice` is documented to have the layout of `iovec` on Unix.
            msg_iov: slices.as_ptr().cast_mut().cast(),
            msg_iovlen: slices.len(),
            msg_control: control,
            msg_controllen: control_len,
            msg_flags: 0,
        };
        Self(
            libc::mmsghdr {
                msg_hdr: header,
                msg_len: 0,
            },
            PhantomData,
        )
    }
}

/// Sends one message; the number of bytes it took, which for a datagram socket is all.
pub(super) fn send_one(fd: BorrowedFd<'_>, message: &OutMessage<'_>) -> io::Result<usize> {
    // SAFETY: the pointers in `message` are live borrows with the lengths beside them, and the
    // kernel only reads them.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message.0.msg_hdr, FLAGS) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends messages in order; how many were taken. The error is that of the first one.
pub(super) fn send_many(fd: BorrowedFd<'_>, messages: &mut [OutMessage<'_>]) -> io::Result<usize> {
    let count = count(messages.len());
    // `OutMessage` is a transparent wrapper.
    let headers = messages.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: `headers` is `count` messages whose pointers are live borrows; the kernel writes only
    // `msg_len`.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers, count, FLAGS) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Where one arrival's address and notes go, and how much of each the kernel has filled.
#[derive(Clone, Copy)]
pub(super) struct RecvMeta {
    pub(super) from: Address,
    pub(super) control: ControlBuffer,
    pub(super) control_len: usize,
    pub(super) bytes: usize,
    pub(super) truncated: bool,
}

impl RecvMeta {
    pub(super) const EMPTY: Self = Self {
        from: Address::EMPTY,
        control: ControlBuffer::EMPTY,
        control_len: 0,
        bytes: 0,
        truncated: false,
    };
}

/// Receives up to as many messages as there are `buffers` and `metas` (at most
/// [`MESSAGES_MAX`]) without waiting; how many came.
pub(super) fn receive_many(
    fd: BorrowedFd<'_>,
    buffers: &mut [Buffer],
    metas: &mut [RecvMeta],
) -> io::Result<usize> {
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; MESSAGES_MAX];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES_MAX];
    let mut filled = 0;
    for (index, (buffer, meta)) in buffers
        .iter_mut()
        .zip(&mut *metas)
        .enumerate()
        .take(MESSAGES_MAX)
    {
        let room = buffer.whole_mut();
        let vector = vectors[index].write(libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        });
        headers[index].write(libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: (&raw mut meta.from).cast(),
                msg_namelen: socklen::<Address>(),
                msg_iov: ptr::from_mut(vector),
                msg_iovlen: 1,
                msg_control: meta.control.0.as_mut_ptr().cast(),
                msg_controllen: meta.control.0.len(),
                msg_flags: 0,
            },
            msg_len: 0,
        });
        filled = index + 1;
    }
    let headers_ptr = headers.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `filled` headers are initialised and each points to a buffer, a vector and
    // a `RecvMeta` of its own, all exclusively borrowed until this function returns, with their
    // true lengths.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers_ptr,
            count(filled),
            FLAGS,
            ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (header, meta) in headers.iter().zip(metas).take(received) {
        // SAFETY: the kernel has received no more messages than there were initialised headers.
        let header = unsafe { header.assume_init_ref() };
        meta.bytes = usize::try_from(header.msg_len).unwrap_or(0);
        meta.control_len = header.msg_hdr.msg_controllen;
        meta.truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
    }
    Ok(received)
}

/// Takes the oldest entry of the error queue without waiting, and the beginning of its datagram;
/// none if there is none.
pub(super) fn receive_error(fd: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<Option<RecvMeta>> {
    let mut meta = RecvMeta::EMPTY;
    let mut vector = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let mut header = libc::msghdr {
        msg_name: (&raw mut meta.from).cast(),
        msg_namelen: socklen::<Address>(),
        msg_iov: &raw mut vector,
        msg_iovlen: 1,
        msg_control: meta.control.0.as_mut_ptr().cast(),
        msg_controllen: meta.control.0.len(),
        msg_flags: 0,
    };
    let flags = FLAGS | libc::MSG_ERRQUEUE;
    // SAFETY: the header points to live locals and to `room`, which is borrowed exclusively, with
    // their true lengths.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    let Ok(received) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        };
    };
    meta.bytes = received;
    meta.control_len = header.msg_controllen;
    Ok(Some(meta))
}

/// Sets an option whose value is an `int`.
pub(super) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = socklen::<libc::c_int>();
    // SAFETY: the kernel reads `len` bytes, the size of `value`, which is a live local.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Where `SO_MEMINFO` counts packets dropped at the receive buffer (`SK_MEMINFO_DROPS`).
pub(super) const MEMORY_INFO_DROPS: usize = 8;

/// The kernel's accounting of the socket's memory (`SO_MEMINFO`).
pub(super) fn memory_info(fd: BorrowedFd<'_>) -> io::Result<[u32; 9]> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)
}

/// The largest IP packet that the route of a connected socket carries, bytes.
pub(super) fn path_mtu(fd: BorrowedFd<'_>, ipv4: bool) -> io::Result<u32> {
    let (level, name) = if ipv4 {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    get_option::<1>(fd, level, name).map(|[mtu]| mtu)
}

/// A socket option of `N` words.
fn get_option<const N: usize>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0_u32; N];
    let mut len = socklen::<[u32; N]>();
    // SAFETY: the kernel writes at most `len` bytes, the size of `words`, and updates `len`; both
    // are live locals.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(words)
    } else {
        Err(io::Error::last_os_error())
    }
}

const FLAGS: libc::c_int = libc::MSG_DONTWAIT;

fn count(len: usize) -> libc::c_uint {
    libc::c_uint::try_from(len).unwrap_or(libc::c_uint::MAX)
}
