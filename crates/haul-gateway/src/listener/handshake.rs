//! The handshake with a client, before its stream begins.

use haul_xsp::wire::Metadata;

use super::connect::Connect;
use super::socks::Socks;
use super::step::Step;
use crate::answer::Answer;

/// A handshake in progress.
#[derive(Debug)]
pub(crate) enum Handshake {
    Socks(Socks),
    Connect(Connect),
}

impl Handshake {
    /// Takes bytes of the handshake from the front, and returns how many. Nothing follows
    /// [`Step::Done`] and [`Step::Refuse`].
    pub(crate) fn handle(&mut self, octets: &[u8]) -> (usize, Step) {
        match self {
            Self::Socks(socks) => socks.handle(octets),
            Self::Connect(connect) => connect.handle(octets),
        }
    }

    /// Takes the metadata from the client.
    pub(crate) fn take_metadata(&mut self) -> Metadata {
        match self {
            Self::Socks(_) => Metadata::default(),
            Self::Connect(connect) => connect.take_metadata(),
        }
    }

    pub(crate) const fn answer(&self) -> Answer {
        match self {
            Self::Socks(_) => Answer::Socks5,
            Self::Connect(_) => Answer::Http,
        }
    }
}

/// Runs a handshake with bytes in pieces of `len`. Returns what is sent, how many bytes are taken
/// (0 with a refusal, which ends the connection), and the last step.
#[cfg(any(test, fuzzing))]
pub(crate) fn listen(
    mut handshake: Handshake,
    octets: &[u8],
    len: usize,
) -> (Vec<u8>, usize, Step) {
    let (mut sent, mut at) = (Vec::new(), 0);
    loop {
        let piece = &octets[at..octets.len().min(at + len)];
        let (taken, step) = handshake.handle(piece);
        assert!(taken <= piece.len());
        at += taken;
        match step {
            Step::Reply(reply) => sent.extend(reply),
            Step::More if at < octets.len() => assert_eq!(taken, piece.len()),
            last @ Step::Refuse(_) => return (sent, 0, last),
            last => return (sent, at, last),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Runs [`listen`], and checks that the outcome does not depend on the pieces.
    pub(crate) fn run(start: fn() -> Handshake, octets: &[u8]) -> (Vec<u8>, usize, Step) {
        let whole = listen(start(), octets, octets.len().max(1));
        for len in [1, 2, 7] {
            assert_eq!(listen(start(), octets, len), whole, "in pieces of {len}");
        }
        whole
    }
}
