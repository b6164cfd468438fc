//! Paths that carry shorter packets than both ends' interfaces, and say nothing: no ICMP, and no
//! fragments.
#![expect(clippy::unwrap_used, reason = "tests")]

use haul_cc::Time;
use haul_cc::time::{MILLISECOND_NS, SECOND_NS};
use haul_sim::{Flow, MessageOut, Path, World, scenario};
use haul_udt::Config;
use haul_udt::wire::SocketKind;

const RATE_BPS: u64 = 100_000_000;
const RTT_MS: u64 = 40;

fn path() -> Path {
    scenario::plain(RATE_BPS, RTT_MS, 0.0)
}

fn config(mtu: u32, kind: SocketKind) -> Config {
    let mut config = Config::default();
    config.mtu = mtu;
    config.kind = kind;
    config
}

fn stream(mtu: u32, bytes: u64) -> Flow {
    Flow {
        client: config(mtu, SocketKind::Stream),
        server: config(mtu, SocketKind::Stream),
        stream_bytes: [bytes, 0],
        bytes_matter: true,
        ..Flow::default()
    }
}

/// Runs `flow` over a path that carries `mtus` from then on, checks what arrived, and answers when
/// all of it had, the packets that were sent, and the longest datagram in use at the end.
fn run(path: &Path, flow: Flow, mtus: &[(u64, u32)], seed: u64) -> (u64, u64, usize) {
    let mut world = World::new(path, seed);
    for &(at_ms, mtu) in mtus {
        world.narrow(Time::from_ns(at_ms * MILLISECOND_NS), mtu);
    }
    let flow = world.add(flow);
    world.run_until(Time::from_ns(120 * SECOND_NS));
    let finished = world.outcome(flow).finished;
    let finished = finished.unwrap_or_else(|| panic!("{mtus:?}, seed {seed}: no end"));
    let receiver = world.host(flow, 1).unwrap();
    assert_eq!(receiver.rx.wrong, None, "{mtus:?}, seed {seed}");
    let sender = &world.host(flow, 0).unwrap().connection;
    let packets = sender.stats().unwrap().sent.packets;
    let size = sender.datagram_max() + 28;
    (finished.as_ns() / MILLISECOND_NS, packets, size)
}

#[test]
fn a_path_that_is_narrow_from_the_start_is_found_and_costs_few_round_trips() {
    const BYTES: u64 = 20_000_000;
    let (wide_ms, ..) = run(&path(), stream(1_500, BYTES), &[], 1);
    for (mtu, expected) in [
        (1_300, 1_300),
        (1_492, 1_492),
        (1_280, 1_280),
        (1_411, 1_400),
    ] {
        let (ms, _, size) = run(&path(), stream(1_500, BYTES), &[(0, mtu)], 1);
        println!("MTU {mtu}: {ms} ms, wide {wide_ms} ms, packets of {size} bytes");
        assert_eq!(size, expected, "MTU {mtu}");
        assert!(ms < wide_ms * 5 / 4 + 1_500, "MTU {mtu}: {ms} ms");
    }
}

#[test]
fn a_path_that_narrows_in_mid_transfer_is_found_with_all_packets_in_flight() {
    const BYTES: u64 = 20_000_000;
    let (wide_ms, ..) = run(&path(), stream(1_500, BYTES), &[], 1);
    for mtu in [1_480, 1_300, 1_280] {
        let (ms, _, size) = run(&path(), stream(1_500, BYTES), &[(900, mtu)], 1);
        println!("MTU {mtu}: {ms} ms, wide {wide_ms} ms");
        assert_eq!(size, mtu as usize);
        assert!(ms < wide_ms * 3 / 2 + 1_500, "MTU {mtu}: {ms} ms");
    }
}

#[test]
fn longer_packets_are_used_where_they_fit_and_only_there() {
    const BYTES: u64 = 20_000_000;
    let (_, many, size) = run(&path(), stream(9_000, BYTES), &[(0, 1_500)], 1);
    assert_eq!(size, 1_500);
    let (_, few, size) = run(&path(), stream(9_000, BYTES), &[], 1);
    assert_eq!(size, 9_000);
    assert!(few < many / 4, "{few} packets, {many} of 1,500 bytes");
    let (_, _, size) = run(
        &path(),
        stream(9_000, BYTES),
        &[(0, 9_000), (900, 1_500)],
        1,
    );
    assert_eq!(size, 1_500, "narrowed in mid-transfer");
}

/// The handshake has measured no round-trip time if its requests were repeated.
#[test]
fn longer_packets_are_found_on_the_longest_paths() {
    for rtt_ms in [300, 500, 700, 1_500] {
        let path = scenario::plain(RATE_BPS, rtt_ms, 0.0);
        let (_, _, size) = run(&path, stream(9_000, 40_000_000), &[], 1);
        assert_eq!(size, 9_000, "{rtt_ms} ms");
    }
}

#[test]
fn a_lossy_path_keeps_its_packets_long() {
    for (seed, loss) in (1..).zip([0.01, 0.05, 0.1, 0.2]) {
        let path = scenario::plain(RATE_BPS, RTT_MS, loss);
        let (_, _, size) = run(&path, stream(1_500, 5_000_000), &[], seed);
        assert!(size >= 1_480, "{loss}: {size}");
    }
}

#[test]
fn messages_longer_than_the_path_carries_arrive_whole() {
    for mtus in [
        &[(0, 1_300)][..],
        &[(300, 1_300)],
        &[(0, 9_000), (300, 1_400)],
    ] {
        let mtu = if mtus.len() > 1 { 9_000 } else { 1_500 };
        let messages = (0..2_000).map(|number| MessageOut {
            len: 1 + number * 7 % 5_000,
            in_order: number % 3 == 0,
            ttl_ns: None,
        });
        let flow = Flow {
            client: config(mtu, SocketKind::Datagram),
            server: config(mtu, SocketKind::Datagram),
            messages: [messages.collect(), Vec::new()],
            bytes_matter: true,
            ..Flow::default()
        };
        run(&path(), flow, mtus, 3);
    }
}
