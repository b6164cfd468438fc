//! Reliable datagram on virtual time: guarantees of a pair on any path, and its resistance to
//! attacks.
#![expect(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "small numbers in tests, and what they have made themselves"
)]

use crate::common;

use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use common::pattern;
use common::rd::{MS, Packet, SECOND, World, address, send, succeeded};
use haul_iwarp::Operation;
use haul_iwarp::datagram::rd::{Down, RdCompletion, RdEvent, RdStatus, Remote};
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{CompletionKind, Crc32c, Rights, Stag};
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
    world.post(
        0,
        1,
        Operation::Write {
            stag,
            to,
            placed: false,
        },
        written.clone(),
    );
    world.post(0, 1, send(), message.clone());
    let read = Operation::Read {
        sink: Stag(0x400),
        sink_to: 64,
        source: Stag(0x200),
        source_to: 0,
    };
    world.try_post(0, 1, read, vec![], 50_000, false).unwrap();
    for add in [5, 6] {
        let op = AtomicOp::FetchAdd { add, mask: 0 };
        let (stag, to) = (Stag(0x300), 8);
        let atomic = Operation::Atomic { stag, to, op };
        world.try_post(0, 1, atomic, vec![], 8, false).unwrap();
    }
    let record = Operation::WriteRecord {
        stag,
        to: to + 40_000,
        immediate: Some(0x0123_4567_89ab_cdef),
    };
    world.post(0, 1, record, pattern(10_000, 5));
    let immediate = Operation::Immediate {
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

/// The type of a datagram: byte 1 of the shim.
fn kind(packet: &Packet) -> u8 {
    packet.bytes[1]
}

const DATA: u8 = 0;
const ACK: u8 = 1;
const HELLO: u8 = 2;
const COOKIE: u8 = 3;

fn downs(world: &World, at: usize) -> Vec<(Remote, Down)> {
    let down = |event: &RdEvent| match event {
        RdEvent::Down(remote, down) => Some((*remote, *down)),
        _ => None,
    };
    world.ends[at].events.iter().filter_map(down).collect()
}

/// Two ends that know each other, and what went over the wire meanwhile.
fn acquainted(seed: u64) -> (World, Vec<Packet>) {
    let mut world = World::new(2, wire(1), seed);
    world.seen = Some(Vec::new());
    for slot in 0..4 {
        world.post_receive(1, slot, 10_000);
    }
    world.post(0, 1, send(), pattern(10, 0));
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
    let seen = world.seen.take().unwrap();
    world.seen = Some(Vec::new());
    (world, seen)
}

fn find(seen: &[Packet], wanted: u8, nth: usize) -> Packet {
    let mut packets = seen.iter().filter(|packet| kind(packet) == wanted);
    packets.nth(nth).expect("it was sent").clone()
}

#[test]
fn an_unvalidated_peer_gets_no_state_and_no_more_bytes_than_it_sent() {
    let (_, seen) = acquainted(1);
    let mut world = World::new(2, wire(1), 1);
    world.seen = Some(Vec::new());
    let mut octets = 0;
    for source in 2..1_000 {
        for nth in 0..2 {
            // The second has a cookie of another peer.
            let mut hello = find(&seen, HELLO, nth);
            hello.from = address(source);
            octets += hello.bytes.len();
            world.inject(&hello);
        }
        let mut data = find(&seen, DATA, 0);
        data.from = address(source);
        octets += data.bytes.len();
        world.inject(&data);
    }
    assert_eq!(world.ends[1].qp.peer_count(), 0);
    assert_eq!(world.ends[1].qp.stats().bad_cookie, 998);
    let answers = world.seen.take().unwrap();
    assert!(answers.len() >= 2 * 998);
    let answered: usize = answers.iter().map(|packet| packet.bytes.len()).sum();
    assert!(answered <= octets, "{answered} for {octets}");
}

#[test]
fn no_answer_is_longer_than_what_it_answers() {
    let (_, seen) = acquainted(2);
    let len = |kind, nth| find(&seen, kind, nth).bytes.len();
    assert!(len(COOKIE, 0) <= len(HELLO, 0));
    let ready = find(&seen, 4, 0);
    assert!(ready.bytes.len() <= len(HELLO, 1));
}

#[test]
fn a_repeated_hello_does_not_bring_back_the_past() {
    let (mut world, seen) = acquainted(3);
    let old = find(&seen, HELLO, 1);
    let now = world.time();
    let remote = world.remote(1);
    world.ends[0].qp.disconnect(now, remote);
    world.settle(0);
    world.run_for(SECOND);
    world.post(0, 1, send(), pattern(20, 1));
    world.run_for(SECOND);
    world.ends[1].events.clear();
    world.inject(&old);
    world.run_for(MS * 100);
    assert_eq!(downs(&world, 1), []);
    assert_eq!(world.ends[1].qp.stats().bad_cookie, 1);
    world.ends[0].completions();
    world.post(0, 1, send(), pattern(30, 2));
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
    assert_eq!(succeeded(&world.ends[1].completions()), 1);
}

#[test]
fn a_repeated_hello_of_the_present_is_answered_and_changes_nothing() {
    let (mut world, seen) = acquainted(4);
    world.inject(&find(&seen, HELLO, 1));
    world.run_for(MS * 100);
    assert_eq!(downs(&world, 1), []);
    let said = world.seen.take().unwrap();
    assert!(said.iter().any(|packet| kind(packet) == 4));
}

#[test]
fn both_ends_may_call_at_once() {
    for seed in 0..50 {
        let mut world = World::new(2, lossy(3, 0.2), seed);
        for at in 0..2 {
            world.post_receive(at, 1_000, 100);
        }
        world.post(0, 1, send(), pattern(10, 0));
        world.run_for(seed * MS / 4);
        world.post(1, 0, send(), pattern(20, 0));
        world.run_for(60 * SECOND);
        for at in 0..2 {
            assert_eq!(succeeded(&world.ends[at].completions()), 2, "seed {seed}");
            assert_eq!(downs(&world, at), [], "seed {seed}");
        }
    }
}

#[test]
fn a_lost_ready_is_said_again() {
    let mut world = World::new(2, wire(1), 5);
    let mut left = 3;
    world.drop = Box::new(move |packet| {
        let lost = kind(packet) == 4 && left > 0;
        left -= i32::from(lost);
        lost
    });
    world.post_receive(1, 0, 100);
    world.post(0, 1, send(), pattern(10, 0));
    world.run_for(10 * SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
}

#[test]
fn data_from_one_whose_ready_was_lost_brings_another() {
    let mut world = World::new(2, wire(1), 5);
    let mut hellos = 0;
    world.drop = Box::new(move |packet| {
        hellos += i32::from(kind(packet) == HELLO);
        kind(packet) == 4 && hellos <= 2 || kind(packet) == HELLO && hellos > 2
    });
    for at in 0..2 {
        world.post_receive(at, 0, 100);
    }
    world.post(0, 1, send(), pattern(10, 0));
    world.run_for(5 * MS);
    world.post(1, 0, send(), pattern(20, 0));
    world.run_for(SECOND);
    // No HELLO of those that were answered is repeated any more.
    assert!(world.ends[0].qp.is_up(world.remote(1)));
}

#[test]
fn any_damaged_octet_is_noticed() {
    let (mut world, _) = acquainted(6);
    world.seen = Some(Vec::new());
    world.drop = Box::new(|packet| kind(packet) == DATA);
    world.post(0, 1, send(), pattern(100, 0));
    let data = find(&world.seen.take().unwrap(), DATA, 0);
    let before = world.ends[1].qp.stats();
    world.ends[1].events.clear();
    for at in 0..data.bytes.len() {
        let mut damaged = data.clone();
        damaged.bytes[at] ^= 0x10;
        world.inject(&damaged);
    }
    let stats = world.ends[1].qp.stats();
    assert_eq!(stats.malformed - before.malformed, data.bytes.len() as u64);
    assert_eq!(stats.received, before.received);
    world.inject(&data);
    assert_eq!(world.ends[1].completions().len(), 1);
}

#[test]
fn lost_acks_repeat_packets_and_no_effects() {
    let mut world = World::new(2, wire(2), 7);
    let mut count = 0;
    world.drop = Box::new(move |packet| {
        count += i32::from(kind(packet) == ACK);
        kind(packet) == ACK && count % 5 != 0
    });
    let ram = &mut world.ends[1].ram;
    ram.register(0x300, 0, vec![0; 8], Rights::REMOTE_ATOMIC);
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let (stag, to) = (Stag(0x300), 0);
    for _ in 0..100 {
        let atomic = Operation::Atomic { stag, to, op };
        world.try_post(0, 1, atomic, vec![], 8, false).unwrap();
    }
    world.run_for(300 * SECOND);
    let done = world.ends[0].completions();
    let originals: Vec<_> = done.iter().map(|done| done.kind).collect();
    let expected = (0..100).map(|original| CompletionKind::Atomic { original });
    assert_eq!(originals, expected.collect::<Vec<_>>());
    assert_eq!(world.ends[1].ram.regions[0], 100_u64.to_le_bytes());
    assert!(world.ends[1].qp.stats().duplicate > 0);
}

#[test]
fn numbers_of_packets_and_messages_wrap() {
    use haul_iwarp::datagram::wire::{MsgId, Psn};
    for seed in 0..20 {
        let mut world = World::with(2, lossy(2, 0.1), seed, |_, config| {
            config.first = Some((Psn(u32::MAX - 100), MsgId(u32::MAX - 20)));
            config.tries = 30;
        });
        for slot in 0..100 {
            world.post_receive(1, slot, 5_000);
        }
        for n in 0..100 {
            world.post(0, 1, send(), pattern(5_000, n));
        }
        world.run_for(100 * SECOND);
        assert_eq!(succeeded(&world.ends[0].completions()), 100);
        let received = world.ends[1].completions();
        for (n, done) in received.iter().enumerate() {
            let buffer = &world.ends[1].ram.receives[&done.slot];
            assert_eq!(*buffer, pattern(5_000, n as u8), "seed {seed}");
        }
        assert_eq!(received.len(), 100);
    }
}

#[test]
fn a_send_waits_for_the_write_before_it() {
    let (mut world, _) = acquainted(8);
    let ram = &mut world.ends[1].ram;
    ram.register(0x100, 0, vec![0; 10_000], Rights::REMOTE_WRITE);
    let mut first = true;
    world.drop = Box::new(move |packet| {
        // The first packet of the Write, the first time.
        kind(packet) == DATA && std::mem::take(&mut first)
    });
    let (stag, to) = (Stag(0x100), 0);
    world.ends[1].events.clear();
    world.post(
        0,
        1,
        Operation::Write {
            stag,
            to,
            placed: false,
        },
        pattern(9_000, 1),
    );
    world.post(0, 1, send(), pattern(3_000, 2));
    world.run_while(u64::MAX, |world| {
        let placed = world.ends[1].ram.placed;
        placed < 10 + 9_000 - 1_418 + 3_000
    });
    assert_eq!(
        world.ends[1].events,
        [],
        "all is there but the first packet"
    );
    world.run_for(SECOND);
    assert_eq!(world.ends[1].completions().len(), 1);
    assert_eq!(world.ends[1].ram.regions[0][..9_000], pattern(9_000, 1)[..]);
}

#[test]
fn a_dead_peer_leaves_the_others_alone() {
    let mut world = World::new(20, lossy(1, 0.01), 9);
    for at in 1..20 {
        for slot in 0..10 {
            world.post_receive(at, slot, 4_000);
        }
        world.post(0, at, send(), pattern(4_000, 0));
    }
    world.run_for(2 * SECOND);
    world.ends[0].completions();
    world.ends[7].dead = true;
    for n in 0..5 {
        for at in 1..20 {
            world.post(0, at, send(), pattern(4_000, n));
        }
    }
    let start = world.now;
    world.run_while(start + 120 * SECOND, |world| downs(world, 0).is_empty());
    let remote = world.remote(7);
    assert_eq!(downs(&world, 0), [(remote, Down::Unreachable)]);
    let done = world.ends[0].completions();
    let (dead, alive): (Vec<&RdCompletion>, Vec<_>) =
        done.iter().partition(|done| done.peer == Some(remote));
    assert_eq!((alive.len(), succeeded(&done)), (18 * 5, 18 * 5));
    assert_eq!(dead[0].status, RdStatus::Unreachable);
    assert!(
        dead[1..]
            .iter()
            .all(|done| done.status == RdStatus::Flushed)
    );
    assert_eq!(dead.len(), 5);
    world.post(0, 3, send(), pattern(4_000, 9));
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
}

#[test]
fn in_the_papers_mode_a_dead_peer_ends_the_queue_pair() {
    let mut world = World::with(3, wire(1), 10, |_, config| config.fail_whole = true);
    world.post_receive(1, 0, 100);
    world.post_receive(0, 0, 100);
    world.ends[2].dead = true;
    world.post(0, 2, send(), pattern(10, 0));
    world.run_for(60 * SECOND);
    assert!(world.ends[0].events.contains(&RdEvent::Error));
    let done = world.ends[0].completions();
    assert_eq!(done.len(), 2, "the request, and the receive");
    let refused = world.try_post(0, 1, send(), vec![], 0, false);
    assert_eq!(refused, Err(haul_iwarp::PostError::NotOpen));
}

#[test]
fn a_message_waits_for_a_receive() {
    let (mut world, _) = acquainted(11);
    for n in 0..6 {
        world.post(0, 1, send(), pattern(2_000, n));
    }
    world.run_for(500 * MS);
    world.ends[1].completions();
    assert_eq!(succeeded(&world.ends[0].completions()), 3, "three receives");
    assert!(world.ends[1].qp.stats().no_receive > 0);
    for slot in 10..13 {
        world.post_receive(1, slot, 2_000);
    }
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 3);
    for (slot, n) in [(10, 3), (11, 4), (12, 5)] {
        assert_eq!(world.ends[1].ram.receives[&slot], pattern(2_000, n));
    }
    assert_eq!(downs(&world, 0), []);
}

/// Seven that leave out the first of two messages, and eight whose messages are whole: how many of
/// these arrive.
fn arrive_beside_halves(receives_in_order: bool) -> usize {
    let mut world = World::with(16, wire(1), 15, |index, config| {
        config.receives_in_order = index == 0 && receives_in_order;
    });
    for slot in 0..8 {
        world.post_receive(0, slot, 16);
    }
    let unknown_peers: Vec<SocketAddr> = (1..8).map(|index| world.ends[index].at).collect();
    // The first message of each is lost, however often it is sent: an acquaintance's first packet
    // is the lowest.
    let mut lowest = HashMap::new();
    world.drop = Box::new(move |packet| {
        let psn = u32::from_be_bytes(packet.bytes[16..20].try_into().unwrap());
        kind(packet) == DATA
            && unknown_peers.contains(&packet.from)
            && *lowest.entry(packet.from).or_insert(psn) == psn
    });
    for unknown in 1..8 {
        world.post(unknown, 0, send(), pattern(16, 0));
        world.post(unknown, 0, send(), pattern(16, 1));
    }
    world.run_for(SECOND / 2);
    for honest in 8..16 {
        world.post(honest, 0, send(), pattern(16, 2));
    }
    world.run_for(SECOND / 2);
    assert!(world.ends[0].completions().len() <= 8);
    (8..16)
        .map(|honest| succeeded(&world.ends[honest].completions()))
        .sum()
}

#[test]
fn incomplete_messages_of_many_peers_hold_no_receives_if_those_are_assigned_in_order() {
    assert_eq!(arrive_beside_halves(false), 1);
    assert_eq!(arrive_beside_halves(true), 8);
}

#[test]
fn what_comes_early_where_receives_are_given_in_order_is_sent_again() {
    let mut world = World::with(2, lossy(5, 0.2), 16, |_, config| {
        config.receives_in_order = true;
    });
    for slot in 0..100 {
        world.post_receive(1, slot, 5_000);
        world.post(0, 1, send(), pattern(3_000, slot as u8));
    }
    world.run_for(60 * SECOND);
    assert!(world.ends[1].qp.stats().early > 0);
    assert_eq!(succeeded(&world.ends[0].completions()), 100);
    let received = world.ends[1].completions();
    for (n, done) in received.iter().enumerate() {
        let buffer = &world.ends[1].ram.receives[&done.slot];
        assert_eq!(buffer[..3_000], pattern(3_000, n as u8)[..], "{n}");
    }
    assert_eq!(received.len(), 100);
}

#[test]
fn a_message_does_not_wait_for_ever() {
    let mut world = World::new(2, wire(1), 12);
    world.post(0, 1, send(), pattern(10, 0));
    world.post(0, 1, send(), pattern(10, 0));
    world.run_for(60 * SECOND);
    let remote = world.remote(1);
    assert_eq!(downs(&world, 0), [(remote, Down::ReceiverNotReady)]);
    let done = world.ends[0].completions();
    let status: Vec<_> = done.iter().map(|done| done.status).collect();
    assert_eq!(status, [RdStatus::ReceiverNotReady, RdStatus::Flushed]);
}

#[test]
fn a_peer_that_began_anew_is_met_anew() {
    let (mut world, _) = acquainted(13);
    world.restart(1);
    world.post(0, 1, send(), pattern(10, 1));
    world.post(0, 1, send(), pattern(10, 2));
    world.run_for(SECOND);
    let remote = world.remote(1);
    assert_eq!(downs(&world, 0), [(remote, Down::Restarted)]);
    let done = world.ends[0].completions();
    assert!(done.iter().all(|done| done.status == RdStatus::Flushed));
    assert_eq!(done.len(), 2);
    world.post_receive(1, 0, 100);
    world.post(0, 1, send(), pattern(10, 3));
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
    // And the other way: it calls, and what was is over.
    world.ends[0].events.clear();
    world.restart(1);
    world.post_receive(0, 50, 100);
    world.post(1, 0, send(), pattern(10, 4));
    world.run_for(SECOND);
    assert_eq!(downs(&world, 0), [(remote, Down::Restarted)]);
    assert_eq!(succeeded(&world.ends[1].completions()), 1);
    assert_eq!(world.ends[0].ram.receives[&50][..10], pattern(10, 4)[..]);
}

#[test]
fn a_path_that_takes_less_than_was_agreed_on_is_agreed_on_anew() {
    let (mut world, _) = acquainted(15);
    world.drop = Box::new(|packet| packet.bytes.len() > 1_000);
    let far = world.ends[1].at.ip();
    let begun = world.post(0, 1, send(), pattern(10_000, 1));
    world.run_for(MS);
    let now = world.time();
    world.ends[0].qp.handle_path(now, far, 1_000);
    world.settle(0);
    let after = world.post(0, 1, send(), pattern(9_000, 3));
    world.run_for(20 * SECOND);
    let remote = world.remote(1);
    assert_eq!(downs(&world, 0), [(remote, Down::Path)]);
    let ended: Vec<_> = world.ends[0]
        .completions()
        .iter()
        .map(|done| (done.id, done.status))
        .collect();
    let wanted = [(begun, RdStatus::Flushed), (after, RdStatus::Success)];
    assert_eq!(ended, wanted);
    let received = world.ends[1].completions();
    let last = received.last().expect("it was received");
    let buffer = &world.ends[1].ram.receives[&last.slot];
    assert!(buffer[..9_000] == pattern(9_000, 3));
    // Another host, or more than was agreed on anyway: nothing happens.
    let now = world.time();
    world.ends[0]
        .qp
        .handle_path(now, [192, 0, 2, 1].into(), 600);
    world.ends[0].qp.handle_path(now, far, 1_200);
    assert!(world.ends[0].qp.is_up(remote));
}

#[test]
fn the_longest_idle_peer_makes_room() {
    let mut world = World::with(6, wire(1), 14, |index, config| {
        if index == 0 {
            config.peers_max = 4;
        }
    });
    for slot in 0..20 {
        world.post_receive(0, slot, 100);
    }
    for from in 1..6 {
        world.post(from, 0, send(), pattern(10, 0));
        world.run_for(3 * SECOND);
    }
    assert_eq!(world.ends[0].qp.peer_count(), 4);
    assert_eq!(world.ends[0].qp.stats().evicted, 1);
    let remote = world.remote(0);
    assert_eq!(downs(&world, 1), [(remote, Down::Closed)]);
    // A closed peer reconnects, and the other peer is not disturbed.
    for from in 1..6 {
        world.ends[from].completions();
        world.post(from, 0, send(), pattern(10, 1));
        world.run_for(3 * SECOND);
        assert_eq!(succeeded(&world.ends[from].completions()), 1, "{from}");
    }
}

#[test]
fn what_the_peer_never_had_is_sent_again_after_it_made_room() {
    let (mut world, _) = acquainted(15);
    world.drop = Box::new(|packet| kind(packet) == DATA);
    world.post(0, 1, send(), pattern(500, 1));
    world.run_for(2 * MS);
    // The end that has nothing of it closes for room: as its limit would make it.
    let close = {
        use haul_iwarp::datagram::wire::{Body, Close, Flags, Kind, MsgId, Psn, Shim};
        let data = Psn(u32::MAX);
        let (own, peer) = (&world.ends[1].config, &world.ends[0].config);
        let seen = world.seen.take().unwrap();
        let sent = find(&seen, DATA, 0);
        let psn = u32::from_be_bytes(sent.bytes[16..20].try_into().unwrap());
        assert_ne!(data, Psn(psn));
        let shim = Shim {
            kind: Kind::Close,
            flags: Flags::RD,
            dst_qpn: peer.qpn,
            src_qpn: own.qpn,
            epoch: own.epoch,
            psn: Psn(psn),
            msg_id: MsgId(0),
            msg_len: 0,
            seg_off: peer.epoch,
        };
        let mut bytes = vec![0; 100];
        let len = Body::Close(Close { code: 0 }).emit(&shim, &mut bytes);
        bytes.truncate(len);
        Packet {
            from: world.ends[1].at,
            to: world.ends[0].at,
            bytes,
        }
    };
    world.drop = Box::new(|_| false);
    let mut forged = close.clone();
    forged.from = address(9);
    world.inject(&forged);
    assert_eq!(downs(&world, 0), [], "not from there");
    world.inject(&close);
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
    assert_eq!(world.ends[1].completions().len(), 2);
}

#[test]
fn violations_are_refused_without_effect_on_others() {
    let mut world = World::new(4, wire(1), 16);
    for slot in 0..8 {
        world.post_receive(1, slot, 100);
    }
    let ram = &mut world.ends[1].ram;
    ram.register(0x100, 0, vec![0; 100], Rights::REMOTE_WRITE);
    let write = |stag, to| Operation::Write {
        stag: Stag(stag),
        to,
        placed: false,
    };
    for (op, len, status) in [
        (write(0x101, 0), 50, RdStatus::RemoteAccess),
        (write(0x100, 60), 50, RdStatus::RemoteAccess),
        (write(0x100, u64::MAX - 100), 50, RdStatus::RemoteAccess),
        (send(), 101, RdStatus::RemoteOperation),
        (
            Operation::Send {
                solicited: false,
                invalidate: Some(Stag(0x100)),
            },
            10,
            RdStatus::RemoteAccess,
        ),
        (
            Operation::Atomic {
                stag: Stag(0x100),
                to: 0,
                op: AtomicOp::FetchAdd { add: 1, mask: 0 },
            },
            8,
            RdStatus::RemoteAccess,
        ),
        (
            Operation::Read {
                sink: Stag(1),
                sink_to: 0,
                source: Stag(0x100),
                source_to: 0,
            },
            10,
            RdStatus::RemoteAccess,
        ),
    ] {
        world.post(2, 1, send(), pattern(10, 0));
        world
            .try_post(0, 1, op, pattern(len, 0), len as u32, false)
            .unwrap();
        world.run_for(SECOND);
        let done = world.ends[0].completions();
        assert_eq!(done[0].status, status, "{op:?}");
        assert_eq!(succeeded(&world.ends[2].completions()), 1);
    }
    assert_eq!(world.ends[1].ram.regions[0], [0; 100], "nothing was placed");
    assert_eq!(downs(&world, 2), []);
}

#[test]
fn memory_that_goes_while_it_is_read_ends_the_read() {
    let (mut world, _) = acquainted(17);
    let ram = &mut world.ends[1].ram;
    ram.register(0x200, 0, pattern(500_000, 1), Rights::REMOTE_READ);
    let ram = &mut world.ends[0].ram;
    ram.register(0x400, 0, vec![0; 500_000], Rights::LOCAL_WRITE);
    let read = Operation::Read {
        sink: Stag(0x400),
        sink_to: 0,
        source: Stag(0x200),
        source_to: 0,
    };
    world.try_post(0, 1, read, vec![], 500_000, false).unwrap();
    world.run_while(u64::MAX, |world| world.ends[0].ram.placed < 50_000);
    world.ends[1].ram.stags.clear();
    world.run_for(SECOND);
    let done = world.ends[0].completions();
    assert_eq!(done[0].status, RdStatus::RemoteAccess);
}

#[test]
fn without_the_epochs_nothing_can_be_ended() {
    use haul_iwarp::datagram::wire::{Ack, Body, Close, Flags, Kind, MsgId, Notice, NoticeCode};
    use haul_iwarp::datagram::wire::{Psn, Shim};
    let (mut world, seen) = acquainted(18);
    let data = find(&seen, DATA, 0);
    let psn = u32::from_be_bytes(data.bytes[16..20].try_into().unwrap());
    world.drop = Box::new(|packet| kind(packet) == DATA);
    world.post(0, 1, send(), pattern(10, 0));
    let (own, peer) = (world.ends[1].config.clone(), world.ends[0].config.clone());
    let ack = Ack::new(Psn(psn + 2), Psn(psn + 100), 0, 0, &[]);
    let unknown = Notice {
        code: NoticeCode::UnknownPeer,
        detail: 0,
    };
    for body in [
        Body::Close(Close { code: 1 }),
        Body::Notice(unknown),
        Body::Ack(ack),
    ] {
        for (epoch, seg_off) in [(own.epoch, peer.epoch ^ 1), (own.epoch ^ 1, 0)] {
            let shim = Shim {
                kind: Kind::Ack,
                flags: Flags::RD,
                dst_qpn: peer.qpn,
                src_qpn: own.qpn,
                epoch,
                psn: Psn(psn + 1),
                msg_id: MsgId(2),
                msg_len: 0,
                seg_off,
            };
            let mut bytes = vec![0; 100];
            let len = body.emit(&shim, &mut bytes);
            bytes.truncate(len);
            let (from, to) = (world.ends[1].at, world.ends[0].at);
            world.inject(&Packet { from, to, bytes });
        }
    }
    assert_eq!(downs(&world, 0), []);
    assert_eq!(world.ends[0].completions(), []);
    world.drop = Box::new(|_| false);
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
}

#[test]
fn a_close_notifies_the_peers_and_flushes_everything() {
    let (mut world, _) = acquainted(19);
    world.drop = Box::new(|packet| kind(packet) == DATA);
    world.post(0, 1, send(), pattern(10, 0));
    let now = world.time();
    world.ends[0].qp.close(now);
    world.settle(0);
    world.run_for(SECOND);
    let done = world.ends[0].completions();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, RdStatus::Flushed);
    assert_eq!(downs(&world, 1), [(world.remote(0), Down::Closed)]);
    assert_eq!(world.ends[0].qp.poll_timeout(), None);
}

