//! What the tests against libudt share: the byte pattern and checksum of `peer.hpp`, libudt's
//! programs, and a relay on loopback that loses packets.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the relay and the peers use real sockets and run on the clock"
)]

pub mod libudt;
pub mod relay;

use std::fmt;

/// Word `index` of the pattern (splitmix64).
fn word(seed: u64, index: u64) -> u64 {
    let z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `len` bytes of the pattern from `offset` on.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| word(seed, at / 8).to_le_bytes()[(at % 8) as usize];
    (offset..offset + len as u64).map(byte).collect()
}

/// FNV-1a, 64 bits.
#[derive(Debug, Clone, Copy)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn of(bytes: &[u8]) -> u64 {
        let mut fnv = Self::default();
        fnv.add(bytes);
        fnv.0
    }
}

/// What went through a connection; shown as libudt's programs do.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub bytes: u64,
    pub messages: u64,
    stream: Fnv,
    sum: u64,
}

impl Tally {
    pub fn add_stream(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.stream.add(bytes);
    }

    pub fn add_message(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.messages += 1;
        self.sum = self.sum.wrapping_add(Fnv::of(bytes));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = if self.messages > 0 {
            self.sum
        } else {
            self.stream.0
        };
        let (bytes, messages) = (self.bytes, self.messages);
        write!(f, "{bytes} messages {messages} fnv1a {sum:016x}")
    }
}

#[test]
fn the_checksum_is_the_one_of_the_readme() {
    let mut tally = Tally::default();
    tally.add_stream(&pattern(7, 0, 5_000_001));
    assert_eq!(
        tally.to_string(),
        "5000001 messages 0 fnv1a 5a29a45cab1bbfee"
    );
}
