//! System calls on the application's descriptors, by number: libc's functions of these names are
//! the shim's. And its memory, which comes as pointers.
//!
//! What an application hands to a system call is its own affair, as it is with the kernel: a length
//! that does not belong to its pointer is a mistake of the application.

use std::ffi::{c_int, c_long};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{iovec, msghdr, sockaddr_storage, socklen_t};

/// The argument behind the last one by which the preloaded library marks its own calls: the filter
/// of `haul run` allows them. c/preload/shim.h has the same number.
pub(crate) const OWN: u64 = 0x6861_756c_2072_756e;

/// Sets `errno`.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: asks for a pointer.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is to the calling thread's own number.
    unsafe { *place = error };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: asks for a pointer.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is to the calling thread's own number.
    unsafe { *place }
}

fn result(value: c_long) -> isize {
    // Both are as wide as a register.
    isize::try_from(value).unwrap_or(-1)
}

/// A list of buffers with room for an application's and this crate's own.
pub(crate) struct Buffers {
    few: [iovec; FEW],
    many: Vec<iovec>,
    len: usize,
}

/// Buffers in one call that need no allocation.
const FEW: usize = 32;
const EMPTY: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

impl Buffers {
    pub(crate) const fn new() -> Self {
        Self {
            few: [EMPTY; FEW],
            many: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn push(&mut self, buffer: iovec) {
        if buffer.iov_len == 0 {
            return;
        }
        if self.len < FEW {
            self.few[self.len] = buffer;
        } else {
            if self.len == FEW {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(buffer);
        }
        self.len += 1;
    }

    pub(crate) fn push_slice(&mut self, octets: &[u8]) {
        self.push(iovec {
            iov_base: octets.as_ptr().cast_mut().cast(),
            iov_len: octets.len(),
        });
    }

    pub(crate) fn push_mut(&mut self, octets: &mut [u8]) {
        self.push(iovec {
            iov_base: octets.as_mut_ptr().cast(),
            iov_len: octets.len(),
        });
    }

    /// Bytes `skip..skip + len` of `buffers`.
    pub(crate) fn push_part(&mut self, buffers: &[iovec], mut skip: usize, mut len: usize) {
        for buffer in buffers {
            if len == 0 {
                break;
            }
            let from = skip.min(buffer.iov_len);
            skip -= from;
            let take = (buffer.iov_len - from).min(len);
            len -= take;
            self.push(iovec {
                iov_base: buffer.iov_base.wrapping_byte_add(from),
                iov_len: take,
            });
        }
    }

    pub(crate) fn list(&self) -> &[iovec] {
        if self.len <= FEW {
            &self.few[..self.len]
        } else {
            &self.many
        }
    }
}

/// Bytes of all buffers together.
pub(crate) fn total(buffers: &[iovec]) -> usize {
    buffers
        .iter()
        .fold(0, |sum: usize, buffer| sum.saturating_add(buffer.iov_len))
}

/// The bytes `skip..skip + len` of `buffers`, piece by piece.
pub(crate) fn for_each(
    buffers: &[iovec],
    mut skip: usize,
    mut len: usize,
    mut f: impl FnMut(&[u8]),
) {
    for buffer in buffers {
        if len == 0 {
            break;
        }
        let from = skip.min(buffer.iov_len);
        skip -= from;
        let take = (buffer.iov_len - from).min(len);
        if take == 0 {
            continue;
        }
        len -= take;
        let start = buffer.iov_base.cast::<u8>().wrapping_add(from);
        // SAFETY: the buffer is this crate's own, or the application has handed it to a call that
        // reads or writes it; the call has returned or has not begun.
        f(unsafe { std::slice::from_raw_parts(start, take) });
    }
}

/// Copies `len` bytes from `at` in one list to `to` in another, front to back: where the lists
/// share memory, `to` is not behind `at`.
pub(crate) fn move_forward(from: &[iovec], at: usize, into: &[iovec], to: usize, len: usize) {
    let mut done = 0;
    while done < len {
        let (source, room) = position(from, at + done);
        let (sink, space) = position(into, to + done);
        let step = room.min(space).min(len - done);
        if step == 0 {
            return;
        }
        if !std::ptr::eq(source, sink) {
            copy(source, sink, step);
        }
        done += step;
    }
}

/// The same back to front: `to` is not before `at`.
pub(crate) fn move_backward(from: &[iovec], at: usize, into: &[iovec], to: usize, len: usize) {
    let mut left = len;
    while left > 0 {
        let (source, room) = before(from, at + left);
        let (sink, space) = before(into, to + left);
        let step = room.min(space).min(left);
        if step == 0 {
            return;
        }
        copy(source.wrapping_sub(step), sink.wrapping_sub(step), step);
        left -= step;
    }
}

fn copy(source: *const u8, sink: *mut u8, len: usize) {
    // SAFETY: both ranges are parts of buffers in the sense of `for_each`; overlap is allowed.
    unsafe { std::ptr::copy(source, sink, len) };
}

/// Where byte `at` of the list is, and how many follow it in its buffer.
fn position(buffers: &[iovec], mut at: usize) -> (*mut u8, usize) {
    for buffer in buffers {
        if at < buffer.iov_len {
            let start = buffer.iov_base.cast::<u8>().wrapping_add(at);
            return (start, buffer.iov_len - at);
        }
        at -= buffer.iov_len;
    }
    (std::ptr::null_mut(), 0)
}

/// Where the list has its first `at` bytes behind it, and how many of them are in the same buffer.
fn before(buffers: &[iovec], mut at: usize) -> (*mut u8, usize) {
    for buffer in buffers {
        if at <= buffer.iov_len && at > 0 {
            return (buffer.iov_base.cast::<u8>().wrapping_add(at), at);
        }
        at = at.saturating_sub(buffer.iov_len);
    }
    (std::ptr::null_mut(), 0)
}

/// A message header with the same address and control data, and other buffers.
pub(crate) fn with_buffers(message: &msghdr, buffers: &Buffers) -> msghdr {
    let mut own = *message;
    own.msg_iov = buffers.list().as_ptr().cast_mut();
    own.msg_iovlen = buffers.list().len();
    own
}

/// A message header with nothing but buffers.
pub(crate) fn bare(buffers: &Buffers) -> msghdr {
    // SAFETY: a `msghdr` is pointers and numbers, for which zero is a value.
    let empty: msghdr = unsafe { std::mem::zeroed() };
    with_buffers(&empty, buffers)
}

/// The buffers that a message names.
pub(crate) fn buffers_of(message: &msghdr) -> &[iovec] {
    if message.msg_iov.is_null() {
        return &[];
    }
    // SAFETY: the application vouches for their number.
    unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) }
}

/// Whether the control data holds a message of this level and type.
pub(crate) fn has_control(message: &msghdr, level: c_int, kind: c_int) -> bool {
    if message.msg_control.is_null() || message.msg_controllen < size_of::<libc::cmsghdr>() {
        return false;
    }
    // SAFETY: the header names control data that the application has laid out.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give headers that lie within the control data.
        let control = unsafe { header.read_unaligned() };
        if control.cmsg_level == level && control.cmsg_type == kind {
            return true;
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    false
}

pub(crate) fn sendmsg(fd: c_int, message: &msghdr, flags: c_int) -> isize {
    // SAFETY: the kernel checks every pointer.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, std::ptr::from_ref(message), flags) })
}

/// sendto(2) with the address of `message`.
pub(crate) fn sendto(fd: c_int, octets: &[u8], flags: c_int, message: &msghdr) -> isize {
    // Without a length there is no address, here as in sendmsg(2).
    let name = if message.msg_namelen == 0 {
        std::ptr::null_mut()
    } else {
        message.msg_name
    };
    let len = message.msg_namelen;
    let (start, octets) = (octets.as_ptr(), octets.len());
    // SAFETY: the kernel reads the slice, and checks the address.
    result(unsafe { libc::syscall(libc::SYS_sendto, fd, start, octets, flags, name, len) })
}

pub(crate) fn recvmsg(fd: c_int, message: &mut msghdr, flags: c_int) -> isize {
    // SAFETY: the kernel checks every pointer, and writes only to buffers that are there to be
    // written to.
    result(unsafe { libc::syscall(libc::SYS_recvmsg, fd, std::ptr::from_mut(message), flags) })
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: numbers only.
    c_int::from(unsafe { libc::syscall(libc::SYS_shutdown, fd, how) } == 0) - 1
}

/// connect(2) with the address as the application gave it, marked as decided here.
pub(crate) fn connect(fd: c_int, to: *const libc::sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the kernel checks the pointer.
    c_int::from(unsafe { libc::syscall(libc::SYS_connect, fd, to, len, OWN) } == 0) - 1
}

/// The family that an address names.
pub(crate) fn family(address: *const libc::sockaddr, len: socklen_t) -> Option<c_int> {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: there are at least as many bytes.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    Some(c_int::from(family))
}

fn family_number(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

/// connect(2).
pub(crate) fn connect_to(fd: c_int, to: SocketAddr) -> c_int {
    let mut storage = zeroed_address();
    let len = put_address(&mut storage, to);
    connect(fd, (&raw const storage).cast(), len)
}

fn zeroed_address() -> sockaddr_storage {
    // SAFETY: a `sockaddr_storage` is numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Writes an address as the kernel has it; its length.
pub(crate) fn put_address(storage: &mut sockaddr_storage, address: SocketAddr) -> socklen_t {
    let place = std::ptr::from_mut(storage);
    match address {
        SocketAddr::V4(v4) => {
            let address = libc::sockaddr_in {
                sin_family: family_number(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a storage has room for each kind of address, and is aligned for it.
            unsafe { place.cast::<libc::sockaddr_in>().write(address) };
            len_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let address = libc::sockaddr_in6 {
                sin6_family: family_number(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: 0,
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(address) };
            len_of::<libc::sockaddr_in6>()
        }
    }
}

/// Writes an address for an application, in its socket's family, as far as there is room; its whole
/// length.
pub(crate) fn put_peer(
    fd: c_int,
    peer: SocketAddr,
    address: *mut libc::sockaddr,
    room: socklen_t,
) -> socklen_t {
    let is_v6 = option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
    let peer = match peer {
        SocketAddr::V4(v4) if is_v6 => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        peer => peer,
    };
    let mut storage = zeroed_address();
    let len = put_address(&mut storage, peer);
    let count = len.min(room) as usize;
    let source = (&raw const storage).cast::<u8>();
    // SAFETY: the application has room for that many bytes, which the kernel has just written to.
    unsafe { std::ptr::copy_nonoverlapping(source, address.cast::<u8>(), count) };
    len
}

/// Flags of the open file: `O_NONBLOCK` among them.
pub(crate) fn status_flags(fd: c_int) -> Option<c_int> {
    // SAFETY: numbers only.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    c_int::try_from(flags).ok().filter(|flags| *flags >= 0)
}

pub(crate) fn set_status_flags(fd: c_int, flags: c_int) {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, flags) };
}

/// Switches a socket option off; it fails where there is none.
pub(crate) fn clear_option(fd: c_int, level: c_int, name: c_int) {
    let off: c_int = 0;
    let len = len_of::<c_int>();
    // SAFETY: the kernel reads `len` bytes.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, &raw const off, len) };
}

/// Sends bytes and a descriptor to a Unix datagram socket, from one that is there for that only.
///
/// # Errors
/// `errno` of the call that failed.
pub(crate) fn send_descriptor(path: &Path, octets: &[u8], descriptor: c_int) -> Result<(), c_int> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: numbers only.
    let opened = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) };
    let Some(fd) = c_int::try_from(opened).ok().filter(|fd| *fd >= 0) else {
        return Err(errno());
    };
    let sent = send_descriptor_by(fd, path, octets, descriptor);
    let error = errno();
    // SAFETY: it was opened here, and nobody else knows it.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    if sent { Ok(()) } else { Err(error) }
}

fn send_descriptor_by(fd: c_int, path: &Path, octets: &[u8], descriptor: c_int) -> bool {
    // SAFETY: a `sockaddr_un` is numbers, for which zero is a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = family_number(libc::AF_UNIX);
    let path = path.as_os_str().as_bytes();
    if path.len() >= name.sun_path.len() {
        set_errno(libc::ENAMETOOLONG);
        return false;
    }
    for (place, octet) in name.sun_path.iter_mut().zip(path) {
        *place = libc::c_char::from_ne_bytes([*octet]);
    }
    let mut control = [0_u64; 4];
    let mut buffers = Buffers::new();
    buffers.push_slice(octets);
    let mut message = bare(&buffers);
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = len_of::<libc::sockaddr_un>();
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: there is room for a header and a descriptor, aligned as a header is.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: arithmetic.
    let cmsg_len = unsafe { libc::CMSG_LEN(4) } as usize;
    let rights = libc::cmsghdr {
        cmsg_len,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: as above: there is room.
    unsafe { header.write(rights) };
    // SAFETY: as above.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: as above.
    unsafe { data.cast::<c_int>().write_unaligned(descriptor) };
    loop {
        if sendmsg(fd, &message, libc::MSG_NOSIGNAL) >= 0 {
            return true;
        }
        if errno() != libc::EINTR {
            return false;
        }
    }
}

/// Binds to any free port of the address' family.
pub(crate) fn bind_any(fd: c_int, is_ipv4: bool) -> bool {
    // SAFETY: a `sockaddr_storage` is numbers, for which zero is a value.
    let mut any: sockaddr_storage = unsafe { std::mem::zeroed() };
    let family = if is_ipv4 {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    any.ss_family = family_number(family);
    let len = if is_ipv4 {
        size_of::<libc::sockaddr_in>()
    } else {
        size_of::<libc::sockaddr_in6>()
    };
    // SAFETY: the kernel reads `len` bytes, and there are more.
    unsafe { libc::syscall(libc::SYS_bind, fd, &raw const any, len) == 0 }
}

fn len_of<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn name(fd: c_int, call: c_long) -> Option<SocketAddr> {
    // SAFETY: a `sockaddr_storage` is numbers, for which zero is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = len_of::<sockaddr_storage>();
    // SAFETY: the kernel writes at most `len` bytes, and the length.
    let done = unsafe { libc::syscall(call, fd, &raw mut storage, &raw mut len, OWN) };
    (done == 0)
        .then(|| socket_address((&raw const storage).cast(), len))
        .flatten()
        .map(|(address, _)| address)
}

/// The address that a socket has, and the one that it is connected to.
pub(crate) fn local(fd: c_int) -> Option<SocketAddr> {
    name(fd, libc::SYS_getsockname)
}

pub(crate) fn remote(fd: c_int) -> Option<SocketAddr> {
    name(fd, libc::SYS_getpeername)
}

/// Reads an address of IPv4 or IPv6, IPv4-mapped as IPv4, and the link that it belongs to, or 0.
pub(crate) fn socket_address(
    address: *const libc::sockaddr,
    len: socklen_t,
) -> Option<(SocketAddr, u32)> {
    let len = len as usize;
    if address.is_null() || len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: there are at least as many bytes as an IPv4 address has, which is more than a
    // `sockaddr` needs to be known.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the length was checked.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some((
                SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)),
                0,
            ))
        }
        // The kernel takes addresses without the last field as well.
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: the length was checked.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let plain = SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, 0);
            let canonical = SocketAddr::new(plain.ip().to_canonical(), plain.port());
            Some((canonical, v6.sin6_scope_id))
        }
        _ => None,
    }
}

