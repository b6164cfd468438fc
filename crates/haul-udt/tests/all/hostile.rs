//! Attacks by a peer, and by anybody who can send datagrams.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;

use haul_cc::Time;
use haul_udt::wire::{Control, Offer, Packet, RequestKind, SocketId, SocketKind};
use haul_udt::{
    Config, Connection, Error, Identity, Listener, Misbehaviour, Reaction, Received, Request, Seq,
    Transmit,
};
use proptest::prelude::*;

const CLIENT: SocketId = SocketId(0x1111);
const SERVER: SocketId = SocketId(0x2222);
const INITIAL: u32 = 0x7fff_fff0;

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 5_000))
}

fn time_ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn config(kind: SocketKind, placement: bool) -> Config {
    let mut config = Config::default();
    config.kind = kind;
    config.offer_placement = placement;
    // Most packets here are written by hand.
    config.offer_check = false;
    config.slot_memory_bytes = 200_000;
    config.receive_window_bytes = 1 << 20;
    config
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The first control packet that the connection sends now.
fn control(connection: &mut Connection, now: Time) -> Vec<u8> {
    let mut transmit = Transmit::default();
    assert!(connection.poll_transmit(now, &mut transmit));
    transmit.control
}

fn drain(connection: &mut Connection, now: Time) -> usize {
    let (mut transmit, mut packets) = (Transmit::default(), 0);
    while connection.poll_transmit(now, &mut transmit) {
        packets += transmit.headers.len() + usize::from(!transmit.control.is_empty());
        assert!(packets < 100_000, "it never comes to rest");
    }
    packets
}

fn request(listener: &Listener, config: &Config) -> (Connection, Request) {
    let own = Identity {
        socket: CLIENT,
        initial: Seq::new(INITIAL),
    };
    let mut client = Connection::connect(
        time_ms(1),
        config.clone(),
        own,
        std::net::Ipv4Addr::UNSPECIFIED.into(),
        1,
    );
    let mut reply = Vec::new();
    let induction = control(&mut client, time_ms(1));
    let reaction = listener.handle_datagram(time_ms(1), address(), &induction, &mut reply);
    assert_eq!(reaction, Reaction::Reply);
    client
        .handle_datagram(time_ms(1), time_ms(1), &reply)
        .unwrap();
    let conclusion = control(&mut client, time_ms(1));
    match listener.handle_datagram(time_ms(1), address(), &conclusion, &mut reply) {
        Reaction::Accept(request) => (client, request),
        other => panic!("not accepted: {other:?}"),
    }
}

/// An open server connection, and a client that has the reply.
fn open(kind: SocketKind, placement: bool) -> (Connection, Connection) {
    open_with(&config(kind, placement))
}

fn open_with(config: &Config) -> (Connection, Connection) {
    let listener = Listener::new(config, [7; 16]);
    let (mut client, request) = request(&listener, config);
    let mut server = Connection::accept(time_ms(1), config.clone(), SERVER, &request, 1).unwrap();
    let answer = control(&mut server, time_ms(1));
    client
        .handle_datagram(time_ms(1), time_ms(1), &answer)
        .unwrap();
    assert_eq!(
        client.params().map(|params| params.placement),
        Some(config.offer_placement)
    );
    (client, server)
}

/// A data packet to the server; `word2` is the stream offset where packets are placed.
fn data(number: u32, word2: u32, len: usize) -> Vec<u8> {
    let mut packet = words(&[
        (INITIAL + number) & 0x7fff_ffff,
        0xe000_0001,
        word2,
        SERVER.0,
    ]);
    packet.resize(packet.len() + len, 0);
    packet
}

fn refused(connection: &mut Connection, packet: &[u8], how: Misbehaviour) {
    let before = connection.stats().map(|stats| stats.misbehaviour);
    let result = connection.handle_datagram(time_ms(2), time_ms(2), packet);
    assert_eq!(result, Err(Error::PeerMisbehaved(how)));
    let after = connection.stats().map(|stats| stats.misbehaviour);
    assert_eq!(after, before.map(|count| count + 1));
}

#[test]
fn a_listener_keeps_no_state_and_takes_only_cookies_of_its_own_for_this_address_and_minute() {
    let config = config(SocketKind::Stream, true);
    let listener = Listener::new(&config, [7; 16]);
    let (_, request) = request(&listener, &config);
    let mut body = request.handshake;
    let conclusion = |cookie: u32| {
        let mut packet = words(&[0x8000_0000, 0, 0, 0, 4, 1, INITIAL, 1_500, 8_192, u32::MAX]);
        packet.extend(words(&[CLIENT.0, cookie, 0, 0, 0, 0]));
        packet
    };
    let mut out = Vec::new();
    let mut react = |at: Time, from: SocketAddr, cookie: u32| {
        listener.handle_datagram(at, from, &conclusion(cookie), &mut out)
    };
    assert!(matches!(
        react(time_ms(60_000), address(), body.cookie),
        Reaction::Accept(_)
    ));
    assert_eq!(
        react(time_ms(120_000), address(), body.cookie),
        Reaction::Ignore
    );
    let other_port = SocketAddr::from(([192, 0, 2, 1], 5_001));
    assert_eq!(react(time_ms(1), other_port, body.cookie), Reaction::Ignore);
    body.cookie ^= 1;
    assert_eq!(react(time_ms(1), address(), body.cookie), Reaction::Ignore);
    let other_secret = Listener::new(&config, [8; 16]);
    let cookie = request.handshake.cookie;
    let reaction =
        other_secret.handle_datagram(time_ms(1), address(), &conclusion(cookie), &mut out);
    assert_eq!(reaction, Reaction::Ignore);
}

#[test]
fn feedback_about_packets_that_were_never_sent_is_refused_and_counted() {
    let (mut client, _) = open(SocketKind::Stream, false);
    client.write(time_ms(1), 100_000, true).unwrap();
    drain(&mut client, time_ms(1));
    let sent = u32::try_from(client.stats().unwrap().sent.packets).unwrap();
    let beyond = (INITIAL + sent + 1) & 0x7fff_ffff;
    let ack = words(&[0x8002_0000, 1, 0, CLIENT.0, beyond, 1, 1, 64]);
    refused(&mut client, &ack, Misbehaviour::NeverSent);
    let nak = words(&[0x8003_0000, 0, 0, CLIENT.0, beyond - 1]);
    refused(&mut client, &nak, Misbehaviour::NeverSent);
    assert_eq!(client.released(), 0);
    let whole = words(&[0x8000_0000 | INITIAL, (INITIAL + sent - 1) & 0x7fff_ffff]);
    let twice = [words(&[0x8003_0000, 0, 0, CLIENT.0]), whole.clone(), whole].concat();
    refused(&mut client, &twice, Misbehaviour::Feedback);
}

#[test]
fn selective_feedback_that_lies_or_contradicts_itself_is_refused() {
    let (mut client, _) = open(SocketKind::Stream, true);
    client.write(time_ms(1), 100_000, true).unwrap();
    drain(&mut client, time_ms(1));
    let sent = u32::try_from(client.stats().unwrap().sent.packets).unwrap();
    assert!(sent > 8);
    let seq = |number: u32| (INITIAL + number) & 0x7fff_ffff;
    let feedback = |number, next, highest, from, to, gaps: &[u32]| {
        let head = [
            0xffff_4c48,
            1,
            number,
            CLIENT.0,
            seq(next),
            seq(highest),
            seq(0),
            0,
        ];
        let middle = [
            0,
            0,
            0,
            0,
            seq(1_000),
            0,
            1 << 20,
            0,
            0,
            seq(from),
            seq(to),
            0,
            0,
            0,
            seq(0),
            0,
            0,
        ];
        [words(&head), words(&middle), words(gaps)].concat()
    };
    refused(
        &mut client,
        &feedback(1, 1, sent + 1, 1, 1, &[]),
        Misbehaviour::NeverSent,
    );
    refused(
        &mut client,
        &feedback(1, 4, 2, 4, 4, &[]),
        Misbehaviour::NeverSent,
    );
    refused(
        &mut client,
        &feedback(1, 4, 6, 2, 6, &[]),
        Misbehaviour::Feedback,
    );
    refused(
        &mut client,
        &feedback(1, 2, 6, 2, 8, &[]),
        Misbehaviour::Feedback,
    );
    refused(
        &mut client,
        &feedback(1, 2, 6, 2, 6, &[seq(6)]),
        Misbehaviour::Feedback,
    );
    refused(
        &mut client,
        &feedback(1, 2, 6, 2, 6, &[seq(4), seq(3)]),
        Misbehaviour::Feedback,
    );
    assert_eq!(client.released(), 0);
    let honest = feedback(1, 2, 6, 2, 6, &[seq(2), seq(4)]);
    client
        .handle_datagram(time_ms(2), time_ms(2), &honest)
        .unwrap();
    assert_eq!(client.released(), 2 * 1_456);
}

#[test]
fn data_beyond_the_window_and_contradictory_offsets_are_refused() {
    let (_, mut server) = open(SocketKind::Stream, true);
    let take = |server: &mut Connection, packet: &[u8]| {
        server.handle_datagram(time_ms(2), time_ms(2), packet)
    };
    assert!(matches!(
        take(&mut server, &data(0, 0, 1_000)),
        Ok(Received::Data(_))
    ));
    assert!(matches!(
        take(&mut server, &data(3, 3_000, 1_000)),
        Ok(Received::Data(_))
    ));
    refused(&mut server, &data(1, 900, 1_000), Misbehaviour::Offset);
    refused(&mut server, &data(2, 2_500, 1_000), Misbehaviour::Offset);
    refused(&mut server, &data(4, 3_900, 1_000), Misbehaviour::Offset);
    refused(
        &mut server,
        &data(4, 1 << 20, 1_000),
        Misbehaviour::BeyondWindow,
    );
    refused(
        &mut server,
        &data(2 << 26, 4_000, 1_000),
        Misbehaviour::BeyondWindow,
    );
    refused(&mut server, &data(4, 4_000, 1_457), Misbehaviour::Oversized);
    let (_, mut plain) = open(SocketKind::Stream, false);
    refused(&mut plain, &data(0, 0, 0), Misbehaviour::Oversized);
    assert_eq!(take(&mut server, &data(0, 0, 1_000)), Ok(Received::Discard));
    assert_eq!(server.delivered_offset(), 1_000);
}

/// The stream offset below which the server takes payload, by its feedback.
fn offset_limit(server: &mut Connection, now: Time) -> u64 {
    let (mut transmit, mut limit) = (Transmit::default(), None);
    while server.poll_transmit(now, &mut transmit) {
        if let Ok(Packet::Control(Control::Feedback(feedback))) = Packet::parse(&transmit.control) {
            limit = Some(feedback.offset_limit);
        }
    }
    limit.unwrap()
}

#[test]
fn more_than_a_gigabyte_is_offered_only_to_a_peer_whose_packets_tell_where_they_belong() {
    let mut config = config(SocketKind::Stream, true);
    config.receive_window_bytes = 1 << 36;
    let (_, mut server) = open_with(&config);
    let take = |server: &mut Connection, packet: &[u8]| {
        server.handle_datagram(time_ms(2), time_ms(2), packet)
    };
    // As version 0.1.0 sends them: position 11, and a number without meaning.
    take(&mut server, &data(0, 0, 1_000)).unwrap();
    assert_eq!(offset_limit(&mut server, time_ms(2)), 1 << 30);
    refused(
        &mut server,
        &data(2, 1 << 30, 1_000),
        Misbehaviour::BeyondWindow,
    );
    // Position 10, and the upper bits of the offset in the number's place.
    let wide = |number: u32, offset: u64| {
        let mut packet = data(number, (offset & 0xffff_ffff) as u32, 1_000);
        let word1 = 0xa000_0000 | (offset >> 32) as u32;
        packet[4..8].copy_from_slice(&word1.to_be_bytes());
        packet
    };
    take(&mut server, &wide(1, 1_000)).unwrap();
    assert_eq!(offset_limit(&mut server, time_ms(3)), 1 << 36);
    for (number, offset) in [(9_000_000, 13 << 30), (4_000_000, 6 << 30)] {
        let taken = take(&mut server, &wide(number, offset));
        assert!(
            matches!(taken, Ok(Received::Data(placement)) if placement.position == offset),
            "{taken:?}"
        );
    }
    let beyond = wide(9_000_001, 1 << 36);
    refused(&mut server, &beyond, Misbehaviour::BeyondWindow);
}

#[test]
fn packets_without_a_slot_are_not_taken() {
    let (_, mut server) = open(SocketKind::Stream, false);
    let slots = config(SocketKind::Stream, false).receive_slots();
    let mut taken = 0;
    for number in 0..3 * slots {
        let result = server.handle_datagram(time_ms(2), time_ms(2), &data(number, 0, 100));
        taken += u32::from(matches!(result, Ok(Received::Data(_))));
    }
    assert_eq!(taken, slots);
}

#[test]
fn packets_for_another_socket_are_not_taken() {
    let (_, mut server) = open(SocketKind::Stream, true);
    let mut packet = data(0, 0, 100);
    packet[15] ^= 1;
    let result = server.handle_datagram(time_ms(2), time_ms(2), &packet);
    assert_eq!(result, Err(Error::PeerMisbehaved(Misbehaviour::OutOfPlace)));
    let mut shutdown = words(&[0x8005_0000, 0, 0, SERVER.0 ^ 1, 0]);
    let result = server.handle_datagram(time_ms(2), time_ms(2), &shutdown);
    assert!(result.is_err() && !server.is_closed());
    shutdown[12..16].copy_from_slice(&SERVER.0.to_be_bytes());
    server
        .handle_datagram(time_ms(2), time_ms(2), &shutdown)
        .unwrap();
    assert!(server.is_closed());
}

#[test]
fn repeated_answers_of_the_server_are_not_answered() {
    let (mut client, mut server) = open(SocketKind::Stream, true);
    let config = config(SocketKind::Stream, true);
    let listener = Listener::new(&config, [7; 16]);
    let (_, request) = request(&listener, &config);
    let mut again = Connection::accept(time_ms(1), config, SERVER, &request, 1).unwrap();
    let answer = control(&mut again, time_ms(1));
    client
        .handle_datagram(time_ms(2), time_ms(2), &answer)
        .unwrap();
    assert_eq!(drain(&mut client, time_ms(2)), 0);
    assert_eq!(drain(&mut server, time_ms(2)), 0);
}

#[test]
fn what_had_arrived_can_be_read_after_the_peer_has_closed() {
    let (_, mut server) = open(SocketKind::Datagram, false);
    server
        .handle_datagram(time_ms(2), time_ms(2), &data(0, 0, 100))
        .unwrap();
    let shutdown = words(&[0x8005_0000, 0, 0, SERVER.0, 0]);
    server
        .handle_datagram(time_ms(2), time_ms(2), &shutdown)
        .unwrap();
    let message = server.front_message().expect("it had arrived");
    assert_eq!(message.len, 100);
    server.take_message(&message, |_| {});
    assert_eq!(server.front_message(), None);
}

/// A datagram that is likely to get far: the header of some kind of packet, anything behind.
fn any_datagram() -> impl Strategy<Value = Vec<u8>> {
    let word0 = prop_oneof![
        (0_u32..10).prop_map(|kind| 0x8000_0000 | kind << 16),
        Just(0xffff_4c48),
        (0_u32..100).prop_map(|ahead| (INITIAL + ahead) & 0x7fff_ffff),
        any::<u32>(),
    ];
    let small = prop_oneof![0_u32..4, any::<u32>()];
    let destination = prop_oneof![Just(CLIENT.0), Just(SERVER.0), Just(0)];
    let word = prop_oneof![
        any::<u32>(),
        0_u32..100,
        (0_u32..100).prop_map(|ahead| (INITIAL + ahead) & 0x7fff_ffff),
    ];
    let body = prop::collection::vec(word, 0..40);
    (word0, small, any::<u32>(), destination, body, 0_usize..4).prop_map(
        |(word0, word1, word2, destination, body, cut)| {
            let mut bytes = words(&[word0, word1, word2, destination]);
            bytes.extend(words(&body));
            bytes.truncate(bytes.len().saturating_sub(cut));
            bytes
        },
    )
}

proptest! {
    #[test]
    fn no_datagram_makes_a_listener_panic_or_amplify(datagram in any_datagram(), kind in any::<bool>()) {
        let kind = if kind { SocketKind::Stream } else { SocketKind::Datagram };
        let listener = Listener::new(&config(kind, true), [7; 16]);
        let mut out = Vec::new();
        let reaction = listener.handle_datagram(time_ms(1), address(), &datagram, &mut out);
        prop_assert!(out.len() <= datagram.len());
        prop_assert!(!matches!(reaction, Reaction::Accept(_)), "nobody guesses a cookie");
        if reaction == Reaction::Reply {
            let answer = Packet::parse(&out);
            let is_handshake = matches!(
                answer,
                Ok(Packet::Control(Control::Handshake { body, offer, .. }))
                    if matches!(body.request, RequestKind::Induction | RequestKind::Rejected(_))
                        && offer == Offer::default()
            );
            prop_assert!(is_handshake);
        }
    }

    #[test]
    fn no_datagrams_make_a_connection_panic_or_spin(
        datagrams in prop::collection::vec(any_datagram(), 1..60),
        stream in any::<bool>(),
        placement in any::<bool>(),
    ) {
        let kind = if stream { SocketKind::Stream } else { SocketKind::Datagram };
        let (mut client, mut server) = open(kind, placement);
        let mut now = time_ms(2);
        for end in [&mut client, &mut server] {
            if stream {
                end.write(now, 50_000, true).unwrap();
            } else {
                end.send_message(now, 50_000, true, Some(20_000_000)).unwrap();
            }
            drain(end, now);
        }
        for datagram in datagrams {
            now = now.after(3_000_000);
            for end in [&mut client, &mut server] {
                let _ = end.handle_datagram(now, now, &datagram);
                end.handle_timeout(now);
                drain(end, now);
                while end.poll_event().is_some() {}
                while let Some(message) = end.front_message() {
                    end.take_message(&message, |_| {});
                }
                while end.front_piece().is_some() {
                    end.pop_piece();
                }
                let due = end.poll_timeout(now);
                prop_assert!(due.is_none_or(|due| due > now) || drain(end, now.after(1)) > 0);
            }
        }
    }
}
