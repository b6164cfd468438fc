//! Replies to the clients of a listener, in the listener's protocol.

use crate::refusal::meaning;

/// The protocol in which a client learns whether its connection is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// None: the connection stays open, or is reset.
    None,
    /// A SOCKS 5 reply (RFC 1928 §6).
    Socks5,
    /// An HTTP status (RFC 9110 §15).
    Http,
}

impl Answer {
    /// Returns the reply to a client before the first byte of its destination.
    pub(crate) const fn accepted(self) -> &'static [u8] {
        match self {
            Self::None => b"",
            // The far gateway's own address means nothing to the client.
            Self::Socks5 => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            Self::Http => b"HTTP/1.1 200 Connection established\r\n\r\n",
        }
    }

    /// Returns the reply to a refused client; empty if the connection is reset instead. `status` is
    /// a [`NackStatus`](haul_xsp::wire::NackStatus) code or a Linux errno.
    pub(crate) fn refused(self, status: u16) -> Vec<u8> {
        let meaning = meaning(status);
        match self {
            Self::None => Vec::new(),
            Self::Socks5 => socks_refusal(meaning.reply).to_vec(),
            Self::Http => http_refusal(meaning.http, "", meaning.text),
        }
    }
}

pub(crate) const fn socks_refusal(reply: u8) -> [u8; 10] {
    [5, reply, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Builds an HTTP refusal. `fields` holds whole header fields with their line ends.
pub(crate) fn http_refusal(status: &str, fields: &str, why: &str) -> Vec<u8> {
    let len = why.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\n{fields}\r\n{why}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use haul_xsp::wire::NackStatus;

    use super::*;
    use crate::refusal::reply;

    #[test]
    fn refusals_are_of_the_clients_protocol() {
        let forbidden = NackStatus::Forbidden.code();
        assert!(Answer::None.refused(forbidden).is_empty());
        assert_eq!(
            Answer::Socks5.refused(forbidden),
            [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]
        );
        let http = String::from_utf8(Answer::Http.refused(NackStatus::TimedOut.code())).unwrap();
        assert!(
            http.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"),
            "{http}"
        );
        let (head, body) = http.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with(&format!("Content-Length: {}", body.len())),
            "{http}"
        );
        assert_eq!(body, "no answer came in time\n");
    }

    #[test]
    fn errors_of_connecting_have_replies_of_their_own() {
        assert_eq!(Answer::Socks5.refused(111)[1], reply::REFUSED);
        assert_eq!(Answer::Socks5.refused(113)[1], reply::HOST_UNREACHABLE);
        assert_eq!(Answer::Socks5.refused(101)[1], reply::NETWORK_UNREACHABLE);
        assert_eq!(Answer::Socks5.refused(9999)[1], reply::FAILURE);
    }
}
