//! Two ends of byte streams without sockets: everything arrives, in pieces of any size; and what a
//! peer may not do.

use std::collections::VecDeque;
use std::io;

use haul_slab::{AccessFlags, Region, Registration};
use haul_xsp::bag::{Get, GetId, Memory, Place, Put, PutId};
use haul_xsp::wire::Key;
use haul_xsp::{RegionId, SlabSeq};

use super::fabric::{Lost, News};
use super::flow::{Inlet, Outlet, Sent};
use super::frame::{Frame, GET_BYTES_MAX, PIECE_BYTES};
use super::ledger::{Ledger, Part};

const MIB: usize = 1 << 20;

fn pattern(region: &Region) -> Vec<u8> {
    let octets: Vec<u8> = (0_u32..)
        .map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .take(region.len())
        .collect();
    region.write(0, &octets).unwrap();
    octets
}

fn content(region: &Region) -> Vec<u8> {
    let mut octets = vec![0; region.len()];
    region.read(0, &mut octets).unwrap();
    octets
}

/// Bytes in flight from one end to the other; only `moves` of them move at a time.
#[derive(Default)]
struct Way {
    octets: VecDeque<u8>,
    moves: usize,
}

impl Way {
    fn send(&mut self, head: &[u8], part: Option<Part<'_>>) -> io::Result<usize> {
        let mut all = head.to_vec();
        if let Some(part) = part {
            let mut payload = vec![0; part.len];
            part.region.read(part.at, &mut payload).unwrap();
            all.extend(payload);
        }
        let count = all.len().min(self.moves);
        self.octets.extend(&all[..count]);
        Ok(count)
    }

    fn receive(&mut self, part: Option<Part<'_>>, rest: &mut [u8]) -> io::Result<usize> {
        if self.octets.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = part.map_or(0, |part| part.len) + rest.len();
        let count = self.octets.len().min(self.moves).min(room);
        let octets: Vec<u8> = self.octets.drain(..count).collect();
        let of_part = part.map_or(0, |part| part.len.min(count));
        if let Some(part) = part {
            part.region.write(part.at, &octets[..of_part]).unwrap();
        }
        rest[..count - of_part].copy_from_slice(&octets[of_part..]);
        Ok(count)
    }
}

/// One end: its ledger, and the ends of its streams.
struct End {
    ledger: Ledger,
    lanes: Vec<(Outlet, Inlet)>,
    news: Vec<News>,
}

impl End {
    fn new(arena: &Region, lanes: usize, is_opener: bool) -> Self {
        let lane = || match is_opener {
            true => (Outlet::default(), Inlet::new(true)),
            false => (Outlet::new(&Frame::Ready.emit()), Inlet::new(false)),
        };
        Self {
            ledger: Ledger::new(arena, [1, 2]),
            lanes: (0..lanes).map(|_| lane()).collect(),
            news: Vec::new(),
        }
    }

    /// Sends a little on each stream; whether there was anything.
    fn send(&mut self, ways: &mut [Way]) -> bool {
        let mut progress = false;
        for ((out, _), way) in self.lanes.iter_mut().zip(ways) {
            let sent = out
                .turn(&mut self.ledger, |head, part| way.send(head, part))
                .unwrap();
            progress |= matches!(sent, Sent::Some(_));
        }
        progress
    }

    fn receive(&mut self, ways: &mut [Way]) -> bool {
        let mut progress = false;
        for ((_, into), way) in self.lanes.iter_mut().zip(ways) {
            let received = into
                .turn(&mut self.ledger, &mut self.news, |part, rest| {
                    way.receive(part, rest)
                })
                .unwrap();
            progress |= received.is_some();
        }
        progress
    }

    fn receive_all(&mut self, octets: &[u8]) -> Result<(), Lost> {
        let mut way = Way {
            octets: octets.iter().copied().collect(),
            moves: octets.len(),
        };
        let (_, into) = &mut self.lanes[0];
        while !way.octets.is_empty() {
            into.turn(&mut self.ledger, &mut self.news, |part, rest| {
                way.receive(part, rest)
            })?;
        }
        Ok(())
    }
}

fn run(near: &mut End, far: &mut End, moves: usize) {
    let ways = || {
        let way = |_| Way {
            moves,
            ..Way::default()
        };
        (0..near.lanes.len()).map(way).collect::<Vec<_>>()
    };
    let (mut out, mut back) = (ways(), ways());
    while near.send(&mut out)
        | far.send(&mut back)
        | near.receive(&mut back)
        | far.receive(&mut out)
    {}
}

