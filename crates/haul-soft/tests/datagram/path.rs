//! A path that is narrower than either end's network: between them a router, all in namespaces of
//! the test's own.

#[path = "../../../haul-io/tests/own_network/mod.rs"]
mod own_network;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use haul_io::netns::NetNs;
use haul_verbs::{
    AsyncEvent, DatagramInit, Peer, QpState, QpType, SendOp, Sources, WcOpcode, WcStatus,
};

use crate::support::{End, PATIENCE, pattern};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 1);
/// The far host's other address, so that nothing that was learnt of the first is known of it.
const FAR_TOO: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 2);
const FAR_THREE: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 3);
const FAR_FOUR: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 4);
const LEN: u32 = 60_000;
/// A search is over before.
const SEARCH: Duration = Duration::from_secs(2);
/// What was not lost arrives before.
const SOON: Duration = Duration::from_secs(2);

#[test]
fn a_narrow_path_is_found_and_ends_nothing() {
    own_network::run_ignored("path::behind_a_router", "true");
}

#[test]
#[ignore = "needs a namespace of its own; started by a_narrow_path_is_found_and_ends_nothing"]
fn behind_a_router() {
    let Some((_router, far_host)) = network(1_300) else {
        println!("SKIPPED: no `ip` command, or it may not");
        return;
    };
    unreliable(&far_host);
    reliable(&far_host);
    nobody_there(&far_host);
}

#[test]
fn where_icmp_is_filtered_a_narrow_path_is_found_by_probes() {
    own_network::run_ignored("path::behind_a_silent_router", "true");
}

#[test]
#[ignore = "needs a namespace of its own; started by where_icmp_is_filtered_a_narrow_path_is_found_by_probes"]
fn behind_a_silent_router() {
    let Some((router, far_host)) = network(1_500) else {
        println!("SKIPPED: no `ip` command, or it may not");
        return;
    };
    let is_silent = router.run(|| {
        run("nft add table inet filter")
            && run("nft add chain inet filter out { type filter hook output priority 0; }")
            && run("nft add rule inet filter out icmp type destination-unreachable drop")
    });
    if !is_silent.unwrap() {
        println!("SKIPPED: no `nft` command, or it may not");
        return;
    }
    records_arrive(&far_host);
    writes_and_reads_arrive(&far_host);
    a_path_narrows(&router, &far_host, QpType::Ud, FAR_THREE);
    a_path_narrows(&router, &far_host, QpType::Rd, FAR_FOUR);
}

