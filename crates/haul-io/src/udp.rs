//! UDP with segmentation offload and batches: the WAN channel's way to the wire.
//!
//! Data flow, outward: a list of slices, `[header][payload][header][payload]…`, that the kernel
//! gathers and cuts into datagrams of one size (`UDP_SEGMENT`, GSO); where it cannot, they are cut
//! here and sent with one `sendmmsg(2)`. Inward: `recvmmsg(2)` into a [`RecvBatch`] of 64 KiB
//! buffers, each holding one or many datagrams of one sender (`UDP_GRO`), with the kernel's time of
//! arrival and the ECN mark.
//!
//! Map: `send` the way out; `recv` the way in; `pool` the buffers; `message` the system calls;
//! `control` ancillary data; `address` socket addresses as the kernel reads them; `group` multicast
//! and broadcast.

mod address;
mod control;
mod errors;
mod group;
mod message;
mod pool;
mod recv;
mod send;

pub use control::Undelivered;
pub use errors::{NetworkError, QUOTED_MAX, is_too_large, may_be_late, route_mtu};
pub use pool::Buffer;
pub use recv::{Datagrams, Received, RecvBatch};
pub use send::Outgoing;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The most payload that one datagram, or one super-packet before it is cut, may hold: a 16-bit
/// IPv4 length less the IPv4 and UDP headers (RFC 791, RFC 768).
pub const SUPER_PACKET_BYTES_MAX: usize = 65_507;

/// The most segments in one super-packet: `UDP_MAX_SEGMENTS` of Linux before 6.9 (later ones take
/// 128).
pub const SEGMENTS_MAX: usize = 64;

/// The most slices in one super-packet: `UIO_MAXIOV` of Linux.
pub const SLICES_MAX: usize = 1024;

/// How a socket is set up. Build it from [`UdpOptions::default`], then set fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpOptions {
    /// Size of the receive buffer as the kernel counts it (payload and its own overhead), bytes.
    /// Zero leaves the system's default.
    pub recv_buffer_bytes: usize,
    /// Size of the send buffer, bytes. Zero leaves the system's default.
    pub send_buffer_bytes: usize,
    /// Let the kernel cut super-packets where it can.
    pub gso: bool,
    /// Let the kernel join arrivals into super-packets.
    pub gro: bool,
    /// Mark packets as ECN-capable, ECT(0) (RFC 3168 §5).
    pub ecn: bool,
    /// Share the local port with other sockets that do the same: the kernel hands a packet to the
    /// one that is connected to its sender, if there is one.
    pub share_port: bool,
    /// Report for each arrival which of this machine's addresses it was sent to.
    pub report_destination: bool,
    /// Keep the errors that the network reports of datagrams that did not arrive, for
    /// [`UdpSocket::next_error`]. Calls fail with it, too.
    pub report_errors: bool,
    /// Have the kernel note when each packet arrives. Without it an arrival is as old as the call
    /// that received it.
    pub timestamps: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self {
            recv_buffer_bytes: 0,
            send_buffer_bytes: 0,
            gso: true,
            gro: true,
            ecn: false,
            share_port: false,
            report_destination: false,
            report_errors: false,
            timestamps: true,
        }
    }
}

/// A non-blocking UDP socket that does not fragment (the "don't fragment" bit is set; a datagram
/// larger than the interface's MTU is refused with `EMSGSIZE`) before
/// [`UdpSocket::allow_fragments`]. Sending and receiving may happen on different threads.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    local: SocketAddr,
    /// GSO was asked for, and the kernel has not refused it on this socket yet.
    gso: AtomicBool,
    /// IP may fragment what is sent.
    fragments: AtomicBool,
    recv_buffer_bytes: usize,
    send_buffer_bytes: usize,
}

