//! Memory that connections whose application does not read leave to the others; counts of records.

use super::*;

const MIB: u64 = 1 << 20;
/// Bytes that the socket buffers towards a non-reading application hold.
const ABSORBED: u64 = 700 << 10;

struct Sink {
    consumer: Consumer,
    next: SlabSeq,
    now: Time,
}

impl Sink {
    fn new() -> Self {
        let config = ConsumerConfig {
            arena_bytes: 64 * MIB,
            ..ConsumerConfig::default()
        };
        Self {
            consumer: Consumer::new(config, true),
            next: SlabSeq(0),
            now: Time::from_ns(1_000_000_000),
        }
    }

    fn open(&mut self, number: u32) -> Stream {
        let conn = ConnId(number);
        self.consumer.open(conn, 0);
        Stream {
            conn,
            sent: 0,
            taken: 0,
            held: Vec::new(),
        }
    }

    /// One round trip of a stream that has endless bytes: all that it may send comes, and its
    /// application takes no more than `most` bytes of it since the beginning. Returns how many
    /// have come.
    fn round(&mut self, stream: &mut Stream, most: u64) -> u64 {
        self.now = self.now.after(20_000_000);
        let len = self.consumer.credit(stream.conn) - stream.sent;
        if len > 0 {
            let slab = SlabAnnounce {
                seq: self.next,
                last: false,
                grant: false,
                t_us: 0,
                records: vec![Record {
                    conn: stream.conn,
                    offset: stream.sent,
                    len: len.try_into().unwrap(),
                    crc: None,
                    fin: false,
                    reset: None,
                    key: Key::default(),
                }],
                inline: Vec::new(),
            };
            self.next = self.next.next();
            self.consumer.on_announce(self.now, &slab, false).unwrap();
            // The path has no limit.
            while let Some(get) = self.consumer.poll_get(self.now) {
                self.consumer.handle_got(self.now, get.id, true).unwrap();
            }
            stream.sent += len;
        }
        while let Some(Read::Data(data)) = self.consumer.read(stream.conn, 64 << 10) {
            stream.held.push((data.offset, data.len));
        }
        while let Some(&(offset, len)) = stream.held.first()
            && stream.taken + len <= most
        {
            stream.held.remove(0);
            stream.taken += len;
            self.consumer.release(stream.conn, offset, len);
        }
        len
    }
}

struct Stream {
    conn: ConnId,
    sent: u64,
    taken: u64,
    /// Pieces that were read and are not used up.
    held: Vec<(u64, u64)>,
}

/// Rounds that another connection takes for so many bytes, beside connections whose application
/// does not read.
fn rounds(unread: u32, octets: u64) -> usize {
    let mut sink = Sink::new();
    let mut streams: Vec<Stream> = (0..unread).map(|number| sink.open(number)).collect();
    for _ in 0..20 {
        for stream in &mut streams {
            sink.round(stream, ABSORBED);
        }
    }
    let mut other = sink.open(unread);
    let mut rounds = 0;
    while other.taken < octets {
        sink.round(&mut other, u64::MAX);
        rounds += 1;
        assert!(rounds < 100_000, "{} of {octets}", other.taken);
    }
    println!(
        "{unread} unread: {rounds} rounds, {} of {} octets free",
        sink.consumer.arena.free_bytes(),
        sink.consumer.arena.shared_bytes()
    );
    rounds
}

#[test]
fn unread_connections_hold_a_share_and_the_others_continue() {
    let alone = rounds(0, 5 * MIB);
    // Its first bytes come in smaller steps, until its application has read some.
    assert!(rounds(1, 5 * MIB) <= alone + 8);
    assert!(rounds(64, 5 * MIB) <= alone + 16);
    assert!(rounds(300, 5 * MIB) <= alone + 60);
    // It is delayed once; from then on it has at least half of the memory.
    assert!(rounds(64, 200 * MIB) <= 2 * rounds(0, 200 * MIB) + 14);
}

#[test]
fn an_unread_connection_has_no_more_than_half() {
    let mut sink = Sink::new();
    let mut stream = sink.open(0);
    for _ in 0..20 {
        sink.round(&mut stream, ABSORBED);
    }
    let held = stream.sent - stream.taken;
    let half = sink.consumer.arena.shared_bytes() / 2;
    assert!(held <= half + 4 * MIB, "{held}");
    // Once the application reads there is more: all but a seventeenth.
    for _ in 0..20 {
        sink.round(&mut stream, u64::MAX);
    }
    let before = stream.sent;
    sink.round(&mut stream, 0);
    assert!(stream.sent - before > half * 3 / 2);
}

#[test]
fn connections_that_wait_for_memory_get_it_once_there_may_be_more() {
    let mut sink = Sink::new();
    let least = sink.consumer.arena.least();
    sink.consumer.set_most(least);
    let (first, second) = (sink.open(0), sink.open(1));
    let credits =
        |sink: &mut Sink| [first.conn, second.conn].map(|conn| sink.consumer.credit(conn));
    let before = credits(&mut sink);
    // Each has its first extent.
    assert!(before.iter().all(|credit| *credit > 0), "{before:?}");
    sink.consumer.set_most(u64::MAX);
    let after = credits(&mut sink);
    assert!(after[1] > before[1], "{before:?} {after:?}");
}

#[test]
fn records_of_slabs_that_are_in_place_behind_a_late_one_are_not_counted() {
    let mut consumer = Consumer::new(
        ConsumerConfig {
            records_max: 100,
            ..ConsumerConfig::default()
        },
        true,
    );
    let now = Time::from_ns(1_000_000_000);
    (0..=300).for_each(|conn| consumer.open(ConnId(conn), 0));
    let slab = |seq, conns: std::ops::Range<u32>, is_inline: bool| SlabAnnounce {
        seq: SlabSeq(seq),
        last: false,
        grant: false,
        t_us: 0,
        inline: vec![7; if is_inline { conns.len() } else { 0 }],
        records: conns
            .map(|conn| Record {
                conn: ConnId(conn),
                offset: 0,
                len: 1,
                crc: None,
                fin: false,
                reset: None,
                key: Key::default(),
            })
            .collect(),
    };
    // The first one is to be read, and is not.
    consumer
        .on_announce(now, &slab(0, 0..1, false), false)
        .unwrap();
    for seq in 1..=30 {
        let first = u32::try_from(seq).unwrap() * 10 - 9;
        consumer
            .on_announce(now, &slab(seq, first..first + 10, true), false)
            .unwrap();
        while consumer.poll_inline().is_some() {}
    }
    assert_eq!((consumer.slabs.len(), consumer.records), (31, 1));
    // The producer may announce a placed slab again.
    consumer
        .on_announce(now, &slab(1, 1..11, true), false)
        .unwrap();
    assert_eq!(consumer.records, 1);
}
