//! Words as rings that another process writes: indices and entries.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul_engine::fuzzing::rings(bytes));
