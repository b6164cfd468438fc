//! Internet addresses as librdmacm takes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::ffi::cm::SockAddr;
use crate::ffi::verbs::GidEntry;

/// `AF_INET` of Linux.
pub(crate) const AF_INET: u16 = 2;
/// `AF_INET6` of Linux.
pub(crate) const AF_INET6: u16 = 10;

pub(crate) fn to_c(address: SocketAddr) -> SockAddr {
    let mut c = SockAddr {
        family: AF_INET,
        port: address.port().to_be_bytes(),
        v4: [0; 4],
        v6: [0; 16],
        scope_id: 0,
        rest: [0; 100],
    };
    match address {
        SocketAddr::V4(v4) => c.v4 = v4.ip().octets(),
        SocketAddr::V6(v6) => {
            c.family = AF_INET6;
            c.v4 = v6.flowinfo().to_be_bytes();
            c.v6 = v6.ip().octets();
            c.scope_id = v6.scope_id();
        }
    }
    c
}

/// None for another family.
pub(crate) fn from_c(c: &SockAddr) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(c.port);
    match c.family {
        AF_INET => Some(SocketAddr::from((c.v4, port))),
        AF_INET6 => Some(SocketAddr::V6(SocketAddrV6::new(
            c.v6.into(),
            port,
            u32::from_be_bytes(c.v4),
            c.scope_id,
        ))),
        _ => None,
    }
}

/// The address among those of a RoCE port from which to reach `peer`: of its family, sharing the
/// longest prefix with it (RFC 6724 §5, rule 8). Naming it makes the connection manager choose this
/// device, whatever the routes are.
pub(crate) fn source_for(peer: SocketAddr, gids: &[GidEntry]) -> Option<SocketAddr> {
    let candidates = gids.iter().filter_map(|entry| {
        let address = Ipv6Addr::from(entry.gid.raw).to_canonical();
        let scope_id = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => entry.ndev_ifindex,
            _ => 0,
        };
        let source = with_scope(address, scope_id);
        let fits = match (peer, source) {
            (SocketAddr::V4(_), SocketAddr::V4(_)) => true,
            (SocketAddr::V6(peer), SocketAddr::V6(source)) => {
                peer.ip().is_unicast_link_local() == source.ip().is_unicast_link_local()
                    && (peer.scope_id() == 0 || peer.scope_id() == source.scope_id())
            }
            _ => false,
        };
        fits.then_some(source)
    });
    candidates.max_by_key(|source| common_prefix(source.ip(), peer.ip()))
}

fn with_scope(address: IpAddr, scope_id: u32) -> SocketAddr {
    match address {
        IpAddr::V4(v4) => SocketAddr::from((v4, 0)),
        IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, 0, 0, scope_id)),
    }
}

fn common_prefix(one: IpAddr, other: IpAddr) -> u32 {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    (bits(one) ^ bits(other)).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::verbs::{Gid, gid_type};

    fn entry(address: &str) -> GidEntry {
        let raw = match address.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        GidEntry {
            gid: Gid { raw },
            gid_index: 0,
            port_num: 1,
            gid_type: gid_type::ROCE_V2,
            ndev_ifindex: 7,
        }
    }

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["10.8.0.1:4791", "[2001:db8::1]:80", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_c(&to_c(address)), Some(address));
        }
    }

    #[test]
    fn a_source_is_of_the_peers_family_and_nearest() {
        let gids = ["fe80::1", "10.1.0.1", "10.8.0.1", "2001:db8::1"].map(entry);
        let source = |peer: &str| {
            let source = source_for(peer.parse().unwrap(), &gids)?;
            Some(source.to_string())
        };
        assert_eq!(source("10.8.0.2:1").unwrap(), "10.8.0.1:0");
        assert_eq!(source("10.1.3.4:1").unwrap(), "10.1.0.1:0");
        assert_eq!(source("[2001:db8::2]:1").unwrap(), "[2001:db8::1]:0");
        assert_eq!(source("[fe80::2%7]:1").unwrap(), "[fe80::1%7]:0");
        assert_eq!(source("[fe80::2%8]:1"), None);
    }
}
