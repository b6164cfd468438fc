//! Files and places on the command line: `[USER@]HOST:PATH` is a host reached by ssh,
//! `haul://HOST[:PORT]/PATH` a server, `haul:HOST:PORT` a receiver that waits with a code.

use std::ffi::OsStr;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use haul::fault::{Code, Fault};
use haul::printable;
use haul_report::host_port::{self, HostPort};

/// Begins the operand of a standing server.
const SERVER: &[u8] = b"haul://";
/// Begins the operand of a receiver that waits with a code.
const PAIRING: &[u8] = b"haul:";

/// How a host is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// By ssh: the destination as `ssh` takes it, `[USER@]HOST` without brackets.
    Ssh(String),
    /// At a standing server, `haul serve`.
    Server {
        /// Name or address.
        host: String,
        /// Its port, unless it is the default one.
        port: Option<u16>,
    },
    /// At `haul receive`, whose code is entered at a prompt.
    Pairing {
        /// Name or address.
        host: String,
        /// Its port.
        port: u16,
    },
}

/// A path of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) way: Way,
    /// As the user wrote it for ssh; relative to the server's directory for a server.
    pub(crate) path: Vec<u8>,
}

impl Remote {
    /// Parses the operand of a remote file or directory. `haul://` takes the path from the server's
    /// directory, byte for byte, without percent-encoding.
    pub(crate) fn parse(operand: &OsStr) -> Result<Self, Fault> {
        let bytes = operand.as_bytes();
        if let Some(rest) = bytes.strip_prefix(SERVER) {
            return server(bytes, rest);
        }
        if let Some(rest) = bytes.strip_prefix(PAIRING) {
            return pairing(bytes, rest);
        }
        ssh(bytes)
    }

    /// Returns the operand without its path, for messages and comparisons.
    pub(crate) fn host(&self) -> String {
        let authority = |host: &str| match host.contains(':') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        match &self.way {
            Way::Ssh(destination) => destination.clone(),
            Way::Server { host, port: None } => format!("haul://{}", authority(host)),
            Way::Server {
                host,
                port: Some(port),
            } => format!("haul://{}:{port}", authority(host)),
            Way::Pairing { host, port } => format!("haul:{}:{port}", authority(host)),
        }
    }
}

fn usage(text: String) -> Fault {
    Fault::new(Code::Usage, text)
}

/// Parses what follows `haul://`.
fn server(operand: &[u8], rest: &[u8]) -> Result<Remote, Fault> {
    let end = rest.iter().position(|byte| *byte == b'/');
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    let (host, port) = authority_of(operand, authority)?;
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    Ok(Remote {
        way: Way::Server { host, port },
        path: path[slashes..].to_vec(),
    })
}

/// Parses what follows `haul:`.
fn pairing(operand: &[u8], rest: &[u8]) -> Result<Remote, Fault> {
    let wrong = || {
        usage(format!(
            "'{}' is no address of a haul receive",
            printable(operand)
        ))
        .hint("write haul:HOST:PORT as haul receive prints it; the code is asked for")
    };
    let (host, port) = authority_of(operand, rest).map_err(|_| wrong())?;
    Ok(Remote {
        way: Way::Pairing {
            host,
            port: port.ok_or_else(wrong)?,
        },
        path: Vec::new(),
    })
}

/// Parses the host and port of a `haul:` or `haul://` operand.
fn authority_of(operand: &[u8], authority: &[u8]) -> Result<(String, Option<u16>), Fault> {
    let shown = printable(operand);
    let wrong = |why: &str| {
        usage(format!("'{shown}' {why}")).hint(
            "write haul://HOST/PATH or haul://HOST:PORT/PATH, an IPv6 address in brackets: haul://[::1]/PATH",
        )
    };
    let text = std::str::from_utf8(authority).map_err(|_| wrong("has a host that is no text"))?;
    if let Some((_, host)) = text.rsplit_once('@') {
        let host = printable(host.as_bytes());
        return Err(usage(format!(
            "'{shown}' names a user, which a haul:// server has not: the key of the client counts"
        ))
        .hint(format!(
            "write haul://{host}, or without haul:// and with a colon behind the host to go by ssh"
        )));
    }
    let HostPort { host, port, .. } =
        host_port::split(text).ok_or_else(|| wrong("has no valid host"))?;
    if host.is_empty() {
        return Err(wrong("names no host"));
    }
    let port = match port {
        None => None,
        Some(port) => Some(host_port::port(port).ok_or_else(|| wrong("has no valid port"))?),
    };
    Ok((host.to_owned(), port))
}

