//! `HOST:PORT` as people write it. Command lines and configuration files split it here.

/// A host, and a port if one follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort<'a> {
    /// The host without brackets. It may be an address or a name, or anything else.
    pub host: &'a str,
    /// The host was in brackets, as an IPv6 address is before a port.
    pub in_brackets: bool,
    /// What follows the colon.
    pub port: Option<&'a str>,
}

/// Splits `HOST`, `HOST:PORT`, `[HOST]` and `[HOST]:PORT`. A text with more than one colon and no
/// brackets is an IPv6 address alone. Returns `None` if brackets do not close, or if something
/// other than a port follows them.
#[must_use]
pub fn split(text: &str) -> Option<HostPort<'_>> {
    let Some(rest) = text.strip_prefix('[') else {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        };
        return Some(HostPort {
            host,
            in_brackets: false,
            port,
        });
    };
    let (host, rest) = rest.split_once(']')?;
    let port = match rest.strip_prefix(':') {
        None if !rest.is_empty() => return None,
        port => port,
    };
    Some(HostPort {
        host,
        in_brackets: true,
        port,
    })
}

/// Reads a port that can be connected to: 1 to 65535, in decimal digits only.
#[must_use]
pub fn port(text: &str) -> Option<u16> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_decimal && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_follows_one_colon_or_brackets() {
        for (text, host, in_brackets, port) in [
            ("host", "host", false, None),
            ("host:9", "host", false, Some("9")),
            ("host:", "host", false, Some("")),
            ("::1", "::1", false, None),
            ("fe80::1%2", "fe80::1%2", false, None),
            ("[::1]", "::1", true, None),
            ("[::1]:9", "::1", true, Some("9")),
            ("[fe80::1%2]:9", "fe80::1%2", true, Some("9")),
        ] {
            let expected = HostPort {
                host,
                in_brackets,
                port,
            };
            assert_eq!(split(text), Some(expected), "{text}");
        }
        for text in ["[::1", "[::1]9", "[::1]x:9"] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn ports_are_decimal_and_above_0() {
        assert_eq!(port("65535"), Some(65535));
        for text in ["0", "+9", "65536", "", "9 ", "0x9"] {
            assert_eq!(port(text), None, "{text}");
        }
    }
}
