//! `HOST:PORT` as people write it and as protocols carry it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use haul_io::address::listen_address;
use haul_report::host_port;
use haul_xsp::wire::{Address, Endpoint};
use serde::{Deserialize, Deserializer, de};

/// Longest name, bytes, without a dot at its end (RFC 1035 §2.3.4).
const NAME_MAX: usize = 253;
/// Longest label, bytes.
const LABEL_MAX: usize = 63;

/// A host and a port, both present. An IPv6 address is in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort(Endpoint);

/// Rejects a text that is not `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no HOST:PORT; an IPv6 address goes in brackets")]
pub struct NoHostPort(String);

impl HostPort {
    /// Parses `HOST:PORT`, or `HOST` with the default `port`.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse_or(text: &str, port: u16) -> Result<Self, NoHostPort> {
        Self::from_str(text)
            .or_else(|_| Self::from_str(&format!("{text}:{port}")))
            .map_err(|_| NoHostPort(text.to_owned()))
    }

    /// Returns the endpoint that sessions carry.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.0
    }
}

impl From<HostPort> for Endpoint {
    fn from(host: HostPort) -> Self {
        host.0
    }
}

impl FromStr for HostPort {
    type Err = NoHostPort;

    fn from_str(text: &str) -> Result<Self, NoHostPort> {
        let parse = || {
            let found = host_port::split(text)?;
            let address = if found.in_brackets {
                Address::V6(found.host.parse::<Ipv6Addr>().ok()?.octets())
            } else {
                host(found.host)?
            };
            let port = host_port::port(found.port?)?;
            Some(Self(Endpoint { address, port }))
        };
        parse().ok_or_else(|| NoHostPort(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)
    }
}

/// Deserializes a listening address: `ADDR:PORT`, IPv6 in brackets, with the scope of a link-local
/// address.
pub(crate) fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    listen_address(&text, None).ok_or_else(|| {
        de::Error::custom(format!(
            "'{text}' is no ADDR:PORT; write 192.0.2.1:7400, [::]:7400 or [fe80::1%eth0]:7400"
        ))
    })
}

/// Deserializes a listening address that may be missing.
pub(crate) fn listen_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    listen(deserializer).map(Some)
}

/// Formats bytes in hexadecimal.
pub(crate) fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Formats any endpoint for people.
#[derive(Debug)]
pub(crate) struct Shown<'a>(pub(crate) &'a Endpoint);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.0.port;
        match &self.0.address {
            Address::V4(octets) => write!(f, "{}:{port}", Ipv4Addr::from(*octets)),
            Address::V6(octets) => write!(f, "[{}]:{port}", Ipv6Addr::from(*octets)),
            Address::Name(name) | Address::Urn(name) => write!(f, "{name}:{port}"),
            Address::Dpid(octets) => write!(f, "dpid {:016x}:{port}", u64::from_be_bytes(*octets)),
        }
    }
}

/// Parses an address or a name; an IPv6 address is in brackets.
pub(crate) fn bracketed(text: &str) -> Option<Address> {
    match text.strip_prefix('[') {
        Some(rest) => {
            let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
            Some(Address::V6(address.octets()))
        }
        None => host(text),
    }
}

/// Parses an IPv4 address or a name. Short forms that resolvers accept (`127.1`, `0x7f000001`) are
/// rejected, so that nothing bypasses a rule about addresses.
pub(crate) fn host(text: &str) -> Option<Address> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(Address::V4(address.octets()));
    }
    let labels = text.strip_suffix('.').unwrap_or(text);
    let is_name = labels.len() <= NAME_MAX && labels.split('.').all(is_label);
    let last = labels.rsplit('.').next()?.as_bytes();
    let is_number = last.iter().all(u8::is_ascii_digit)
        || matches!(last, [b'0', b'x' | b'X', digits @ ..] if digits.iter().all(u8::is_ascii_hexdigit));
    (is_name && !is_number).then(|| Address::Name(text.to_owned()))
}

