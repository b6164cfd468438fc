//! The messages of session, listing and ssh, and the files, as 0.1.0 writes them.

#[path = "../../../tests/fixtures/recorded.rs"]
mod fixtures;

use std::time::{Duration, UNIX_EPOCH};

use haul_cc::{Rate, Remembered};
use haul_control::frame::Frame;
use haul_control::identity::PeerIdentity;
use haul_io::file::FileTime;

use crate::channel::Ticket;
use crate::channel::chunk::{chunk_header, parse_chunk_header};
use crate::channel::tcp::{parse_stream_header, stream_header};
use crate::choice::{Choice, Rule};
use crate::entry::{self, Entry, Extent, Extra, FileEntry, What};
use crate::fs::filter::Action;
use crate::fs::path::Relative;
use crate::journal::{Content, Journal, Subject};
use crate::link::greeting;
use crate::listing::wire as listing;
use crate::paths::{PathKey, Paths};
use crate::room::Room;
use crate::ssh::greeting::{Introduction, Welcome};
use crate::wire::{self, *};

use fixtures::assert_recorded;

fn entries() -> Vec<u8> {
    let path = |text: &str| Relative::new(text.as_bytes()).unwrap();
    let entry = |name: &str, what| Entry {
        path: path(name),
        modified: Time {
            seconds: 1_700_000_000,
            nanos: 5,
        },
        mode: 0o644,
        is_member: true,
        what,
        extra: None,
    };
    let file = FileEntry {
        size: 1 << 30,
        unproven: true,
        is_linked: true,
        extents: Some(vec![Extent {
            start: 4096,
            len: 8192,
        }]),
    };
    let mut batch = entry::Batch::default();
    let entries = [
        Entry {
            extra: Some(Extra {
                uid: 1,
                gid: 2,
                xattrs: vec![((*b"user.a").into(), (*b"b").into())],
            }),
            ..entry("tree", What::Directory)
        },
        entry("tree/file", What::File(file)),
        entry(
            "tree/link",
            What::Symlink {
                target: b"file".to_vec(),
            },
        ),
        entry(
            "tree/name",
            What::HardLink {
                path: path("tree/file"),
            },
        ),
    ];
    for entry in &entries {
        assert!(batch.push(entry));
    }
    let bytes = batch.into_bytes();
    assert_eq!(entry::parse(&bytes).unwrap(), entries);
    bytes
}

fn counters() -> Complete {
    Complete {
        cpu_user_us: 1,
        cpu_system_us: 2,
        moved: 3,
        retransmitted: 4,
        rtt_us: Some(5),
        repaired: 6,
        causes: Some(Causes {
            lost: 1,
            reordered: 2,
            refused: 3,
            timer: 4,
        }),
        lost: Some(attributes()),
    }
}

const fn attributes() -> Attributes {
    Attributes {
        mode: 1,
        setuid: 2,
        time: 3,
        owner: 4,
        xattrs: 5,
        acls: 6,
        links: 7,
    }
}

