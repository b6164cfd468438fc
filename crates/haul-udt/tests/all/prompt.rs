//! Feedback at once where the sender waits for nothing else.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;

use haul_cc::Time;
use haul_udt::wire::{HEADER_LEN, SocketId};
use haul_udt::{Config, Connection, Identity, Listener, Reaction, Received, Seq, Transmit};

const CLIENT: SocketId = SocketId(0x1111);
const SERVER: SocketId = SocketId(0x2222);
const START: Time = Time::from_ns(1_000_000);
/// The mark in a header's second word.
const PROMPT: u32 = 1 << 27;

fn open() -> [Connection; 2] {
    let mut config = Config::default();
    // Some packets are written by hand.
    config.offer_check = false;
    let from = SocketAddr::from(([192, 0, 2, 1], 5));
    let own = Identity {
        socket: CLIENT,
        initial: Seq::new(0),
    };
    let listener = Listener::new(&config, [7; 16]);
    let mut client = Connection::connect(
        START,
        config.clone(),
        own,
        std::net::Ipv4Addr::UNSPECIFIED.into(),
        1,
    );
    let (mut transmit, mut reply) = (Transmit::default(), Vec::new());
    assert!(client.poll_transmit(START, &mut transmit));
    listener.handle_datagram(START, from, &transmit.control, &mut reply);
    client.handle_datagram(START, START, &reply).unwrap();
    assert!(client.poll_transmit(START, &mut transmit));
    let reaction = listener.handle_datagram(START, from, &transmit.control, &mut reply);
    let Reaction::Accept(request) = reaction else {
        panic!("not accepted");
    };
    let mut server = Connection::accept(START, config, SERVER, &request, 1).unwrap();
    assert!(server.poll_transmit(START, &mut transmit));
    let answer = &transmit.control;
    client.handle_datagram(START, START, answer).unwrap();
    [client, server]
}

/// All that the connection sends now: headers of data, and how many control packets.
fn sent(connection: &mut Connection, now: Time) -> (Vec<[u8; HEADER_LEN]>, usize) {
    let (mut headers, mut controls) = (Vec::new(), 0);
    let mut transmit = Transmit::default();
    while connection.poll_transmit(now, &mut transmit) {
        headers.extend_from_slice(&transmit.headers);
        controls += usize::from(!transmit.control.is_empty());
    }
    (headers, controls)
}

fn asks(header: &[u8; HEADER_LEN]) -> bool {
    u32::from_be_bytes([header[4], header[5], header[6], header[7]]) & PROMPT != 0
}

#[test]
fn the_last_packet_for_now_asks_and_those_before_it_do_not() {
    let [mut client, _] = open();
    client.write(START, 10_000, true).unwrap();
    let (headers, _) = sent(&mut client, START);
    assert!(headers.len() > 2);
    let (last, others) = headers.split_last().unwrap();
    assert!(asks(last) && !others.iter().any(asks));
}

#[test]
fn nothing_asks_where_much_is_in_flight() {
    let [mut client, _] = open();
    client.write(START, 60_000, true).unwrap();
    let (headers, _) = sent(&mut client, START);
    assert!(headers.len() > 16 && !headers.iter().any(asks));
}

#[test]
fn what_asks_is_answered_at_once_but_not_in_quick_succession() {
    let [_, mut server] = open();
    let mut number = 0_u32;
    let mut take = |server: &mut Connection, now: Time, mark: u32| {
        let words = [number, 0xe000_0001 | mark, number, SERVER.0];
        let mut packet: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        packet.push(0);
        number += 1;
        let result = server.handle_datagram(now, now, &packet);
        assert!(matches!(result, Ok(Received::Data(_))));
        sent(server, now).1
    };
    let at = |us: u64| START.after(us * 1_000);
    // The first packets are all answered at once.
    for us in 0..200 {
        take(&mut server, at(us), 0);
    }
    let quiet = 100_000;
    sent(&mut server, at(quiet));
    assert_eq!(take(&mut server, at(quiet + 100), 0), 0);
    assert_eq!(take(&mut server, at(quiet + 110), PROMPT), 1);
    assert_eq!(take(&mut server, at(quiet + 120), PROMPT), 0);
    assert_eq!(server.poll_timeout(at(quiet + 120)), Some(at(quiet + 160)));
    assert_eq!(sent(&mut server, at(quiet + 160)).1, 1);
}
