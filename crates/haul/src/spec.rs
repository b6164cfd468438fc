//! The worked exchanges of session.md, listing.md and read.md in docs/protocol: decoded, encoded,
//! recomputed.

#[path = "../../../tests/pages/hex.rs"]
pub(crate) mod hex;

use haul_control::frame::{FRAME_MAX, Frame, Greeting};

use crate::channel::Ticket;
use crate::channel::chunk::parse_chunk_header;
use crate::channel::tcp::{STREAM_HEADER_REST, parse_stream_header};
use crate::choice::check_rules;
use crate::entry;
use crate::listing::wire as listing;
use crate::wire::{self, DATA_PREAMBLE, Message, READ_SERVICE, SERVICE};

use hex::bytes;

const PAGE: &str = include_str!("../../../docs/protocol/session.md");
const LISTING: &str = include_str!("../../../docs/protocol/listing.md");
const READ: &str = include_str!("../../../docs/protocol/read.md");

fn frames(bytes: &[u8]) -> (Option<Greeting>, Vec<Message>) {
    let decode = |body: &[u8]| wire::decode(body).unwrap();
    frames_of(bytes, decode, |message| wire::encode(message).unwrap())
}

/// The greeting and the messages of these frames, each of which this build would write like that.
fn frames_of<M: std::fmt::Debug>(
    mut bytes: &[u8],
    decode: impl Fn(&[u8]) -> Option<M>,
    encode: impl Fn(&M) -> Vec<u8>,
) -> (Option<Greeting>, Vec<M>) {
    let (mut greeting, mut messages) = (None, Vec::new());
    while !bytes.is_empty() {
        let (frame, length) = Frame::read(bytes, FRAME_MAX)
            .unwrap()
            .expect("a whole frame");
        let frame = frame.expect("a known kind");
        let mut again = Vec::new();
        frame.write(&mut again).unwrap();
        assert_eq!(again, bytes[..length], "{frame:?}");
        match frame {
            Frame::Greeting(found) => greeting = Some(found),
            Frame::Message(body) => {
                let message = decode(&body).expect("a known kind");
                assert_eq!(encode(&message), body, "{message:?}");
                messages.push(message);
            }
            other => panic!("{other:?}"),
        }
        bytes = &bytes[length..];
    }
    (greeting, messages)
}

fn messages(bytes: &[u8]) -> Vec<Message> {
    frames(bytes).1
}

#[test]
fn the_exchange_of_the_page_is_what_this_build_reads_and_writes() {
    let (greeting, sent) = frames(&bytes(PAGE, "client-control"));
    assert_eq!(
        greeting.map(|greeting| greeting.service).as_deref(),
        Some(SERVICE)
    );
    let [
        Message::OpenChannel(open),
        put @ Message::Put(_),
        Message::Offer(offer),
    ] = sent.as_slice()
    else {
        panic!("{sent:?}");
    };

    let stream = bytes(PAGE, "client-stream");
    let (preamble, rest) = stream.split_at(DATA_PREAMBLE.len());
    assert_eq!(preamble, DATA_PREAMBLE);
    let rest: [u8; STREAM_HEADER_REST] = rest.try_into().unwrap();
    let ticket = Ticket::from_wire(open.ticket);
    assert_eq!(parse_stream_header(rest), Some((ticket, 0)));

    let (greeting, answer) = frames(&bytes(PAGE, "server-plan"));
    assert!(greeting.is_some());
    let [Message::Plan(plan), Message::Wants(wants)] = answer.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (plan.count, &plan.complete[..], wants.runs.len()),
        (1, &[0][..], 1)
    );

    let chunk = bytes(PAGE, "client-chunk");
    let (header, payload) = chunk.split_first_chunk().unwrap();
    assert_eq!(parse_chunk_header(*header), Some((0, 6)));
    assert_eq!(payload, b"hello\n");

    let root = *blake3::hash(payload).as_bytes();
    let entries = entry::parse(&offer.entries).unwrap();
    let mut batch = entry::Batch::default();
    assert!(batch.push(&entries[0]));
    assert_eq!(batch.into_bytes(), offer.entries);
    let seal = entries[0].seal(&wire::binding(put).unwrap(), &root);
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

#[test]
fn the_exchange_of_a_listing_is_what_this_build_reads_and_writes() {
    use listing::Message;

    let read = |name: &str| {
        let decode = |body: &[u8]| listing::decode(body).unwrap();
        frames_of(&bytes(LISTING, name), decode, |message| {
            listing::encode(message).unwrap()
        })
    };
    let (greeting, asked) = read("client-list");
    assert_eq!(
        greeting.map(|greeting| greeting.service).as_deref(),
        Some(listing::SERVICE)
    );
    let [Message::List(list)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert!(list.recursive && list.digests && check_rules(&list.rules).is_ok());
    assert_eq!((&list.path[..], &list.rules[..]), (&b"in"[..], &[][..]));

    let (greeting, answer) = read("server-list");
    assert!(greeting.is_some());
    let [Message::Batch(batch), Message::End(end)] = answer.as_slice() else {
        panic!("{answer:?}");
    };
    let [item] = batch.items.as_slice() else {
        panic!("{batch:?}");
    };
    let hash = *blake3::hash(b"hello\n").as_bytes();
    let (entry, digest) = item.clone().into_entry().unwrap();
    assert_eq!((entry.stat.size, digest), (6, Some(hash)));
    assert_eq!((end.is_file, end.excluded), (false, 0));

    let (_, asked) = read("client-blocks");
    let [Message::Credit, Message::Blocks(blocks)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(blocks.path, item.path);
    let (_, answer) = read("server-digests");
    let [Message::Digests(digests)] = answer.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!((digests.size, &digests.digests[..]), (6, &hash[..]));
    assert_eq!(digests.failure, None);
}

#[test]
fn the_exchange_of_a_read_is_what_this_build_reads_and_writes() {
    let (greeting, asked) = frames(&bytes(READ, "client-requests"));
    assert_eq!(
        greeting.map(|greeting| greeting.service).as_deref(),
        Some(READ_SERVICE)
    );
    let [Message::OpenChannel(_), Message::Stat(stat)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    let answer = messages(&bytes(READ, "server-found"));
    let [Message::Found(found)] = answer.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!((found.request, found.kind, found.size), (0, 0, 6));
    let asked = messages(&bytes(READ, "client-range"));
    let [Message::Range(range)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(range.path, stat.path);
    assert_eq!((range.offset, range.length), (2, 4));
    assert_eq!((range.size, range.modified), (found.size, found.modified));

    let chunk = bytes(READ, "server-chunk");
    let (header, payload) = chunk.split_first_chunk().unwrap();
    assert_eq!(parse_chunk_header(*header), Some((0, 4)));
    assert_eq!(payload, &b"hello\n"[2..]);
    let answer = messages(&bytes(READ, "server-ranged"));
    let [Message::Ranged(ranged)] = answer.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!(ranged.request, 1);
    assert_eq!(ranged.blake3, *blake3::hash(payload).as_bytes());
    let taken = messages(&bytes(READ, "client-taken"));
    assert!(matches!(taken[..], [Message::Taken(taken)] if taken.before == 2));
}