fn get(id: u64, key: Key, at: u64, len: u32) -> Get {
    Get {
        id: GetId(id),
        key,
        at,
        len,
    }
}

fn whole(ledger: &Ledger, region: &Region, access: AccessFlags) -> (Registration, Key) {
    ledger.open(region, 0, region.len() as u64, access).unwrap()
}

#[test]
fn what_is_asked_for_arrives_whatever_the_pieces_it_comes_in() {
    let source = Region::map(3 * MIB).unwrap();
    let octets = pattern(&source);
    for (lanes, moves) in [(1, 7_919), (3, 100_003), (4, 1 << 20)] {
        let (arena, other) = (Region::map(4 * MIB).unwrap(), Region::map(4096).unwrap());
        let mut near = End::new(&arena, lanes, true);
        let mut far = End::new(&other, lanes, false);
        let (_open, key) = whole(&far.ledger, &source, AccessFlags::REMOTE_READ);
        let from = |to| Key { to, ..key };
        near.ledger.get(get(1, from(0), 4096, (2 << 20) + 1));
        near.ledger.get(get(2, from(2 * MIB as u64 + 1), 0, 1));
        near.ledger.get(get(3, from(7), 3 * MIB as u64, 300_000));
        run(&mut near, &mut far, moves);
        let mut got: Vec<u64> = near
            .news
            .iter()
            .map(|news| match news {
                News::Got(id, true) => id.0,
                other => panic!("{other:?}"),
            })
            .collect();
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3], "{lanes} {moves}");
        assert_eq!(near.ledger.posts(), 0);
        let arrived = content(&arena);
        assert!(arrived[4096..][..2 * MIB + 1] == octets[..2 * MIB + 1]);
        assert_eq!(arrived[0], octets[2 * MIB + 1]);
        assert!(arrived[3 * MIB..][..300_000] == octets[7..][..300_000]);
    }
}

#[test]
fn what_is_put_is_in_place_when_it_is_confirmed() {
    let source = Region::map(MIB).unwrap();
    let octets = pattern(&source);
    let arena = Region::map(MIB).unwrap();
    let mut near = End::new(&source, 2, true);
    let mut far = End::new(&arena, 2, false);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (_open, key) = whole(&far.ledger, &arena, access);
    let piece = u64::from(PIECE_BYTES);
    for number in 0..4 {
        let put = Put {
            id: PutId(SlabSeq(7), number),
            place: Place {
                memory: Memory::Region(RegionId(0)),
                at: number * piece,
                len: piece,
            },
            key: Key {
                to: number * piece,
                ..key
            },
        };
        near.ledger.put(&put, &source);
        if number == 1 {
            near.ledger.mark(SlabSeq(6));
        }
    }
    near.ledger.mark(SlabSeq(7));
    run(&mut near, &mut far, 50_021);
    assert_eq!(near.news.len(), 4);
    assert!(content(&arena) == octets);
    let [News::Written(SlabSeq(6)), News::Written(SlabSeq(7))] = far.news[..] else {
        panic!("{:?}", far.news);
    };
}

#[test]
fn a_mark_waits_for_the_writes_before_it_whatever_stream_they_come_by() {
    let region = Region::map(4096).unwrap();
    let mut ledger = Ledger::new(&region, [1, 2]);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (_open, key) = whole(&ledger, &region, access);
    let mut news = Vec::new();
    let put = |id| Frame::Put { id, key, len: 8 };
    let begun: Vec<_> = [2, 1, 3]
        .map(|id| ledger.handle(put(id), &mut news).unwrap().unwrap())
        .into();
    for (id, slab) in [(2, 5), (3, 6)] {
        ledger
            .handle(Frame::Written { id, slab }, &mut news)
            .unwrap();
    }
    ledger.handle_placed(&begun[0], &mut news);
    assert!(news.is_empty(), "{news:?}");
    ledger.handle_placed(&begun[1], &mut news);
    assert!(matches!(news[..], [News::Written(SlabSeq(5))]), "{news:?}");
    // Behind older data it is reported at once.
    let late = Frame::Written { id: 1, slab: 9 };
    ledger.handle(late, &mut news).unwrap();
    ledger.handle_placed(&begun[2], &mut news);
    assert!(
        matches!(
            news[1..],
            [News::Written(SlabSeq(9)), News::Written(SlabSeq(6))]
        ),
        "{news:?}"
    );
    // A number again, and one that is too far ahead.
    for id in [3, 3 + 257] {
        assert!(ledger.handle(put(id), &mut news).is_err(), "{id}");
    }
    let far_ahead = Frame::Written {
        id: 3 + 257,
        slab: 1,
    };
    assert!(ledger.handle(far_ahead, &mut news).is_err());
    let marks = (0..300).map(|slab| {
        let mark = Frame::Written { id: 4, slab };
        ledger.handle(mark, &mut news)
    });
    assert_eq!(marks.filter(Result::is_ok).count(), 256);
}

