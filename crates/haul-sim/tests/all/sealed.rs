//! Sealed flows over paths that lose, reorder, duplicate and damage, with and without an attacker.
//! [`Flow::seal`] checks that no nonce repeats.
#![expect(clippy::unwrap_used, reason = "tests")]

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_netem::Reorder;
use haul_seal::{Cipher, Seal, Secret};
use haul_sim::{Flow, MessageOut, Path, World, scenario};
use haul_udt::Config;
use haul_udt::wire::SocketKind;

const MIB: u64 = 1 << 20;

fn seal(byte: u8) -> Seal {
    Seal {
        secret: Secret::new([byte; 32]),
        cipher: Cipher::Aes128Gcm,
    }
}

fn config(kind: SocketKind) -> Config {
    let mut config = Config::default();
    config.kind = kind;
    config.seal = true;
    // Keys change every few hundred packets.
    config.rekey_packets = 500;
    config
}

fn stream(bytes: u64) -> Flow {
    Flow {
        client: config(SocketKind::Stream),
        server: config(SocketKind::Stream),
        stream_bytes: [bytes, bytes / 8],
        bytes_matter: true,
        seal: Some([seal(1), seal(1)]),
        ..Flow::default()
    }
}

fn reordering(path: &mut Path) {
    for link in [&mut path.forward, &mut path.reverse] {
        link.reorder = Some(Reorder {
            probability: 0.02,
            delay_ns: 5 * MILLISECOND_NS,
        });
        link.duplicate = 0.01;
    }
}

/// Runs a flow to its end and answers when it came to it, ns.
fn run(world: &mut World, flow: Flow) -> u64 {
    let flow = world.add(flow);
    world.run_until(Time::from_ns(300 * SECOND_NS));
    for side in 0..2 {
        let host = world.host(flow, side).unwrap();
        assert_eq!(host.rx.wrong, None);
        assert_eq!(host.closed(), None);
    }
    world.outcome(flow).finished.expect("an end").as_ns()
}

#[test]
fn sealed_streams_survive_loss_and_reordering_and_change_keys_often() {
    for seed in 0..6 {
        let mut path = scenario::plain(200_000_000, 20, 0.01);
        reordering(&mut path);
        let mut world = World::new(&path, seed);
        run(&mut world, stream(16 * MIB));
        for side in 0..2 {
            let (sealed, generations) = world.host(0, side).unwrap().sealed().unwrap();
            assert!(sealed > 1_000, "{sealed}");
            assert!(generations > 5, "seed {seed}: {generations} key changes");
        }
    }
}

#[test]
fn sealed_messages_survive_what_paths_do() {
    for seed in 0..20 {
        let mut flow = stream(0);
        flow.stream_bytes = [0, 0];
        flow.client = config(SocketKind::Datagram);
        flow.server = config(SocketKind::Datagram);
        flow.messages[0] = vec![
            MessageOut {
                len: 30_000,
                in_order: true,
                ttl_ns: None,
            };
            60
        ];
        run(&mut World::new(&scenario::hostile(seed), seed), flow);
    }
}

#[test]
fn sealed_rendezvous_agree_on_who_is_who() {
    for seed in 0..4 {
        let mut flow = stream(MIB);
        flow.rendezvous = Some(Time::from_ns(30 * MILLISECOND_NS));
        run(
            &mut World::new(&scenario::plain(100_000_000, 20, 0.02), seed),
            flow,
        );
    }
}

#[test]
fn sealed_packets_that_became_too_long_travel_in_sealed_pieces() {
    let mut flow = stream(20 * MIB);
    flow.client.mtu = 9_000;
    flow.server.mtu = 9_000;
    let mut world = World::new(&scenario::plain(100_000_000, 20, 1e-3), 3);
    world.narrow(Time::from_ns(1), 9_000);
    world.narrow(Time::from_ns(700 * MILLISECOND_NS), 1_400);
    run(&mut world, flow);
    let sender = &world.host(0, 0).unwrap().connection;
    // 1,400 bytes less 28 of IP and UDP and 20 of the seal.
    assert_eq!(sender.datagram_max(), 1_352);
    assert_eq!(sender.params().unwrap().payload_len, 9_000 - 28 - 20 - 16);
}

#[test]
fn what_an_attacker_sends_is_counted_and_changes_nothing() {
    under_attack(100 * MIB, 70_000);
}

#[test]
#[ignore = "takes minutes"]
fn a_million_attacks_of_each_kind_change_nothing() {
    under_attack(1_500 * MIB, 1_000_000);
}

