//! UDT's byte streams and messages over sockets of this machine, without waiting and with.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test ends at what it did not expect"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;

use haul_io::clock::Clock;
use haul_io::notify;
use haul_soft::udt::plain::{self, Listener, Stream};
use haul_soft::udt::{LinkError, LinkOptions};
use haul_udt::wire::SocketKind;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const MIB: usize = 1 << 20;

fn options(placement: bool) -> LinkOptions {
    let mut options = LinkOptions::default();
    options.config.offer_placement = placement;
    options.config.receive_window_bytes = 2 << 20;
    options.config.slot_memory_bytes = 2 << 20;
    options
}

/// Waits until one of them wants its turn, and lets both have it.
fn turn(near: &mut Stream, far: &mut Stream) {
    let due = [near.poll_timeout(), far.poll_timeout()];
    let due = due.into_iter().flatten().min().unwrap().as_ns();
    let wait = due.saturating_sub(Clock::new().now_ns());
    notify::wait_readable([near.as_fd(), far.as_fd()], Some(wait)).unwrap();
    near.turn().unwrap();
    far.turn().unwrap();
}

fn pair(near: &LinkOptions, far: &LinkOptions) -> (Stream, Stream) {
    let (near, mut far) = plain_ends(near, far);
    far.admit();
    (near, far)
}

/// The accepting end, which is the second, has not admitted the other.
fn plain_ends(near: &LinkOptions, far: &LinkOptions) -> (Stream, Stream) {
    let mut listener = Listener::bind(LOCAL, far.clone()).unwrap();
    let mut near = Stream::connect(listener.local_addr(), near).unwrap();
    assert!(!near.is_open());
    let mut far = loop {
        near.turn().unwrap();
        if let Some(far) = listener.accept().unwrap() {
            break far;
        }
        notify::wait_readable([near.as_fd(), listener.as_fd()], Some(10_000_000)).unwrap();
    };
    while !near.is_open() || !far.is_open() {
        turn(&mut near, &mut far);
    }
    (near, far)
}

fn octet(at: usize) -> u8 {
    at.wrapping_mul(0x9e37_79b1).to_le_bytes()[3]
}

/// Bytes that one end sends, in pieces of `piece`, and what of it has come to the other.
struct Flow {
    total: usize,
    piece: usize,
    sent: usize,
    taken: usize,
}

impl Flow {
    fn new(total: usize, piece: usize) -> Self {
        Self {
            total,
            piece,
            sent: 0,
            taken: 0,
        }
    }

    fn push(&mut self, from: &mut Stream, to: &mut Stream) {
        loop {
            let len = self.piece.min(self.total - self.sent);
            let octets: Vec<u8> = (self.sent..self.sent + len).map(octet).collect();
            let count = from.write(&octets, self.sent.is_multiple_of(3)).unwrap();
            self.sent += count;
            if count == 0 {
                break;
            }
        }
        loop {
            let arrived = to.arrived();
            let len = arrived.len().min(self.piece);
            if len == 0 {
                break;
            }
            let expected = (self.taken..).map(octet);
            assert!(arrived[..len].iter().copied().eq(expected.take(len)));
            to.consume(len);
            self.taken += len;
        }
    }
}

#[test]
fn streams_carry_octets_both_ways_whatever_their_peers_offer() {
    for (near, far) in [(true, true), (false, false), (true, false)] {
        let (mut near, mut far) = pair(&options(near), &options(far));
        let mut out = Flow::new(8 * MIB + 1, 70_001);
        let mut back = Flow::new(3 * MIB, 999);
        while out.taken < out.total || back.taken < back.total {
            out.push(&mut near, &mut far);
            back.push(&mut far, &mut near);
            turn(&mut near, &mut far);
        }
        assert!(near.arrived().is_empty() && far.arrived().is_empty());
    }
}

#[test]
fn what_is_not_taken_holds_the_sender_back() {
    let (mut near, mut far) = pair(&options(true), &options(true));
    let mut flow = Flow::new(usize::MAX, 100_000);
    let mut still = 0;
    while still < 200 {
        let before = flow.sent;
        let room = near.room().min(flow.piece);
        let octets: Vec<u8> = (flow.sent..flow.sent + room).map(octet).collect();
        flow.sent += near.write(&octets, false).unwrap();
        turn(&mut near, &mut far);
        still = if flow.sent == before { still + 1 } else { 0 };
    }
    // The window of the one, and what the other takes ahead.
    assert!((2 * MIB..=4 * MIB).contains(&flow.sent), "{}", flow.sent);
    assert_eq!(near.room(), 0);
    let held = flow.sent;
    while flow.taken < held {
        flow.total = held;
        flow.push(&mut near, &mut far);
        turn(&mut near, &mut far);
    }
    assert!(near.room() > 0);
}

