//! What a stranger may say, for the targets in `fuzz/`.

use crate::config::PathRule;
use crate::door::{Connect, Handshake, Socks, listen};
use crate::engine::fabric::fuzzing::hear;
use crate::extender::Head;

/// A client's octets at a door of either kind: what it is told, what is taken and where it ends do
/// not depend on the pieces that the octets come in.
///
/// # Panics
/// If they do.
pub fn door(octets: &[u8], piece: usize) {
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
        hear(octets, piece.max(1)),
        hear(octets, octets.len().max(1))
    );
}

/// What the other end of bridged RDMA connections says: a frame's beginning that is taken is
/// written the same.
///
/// # Panics
/// If it is not.
pub fn rdma_frame(octets: &[u8]) {
    let (heads, _) = octets.as_chunks();
    for octets in heads {
        if let Some(head) = Head::decode(*octets) {
            assert_eq!(head.encode(), *octets);
        }
    }
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