/// Records arrive whole from the first one on, before the search has found anything, while it is in
/// progress, and after.
fn records_arrive(far_host: &NetNs) {
    let (near, far) = ends(far_host, FAR, QpType::Ud);
    let begun = Instant::now();
    let mut wr_id = 0;
    while wr_id < 3 || begun.elapsed() < SEARCH {
        let write = SendOp::WriteRecord(far.mr.remote(0));
        near.post(wr_id, write, 0, LEN, far.peer());
        near.success(wr_id, WcOpcode::WriteRecord);
        assert_eq!(far.completion().byte_len, LEN, "record {wr_id}");
        wr_id += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(far.read(0, LEN as usize) == pattern(LEN as usize, 1));
    assert_eq!(near.statistics().undelivered, 0, "ICMP arrived");
}

/// Writes to the far host and Reads from it, whose responses are long.
fn writes_and_reads_arrive(far_host: &NetNs) {
    let (near, far) = ends(far_host, FAR_TOO, QpType::Rd);
    far.write(0, &pattern(LEN as usize, 7));
    let begun = Instant::now();
    let mut wr_id = 0;
    while wr_id < 3 || begun.elapsed() < SEARCH {
        let remote = far.mr.remote(0);
        near.post(wr_id, SendOp::RdmaRead(remote), LEN.into(), LEN, far.peer());
        near.success(wr_id, WcOpcode::RdmaRead);
        let remote = far.mr.remote(LEN.into());
        near.post(wr_id, SendOp::RdmaWrite(remote), 0, LEN, far.peer());
        near.success(wr_id, WcOpcode::RdmaWrite);
        wr_id += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(near.read(LEN as usize, LEN as usize) == pattern(LEN as usize, 7));
    assert!(far.read(LEN as usize, LEN as usize) == pattern(LEN as usize, 1));
}

/// A path that carried long datagrams becomes narrow: what is lost is lost, and what comes after
/// arrives again.
fn a_path_narrows(router: &NetNs, far_host: &NetNs, qp_type: QpType, at: Ipv4Addr) {
    let set = |mtu: u32| {
        router
            .run(|| ip(&format!("link set right mtu {mtu}")))
            .unwrap()
    };
    assert!(set(1_500));
    let (near, far) = ends(far_host, at, qp_type);
    let write = SendOp::WriteRecord(far.mr.remote(0));
    let arrives = |wr_id| {
        near.post(wr_id, write, 0, LEN, far.peer());
        let is_sent = near.completion().status == WcStatus::Success;
        let mut whole = false;
        while let Some(record) = far.completion_within(SOON) {
            whole |= record.status == WcStatus::Success && record.byte_len == LEN;
            if whole {
                break;
            }
        }
        is_sent && whole
    };
    let begun = Instant::now();
    for wr_id in 0.. {
        assert!(arrives(wr_id), "on a wide path");
        if begun.elapsed() > SEARCH {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(set(1_300));
    let begun = Instant::now();
    let mut lost = 0;
    while !arrives(1_000_000 + lost) {
        lost += 1;
        assert!(begun.elapsed() < PATIENCE, "{qp_type:?}: {lost} lost");
    }
    println!(
        "{qp_type:?}: {lost} lost, arrives again after {:?}",
        begun.elapsed()
    );
    assert!(lost > 0, "{qp_type:?}: the path did not narrow");
    for wr_id in 2_000_000..2_000_010 {
        assert!(arrives(wr_id), "after the search");
    }
}

/// A router with a narrow link behind it, and the host there, whose own MTU is `far_mtu`.
fn network(far_mtu: u32) -> Option<(NetNs, NetNs)> {
    let (router, far) = (NetNs::new().ok()?, NetNs::new().ok()?);
    let path = |host: &NetNs| format!("/proc/{}/fd/{}", std::process::id(), host.raw_fd());
    ip("link add near type veth peer name left").then_some(())?;
    ip(&format!("link set left netns {}", path(&router))).then_some(())?;
    ip("address add 10.9.1.1/24 dev near").then_some(())?;
    ip("link set near up").then_some(())?;
    ip("route add default via 10.9.1.254").then_some(())?;
    let there = format!(
        "link add right mtu 1300 type veth peer name far netns {}",
        path(&far)
    );
    let made = router.run(|| {
        ip(&there)
            && ip("address add 10.9.1.254/24 dev left")
            && ip("address add 10.9.2.254/24 dev right")
            && ip("link set left up")
            && ip("link set right up")
            && std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").is_ok()
    });
    made.ok()?.then_some(())?;
    let made = far.run(|| {
        ip(&format!("link set far mtu {far_mtu} up"))
            && ip("address add 10.9.2.1/24 dev far")
            && ip("address add 10.9.2.2/24 dev far")
            && ip("address add 10.9.2.3/24 dev far")
            && ip("address add 10.9.2.4/24 dev far")
            && ip("route add default via 10.9.2.254")
    });
    made.ok()?.then_some((router, far))
}

fn ip(arguments: &str) -> bool {
    run(&format!("ip {arguments}"))
}

/// Runs a program with arguments that have no blanks in them; whether it succeeded.
fn run(line: &str) -> bool {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let status = command.args(words).status();
    status.is_ok_and(|status| status.success())
}

fn end(at: Ipv4Addr, qp_type: QpType) -> End {
    let addr = SocketAddr::from((at, 0));
    End::at(addr, qp_type, DatagramInit::default(), Sources::Any)
}

fn ends(far_host: &NetNs, at: Ipv4Addr, qp_type: QpType) -> (End, End) {
    let near = end(NEAR, qp_type);
    let far = far_host.run(|| end(at, qp_type)).unwrap();
    near.write(0, &pattern(LEN as usize, 1));
    (near, far)
}

/// The router complains of a probe; all of the records arrive.
fn unreliable(far_host: &NetNs) {
    let (near, far) = ends(far_host, FAR, QpType::Ud);
    let write = SendOp::WriteRecord(far.mr.remote(0));
    near.post(1, write, 0, LEN, far.peer());
    near.success(1, WcOpcode::WriteRecord);
    near.counts(|counts| counts.undelivered > 0);
    near.post(2, write, 0, LEN, far.peer());
    near.success(2, WcOpcode::WriteRecord);
    while far.completion().byte_len < LEN {}
    assert!(far.read(0, LEN as usize) == pattern(LEN as usize, 1));
    let qp_num = near.qp.qp_num();
    let event = near.context.poll_async_event().unwrap();
    assert_eq!(event, Some(AsyncEvent::DatagramUndelivered { qp_num }));
    // Whoever begins now asks the host, which remembers.
    let (near, far) = ends(far_host, FAR, QpType::Ud);
    near.post(3, SendOp::WriteRecord(far.mr.remote(0)), 0, LEN, far.peer());
    assert_eq!(far.completion().byte_len, LEN);
    assert_eq!(near.statistics().undelivered, 0);
}

/// What was begun before the router's complaint, here of a probe, was seen is not known to be done;
/// what comes after it arrives.
fn reliable(far_host: &NetNs) {
    let (near, far) = ends(far_host, FAR_TOO, QpType::Rd);
    let write = SendOp::RdmaWrite(far.mr.remote(0));
    near.post(1, write, 0, LEN, far.peer());
    let first = near.completion().status;
    assert!(matches!(first, WcStatus::WrFlushErr | WcStatus::Success));
    assert_eq!(near.qp.state(), QpState::Rts);
    near.post(2, write, 0, LEN, far.peer());
    near.success(2, WcOpcode::RdmaWrite);
    assert!(far.read(0, LEN as usize) == pattern(LEN as usize, 1));
}

fn nobody_there(far_host: &NetNs) {
    let (near, far) = ends(far_host, FAR, QpType::Ud);
    let gone = Peer::new((FAR, 9).into(), 1);
    // Routers and hosts complain once in a while only.
    let begun = Instant::now();
    for wr_id in 0.. {
        near.post(wr_id, SendOp::Send, 0, 8, gone);
        near.success(wr_id, WcOpcode::Send);
        if near.statistics().undelivered > 1 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", near.statistics());
    }
    assert_eq!(near.qp.state(), QpState::Rts);
    far.receive(1, 0, 8);
    near.post(u64::MAX, SendOp::Send, 0, 8, far.peer());
    near.success(u64::MAX, WcOpcode::Send);
    far.success(1, WcOpcode::Recv);
}
