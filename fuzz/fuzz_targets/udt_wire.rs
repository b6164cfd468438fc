//! Bytes as a UDT packet: what parses is written, and from then on stays the same (a range of one
//! packet becomes one word).

#![no_main]

use haul_udt::wire::Packet;
use haul_udt::wire::emit::emit;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let destination = Packet::destination(bytes).expect("what parses has a header");
    let again = emit(&packet, destination);
    if !again.is_empty() {
        let packet = Packet::parse(&again).expect("it was written by us");
        assert_eq!(emit(&packet, destination), again);
    }
});
