//! HTTP CONNECT (RFC 9110 §9.3.6) in HTTP/1 (RFC 9112): the head of the request, up to its blank
//! line.

use haul_xsp::wire::{Endpoint, Metadata};

use super::step::Step;
use crate::answer::http_refusal;
use crate::host::HostPort;

/// Longest head, bytes.
pub(super) const HEAD_MAX: usize = 8 << 10;

/// The request so far.
#[derive(Debug, Default)]
pub(crate) struct Connect {
    /// The current line, without its end.
    line: Vec<u8>,
    /// Bytes taken. At most [`HEAD_MAX`].
    taken: usize,
    request: Option<Request>,
    metadata: Metadata,
}

/// The request line, and the fields that matter.
#[derive(Debug)]
struct Request {
    to: Endpoint,
    /// HTTP/1.1, which requires a Host field.
    needs_host: bool,
    hosts: usize,
}

/// A refusal: status, header fields, and the reason for people.
type Refusal = (&'static str, &'static str, &'static str);

/// The field with metadata, `KEY=VALUE`. It may be repeated.
const METADATA: &[u8] = b"Haul-Metadata";

const BAD_REQUEST: &str = "400 Bad Request";

impl Connect {
    pub(super) fn take_metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    pub(super) fn handle(&mut self, octets: &[u8]) -> (usize, Step) {
        for (at, octet) in octets.iter().enumerate() {
            match self.handle_octet(*octet) {
                Ok(None) => {}
                Ok(Some(to)) => return (at + 1, Step::Done(to)),
                Err((status, fields, why)) => {
                    return (at + 1, Step::Refuse(http_refusal(status, fields, why)));
                }
            }
        }
        (octets.len(), Step::More)
    }

    fn handle_octet(&mut self, octet: u8) -> Result<Option<Endpoint>, Refusal> {
        self.taken += 1;
        if self.taken > HEAD_MAX {
            return Err((
                "431 Request Header Fields Too Large",
                "",
                "the request is too long",
            ));
        }
        match (octet, self.line.last()) {
            (b'\n', _) => {
                let line = std::mem::take(&mut self.line);
                // A bare line feed also ends a line (RFC 9112 §2.2).
                self.handle_line(line.strip_suffix(b"\r").unwrap_or(&line))
            }
            (_, Some(b'\r')) => Err((BAD_REQUEST, "", "a carriage return stands alone")),
            (b'\t' | b'\r' | b' '..=b'~' | 0x80.., _) => {
                self.line.push(octet);
                Ok(None)
            }
            _ => Err((BAD_REQUEST, "", "this is not HTTP")),
        }
    }

    fn handle_line(&mut self, line: &[u8]) -> Result<Option<Endpoint>, Refusal> {
        match &mut self.request {
            // Empty lines before a request are skipped (§2.2).
            None if line.is_empty() => {}
            None => self.request = Some(request_line(line)?),
            Some(request) if line.is_empty() => {
                if request.needs_host && request.hosts != 1 {
                    return Err((BAD_REQUEST, "", "a request of HTTP/1.1 has one field Host"));
                }
                return Ok(Some(request.to.clone()));
            }
            Some(request) => {
                let (name, value) = field(line)?;
                request.hosts += usize::from(name.eq_ignore_ascii_case(b"host"));
                if name.eq_ignore_ascii_case(METADATA) {
                    let taken = self.metadata.insert_pair(value.trim_ascii());
                    taken.map_err(|error| (BAD_REQUEST, "", error.text()))?;
                }
            }
        }
        Ok(None)
    }
}

/// Parses method, target and version (RFC 9112 §3), separated by exactly one space.
fn request_line(line: &[u8]) -> Result<Request, Refusal> {
    let words = std::str::from_utf8(line).ok().and_then(|line| {
        let (method, rest) = line.split_once(' ')?;
        let (target, version) = rest.split_once(' ')?;
        Some((method, target, version))
    });
    let (method, target, version) = words.ok_or((BAD_REQUEST, "", "this is not HTTP"))?;
    let needs_host = match version.as_bytes() {
        b"HTTP/1.0" => false,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => true,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(("505 HTTP Version Not Supported", "", "this is not HTTP/1"));
        }
        _ => return Err((BAD_REQUEST, "", "this is not HTTP")),
    };
    if method != "CONNECT" {
        return Err((
            "405 Method Not Allowed",
            "Allow: CONNECT\r\n",
            "this proxy takes CONNECT only",
        ));
    }
    let to: HostPort = target
        .parse()
        .map_err(|_| (BAD_REQUEST, "", "the target is not HOST:PORT"))?;
    Ok(Request {
        to: to.into(),
        needs_host,
        hosts: 0,
    })
}

/// Splits name and value of a field; no space may precede the name or its colon (§5.1, §5.2).
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let is_token = |octet: &u8| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(octet);
    let name = line.split(|octet| *octet == b':').next().unwrap_or(line);
    if name.is_empty() || name.len() == line.len() || !name.iter().all(is_token) {
        return Err((BAD_REQUEST, "", "a line is no header field"));
    }
    Ok((name, &line[name.len() + 1..]))
}

#[cfg(test)]
mod tests {
    use haul_xsp::wire::Address;