#[test]
fn no_write_is_begun_that_is_too_far_ahead_of_one_that_is_not_confirmed() {
    let region = Region::map(4096).unwrap();
    let (mut ledger, mut news) = (Ledger::new(&region, [1, 2]), Vec::new());
    for number in 0..600 {
        let put = Put {
            id: PutId(SlabSeq(1), number),
            place: Place {
                memory: Memory::Region(RegionId(0)),
                at: 0,
                len: 1,
            },
            key: Key::default(),
        };
        ledger.put(&put, &region);
    }
    let begun = |ledger: &mut Ledger| std::iter::from_fn(|| ledger.poll_long()).count();
    assert_eq!(begun(&mut ledger), 256);
    // The first is held up on its stream, the others go on.
    for id in 2..=256 {
        ledger.handle(Frame::Placed { id }, &mut news).unwrap();
    }
    assert_eq!(begun(&mut ledger), 0);
    ledger.handle(Frame::Placed { id: 1 }, &mut news).unwrap();
    assert_eq!(begun(&mut ledger), 256);
    assert_eq!(news.len(), 256);
}

#[test]
fn more_than_may_be_outstanding_waits() {
    let (source, arena) = (Region::map(4096).unwrap(), Region::map(4096).unwrap());
    let mut near = End::new(&arena, 1, true);
    let mut far = End::new(&source, 1, false);
    let (_open, key) = whole(&far.ledger, &source, AccessFlags::REMOTE_READ);
    for id in 0..1_000 {
        near.ledger.get(get(id, key, id, 1));
    }
    let asked = std::iter::from_fn(|| near.ledger.poll_short()).count();
    assert_eq!(asked, 64);
    near.ledger = Ledger::new(&arena, [3, 4]);
    for id in 0..1_000 {
        near.ledger.get(get(id, key, id, 1));
    }
    run(&mut near, &mut far, 1_000);
    assert_eq!(near.news.len(), 1_000);
}

/// An end with memory that its peer may read and memory that it may write, which receives `octets`.
fn reads_until(octets: impl FnOnce(Key, Key) -> Vec<u8>) -> Result<(), Lost> {
    let region = Region::map(MIB).unwrap();
    let mut end = End::new(&Region::map(MIB).unwrap(), 1, false);
    let (_read, readable) = whole(&end.ledger, &region, AccessFlags::REMOTE_READ);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (_write, writable) = whole(&end.ledger, &region, access);
    end.receive_all(&octets(readable, writable))
}

fn is_breach(result: Result<(), Lost>) -> bool {
    result.is_err_and(|Lost(why)| why.contains("broke the protocol"))
}

#[test]
fn memory_is_used_as_it_was_opened_and_not_otherwise() {
    let (id, len) = (1, 1_000);
    let get = |key| Frame::Get { id, key, len }.emit().to_vec();
    let put = |key| [&Frame::Put { id, key, len }.emit()[..], &[0; 1_000]].concat();
    assert!(reads_until(|readable, _| get(readable)).is_ok());
    assert!(reads_until(|_, writable| put(writable)).is_ok());
    // The other right.
    assert!(is_breach(reads_until(|_, writable| get(writable))));
    assert!(is_breach(reads_until(|readable, _| put(readable))));
    // Another name.
    let other = |key: Key| Key {
        stag: key.stag ^ 1,
        ..key
    };
    assert!(is_breach(reads_until(|readable, _| get(other(readable)))));
    assert!(is_breach(reads_until(|_, writable| put(other(writable)))));
    // Other bytes.
    for to in [MIB as u64 - 999, MIB as u64, u64::MAX - 999, u64::MAX] {
        let at = |key: Key| Key { to, ..key };
        assert!(
            is_breach(reads_until(|readable, _| get(at(readable)))),
            "{to}"
        );
        assert!(
            is_breach(reads_until(|_, writable| put(at(writable)))),
            "{to}"
        );
    }
}

