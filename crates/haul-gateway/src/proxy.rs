//! The header of the PROXY protocol, version 2 (HAProxy, proxy-protocol.txt §2.2): it carries the
//! client's address to a server.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPEC: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Builds the header of a connection from `client` to `server`. If the client is unknown, the
/// header states that the connection is the gateway's own (LOCAL).
pub(crate) fn header(client: Option<SocketAddr>, server: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let Some(client) = client else {
        header.extend([LOCAL, UNSPEC, 0, 0]);
        return header;
    };
    let (from, to) = (client.ip().to_canonical(), server.ip().to_canonical());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend([PROXY, TCP4, 0, 12]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        (from, to) => {
            header.extend([PROXY, TCP6, 0, 36]);
            header.extend(mapped(from));
            header.extend(mapped(to));
        }
    }
    header.extend(client.port().to_be_bytes());
    header.extend(server.port().to_be_bytes());
    header
}

/// An IPv4 address beside one of IPv6 is written as an IPv4-mapped one.
fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_of(client: &str, server: &str) -> Vec<u8> {
        header(client.parse().ok(), server.parse().unwrap())
    }

    #[test]
    fn headers_are_those_of_the_specification() {
        let signature = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a";
        let v4 = header_of("192.0.2.1:40000", "198.51.100.2:80");
        assert_eq!(v4[..12], *signature);
        assert_eq!(
            v4[12..],
            [
                0x21, 0x11, 0, 12, 192, 0, 2, 1, 198, 51, 100, 2, 0x9c, 0x40, 0, 80
            ]
        );
        let v6 = header_of("[2001:db8::1]:1", "[2001:db8::2]:2");
        assert_eq!(v6[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(v6[16..20], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!((v6.len(), &v6[48..]), (52, &[0, 1, 0, 2][..]));
        assert_eq!(header_of("session", "192.0.2.1:1")[12..], [0x20, 0, 0, 0]);
    }

    #[test]
    fn families_that_differ_are_written_as_ipv6() {
        let mixed = header_of("192.0.2.1:1", "[2001:db8::2]:2");
        assert_eq!(mixed[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(mixed[26..32], [0xff, 0xff, 192, 0, 2, 1]);
        let both = header_of("[::ffff:192.0.2.1]:1", "198.51.100.2:2");
        assert_eq!(both[13], 0x11);
    }
}
