//! The worked exchange of docs/protocol/control.md, decoded and encoded.

#[path = "../../../tests/pages/hex.rs"]
mod hex;
#[path = "../../../tests/fixtures/recorded.rs"]
mod recorded;

use std::path::Path;

use crate::authorized::Authorized;
use crate::fault::{Code, Fault};
use crate::frame::{Frame, GREETING_MAX, Greeting};
use crate::known::Known;

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

#[test]
fn frames_and_files_are_those_of_the_first_release() {
    let greeting = |service: &str| {
        Frame::Greeting(Greeting {
            software: "haul 0.1.0".into(),
            service: service.into(),
            features: 1,
            dead_after_ms: 20_000,
            task: [5; 16],
        })
    };
    let made = [
        ("greeting-files", greeting("files/7")),
        ("greeting-listing", greeting("listing")),
        ("greeting-bench", greeting("bench")),
        ("greeting-pair", greeting("pair")),
        ("greeting-of-server", greeting("")),
        ("message", Frame::Message(vec![0xca, 0xfe])),
        ("ping", Frame::Ping),
        (
            "fault",
            Frame::Fault(Fault::new(Code::Refused, "it is blocked").hint("ask it")),
        ),
    ]
    .map(|(name, frame)| {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        let read = Frame::read(&bytes, GREETING_MAX).unwrap();
        assert_eq!(read, Some((Some(frame), bytes.len())), "{name}");
        (name, bytes)
    });
    recorded::assert_recorded("control", &made);

    const KEY: &str = "haul1:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";
    let keys =
        format!("{KEY} directory=a rights=read,write rate=1Gbit expires=2099-01-31 label=b\n");
    assert!(Authorized::parse(&keys).is_ok());
    let known = format!("example.org:4725 {KEY}\n");
    let parsed = Known::parse(Path::new("known"), &known).unwrap();
    assert_eq!(parsed.keys("example.org", 4725).len(), 1);
    let made = [
        ("authorized_keys", keys.into()),
        ("known_servers", known.into()),
    ];
    recorded::assert_recorded("keys", &made);
}
