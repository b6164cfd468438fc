//! Round trips of every header, and parsers fed with arbitrary bytes.

use haul_iwarp::wire::Features;
use haul_iwarp::wire::ddp::{Header, Model};
use haul_iwarp::wire::hello::{Hello, Terms};
use haul_iwarp::wire::mpa::{
    CAPABILITIES_LEN, Capabilities, Enhanced, FRAME_LEN, FrameHead, FrameKind, PRIVATE_DATA_MAX,
    RtrKinds, marker, mulpdu, pad_len, parse_marker,
};
use haul_iwarp::wire::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest, TERMINATE_LEN_MAX, Terminate,
};
use haul_iwarp::{Stag, TermCode};
use proptest::prelude::*;

fn headers() -> impl Strategy<Value = Header> {
    let tagged = (any::<u32>(), any::<u64>()).prop_map(|(stag, to)| {
        let stag = Stag(stag);
        Model::Tagged { stag, to }
    });
    let untagged =
        any::<[u32; 4]>().prop_map(|[ulp, qn, msn, mo]| Model::Untagged { ulp, qn, msn, mo });
    (any::<bool>(), any::<u8>(), prop_oneof![tagged, untagged]).prop_map(
        |(last, control, model)| Header {
            last,
            control,
            model,
        },
    )
}

fn read_requests() -> impl Strategy<Value = ReadRequest> {
    (any::<[u32; 3]>(), any::<[u64; 2]>()).prop_map(|(words, offsets)| ReadRequest {
        sink: Stag(words[0]),
        sink_to: offsets[0],
        len: words[1],
        source: Stag(words[2]),
        source_to: offsets[1],
    })
}

fn atomic_ops() -> impl Strategy<Value = AtomicOp> {
    prop_oneof![
        any::<[u64; 2]>().prop_map(|[add, mask]| AtomicOp::FetchAdd { add, mask }),
        any::<[u64; 4]>().prop_map(|[swap, swap_mask, compare, compare_mask]| {
            AtomicOp::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            }
        }),
    ]
}