/// A socket option that is a number.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    // SAFETY: a number is numbers.
    unsafe { numbers(fd, level, name) }
}

/// How long a blocking send, or connect(2), waits at most, ns.
pub(crate) fn send_timeout_ns(fd: c_int) -> Option<u64> {
    // SAFETY: two numbers are numbers.
    let time = unsafe { numbers::<[c_long; 2]>(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO) };
    let [seconds, micros] = time?.map(|part| u64::try_from(part).unwrap_or(0));
    let ns = seconds.saturating_mul(1_000_000_000) + micros * 1_000;
    (ns > 0).then_some(ns)
}

/// Returns how many more bytes the kernel takes before a socket counts as full, by its own count.
pub(crate) fn send_room(fd: c_int) -> usize {
    /// Of the kernel's `linux/sock_diag.h`.
    const SNDBUF: usize = 3;
    const WMEM_QUEUED: usize = 5;
    // SAFETY: an array of numbers is numbers.
    let info = unsafe { numbers::<[u32; 9]>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO) };
    info.map_or(0, |info| {
        info[SNDBUF].saturating_sub(info[WMEM_QUEUED]) as usize
    })
}

/// Calls getsockopt(2) for a numeric option; bytes that the kernel does not write stay zero.
///
/// # Safety
/// Any bytes are a `T`.
unsafe fn numbers<T>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    // SAFETY: the caller's word.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = len_of::<T>();
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the length.
    let done = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd,
            level,
            name,
            &raw mut value,
            &raw mut len,
            OWN,
        )
    };
    (done == 0).then_some(value)
}

