//! Bytes as a batch of offered entries.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    haul::fuzzing::offered_entries(bytes);
});
