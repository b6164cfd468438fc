//! The worked exchange of docs/protocol/xsp.md, decoded, encoded and recomputed.

#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

#[path = "../../../tests/pages/hex.rs"]
mod hex;
#[path = "common/pdus.rs"]
mod pdus;
#[path = "../../../tests/fixtures/recorded.rs"]
mod recorded;

use haul_xsp::wire::{FLAG_CHECK, HEADER_LEN, Header, ParseError, Pdu};
use haul_xsp::{SessionId, crc32c};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use hex::bytes;

const PAGE: &str = include_str!("../../../docs/protocol/xsp.md");

/// The PDU of these bytes, after its check and our own encoding of it.
fn pdu(bytes: &[u8]) -> (Pdu, &[u8]) {
    let header = Header::parse(bytes.first_chunk().unwrap()).unwrap();
    let (bytes, rest) = bytes.split_at(HEADER_LEN + header.len as usize);
    assert_eq!(header.flags & FLAG_CHECK, FLAG_CHECK);
    let mut unchecked = bytes.to_vec();
    unchecked[24..28].fill(0);
    assert_eq!(crc32c(&unchecked), header.chan, "type {}", header.kind);
    let pdu = Pdu::parse(header.kind, &bytes[HEADER_LEN..]).unwrap();
    unchecked[1] &= !FLAG_CHECK;
    assert_eq!(pdu.emit(header.session, 0, header.seq), unchecked);
    (pdu, rest)
}

fn only(name: &str) -> Pdu {
    let bytes = bytes(PAGE, name);
    let (pdu, rest) = pdu(&bytes);
    assert!(rest.is_empty(), "{name}");
    pdu
}

#[test]
fn the_exchange_of_the_page_is_what_this_build_reads_and_writes() {
    assert_eq!(only("auth-type"), only("auth-type-answer"));
    let Pdu::SessOpen(open) = only("sess-open") else {
        panic!("no SESS_OPEN");
    };
    assert!(open.resumable && open.hops[0].flags.last);
    assert_eq!(
        (open.hops[0].endpoint.port, open.firsts[0].credit),
        (27_400, 65_536)
    );
    let Pdu::SessAck(ack) = only("sess-ack") else {
        panic!("no SESS_ACK");
    };
    assert!(ack.resumable && ack.firsts && ack.ticket.is_some());
    assert!(matches!(
        only("conn-ack"),
        Pdu::ConnAck {
            status: 0,
            credit: 5_120,
            ..
        }
    ));
    let Pdu::SlabAnnounce(slab) = only("slab-inline") else {
        panic!("no slab");
    };
    assert_eq!(slab.inline, b"ping\n");
    assert_eq!(slab.records[0].crc, Some(crc32c(b"ping\n")));
    let Pdu::SlabAnnounce(slab) = only("slab-fin") else {
        panic!("no slab");
    };
    assert!(slab.records[0].fin && slab.records[0].offset == 5);
    assert!(matches!(only("slab-ack"), Pdu::SlabAck(ack) if ack.next.0 == 2));
    assert!(matches!(
        only("sess-close"),
        Pdu::SessClose { abort: false, .. }
    ));
}

#[test]
fn the_proof_of_the_page_follows_from_its_key() {
    let (opener, acceptor) = (bytes(PAGE, "key-opener"), bytes(PAGE, "key-acceptor"));
    let token = |bytes: &[u8]| {
        let (_, rest) = pdu(bytes);
        let (Pdu::AuthToken { token, .. }, []) = pdu(rest) else {
            panic!("no token");
        };
        token
    };
    let (theirs, ours) = (token(&opener), token(&acceptor));
    let session = Header::parse(opener.first_chunk().unwrap())
        .unwrap()
        .session;
    let key: Vec<u8> = (0..32).collect();
    let mut mac: Hmac<Sha256> = Hmac::new_from_slice(&key).unwrap();
    for part in [
        &b"haul-xsp opener"[..],
        &session.0,
        &theirs[..32],
        &ours,
        &[0; 32],
        &Sha256::digest(&opener),
        &Sha256::digest(&acceptor),
    ] {
        mac.update(part);
    }
    assert_eq!(&theirs[32..], b"site-b");
    let Pdu::AuthToken { step: 3, token } = only("key-proof") else {
        panic!("no proof");
    };
    assert_eq!(token, mac.finalize().into_bytes().to_vec());
}

#[test]
fn pdus_are_those_of_the_first_release() {
    let made: Vec<_> = pdus::all()
        .into_iter()
        .map(|(name, pdu)| {
            let octets = pdu.emit(SessionId([7; 16]), 0, 9);
            let read = Pdu::parse(pdu.kind(), &octets[HEADER_LEN..]);
            assert_eq!(read, Ok(pdu), "{name}");
            (name, octets)
        })
        .collect();
    recorded::assert_recorded("xsp", &made);
}

#[test]
fn elements_and_optional_pdus_of_a_newer_version_are_ignored_critical_ones_refused() {
    for (name, pdu) in pdus::all() {
        // Their bodies end with bytes of any content.
        if matches!(pdu, Pdu::AuthToken { .. } | Pdu::AppData { .. }) {
            continue;
        }
        let octets = pdu.emit(SessionId([7; 16]), 0, 9);
        let with = |element: [u8; 8]| [&octets[HEADER_LEN..], &element].concat();
        let newer = with([0x3f, 0xff, 0, 1, 9, 0, 0, 0]);
        assert_eq!(Pdu::parse(pdu.kind(), &newer), Ok(pdu.clone()), "{name}");
        let critical = with([0xbf, 0xff, 0, 1, 9, 0, 0, 0]);
        let refused = Pdu::parse(pdu.kind(), &critical);
        assert!(
            matches!(refused, Err(ParseError::Unknown { .. })),
            "{name}: {refused:?}"
        );
    }
}
