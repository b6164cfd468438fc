//! Rendezvous with a peer that is connected already and answers as libudt does.
#![expect(clippy::unwrap_used, reason = "tests")]

use haul_cc::Time;
use haul_udt::wire::{SocketId, SocketKind};
use haul_udt::{Config, Connection, Event, Identity, Seq, Transmit};

const OURS: u32 = 7;
const THEIRS: u32 = 9;

/// A handshake as a libudt with this socket sends it.
fn handshake(version: u32, kind: u32, request: i32, socket: u32) -> Vec<u8> {
    let header = [0x8000_0000, 0, 0, OURS];
    let body = [
        version,
        kind,
        5,
        1_500,
        8_192,
        request.cast_unsigned(),
        socket,
        0,
    ];
    header
        .into_iter()
        .chain(body)
        .chain([0; 4])
        .flat_map(u32::to_be_bytes)
        .collect()
}

/// A connection whose peer has sent its second step, -1, first.
fn met() -> Connection {
    let mut config = Config::default();
    config.kind = SocketKind::Stream;
    let own = Identity {
        socket: SocketId(OURS),
        initial: Seq::new(3),
    };
    let mut connection = Connection::rendezvous(
        Time::ZERO,
        config,
        own,
        std::net::Ipv4Addr::UNSPECIFIED.into(),
        1,
    );
    connection
        .handle_datagram(Time::ZERO, Time::ZERO, &handshake(4, 1, -1, THEIRS))
        .unwrap();
    let mut out = Transmit::default();
    assert!(connection.poll_transmit(Time::ZERO, &mut out));
    connection
}

#[test]
fn the_last_step_of_a_connected_libudt_states_no_version_and_connects() {
    let mut connection = met();
    connection
        .handle_datagram(Time::ZERO, Time::ZERO, &handshake(0, 0, -2, THEIRS))
        .unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Connected(_))));
}

#[test]
fn such_a_last_step_of_another_socket_connects_nothing() {
    let mut connection = met();
    connection
        .handle_datagram(Time::ZERO, Time::ZERO, &handshake(0, 0, -2, THEIRS + 1))
        .unwrap();
    assert!(connection.poll_event().is_none());
}
