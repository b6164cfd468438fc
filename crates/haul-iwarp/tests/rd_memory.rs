//! Measures the memory of an idle peer, in a process of its own, so that nothing else allocates.

mod common;

use common::rd::{SECOND, address, config};
use haul_iwarp::Time;
use haul_iwarp::datagram::rd::{RD_HEADER_MAX, RdQp, Remote};
use haul_iwarp::datagram::wire::{Body, Datagram, Flags, Hello, Kind, MsgId, Psn, Shim, Terms};

const PEERS: usize = 40_000;
const LIMIT: usize = 512;

/// One round of the handshake: what the queue pair answers to a hello.
fn say(qp: &mut RdQp, ram: &mut common::Ram, from: Remote, hello: Hello<'_>) -> Vec<u8> {
    let shim = Shim {
        kind: Kind::Hello,
        flags: Flags::RD,
        dst_qpn: config(0).qpn,
        src_qpn: from.qpn,
        epoch: 5,
        psn: Psn(0),
        msg_id: MsgId(0),
        msg_len: 0,
        seg_off: 0,
    };
    let mut octets = [0; 256];
    let len = Body::Hello(hello).emit(&shim, &mut octets);
    let now = Time::from_ns(SECOND);
    qp.handle_datagram(now, ram, from.addr, &octets[..len]);
    let mut out = [0; RD_HEADER_MAX];
    let answer = qp.poll_transmit(now, ram, &mut out).expect("an answer");
    while qp.poll_event().is_some() {}
    out[..answer.header_len].to_vec()
}

#[test]
fn an_idle_peer_takes_no_more_than_512_octets() {
    let mut qp = RdQp::new(config(0));
    let mut ram = common::Ram::default();
    let before = resident();
    let mut remote = None;
    for index in 0..PEERS {
        let from = Remote {
            addr: address(index),
            qpn: 7,
        };
        let terms = Terms {
            init_psn: Psn(1),
            window: 100,
            max_seg: 1_472,
            ..Terms::default()
        };
        let hello = Hello {
            cookie: None,
            terms,
        };
        let answer = say(&mut qp, &mut ram, from, hello);
        let Body::Cookie(cookie) = Datagram::open(&answer).unwrap().body else {
            panic!("no cookie");
        };
        let cookie = Some(cookie);
        say(&mut qp, &mut ram, from, Hello { cookie, terms });
        remote = Some(from);
    }
    assert_eq!(qp.peer_count(), PEERS);
    let own = qp.peer_bytes(remote.unwrap()).unwrap();
    println!("an idle peer: {own} octets by the sizes of its types");
    assert!(own <= LIMIT);
    let (Some(before), Some(after)) = (before, resident()) else {
        println!("SKIPPED: no /proc/self/statm to measure with");
        return;
    };
    let measured = (after - before) / PEERS;
    println!(
        "{PEERS} idle peers: {measured} octets each, all lists and the allocator's own included"
    );
    assert!(measured <= LIMIT, "{measured}");
}

/// Bytes of this process in memory.
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4_096)
}
