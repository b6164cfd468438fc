//! Clients that request ranges which they may not, and servers whose bytes are not what they claim.

use std::io::IoSlice;
use std::os::unix::fs::FileExt as _;

use crossbeam_channel::never;

use super::*;
use crate::client::Range;
use crate::session::ranges::{RANGE_MAX, REQUESTS_OPEN, serve};
use crate::session::reader::Reader;
use crate::wire::{self, Found, Ranged, Stat, Taken, Time};

const TIME: Time = Time {
    seconds: 1,
    nanos: 2,
};

fn range(offset: u64, length: u64, size: u64) -> Message {
    Message::Range(wire::Range {
        path: b"f".to_vec(),
        offset,
        length,
        size,
        modified: TIME,
    })
}

/// Serves a file `f` of ten bytes to a client that sends these messages; returns the answers up to
/// the fault.
fn ask(messages: &[Message]) -> (Vec<Message>, Fault) {
    let (near, far) = links();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "0123456789").unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    haul_io::file::set_modified(&file, TIME.into()).unwrap();
    let open = |name: &[u8]| match name {
        b"f" => Ok(File::open(&path).unwrap()),
        _ => Err(Fault::new(Code::FileNotFound, "there is none")),
    };
    std::thread::scope(|scope| {
        // A failure here ends the other side.
        let near = near;
        let server = scope.spawn(move || {
            let opening = Opening::ready(Arc::new(Counting(None)));
            let served = serve(&far, opening, &open, &|_| {}, &never());
            if let Err(fault) = &served {
                far.report(fault);
            }
        });
        for message in messages {
            near.send(message).unwrap();
        }
        let mut answers = Vec::new();
        let fault = loop {
            match near.receive() {
                Ok(answer) => answers.push(answer),
                Err(fault) => break fault,
            }
        };
        near.hang_up();
        server.join().unwrap();
        (answers, fault)
    })
}

#[test]
fn impossible_ranges_end_the_session() {
    for wrong in [
        range(10, 1, 10),
        range(u64::MAX, 2, 10),
        range(0, 0, 10),
        range(0, RANGE_MAX + 1, u64::MAX),
        Message::Taken(Taken { before: 1 }),
        Message::Ranged(Ranged {
            request: 0,
            blake3: [0; 32],
        }),
    ] {
        let (answers, fault) = ask(std::slice::from_ref(&wrong));
        assert_eq!(fault.code, Code::Protocol, "{wrong:?}: {fault}");
        assert_eq!(answers, [], "{wrong:?}");
    }
}

#[test]
fn requests_that_are_not_taken_are_limited() {
    let taken = Message::Taken(Taken {
        before: REQUESTS_OPEN,
    });
    let many = |count: u32| vec![range(0, 10, 10); count as usize];
    let (_, fault) = ask(&many(REQUESTS_OPEN + 1));
    assert!(fault.text.contains("too many requests"), "{fault}");
    // Reported before their answers, so that more may wait to be hashed than the queue holds.
    let (_, fault) = ask(&[many(REQUESTS_OPEN), vec![taken], many(REQUESTS_OPEN + 1)].concat());
    let expected = ["too many requests", "before its answer"];
    assert!(
        expected.iter().any(|text| fault.text.contains(text)),
        "{fault}"
    );
}

#[test]
fn a_request_that_fails_leaves_the_others() {
    let stat = |path: &[u8]| {
        Message::Stat(Stat {
            path: path.to_vec(),
        })
    };
    let of_another = Message::Range(wire::Range {
        path: b"other".to_vec(),
        offset: 0,
        length: 1,
        size: 1,
        modified: TIME,
    });
    let end = Message::Taken(Taken { before: 9 });
    let (mut answers, _) = ask(&[
        stat(b"f"),
        stat(b"other"),
        of_another,
        range(0, 1, 11),
        range(2, 3, 10),
        end,
    ]);
    answers.sort_by_key(|answer| match answer {
        Message::Found(found) => found.request,
        Message::Failed(failed) => failed.file,
        Message::Ranged(ranged) => ranged.request,
        other => panic!("{other:?}"),
    });
    let code = |answer: &Message| match answer {
        Message::Failed(failed) => Some(Code::from_number(failed.code)),
        _ => None,
    };
    let codes: Vec<_> = answers.iter().map(code).collect();
    let (missing, changed) = (Some(Code::FileNotFound), Some(Code::SourceChanged));
    // The last one may be hashed after the session has ended.
    assert_eq!(codes[..4], [None, missing, missing, changed]);
    assert!(
        matches!(
            answers[0],
            Message::Found(Found {
                kind: 0,
                size: 10,
                modified: TIME,
                ..
            })
        ),
        "{answers:?}"
    );
    if let Some(last) = answers.get(4) {
        let blake3 = *blake3::hash(b"234").as_bytes();
        assert_eq!(*last, Message::Ranged(Ranged { request: 4, blake3 }));
    }
}

