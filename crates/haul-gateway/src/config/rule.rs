//! Rules about hosts and ports: allowed destinations, next hops and routes.
//!
//! `PREFIX` is an address or a prefix in CIDR notation. With a port, an IPv6 prefix is in brackets:
//! `[2001:db8::/32]:443`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use haul_report::host_port::{self, HostPort};
use haul_xsp::Allowed;
use haul_xsp::wire::{Address, Endpoint};
use serde::{Deserialize, Deserializer, de};

use crate::host;

/// An address prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    /// At most 32 or 128.
    bits: u8,
}

/// Addresses, and one port or any: `PREFIX[:PORT]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRule {
    prefix: Prefix,
    port: Option<u16>,
}

/// Gateways: `PREFIX[:PORT]` or `NAME[:PORT]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HopRule {
    /// By address.
    Address(AddressRule),
    /// By name, exactly as the session carries it.
    Name(String, Option<u16>),
}

/// Destinations: `PREFIX`, `NAME`, `.DOMAIN` or `*`, each with `:PORT` or without.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hosts {
    Prefix(Prefix),
    Name(String),
    /// All names below it, without the leading dot.
    Domain(String),
    Any,
}

/// Rejects a text that is not such a rule, and states the form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {form}")]
pub struct NoRule {
    text: String,
    form: &'static str,
}

/// Special addresses, which a wider prefix does not match: this host, link-local ones (cloud
/// metadata among them), multicast. A rule within one of them matches.
const SPECIAL: [Prefix; 8] = [
    Prefix::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8),
    Prefix::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    Prefix::new(IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    Prefix::new(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 3),
    Prefix::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128),
    Prefix::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    Prefix::new(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    Prefix::new(IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

impl Prefix {
    const fn new(address: IpAddr, bits: u8) -> Self {
        Self { address, bits }
    }

    /// Returns whether the prefix covers `address`. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn covers(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }

    fn lies_within(&self, wider: &Self) -> bool {
        self.bits >= wider.bits && wider.covers(self.address)
    }

    /// Whether all bits behind the prefix are zero.
    fn is_exact(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => u32::from(self.bits) + address.to_bits().trailing_zeros() >= 32,
            IpAddr::V6(address) => u32::from(self.bits) + address.to_bits().trailing_zeros() >= 128,
        }
    }
}

impl AddressRule {
    /// Returns whether a connection to `to` is allowed.
    #[must_use]
    pub fn allows(&self, to: SocketAddr) -> bool {
        let address = to.ip().to_canonical();
        let is_meant = SPECIAL
            .iter()
            .filter(|special| special.covers(address))
            .all(|special| self.prefix.lies_within(special));
        self.port.is_none_or(|port| port == to.port()) && self.prefix.covers(address) && is_meant
    }
}

impl HopRule {
    /// Converts to a rule of the directory of sessions.
    #[must_use]
    pub fn allowed(&self) -> Allowed {
        match self {
            Self::Address(rule) => Allowed {
                address: host::address(rule.prefix.address),
                prefix: rule.prefix.bits,
                port: rule.port,
            },
            Self::Name(name, port) => Allowed {
                address: Address::Name(name.clone()),
                prefix: 0,
                port: *port,
            },
        }
    }
}

impl Destination {
    /// Whether it matches everything.
    pub(crate) fn is_any(&self) -> bool {
        self.hosts == Hosts::Any && self.port.is_none()
    }

    /// Returns whether it covers `to`. Names compare without case and without a final dot.
    #[must_use]
    pub fn covers(&self, to: &Endpoint) -> bool {
        if self.port.is_some_and(|port| port != to.port) {
            return false;
        }
        match (&self.hosts, &to.address) {
            (Hosts::Any, _) => true,
            (Hosts::Prefix(prefix), Address::V4(octets)) => prefix.covers((*octets).into()),
            (Hosts::Prefix(prefix), Address::V6(octets)) => prefix.covers((*octets).into()),
            (Hosts::Name(own), Address::Name(name)) => bare(name).eq_ignore_ascii_case(bare(own)),
            (Hosts::Domain(domain), Address::Name(name)) => is_below(bare(name), bare(domain)),
            _ => false,
        }
    }
}

/// Strips a final dot.
fn bare(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

fn is_below(name: &str, domain: &str) -> bool {
    let at = name.len().checked_sub(domain.len());
    at.and_then(|at| name.split_at_checked(at))
        .is_some_and(|(head, tail)| {
            head.len() > 1 && head.ends_with('.') && tail.eq_ignore_ascii_case(domain)
        })
}

impl FromStr for Prefix {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let parse = || {
            let (address, bits) = match text.split_once('/') {
                Some((address, bits)) => (address, Some(bits)),
                None => (text, None),
            };
            let address: IpAddr = address.parse().ok()?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
            let prefix = Self::new(address, bits);
            let is_plain = address == address.to_canonical();
            (bits <= most && is_plain && prefix.is_exact()).then_some(prefix)
        };
        parse().ok_or_else(|| NoRule {
            text: text.to_owned(),
            form: "an address, or a prefix such as 192.0.2.0/24 or 2001:db8::/32 with zeros behind its bits",
        })
    }
}

impl FromStr for AddressRule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let parse = || {
            let (host, port) = split(text)?;
            let prefix = host.parse().ok()?;
            Some(Self { prefix, port })
        };
        parse().ok_or_else(|| NoRule {
            text: text.to_owned(),
            form: "PREFIX[:PORT], such as 192.0.2.0/24, 192.0.2.1:443 or [2001:db8::/32]:443",
        })
    }
}

