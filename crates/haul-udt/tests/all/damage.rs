//! Damage that UDP's checksum misses is loss between Longhaul ends.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;

use haul_cc::Time;
use haul_udt::wire::SocketId;
use haul_udt::{Config, Connection, Identity, Listener, Reaction, Received, Seq, Transmit};

const START: Time = Time::from_ns(1_000_000);

/// The packet once with every bit of its first `bytes` flipped.
fn damaged(packet: &[u8], bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes * 8).map(|bit| {
        let mut packet = packet.to_vec();
        packet[bit / 8] ^= 1 << (bit % 8);
        packet
    })
}

/// The control packet that the connection sends now.
fn control(connection: &mut Connection, now: Time) -> Vec<u8> {
    let mut transmit = Transmit::default();
    assert!(connection.poll_transmit(now, &mut transmit));
    assert!(!transmit.control.is_empty());
    transmit.control
}

/// Two ends that are connected, after every bit of every handshake packet has been flipped once.
fn open() -> [Connection; 2] {
    let config = Config::default();
    let from = SocketAddr::from(([192, 0, 2, 1], 5));
    let own = Identity {
        socket: SocketId(0x1111),
        initial: Seq::new(7),
    };
    let listener = Listener::new(&config, [7; 16]);
    let mut out = Vec::new();
    let mut client = Connection::connect(
        START,
        config.clone(),
        own,
        std::net::Ipv4Addr::UNSPECIFIED.into(),
        1,
    );
    let take = |client: &mut Connection, packet: &[u8]| {
        // A damaged packet is an error, or is ignored.
        let _ = client.handle_datagram(START, START, packet);
    };
    let request = control(&mut client, START);
    for packet in damaged(&request, request.len()) {
        let reaction = listener.handle_datagram(START, from, &packet, &mut out);
        assert_eq!(reaction, Reaction::Ignore);
    }
    listener.handle_datagram(START, from, &request, &mut out);
    let mut transmit = Transmit::default();
    for packet in damaged(&out, out.len()) {
        take(&mut client, &packet);
        assert!(
            !client.poll_transmit(START, &mut transmit),
            "a cookie is taken"
        );
    }
    take(&mut client, &out);
    let request = control(&mut client, START);
    for packet in damaged(&request, request.len()) {
        let reaction = listener.handle_datagram(START, from, &packet, &mut out);
        assert_eq!(reaction, Reaction::Ignore);
    }
    let reaction = listener.handle_datagram(START, from, &request, &mut out);
    let Reaction::Accept(request) = reaction else {
        panic!("not accepted");
    };
    let mut server = Connection::accept(START, config, SocketId(0x2222), &request, 1).unwrap();
    let answer = control(&mut server, START);
    for packet in damaged(&answer, answer.len()) {
        take(&mut client, &packet);
        assert_eq!(client.params(), None);
        assert!(!client.is_closed());
    }
    take(&mut client, &answer);
    assert!(client.params().is_some_and(|params| params.check));
    [client, server]
}

#[test]
fn every_flipped_bit_of_a_header_or_a_control_packet_is_noticed() {
    let [mut client, mut server] = open();
    client.write(START, 5_000, true).unwrap();
    let (mut transmit, mut data) = (Transmit::default(), Vec::new());
    while client.poll_transmit(START, &mut transmit) {
        let packets = transmit.headers.iter().zip(&transmit.payload);
        data.extend(packets.map(|(header, payload)| {
            let mut packet = header.to_vec();
            packet.resize(header.len() + payload.len as usize, 0);
            packet
        }));
        if !transmit.control.is_empty() {
            for packet in damaged(&transmit.control, transmit.control.len()) {
                assert!(server.handle_datagram(START, START, &packet).is_err());
            }
            server
                .handle_datagram(START, START, &transmit.control)
                .unwrap();
        }
    }
    assert_eq!(data.len(), 4);
    for packet in &data {
        let short = packet[..packet.len() - 1].to_vec();
        for packet in damaged(packet, 16).chain([short]) {
            let before = server.stats();
            assert!(server.handle_datagram(START, START, &packet).is_err());
            assert_eq!(server.stats(), before);
        }
        let taken = server.handle_datagram(START, START, packet);
        assert!(matches!(taken, Ok(Received::Data(_))));
    }
    let later = START.after(1_000_000);
    let feedback = control(&mut server, later);
    for packet in damaged(&feedback, feedback.len()) {
        assert!(client.handle_datagram(later, later, &packet).is_err());
    }
    assert!(!client.is_drained());
    client.handle_datagram(later, later, &feedback).unwrap();
    assert!(client.is_drained());
    server.abort(later);
    let shutdown = control(&mut server, later);
    for packet in damaged(&shutdown, shutdown.len()) {
        assert!(client.handle_datagram(later, later, &packet).is_err());
        assert!(!client.is_closed());
    }
    client.handle_datagram(later, later, &shutdown).unwrap();
    assert!(client.is_closed());
}