#[test]
fn memory_that_is_taken_away_is_not_sent_and_not_written() {
    let region = Region::map(MIB).unwrap();
    let mut end = End::new(&region, 1, false);
    let len = 1_000;
    let (open, key) = whole(&end.ledger, &region, AccessFlags::REMOTE_READ);
    end.receive_all(&Frame::Get { id: 1, key, len }.emit())
        .unwrap();
    drop(open);
    let (out, _) = &mut end.lanes[0];
    let mut way = Way {
        moves: 1 << 20,
        ..Way::default()
    };
    // READY, and then the answer.
    out.turn(&mut end.ledger, |head, part| way.send(head, part))
        .unwrap();
    let answer = out.turn(&mut end.ledger, |head, part| way.send(head, part));
    assert!(is_breach(answer.map(drop)));

    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (open, key) = whole(&end.ledger, &region, access);
    let put = Frame::Put { id: 1, key, len };
    end.receive_all(&[&put.emit()[..], &[5; 600]].concat())
        .unwrap();
    drop(open);
    assert!(is_breach(end.receive_all(&[5; 400])));
    assert_eq!(content(&region)[599..601], [5, 0]);
}

#[test]
fn answers_to_what_was_not_asked_end_the_channel() {
    let data = |id, piece, len: u32| {
        let frame = Frame::Data { id, piece, len };
        [&frame.emit()[..], &vec![0; len as usize]].concat()
    };
    let asking = || {
        let arena = Region::map(2 * MIB).unwrap();
        let mut end = End::new(&arena, 1, true);
        end.ledger.get(get(1, Key::default(), 0, PIECE_BYTES + 5));
        let asked = end.ledger.poll_short();
        let Some(Frame::Get { id, .. }) = asked else {
            panic!("{asked:?}");
        };
        end.receive_all(&Frame::Ready.emit()).unwrap();
        (end, id)
    };
    let (mut end, id) = asking();
    end.receive_all(&data(id, 1, 5)).unwrap();
    end.receive_all(&data(id, 0, PIECE_BYTES)).unwrap();
    assert!(matches!(end.news[..], [News::Got(_, true)]));
    let wrong = [
        vec![data(7, 0, PIECE_BYTES)],
        // Of another length.
        vec![data(id, 0, PIECE_BYTES - 1)],
        vec![data(id, 1, 6)],
        vec![data(id, 2, 1)],
        vec![data(id, 63, 1)],
        // Twice.
        vec![data(id, 1, 5), data(id, 1, 5)],
        vec![Frame::Placed { id }.emit().to_vec()],
    ];
    for (number, octets) in wrong.iter().enumerate() {
        let (mut end, _) = asking();
        assert!(is_breach(end.receive_all(&octets.concat())), "{number}");
    }
}

#[test]
fn a_peer_that_asks_for_more_than_it_may_ends_the_channel() {
    let many = |count, frame: &dyn Fn(u32) -> Vec<u8>| (0..count).flat_map(frame).collect();
    let gets = |count| {
        reads_until(|key, _| many(count, &|id| Frame::Get { id, key, len: 1 }.emit().to_vec()))
    };
    assert!(gets(64).is_ok());
    assert!(is_breach(gets(65)));
    let puts = |count| {
        reads_until(|_, key| {
            many(count, &|id| {
                let id = id + 1;
                [&Frame::Put { id, key, len: 1 }.emit()[..], &[0]].concat()
            })
        })
    };
    assert!(puts(256).is_ok());
    assert!(is_breach(puts(257)));
}

#[test]
fn ready_comes_first_and_once() {
    assert!(is_breach(reads_until(|_, _| Frame::Ready.emit().to_vec())));
    let mut end = End::new(&Region::map(4096).unwrap(), 1, true);
    assert!(is_breach(end.receive_all(&Frame::Placed { id: 1 }.emit())));
    let mut end = End::new(&Region::map(4096).unwrap(), 1, true);
    end.receive_all(&Frame::Ready.emit()).unwrap();
    assert!(is_breach(end.receive_all(&Frame::Ready.emit())));
}

#[test]
fn an_end_in_the_middle_fails_requests_in_flight() {
    let arena = Region::map(4096).unwrap();
    let mut end = End::new(&arena, 1, true);
    end.ledger.get(get(1, Key::default(), 0, 1));
    end.ledger.poll_short();
    end.ledger.get(get(2, Key::default(), 0, 1));
    let mut news = Vec::new();
    end.ledger.end(&mut news);
    let failed = news
        .iter()
        .filter(|news| matches!(news, News::Got(_, false)));
    assert_eq!(failed.count(), 2);
}

#[test]
fn a_get_has_as_many_pieces_as_there_are_bits_for_them() {
    assert_eq!(GET_BYTES_MAX / PIECE_BYTES, u64::BITS);
}
