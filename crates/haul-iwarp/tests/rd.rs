//! Reliable datagram on virtual time: what a pair may rely on, whatever the path does, and what nobody can do to it.
#![expect(clippy::cast_possible_truncation, reason = "small numbers in tests")]

mod common;

use common::pattern;
use common::rd::{MS, Packet, SECOND, World, address, send, succeeded};
use haul_iwarp::datagram::rd::{Down, RdEvent, RdOp, RdStatus, Remote};
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{CompletionKind, Rights, Stag};
use haul_netem::{LinkConfig, LossModel, Reorder};

fn wire(delay_ms: u64) -> LinkConfig {
    LinkConfig {
        delay_ns: delay_ms * MS,
        ..LinkConfig::default()
    }
}

fn lossy(delay_ms: u64, loss: f64) -> LinkConfig {
    LinkConfig {
        loss: LossModel::Random(loss),
        ..wire(delay_ms)
    }
}

#[test]
fn a_message_arrives_whole_and_completes_at_both_ends() {
    let mut world = World::new(2, wire(5), 1);
    for (slot, len) in [(0, 10), (1, 100_000), (2, 10)] {
        world.post_receive(1, slot, len);
    }
    let messages = [pattern(4, 1), pattern(100_000, 2), vec![]];
    for bytes in &messages {
        world.post(0, 1, send(), bytes.clone());
    }
    world.run_for(10 * SECOND);
    let done = world.ends[1].completions();
    let slots: Vec<_> = done.iter().map(|done| (done.slot, done.len)).collect();
    assert_eq!(slots, [(0, 4), (1, 100_000), (2, 0)]);
    assert!(done.iter().all(|done| done.peer == Some(world.remote(0))));
    for (slot, bytes) in messages.iter().enumerate() {
        let buffer = &world.ends[1].ram.receives[&(slot as u32)];
        assert_eq!(buffer[..bytes.len()], bytes[..]);
    }
    let sent = world.ends[0].completions();
    assert_eq!(succeeded(&sent), 3);
}

#[test]
fn all_operations_work_at_random_loss_up_to_thirty_percent() {
    for percent in [0, 1, 5, 10, 20, 30] {
        for seed in 0..6 {
            let link = LinkConfig {
                duplicate: 0.05,
                corrupt: 0.02,
                reorder: Some(Reorder {
                    probability: 0.1,
                    delay_ns: 7 * MS,
                }),
                ..lossy(3, f64::from(percent) / 100.0)
            };
            let mut world = World::with(2, link, seed, |_, config| config.tries = 30);
            all_operations(&mut world, &format!("{percent} %, seed {seed}"));
        }
    }
}

fn all_operations(world: &mut World, which: &str) {
    let area = pattern(50_000, 7);
    let ram = &mut world.ends[1].ram;
    ram.register(0x100, 1 << 33, vec![0; 50_000], Rights::REMOTE_WRITE);
    ram.register(0x200, 0, area.clone(), Rights::REMOTE_READ);
    ram.register(0x300, 0, vec![0; 16], Rights::REMOTE_ATOMIC);
    let ram = &mut world.ends[0].ram;
    ram.register(0x400, 64, vec![0; 50_000], Rights::LOCAL_WRITE);
    for slot in 0..4 {
        world.post_receive(1, slot, 20_000);
    }
    let (stag, to) = (Stag(0x100), 1 << 33);
    let message = pattern(20_000, 3);
    let written = pattern(30_000, 4);
    world.post(0, 1, RdOp::Write { stag, to }, written.clone());
    world.post(0, 1, send(), message.clone());
    let read = RdOp::Read {
        sink: Stag(0x400),
        sink_to: 64,
        source: Stag(0x200),
        source_to: 0,
    };
    world.try_post(0, 1, read, vec![], 50_000, false).unwrap();
    for add in [5, 6] {
        let op = AtomicOp::FetchAdd { add, mask: 0 };
        let (stag, to) = (Stag(0x300), 8);
        let atomic = RdOp::Atomic { stag, to, op };
        world.try_post(0, 1, atomic, vec![], 8, false).unwrap();
    }
    let record = RdOp::WriteRecord {
        stag,
        to: to + 40_000,
        immediate: Some(0x0123_4567_89ab_cdef),
    };
    world.post(0, 1, record, pattern(10_000, 5));
    let immediate = RdOp::Immediate {
        data: 99,
        solicited: true,
    };
    world.post(0, 1, immediate, vec![]);
    world.run_for(120 * SECOND);

    let done = world.ends[0].completions();
    assert_eq!(done.len(), 7, "{which}: {:?}", world.ends[0].events);
    for (at, done) in done.iter().enumerate() {
        assert_eq!((done.id, done.status), (at as u64, RdStatus::Success));
    }
    assert_eq!(done[3].kind, CompletionKind::Atomic { original: 0 });
    assert_eq!(done[4].kind, CompletionKind::Atomic { original: 5 });
    assert_eq!(world.ends[0].ram.regions[0], area, "{which}");
    let ram = &world.ends[1].ram;
    assert_eq!(ram.regions[0][..30_000], written[..], "{which}");
    assert_eq!(ram.regions[0][40_000..], pattern(10_000, 5)[..]);
    assert_eq!(ram.regions[2][8], 11);
    let records = |event: &&RdEvent| matches!(event, RdEvent::Record { .. });
    let record = world.ends[1].events.iter().filter(records).copied();
    let expected = RdEvent::Record {
        peer: world.remote(0),
        stag,
        to: to + 40_000,
        len: 10_000,
        immediate: Some(0x0123_4567_89ab_cdef),
        msg_id: haul_iwarp::datagram::wire::MsgId(6),
    };
    assert_eq!(record.collect::<Vec<_>>(), [expected]);
    let received = world.ends[1].completions();
    assert_eq!(received.len(), 2, "{which}");
    assert_eq!(
        world.ends[1].ram.receives[&received[0].slot], message,
        "{which}"
    );
    let kind = CompletionKind::ReceiveImmediate {
        data: 99,
        solicited: true,
    };
    assert_eq!(received[1].kind, kind);
}
