use proptest::prelude::*;

use super::*;

/// A super-packet as the kernel hands it over, and its parts.
struct Built {
    bytes: Vec<u8>,
    packet: Packet,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    v6: bool,
    udp: bool,
    segment_bytes: u16,
    payload_len: usize,
    flags: u8,
}

const SEQUENCE: u32 = 0xffff_fff0;

fn build(shape: Shape) -> Built {
    let ip_len = if shape.v6 { 40 } else { 20 };
    let transport_len = if shape.udp { 8 } else { 32 };
    let total = ip_len + transport_len + shape.payload_len;
    let mut ip = vec![0_u8; total];
    if shape.v6 {
        ip[0] = 0x60;
        put_u16(&mut ip, 4, low_u16(total - 40));
        ip[6] = if shape.udp { 17 } else { 6 };
        ip[7] = 64;
        for (i, byte) in ip[8..40].iter_mut().enumerate() {
            *byte = u8::try_from(i * 7).unwrap();
        }
    } else {
        ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 0, 0, 0]);
        ip[9] = if shape.udp { 17 } else { 6 };
        put_u16(&mut ip, 2, low_u16(total));
        ip[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
    }
    let transport = &mut ip[ip_len..];
    put_u16(transport, 0, 4000);
    put_u16(transport, 2, 5000);
    if shape.udp {
        put_u16(transport, 4, low_u16(8 + shape.payload_len));
    } else {
        transport[4..8].copy_from_slice(&SEQUENCE.to_be_bytes());
        transport[12] = 8 << 4;
        transport[13] = shape.flags;
    }
    for (i, byte) in transport[transport_len..].iter_mut().enumerate() {
        *byte = u8::try_from(i * 31 % 251).unwrap();
    }
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CHECKSUM,
        gso_type: match (shape.udp, shape.v6) {
            (true, _) => VnetHeader::GSO_UDP_L4,
            (false, true) => VnetHeader::GSO_TCPV6,
            (false, false) => VnetHeader::GSO_TCPV4,
        },
        header_len: low_u16(ip_len + transport_len),
        gso_size: shape.segment_bytes,
        checksum_start: low_u16(ip_len),
        checksum_offset: if shape.udp { 6 } else { 16 },
    };
    let bytes = [&vnet.emit()[..], &ip].concat();
    Built {
        packet: Packet::parse(&bytes).unwrap(),
        bytes,
    }
}

/// A run of segments, whole.
fn run(built: &Built, first: u16, end: u16) -> Vec<u8> {
    let mut head = [0; HEAD_MAX];
    let cut = built.packet.cut(&built.bytes, first, end, &mut head);
    [&head[..cut.head_len], &built.bytes[cut.payload]].concat()
}

/// The checksums of a packet, recomputed from its bytes the way a receiver does: all ones each.
fn checksums(bytes: &[u8]) -> Vec<u16> {
    let vnet = VnetHeader::parse(bytes.first_chunk().unwrap());
    let mut ip = bytes[VNET_HEADER_LEN..].to_vec();
    if vnet.flags & VnetHeader::NEEDS_CHECKSUM != 0 {
        complete_checksum(&mut ip, &vnet);
    }
    let (header_len, protocol, addresses) = match ip[0] >> 4 {
        4 => (20, ip[9], 12..20),
        _ => (40, ip[6], 8..40),
    };
    let transport = Sum::default()
        .add(&ip[addresses])
        .add(&[0, protocol])
        .add(&low_u16(ip.len() - header_len).to_be_bytes())
        .add(&ip[header_len..])
        .folded();
    match ip[0] >> 4 {
        4 => vec![Sum::default().add(&ip[..20]).folded(), transport],
        _ => vec![transport],
    }
}

fn shapes() -> impl Iterator<Item = Shape> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(v6, udp)| Shape {
            v6,
            udp,
            segment_bytes: 1000,
            payload_len: 4500,
            flags: 0x99,
        })
}

#[test]
fn a_super_packet_stands_for_its_wire_packets() {
    for shape in shapes() {
        let built = build(shape);
        let head = built.packet.payload_at;
        assert_eq!(built.packet.segments(), 5);
        let sizes: Vec<u32> = (0..5).map(|i| built.packet.wire_bytes(i)).collect();
        let full = u32::try_from(head).unwrap() + 1000;
        assert_eq!(sizes, [full, full, full, full, full - 500], "{shape:?}");
    }
}

