//! Addresses as people write them, IPv6 scopes included, and as budgets count them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ptr;

/// Parses where to listen: `ADDR`, `ADDR:PORT`, `[ADDR]:PORT`, with the scope of a link-local IPv6
/// address by name or number (`fe80::1%eth0`, RFC 4007 §11). `port` stands in for a missing port;
/// `None` makes the port mandatory. Host names are refused.
#[must_use]
pub fn listen_address(text: &str, port: Option<u16>) -> Option<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, ""))) => (host, port),
        Some(Some((host, rest))) => (host, Some(rest.strip_prefix(':')?.parse().ok()?)),
        Some(None) => return None,
        None => (text, port),
    };
    let port = port?;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    let (ip, scope) = host.split_once('%')?;
    ip.parse::<Ipv6Addr>().ok().filter(|_| !scope.is_empty())?;
    // getaddrinfo(3) knows the index of an interface; of a numeric host it asks no name server.
    (host, port).to_socket_addrs().ok()?.next()
}

/// Returns what one holder of addresses counts as: the address in IPv4, all of its /64 in IPv6 (RFC
/// 6177 §2).
#[must_use]
pub fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

/// The addresses of this host's interfaces, as the kernel listed them.
struct Interfaces(*mut libc::ifaddrs);

impl Drop for Interfaces {
    fn drop(&mut self) {
        // SAFETY: getifaddrs(3) made the list, and no reference into it is left.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// Returns the addresses at which other hosts may reach this one: those of interfaces that are up,
/// without loopback and link-local addresses, in the order of the interfaces.
///
/// # Errors
/// That of `getifaddrs(3)`.
pub fn own() -> io::Result<Vec<IpAddr>> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` is valid for one pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let list = Interfaces(first);
    let mut own = Vec::new();
    let mut next = list.0;
    // SAFETY: `next` is null or an entry of the list, which lives until `list` is dropped.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let is_up = entry.ifa_flags & libc::IFF_UP.cast_unsigned() != 0;
        if let Some(ip) = ip_of(entry).filter(|ip| is_up && is_reachable(*ip)) {
            own.push(ip);
        }
    }
    Ok(own)
}

/// Returns the IP address of an entry, if it has one.
fn ip_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    let address = entry.ifa_addr;
    // SAFETY: it is null or points to a socket address, which begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`, perhaps unaligned.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a `sockaddr_in6`, perhaps unaligned.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn is_reachable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !is_link_local
}

/// Returns when an attempt to connect that begins at `now_ns` is given up for the next address, ns.
/// The attempt and each of the `others` behind it get an equal part of the time left until
/// `until_ns`; the last one gets all of it.
#[must_use]
pub const fn attempt_deadline_ns(now_ns: u64, until_ns: u64, others: usize) -> u64 {
    now_ns + until_ns.saturating_sub(now_ns) / (others as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_can_be_bound_and_lead_to_other_hosts() {
        for ip in own().unwrap() {
            assert!(is_reachable(ip), "{ip}");
            std::net::TcpListener::bind((ip, 0)).unwrap();
        }
        for text in ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0"] {
            assert!(!is_reachable(text.parse().unwrap()), "{text}");
        }
        for text in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(is_reachable(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let source = |text: &str| source(text.parse().unwrap());
        assert_eq!(source("2001:db8::1:2:3:4"), source("2001:db8::ffff"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }

    #[test]
    fn an_address_may_leave_out_its_port_and_may_have_a_scope() {
        let address = |text| listen_address(text, Some(7)).map(|address| address.to_string());
        assert_eq!(address("127.0.0.1").as_deref(), Some("127.0.0.1:7"));
        assert_eq!(address("127.0.0.1:9").as_deref(), Some("127.0.0.1:9"));
        assert_eq!(address("::1").as_deref(), Some("[::1]:7"));
        assert_eq!(address("[::1]").as_deref(), Some("[::1]:7"));
        assert_eq!(address("[::1]:9").as_deref(), Some("[::1]:9"));
        // The loopback interface is the first one in every network namespace.
        assert_eq!(address("fe80::1%lo").as_deref(), Some("[fe80::1%1]:7"));
        assert_eq!(address("[fe80::1%lo]:9").as_deref(), Some("[fe80::1%1]:9"));
        assert_eq!(address("[fe80::1%1]").as_deref(), Some("[fe80::1%1]:7"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "host",
            "host:9",
            "[::1",
            "[::1]9",
            "[::1]:port",
            "[::1]:65536",
            "127.0.0.1%lo",
            "fe80::1%",
            "[fe80::1%]:9",
            "[fe80::1%no-such-interface]:9",
        ] {
            assert_eq!(listen_address(text, Some(7)), None, "{text}");
        }
    }

    #[test]
    fn a_mandatory_port_may_not_be_missing() {
        for text in ["127.0.0.1", "::1", "[::1]", "[fe80::1%lo]"] {
            assert_eq!(listen_address(text, None), None, "{text}");
        }
        assert!(listen_address("[fe80::1%lo]:9", None).is_some());
    }

    #[test]
    fn each_address_has_an_equal_part_of_the_time_left() {
        assert_eq!(attempt_deadline_ns(5, 15, 1), 10);
        assert_eq!(attempt_deadline_ns(5, 15, 4), 7);
        assert_eq!(attempt_deadline_ns(10, 15, 0), 15);
        // A deadline that has passed leaves nothing.
        assert_eq!(attempt_deadline_ns(16, 15, 3), 16);
    }
}