/// CLOSE_WAIT, LAST_ACK, CLOSING: the states of connections whose peer has sent FIN.
const FIN_CAME: [u8; 3] = [8, 9, 11];
/// The state of one that both have ended (TIME_WAIT is not the socket's), or that was reset.
const CLOSED: u8 = 7;

/// Bytes of a TCP connection that the application has written, and that have arrived.
pub(crate) fn tcp_octets(fd: c_int) -> Option<(u64, u64)> {
    let info = tcp_info(fd)?;
    // Not what is acknowledged and what waits for it: there the kernel counts SYN and FIN.
    let sent = info.tcpi_bytes_sent.saturating_sub(info.tcpi_bytes_retrans);
    let written = sent + u64::from(info.tcpi_notsent_bytes);
    // Of what has come the kernel counts the FIN.
    let is_reset = || {
        // SAFETY: it is a number.
        let error: Option<c_int> = unsafe { numbers(fd, libc::SOL_SOCKET, libc::SO_ERROR) };
        error.is_some_and(|error| error != 0)
    };
    let state = info.tcpi_state;
    let has_ended = FIN_CAME.contains(&state) || (state == CLOSED && !is_reset());
    let received = info.tcpi_bytes_received.saturating_sub(has_ended.into());
    Some((written, received))
}

