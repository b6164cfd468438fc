//! Bytes as a DDP header: what parses is written as it was read, but for reserved bits.

#![no_main]

use haul_iwarp::wire::ddp::{Header, UNTAGGED_LEN};
use libfuzzer_sys::fuzz_target;

const RESERVED: u8 = 0x3c;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes) else {
        return;
    };
    let mut written = [0; UNTAGGED_LEN];
    let len = header.emit(&mut written);
    assert_eq!(len, Header::len_of(bytes[0]));
    assert_eq!(written[0], bytes[0] & !RESERVED);
    assert_eq!(written[1..len], bytes[1..len]);
});