fn is_label(label: &str) -> bool {
    let is_known = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_');
    (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(is_known)
}

/// Prefix of destinations that are reached by RDMA: the same port of TCP may be another
/// application's.
const RDMA: &str = "urn:haul:rdma:";
/// Longest name of a destination in a session, bytes.
const URN_MAX: usize = 255;

/// Returns the RDMA name of an endpoint; `None` if it is too long.
pub(crate) fn by_rdma(to: &Endpoint) -> Option<Endpoint> {
    let shown = Shown(to).to_string();
    let (host, _) = shown.rsplit_once(':')?;
    let name = format!("{RDMA}{host}");
    (name.len() <= URN_MAX).then_some(Endpoint {
        address: Address::Urn(name),
        port: to.port,
    })
}

/// Returns the endpoint that an RDMA name stands for.
pub(crate) fn of_rdma(to: &Endpoint) -> Option<Endpoint> {
    let Address::Urn(name) = &to.address else {
        return None;
    };
    Some(Endpoint {
        address: bracketed(name.strip_prefix(RDMA)?)?,
        port: to.port,
    })
}

/// Converts to the address that sessions carry.
pub(crate) const fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(ip) => Address::V4(ip.octets()),
        IpAddr::V6(ip) => Address::V6(ip.octets()),
    }
}

/// Converts to the endpoint that sessions carry.
pub(crate) const fn endpoint(to: SocketAddr) -> Endpoint {
    Endpoint {
        address: address(to.ip()),
        port: to.port(),
    }
}

/// Returns the socket address of an endpoint; `None` for names.
pub(crate) fn socket_addr(endpoint: &Endpoint) -> Option<SocketAddr> {
    let ip = match endpoint.address {
        Address::V4(octets) => IpAddr::from(octets),
        Address::V6(octets) => IpAddr::from(octets),
        _ => return None,
    };
    Some(SocketAddr::new(ip, endpoint.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_be_left_out_where_there_is_a_usual_one() {
        let shown = |text| HostPort::parse_or(text, 7).map(|host| host.to_string());
        for (text, whole) in [
            ("gw", "gw:7"),
            ("gw:80", "gw:80"),
            ("192.0.2.1", "192.0.2.1:7"),
            ("[2001:db8::1]", "[2001:db8::1]:7"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(shown(text).unwrap(), whole);
        }
        for text in ["", ":80", "::1", "gw:", "gw:0", "gw:http"] {
            assert_eq!(shown(text), Err(NoHostPort(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        for text in [
            "192.0.2.1:80",
            "[2001:db8::1]:443",
            "host:1",
            "a-b.example.org:65535",
            "example.org.:80",
            "xn--bcher-kva.example:80",
        ] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_host_or_no_port_is_refused() {
        let long = format!("{}:80", "a.".repeat(126) + "a");
        assert!(long.parse::<HostPort>().is_ok());
        for text in [
            "",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:65536",
            "host:+80",
            "2001:db8::1:80",
            "[2001:db8::1]",
            "[2001:db8::1:80",
            "[host]:80",
            "[192.0.2.1]:80",
            "a..b:80",
            ".a:80",
            "a b:80",
            "bücher.example:80",
            "user@host:80",
            &format!("{}:80", "a".repeat(64)),
            &format!("{}:80", "a.".repeat(126) + "aa"),
        ] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn rdma_hosts_are_distinguished_from_others() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:443", "host.example:1"] {
            let to = text.parse::<HostPort>().unwrap().endpoint().clone();
            let meant = by_rdma(&to).unwrap();
            assert_eq!(Shown(&meant).to_string(), format!("{RDMA}{text}"));
            assert_eq!(of_rdma(&meant), Some(to.clone()));
            assert_eq!(of_rdma(&to), None);
        }
        for name in ["urn:haul:udp:host", "urn:haul:rdma:", "urn:haul:rdma:127.1"] {
            let address = Address::Urn(name.to_owned());
            assert_eq!(of_rdma(&Endpoint { address, port: 1 }), None, "{name}");
        }
        let address = Address::Name("a.".repeat(125));
        assert_eq!(by_rdma(&Endpoint { address, port: 1 }), None);
    }

    #[test]
    fn addresses_in_disguise_are_refused() {
        for text in [
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "127.0.0.0x1",
            "010.0.0.1",
            "1.2.3.4.5",
            "256.0.0.1",
        ] {
            assert_eq!(host(text), None, "{text}");
        }
    }
}