impl FromStr for HopRule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let parse = || {
            let (host, port) = split(text)?;
            if let Ok(prefix) = host.parse() {
                return Some(Self::Address(AddressRule { prefix, port }));
            }
            let Address::Name(name) = host::host(host)? else {
                return None;
            };
            Some(Self::Name(name, port))
        };
        parse().ok_or_else(|| NoRule {
            text: text.to_owned(),
            form: "PREFIX[:PORT] or NAME[:PORT]",
        })
    }
}

impl Destination {
    /// Matches everything.
    #[must_use]
    pub const fn any() -> Self {
        Self {
            hosts: Hosts::Any,
            port: None,
        }
    }
}

impl FromStr for Destination {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let parse = || {
            let (host, port) = split(text)?;
            let hosts = match host.strip_prefix('.') {
                _ if host == "*" => Hosts::Any,
                Some(domain) => match host::host(domain)? {
                    Address::Name(name) => Hosts::Domain(name),
                    _ => return None,
                },
                None => match (host.parse(), host::host(host)) {
                    (Ok(prefix), _) => Hosts::Prefix(prefix),
                    (_, Some(Address::Name(name))) => Hosts::Name(name),
                    _ => return None,
                },
            };
            Some(Self { hosts, port })
        };
        parse().ok_or_else(|| NoRule {
            text: text.to_owned(),
            form: "PREFIX, NAME, .DOMAIN or *, each with :PORT or without; an IPv6 prefix with a port goes in brackets",
        })
    }
}

/// Splits host and port. A text with several colons and no brackets is an IPv6 address without a
/// port.
fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let HostPort { host, port, .. } = host_port::split(text)?;
    match port {
        Some(port) => Some((host, Some(host_port::port(port)?))),
        None => Some((host, None)),
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Prefix(prefix) if prefix.address.is_ipv6() && self.port.is_some() => {
                write!(f, "[{prefix}]")
            }
            Hosts::Prefix(prefix) => prefix.fmt(f),
            Hosts::Name(name) => f.write_str(name),
            Hosts::Domain(domain) => write!(f, ".{domain}"),
            Hosts::Any => f.write_str("*"),
        }?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_one = self.bits == if self.address.is_ipv4() { 32 } else { 128 };
        match is_one {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

macro_rules! deserialize {
    ($($type:ty),*) => {
        $(impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        })*
    };
}

