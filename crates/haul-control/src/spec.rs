//! The worked exchange of docs/protocol/control.md, decoded and encoded.

#[path = "../../../tests/pages/hex.rs"]
mod hex;

use crate::fault::{Code, Fault};
use crate::frame::{Frame, GREETING_MAX};

const PAGE: &str = include_str!("../../../docs/protocol/control.md");

/// The frames of a block of the page, each of which this build would write like that.
fn frames(name: &str) -> Vec<Frame> {
    let bytes = hex::bytes(PAGE, name);
    let (mut rest, mut frames) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let (frame, length) = Frame::read(rest, GREETING_MAX)
            .unwrap()
            .expect("a whole frame");
        let frame = frame.expect("a known kind");
        let mut again = Vec::new();
        frame.write(&mut again).unwrap();
        assert_eq!(again, rest[..length], "{frame:?}");
        frames.push(frame);
        rest = &rest[length..];
    }
    frames
}

#[test]
fn the_exchange_of_the_page_is_what_this_build_reads_and_writes() {
    let client = frames("client");
    let [
        Frame::Greeting(greeting),
        Frame::Message(message),
        Frame::Ping,
    ] = &client[..]
    else {
        panic!("{client:?}");
    };
    assert_eq!(
        (greeting.service.as_str(), greeting.dead_after_ms),
        ("files", 20_000)
    );
    assert_eq!(message, &[0xca, 0xfe]);
    let server = frames("server");
    let [Frame::Greeting(_), Frame::Fault(fault)] = &server[..] else {
        panic!("{server:?}");
    };
    assert_eq!(
        *fault,
        Fault::new(Code::Refused, "it is blocked").hint("ask it")
    );
}
