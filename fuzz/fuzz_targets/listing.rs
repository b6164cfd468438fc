//! Bytes as a message of a listing.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul::fuzzing::listing(bytes));