/// Drops datagrams of which the IP packet has more than `mtu` bytes, as long as `is_on`.
fn narrow(world: &mut World, mtu: usize, is_on: &Rc<Cell<bool>>) {
    let is_on = Rc::clone(is_on);
    world.drop = Box::new(move |packet: &Packet| is_on.get() && packet.bytes.len() + 28 > mtu);
}

#[test]
fn without_icmp_everything_arrives_at_once_on_a_narrow_path() {
    for mtu in [1_280, 1_300, 1_411] {
        let mut world = World::new(2, wire(10), 1);
        narrow(&mut world, mtu, &Rc::new(true.into()));
        let message = pattern(300_000, 3);
        for round in 0..4 {
            world.post_receive(1, round, 300_000);
            world.post(0, 1, send(), message.clone());
            world.run_for(SECOND);
            let sent = world.ends[0].completions();
            assert_eq!(succeeded(&sent), 1, "MTU {mtu}: {:?}", world.ends[0].events);
            assert!(world.ends[1].ram.receives[&round] == message);
            // And the other way.
            world.post_receive(0, round, 100_000);
            world.post(1, 0, send(), pattern(100_000, 4));
            world.run_for(SECOND);
            assert_eq!(succeeded(&world.ends[1].completions()), 2, "MTU {mtu}");
            world.ends[0].completions();
        }
        assert_eq!(world.ends[0].qp.stats().timeouts, 0, "MTU {mtu}");
    }
}

