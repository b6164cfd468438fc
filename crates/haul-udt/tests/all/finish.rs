//! The end of one half of a stream.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;

use haul_cc::Time;
use haul_udt::wire::{HEADER_LEN, SocketId};
use haul_udt::{
    Config, Connection, Error, Identity, Listener, Misbehaviour, Reaction, Received, SendError,
    Seq, Transmit,
};

const CLIENT: SocketId = SocketId(0x1111);
const SERVER: SocketId = SocketId(0x2222);
const STEP_NS: u64 = 1_000_000;

/// Two ends, and the packets between them, which take a step of time.
struct Pair {
    ends: [Connection; 2],
    under_way: [Vec<Vec<u8>>; 2],
    now: Time,
    /// Packets of each end so far; `lost` selects those that are dropped.
    sent: [u32; 2],
    lost: fn(u32) -> bool,
}

impl Pair {
    fn open(client: &Config, server: &Config, lost: fn(u32) -> bool) -> Self {
        let (now, from) = (
            Time::from_ns(STEP_NS),
            SocketAddr::from(([192, 0, 2, 1], 5)),
        );
        let own = Identity {
            socket: CLIENT,
            initial: Seq::new(0x7fff_fff0),
        };
        let listener = Listener::new(server, [7; 16]);
        let mut end = Connection::connect(
            now,
            client.clone(),
            own,
            std::net::Ipv4Addr::UNSPECIFIED.into(),
            1,
        );
        let (mut transmit, mut reply) = (Transmit::default(), Vec::new());
        assert!(end.poll_transmit(now, &mut transmit));
        listener.handle_datagram(now, from, &transmit.control, &mut reply);
        end.handle_datagram(now, now, &reply).unwrap();
        assert!(end.poll_transmit(now, &mut transmit));
        let reaction = listener.handle_datagram(now, from, &transmit.control, &mut reply);
        let Reaction::Accept(request) = reaction else {
            panic!("not accepted");
        };
        let mut other = Connection::accept(now, server.clone(), SERVER, &request, 1).unwrap();
        assert!(other.poll_transmit(now, &mut transmit));
        end.handle_datagram(now, now, &transmit.control).unwrap();
        Self {
            ends: [end, other],
            under_way: [Vec::new(), Vec::new()],
            now,
            sent: [0; 2],
            lost,
        }
    }

    fn step(&mut self) {
        self.now = self.now.after(STEP_NS);
        let mut transmit = Transmit::default();
        let mut next = [Vec::new(), Vec::new()];
        for (at, end) in self.ends.iter_mut().enumerate() {
            for packet in self.under_way[1 - at].drain(..) {
                let _ = end.handle_datagram(self.now, self.now, &packet);
            }
            let delivered = end.delivered_offset();
            end.consume(self.now, delivered);
            end.handle_timeout(self.now);
            while end.poll_transmit(self.now, &mut transmit) {
                let mut packets: Vec<Vec<u8>> = Vec::new();
                for (header, payload) in transmit.headers.iter().zip(&transmit.payload) {
                    packets.push(header.to_vec());
                    let whole = HEADER_LEN + payload.len as usize;
                    packets.last_mut().unwrap().resize(whole, 0);
                }
                if packets.is_empty() {
                    packets.push(transmit.control.clone());
                }
                for packet in packets {
                    self.sent[at] += 1;
                    if !(self.lost)(self.sent[at]) {
                        next[at].push(packet);
                    }
                }
            }
        }
        self.under_way = next;
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&[Connection; 2]) -> bool) {
        let end = self.now.after(20_000 * STEP_NS);
        while !done(&self.ends) {
            assert!(self.now < end, "{what}: not in 20 s");
            self.step();
        }
    }
}

fn never(_: u32) -> bool {
    false
}

