//! The first message to `haul bench serve`, which anybody can send.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| haul_bench::fuzzing::greeting(line));
