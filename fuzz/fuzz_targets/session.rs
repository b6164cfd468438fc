//! Bytes as a message of the control connection, and as a resume journal.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    haul::fuzzing::control_message(bytes);
    haul::fuzzing::resume_journal(&[7; 32], bytes);
    haul::fuzzing::ssh(bytes);
});
