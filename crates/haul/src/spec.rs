//! The worked exchange of docs/protocol/session.md, decoded, encoded and recomputed.

#[path = "../../../tests/pages/hex.rs"]
mod hex;

use crate::channel::Token;
use crate::channel::tcp::{STREAM_HEADER_REST, parse_chunk_header, parse_stream_header};
use crate::link::frame;
use crate::wire::{self, CONTROL_PREAMBLE, DATA_PREAMBLE, Message};

use hex::bytes;

const PAGE: &str = include_str!("../../../docs/protocol/session.md");

/// The messages of these frames, each of which this build would write like that.
fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let whole = frame(bytes).unwrap().expect("a whole frame");
        let body = wire::checked(whole).expect("a good check");
        let message = wire::decode(body).unwrap().expect("a known kind");
        assert_eq!(wire::encode(&message).unwrap(), whole, "{message:?}");
        messages.push(message);
        bytes = &bytes[whole.len()..];
    }
    messages
}

#[test]
fn the_exchange_of_the_page_is_what_this_build_reads_and_writes() {
    let client = bytes(PAGE, "client-control");
    let (preamble, frames) = client.split_at(CONTROL_PREAMBLE.len());
    assert_eq!(preamble, CONTROL_PREAMBLE);
    let sent = messages(frames);
    let [
        Message::Hello(hello),
        Message::OpenChannel(open),
        put @ Message::Put(_),
        Message::Offer(offer),
    ] = sent.as_slice()
    else {
        panic!("{sent:?}");
    };
    assert!((hello.version_min..=hello.version_max).contains(wire::VERSIONS.end()));

    let stream = bytes(PAGE, "client-stream");
    let (preamble, rest) = stream.split_at(DATA_PREAMBLE.len());
    assert_eq!(preamble, DATA_PREAMBLE);
    let rest: [u8; STREAM_HEADER_REST] = rest.try_into().unwrap();
    let token = Token::from_wire(open.token);
    assert_eq!(parse_stream_header(rest), Some((token, 0)));

    let answer = bytes(PAGE, "server-plan");
    let answer = messages(&answer[CONTROL_PREAMBLE.len()..]);
    let [
        Message::Hello(_),
        Message::Plan(plan),
        Message::Wants(wants),
    ] = answer.as_slice()
    else {
        panic!("{answer:?}");
    };
    assert_eq!((plan.files.len(), wants.runs.len()), (1, 1));

    let chunk = bytes(PAGE, "client-chunk");
    let (header, payload) = chunk.split_first_chunk().unwrap();
    assert_eq!(parse_chunk_header(*header), Some((0, 6)));
    assert_eq!(payload, b"hello\n");

    let root = *blake3::hash(payload).as_bytes();
    let seal = wire::seal(&wire::binding(put).unwrap(), &offer.files[0], &root).unwrap();
    let sent = messages(&bytes(PAGE, "client-digests"));
    let [Message::Digests(digests)] = sent.as_slice() else {
        panic!("no digests");
    };
    assert_eq!(digests.digests, root);
    let commit = messages(&bytes(PAGE, "client-commit"));
    assert!(
        matches!(commit[..], [Message::Commit(commit)] if commit.seal == seal && commit.end == 6)
    );
    let done = messages(&bytes(PAGE, "server-done"));
    assert!(
        matches!(&done[..], [Message::Done(done), Message::Complete(_)] if done.blake3 == root)
    );
    let complete = messages(&bytes(PAGE, "client-complete"));
    assert!(matches!(complete[..], [Message::Complete(_)]));
}
