//! Bytes as messages of XSP versions 0 and 1: what is whole is written and read again alike.

#![no_main]

use haul_xsp::v1::{Message, MessageV0, Parsed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Parsed::Whole(message, len)) = Message::parse(bytes) {
        assert!(len <= bytes.len());
        let written = message.emit();
        assert_eq!(
            Message::parse(&written),
            Ok(Parsed::Whole(message, written.len()))
        );
    }
    if let Ok(Parsed::Whole(message, len)) = MessageV0::parse(bytes) {
        assert_eq!(message.emit(), bytes[..len]);
    }
});
