//! A recorded libudt against our state machine: each end in turn is replayed from the capture, the
//! other is ours.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use haul_cc::Time;
use haul_udt::wire::{Control, Handshake, Packet, SocketId, SocketKind};
use haul_udt::{Config, Connection, Event, Identity, Received, Request, Transmit};

const STREAM: &str = include_str!("../data/udt-stream.txt");
const DGRAM: &str = include_str!("../data/udt-dgram.txt");

struct Recorded {
    at: Time,
    from_client: bool,
    /// Payload is zeros.
    bytes: Vec<u8>,
}

fn recorded(capture: &str) -> Vec<Recorded> {
    let lines = capture.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let octets = (0..fields[2].len()).step_by(2);
            let mut bytes: Vec<u8> = octets
                .map(|at| u8::from_str_radix(&fields[2][at..at + 2], 16).unwrap())
                .collect();
            bytes.resize(bytes.len() + fields[3].parse::<usize>().unwrap(), 0);
            Recorded {
                at: Time::from_ns(1_000_000 + fields[0].parse::<u64>().unwrap() * 1_000),
                from_client: fields[1] == "C",
                bytes,
            }
        })
        .collect()
}

fn handshake(bytes: &[u8]) -> Handshake {
    match Packet::parse(bytes) {
        Ok(Packet::Control(Control::Handshake { body, .. })) => body,
        other => panic!("not a handshake: {other:?}"),
    }
}

/// The window that libudt has.
fn config(kind: SocketKind) -> Config {
    let mut config = Config::default();
    config.kind = kind;
    config.slot_memory_bytes = 8_192 * 1_456;
    config
}

/// Everything that the connection sends now: control packets whole, data packets as headers.
fn drain(connection: &mut Connection, now: Time) -> Vec<Vec<u8>> {
    let (mut out, mut transmit) = (Vec::new(), Transmit::default());
    while connection.poll_transmit(now, &mut transmit) {
        if !transmit.control.is_empty() {
            out.push(transmit.control.clone());
        }
        out.extend(transmit.headers.iter().map(|header| header.to_vec()));
    }
    out
}

/// Lets timers act on the way to `until`.
fn pass(connection: &mut Connection, from: Time, until: Time) -> Vec<Vec<u8>> {
    let (mut out, mut now) = (Vec::new(), from);
    while now < until {
        now = connection
            .poll_timeout(now)
            .map_or(until, |due| due.max(now.after(100_000)));
        now = now.min(until);
        connection.handle_timeout(now);
        out.extend(drain(connection, now));
    }
    out
}

fn accept(capture: &[Recorded], kind: SocketKind) -> Connection {
    let conclusion = &capture[2];
    let answer = handshake(&capture[3].bytes);
    let request = Request {
        from: SocketAddr::from(([127, 0, 0, 1], 9_000)),
        handshake: handshake(&conclusion.bytes),
        offer: haul_udt::wire::Offer::default(),
    };
    Connection::accept(conclusion.at, config(kind), answer.socket, &request, 1).unwrap()
}

/// Plays the client of `capture` to our server; answers the server and what it sent.
fn play_client(
    capture: &[Recorded],
    kind: SocketKind,
) -> (Connection, Vec<Vec<u8>>, Vec<Received>) {
    let mut server = accept(capture, kind);
    let (mut now, mut received) = (capture[2].at, Vec::new());
    let mut sent = drain(&mut server, now);
    for (index, packet) in capture.iter().enumerate().skip(4) {
        if !packet.from_client || is_lost(capture, index) {
            continue;
        }
        sent.extend(pass(&mut server, now, packet.at));
        now = packet.at;
        // The client acknowledges data and acknowledgements that our server has not sent.
        if let Ok(got) = server.handle_datagram(now, now, &packet.bytes) {
            received.push(got);
        }
        sent.extend(drain(&mut server, now));
    }
    (server, sent, received)
}

/// The relay lost what comes again later.
fn is_lost(capture: &[Recorded], index: usize) -> bool {
    let seq = |packet: &Recorded| match Packet::parse(&packet.bytes) {
        Ok(Packet::Data(data)) if packet.from_client => Some(data.seq),
        _ => None,
    };
    let this = seq(&capture[index]);
    this.is_some() && capture[index + 1..].iter().any(|later| seq(later) == this)
}

