//! Bytes as the choice of a request: rules, and a list of paths.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul::fuzzing::choice(bytes));