deserialize!(Prefix, AddressRule, HopRule, Destination);

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(rule: &str, to: &str) -> bool {
        let rule: AddressRule = rule.parse().unwrap();
        rule.allows(to.parse().unwrap())
    }

    #[test]
    fn a_rule_about_addresses_allows_its_prefix_and_its_port() {
        assert!(allows("192.0.2.0/24", "192.0.2.255:1"));
        assert!(!allows("192.0.2.0/24", "192.0.3.0:1"));
        assert!(allows("192.0.2.1:443", "192.0.2.1:443"));
        assert!(!allows("192.0.2.1:443", "192.0.2.1:444"));
        assert!(allows("[2001:db8::/32]:443", "[2001:db8:ffff::1]:443"));
        assert!(!allows("2001:db8::/32", "[2001:db9::1]:443"));
        assert!(!allows("2001:db8::/32", "192.0.2.1:443"));
    }

    #[test]
    fn an_ipv4_address_within_ipv6_is_what_it_stands_for() {
        assert!(allows("192.0.2.0/24", "[::ffff:192.0.2.1]:1"));
        assert!(!allows("::/0", "[::ffff:192.0.2.1]:1"));
    }

    #[test]
    fn everything_is_not_this_host_nor_its_link() {
        for own in [
            "127.0.0.1:1",
            "0.0.0.0:1",
            "169.254.169.254:80",
            "224.0.0.1:1",
            "255.255.255.255:1",
        ] {
            assert!(!allows("0.0.0.0/0", own), "{own}");
        }
        for own in [
            "[::1]:1",
            "[::]:1",
            "[fe80::1]:1",
            "[ff02::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(!allows("::/0", own) && !allows("0.0.0.0/0", own), "{own}");
        }
        assert!(allows("127.0.0.0/8", "127.0.0.1:1"));
        assert!(allows("127.0.0.1", "127.0.0.1:1"));
        assert!(allows("::1", "[::1]:1"));
        assert!(allows("fe80::/10", "[fe80::1]:1"));
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        for text in [
            "",
            "*",
            "host",
            "192.0.2.1/24",
            "192.0.2.0/33",
            "192.0.2.0/-1",
            "192.0.2.1:0",
            "2001:db8::/129",
            "::ffff:192.0.2.1",
            "[::1",
            "[::1]x",
        ] {
            assert!(text.parse::<AddressRule>().is_err(), "{text}");
        }
        for text in ["", "*", ".example.org", "a b", "127.1"] {
            assert!(text.parse::<HopRule>().is_err(), "{text}");
        }
        for text in [
            "",
            ".",
            "**",
            "*.example.org",
            ".192.0.2.1",
            "example.org:",
            ":80",
            "192.0.2.1/24",
        ] {
            assert!(text.parse::<Destination>().is_err(), "{text}");
        }
    }

    #[test]
    fn destinations_are_addresses_names_domains_or_anything() {
        let covers = |rule: &str, to: &str| {
            let rule: Destination = rule.parse().unwrap();
            let to: host::HostPort = to.parse().unwrap();
            rule.covers(to.endpoint())
        };
        assert!(covers("*", "host:1") && covers("*", "[::1]:1") && !covers("*:2", "host:1"));
        assert!(covers("10.0.0.0/8", "10.9.8.7:1") && !covers("10.0.0.0/8", "host:1"));
        assert!(covers("127.0.0.0/8", "127.0.0.1:1"));
        assert!(
            covers("example.org", "EXAMPLE.org.:1") && !covers("example.org", "a.example.org:1")
        );
        assert!(covers(".example.org", "a.b.Example.org:1"));
        assert!(
            !covers(".example.org", "example.org:1") && !covers(".example.org", "badexample.org:1")
        );
        assert!(covers("[2001:db8::/32]:443", "[2001:db8::1]:443"));
    }

    #[test]
    fn destinations_print_as_they_are_written() {
        for text in [
            "*",
            "*:80",
            "192.0.2.0/24",
            "[2001:db8::/32]:443",
            "2001:db8::1",
            ".example.org:1",
            "host",
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn hops_are_handed_to_the_directory_as_they_are() {
        let allowed = |text: &str| text.parse::<HopRule>().unwrap().allowed();
        let rule = allowed("192.0.2.0/24:7000");
        assert_eq!(
            (rule.address, rule.prefix, rule.port),
            (Address::V4([192, 0, 2, 0]), 24, Some(7000))
        );
        let rule = allowed("gw.example.org");
        assert_eq!(
            (rule.address, rule.port),
            (Address::Name("gw.example.org".to_owned()), None)
        );
    }
}
