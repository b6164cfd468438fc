//! Requests and responses, as far as the page and the metrics need them (RFC 9112): GET and HEAD,
//! no bodies, one on each connection.

use std::net::IpAddr;

/// Longest request, bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header fields of a request.
const FIELDS_MAX: usize = 64;

/// The outcome of parsing a client's bytes.
#[derive(Debug)]
pub(crate) enum Read {
    /// The request is incomplete.
    More,
    /// A request that may be answered.
    Request(Request),
    /// The bytes are no request, or one that is refused.
    Refused(Response),
}

/// A request that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Only the head of the response is wanted.
    pub is_head: bool,
    /// The path, without a query.
    pub path: String,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    status: u16,
    kind: &'static str,
    policy: String,
    body: Vec<u8>,
}

/// The host names that this server answers to. Otherwise a page from anywhere could have its own
/// name resolve to this server, and read the responses as its own (DNS rebinding).
#[derive(Debug)]
pub(crate) struct Guard(Vec<String>);

impl Guard {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.to_vec())
    }

    fn admits(&self, host: &str) -> bool {
        let Some(name) = hostname(host) else {
            return false;
        };
        let is_own = |own: &String| own.eq_ignore_ascii_case(name);
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(is_own)
    }
}

/// Returns the host of a Host field, without port and brackets.
fn hostname(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|octet| octet.is_ascii_digit());
    let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    is_whole.then_some(name)
}

/// Parses and checks a request.
pub(crate) fn read(bytes: &[u8], guard: &Guard) -> Read {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Read::More,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refused(431, "the request is too long");
        }
        Err(_) => return refused(400, "not an HTTP/1.1 request"),
    }
    let values = |name: &str| {
        let named = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
        let found = request.headers.iter().filter(named);
        found.map(|field| field.value).collect::<Vec<_>>()
    };
    let (hosts, origins) = (values("host"), values("origin"));
    let [host] = hosts[..] else {
        return refused(400, "a request needs exactly one Host field");
    };
    let Ok(host) = std::str::from_utf8(host) else {
        return refused(400, "the Host field is neither a name nor an address");
    };
    if !guard.admits(host) {
        let text = "this server does not know that name of its own; use its address, or configure the name";
        return refused(421, text);
    }
    let own = format!("http://{host}");
    if origins.iter().any(|origin| *origin != own.as_bytes()) {
        return refused(403, "only this server's own page may ask");
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return refused(405, "only GET and HEAD are supported"),
    };
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().to_owned();
    Read::Request(Request { is_head, path })
}

fn refused(status: u16, text: &str) -> Read {
    Read::Refused(Response::refusal(status, text))
}

impl Response {
    /// Builds a successful response with a body of this media type.
    #[must_use]
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            kind,
            policy: "default-src 'none'".to_owned(),
            body: body.into(),
        }
    }

    /// Builds a response that states in one line why there is no other.
    #[must_use]
    pub fn refusal(status: u16, text: &str) -> Self {
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", format!("{text}\n"))
        }
    }

    /// Builds the page: only what carries `{{nonce}}` in `html` may run or style it.
    #[must_use]
    pub fn page(html: &str, nonce: &str) -> Self {
        Self {
            policy: format!(
                "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self'; connect-src 'self'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
            ),
            ..Self::new("text/html; charset=utf-8", html.replace("{{nonce}}", nonce))
        }
    }

    /// Encodes the response, or only its head.
    pub(crate) fn bytes(self, is_head: bool) -> Vec<u8> {
        let Self {
            status,
            kind,
            policy,
            body,
        } = self;
        let mut bytes = format!(
            "HTTP/1.1 {status} {}\r\n\
             Content-Type: {kind}\r\n\
             Content-Length: {}\r\n\
             Content-Security-Policy: {policy}\r\n\
             X-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n\
             Referrer-Policy: no-referrer\r\n\
             Cache-Control: no-store\r\n\
             Connection: close\r\n\r\n",
            reason(status),
            body.len()
        )
        .into_bytes();
        if !is_head {
            bytes.extend_from_slice(&body);
        }
        bytes
    }
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path of an accepted request, or the status of a refused one; `None` if it is
    /// incomplete.
    fn judge(request: &str) -> Option<Result<String, u16>> {
        let guard = Guard::new(&["gw.example.org".to_owned()]);
        match read(request.as_bytes(), &guard) {
            Read::More => None,
            Read::Request(request) => Some(Ok(request.path)),
            Read::Refused(response) => Some(Err(response.status)),
        }
    }

    fn get(fields: &str) -> Option<Result<String, u16>> {
        judge(&format!("GET /metrics?x HTTP/1.1\r\n{fields}\r\n"))
    }

    #[test]
    fn a_server_is_asked_by_address_as_localhost_or_by_a_name_of_its_own() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:4728",
            "[::1]:4728",
            "[::1]",
            "localhost:1",
            "LOCALHOST",
            "GW.example.org:80",
        ] {
            let answered = get(&format!("Host: {host}\r\n"));
            assert_eq!(answered, Some(Ok("/metrics".to_owned())), "{host}");
        }
        for host in [
            "example.org",
            "127.0.0.1.example.org:4728",
            "localhost.example.org",
            "evil.gw.example.org",
            "localhost:4728:1",
            "[::1",
            "localhost:",
            "127.0.0.1@example.org",
            "",
        ] {
            let refused = get(&format!("Host: {host}\r\n"));
            assert_eq!(refused, Some(Err(421)), "{host}");
        }
        assert_eq!(get(""), Some(Err(400)));
        assert_eq!(get("Host: localhost\r\nHost: a\r\n"), Some(Err(400)));
    }

    #[test]
    fn no_page_but_its_own_may_ask() {
        let from = |origin: &str| get(&format!("Host: localhost:1\r\nOrigin: {origin}\r\n"));
        assert_eq!(from("http://localhost:1"), Some(Ok("/metrics".to_owned())));
        for origin in [
            "null",
            "https://localhost:1",
            "http://localhost",
            "http://example.org",
        ] {
            assert_eq!(from(origin), Some(Err(403)), "{origin}");
        }
    }

    #[test]
    fn requests_may_come_in_parts_and_are_not_endless() {
        let whole = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(judge(&whole[..end]), None, "{end}");
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(judge(&long), Some(Err(431)));
        let many = "X: y\r\n".repeat(FIELDS_MAX + 1);
        assert_eq!(get(&many), Some(Err(431)));
        assert_eq!(judge("SSH-2.0-x\r\n"), Some(Err(400)));
        assert_eq!(
            judge("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            Some(Err(405))
        );
    }
}
