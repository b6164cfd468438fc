//! Switches of a network device that have no place in `/proc/sys`: the requests of ethtool(8).

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::tun::{check, interface_request};

/// `ETHTOOL_SGRO` of `linux/ethtool.h`.
const SET_GRO: u32 = 0x2c;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Switches generic receive offload of a device in the calling thread's namespace: joining arriving
/// packets into super-packets. On a veth it takes effect only when switched on by hand.
///
/// # Errors
/// An OS error if there is no such device, if it cannot do it, or without `CAP_NET_ADMIN`.
pub fn set_gro(name: &str, on: bool) -> io::Result<()> {
    exchange(name, SET_GRO, u32::from(on)).map(drop)
}

/// Offloads of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Cut TCP super-packets (`ETHTOOL_GTSO`).
    Tso,
    /// Cut super-packets as late as can be (`ETHTOOL_GGSO`).
    Gso,
    /// Join arriving packets (`ETHTOOL_GGRO`).
    Gro,
    /// Check sums of what arrives (`ETHTOOL_GRXCSUM`).
    RxChecksum,
}

/// Whether an offload of a device in the calling thread's namespace is on.
///
/// # Errors
/// An OS error if there is no such device, or if it knows no such offload.
pub fn offload(name: &str, offload: Offload) -> io::Result<bool> {
    let command = match offload {
        Offload::RxChecksum => 0x14,
        Offload::Tso => 0x1e,
        Offload::Gso => 0x23,
        Offload::Gro => 0x2b,
    };
    exchange(name, command, 0).map(|value| value != 0)
}

fn exchange(name: &str, command: u32, data: u32) -> io::Result<u32> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut value = Value { command, data };
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the socket is open, `request` is initialised and points to the `ethtool_value` that
    // these commands read or write, which outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(value.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert!(set_gro("no-such-dev", true).is_err());
        assert!(offload("no-such-dev", Offload::Gro).is_err());
        assert!(offload("lo", Offload::Gso).is_ok());
    }
}
