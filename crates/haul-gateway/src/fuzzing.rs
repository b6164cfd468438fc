//! What a stranger may say, for the targets in `fuzz/`.

use crate::channel::fuzzing::receive;
use crate::config::PathRule;
use crate::listener::{Connect, Handshake, Socks, listen};

/// A client's octets at a listener of either kind: what it is told, what is taken and where it ends do
/// not depend on the pieces that the octets come in.
///
/// # Panics
/// If they do.
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

/// A peer's octets on a data channel that is a byte stream: what parses is emitted the same, and
/// what becomes of them does not depend on the pieces that they come in.
///
/// # Panics
/// If that is not so.
pub fn tcp_channel(octets: &[u8], piece: usize) {
    assert_eq!(
        receive(octets, piece.max(1)),
        receive(octets, octets.len().max(1))
    );
}

/// A request for the page or the metrics, and the same octets as rules of a path from another
/// gateway: a rule that is taken is written as one that means the same.
///
/// # Panics
/// If it does not.
pub fn operating(octets: &[u8]) {
    crate::admin::judge(octets);
    for text in String::from_utf8_lossy(octets).lines() {
        if let Ok(rule) = text.parse::<PathRule>() {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }
}
