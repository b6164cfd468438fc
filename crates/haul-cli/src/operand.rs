//! Files and places as scp's users write them: `host:path`, `[address]:path`, and with a port
//! `host:4725:path`.

use std::ffi::OsStr;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use haul::fault::{Code, Fault};
use haul::printable;
use haul_report::host_port::{self, HostPort};

/// A path of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// Relative to the server's directory.
    pub(crate) path: Vec<u8>,
}

impl Remote {
    /// Reads `HOST:PATH`. A path that begins with `/` is taken from the server's directory as if
    /// that were the root.
    pub(crate) fn parse(operand: &OsStr) -> Result<Self, Fault> {
        let bytes = operand.as_bytes();
        let wrong = || {
            Fault::new(
                Code::Usage,
                format!("'{}' names no server", printable(bytes)),
            )
            .hint("write HOST:PATH, or [ADDRESS]:PATH for an IPv6 address")
        };
        if let Some(address) = bare_ipv6(bytes) {
            return Err(Fault::new(
                Code::Usage,
                format!(
                    "in '{}' it is not clear where the address ends",
                    printable(bytes)
                ),
            )
            .hint(format!("put it in brackets, as in '[{address}]:PATH'")));
        }
        let (host, rest) = split_host(bytes).ok_or_else(wrong)?;
        let host = std::str::from_utf8(host).map_err(|_| wrong())?;
        if host.is_empty() || host.contains('/') {
            return Err(wrong());
        }
        let (port, path) = split_port(rest);
        let slashes = path.iter().take_while(|byte| **byte == b'/').count();
        Ok(Self {
            host: host.to_owned(),
            port,
            path: path[slashes..].to_vec(),
        })
    }
}

/// A server named alone: `host`, `host:port`, `[address]:port`.
pub(crate) fn host_and_port(text: &str) -> (String, Option<u16>) {
    let Some(HostPort { host, port, .. }) = host_port::split(text) else {
        return (text.to_owned(), None);
    };
    match port.map(host_port::port) {
        Some(Some(port)) => (host.to_owned(), Some(port)),
        // What is not a port is not cut off: the host that is then not found shows what was
        // written.
        Some(None) => (text.to_owned(), None),
        None => (host.to_owned(), None),
    }
}

/// Parses where a server is to listen: an address, with or without a port.
pub(crate) fn listen_address(text: &str, port: u16) -> Result<SocketAddr, Fault> {
    haul::server::listen_address(text, Some(port)).ok_or_else(|| {
        Fault::new(
            Code::Usage,
            format!("'{}' is no address", printable(text.as_bytes())),
        )
        .hint("write ADDR, ADDR:PORT or [ADDR]:PORT; link-local ones as [fe80::1%eth0]:PORT")
    })
}

/// The IPv6 address that `bytes` begins with although it is not in brackets.
fn bare_ipv6(bytes: &[u8]) -> Option<Ipv6Addr> {
    let text = std::str::from_utf8(bytes).ok()?;
    let colons = text.match_indices(':').map(|(at, _)| at);
    let mut addresses = colons.filter_map(|at| text[..at].parse().ok());
    addresses.next_back()
}

/// The host and what follows its colon.
fn split_host(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(inside) = bytes.strip_prefix(b"[") {
        let close = inside.iter().position(|byte| *byte == b']')?;
        let rest = inside[close + 1..].strip_prefix(b":")?;
        return Some((&inside[..close], rest));
    }
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    Some((&bytes[..colon], &bytes[colon + 1..]))
}

/// A port in front of another colon, if there is one.
fn split_port(rest: &[u8]) -> (Option<u16>, &[u8]) {
    let Some(colon) = rest.iter().position(|byte| *byte == b':') else {
        return (None, rest);
    };
    let port = std::str::from_utf8(&rest[..colon])
        .ok()
        .and_then(|port| port.parse().ok());
    match port {
        Some(port) => (Some(port), &rest[colon + 1..]),
        None => (None, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, Option<u16>, String)> {
        let remote = Remote::parse(OsStr::new(text)).ok()?;
        Some((
            remote.host,
            remote.port,
            String::from_utf8(remote.path).unwrap(),
        ))
    }

    #[test]
    fn operands_are_read_as_scp_reads_them() {
        let some = |host: &str, port, path: &str| Some((host.into(), port, path.into()));
        assert_eq!(parse("host:dir/"), some("host", None, "dir/"));
        assert_eq!(parse("host:"), some("host", None, ""));
        assert_eq!(parse("host:/dir/"), some("host", None, "dir/"));
        assert_eq!(parse("[::1]:a:b"), some("::1", None, "a:b"));
        assert_eq!(parse("[::1]:99:b"), some("::1", Some(99), "b"));
        assert_eq!(parse("10.0.0.1:4726:x"), some("10.0.0.1", Some(4726), "x"));
        assert_eq!(parse("[fe80::1%eth0]:b"), some("fe80::1%eth0", None, "b"));
        for bad in ["file", ":x", "a/b:c", "[::1]", "[::1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_ipv6_address_without_brackets_is_told_from_a_host() {
        for (bare, address) in [
            ("::1:dir/", "[::1]"),
            ("2001:db8::1:4725:dir/", "[2001:db8::1:4725]"),
        ] {
            let fault = Remote::parse(OsStr::new(bare)).unwrap_err();
            assert!(fault.hint.unwrap().contains(address), "{bare}");
        }
        assert!(Remote::parse(OsStr::new("beef:dir/")).is_ok());
    }

    #[test]
    fn a_server_alone_may_carry_its_port() {
        let some = |host: &str, port| (host.to_owned(), port);
        assert_eq!(host_and_port("host"), some("host", None));
        assert_eq!(host_and_port("host:9"), some("host", Some(9)));
        assert_eq!(host_and_port("::1"), some("::1", None));
        assert_eq!(host_and_port("[::1]"), some("::1", None));
        assert_eq!(host_and_port("[::1]:9"), some("::1", Some(9)));
        assert_eq!(host_and_port("fe80::1%2"), some("fe80::1%2", None));
        assert_eq!(host_and_port("[fe80::1%2]:9"), some("fe80::1%2", Some(9)));
        for bad in ["host:port", "host:0", "[::1", "[::1]9"] {
            assert_eq!(host_and_port(bad), some(bad, None));
        }
    }
}
