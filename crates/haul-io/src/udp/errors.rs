//! Errors that the network reports for sent datagrams: the error queue of a socket (ip(7),
//! `IP_RECVERR`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::control::{Undelivered, error_of};
use super::{UdpSocket, message};

/// A datagram did not get to where it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkError {
    /// Where to. Without the port where this host itself finds it too long.
    pub to: SocketAddr,
    /// Why not.
    pub why: Undelivered,
    /// This host reported the error, not a router or the peer.
    pub local: bool,
    quoted: Quoted,
}

/// The beginning of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quoted {
    octets: [u8; QUOTED_MAX],
    len: usize,
}

/// Bytes that are kept of what the network quotes.
pub const QUOTED_MAX: usize = 32;

impl NetworkError {
    /// The beginning of the datagram's payload, as quoted by the sender of the ICMP error:
    /// [`QUOTED_MAX`] bytes at most. ICMP errors are not authenticated: an attacker who guesses the
    /// ports of a datagram can forge them (RFC 5927). A quotation of unpredictable bytes proves
    /// that its sender has seen the datagram.
    #[must_use]
    pub fn quoted(&self) -> &[u8] {
        &self.quoted.octets[..self.quoted.len]
    }
}

impl UdpSocket {
    /// The oldest of the network's complaints that was not taken yet; none are kept without
    /// [`report_errors`](super::UdpOptions::report_errors). A new one is also the error of the next
    /// call that sends or receives.
    ///
    /// # Errors
    /// Of `recvmsg(2)`.
    pub fn next_error(&self) -> io::Result<Option<NetworkError>> {
        loop {
            let mut octets = [0; QUOTED_MAX];
            let Some(meta) = message::receive_error(self.as_fd(), &mut octets)? else {
                return Ok(None);
            };
            let notes = &meta.control.0[..meta.control_len];
            if let (Some(to), Some((why, local))) = (meta.from.decode(), error_of(notes)) {
                let len = meta.bytes;
                return Ok(Some(NetworkError {
                    to,
                    why,
                    local,
                    quoted: Quoted { octets, len },
                }));
            }
        }
    }
}

/// Whether the error of a call may be the network's answer to an earlier datagram (icmp(7) has the
/// list): then nothing was sent now, and another attempt shows whether the error persists.
#[must_use]
pub fn may_be_late(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EMSGSIZE
                | libc::EACCES
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EPROTO
        )
    )
}

/// Whether a datagram was too large for the path: for this host's interface, or, by ICMP, for a
/// router. Then either that datagram or an earlier one was lost.
#[must_use]
pub fn is_too_large(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// The largest IP packet that the host's route to `to` takes, bytes: of its interface, or less if
/// the network has reported a smaller path MTU.
///
/// # Errors
/// Of `socket(2)` and `connect(2)`: no route.
pub fn route_mtu(to: SocketAddr) -> io::Result<u32> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&SockAddr::from(to))?;
    message::path_mtu(socket.as_fd(), to.is_ipv4())
}