impl UdpSocket {
    /// A socket bound to `local` (port 0: any free one). An IPv6 wildcard also takes IPv4 peers,
    /// whose addresses appear as IPv4.
    ///
    /// # Errors
    /// Of `socket(2)`, `bind(2)` and the options that no supported kernel lacks.
    pub fn bind(local: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        set_up(&socket, local, options)?;
        if local.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        if options.share_port {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&SockAddr::from(local))?;
        let local = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::Unsupported)?;
        Self::of(socket, local, options)
    }

    /// Takes over a bound UDP socket; `share_port` has no effect. It becomes non-blocking, also for
    /// other holders of a descriptor of it.
    ///
    /// # Errors
    /// `InvalidInput` for one that is not UDP, or not bound; else of the options, as for
    /// [`UdpSocket::bind`].
    pub fn adopt(socket: OwnedFd, options: &UdpOptions) -> io::Result<Self> {
        let socket = Socket::from(socket);
        let local = socket.local_addr()?.as_socket();
        let (Some(local), true) = (local, socket.protocol()? == Some(Protocol::UDP)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if local.port() == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set_up(&socket, local, options)?;
        Self::of(socket, local, options)
    }

    fn of(socket: Socket, local: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        Ok(Self {
            local,
            gso: AtomicBool::new(options.gso && gso_known(&socket)),
            fragments: AtomicBool::new(false),
            recv_buffer_bytes: socket.recv_buffer_size()?,
            send_buffer_bytes: socket.send_buffer_size()?,
            socket,
        })
    }

    /// Takes packets from `peer` only, and reports ICMP errors about it (`ConnectionRefused`, …) on
    /// the next call. Sending still names a destination; it must be `peer`.
    ///
    /// # Errors
    /// Of `connect(2)`: no route, or another address family.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(&SockAddr::from(peer))
    }

    /// From now on, marks packets as ECN-capable, ECT(0) (RFC 3168 §5), or not.
    ///
    /// # Errors
    /// Of `setsockopt(2)`.
    pub fn set_ecn_capable(&self, capable: bool) -> io::Result<()> {
        set_ecn_capable(&self.socket, self.local, capable)
    }

    /// Lets IP fragment datagrams that are larger than the path's MTU. IPv4 packets leave without
    /// the "don't fragment" bit, so routers may fragment them as well. IPv6 routers cannot: this
    /// host fragments once ICMP has reported the path MTU. GSO ends when the kernel refuses it for
    /// a segment that needs fragments. Returns whether this call changed anything.
    pub fn allow_fragments(&self) -> bool {
        if self.fragments.swap(true, Ordering::Relaxed) {
            return false;
        }
        // Every supported kernel has the option; without it, large datagrams stay lost.
        let _ = discover_mtu(
            &self.socket,
            self.local,
            libc::IP_PMTUDISC_DONT,
            libc::IPV6_PMTUDISC_DONT,
        );
        true
    }

    /// The address it is bound to, with the port that the kernel chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The address that packets leave from now: of a socket bound to a wildcard, known since
    /// [`UdpSocket::connect`].
    ///
    /// # Errors
    /// Of `getsockname(2)`.
    pub fn source_addr(&self) -> io::Result<SocketAddr> {
        let local = self.socket.local_addr()?.as_socket();
        local.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// How many segments one super-packet may have: 1 when the kernel does not cut for us on this
    /// socket (it never could, or has refused once). Sending works all the same, at the cost of one
    /// packet's way through the kernel per segment.
    #[must_use]
    pub fn gso_segments_max(&self) -> usize {
        if self.gso.load(Ordering::Relaxed) {
            SEGMENTS_MAX
        } else {
            1
        }
    }

    /// The receive buffer that the kernel gave, bytes by its own count (twice what was asked for,
    /// where it was allowed).
    #[must_use]
    pub fn recv_buffer_bytes(&self) -> usize {
        self.recv_buffer_bytes
    }

    /// Asks the kernel for another receive buffer.
    ///
    /// # Errors
    /// Of `setsockopt(2)`.
    pub fn set_recv_buffer(&mut self, bytes: usize) -> io::Result<()> {
        let options = UdpOptions {
            recv_buffer_bytes: bytes,
            send_buffer_bytes: 0,
            ..UdpOptions::default()
        };
        enlarge_buffers(&self.socket, &options)?;
        self.recv_buffer_bytes = self.socket.recv_buffer_size()?;
        Ok(())
    }

    /// The send buffer that the kernel gave, bytes by its own count (twice what was asked for,
    /// where it was allowed).
    #[must_use]
    pub fn send_buffer_bytes(&self) -> usize {
        self.send_buffer_bytes
    }

    /// The largest IP packet that the route to the peer carries, bytes; none before
    /// [`UdpSocket::connect`].
    #[must_use]
    pub fn path_mtu(&self) -> Option<u32> {
        message::path_mtu(self.as_fd(), self.local.is_ipv4()).ok()
    }

    /// Packets thrown away since the socket was made because its receive buffer was full, as the
    /// kernel counts them (a super-packet is one). The count wraps.
    ///
    /// # Errors
    /// Of `getsockopt(2)` (`SO_MEMINFO`, Linux 4.12).
    pub fn receive_buffer_drops(&self) -> io::Result<u32> {
        message::memory_info(self.as_fd()).map(|info| info[message::MEMORY_INFO_DROPS])
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Options that can be set before and after binding.
fn set_up(socket: &Socket, local: SocketAddr, options: &UdpOptions) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    forbid_fragments(socket, local)?;
    report_arrivals(socket, local, options)?;
    if options.ecn {
        set_ecn_capable(socket, local, true)?;
    }
    enlarge_buffers(socket, options)
}

/// `IP_PMTUDISC_PROBE`: the bit is set, and forged or stale "too big" messages do not shrink what
/// we may send.
fn forbid_fragments(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    discover_mtu(
        socket,
        local,
        libc::IP_PMTUDISC_PROBE,
        libc::IPV6_PMTUDISC_PROBE,
    )
}

/// Sets `IP_MTU_DISCOVER`, and its counterpart where the socket has IPv6.
fn discover_mtu(
    socket: &Socket,
    local: SocketAddr,
    v4: libc::c_int,
    v6: libc::c_int,
) -> io::Result<()> {
    let fd = socket.as_fd();
    message::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4)?;
    if local.is_ipv6() {
        message::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6)?;
    }
    Ok(())
}