#[test]
fn what_the_path_carries_is_used_as_soon_as_it_is_known() {
    for (mtu, longest) in [
        (1_500, 1_472),
        (1_400, 1_372),
        (1_300, 1_252),
        (1_280, 1_252),
    ] {
        let mut world = World::new(2, wire(10), 1);
        narrow(&mut world, mtu, &Rc::new(true.into()));
        world.post_receive(1, 0, 10);
        world.post(0, 1, send(), pattern(4, 3));
        world.run_for(2 * SECOND);
        world.seen = Some(Vec::new());
        world.post_receive(1, 1, 100_000);
        world.post(0, 1, send(), pattern(100_000, 3));
        world.run_for(SECOND);
        let seen = world.seen.take().unwrap_or_default();
        let data = seen.iter().filter(|packet| packet.bytes[1] == 0);
        let most = data.map(|packet| packet.bytes.len()).max();
        assert_eq!(most, Some(longest), "MTU {mtu}");
    }
}

#[test]
fn a_wide_path_costs_two_probes_and_no_round_trip() {
    let mut world = World::new(2, wire(10), 1);
    world.seen = Some(Vec::new());
    world.post_receive(1, 0, 100_000);
    world.post(0, 1, send(), pattern(100_000, 3));
    world.run_for(SECOND);
    let seen = world.seen.take().unwrap_or_default();
    let of = |kind: u8| seen.iter().filter(move |packet| packet.bytes[1] == kind);
    assert_eq!(of(8).count(), 2);
    assert!(of(0).any(|packet| packet.bytes.len() == 1_472));
    let short = of(0).filter(|packet| packet.bytes.len() < 1_472);
    assert_eq!(short.count(), 1, "but for the last one");
}