/// Moves `bytes` with and without an attacker, who tries each kind of attack `times` times and
/// more.
fn under_attack(bytes: u64, times: u64) {
    let time = |attacked: bool| {
        let mut flow = stream(bytes);
        flow.bytes_matter = false;
        let rekey_packets = Config::default().rekey_packets;
        (flow.client.rekey_packets, flow.server.rekey_packets) = (rekey_packets, rekey_packets);
        let mut world = World::new(&scenario::plain(1_000_000_000, 20, 1e-4), 5);
        if attacked {
            world.attack();
        }
        let time = run(&mut world, flow);
        if attacked {
            let attacks = world.attacks();
            assert_eq!(attacks.accepted, 0, "{attacks:?}");
            assert!(attacks.flipped >= times, "{attacks:?}");
            let refused = |side| {
                let host = world.host(0, side).unwrap();
                host.connection.stats().unwrap().refused
            };
            let (client, server) = (refused(0), refused(1));
            // A flipped bit, or another flow, may make a number that came before.
            let refused = client.forged + server.forged + client.replayed + server.replayed;
            assert_eq!(
                refused,
                attacks.flipped + attacks.forged + attacks.replayed + attacks.spliced
            );
            assert_eq!(client.unsealed + server.unsealed, attacks.unsealed);
        }
        time
    };
    let (alone, attacked) = (time(false), time(true));
    assert!(
        attacked * 8 <= alone * 10,
        "{attacked} ns under attack, {alone} ns without"
    );
}

#[test]
fn datagrams_of_another_flow_or_sent_back_are_refused() {
    let mut world = World::new(&scenario::plain(200_000_000, 20, 1e-3), 5);
    world.attack();
    for byte in 1..4 {
        let mut flow = stream(8 * MIB);
        flow.seal = Some([seal(byte), seal(byte)]);
        world.add(flow);
    }
    world.run_until(Time::from_ns(100 * SECOND_NS));
    let attacks = world.attacks();
    assert!(attacks.spliced > 50_000, "{attacks:?}");
    assert_eq!(attacks.accepted, 0, "{attacks:?}");
    for flow in 0..3 {
        assert!(world.outcome(flow).finished.is_some());
        assert_eq!(world.host(flow, 1).unwrap().rx.wrong, None);
    }
}

/// Whether the client was told that the server does not seal, after ends of a changed flow moved
/// nothing.
fn is_incompatible(change: fn(&mut Flow), tamper: Option<fn(&mut [u8])>) -> bool {
    let mut flow = stream(MIB);
    change(&mut flow);
    let mut world = World::new(&scenario::plain(100_000_000, 20, 0.0), 1);
    if let Some(tamper) = tamper {
        world.tamper(tamper);
    }
    let flow = world.add(flow);
    world.run_until(Time::from_ns(50 * SECOND_NS));
    assert_eq!(world.outcome(flow).finished, None);
    for side in 0..2 {
        let delivered = world.host(flow, side).map(|host| host.rx.delivered_bytes);
        assert_eq!(delivered.unwrap_or(0), 0);
    }
    let closed = world.host(flow, 0).unwrap().closed();
    matches!(closed, Some(Some(haul_udt::Error::Incompatible(_))))
}

/// Clears a feature of an offer, and the check that would show it.
fn strip(handshake: &mut [u8], feature: u8) {
    handshake[4..6].fill(0);
    handshake[7] &= !feature;
}

#[test]
fn an_end_that_does_not_seal_is_refused() {
    // The server has no offer, and its response states that.
    assert!(is_incompatible(|flow| flow.server.seal = false, None));
    // The client has none: the server does not accept it.
    assert!(!is_incompatible(|flow| flow.client.seal = false, None));
}

#[test]
fn a_stripped_offer_and_a_changed_handshake_move_nothing() {
    const ANSWER: u8 = 0xff;
    // Of requests and answers, or of answers alone.
    assert!(!is_incompatible(|_| (), Some(|it| strip(it, 64))));
    let of_answers = |handshake: &mut [u8]| {
        if handshake[36] == ANSWER && handshake[12..16] != [0; 4] {
            strip(handshake, 64);
        }
    };
    assert!(is_incompatible(|_| (), Some(of_answers)));
    // ECN, which both ends would go without: their keys differ.
    assert!(!is_incompatible(|_| (), Some(|it| strip(it, 2))));
}

#[test]
fn ends_with_other_secrets_open_nothing() {
    let other = |flow: &mut Flow| flow.seal = Some([seal(1), seal(2)]);
    assert!(!is_incompatible(other, None));
}