/// RFC 7306 §5.1.1, bit by bit.
fn add_bit_by_bit(original: u64, add: u64, mask: u64) -> u64 {
    let (mut result, mut carry) = (0, 0);
    for bit in 0..64 {
        let sum = (original >> bit & 1) + (add >> bit & 1) + carry;
        result |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    result
}

fn features([atomics, immediate, send_immediate, close_notice, no_crc]: [bool; 5]) -> Features {
    Features {
        atomics,
        immediate,
        send_immediate,
        close_notice,
        no_crc,
    }
}

proptest! {
    #[test]
    fn ddp_headers_come_back(header in headers()) {
        let mut octets = [0xff; 18];
        let len = header.emit(&mut octets);
        prop_assert_eq!(len, header.wire_len());
        prop_assert_eq!(len, Header::len_of(octets[0]));
        prop_assert_eq!(Header::parse(&octets[..len]), Ok(header));
        for short in 0..len {
            prop_assert!(Header::parse(&octets[..short]).is_err());
        }
    }

    #[test]
    fn reserved_bits_of_ddp_and_rdmap_are_ignored(header in headers(), bits in any::<u8>()) {
        let mut octets = [0; 18];
        let len = header.emit(&mut octets);
        octets[0] ^= bits & 0x3c;
        prop_assert_eq!(Header::parse(&octets[..len]), Ok(header));
        let control = Opcode::Send.emit() ^ bits & 0x30;
        prop_assert_eq!(Opcode::parse(control), Ok(Opcode::Send));
    }

    #[test]
    fn opcodes_come_back(control in any::<u8>()) {
        if let Ok(opcode) = Opcode::parse(control) {
            prop_assert_eq!(opcode.emit(), control & 0xcf);
        }
    }

    #[test]
    fn read_requests_come_back(request in read_requests()) {
        prop_assert_eq!(ReadRequest::parse(&request.emit()), Ok(request));
        let half = request.len / 2;
        let left = request.advanced(half);
        prop_assert_eq!(left.len, request.len - half);
        prop_assert_eq!(left.sink_to.wrapping_sub(request.sink_to), u64::from(half));
    }

    #[test]
    fn atomics_come_back(id in any::<u32>(), stag in any::<u32>(), to in any::<u64>(), op in atomic_ops()) {
        let request = AtomicRequest { id, stag: Stag(stag), to, op };
        prop_assert_eq!(AtomicRequest::parse(&request.emit()), Ok(request));
        let response = AtomicResponse { id, original: to };
        prop_assert_eq!(AtomicResponse::parse(&response.emit()), Ok(response));
    }

    #[test]
    fn masked_addition_is_that_of_the_rfc(
        original in any::<u64>(),
        add in any::<u64>(),
        mask in prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), any::<u64>()],
    ) {
        let op = AtomicOp::FetchAdd { add, mask };
        prop_assert_eq!(op.apply(original), add_bit_by_bit(original, add, mask));
        if mask == 0 {
            prop_assert_eq!(op.apply(original), original.wrapping_add(add));
        }
    }

    #[test]
    fn terminates_come_back(
        (layer, etype) in prop_oneof![(Just(0_u8), 0_u8..3), (Just(1), 0_u8..4), (Just(2), 0_u8..1)],
        code in any::<u8>(),
        header in prop::option::of(headers()),
        len in any::<u16>(),
        read in prop::option::of(read_requests()),
    ) {
        let octets = header.map(|header| {
            let mut octets = [0; 18];
            header.emit(&mut octets);
            octets
        });
        let terminate = Terminate {
            code: TermCode::new(layer, etype, code),
            segment_len: octets.map(|_| len),
            header: octets,
            read: read.filter(|_| octets.is_some()),
        };
        let mut out = [0xff; TERMINATE_LEN_MAX];
        let len = terminate.emit(&mut out);
        prop_assert_eq!(Terminate::parse(&out[..len]), terminate);
    }

    #[test]
    fn a_terminate_is_never_refused(octets in prop::collection::vec(any::<u8>(), 0..80)) {
        let terminate = Terminate::parse(&octets);
        prop_assert!(!terminate.code.to_string().is_empty());
        let mut out = [0; TERMINATE_LEN_MAX];
        terminate.emit(&mut out);
    }

    #[test]
    fn frames_come_back(
        request in any::<bool>(),
        flags in any::<[bool; 4]>(),
        revision in 1_u8..=2,
        private_len in 4_u16..=512,
    ) {
        let [markers, crc, reject, enhanced] = flags;
        let kind = if request { FrameKind::Request } else { FrameKind::Reply };
        let head = FrameHead {
            kind,
            markers,
            crc,
            reject: reject && !request,
            enhanced: enhanced && revision == 2,
            revision,
            private_len,
        };
        prop_assert_eq!(FrameHead::parse(&head.emit(), kind), Ok(head));
        prop_assert!(usize::from(private_len) <= PRIVATE_DATA_MAX);
    }

    #[test]
    fn any_frame_is_read_or_refused(octets in any::<[u8; FRAME_LEN]>(), private in prop::collection::vec(any::<u8>(), 0..30)) {
        let mut keyed = octets;
        keyed[..16].copy_from_slice(b"MPA ID Req Frame");
        if let Ok(head) = FrameHead::parse(&keyed, FrameKind::Request) {
            prop_assert!(usize::from(head.private_len) <= PRIVATE_DATA_MAX);
        }
        prop_assert!(FrameHead::parse(&octets, FrameKind::Request).is_err());
        if let Ok((enhanced, rest)) = Enhanced::parse(&private) {
            prop_assert!(enhanced.ird <= 0x3fff && enhanced.ord <= 0x3fff);
            prop_assert_eq!(rest.len() + 4, private.len());
        }
    }

    #[test]
    fn enhanced_data_and_capabilities_come_back(
        kinds in prop::option::of(any::<[bool; 3]>()),
        ird in 0_u16..0x4000,
        ord in 0_u16..0x4000,
        bits in any::<[bool; 5]>(),
        fpdu_units in any::<u16>(),
    ) {
        let peer_to_peer = kinds.map(|[send, write, read]| RtrKinds { send, write, read });
        let enhanced = Enhanced { peer_to_peer, ird, ord };
        let octets = enhanced.emit();
        prop_assert_eq!(Enhanced::parse(&octets), Ok((enhanced, &[][..])));
        let capabilities = Capabilities { features: features(bits), fpdu_units };
        let octets = capabilities.emit();
        prop_assert_eq!(Capabilities::parse(&octets), (Some(capabilities), &[][..]));
        let whole = [&b"own"[..], &octets].concat();
        prop_assert_eq!(Capabilities::parse(&whole), (Some(capabilities), &b"own"[..]));
        let short = &octets[..CAPABILITIES_LEN - 1];
        prop_assert_eq!(Capabilities::parse(short), (None, short));
    }

    #[test]
    fn hellos_come_back(
        kind in 0..5,
        bits in any::<[bool; 5]>(),
        reads in any::<[u16; 2]>(),
        segment_max in any::<u32>(),
        private in prop::collection::vec(any::<u8>(), 0..=PRIVATE_DATA_MAX),
        received in any::<u64>(),
        flip in any::<prop::sample::Index>(),
    ) {
        let terms = Terms {
            features: features(bits),
            ird: reads[0],
            ord: reads[1],
            segment_max,
            private: &private,
        };
        let hello = match kind {
            0 => Hello::Request(terms),
            1 => Hello::Reply(terms),
            2 => Hello::Refusal(terms),
            3 => Hello::Ready,
            _ => Hello::Finish { received },
        };
        let mut octets = Vec::new();
        hello.emit(&mut octets);
        prop_assert!(Hello::is_hello(&octets));
        prop_assert_eq!(Hello::parse(&octets), Ok(hello));
        prop_assert!(Header::parse(&octets).is_err(), "a hello is no segment");
        let at = flip.index(octets.len());
        octets[at] ^= 0x40;
        prop_assert!(Hello::parse(&octets).is_err());
    }

    #[test]
    fn fpdus_fill_words_and_fit_segments(ulpdu in 0_u32..70_000, emss in 0_u32..100_000, markers in any::<bool>()) {
        let pad = pad_len(ulpdu);
        prop_assert!(pad < 4 && (2 + ulpdu + pad).is_multiple_of(4));
        let longest = mulpdu(emss, markers);
        let extra = if markers { 4 * emss.div_ceil(512) } else { 0 };
        let fpdu = 2 + longest + pad_len(longest) + 4 + extra;
        prop_assert!(fpdu <= emss || longest == 128);
        prop_assert!((128..=64_768).contains(&longest));
    }

    #[test]
    fn markers_come_back(offset in any::<u16>()) {
        prop_assert_eq!(parse_marker(marker(offset)), offset & !3);
    }
}
