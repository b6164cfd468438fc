//! Two ends over a stream: every operation arrives as it was meant, however the stream is cut.

mod common;

use common::{End, config, ends, everything, pair, pattern, settle, settle_in};
use haul_iwarp::wire::mpa::RtrKinds;
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{
    CompletionKind, Error, Event, Incompatible, PostError, SendOp, Stag, State, Status,
    StreamConfig, Time,
};

const SEND: SendOp = SendOp::Send {
    solicited: false,
    invalidate: None,
};

fn write(stag: Stag, to: u64) -> SendOp {
    let placed = false;
    SendOp::Write { stag, to, placed }
}

fn variants() -> Vec<(&'static str, StreamConfig, StreamConfig)> {
    let plain = config();
    let foreign = StreamConfig {
        extensions: false,
        ..plain
    };
    let markers = StreamConfig {
        markers: true,
        ..plain
    };
    let strict = StreamConfig {
        strict: true,
        ..plain
    };
    let no_crc = StreamConfig {
        crc: false,
        ..plain
    };
    let first = StreamConfig {
        revision: 1,
        ..plain
    };
    vec![
        ("between Longhaul ends", plain, plain),
        ("to a foreign end", plain, foreign),
        ("with markers one way", markers, plain),
        ("with markers both ways", markers, markers),
        ("strict", strict, strict),
        ("without CRC", no_crc, no_crc),
        ("with revision 1", first, plain),
        (
            "strict with markers",
            StreamConfig {
                strict: true,
                ..markers
            },
            markers,
        ),
    ]
}

#[test]
fn sends_and_writes_arrive_however_the_stream_is_cut() {
    for (what, initiator, responder) in variants() {
        for most in [1, 2, 3, 7, 64, 513, usize::MAX] {
            let (mut a, mut b) = pair(initiator, responder);
            let stag = b
                .ram
                .register(0x1100, 1 << 40, vec![0; 200_000], everything());
            b.post_receive(1, 10_000);
            b.post_receive(2, 5);
            a.post_send(10, write(stag, (1 << 40) + 3), pattern(150_001, 1));
            a.post_send(11, SEND, pattern(9_999, 2));
            a.post_send(12, SEND, Vec::new());
            settle_in(&mut a, &mut b, most);
            let at = format!("{what}, {most} octets at a time");
            assert_eq!(b.connection.error(), None, "{at}");
            assert!(b.ram.regions[0][3..150_004] == pattern(150_001, 1), "{at}");
            assert!(b.ram.receives[&1][..9_999] == pattern(9_999, 2), "{at}");
            let got: Vec<_> = b
                .completions
                .iter()
                .map(|c| (c.id, c.len, c.status))
                .collect();
            assert_eq!(
                got,
                [(1, 9_999, Status::Success), (2, 0, Status::Success)],
                "{at}"
            );
            let done: Vec<_> = a.completions.iter().map(|c| (c.id, c.status)).collect();
            assert_eq!(done, [10, 11, 12].map(|id| (id, Status::Success)), "{at}");
            assert_eq!(a.connection.params().unwrap().crc, initiator.crc, "{at}");
        }
    }
}
