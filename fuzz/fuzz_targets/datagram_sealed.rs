//! Bytes as a datagram of a sealed service: what parses is written alike, and no length is read
//! past.

#![no_main]

use haul_iwarp::datagram::wire::{SEALED_HEAD_LEN, SEALED_TAG_LEN, Sealed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(sealed) = Sealed::parse(bytes) else {
        return;
    };
    let mut out = [0; SEALED_HEAD_LEN + SEALED_TAG_LEN];
    let len = match sealed {
        Sealed::Datagram { .. } => {
            assert!(bytes.len() >= out.len());
            assert_eq!(sealed.emit(&mut out), SEALED_HEAD_LEN);
            assert_eq!(out[..SEALED_HEAD_LEN], bytes[..SEALED_HEAD_LEN]);
            out.len()
        }
        _ => {
            let len = sealed.emit(&mut out);
            assert_eq!(len, bytes.len());
            len
        }
    };
    assert_eq!(Sealed::parse(&out[..len]).ok(), Some(sealed));
});
