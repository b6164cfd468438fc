//! What agents and peers of `haul run` get from the network: messages of discovery, and the heads
//! of datagrams.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| haul_socket::fuzzing::datagram(octets));
