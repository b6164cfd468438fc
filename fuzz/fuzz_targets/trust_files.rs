//! Bytes as the files of authorised keys and of known servers, and as a code that a person typed.

#![no_main]

use std::path::Path;

use haul_control::authorized::Authorized;
use haul_control::known::Known;
use haul_control::pairing::PairingCode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(authorized) = Authorized::parse(text) {
        assert!(authorized.len() <= text.lines().count());
    }
    let _ = Known::parse(Path::new("known_servers"), text);
    if let Ok(code) = PairingCode::parse(text) {
        assert_eq!(PairingCode::parse(&code.to_string()).ok(), Some(code));
    }
});