#[test]
fn a_path_that_narrows_ends_what_was_begun_and_carries_what_comes_after() {
    let mut world = World::new(2, wire(10), 1);
    let narrows = Rc::new(Cell::new(false));
    narrow(&mut world, 1_300, &narrows);
    for slot in 0..4 {
        world.post_receive(1, slot, 100_000);
    }
    world.post(0, 1, send(), pattern(100_000, 1));
    world.run_for(2 * SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
    narrows.set(true);
    world.ends[0].events.clear();
    world.post(0, 1, send(), pattern(100_000, 2));
    world.run_for(40 * SECOND);
    let done = world.ends[0].completions();
    assert_eq!(done.len(), 1, "{:?}", world.ends[0].events);
    assert_eq!(done[0].status, RdStatus::Flushed, "it was begun");
    let down = RdEvent::Down(world.remote(1), Down::Path);
    assert!(world.ends[0].events.contains(&down));
    world.post(0, 1, send(), pattern(100_000, 3));
    world.run_for(2 * SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
}

#[test]
fn a_peer_of_an_earlier_build_is_served_in_segments_of_the_agreed_size() {
    let mut world = World::new(2, wire(10), 1);
    // Its terms have no capabilities, here because they were taken out on the way.
    world.change = Box::new(|packet| {
        let terms = match packet.bytes[1] {
            2 => 48,
            4 => 32,
            _ => return,
        };
        packet.bytes[terms..terms + 4].fill(0);
        let covered = packet.bytes.len() - 4;
        let mut crc = Crc32c::new();
        crc.update(&packet.bytes[..covered]);
        packet.bytes[covered..].copy_from_slice(&crc.to_wire());
    });
    // Probes are not answered either.
    world.drop = Box::new(|packet| packet.bytes[1] == 9);
    world.seen = Some(Vec::new());
    world.post_receive(1, 0, 100_000);
    world.post(0, 1, send(), pattern(100_000, 3));
    world.run_for(SECOND);
    assert_eq!(succeeded(&world.ends[0].completions()), 1);
    let seen = world.seen.take().unwrap_or_default();
    let data = seen.iter().filter(|packet| packet.bytes[1] == 0);
    assert_eq!(data.map(|packet| packet.bytes.len()).max(), Some(1_472));
}