fn tcp_info(fd: c_int) -> Option<libc::tcp_info> {
    // SAFETY: a `tcp_info` is numbers.
    unsafe { numbers(fd, libc::IPPROTO_TCP, libc::TCP_INFO) }
}

/// The state of a TCP connection, as the kernel numbers them; `None` if it is none.
pub(crate) fn tcp_state(fd: c_int) -> Option<u8> {
    tcp_info(fd).map(|info| info.tcpi_state)
}

/// Whether an application that is executed has this descriptor.
pub(crate) fn is_kept_by_exec(fd: c_int) -> bool {
    // SAFETY: the call takes numbers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) };
    flags >= 0 && flags & c_long::from(libc::FD_CLOEXEC) == 0
}

/// The number of the socket behind a descriptor; `None` if it is none.
pub(crate) fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: a `stat` is numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `stat`; the path is empty, as the flag allows.
    let done = unsafe {
        libc::syscall(
            libc::SYS_newfstatat,
            fd,
            c"".as_ptr(),
            &raw mut stat,
            libc::AT_EMPTY_PATH,
        )
    };
    (done == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// The calling thread.
pub(crate) fn thread_id() -> u32 {
    u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap_or(0)
}

/// This process.
pub(crate) fn process_id() -> u32 {
    u32::try_from(rustix::process::getpid().as_raw_pid()).unwrap_or(0)
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "sockets as a program makes them")]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn octets_of_a_connection_are_those_of_the_program() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(tcp_octets(near.as_raw_fd()), Some((0, 0)), "no SYN");
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"0123456789").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        far.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(tcp_octets(near.as_raw_fd()), Some((10, 0)), "no FIN");
        assert_eq!(tcp_octets(far.as_raw_fd()), Some((0, 10)), "no FIN");
        far.write_all(b"01234").unwrap();
        drop(far);
        near.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(tcp_octets(near.as_raw_fd()), Some((10, 5)), "both ended");
    }
}
