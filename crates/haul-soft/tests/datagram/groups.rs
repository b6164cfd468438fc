//! Multicast and broadcast, in a namespace of the test's own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use haul_io::netns::NetNs;
use haul_verbs::{DatagramInit, Error, Peer, QpState, QpType, SendOp, Sources, WcOpcode};

use crate::support::{End, LOOPBACK, pattern};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 7, 1);
const LO: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

fn anywhere(port: u16, datagram: DatagramInit) -> End {
    let addr = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    End::at(addr, QpType::Ud, datagram, Sources::Any)
}

/// In a namespace with nothing but loopback, or not at all where none can be made.
fn alone(name: &str, work: impl FnOnce() + Send) {
    let namespace = match NetNs::new() {
        Ok(namespace) => namespace,
        Err(error) => return println!("SKIPPED: {name}: no namespace: {error}"),
    };
    namespace
        .run(|| {
            let up = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            match up {
                Ok(status) if status.success() => work(),
                other => println!("SKIPPED: {name}: loopback is down: {other:?}"),
            }
        })
        .unwrap();
}

#[test]
fn members_of_a_group_hear_what_is_sent_to_it_and_others_do_not() {
    alone("members of a group", || {
        let mut heard = DatagramInit::default();
        heard.multicast_loop = true;
        let sender = End::with(QpType::Ud, heard, Sources::Any);
        // One at a time at this port, as there is one socket to a service.
        let member = anywhere(0, DatagramInit::default());
        let to = Peer::group((GROUP, member.addr.port()).into());
        sender.write(0, &pattern(5_000, 1));
        member.receive(1, 0, 5_000);
        sender.qp.attach_multicast(GROUP.into(), LO).unwrap();
        sender.post(1, SendOp::Send, 0, 5_000, to);
        sender.success(1, WcOpcode::Send);
        member.qp.attach_multicast(GROUP.into(), LO).unwrap();
        sender.post(2, SendOp::Send, 0, 4_000, to);
        sender.success(2, WcOpcode::Send);
        let wc = member.success(1, WcOpcode::Recv);
        assert_eq!((wc.byte_len, wc.src), (4_000, Some(sender.peer())));
        assert!(member.read(0, 4_000) == pattern(5_000, 1)[..4_000]);
        member.qp.detach_multicast(GROUP.into(), LO).unwrap();
        member.receive(3, 0, 5_000);
        sender.post(3, SendOp::Send, 0, 3_000, to);
        sender.success(3, WcOpcode::Send);
        // To it alone, after what it must not receive.
        let alone = Peer::new(
            ([127, 0, 0, 1], member.addr.port()).into(),
            member.qp.qp_num(),
        );
        sender.post(4, SendOp::Send, 0, 10, alone);
        assert_eq!(member.success(3, WcOpcode::Recv).byte_len, 10);
    });
}

#[test]
fn a_broadcast_reaches_a_service_of_the_network() {
    alone("broadcast", || {
        let (sender, hearer) = (End::new(), anywhere(0, DatagramInit::default()));
        hearer.receive(1, 0, 64);
        let to = Peer::group(([127, 255, 255, 255], hearer.addr.port()).into());
        sender.write(0, b"to whom it may concern");
        sender.post(1, SendOp::Send, 0, 22, to);
        sender.success(1, WcOpcode::Send);
        let wc = hearer.success(1, WcOpcode::Recv);
        assert_eq!((wc.byte_len, wc.src), (22, Some(sender.peer())));
        assert_eq!(hearer.read(0, 22), b"to whom it may concern");
    });
}

#[test]
fn a_group_is_joined_by_a_service_only_once_it_has_begun_and_only_if_it_is_one() {
    let end = End::new();
    let mut init = haul_verbs::QpInit::new(&end.cq);
    init.qp_type = QpType::Ud;
    let qp = end.pd.create_qp(&init).unwrap();
    let early = qp.attach_multicast(GROUP.into(), LO);
    assert!(matches!(early, Err(Error::State(QpState::Reset))));
    qp.bind(LOOPBACK).unwrap();
    let nobodys = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
    assert!(qp.attach_multicast(nobodys, LO).is_err());
    assert!(qp.detach_multicast(GROUP.into(), LO).is_err());
    assert_eq!(qp.state(), QpState::Rts);
}
