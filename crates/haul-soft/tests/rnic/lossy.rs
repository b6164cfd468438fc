//! Over UDT, packets that are lost or overtaken cost time and nothing else.

#![expect(
    clippy::disallowed_types,
    reason = "the path between two ends is made of sockets"
)]

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haul_verbs::SendOp;
use haul_verbs::cm::CmEvent;

use crate::support::{End, LOOPBACK, UDT, Wish, pattern};

/// One packet in so many is lost; another one waits until the next has passed.
const LOSS: u64 = 50;
const DELAY: u64 = 37;

/// Carries datagrams from one socket to the other's peer until it is told to stop.
fn carry(
    from: &UdpSocket,
    to: &UdpSocket,
    peer: impl Fn(SocketAddr) -> SocketAddr,
    stop: &AtomicBool,
) {
    let mut bytes = vec![0; 65_536];
    let mut late: Option<Vec<u8>> = None;
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let Ok((len, source)) = from.recv_from(&mut bytes) else {
            continue;
        };
        let peer = peer(source);
        count += 1;
        if count.is_multiple_of(LOSS) {
            continue;
        }
        if count.is_multiple_of(DELAY) && late.is_none() {
            late = Some(bytes[..len].to_vec());
            continue;
        }
        let _ = to.send_to(&bytes[..len], peer);
        if let Some(late) = late.take() {
            let _ = to.send_to(&late, peer);
        }
    }
}

#[test]
fn lost_and_overtaken_packets_are_placed_all_the_same() {
    let wish = Wish {
        device: UDT,
        ..Wish::default()
    };
    let (near, far) = (
        End::new(&Default::default(), &wish),
        End::new(&Default::default(), &wish),
    );
    let listener = far.context.listen(LOOPBACK, &far.events, 8).unwrap();
    let server = listener.local_addr();
    let (front, back) = (
        UdpSocket::bind(LOOPBACK).unwrap(),
        UdpSocket::bind(LOOPBACK).unwrap(),
    );
    for socket in [&front, &back] {
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
    }
    let client = std::sync::Mutex::new(None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let remember = |source| {
                *client.lock().unwrap() = Some(source);
                server
            };
            carry(&front, &back, remember, &stop);
        });
        scope.spawn(|| carry(&back, &front, |_| client.lock().unwrap().unwrap(), &stop));
        let front = front.local_addr().unwrap();
        near.qp.connect(front, &wish.param(), &near.events).unwrap();
        let CmEvent::ConnectRequest(request) = far.event() else {
            panic!("no request");
        };
        request.accept(&far.qp, &wish.param()).unwrap();
        far.established();
        near.established();
        for round in 0..10 {
            let bytes = pattern(400_000, round + 1);
            near.write(0, &bytes);
            far.receive(1, 3_000_000, 8);
            near.post(2, SendOp::RdmaWrite(far.mr.remote(0)), 0, 400_000);
            near.post(3, SendOp::Send, 0, 8);
            near.post(4, SendOp::RdmaRead(far.mr.remote(0)), 1_000_000, 400_000);
            far.success(1);
            assert!(far.read(0, 400_000) == bytes, "round {round}: written");
            for number in 2..=4 {
                near.success(number);
            }
            assert!(
                near.read(1_000_000, 400_000) == bytes,
                "round {round}: read"
            );
        }
        let (sent, arrived) = (near.qp.statistics().unwrap(), far.qp.statistics().unwrap());
        assert!(sent.resent_segments > 0, "{sent:?}");
        assert!(arrived.early_segments > 0, "{arrived:?}");
        stop.store(true, Ordering::Relaxed);
    });
}
