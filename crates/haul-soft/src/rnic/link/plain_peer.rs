//! What an end that protects its connections answers to a peer that does not: a refusal of that
//! peer's protocol, so that its user gets a line.

use haul_iwarp::wire::Features;
use haul_iwarp::wire::hello::{Hello, Terms};
use haul_iwarp::wire::mpa::{FRAME_LEN, FrameHead, FrameKind};

/// Private data of the refusal.
const LINE: &[u8] = b"this end accepts protected connections only; configure a key at both ends";

/// Answers the start-up frame that a TCP connection began with; nothing if it is none.
pub(super) fn mpa_refusal(request: &[u8]) -> Vec<u8> {
    let Some(Ok(head)) = request
        .first_chunk::<FRAME_LEN>()
        .map(|frame| FrameHead::parse(frame, FrameKind::Request))
    else {
        return Vec::new();
    };
    let reply = FrameHead {
        kind: FrameKind::Reply,
        reject: true,
        enhanced: false,
        private_len: u16::try_from(LINE.len()).unwrap_or(0),
        ..head
    };
    [&reply.emit(), LINE].concat()
}

/// Answers the request that a UDT connection began with; nothing if it is none.
pub(super) fn hello_refusal(request: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if let Ok(Hello::Request(terms)) = Hello::parse(request) {
        let features = Features::default();
        let private = LINE;
        Hello::Refusal(Terms {
            features,
            private,
            ..terms
        })
        .emit(&mut out);
    }
    out
}
