//! Multicast groups and broadcast.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use super::{UdpSocket, message};

impl UdpSocket {
    /// How far packets to groups travel, in routers' hops, and whether members on this host receive
    /// them. From now on the socket receives only the groups that it has joined itself, and may
    /// send to broadcast addresses.
    ///
    /// # Errors
    /// Of `setsockopt(2)`.
    pub fn set_group_options(&self, hops: u8, loopback: bool) -> io::Result<()> {
        let (fd, local) = (self.as_fd(), self.local_addr());
        let (hops, loopback) = (hops.into(), loopback.into());
        let v4 = libc::IPPROTO_IP;
        message::set_option(fd, v4, libc::IP_MULTICAST_TTL, hops)?;
        message::set_option(fd, v4, libc::IP_MULTICAST_LOOP, loopback)?;
        message::set_option(fd, v4, libc::IP_MULTICAST_ALL, 0)?;
        if local.is_ipv6() {
            let v6 = libc::IPPROTO_IPV6;
            message::set_option(fd, v6, libc::IPV6_MULTICAST_HOPS, hops)?;
            message::set_option(fd, v6, libc::IPV6_MULTICAST_LOOP, loopback)?;
            message::set_option(fd, v6, libc::IPV6_MULTICAST_ALL, 0)?;
        }
        self.socket.set_broadcast(true)
    }

    /// Joins `group` at the interface with this address, or the one of the route to it. The socket
    /// sends to groups by that interface.
    ///
    /// # Errors
    /// `InvalidInput` for addresses of two families, `NotFound` where no interface has the address,
    /// `AddrInUse` for a group that was joined there already; else of `setsockopt(2)`.
    pub fn join_group(&self, group: IpAddr, interface: Option<IpAddr>) -> io::Result<()> {
        match target(group, interface)? {
            Group::V4(group, interface) => {
                self.socket.join_multicast_v4(&group, &interface)?;
                self.socket.set_multicast_if_v4(&interface)
            }
            Group::V6(group, interface) => {
                self.socket.join_multicast_v6(&group, interface)?;
                self.socket.set_multicast_if_v6(interface)
            }
        }
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// As [`UdpSocket::join_group`]; `AddrNotAvailable` for a group that was not joined there.
    pub fn leave_group(&self, group: IpAddr, interface: Option<IpAddr>) -> io::Result<()> {
        match target(group, interface)? {
            Group::V4(group, interface) => self.socket.leave_multicast_v4(&group, &interface),
            Group::V6(group, interface) => self.socket.leave_multicast_v6(&group, interface),
        }
    }
}

/// A group at an interface, as each family names it: by its address, by its number. Unspecified and
/// zero leave it to the route.
enum Group {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, u32),
}

fn target(group: IpAddr, interface: Option<IpAddr>) -> io::Result<Group> {
    match (group, interface) {
        (IpAddr::V4(group), None) => Ok(Group::V4(group, Ipv4Addr::UNSPECIFIED)),
        (IpAddr::V4(group), Some(IpAddr::V4(interface))) => Ok(Group::V4(group, interface)),
        (IpAddr::V6(group), None) => Ok(Group::V6(group, 0)),
        (IpAddr::V6(group), Some(IpAddr::V6(interface))) => {
            Ok(Group::V6(group, interface_number(interface)?))
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Which interface has this address. A line of the kernel's list is the address in 32 hexadecimal
/// digits, then the interface's number in hexadecimal.
fn interface_number(address: Ipv6Addr) -> io::Result<u32> {
    let list = std::fs::read_to_string("/proc/self/net/if_inet6")?;
    number_in(&list, address).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn number_in(list: &str, address: Ipv6Addr) -> Option<u32> {
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let digits = u128::from_str_radix(words.next()?, 16).ok()?;
        let number = u32::from_str_radix(words.next()?, 16).ok()?;
        (Ipv6Addr::from(digits) == address).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_address() {
        let list = "fe80000000000000021b21fffe00d001 0b 40 20 80 wlan0\n\
                    00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(number_in(list, Ipv6Addr::LOCALHOST), Some(1));
        assert_eq!(
            number_in(list, "fe80::21b:21ff:fe00:d001".parse().unwrap()),
            Some(11)
        );
        assert_eq!(number_in(list, Ipv6Addr::UNSPECIFIED), None);
    }

    #[test]
    fn two_families_do_not_mix() {
        let v4 = IpAddr::from([239, 1, 1, 1]);
        assert!(target(v4, Some(Ipv6Addr::LOCALHOST.into())).is_err());
    }
}
