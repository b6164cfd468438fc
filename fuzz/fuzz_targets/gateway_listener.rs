//! What a client says at a gateway's SOCKS and HTTP listeners, in pieces of any size.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((piece, octets)) = bytes.split_first() {
        haul_gateway::fuzzing::listener(octets, usize::from(*piece));
    }
});
