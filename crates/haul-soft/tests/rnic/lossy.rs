//! Over UDT, packets that are lost or overtaken cost time and nothing else. Where the connection is
//! protected, neither do packets that an attacker on the path changes, repeats and sends back.

#![expect(
    clippy::disallowed_types,
    reason = "the path between two ends is made of sockets"
)]

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use haul_soft::rnic::Options;
use haul_verbs::SendOp;
use haul_verbs::cm::CmEvent;

use crate::support::{End, LOOPBACK, UDT, Wish, pattern, protected};

/// One packet in so many is lost; another one waits until the next has passed.
const LOSS: u64 = 50;
const DELAY: u64 = 37;
/// One packet in so many is sent once more with a changed bit, later once more as it is, or back.
const CHANGE: u64 = 3;
const REPEAT: u64 = 5;
const REFLECT: u64 = 7;
/// What the payload contains.
const MARK: &[u8] = b"nobody on the path may read this";

/// What happens between the two ends.
#[derive(Default)]
struct Path {
    stop: AtomicBool,
    attacks: AtomicBool,
    /// Packets that an attacker has sent.
    forged: AtomicU64,
    /// Packets in which [`MARK`] can be read.
    readable: AtomicU64,
    /// Packets by their lengths.
    lengths: Mutex<HashMap<usize, u64>>,
}

impl Path {
    /// The length of a packet that carries as much as it can. Probes of the path are longer, and
    /// few.
    fn full_length(&self) -> usize {
        let lengths = self.lengths.lock().unwrap();
        let often = lengths.iter().filter(|(_, count)| **count > 200);
        often.map(|(len, _)| *len).max().unwrap()
    }

    /// Carries datagrams from one socket to the other's peer until `stop` is set.
    fn carry(&self, from: &UdpSocket, to: &UdpSocket, peer: impl Fn(SocketAddr) -> SocketAddr) {
        let mut bytes = vec![0; 65_536];
        let (mut late, mut earlier): (Option<Vec<u8>>, Vec<u8>) = (None, Vec::new());
        let mut count = 0_u64;
        while !self.stop.load(Ordering::Relaxed) {
            let Ok((len, source)) = from.recv_from(&mut bytes) else {
                continue;
            };
            let datagram = &mut bytes[..len];
            let peer = peer(source);
            count += 1;
            *self.lengths.lock().unwrap().entry(len).or_default() += 1;
            if datagram.windows(MARK.len()).any(|window| window == MARK) {
                self.readable.fetch_add(1, Ordering::Relaxed);
            }
            if count.is_multiple_of(LOSS) {
                continue;
            }
            if count.is_multiple_of(DELAY) && late.is_none() {
                late = Some(datagram.to_vec());
                continue;
            }
            let _ = to.send_to(datagram, peer);
            if let Some(late) = late.take() {
                let _ = to.send_to(&late, peer);
            }
            if self.attacks.load(Ordering::Relaxed) {
                self.attack(count, datagram, &mut earlier, (from, source), (to, peer));
            }
        }
    }

    fn attack(
        &self,
        count: u64,
        datagram: &mut [u8],
        earlier: &mut Vec<u8>,
        (from, source): (&UdpSocket, SocketAddr),
        (to, peer): (&UdpSocket, SocketAddr),
    ) {
        let sent = |done: std::io::Result<usize>| {
            self.forged
                .fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
        };
        if count.is_multiple_of(REPEAT) {
            sent(to.send_to(earlier, peer));
            *earlier = datagram.to_vec();
        }
        if count.is_multiple_of(REFLECT) {
            sent(from.send_to(datagram, source));
        }
        if count.is_multiple_of(CHANGE) {
            let bit = (count * 7_919) as usize % (datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            sent(to.send_to(datagram, peer));
        }
    }
}

/// Moves data both ways over a path; what the path has seen.
fn transfer(options: &Options, attacks: bool) -> Path {
    let wish = Wish {
        device: UDT,
        ..Wish::default()
    };
    let (near, far) = (End::new(options, &wish), End::new(options, &wish));
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
    let client = Mutex::new(None);
    let path = Path::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let remember = |source| {
                *client.lock().unwrap() = Some(source);
                server
            };
            path.carry(&front, &back, remember);
        });
        scope.spawn(|| path.carry(&back, &front, |_| client.lock().unwrap().unwrap()));
        let front = front.local_addr().unwrap();
        near.qp.connect(front, &wish.param(), &near.events).unwrap();
        let CmEvent::ConnectRequest(request) = far.event() else {
            panic!("no request");
        };
        request.accept(&far.qp, &wish.param()).unwrap();
        far.established();
        near.established();
        path.attacks.store(attacks, Ordering::Relaxed);
        for round in 0..10 {
            let mut bytes = pattern(400_000, round + 1);
            bytes[100_000..][..MARK.len()].copy_from_slice(MARK);
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
        path.stop.store(true, Ordering::Relaxed);
    });
    path
}

#[test]
fn lost_and_overtaken_packets_are_placed_all_the_same() {
    let path = transfer(&Options::default(), false);
    // The search finds it where it can be found.
    assert!(path.readable.into_inner() > 0);
}

#[test]
fn the_tag_of_a_protected_connection_takes_the_place_of_the_crc() {
    let [plain, sealed] =
        [&Options::default(), &protected()].map(|options| transfer(options, false).full_length());
    // Both fill the packet; the number and the tag take payload away, and the CRC is missing.
    assert_eq!(plain - sealed, 4);
}

#[test]
fn a_protected_connection_survives_loss_and_an_attacker_and_shows_no_payload() {
    for attacks in [false, true] {
        let path = transfer(&protected(), attacks);
        assert_eq!(path.readable.into_inner(), 0);
        assert_eq!(path.forged.into_inner() > 100, attacks);
    }
}
