//! Bytes as the frames of a control connection, and as the first TLS message of a client.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul_control::fuzzing::frames(bytes));
