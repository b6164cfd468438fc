//! A path that is narrower than either end's network: between them a router, all in namespaces of
//! the test's own.

#[path = "../../../haul-io/tests/own_network/mod.rs"]
mod own_network;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Instant;

use haul_io::netns::NetNs;
use haul_verbs::{
    AsyncEvent, DatagramInit, Peer, QpState, QpType, SendOp, Sources, WcOpcode, WcStatus,
};

use crate::support::{End, PATIENCE, pattern};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 1);
/// The far host's other address, so that nothing that was learnt of the first is known of it.
const FAR_TOO: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 2);
const LEN: u32 = 60_000;

#[test]
fn a_narrow_path_is_found_and_ends_nothing() {
    own_network::run_ignored("path::behind_a_router", "true");
}

#[test]
#[ignore = "needs a namespace of its own; started by a_narrow_path_is_found_and_ends_nothing"]
fn behind_a_router() {
    let Some((_router, far_host)) = network() else {
        println!("SKIPPED: no `ip` command, or it may not");
        return;
    };
    unreliable(&far_host);
    reliable(&far_host);
    nobody_there(&far_host);
}

/// A router with a narrow network behind it, and the host there.
fn network() -> Option<(NetNs, NetNs)> {
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
        ip("link set far mtu 1300 up")
            && ip("address add 10.9.2.1/24 dev far")
            && ip("address add 10.9.2.2/24 dev far")
            && ip("route add default via 10.9.2.254")
    });
    made.ok()?.then_some((router, far))
}

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).status();
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

/// What is sent before the router has complained is lost, but perhaps for a last segment that is
/// short; what comes after it arrives.
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

/// What was begun before the router has complained is not known to be done; what comes after it
/// arrives.
fn reliable(far_host: &NetNs) {
    let (near, far) = ends(far_host, FAR_TOO, QpType::Rd);
    let write = SendOp::RdmaWrite(far.mr.remote(0));
    near.post(1, write, 0, LEN, far.peer());
    assert_eq!(near.completion().status, WcStatus::WrFlushErr);
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
