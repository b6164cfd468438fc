//! What a stranger says where operators look, and what another gateway wants of the network.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul_gateway::fuzzing::operating(bytes));
