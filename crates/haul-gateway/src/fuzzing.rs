//! Entry points for the targets in `fuzz/`: input of hostile peers and clients.

use crate::channel::fuzzing::receive;
use crate::config::PathRule;
use crate::listener::{Connect, Handshake, Socks, listen};

/// Feeds a client's bytes to the handshakes of a listener.
///
/// # Panics
/// If the outcome depends on how the bytes are split.
pub fn listener(octets: &[u8], piece: usize) {
    let starts = [
        || Handshake::Socks(Socks::default()),
        || Handshake::Connect(Connect::default()),
    ];
    for start in starts {
        let whole = listen(start(), octets, octets.len().max(1));
        assert_eq!(listen(start(), octets, piece.max(1)), whole);
    }
}

/// Feeds a peer's bytes to a data channel that is a byte stream.
///
/// # Panics
/// If a frame that parses is emitted differently, or the outcome depends on how the bytes are
/// split.
pub fn tcp_channel(octets: &[u8], piece: usize) {
    assert_eq!(
        receive(octets, piece.max(1)),
        receive(octets, octets.len().max(1))
    );
}

/// Feeds a request to the administration server, and the same bytes as path rules.
///
/// # Panics
/// If a rule that parses prints as one that means something else.
pub fn operating(octets: &[u8]) {
    haul_admin::judge(octets);
    for text in String::from_utf8_lossy(octets).lines() {
        if let Ok(rule) = text.parse::<PathRule>() {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }
}
