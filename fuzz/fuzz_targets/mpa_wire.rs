//! Bytes as start-up frames, of MPA and of the hello over messages: what parses is written as it
//! was read.

#![no_main]

use haul_iwarp::wire::hello::Hello;
use haul_iwarp::wire::mpa::{
    Capabilities, Enhanced, FRAME_LEN, FrameHead, FrameKind, PRIVATE_DATA_MAX,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let Some((fixed, private)) = bytes.split_first_chunk::<FRAME_LEN>() else {
            break;
        };
        if let Ok(head) = FrameHead::parse(fixed, kind) {
            assert!(usize::from(head.private_len) <= PRIVATE_DATA_MAX);
            assert_eq!(FrameHead::parse(&head.emit(), kind), Ok(head));
        }
        if let Ok((enhanced, rest)) = Enhanced::parse(private) {
            let written = enhanced.emit();
            assert_eq!(Enhanced::parse(&written), Ok((enhanced, &[][..])));
            if let (Some(capabilities), rest) = Capabilities::parse(rest) {
                let written = capabilities.emit();
                assert_eq!(Capabilities::parse(&written).0, Some(capabilities));
                assert!(rest.len() + 12 == private.len());
            }
        }
    }
    if let Ok(hello) = Hello::parse(bytes) {
        let mut written = Vec::new();
        hello.emit(&mut written);
        assert_eq!(Hello::parse(&written), Ok(hello));
    }
});