#[test]
fn every_run_has_right_checksums_lengths_and_payload() {
    for shape in shapes() {
        let built = build(shape);
        let start = VNET_HEADER_LEN + built.packet.payload_at;
        for (first, end) in (0..5).flat_map(|first| (first + 1..=5).map(move |end| (first, end))) {
            let bytes = run(&built, first, end);
            assert!(
                checksums(&bytes).iter().all(|&sum| sum == 0xffff),
                "{shape:?} {first}..{end}"
            );
            let reparsed = Packet::parse(&bytes).unwrap();
            assert_eq!(reparsed.segments(), end - first);
            let from = start + usize::from(first) * 1000;
            let to = (start + usize::from(end) * 1000).min(built.bytes.len());
            assert_eq!(bytes[start..], built.bytes[from..to]);
            let ip = &bytes[VNET_HEADER_LEN..];
            let (length_at, extra) = if shape.v6 { (4, 40) } else { (2, 0) };
            let length = usize::from(u16::from_be_bytes([ip[length_at], ip[length_at + 1]]));
            assert_eq!(length + extra, ip.len());
        }
    }
}

#[test]
fn ipv4_identification_counts_segments() {
    let built = build(shapes().next().unwrap());
    let ids: Vec<u16> = (0..5)
        .map(|i| {
            let bytes = run(&built, i, i + 1);
            u16::from_be_bytes([bytes[VNET_HEADER_LEN + 4], bytes[VNET_HEADER_LEN + 5]])
        })
        .collect();
    assert_eq!(ids, [0xfffe, 0xffff, 0, 1, 2]);
}

#[test]
fn tcp_flags_stay_on_the_segments_that_they_belong_to() {
    let shape = shapes().next().unwrap();
    let built = build(shape);
    let transport = |first, end| run(&built, first, end)[VNET_HEADER_LEN + 20..].to_vec();
    let flags = |first, end| transport(first, end)[TCP_FLAGS_AT];
    assert_eq!(flags(0, 5), 0x99);
    assert_eq!(
        flags(0, 2),
        0x90,
        "CWR stays first; FIN and PSH go to the end"
    );
    assert_eq!(flags(1, 4), 0x10);
    assert_eq!(flags(4, 5), 0x19);
    let sequence =
        |first| u32::from_be_bytes(transport(first, first + 1)[4..8].try_into().unwrap());
    assert_eq!(sequence(0), SEQUENCE);
    assert_eq!(
        sequence(3),
        SEQUENCE.wrapping_add(3000),
        "sequence numbers wrap"
    );
}

#[test]
fn a_single_segment_is_no_super_packet_any_more() {
    for shape in shapes() {
        let built = build(shape);
        let vnet = VnetHeader::parse(run(&built, 2, 3).first_chunk().unwrap());
        assert_eq!(
            (vnet.gso_type, vnet.gso_size, vnet.flags),
            (0, 0, VnetHeader::NEEDS_CHECKSUM)
        );
        let vnet = VnetHeader::parse(run(&built, 2, 4).first_chunk().unwrap());
        assert_eq!(
            (vnet.gso_type, vnet.gso_size),
            (built.packet.vnet.gso_type, 1000)
        );
    }
}

#[test]
fn a_wire_packet_passes_as_it_is() {
    for shape in shapes() {
        let mut bytes = build(shape).bytes;
        bytes[1..6].fill(0);
        let packet = Packet::parse(&bytes).unwrap();
        let built = Built {
            bytes: bytes.clone(),
            packet,
        };
        assert_eq!(packet.segments(), 1);
        assert_eq!(packet.wire_bytes(0) as usize, bytes.len() - VNET_HEADER_LEN);
        assert_eq!(run(&built, 0, 1), bytes);
    }
}

#[test]
fn damage_is_found_by_the_checksum_unless_configured_otherwise() {
    for (shape, random) in shapes().zip([3, 1_000_000, 77, u64::MAX]) {
        let built = build(shape);
        let whole = run(&built, 2, 3);
        let mut bytes = whole.clone();
        Packet::damage(&mut bytes, random, false);
        assert_eq!(
            bytes[..VNET_HEADER_LEN],
            [0; VNET_HEADER_LEN],
            "the kernel must check for itself"
        );
        assert_ne!(checksums(&bytes).last(), Some(&0xffff));

        let mut bytes = whole.clone();
        Packet::damage(&mut bytes, random, true);
        assert_eq!(checksums(&bytes).last(), Some(&0xffff));
        let start = VNET_HEADER_LEN + built.packet.payload_at;
        assert_eq!(bytes[..start], whole[..start]);
        let flipped: u32 = bytes
            .iter()
            .zip(&whole)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!(flipped, 1);
    }
}

#[test]
fn damage_to_a_bare_acknowledgement_is_found_too() {
    let shape = Shape {
        v6: false,
        udp: false,
        segment_bytes: 1000,
        payload_len: 0,
        flags: 0x10,
    };
    let mut bytes = build(shape).bytes;
    bytes[1..6].fill(0);
    let whole = bytes.clone();
    Packet::damage(&mut bytes, 12345, true);
    assert_eq!(bytes, whole, "there is no payload to damage unseen");
    Packet::damage(&mut bytes, 12345, false);
    assert_ne!(checksums(&bytes).last(), Some(&0xffff));
}

