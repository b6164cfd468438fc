//! Bytes as messages between a client and its engine.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul_engine::fuzzing::control(bytes));