#[test]
fn our_server_answers_the_recorded_client_with_libudts_very_handshake() {
    for (capture, kind) in [(STREAM, SocketKind::Stream), (DGRAM, SocketKind::Datagram)] {
        let capture = recorded(capture);
        let mut server = accept(&capture, kind);
        let sent = drain(&mut server, capture[2].at);
        assert_eq!(sent, [capture[3].bytes.clone()]);
    }
}

#[test]
fn our_server_takes_the_recorded_stream_and_reports_its_losses() {
    let capture = recorded(STREAM);
    let (mut server, sent, received) = play_client(&capture, SocketKind::Stream);
    let mut seqs = BTreeSet::new();
    for packet in capture.iter().filter(|packet| packet.from_client) {
        if let Ok(Packet::Data(data)) = Packet::parse(&packet.bytes) {
            seqs.insert(data.seq.get());
        }
    }
    let taken = received
        .iter()
        .filter(|got| matches!(got, Received::Data(_)));
    assert_eq!(taken.count(), seqs.len());
    let mut bytes = 0;
    while let Some(piece) = server.front_piece() {
        bytes += u64::from(piece.len);
        server.pop_piece();
    }
    // 300,000 bytes in 207 packets, all of them in the end.
    assert_eq!(bytes, 300_000);
    let naks = |packets: &[Vec<u8>]| -> BTreeSet<u32> {
        packets
            .iter()
            .filter_map(|bytes| match Packet::parse(bytes) {
                Ok(Packet::Control(Control::Nak(losses))) => Some(
                    losses
                        .iter()
                        .flat_map(|(first, last)| first.get()..=last.get())
                        .collect::<Vec<_>>(),
                ),
                _ => None,
            })
            .flatten()
            .collect()
    };
    let theirs: Vec<Vec<u8>> = capture
        .iter()
        .filter(|packet| !packet.from_client)
        .map(|packet| packet.bytes.clone())
        .collect();
    assert!(naks(&sent).is_superset(&naks(&theirs)));
    let closed: Vec<Event> = std::iter::from_fn(|| server.poll_event()).collect();
    assert_eq!(closed[1..], [Event::PeerClosed, Event::Closed(None)]);
}

#[test]
fn our_server_takes_the_recorded_messages_and_not_the_dropped_one() {
    let capture = recorded(DGRAM);
    let (mut server, _, _) = play_client(&capture, SocketKind::Datagram);
    let mut messages = Vec::new();
    while let Some(message) = server.front_message() {
        messages.push((message.number, message.len));
        server.take_message(&message, |_| {});
    }
    // libudt sent the third message twice, under two sequence numbers, and gave the first one up.
    assert_eq!(messages, [(2, 100), (3, 10)]);
}

#[test]
fn our_client_opens_with_libudts_very_handshake_and_repeats_what_the_server_lacks() {
    let capture = recorded(STREAM);
    let first = handshake(&capture[0].bytes);
    let own = Identity {
        socket: first.socket,
        initial: first.initial,
    };
    let mut config = config(SocketKind::Stream);
    config.offer_placement = false;
    let mut now = capture[0].at;
    let mut client = Connection::connect(now, config, own, Ipv4Addr::LOCALHOST.into(), 1);
    assert_eq!(drain(&mut client, now), [capture[0].bytes.clone()]);
    let mut sent = Vec::new();
    for packet in capture[1..].iter().filter(|packet| !packet.from_client) {
        sent.extend(pass(&mut client, now, packet.at));
        now = packet.at;
        // The server may acknowledge packets that libudt had sent by then and ours, which paces,
        // has not.
        let _ = client.handle_datagram(now, now, &packet.bytes);
        if let Some(Event::Connected(_)) = client.poll_event() {
            client.write(now, 300_000, true).unwrap();
        }
        sent.extend(drain(&mut client, now));
    }
    assert_eq!(sent[0], capture[2].bytes, "the conclusion");
    let times_sent = |seq: u32| {
        let is_it = |bytes: &&Vec<u8>| match Packet::parse(bytes) {
            Ok(Packet::Data(data)) => {
                data.seq.get() == seq && data.destination == SocketId(0x3c0b_fdff)
            }
            _ => false,
        };
        sent.iter().filter(is_it).count()
    };
    assert_eq!(times_sent(0x6d71_63ef), 1);
    for lost in [0x6d71_6403, 0x6d71_6417, 0x6d71_6418, 0x6d71_6419] {
        assert!(times_sent(lost) >= 2, "{lost:x} was reported lost");
    }
    assert!(
        client.released() >= 16 * 1_456,
        "the first acknowledgement counts"
    );
}