#[test]
fn a_half_that_ends_leaves_the_other_one_open() {
    let config = Config::default();
    let mut pair = Pair::open(&config, &config, never);
    let now = pair.now;
    pair.ends[0].write(now, 10_000, false).unwrap();
    pair.ends[0].finish(now).unwrap();
    pair.ends[0].finish(now).unwrap();
    assert_eq!(pair.ends[0].write(now, 1, true), Err(SendError::Closed));
    pair.run_until("the first half", |ends| ends[0].is_drained());
    assert!(pair.ends[1].has_peer_finished());
    assert_eq!(pair.ends[1].delivered_offset(), 10_000);
    assert!(!pair.ends[0].has_peer_finished());
    let now = pair.now;
    pair.ends[1].write(now, 5_000, true).unwrap();
    pair.ends[1].finish(now).unwrap();
    pair.run_until("the second half", |ends| ends[0].has_peer_finished());
    assert_eq!(pair.ends[0].delivered_offset(), 5_000);
    assert!(!pair.ends[0].is_closed() && !pair.ends[1].is_closed());
}

#[test]
fn a_stream_without_bytes_can_end() {
    let config = Config::default();
    let mut pair = Pair::open(&config, &config, never);
    let now = pair.now;
    pair.ends[1].finish(now).unwrap();
    pair.run_until("the end", |ends| ends[0].has_peer_finished());
    assert_eq!(pair.ends[0].delivered_offset(), 0);
}

#[test]
fn the_end_is_known_when_everything_before_it_has_come_whatever_is_lost() {
    let config = Config::default();
    let every = |nth: u32| nth.is_multiple_of(3);
    let mut pair = Pair::open(&config, &config, every);
    for at in 0..2 {
        let now = pair.now;
        pair.ends[at].write(now, 300_000, true).unwrap();
        pair.ends[at].finish(now).unwrap();
    }
    while !pair.ends.iter().all(Connection::has_peer_finished) {
        assert!(pair.now < Time::from_ns(20_000 * STEP_NS), "not in 20 s");
        pair.step();
        for end in &pair.ends {
            assert!(!end.has_peer_finished() || end.delivered_offset() == 300_000);
        }
    }
    pair.run_until("the acknowledgements", |ends| {
        ends.iter().all(Connection::is_drained)
    });
}

#[test]
fn towards_a_plain_peer_there_are_no_halves() {
    let mut plain = Config::default();
    plain.offer_placement = false;
    let mut pair = Pair::open(&Config::default(), &plain, never);
    let now = pair.now;
    assert_eq!(pair.ends[0].finish(now), Err(SendError::NoHalves));
    assert_eq!(pair.ends[1].finish(now), Err(SendError::NoHalves));
}

/// A data packet to the server with this number and stream offset.
fn data(number: u32, offset: u32, len: usize) -> Vec<u8> {
    let words = [
        (0x7fff_fff0 + number) & 0x7fff_ffff,
        0xe000_0001,
        offset,
        SERVER.0,
    ];
    let mut packet: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    packet.resize(packet.len() + len, 0);
    packet
}

#[test]
fn nothing_is_taken_behind_the_end_and_no_end_before_what_has_come() {
    // The packets are written by hand.
    let mut config = Config::default();
    config.offer_check = false;
    let refused = Err(Error::PeerMisbehaved(Misbehaviour::BehindEnd));
    let now = Time::from_ns(STEP_NS);
    let mut pair = Pair::open(&config, &config, never);
    let mut take = |packet: &[u8]| pair.ends[1].handle_datagram(now, now, packet);
    assert_eq!(take(&data(2, 200, 0)), Ok(Received::Control));
    assert_eq!(take(&data(3, 200, 0)), refused);
    assert_eq!(take(&data(3, 200, 100)), refused);
    assert_eq!(take(&data(2, 200, 0)), Ok(Received::Discard));
    let contradiction = Err(Error::PeerMisbehaved(Misbehaviour::Offset));
    assert_eq!(take(&data(1, 100, 101)), contradiction);
    assert!(matches!(take(&data(1, 100, 100)), Ok(Received::Data(_))));
    assert!(matches!(take(&data(0, 0, 100)), Ok(Received::Data(_))));
    assert!(pair.ends[1].has_peer_finished());

    let mut pair = Pair::open(&config, &config, never);
    let mut take = |packet: &[u8]| pair.ends[1].handle_datagram(now, now, packet);
    assert!(matches!(take(&data(2, 200, 100)), Ok(Received::Data(_))));
    assert_eq!(take(&data(1, 200, 0)), refused);
    assert!(!pair.ends[1].has_peer_finished());
}
