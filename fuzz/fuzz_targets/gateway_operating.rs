//! Requests to the admin page, and requests of another gateway for paths.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul_gateway::fuzzing::operating(bytes));
