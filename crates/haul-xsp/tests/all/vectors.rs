//! Test vectors: from an independent encoder of version 2, and from the original implementation of
//! versions 0 and 1.

#![expect(
    clippy::unwrap_used,
    reason = "what is not there where it must be fails the test"
)]

use haul_xsp::v1::{self, Block, Kind, MessageV0, Parsed};
use haul_xsp::wire::{
    Address, Endpoint, HEADER_LEN, Header, HopFlags, Key, ParseError, Pdu, Proto, Record, SlabAck,
    SlabAnnounce, detect,
};
use haul_xsp::{ConnId, SessionId, SlabSeq};

const SESSION: SessionId = SessionId([
    0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
]);

/// The bytes of the PDU of this name.
fn octets(file: &str, name: &str) -> Vec<u8> {
    let part = file
        .split("PDU ")
        .find(|part| part.lines().next() == Some(name));
    let words = part
        .unwrap_or_else(|| panic!("no {name}"))
        .split_once('\n')
        .unwrap()
        .1;
    let digits: Vec<u8> = words.bytes().filter(u8::is_ascii_hexdigit).collect();
    let octet = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(octet).collect()
}

fn v2(name: &str) -> (Vec<u8>, Header, Pdu) {
    let octets = octets(include_str!("../data/v2.txt"), name);
    let header = Header::parse(octets.first_chunk().unwrap()).unwrap();
    assert_eq!(header.len as usize, octets.len() - HEADER_LEN);
    let pdu = Pdu::parse(header.kind, &octets[HEADER_LEN..]).unwrap();
    (octets, header, pdu)
}

/// Means `pdu`, and is written like that.
fn is(name: &str, seq: u32, pdu: &Pdu) {
    let (octets, header, parsed) = v2(name);
    assert_eq!((header.session, header.seq, header.chan), (SESSION, seq, 0));
    assert_eq!(parsed, *pdu);
    assert_eq!(pdu.emit(SESSION, 0, seq), octets, "{name}");
}

#[test]
fn an_opening_of_version_2_is_read_and_written() {
    let (octets, header, pdu) = v2("SESS_OPEN");
    let Pdu::SessOpen(open) = &pdu else {
        panic!("{pdu:?}");
    };
    assert!(open.resumable && !open.end_to_end && !open.dry_run);
    assert_eq!(
        (open.hop_index, open.max_ctrl, open.keepalive_ms),
        (0, 1 << 20, 10_000)
    );
    let [first, last] = open.hops.as_slice() else {
        panic!("{:?}", open.hops);
    };
    assert_eq!(
        first.endpoint,
        Endpoint {
            address: Address::Name("gw1".to_owned()),
            port: 5006
        }
    );
    assert_eq!(
        first.flags,
        HopFlags {
            gateway: true,
            ..HopFlags::default()
        }
    );
    let offers: Vec<_> = first
        .offers
        .iter()
        .map(|o| (o.proto, o.preference, o.params.max_msg))
        .collect();
    assert_eq!(
        offers,
        [(Proto::Tcp, 10, None), (Proto::IwarpTcp, 20, Some(1 << 20))]
    );
    assert!(last.flags.last && last.endpoint.port == 7 && last.depth == 1);
    assert_eq!(pdu.emit(SESSION, 0, 1), octets);
    assert_eq!(header.seq, 1);
}

#[test]
fn slabs_of_version_2_are_read_and_written() {
    let record = Record {
        conn: ConnId(5),
        offset: 1 << 32,
        len: 4_096,
        crc: Some(0xe306_9283),
        fin: false,
        reset: None,
        key: Key {
            stag: 0x1122_3300,
            to: 0x2000,
        },
    };
    let announce = SlabAnnounce {
        seq: SlabSeq(7),
        last: false,
        grant: false,
        t_us: 0,
        records: vec![record],
        inline: Vec::new(),
    };
    is("SLAB_ANNOUNCE", 9, &Pdu::SlabAnnounce(announce));
    let ack = SlabAck {
        next: SlabSeq(8),
        window_bytes: 3 << 20,
        window_slabs: 3,
        others: Vec::new(),
    };
    is("SLAB_ACK", 4, &Pdu::SlabAck(ack));
    is(
        "PING",
        2,
        &Pdu::Ping {
            t_us: 0x0102_0304_0506_0708,
            echo_us: 0,
        },
    );
}

