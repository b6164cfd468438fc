//! Bytes, in pieces, as what a peer sends for the handshake of a protected connection: neither end
//! gets keys from them, and neither takes more than it was given.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use haul_control::identity::PrivateKey;
use haul_control::protect::Protection;
use haul_seal::handshake::{Handshake, Protect, Transport};
use libfuzzer_sys::fuzz_target;

static PROTECTION: LazyLock<Protection> = LazyLock::new(|| {
    let key = PrivateKey::generate().expect("random bytes");
    let public = key.public();
    Protection::keys(key, vec![public]).expect("a good key")
});

fn feed(mut end: Box<dyn Handshake>, pieces: &[Vec<u8>]) {
    let mut kept = Vec::new();
    for piece in pieces {
        kept.extend_from_slice(piece);
        match end.read(&kept) {
            Ok(taken) => drop(kept.drain(..taken)),
            Err(_) => break,
        }
        end.write(&mut Vec::new());
    }
    assert!(end.seal().is_none());
    let _ = end.refusal(&kept);
}

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if let Ok(end) = PROTECTION.respond(Transport::Tcp) {
        feed(end, &pieces);
    }
    if let Ok(end) = PROTECTION.initiate(peer, Transport::Udt) {
        feed(end, &pieces);
    }
});
