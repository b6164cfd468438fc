//! The initiator's end of an iWARP connection, with a user and a hostile peer.

#![no_main]

mod iwarp;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: iwarp::Input| iwarp::run(&input, true));