fn v1_message(name: &str) -> (Vec<u8>, v1::Message) {
    let octets = octets(include_str!("../data/v1.txt"), name);
    let Ok(Parsed::Whole(message, len)) = v1::Message::parse(&octets) else {
        panic!("{name}: {:?}", v1::Message::parse(&octets));
    };
    assert_eq!(len, octets.len());
    assert_eq!(message.session, SESSION);
    (octets, message)
}

#[test]
fn messages_of_version_1_are_read_and_written_octet_by_octet() {
    for (name, kind) in [
        ("v1 SESS_OPEN", Kind::SessOpen),
        ("v1 AUTH_TYPE", Kind::AuthType),
        ("v1 AUTH_TOKEN", Kind::AuthToken),
        ("v1 NACK", Kind::SessNack),
        ("v1 DATA_CHAN", Kind::DataChan),
        ("v1 APP_DATA opt 0x40", Kind::AppData),
        ("v1 SLAB_INFO", Kind::SlabInfo),
        ("v1 SESS_ACK", Kind::SessAck),
    ] {
        let (octets, message) = v1_message(name);
        assert_eq!(message.kind, kind, "{name}");
        assert_eq!(message.emit(), octets, "{name}");
        for len in 0..octets.len() {
            let Ok(Parsed::Need(need)) = v1::Message::parse(&octets[..len]) else {
                panic!("{name}: {len} octets");
            };
            assert!(
                len < need && need <= octets.len(),
                "{name}: {len} octets need {need}"
            );
        }
    }
}

#[test]
fn blocks_of_version_1_mean_what_they_say() {
    let block = |name| v1_message(name).1.block.unwrap();
    let Block::Hops {
        session,
        flags: 0,
        hops,
    } = block("v1 SESS_OPEN")
    else {
        panic!("no hops");
    };
    assert_eq!(session, SESSION);
    let hops: Vec<_> = hops
        .iter()
        .map(|hop| (hop.id.as_str(), hop.protocol.as_str(), hop.children))
        .collect();
    assert_eq!(hops, [("gw1/5006", "tcp", 1), ("dst/7", "", 0)]);
    assert_eq!(block("v1 AUTH_TYPE"), Block::AuthType("ANON".to_owned()));
    assert_eq!(block("v1 AUTH_TOKEN"), Block::AuthToken(b"alice".to_vec()));
    assert_eq!(block("v1 NACK"), Block::Nack("no".to_owned()));
    let Block::Slab {
        seq: 7,
        length: 0x200,
        records,
    } = block("v1 SLAB_INFO")
    else {
        panic!("no slab");
    };
    let [record] = records.as_slice() else {
        panic!("{records:?}");
    };
    assert_eq!(
        (record.offset, record.len, record.crc),
        (0x100, 0x200, 0x1234_5678)
    );
    assert_eq!(
        record.key,
        Key {
            stag: 0xaabb_cc00,
            to: 0x7f00_1122_3344
        }
    );
    assert_eq!(record.size, 0x1000);
}

#[test]
fn what_the_original_overwrites_is_refused() {
    let two = octets(include_str!("../data/v1.txt"), "v1 two blocks");
    assert_eq!(v1::Message::parse(&two), Err(ParseError::TooMany("blocks")));
}

#[test]
fn pings_have_version_0_and_versions_are_told_apart() {
    let ping = octets(include_str!("../data/v1.txt"), "v0 PING");
    let Ok(Parsed::Whole(message, 20)) = MessageV0::parse(&ping) else {
        panic!("no ping");
    };
    assert_eq!((message.kind, message.session), (Kind::Ping, SESSION));
    assert_eq!(message.emit(), ping);
    assert_eq!(
        (detect(0), detect(1), detect(2), detect(3), detect(b'G')),
        (Some(0), Some(1), Some(2), None, None)
    );
    assert_eq!(v1::Message::parse(&ping), Err(ParseError::Version(0)));
}

#[test]
fn counts_that_lie_are_refused() {
    // The original reads as many entries as the count states.
    let mut slab = octets(include_str!("../data/v1.txt"), "v1 SLAB_INFO");
    slab[v1::HEADER_LEN + v1::BLOCK_HEADER_LEN + 11] = 200;
    assert_eq!(
        v1::Message::parse(&slab),
        Err(ParseError::Value("number of records"))
    );
    let mut token = octets(include_str!("../data/v1.txt"), "v1 AUTH_TOKEN");
    token[v1::HEADER_LEN + v1::BLOCK_HEADER_LEN] = 0xff;
    assert_eq!(v1::Message::parse(&token), Err(ParseError::Short("block")));
}
