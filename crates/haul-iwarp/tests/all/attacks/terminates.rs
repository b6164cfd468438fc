//! The request that a peer's Terminate fails.

use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::rdmap::{Opcode, Terminate};
use haul_iwarp::{Error, Event, Operation, Stag, Status, TermCode};

use super::{BASE, Segment, reader};

/// A Terminate of the peer's.
fn told(code: TermCode, quoted: Option<&Segment>) -> Segment {
    let header = quoted.map(|segment| {
        let mut octets = [0; 18];
        segment.header.emit(&mut octets);
        octets
    });
    let terminate = Terminate {
        segment_len: header.map(|_| 64),
        header,
        ..Terminate::bare(code)
    };
    let mut payload = [0; 52];
    let len = terminate.emit(&mut payload);
    Segment::untagged(Opcode::Terminate, 2, 1, 0, payload[..len].to_vec())
}

#[test]
fn a_terminate_that_quotes_nothing_is_charged_to_a_read_or_to_nobody() {
    for (code, status) in [
        (TermCode::ACCESS, Status::RemoteAccess),
        (TermCode::DDP_BOUNDS, Status::Flushed),
        (TermCode::DDP_NO_BUFFER, Status::Flushed),
        (TermCode::MPA_CRC, Status::Flushed),
    ] {
        let mut end = reader();
        end.post_receive(5, 8);
        let sent = end.fpdus.len();
        end.feed(&told(code, None).fpdu());
        assert_eq!(end.connection.error(), Some(Error::Terminated(code)));
        let done: Vec<_> = end.completions.iter().map(|c| (c.id, c.status)).collect();
        assert_eq!(done, [(1, status), (5, Status::Flushed)]);
        assert!(end.has(Event::Disconnect));
        assert_eq!(end.fpdus.len(), sent, "a Terminate is not answered");
    }
}

#[test]
fn a_terminate_is_charged_to_the_request_that_it_quotes() {
    let flushed = |id| (id, Status::Flushed);
    let read = |msn| Segment::read(msn, 0x1000, BASE, 16);
    let write = |stag, to| Segment::tagged(Opcode::Write, stag, to, 0);
    let access = TermCode::ACCESS;
    let cases = [
        (
            read(1),
            access,
            [
                (1, Status::RemoteAccess),
                flushed(2),
                flushed(3),
                flushed(4),
            ],
        ),
        (
            read(2),
            access,
            [
                flushed(1),
                (2, Status::RemoteAccess),
                flushed(3),
                flushed(4),
            ],
        ),
        // Of a Write the peer quotes the segment, somewhere in the message.
        (
            write(7, 40),
            access,
            [
                flushed(1),
                flushed(2),
                (3, Status::RemoteAccess),
                flushed(4),
            ],
        ),
        // The length of the message is no part of it, and another tag is another Write.
        (
            write(7, 64),
            access,
            [flushed(1), flushed(2), flushed(3), flushed(4)],
        ),
        (
            write(8, 40),
            access,
            [flushed(1), flushed(2), flushed(3), flushed(4)],
        ),
        (
            Segment::send(1, 0, 0),
            TermCode::DDP_NO_BUFFER,
            [
                flushed(1),
                flushed(2),
                flushed(3),
                (4, Status::RemoteOperation),
            ],
        ),
        (
            Segment::send(2, 0, 0),
            access,
            [flushed(1), flushed(2), flushed(3), flushed(4)],
        ),
        // An answer of this end's is the peer's request.
        (
            Segment::tagged(Opcode::ReadResponse, 7, 40, 0),
            access,
            [flushed(1), flushed(2), flushed(3), flushed(4)],
        ),
    ];
    for (number, (quoted, code, wanted)) in cases.into_iter().enumerate() {
        let mut end = reader();
        let second = Operation::Read {
            sink: Stag(0xbb00),
            sink_to: 0,
            source: Stag(0x1000),
            source_to: BASE,
        };
        end.post_read(2, second, 16);
        let placed = true;
        let (stag, to) = (Stag(7), 16);
        end.post_send(3, Operation::Write { stag, to, placed }, vec![1; 48]);
        let send = Operation::Send {
            solicited: false,
            invalidate: None,
        };
        end.post_send(4, send, vec![2; 8]);
        end.drain();
        end.feed(&told(code, Some(&quoted)).fpdu());
        let done: Vec<_> = end.completions.iter().map(|c| (c.id, c.status)).collect();
        assert_eq!(done, wanted, "case {number}");
    }
}

#[test]
fn an_error_of_a_write_that_is_complete_is_charged_to_nothing_behind_it() {
    let mut end = reader();
    let (stag, to, placed) = (Stag(7), 16, false);
    // It completes when the stream has it; the Read behind it is correct.
    end.feed(&Segment::tagged(Opcode::ReadResponse, 0xaa00, 8, 16).fpdu());
    end.post_send(2, Operation::Write { stag, to, placed }, vec![1; 48]);
    let read = Operation::Read {
        sink: Stag(0xaa00),
        sink_to: 8,
        source: Stag(0x1000),
        source_to: BASE,
    };
    end.post_read(3, read, 16);
    end.drain();
    let quoted = Segment::tagged(Opcode::Write, 7, 16, 0);
    end.feed(&told(TermCode::DDP_INVALID_STAG, Some(&quoted)).fpdu());
    let done: Vec<_> = end.completions.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(
        done,
        [
            (1, Status::Success),
            (2, Status::Success),
            (3, Status::Flushed)
        ]
    );
}