/// Parses `[USER@]HOST:PATH`, as scp does.
fn ssh(bytes: &[u8]) -> Result<Remote, Fault> {
    let shown = printable(bytes);
    let wrong = || {
        usage(format!("'{shown}' names no host")).hint(
            "write [USER@]HOST:PATH to go by ssh, or haul://HOST/PATH for a server of haul serve",
        )
    };
    if let Some(address) = bare_ipv6(bytes) {
        return Err(usage(format!(
            "in '{shown}' it is not clear where the address ends"
        ))
        .hint(format!("put it in brackets, as in '[{address}]:PATH'")));
    }
    // A user name may not hold a slash or colon, so that a path with '@' is not one.
    let at = bytes
        .iter()
        .take_while(|byte| !matches!(byte, b':' | b'/' | b'['))
        .position(|byte| *byte == b'@');
    let (user, rest) = match at {
        Some(at) => (Some(&bytes[..at]), &bytes[at + 1..]),
        None => (None, bytes),
    };
    let (host, path) = split_host(rest).ok_or_else(wrong)?;
    let text = |part| std::str::from_utf8(part).map_err(|_| wrong());
    let host = text(host)?;
    if host.is_empty() || host.contains('/') || user.is_some_and(<[u8]>::is_empty) {
        return Err(wrong());
    }
    let destination = match user {
        Some(user) => format!("{}@{host}", text(user)?),
        None => host.to_owned(),
    };
    // ssh would take it for an option.
    if destination.starts_with('-') {
        return Err(
            usage(format!("'{shown}' names a host that begins with '-'"))
                .hint("write ./ in front if it is a file"),
        );
    }
    Ok(Remote {
        way: Way::Ssh(destination),
        path: path.to_vec(),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String)> {
        let remote = Remote::parse(OsStr::new(text)).ok()?;
        Some((remote.host(), String::from_utf8(remote.path).unwrap()))
    }

    #[test]
    fn a_host_with_a_colon_is_reached_by_ssh_as_scp_does() {
        let some = |host: &str, path: &str| Some((host.into(), path.into()));
        assert_eq!(parse("host:dir/"), some("host", "dir/"));
        assert_eq!(parse("host:"), some("host", ""));
        assert_eq!(parse("user@host:/dir/"), some("user@host", "/dir/"));
        assert_eq!(parse("host:a@b:c"), some("host", "a@b:c"));
        assert_eq!(parse("[::1]:a:b"), some("::1", "a:b"));
        assert_eq!(parse("me@[::1]:b"), some("me@::1", "b"));
        assert_eq!(parse("10.0.0.1:4726:x"), some("10.0.0.1", "4726:x"));
        assert_eq!(parse("[fe80::1%eth0]:b"), some("fe80::1%eth0", "b"));
        for bad in [
            "file",
            ":x",
            "a/b:c",
            "[::1]",
            "[::1",
            "@host:x",
            "-oProxyCommand=id:x",
            "a/u@h:x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        // Neither ssh nor the path takes part of the other.
        let Ok(remote) = Remote::parse(OsStr::new("-u@host:x")) else {
            return;
        };
        panic!("{remote:?}");
    }

    #[test]
    fn a_url_is_a_standing_server() {
        let some = |host: &str, path: &str| Some((host.into(), path.into()));
        assert_eq!(parse("haul://host/dir/"), some("haul://host", "dir/"));
        assert_eq!(parse("haul://host"), some("haul://host", ""));
        assert_eq!(parse("haul://host//dir"), some("haul://host", "dir"));
        assert_eq!(parse("haul://h:99/a:b%20"), some("haul://h:99", "a:b%20"));
        assert_eq!(parse("haul://[::1]:99/b"), some("haul://[::1]:99", "b"));
        assert_eq!(parse("haul://[::1]/b"), some("haul://[::1]", "b"));
        for bad in [
            "haul://",
            "haul:///x",
            "haul://h:0/x",
            "haul://h:x/y",
            "haul://u@h/x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_receiver_with_a_code_has_an_address_and_no_path() {
        assert_eq!(
            parse("haul:h:99"),
            Some(("haul:h:99".into(), String::new()))
        );
        let six = Some(("haul:[::1]:99".into(), String::new()));
        assert_eq!(parse("haul:[::1]:99"), six);
        for bad in ["haul:", "haul:h", "haul:h:99/x", "haul:7-apple-river"] {
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
