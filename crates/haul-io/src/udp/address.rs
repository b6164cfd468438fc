//! Socket addresses in the kernel's layout.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for an IPv4 or IPv6 socket address. All of its bytes are always initialised.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

const FAMILY_V4: libc::sa_family_t = 2;
const FAMILY_V6: libc::sa_family_t = 10;
const _: () = assert!(libc::AF_INET == 2 && libc::AF_INET6 == 10);

impl Address {
    /// No address: for the kernel to fill in.
    pub(super) const EMPTY: Self = Self {
        v6: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    /// The address, and how many of the leading bytes it takes.
    pub(super) fn new(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut out = Self::EMPTY;
        match address {
            SocketAddr::V4(address) => {
                out.v4 = libc::sockaddr_in {
                    sin_family: FAMILY_V4,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                (out, socklen::<libc::sockaddr_in>())
            }
            SocketAddr::V6(address) => {
                out.v6 = libc::sockaddr_in6 {
                    sin6_family: FAMILY_V6,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                (out, socklen::<libc::sockaddr_in6>())
            }
        }
    }

    /// The address that the kernel put here, if it is one of IP; an IPv4-mapped address is returned
    /// as IPv4.
    pub(super) fn decode(&self) -> Option<SocketAddr> {
        // SAFETY: every variant starts with the family, and all bytes are initialised.
        match unsafe { self.family } {
            FAMILY_V4 => {
                // SAFETY: all bytes are initialised and any bits are a valid `sockaddr_in`.
                let v4 = unsafe { self.v4 };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            FAMILY_V6 => {
                // SAFETY: all bytes are initialised and any bits are a valid `sockaddr_in6`.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(match ip.to_ipv4_mapped() {
                    Some(ip) => SocketAddrV4::new(ip, port).into(),
                    None => SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into(),
                })
            }
            _ => None,
        }
    }
}

pub(super) const fn socklen<T>() -> libc::socklen_t {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "socket addresses are a few bytes"
    )]
    let len = size_of::<T>() as libc::socklen_t;
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_layout() {
        for text in ["192.0.2.1:65535", "[2001:db8::1]:1", "[fe80::1%3]:4433"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::new(address).0.decode(), Some(address));
        }
        assert_eq!(Address::EMPTY.decode(), None);
    }

    #[test]
    fn ipv4_in_ipv6_clothes_is_ipv4() {
        let mapped = "[::ffff:192.0.2.1]:80".parse().unwrap();
        assert_eq!(
            Address::new(mapped).0.decode(),
            Some("192.0.2.1:80".parse().unwrap())
        );
    }
}