fn report_arrivals(socket: &Socket, local: SocketAddr, options: &UdpOptions) -> io::Result<()> {
    let fd = socket.as_fd();
    if options.timestamps {
        // Emulators of Linux may not know it: an arrival is then as old as the call.
        let _ = message::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
    }
    message::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    if local.is_ipv6() {
        message::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }
    if options.report_destination {
        // An IPv6 socket also receives IPv4 packets, with IPv4-mapped addresses.
        let (level, name) = if local.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
        } else {
            (libc::IPPROTO_IP, libc::IP_PKTINFO)
        };
        message::set_option(fd, level, name, 1)?;
    }
    if options.report_errors {
        message::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        if local.is_ipv6() {
            message::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        }
    }
    if options.gro {
        // Before Linux 5.0 the kernel does not know it: every datagram then arrives alone.
        let _ = message::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    Ok(())
}

fn set_ecn_capable(socket: &Socket, local: SocketAddr, capable: bool) -> io::Result<()> {
    const ECT_0: libc::c_int = 0b10;
    let (fd, mark) = (socket.as_fd(), if capable { ECT_0 } else { 0 });
    message::set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, mark)?;
    if local.is_ipv6() {
        message::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, mark)?;
    }
    Ok(())
}

/// With the right to administer the network the system's limit does not hold; without it, as much
/// as it allows.
fn enlarge_buffers(socket: &Socket, options: &UdpOptions) -> io::Result<()> {
    let UdpOptions {
        recv_buffer_bytes: recv,
        send_buffer_bytes: send,
        ..
    } = *options;
    if recv > 0 && sockopt::set_socket_recv_buffer_size_force(socket, recv).is_err() {
        socket.set_recv_buffer_size(recv)?;
    }
    if send > 0 && sockopt::set_socket_send_buffer_size_force(socket, send).is_err() {
        socket.set_send_buffer_size(send)?;
    }
    Ok(())
}

/// Linux 4.18 and later take the option. That a device lacks what it needs shows only when sending.
fn gso_known(socket: &Socket) -> bool {
    message::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

#[cfg(test)]
mod tests;