/// A server that places these bytes and sends this answer to the first request.
fn answered(bytes: &'static [u8], answer: Message) -> Result<Vec<u8>, Fault> {
    struct Placing(&'static [u8], Receiver<()>);
    impl Channel for Placing {
        fn send(&self, _: &dyn Source) -> Result<(), ChannelError> {
            Ok(())
        }
        fn receive(&self, sink: &dyn Sink) -> Result<(), ChannelError> {
            let _ = self.1.recv();
            let placed = sink.place(0, &[IoSlice::new(self.0)]);
            placed.map_err(ChannelError::store)?;
            let _ = self.1.recv();
            Ok(())
        }
        fn close(&self) {}
        fn set_seal(&self, _: haul_seal::Seal) {}
        fn stats(&self) -> ChannelStats {
            ChannelStats::default()
        }
    }

    let (near, far) = links();
    let (place, placing) = unbounded();
    let opening = Opening::ready(Arc::new(Placing(bytes, placing)));
    let reader = Reader::start(near, opening).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            far.receive().unwrap();
            far.send(&answer).unwrap();
            place.send(()).unwrap();
            // Until the client is satisfied or not.
            let _ = far.receive();
            (far, place)
        });
        let mut range = Range {
            path: b"f".to_vec(),
            offset: 0,
            length: 3,
            size: 3,
            modified: TIME.into(),
        };
        let mut found = Vec::new();
        let read = reader.read(&mut range, &mut |bytes| {
            found.extend(bytes);
            Ok(())
        });
        drop(reader);
        drop(server.join().unwrap());
        read.map(|()| found)
    })
}

#[test]
fn bytes_of_another_state_of_the_file_are_never_returned() {
    let ranged = |content: &[u8], request| {
        Message::Ranged(Ranged {
            request,
            blake3: *blake3::hash(content).as_bytes(),
        })
    };
    assert_eq!(answered(b"abc", ranged(b"abc", 0)).unwrap(), b"abc");
    let code = |bytes, answer| answered(bytes, answer).unwrap_err().code;
    assert_eq!(code(b"abX", ranged(b"abc", 0)), Code::SourceChanged);
    assert_eq!(code(b"abc", ranged(b"abc", 1)), Code::Protocol);
    assert_eq!(code(b"abcd", ranged(b"abcd", 0)), Code::SourceChanged);
    let found = Message::Found(Found {
        request: 0,
        kind: 0,
        size: 3,
        modified: TIME,
        mode: 0o600,
    });
    assert_eq!(code(b"abc", found), Code::Protocol);
}

#[test]
fn a_file_that_changes_below_the_server_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "0123456789").unwrap();
    let (near, far) = links();
    let open = |_: &[u8]| Ok(File::open(&path).unwrap());
    std::thread::scope(|scope| {
        let near = near;
        let server = scope.spawn(move || {
            let opening = Opening::ready(Arc::new(Counting(None)));
            serve(&far, opening, &open, &|_| {}, &never())
        });
        let stat = || {
            near.send(&Message::Stat(Stat { path: Vec::new() }))
                .unwrap();
            match near.receive().unwrap() {
                Message::Found(found) => found,
                other => panic!("{other:?}"),
            }
        };
        let before = stat();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"X", 5).unwrap();
        haul_io::file::set_modified(&file, TIME.into()).unwrap();
        near.send(&Message::Range(wire::Range {
            path: Vec::new(),
            offset: 0,
            length: 10,
            size: before.size,
            modified: before.modified,
        }))
        .unwrap();
        let Message::Failed(failed) = near.receive().unwrap() else {
            panic!("not noticed");
        };
        assert_eq!(failed.code, Code::SourceChanged.number());
        near.hang_up();
        server.join().unwrap().unwrap();
    });
}

#[test]
fn a_server_that_drains_serves_what_was_requested() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "0123456789").unwrap();
    let (near, far) = links();
    let open = |_: &[u8]| Ok(File::open(&path).unwrap());
    let (drain, drained) = unbounded();
    std::thread::scope(|scope| {
        let near = near;
        let server = scope.spawn(move || {
            let opening = Opening::ready(Arc::new(Counting(None)));
            serve(&far, opening, &open, &|_| {}, &drained)
        });
        let stat = || {
            near.send(&Message::Stat(Stat { path: Vec::new() }))
                .unwrap();
            assert!(matches!(near.receive().unwrap(), Message::Found(_)));
        };
        stat();
        drop(drain);
        stat();
        near.send(&Message::Taken(Taken { before: 1 })).unwrap();
        stat();
        near.send(&Message::Taken(Taken { before: 3 })).unwrap();
        let fault = near.receive().unwrap_err();
        assert_eq!(fault.code, Code::ServerBusy, "{fault}");
        near.hang_up();
        server.join().unwrap().unwrap();
    });
}
