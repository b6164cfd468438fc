//! A TCP connection on RC: what an application sends is RDMA Sends, each in an FPDU with its CRC,
//! and what it receives is their payload. No start-up frames: the agents have agreed before the
//! connection was made.
//!
//! An FPDU has 16 KiB at most, and a receiver delivers none before all of it is there and its CRC
//! is right. So none must be left half sent: one is begun where the kernel has room for all of it.
//!
//! What is remembered is in the table, so that it survives `fork` and `exec`. `StreamConnection` of
//! haul-iwarp needs posted receives and messages that leave whole; a socket has neither, so only
//! its layouts are used.

mod rx;
mod tx;

pub(crate) use rx::{end, pending, receive, vacate};
pub(crate) use tx::{flush, send};

use haul_iwarp::wire::ddp;
use haul_iwarp::wire::mpa::LENGTH_LEN;

use crate::process::Entry;

/// Bytes before the payload of an FPDU.
const HEAD: usize = LENGTH_LEN + ddp::UNTAGGED_LEN;
/// The most payload in an FPDU: with head and CRC it fills the buffer of a receiver, without
/// padding.
const PAYLOAD_MAX: usize = crate::buffer::BUFFER - HEAD - haul_iwarp::CRC_LEN;
/// Padding and CRC at most.
const TAIL_MAX: usize = 7;

/// The values of a record's `taken`.
pub(crate) const TAKEN: u32 = 1;
/// The peer was announced as a speaker of it and is none: everything passes unframed.
const PASSES: u32 = 2;

fn passes(entry: &Entry) -> bool {
    entry
        .socket
        .taken
        .load(std::sync::atomic::Ordering::Relaxed)
        == PASSES
}

/// Bytes of padding and CRC after a payload.
fn tail_len(payload: usize) -> usize {
    (HEAD + payload).wrapping_neg() % 4 + haul_iwarp::CRC_LEN
}

/// Bytes in words of shared memory.
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
