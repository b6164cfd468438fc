//! What a peer says on a data channel that is a byte stream, in pieces of any size.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((piece, octets)) = bytes.split_first() {
        haul_gateway::fuzzing::tcp_channel(octets, usize::from(*piece));
    }
});
