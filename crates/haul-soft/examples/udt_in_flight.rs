//! What a packet costs both ends of the protocol core by the number of packets in flight:
//! `udt_in_flight [LOSS]`, in packets lost of those sent. Virtual time, no sockets, no payload;
//! prints nanoseconds of processor time a packet, sending, receiving and reports together.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a program for developers")]
#![expect(clippy::disallowed_methods, reason = "it times itself")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use haul_cc::time::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use haul_cc::{Algorithm, Rate, Time};
use haul_udt::wire::{HEADER_LEN, SocketId};
use haul_udt::{Config, Connection, Identity, Listener, Reaction, Seq, Transmit};

const ONE_WAY_NS: u64 = 100 * MILLISECOND_NS;
/// How often the ends look: as often as a busy thread.
const STEP_NS: u64 = 50 * MICROSECOND_NS;
const MTU: usize = 1_500;
const LOWER_LEN: usize = 28;
/// Packets to time, at least.
const TIMED: u64 = 4 << 20;
const START: Time = Time::from_ns(SECOND_NS);

fn main() {
    let loss: f64 = std::env::args()
        .nth(1)
        .map_or(0.0, |loss| loss.parse().expect("a share of packets"));
    println!("in flight  ns a packet  retransmitted");
    for exponent in [10, 13, 16, 18, 20, 22, 23] {
        let (ns, resent) = time(1 << exponent, loss);
        println!("2^{exponent:<8} {ns:11.0} {:13.4} %", resent * 100.0);
    }
}

/// Nanoseconds a packet with so many in flight, and the share that was retransmitted.
fn time(in_flight: u64, loss: f64) -> (f64, f64) {
    let rate = Rate::of(in_flight * MTU as u64, 2 * ONE_WAY_NS);
    let [mut client, mut server] = open(rate);
    let mut link = Link {
        data: VecDeque::new(),
        control: [VecDeque::new(), VecDeque::new()],
        loss,
        random: 1,
    };
    client.write(START, u64::MAX / 4, true).unwrap();
    let mut now = START;
    // Until the window is full, and every list has its length.
    while now < START.after(6 * ONE_WAY_NS) {
        now = now.after(STEP_NS);
        link.step(now, &mut client, &mut server);
    }
    let sent = |client: &Connection| client.stats().unwrap().sent;
    let (before, began) = (sent(&client), Instant::now());
    let least = TIMED.max(2 * in_flight);
    while sent(&client).packets - before.packets < least {
        now = now.after(STEP_NS);
        link.step(now, &mut client, &mut server);
    }
    let after = sent(&client);
    let packets = (after.packets - before.packets) as f64;
    let resent = (after.resent_packets - before.resent_packets) as f64;
    (
        began.elapsed().as_nanos() as f64 / packets,
        resent / packets,
    )
}

/// Two directions of a path without a queue.
struct Link {
    data: VecDeque<(Time, ([u8; HEADER_LEN], usize))>,
    /// To the server, to the client.
    control: [VecDeque<(Time, Vec<u8>)>; 2],
    loss: f64,
    random: u64,
}

impl Link {
    fn step(&mut self, now: Time, client: &mut Connection, server: &mut Connection) {
        let mut packet = [0; MTU];
        while let Some((_, (header, len))) = due(&mut self.data, now) {
            packet[..HEADER_LEN].copy_from_slice(&header);
            server.handle_packet(now, now, &packet[..len]).unwrap();
        }
        server.consume(now, server.delivered_offset());
        for (side, end) in [&mut *server, &mut *client].into_iter().enumerate() {
            while let Some((_, bytes)) = due(&mut self.control[side], now) {
                end.handle_packet(now, now, &bytes).unwrap();
            }
        }
        for (side, end) in [client, server].into_iter().enumerate() {
            end.handle_timeout(now);
            let (mut transmit, at) = (Transmit::default(), now.after(ONE_WAY_NS));
            while end.poll_transmit(now, &mut transmit) {
                if !transmit.control.is_empty() {
                    self.control[side].push_back((at, std::mem::take(&mut transmit.control)));
                }
                for (header, range) in transmit.headers.iter().zip(&transmit.payload) {
                    if !self.loses() {
                        let len = HEADER_LEN + range.len as usize;
                        self.data.push_back((at, (*header, len)));
                    }
                }
            }
        }
    }

    fn loses(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64) < self.loss * (1_u64 << 53) as f64
    }
}

fn due<T>(queue: &mut VecDeque<(Time, T)>, now: Time) -> Option<(Time, T)> {
    let is_due = queue.front().is_some_and(|(at, _)| *at <= now);
    is_due.then(|| queue.pop_front()).flatten()
}

/// A client that sends at `rate`, and its server.
fn open(rate: Rate) -> [Connection; 2] {
    let mut config = Config::default();
    config.mtu = u32::try_from(MTU).unwrap();
    config.lower_len = u32::try_from(LOWER_LEN).unwrap();
    config.control = Algorithm::Fixed(rate);
    // Checks cost the same whatever the window.
    config.offer_check = false;
    let from = SocketAddr::from(([192, 0, 2, 1], 5));
    let own = Identity {
        socket: SocketId(1),
        initial: Seq::new(0),
    };
    let listener = Listener::new(&config, [7; 16]);
    let mut client = Connection::connect(START, config.clone(), own, from.ip(), 1);
    let (mut transmit, mut reply) = (Transmit::default(), Vec::new());
    assert!(client.poll_transmit(START, &mut transmit));
    listener.handle_datagram(START, from, &transmit.control, &mut reply);
    client.handle_datagram(START, START, &reply).unwrap();
    assert!(client.poll_transmit(START, &mut transmit));
    let reaction = listener.handle_datagram(START, from, &transmit.control, &mut reply);
    let Reaction::Accept(request) = reaction else {
        panic!("not accepted");
    };
    let mut server = Connection::accept(START, config, SocketId(2), &request, 1).unwrap();
    assert!(server.poll_transmit(START, &mut transmit));
    client
        .handle_datagram(START, START, &transmit.control)
        .unwrap();
    [client, server]
}