#[test]
fn one_who_is_not_admitted_is_held_little_for() {
    // Placed, and in slots.
    for placement in [true, false] {
        let (mut near, mut far) = plain_ends(&options(placement), &options(placement));
        let mut greeting = Flow::new(2_000, 2_000);
        while greeting.taken < greeting.total {
            greeting.push(&mut near, &mut far);
            turn(&mut near, &mut far);
        }
        let flood: Vec<u8> = (0..MIB).map(octet).collect();
        near.write(&flood, false).unwrap();
        let error = loop {
            notify::wait_readable([near.as_fd(), far.as_fd()], Some(1_000_000)).unwrap();
            // It may have been told already.
            let _ = near.turn();
            if let Err(error) = far.turn() {
                break error;
            }
        };
        assert!(matches!(error, LinkError::Sink(_)), "{error}");
        let held = std::iter::from_fn(|| {
            let len = far.arrived().len();
            far.consume(len);
            (len > 0).then_some(len)
        });
        let held: usize = held.sum();
        assert!(held as u64 <= plain::GREETING_MEMORY_BYTES, "{held}");
    }
}

#[test]
fn the_end_of_one_is_told_to_the_other() {
    let (near, mut far) = pair(&options(true), &options(true));
    drop(near);
    let error = loop {
        notify::wait_readable([far.as_fd()], Some(10_000_000)).unwrap();
        match far.turn() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::PeerClosed), "{error}");
}

#[test]
fn where_nobody_listens_the_attempt_ends() {
    let listener = Listener::bind(LOCAL, options(true)).unwrap();
    let address = listener.local_addr();
    drop(listener);
    let mut near = Stream::connect(address, &options(true)).unwrap();
    let error = loop {
        match near.turn() {
            Ok(()) => notify::wait_readable([near.as_fd()], Some(10_000_000)).unwrap(),
            Err(error) => break error,
        };
    };
    assert!(matches!(error, LinkError::Network(_)), "{error}");
}

fn sockets(kind: SocketKind) -> (plain::Socket, plain::Socket) {
    let mut options = options(false);
    options.config.kind = kind;
    options.config = plain::config(options.config);
    let secret = haul_io::random::bytes().unwrap();
    let mut listener = haul_soft::udt::Listener::bind(LOCAL, &options, secret).unwrap();
    let to = listener.local_addr();
    let far = std::thread::spawn({
        let options = options.clone();
        move || {
            let accepted = listener.accept(None, &mut |_| Some(options.clone()));
            let (_, link) = accepted.unwrap().unwrap();
            plain::Socket::new(link)
        }
    });
    let own = haul_soft::udt::Identity {
        socket: haul_udt::wire::SocketId(7),
        initial: haul_soft::udt::Seq::new(9),
    };
    let near = haul_soft::udt::connect(LOCAL, to, own, &options).unwrap();
    (plain::Socket::new(near), far.join().unwrap())
}

#[test]
fn sockets_that_block_carry_streams_to_their_end() {
    let (mut near, mut far) = sockets(SocketKind::Stream);
    let octets: Vec<u8> = (0..5 * MIB).map(octet).collect();
    let sent = octets.clone();
    let sending = std::thread::spawn(move || {
        near.send(&sent).unwrap();
        near.close().unwrap();
    });
    let (mut got, mut buf) = (Vec::new(), vec![0; 10_007]);
    loop {
        match far.recv(&mut buf).unwrap() {
            0 => break,
            count => got.extend_from_slice(&buf[..count]),
        }
    }
    sending.join().unwrap();
    assert!(got == octets);
}

#[test]
fn sockets_that_block_carry_messages_whole() {
    let (mut near, mut far) = sockets(SocketKind::Datagram);
    let message = |number: usize| (number..number + 1 + number * 1_000).map(octet).collect();
    let messages: Vec<Vec<u8>> = (0..50).map(message).collect();
    let sent = messages.clone();
    let sending = std::thread::spawn(move || {
        for message in &sent {
            near.send_message(message, true, None).unwrap();
        }
        near.close().unwrap();
    });
    for message in &messages {
        assert!(far.recv_message().unwrap().as_ref() == Some(message));
    }
    assert_eq!(far.recv_message().unwrap(), None);
    sending.join().unwrap();
}
