//! A TCP connection on RC: what a program sends is RDMA Sends, each in an FPDU with its CRC, and what it receives is their
//! payload. No start-up frames: the agents have agreed before the connection was made.
//!
//! It stays TCP's stream. An FPDU says how much payload it has, not that all of it is there: where the kernel takes a part, the
//! program's next octets continue it. An FPDU that is there whole is verified before any of it is delivered; of one that is
//! not, what is there is delivered, as TCP would, and a CRC that turns out wrong ends the connection. So nothing waits that
//! would not wait on TCP, and nothing is kept here but a few octets.
//!
//! What is remembered is in the table, so that it survives `fork` and `exec`. `StreamConnection` of haul-iwarp needs posted
//! receives and messages that leave whole; a socket has neither, so only its layouts are used.

mod rx;
mod tx;

pub(crate) use rx::{pending, receive};
pub(crate) use tx::{flush, send};

use haul_iwarp::wire::ddp;
use haul_iwarp::wire::mpa::LENGTH_LEN;

use crate::process::Entry;

/// Octets before the payload of an FPDU.
const HEAD: usize = LENGTH_LEN + ddp::UNTAGGED_LEN;
/// The most payload in an FPDU: the longest ULPDU that needs no padding behind its length field.
const PAYLOAD_MAX: usize = ddp::ULPDU_MAX as usize - ddp::UNTAGGED_LEN;
/// Padding and CRC at most.
const TAIL_MAX: usize = 7;

/// The values of a record's `taken`.
pub(crate) const TAKEN: u32 = 1;
/// The peer was said to speak it, and does not: everything passes.
const PASSES: u32 = 2;

fn passes(entry: &Entry) -> bool {
    entry
        .socket
        .taken
        .load(std::sync::atomic::Ordering::Relaxed)
        == PASSES
}

/// Octets of padding and CRC after a payload.
fn tail_len(payload: usize) -> usize {
    (HEAD + payload).wrapping_neg() % 4 + haul_iwarp::CRC_LEN
}

/// Octets in words of shared memory.
fn load_octets<const N: usize>(words: &[std::sync::atomic::AtomicU32]) -> [u8; N] {
    let mut octets = [0; N];
    for (octets, word) in octets.chunks_mut(4).zip(words) {
        let word = word
            .load(std::sync::atomic::Ordering::Relaxed)
            .to_ne_bytes();
        octets.copy_from_slice(&word[..octets.len()]);
    }
    octets
}

fn store_octets(words: &[std::sync::atomic::AtomicU32], octets: &[u8]) {
    for (octets, word) in octets.chunks(4).zip(words) {
        let mut value = [0; 4];
        value[..octets.len()].copy_from_slice(octets);
        word.store(
            u32::from_ne_bytes(value),
            std::sync::atomic::Ordering::Relaxed,
        );
    }
}