#[test]
fn contradictions_are_refused() {
    let good = build(shapes().next().unwrap()).bytes;
    let broken = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Packet::parse(&bytes)
    };
    assert_eq!(Packet::parse(&[]), Err(Malformed::Short));
    assert_eq!(Packet::parse(&good[..25]), Err(Malformed::Short));
    assert_eq!(broken(VNET_HEADER_LEN, 0x55), Err(Malformed::Version));
    assert_eq!(
        broken(VNET_HEADER_LEN, 0x42),
        Err(Malformed::Short),
        "an IPv4 header of 8 bytes"
    );
    assert_eq!(
        broken(0, 0),
        Err(Malformed::Offload),
        "a super-packet without checksum offload"
    );
    assert_eq!(broken(1, VnetHeader::GSO_TCPV6), Err(Malformed::Offload));
    assert_eq!(broken(1, 99), Err(Malformed::Offload));
    assert_eq!(
        broken(6, 2),
        Err(Malformed::Offload),
        "a checksum that starts inside the IP header"
    );
    assert_eq!(
        broken(7, 0xff),
        Err(Malformed::Offload),
        "a checksum behind the end"
    );
    assert_eq!(
        broken(VNET_HEADER_LEN + 32, 0),
        Err(Malformed::Short),
        "a TCP header of 0 bytes"
    );
    let mut bytes = good;
    bytes[4..6].fill(0);
    assert_eq!(
        Packet::parse(&bytes),
        Err(Malformed::Offload),
        "segments of 0 bytes"
    );
}

/// Bytes that look enough like a packet to get past the first checks.
fn packet_like() -> impl Strategy<Value = Vec<u8>> {
    let start = (
        prop::sample::select(vec![0_u8, 1, 2, 3]),
        prop::sample::select(vec![0_u8, 1, 4, 5, 0x81, 3]),
        prop::sample::select(vec![0_u16, 1, 7, 500, 1448, 65_535]),
        prop::sample::select(vec![0_u8, 19, 20, 24, 40, 48, 200]),
        prop::sample::select(vec![6_u8, 16, 0, 255]),
        prop::sample::select(vec![0x45_u8, 0x4f, 0x44, 0x60, 0x6f, 0x00]),
    );
    (start, prop::collection::vec(any::<u8>(), 0..3000)).prop_map(|(start, tail)| {
        let (flags, gso_type, gso_size, checksum_start, checksum_offset, version) = start;
        let vnet = VnetHeader {
            flags,
            gso_type,
            header_len: 0,
            gso_size,
            checksum_start: checksum_start.into(),
            checksum_offset: checksum_offset.into(),
        };
        [&vnet.emit()[..], &[version], &tail].concat()
    })
}

#[test]
fn only_ecn_capable_packets_are_marked_and_their_header_stays_valid() {
    for (v6, ecn, expected) in [
        (false, 0b10, 0b11),
        (false, 0b01, 0b11),
        (false, 0, 0),
        (true, 0b10, 0b11),
        (true, 0, 0),
    ] {
        let shape = Shape {
            v6,
            udp: true,
            segment_bytes: 1000,
            payload_len: 2500,
            flags: 0,
        };
        let mut bytes = build(shape).bytes;
        let ip = &mut bytes[VNET_HEADER_LEN..];
        // A class of service beside it, which must stay.
        let class = 0b1011_1000 | ecn;
        if v6 {
            ip[..2].copy_from_slice(&[0x60 | class >> 4, class << 4]);
        } else {
            ip[1] = class;
            write_ipv4_checksum(ip);
        }
        let before = bytes.clone();
        Packet::mark_congestion(&mut bytes);
        let ip = &bytes[VNET_HEADER_LEN..];
        let marked = if v6 {
            assert_eq!(bytes[VNET_HEADER_LEN + 2..], before[VNET_HEADER_LEN + 2..]);
            ip[0] << 4 | ip[1] >> 4
        } else {
            let sum = Sum::default().add(&ip[..20]).folded();
            assert_eq!(sum, 0xffff, "the checksum is right");
            ip[1]
        };
        assert_eq!(marked, 0b1011_1000 | expected, "v6: {v6}, {ecn:02b}");
        assert!(expected == 0b11 || bytes == before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_bytes_from_a_device_make_the_cutter_panic(
        mut bytes in prop_oneof![packet_like(), prop::collection::vec(any::<u8>(), 0..200)],
        random: u64,
        undetected: bool,
    ) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let built = Built { packet, bytes: bytes.clone() };
            let segments = packet.segments();
            prop_assert!(segments >= 1);
            let total: usize = (0..segments).map(|i| run(&built, i, i + 1).len()).sum();
            prop_assert!(total >= bytes.len());
            for end in [1, segments.div_ceil(2), segments] {
                run(&built, 0, end);
                run(&built, end - 1, segments);
            }
        }
        Packet::mark_congestion(&mut bytes);
        Packet::damage(&mut bytes, random, undetected);
    }
}
