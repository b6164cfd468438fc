//! Sealed datagrams and records: nothing but what the peer sealed opens, and nothing panics.

#![no_main]

use haul_cc::Time;
use haul_seal::record::{Content, RecordOpener, record_len};
use haul_seal::{Cipher, Keys, Secret, Side};
use haul_udt::wire::{Handshake, Offer, RequestKind, Sealed, SocketId, SocketKind};
use haul_udt::{Config, Connection, Opener, Request, Seq};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    datagrams(bytes);
    records(bytes);
});

fn keys() -> Keys {
    Keys::new(
        &Secret::new([7; 32]),
        Cipher::Aes128Gcm,
        Side::Responder,
        &[],
    )
    .expect("a cipher")
}

struct Own(Keys);

impl Opener for Own {
    fn open(&mut self, sealed: Sealed, head: &[u8], text: &mut [u8]) -> Option<usize> {
        self.0
            .opener
            .open(sealed.generation, sealed.number, head, text)
    }

    fn forget_previous(&mut self) {
        self.0.opener.forget_previous();
    }
}

/// Each datagram is a length byte and so many bytes.
fn datagrams(mut bytes: &[u8]) {
    let mut config = Config::default();
    config.seal = true;
    let request = Request {
        from: ([192, 0, 2, 1], 5_000).into(),
        handshake: Handshake {
            version: 4,
            kind: SocketKind::Stream,
            initial: Seq::new(9),
            mss: 1_500,
            flight: 100,
            request: RequestKind::Conclusion,
            socket: SocketId(7),
            cookie: 0,
            peer: std::net::IpAddr::from([0; 4]).into(),
        },
        offer: Offer {
            placement: true,
            seal: true,
            ..Offer::default()
        },
    };
    let mut now = Time::from_ns(1);
    let accepted = Connection::accept(now, config, SocketId(8), &request, 1);
    let mut connection = accepted.expect("a good request");
    let mut keys = Own(keys());
    while let Some((len, rest)) = bytes.split_first() {
        let (datagram, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        bytes = rest;
        now = now.after(1_000_000);
        let mut datagram = datagram.to_vec();
        let packet = connection.open(now, &mut datagram, Some(&mut keys));
        if let Some(packet) = packet.map(<[u8]>::to_vec) {
            // Handshakes have no seal; they neither close a connection nor carry data.
            let _ = connection.handle_packet(now, now, &packet);
        }
        assert!(!connection.is_closed());
    }
    assert_eq!(
        connection.stats().map(|stats| stats.received_packets),
        Some(0)
    );
}

fn records(bytes: &[u8]) {
    let mut opener = RecordOpener::new(keys().opener);
    let Some(Ok(len)) = bytes.first_chunk().map(|header| record_len(*header)) else {
        return;
    };
    if let Some(record) = bytes.get(..len) {
        let opened = opener
            .open(&mut record.to_vec())
            .map(|content| match content {
                Content::Data(data) => data.len(),
                Content::KeyUpdate | Content::End => 0,
            });
        assert!(opened.is_err());
    }
}