    use super::*;
    use crate::listener::handshake::Handshake;
    use crate::listener::handshake::tests::run;

    fn start() -> Handshake {
        Handshake::Connect(Connect::default())
    }

    fn name(name: &str, port: u16) -> Step {
        let address = Address::Name(name.to_owned());
        Step::Done(Endpoint { address, port })
    }

    /// Returns the status of the refusal.
    fn refused(head: &str) -> String {
        match run(start, head.as_bytes()).2 {
            Step::Refuse(refusal) => {
                String::from_utf8_lossy(&refusal["HTTP/1.1 ".len()..][..3]).into_owned()
            }
            step => panic!("{head:?}: {step:?}"),
        }
    }

    #[test]
    fn a_request_ends_at_its_blank_line() {
        let head = "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nProxy-Connection: Keep-Alive\r\n\r\n";
        let (sent, taken, step) = run(start, format!("{head}\x16\x03\x01").as_bytes());
        assert_eq!(
            (sent, taken, step),
            (Vec::new(), head.len(), name("example.org", 443))
        );
    }

    #[test]
    fn old_and_careless_clients_are_understood() {
        for head in [
            "CONNECT h:1 HTTP/1.0\r\n\r\n",
            "CONNECT h:1 HTTP/1.0\n\n",
            "\r\nCONNECT h:1 HTTP/1.0\r\nX:\r\n\r\n",
            "CONNECT h:1 HTTP/1.1\r\nhost: elsewhere\r\n\r\n",
        ] {
            assert_eq!(run(start, head.as_bytes()).2, name("h", 1), "{head:?}");
        }
        let v6 = run(start, b"CONNECT [::1]:80 HTTP/1.0\r\n\r\n").2;
        let address = Address::V6(std::net::Ipv6Addr::LOCALHOST.octets());
        assert_eq!(v6, Step::Done(Endpoint { address, port: 80 }));
    }

    #[test]
    fn other_methods_and_versions_have_statuses_of_their_own() {
        assert_eq!(refused("GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n"), "405");
        assert_eq!(refused("connect h:1 HTTP/1.1\r\nHost: h\r\n\r\n"), "405");
        assert_eq!(refused("CONNECT h:1 HTTP/2.0\r\n\r\n"), "505");
        assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "505");
    }

    #[test]
    fn what_is_not_a_request_is_refused() {
        for head in [
            "CONNECT h HTTP/1.0\r\n\r\n",
            "CONNECT h:0 HTTP/1.0\r\n\r\n",
            "CONNECT  h:1 HTTP/1.0\r\n\r\n",
            "CONNECT h:1 HTTP/1.0 \r\n\r\n",
            "CONNECT h:1 HTTP/1.10\r\n\r\n",
            "CONNECT user@h:1 HTTP/1.0\r\n\r\n",
            "CONNECT http://h:1/ HTTP/1.0\r\n\r\n",
            "CONNECT h:1\r\n\r\n",
            "CONNECT h:1 HTTP/1.0\rX\r\n\r\n",
            "CONNECT h:1 HTTP/1.1\r\n\r\n",
            "CONNECT h:1 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "CONNECT h:1 HTTP/1.0\r\nHost : a\r\n\r\n",
            "CONNECT h:1 HTTP/1.0\r\nA: b\r\n c\r\n\r\n",
            "CONNECT h:1 HTTP/1.0\r\nnothing\r\n\r\n",
            "CONNECT h:1 HTTP/1.0\r\n:\r\n\r\n",
            "CONNECT h\0:1 HTTP/1.0\r\n\r\n",
            "\x16\x03\x01\x02\x00",
            "\x05\x01\x00",
        ] {
            assert_eq!(refused(head), "400", "{head:?}");
        }
    }

    #[test]
    fn metadata_is_what_its_fields_say_or_a_refusal() {
        let head = |fields: &str| format!("CONNECT h:1 HTTP/1.0\r\n{fields}\r\n");
        let mut connect = Connect::default();
        let fields = "haul-metadata: job=a=b \r\nHaul-Metadata:user=\u{e9}\r\n";
        let (_, step) = connect.handle(head(fields).as_bytes());
        assert_eq!(step, name("h", 1));
        let said = connect.take_metadata();
        let said: Vec<_> = said.pairs().iter().collect();
        let there = [("job", "a=b"), ("user", "\u{e9}")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert!(
            said.iter()
                .copied()
                .eq(there.iter().map(|(key, value)| (key, value)))
        );
        let long = format!("Haul-Metadata: k={}\r\n", "v".repeat(257));
        let twice = "Haul-Metadata: k=\r\n".repeat(2);
        for fields in [
            "Haul-Metadata: k\r\n",
            "Haul-Metadata: a b=\r\n",
            &long,
            &twice,
        ] {
            assert_eq!(refused(&head(fields)), "400", "{fields}");
        }
    }

    #[test]
    fn a_head_has_a_limit() {
        let endless = format!("CONNECT h:1 HTTP/1.0\r\nX: {}", "x".repeat(HEAD_MAX));
        assert_eq!(refused(&endless), "431");
        assert_eq!(refused(&"\r\n".repeat(HEAD_MAX)), "431");
        assert_eq!(run(start, &endless.as_bytes()[..HEAD_MAX]).2, Step::More);
    }
}