fn requests() -> Vec<(&'static str, Message)> {
    let policy = Policy {
        replace: true,
        recheck: true,
        durable: Durable::File,
        xattrs: true,
        acls: true,
        setuid: true,
        update: true,
        delta: true,
        deletes: true,
    };
    let choice = Choice {
        rules: vec![(Action::Exclude, "*.tmp".into())],
        reads_ignore_files: true,
        list: Some([b"a", b"b"].map(|path| Relative::new(path).unwrap()).into()),
        ..Choice::default()
    };
    vec![
        (
            "Put",
            Message::Put(Put {
                directory: b"in".to_vec(),
                policy,
                binding: [0; 32],
            }),
        ),
        (
            "Get",
            Message::Get(Get {
                paths: vec![b"a".to_vec().into()],
                policy: Policy::default(),
                choice: choice.chosen().unwrap(),
                binding: [0; 32],
            }),
        ),
        (
            "Bench",
            Message::Bench(Bench {
                reverse: true,
                bytes: Some(1 << 40),
                time_ms: Some(1000),
            }),
        ),
        (
            "OpenChannel",
            Message::OpenChannel(OpenChannel {
                kind: 1,
                ticket: 0x0123_4567_89ab_cdef,
                streams: 1,
                rate_bps: Some(1_000_000_000),
                congestion: Some("cubic".into()),
                cipher: Some(2),
                arrived: Vec::new(),
            }),
        ),
        (
            "Offer",
            Message::Offer(Offer {
                first: 7,
                entries: entries(),
                is_last: true,
                early: Some(6),
            }),
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "one message after another")]
fn answers() -> Vec<(&'static str, Message)> {
    let run = Run {
        file: 1,
        first: 2,
        count: 3,
    };
    let files = || FileRuns {
        runs: vec![FileRun { first: 1, count: 2 }],
    };
    let digests = vec![7; 64];
    let modified = Time {
        seconds: 1_700_000_000,
        nanos: 5,
    };
    vec![
        (
            "Plan",
            Message::Plan(Plan {
                first: 7,
                count: 4,
                complete: vec![5],
                parts: vec![Part {
                    file: 8,
                    present: 1 << 20,
                    restarted: true,
                }],
            }),
        ),
        ("Wants", Message::Wants(Wants { runs: vec![run] })),
        (
            "Digests",
            Message::Digests(Digests {
                file: 1,
                first: 2,
                digests: digests.clone(),
            }),
        ),
        ("Progress", Message::Progress(Progress { present: 1 << 33 })),
        (
            "Commit",
            Message::Commit(Commit {
                file: 1,
                seal: [9; 32],
                end: 1 << 33,
            }),
        ),
        (
            "Done",
            Message::Done(FileRoot {
                file: 1,
                blake3: [8; 32],
            }),
        ),
        ("Complete", Message::Complete(counters())),
        ("BenchEnd", Message::BenchEnd(BenchEnd { end: 1 << 33 })),
        (
            "BenchReport",
            Message::BenchReport(BenchReport {
                bytes: 1 << 33,
                duration_us: 1_000_000,
                intervals: vec![1, 2],
                spent: counters(),
            }),
        ),
        ("Confirm", Message::Confirm(Confirm { runs: vec![run] })),
        ("Locate", Message::Locate(Locate { file: 1, block: 2 })),
        (
            "Pieces",
            Message::Pieces(Pieces {
                file: 1,
                block: 2,
                digests,
            }),
        ),
        (
            "Repair",
            Message::Repair(Repair {
                file: 1,
                block: 2,
                runs: vec![PieceRun { first: 3, count: 4 }],
            }),
        ),
        ("WantFiles", Message::WantFiles(files())),
        (
            "Seals",
            Message::Seals(Seals {
                first: 1,
                seals: vec![6; 32],
            }),
        ),
        ("DoneFiles", Message::DoneFiles(files())),
        (
            "Failed",
            Message::Failed(Failed {
                file: 1,
                code: 17,
                text: "no".into(),
            }),
        ),
        (
            "LeftOut",
            Message::LeftOut(LeftOut {
                path: b"a/b".to_vec(),
                code: Some(13),
                text: "no".into(),
            }),
        ),
        ("Lost", Message::Lost(attributes())),
        ("Rate", Message::Rate(wire::Rate { bps: Some(1 << 30) })),
        (
            "Stat",
            Message::Stat(Stat {
                path: b"a/b".to_vec(),
            }),
        ),
        (
            "Found",
            Message::Found(Found {
                request: 1,
                kind: 0,
                size: 1 << 33,
                modified,
                mode: 0o640,
            }),
        ),
        (
            "Range",
            Message::Range(Range {
                path: b"a/b".to_vec(),
                offset: 1 << 32,
                length: 1 << 20,
                size: 1 << 33,
                modified,
            }),
        ),
        (
            "Ranged",
            Message::Ranged(Ranged {
                request: 1,
                blake3: [9; 32],
            }),
        ),
        ("Taken", Message::Taken(Taken { before: 2 })),
    ]
}

#[test]
fn the_messages_of_sessions_are_those_of_the_first_release() {
    let messages = requests().into_iter().chain(answers());
    let mut made: Vec<_> = messages
        .map(|(name, message)| {
            let bytes = encode(&message).unwrap();
            let read = decode(&bytes).unwrap().unwrap();
            assert_eq!(encode(&read).unwrap(), bytes, "{name}");
            (name, bytes)
        })
        .collect();
    // What a client of `haul send` sends in one flight, inside TLS.
    let mut flight = Vec::new();
    let frames = [Frame::Greeting(greeting(
        SERVICE,
        [5; 16],
        Duration::from_secs(20),
    ))];
    let requests = ["OpenChannel", "Put", "Offer"].map(|name| {
        let (_, bytes) = made.iter().find(|(of, _)| *of == name).unwrap();
        Frame::Message(bytes.clone())
    });
    for frame in frames.into_iter().chain(requests) {
        frame.write(&mut flight).unwrap();
    }
    made.push(("first-flight", flight));
    let ticket = Ticket::from_wire(0x0123_4567_89ab_cdef);
    let stream = stream_header(ticket, 3);
    let rest = stream.last_chunk().unwrap();
    assert_eq!(parse_stream_header(*rest), Some((ticket, 3)));
    made.push(("stream-header", stream.to_vec()));
    let chunk = chunk_header(1 << 40, 1 << 20);
    assert_eq!(parse_chunk_header(chunk), Some((1 << 40, 1 << 20)));
    made.push(("chunk-header", chunk.to_vec()));
    assert_recorded("session", &made);
}

#[test]
fn the_messages_of_listings_are_those_of_the_first_release() {
    use listing::{Batch, Blocks, Delete, Deleted, Digests, End, Failed, Item, List, Message};

    let item = |target, blake3| Item {
        path: b"a/b".to_vec(),
        kind: 3,
        size: 5,
        allocated: 4096,
        seconds: -1,
        nanos: 999_999_999,
        mode: 0o644,
        uid: 1,
        gid: 2,
        target,
        blake3,
    };
    let failures = || {
        vec![Failed {
            path: b"c".to_vec(),
            text: "no".into(),
        }]
    };
    let messages = [
        (
            "List",
            Message::List(List {
                path: b"in".to_vec(),
                recursive: true,
                digests: true,
                rules: vec![Rule::new(&(Action::Include, "*.h5".into()))],
                ignore_files: true,
                deletes: false,
            }),
        ),
        (
            "Batch",
            Message::Batch(Batch {
                items: vec![item(Some(b"a/a".to_vec()), Some([4; 32]))],
                failures: failures(),
            }),
        ),
        ("Credit", Message::Credit),
        (
            "End",
            Message::End(End {
                is_file: true,
                excluded: 3,
                file_system: Some(9),
                room: Some(Room {
                    bytes: 1 << 40,
                    inodes: Some(1 << 20),
                }),
            }),
        ),
        (
            "Blocks",
            Message::Blocks(Blocks {
                path: b"a/b".to_vec(),
            }),
        ),
        (
            "Digests",
            Message::Digests(Digests {
                size: 5,
                digests: vec![4; 32],
                failure: Some("no".into()),
            }),
        ),
        (
            "Delete",
            Message::Delete(Delete {
                items: vec![item(None, None)],
            }),
        ),
        (
            "Deleted",
            Message::Deleted(Deleted {
                count: 1,
                failures: failures(),
                not_empty: vec![b"d".to_vec().into()],
            }),
        ),
    ];
    let made = messages.map(|(name, message)| {
        let bytes = listing::encode(&message).unwrap();
        assert_eq!(listing::decode(&bytes).unwrap(), Some(message), "{name}");
        (name, bytes)
    });
    assert_recorded("listing", &made);
}

#[test]
fn the_messages_by_ssh_are_those_of_the_first_release() {
    let introduction = Introduction {
        software: "haul 0.1.0".into(),
        key: [1; 32],
        ports: Some((5000, 5010)),
        probe: true,
    };
    let welcome = Welcome {
        key: [2; 32],
        ports: vec![5001],
        address: Some("192.0.2.1".into()),
        range: (5000, 5010),
        failure: Some("no".into()),
        token: [3; 16],
    };
    let made = [
        ("Introduction", minicbor::to_vec(&introduction).unwrap()),
        ("Welcome", minicbor::to_vec(&welcome).unwrap()),
    ];
    assert_eq!(minicbor::decode(&made[0].1).ok(), Some(introduction));
    assert_eq!(minicbor::decode(&made[1].1).ok(), Some(welcome));
    assert_recorded("ssh", &made);
}

#[test]
fn the_files_are_those_of_the_first_release() {
    let file = tempfile::tempfile().unwrap();
    let subject = Subject {
        size: 10 << 20,
        modified: FileTime {
            seconds: -5,
            nanos: 7,
        },
        inode: 77,
        layout: 9,
    };
    let open = || Journal::open(file.try_clone().unwrap(), subject, [1; 16]).unwrap();
    let blocks = vec![(1, [1; 32]), (3, [3; 32])];
    open().0.append(&file, &blocks).unwrap();
    let mut journal = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut journal, 0).unwrap();
    assert_eq!(open().1, Content::Blocks(blocks));

    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path().join("paths"));
    let key = PathKey::new(&PeerIdentity::Anonymous, [192, 0, 2, 1].into());
    let (now, found) = (
        UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        Remembered {
            rate: Rate::from_bps(930_000_000),
            rtt_ns: 100_123_000,
        },
    );
    paths.keep(&key, found, now).unwrap();
    assert_eq!(paths.recall(&key, now), Some(found));
    let paths = std::fs::read(dir.path().join("paths")).unwrap();
    assert_recorded("files", &[("journal", journal), ("paths", paths)]);
}
