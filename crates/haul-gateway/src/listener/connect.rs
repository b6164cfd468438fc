//! HTTP CONNECT (RFC 9110 §9.3.6) in HTTP/1 (RFC 9112): the head of the request, up to its blank
//! line.

use haul_xsp::wire::{Endpoint, Metadata};

use super::step::Step;
use crate::answer::http_refusal;
use crate::host::HostPort;

/// Longest head, bytes.
pub(super) const HEAD_MAX: usize = 8 << 10;

/// Most header fields in a head.
const FIELDS_MAX: usize = 64;

/// The request so far.
#[derive(Debug, Default)]
pub(crate) struct Connect {
    /// At most [`HEAD_MAX`] bytes.
    head: Vec<u8>,
    metadata: Metadata,
}

/// A refusal: status, header fields, and the reason for people.
type Refusal = (&'static str, &'static str, &'static str);

/// The field with metadata, `KEY=VALUE`. It may be repeated.
const METADATA: &str = "Haul-Metadata";

const BAD_REQUEST: &str = "400 Bad Request";

impl Connect {
    pub(super) fn take_metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    pub(super) fn handle(&mut self, octets: &[u8]) -> (usize, Step) {
        let before = self.head.len();
        let taken = octets.len().min(HEAD_MAX - before);
        self.head.extend_from_slice(&octets[..taken]);
        match self.parse() {
            Ok(Some((len, to))) => (len - before, Step::Done(to)),
            Ok(None) if taken == octets.len() => (taken, Step::More),
            Ok(None) => {
                let why = "the request is too long";
                let status = "431 Request Header Fields Too Large";
                (taken, Step::Refuse(http_refusal(status, "", why)))
            }
            Err((status, fields, why)) => (taken, Step::Refuse(http_refusal(status, fields, why))),
        }
    }

    /// Returns the length of the head and where it leads, or `None` if it is not whole.
    fn parse(&mut self) -> Result<Option<(usize, Endpoint)>, Refusal> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let status = request.parse(&self.head).map_err(|error| match error {
            // Also for a version without digits, which httparse does not distinguish.
            httparse::Error::Version => {
                ("505 HTTP Version Not Supported", "", "this is not HTTP/1")
            }
            httparse::Error::TooManyHeaders => (
                "431 Request Header Fields Too Large",
                "",
                "the request has too many fields",
            ),
            _ => (BAD_REQUEST, "", "this is not HTTP"),
        })?;
        let httparse::Status::Complete(len) = status else {
            return Ok(None);
        };
        if request.method != Some("CONNECT") {
            return Err((
                "405 Method Not Allowed",
                "Allow: CONNECT\r\n",
                "this proxy takes CONNECT only",
            ));
        }
        let target = request.path.unwrap_or_default();
        let to: HostPort = target
            .parse()
            .map_err(|_| (BAD_REQUEST, "", "the target is not HOST:PORT"))?;
        let is = |field: &httparse::Header<'_>, name| field.name.eq_ignore_ascii_case(name);
        let hosts = request.headers.iter().filter(|field| is(field, "host"));
        if request.version == Some(1) && hosts.count() != 1 {
            return Err((BAD_REQUEST, "", "a request of HTTP/1.1 has one field Host"));
        }
        for field in request.headers.iter().filter(|field| is(field, METADATA)) {
            let taken = self.metadata.insert_pair(field.value.trim_ascii());
            taken.map_err(|error| (BAD_REQUEST, "", error.text()))?;
        }
        Ok(Some((len, to.into())))
    }
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
    fn metadata_has_the_values_of_its_fields_or_is_refused() {
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
