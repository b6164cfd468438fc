//! The worked example of docs/protocol/udt.md, sealed and opened.

use haul_cc::Time;
use haul_seal::{Cipher, Secret};
use haul_udt::wire::{Handshake, Offer, RequestKind, SocketId, SocketKind};
use haul_udt::{Config, Request, Seq, Stats};

use super::*;
use crate::hex;

const PAGE: &str = include_str!("../../../../../docs/protocol/udt.md");

fn seal() -> Seal {
    Seal {
        secret: Secret::new(std::array::from_fn(|at| u8::try_from(at).unwrap())),
        cipher: Cipher::Aes128Gcm,
    }
}

/// The listener's end of the page's connection.
fn listener() -> Connection {
    let mut config = Config::default();
    config.seal = true;
    // So that it offers 25,600 packets.
    config.flight_packets = 25_600;
    config.slot_memory_bytes = 1 << 40;
    let request = Request {
        from: ([127, 0, 0, 1], 9).into(),
        handshake: Handshake {
            version: 4,
            kind: SocketKind::Stream,
            initial: Seq::new(9),
            mss: 1_500,
            flight: 25_600,
            request: RequestKind::Conclusion,
            socket: SocketId(7),
            cookie: 0,
            peer: std::net::IpAddr::from([127, 0, 0, 1]).into(),
        },
        offer: Offer {
            placement: true,
            ecn: true,
            finish: true,
            check: true,
            path: true,
            seal: true,
        },
    };
    Connection::accept(Time::from_ns(1), config, SocketId(8), &request, 1).unwrap()
}

#[test]
fn the_sealed_datagrams_of_the_page_are_what_this_build_opens_and_writes() {
    let mut connection = listener();
    let context = *connection.seal_context().unwrap();
    assert_eq!(context.bytes[..], hex::bytes(PAGE, "sealed-context"));
    assert!(!context.is_initiator);
    let data = hex::bytes(PAGE, "sealed-data");
    let shutdown = hex::bytes(PAGE, "sealed-shutdown");

    let mut client = Keys::new(
        &seal().secret,
        Cipher::Aes128Gcm,
        Side::Initiator,
        &context.bytes,
    )
    .unwrap()
    .sealer;
    let payload = hex::bytes(PAGE, "data").split_off(HEADER_LEN);
    for (generation, datagram, plain) in [(0, &data, &payload[..]), (1, &shutdown, &[0; 4])] {
        let sealed = Sealed {
            generation,
            number: generation << 22,
        };
        let header = datagram.first_chunk().unwrap();
        let head = sealed.head(header);
        let mut text = vec![0; plain.len() + SEAL_LEN - 4];
        client
            .seal(generation, sealed.number, &head, plain, &mut text)
            .unwrap();
        assert_eq!([&head[..], &text].concat(), *datagram);
    }

    let mut sealing = Some(Sealing::new(Some(seal())));
    let now = Time::from_ns(2);
    for (datagram, plain) in [(data, &payload[..]), (shutdown, &[0; 4])] {
        let mut arriving = datagram.clone();
        let packet = open(&mut sealing, &mut connection, now, &mut arriving).unwrap();
        assert_eq!(packet, [&datagram[..HEADER_LEN], plain].concat());
        let mut again = datagram;
        assert_eq!(open(&mut sealing, &mut connection, now, &mut again), None);
    }
    let Stats { refused, .. } = connection.stats().unwrap();
    assert_eq!((refused.replayed, refused.forged), (2, 0));
}
