//! What the other end of bridged RDMA connections says.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haul_extender::fuzzing::rdma_frame(bytes));
