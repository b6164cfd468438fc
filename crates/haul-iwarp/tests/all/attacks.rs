//! Every check of the RFCs, attacked: no byte is placed, nothing completes well, and the Terminate
//! is the one that the RFC names, with what it must carry (RFC 5041 §7, RFC 5040 §4.8 and §7, RFC
//! 7306 §8, RFC 5042 §6).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common;
mod terminates;

use common::{End, config, everything, pair, pattern, settle};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::ddp::{Header, Model};
use haul_iwarp::wire::rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest, Terminate};
use haul_iwarp::{
    CompletionKind, Crc32c, Error, Event, Operation, Pd, QpNum, Rights, Stag, State, Status,
    TermCode,
};

const BASE: u64 = 0x10_0000;
const LEN: usize = 4_096;

/// A segment of an attacker.
#[derive(Clone)]
struct Segment {
    first: u8,
    header: Header,
    payload: Vec<u8>,
}

impl Segment {
    fn tagged(opcode: Opcode, stag: u32, to: u64, payload: usize) -> Self {
        let stag = Stag(stag);
        Self::new(
            opcode.emit(),
            Model::Tagged { stag, to },
            vec![0xee; payload],
        )
    }

    fn untagged(opcode: Opcode, qn: u32, msn: u32, mo: u32, payload: Vec<u8>) -> Self {
        let ulp = 0;
        Self::new(opcode.emit(), Model::Untagged { ulp, qn, msn, mo }, payload)
    }

    fn send(msn: u32, mo: u32, payload: usize) -> Self {
        Self::untagged(Opcode::Send, 0, msn, mo, vec![0xee; payload])
    }

    fn invalidating(stag: u32) -> Self {
        let mut segment = Self::untagged(Opcode::SendInvalidate, 0, 1, 0, vec![0xee; 4]);
        if let Model::Untagged { ulp, .. } = &mut segment.header.model {
            *ulp = stag;
        }
        segment
    }

    fn read(msn: u32, source: u32, source_to: u64, len: u32) -> Self {
        let request = ReadRequest {
            sink: Stag(0xaa00),
            sink_to: 0,
            len,
            source: Stag(source),
            source_to,
        };
        Self::untagged(Opcode::ReadRequest, 1, msn, 0, request.emit().to_vec())
    }

    fn atomic(msn: u32, stag: u32, to: u64) -> Self {
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let stag = Stag(stag);
        let request = AtomicRequest {
            id: 1,
            stag,
            to,
            op,
        };
        Self::untagged(Opcode::AtomicRequest, 1, msn, 0, request.emit().to_vec())
    }

    fn new(control: u8, model: Model, payload: Vec<u8>) -> Self {
        let header = Header {
            last: true,
            control,
            model,
        };
        Self {
            first: 0,
            header,
            payload,
        }
    }

    /// Flips bits of DDP's control byte.
    fn flipping(mut self, bits: u8) -> Self {
        self.first = bits;
        self
    }

    fn not_last(mut self) -> Self {
        self.header.last = false;
        self
    }

    fn control(mut self, control: u8) -> Self {
        self.header.control = control;
        self
    }

    fn ulpdu(&self) -> Vec<u8> {
        let mut header = [0; 18];
        let len = self.header.emit(&mut header);
        header[0] ^= self.first;
        [&header[..len], &self.payload].concat()
    }

    fn fpdu(&self) -> Vec<u8> {
        fpdu(&self.ulpdu())
    }
}

fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(ulpdu);
    out.resize(out.len().next_multiple_of(4), 0);
    let mut digest = Crc32c::new();
    digest.update(&out);
    out.extend_from_slice(&digest.to_wire());
    out
}

/// The end that is attacked: memory of every kind, two receives of 64 bytes, IRD 2.
fn victim(strict: bool) -> End {
    let mut responder = common::with(config(), |config| config.strict = strict);
    responder.qp.ird = 2;
    let (mut a, mut b) = pair(config(), responder);
    for (stag, rights) in [
        (0x1000, everything()),
        (0x2000, Rights::REMOTE_READ.with(Rights::LOCAL_WRITE)),
        (0x3000, Rights::REMOTE_WRITE),
        (0x4000, everything()),
        (0x5000, everything()),
        (0x6000, Rights::NONE),
    ] {
        b.ram.register(stag, BASE, pattern(LEN, 1), rights);
    }
    b.ram.stags.get_mut(&Stag(0x4000)).unwrap().pd = Pd(8);
    b.ram.stags.get_mut(&Stag(0x5000)).unwrap().qp = Some(QpNum(2));
    b.ram
        .register(0x7000, u64::MAX - 15, vec![0; 15], everything());
    b.post_receive(1, 64);
    b.post_receive(2, 64);
    settle(&mut a, &mut b);
    b
}

/// The Terminate that ended the connection.
fn terminate(end: &End) -> Terminate {
    let last = end.fpdus.last().expect("a Terminate");
    let len = usize::from(u16::from_be_bytes([last[0], last[1]]));
    let header = Header::parse(&last[2..]).unwrap();
    assert_eq!(Opcode::parse(header.control), Ok(Opcode::Terminate));
    let Model::Untagged {
        qn: 2,
        msn: 1,
        mo: 0,
        ..
    } = header.model
    else {
        panic!("{header:?}");
    };
    Terminate::parse(&last[20..2 + len])
}

/// Feeds the segments; all but the last are good.
fn attack(what: &str, segments: &[Segment], code: TermCode) {
    for strict in [false, true] {
        let mut end = victim(strict);
        let (last, before) = segments.split_last().unwrap();
        for segment in before {
            end.feed(&segment.fpdu());
        }
        assert_eq!(
            end.connection.error(),
            None,
            "{what}: what precedes is good"
        );
        let (memory, placed) = (end.ram.clone(), end.ram.placed);
        end.completions.clear();
        let ulpdu = last.ulpdu();
        end.feed(&fpdu(&ulpdu));
        assert_eq!(
            end.connection.error(),
            Some(Error::PeerMisbehaved(code)),
            "{what}"
        );
        assert_untouched(what, &end, &memory, placed);
        let terminate = terminate(&end);
        assert_eq!(terminate.code, code, "{what}");
        let with_header = code.layer < 2 && code.etype != 0;
        let header_len = Header::len_of(ulpdu[0]);
        let header = terminate.header.map(|header| header[..header_len].to_vec());
        assert_eq!(
            header,
            with_header.then(|| ulpdu[..header_len].to_vec()),
            "{what}"
        );
        let len = with_header.then(|| u16::try_from(ulpdu.len()).unwrap());
        assert_eq!(terminate.segment_len, len, "{what}");
        let is_read = Opcode::parse(last.header.control) == Ok(Opcode::ReadRequest);
        let read = (is_read && (code.layer, code.etype) == (0, 1))
            .then(|| ReadRequest::parse(&last.payload).unwrap());
        assert_eq!(terminate.read, read, "{what}");
        assert_dead(what, end);
    }
}

fn assert_untouched(what: &str, end: &End, memory: &common::Ram, placed: u64) {
    assert_eq!(end.ram.placed, placed, "{what}: nothing is placed");
    assert!(
        end.ram.regions == memory.regions,
        "{what}: memory is as it was"
    );
    assert!(
        end.ram.receives == memory.receives,
        "{what}: receives are as they were"
    );
    assert!(
        end.ram.invalidated.is_empty(),
        "{what}: nothing is invalidated"
    );
    let well = end
        .completions
        .iter()
        .filter(|c| c.status == Status::Success);
    assert_eq!(well.count(), 0, "{what}: nothing completes well");
}

/// Whatever comes afterwards is dropped, and the connection ends: with the peer's end, or without.
fn assert_dead(what: &str, mut end: End) {
    assert_eq!(end.connection.state(), State::Terminating, "{what}");
    assert!(
        end.shut_down,
        "{what}: this end's half is closed behind the Terminate"
    );
    let (memory, placed, sent) = (end.ram.clone(), end.ram.placed, end.fpdus.len());
    end.feed(&Segment::tagged(Opcode::Write, 0x1000, BASE, 8).fpdu());
    assert_untouched(what, &end, &memory, placed);
    assert_eq!(
        end.fpdus.len(),
        sent,
        "{what}: one Terminate, and nothing after it"
    );
    let deadline = end
        .connection
        .poll_timeout()
        .expect("the peer may not answer");
    end.connection.handle_timeout(deadline);
    end.drain();
    assert!(end.has(Event::Disconnect), "{what}");
    assert_eq!(end.connection.poll_timeout(), None);
}

#[test]
fn tagged_segments_reach_only_what_the_tag_allows() {
    let write = |stag, to, len| Segment::tagged(Opcode::Write, stag, to, len);
    let end = BASE + LEN as u64;
    for (what, segment, code) in [
        (
            "unknown tag",
            write(0x9000, BASE, 8),
            TermCode::DDP_INVALID_STAG,
        ),
        ("tag zero", write(0, BASE, 8), TermCode::DDP_INVALID_STAG),
        (
            "other key",
            write(0x1001, BASE, 8),
            TermCode::DDP_INVALID_STAG,
        ),
        (
            "other domain",
            write(0x4000, BASE, 8),
            TermCode::DDP_NOT_ASSOCIATED,
        ),
        (
            "other queue pair",
            write(0x5000, BASE, 8),
            TermCode::DDP_NOT_ASSOCIATED,
        ),
        (
            "before the base",
            write(0x1000, BASE - 1, 8),
            TermCode::DDP_BOUNDS,
        ),
        ("at zero", write(0x1000, 0, 8), TermCode::DDP_BOUNDS),
        (
            "one octet beyond",
            write(0x1000, end - 7, 8),
            TermCode::DDP_BOUNDS,
        ),
        ("at the end", write(0x1000, end, 1), TermCode::DDP_BOUNDS),
        (
            "wrap",
            write(0x1000, u64::MAX - 3, 8),
            TermCode::DDP_TO_WRAP,
        ),
        (
            "wrap of a tag at the top",
            write(0x7000, u64::MAX - 3, 8),
            TermCode::DDP_TO_WRAP,
        ),
        (
            "no right to write",
            write(0x2000, BASE, 8),
            TermCode::ACCESS,
        ),
        ("no right at all", write(0x6000, BASE, 8), TermCode::ACCESS),
        (
            "response to nothing",
            Segment::tagged(Opcode::ReadResponse, 0x1000, BASE, 8),
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "empty response to nothing",
            Segment::tagged(Opcode::ReadResponse, 0x1000, BASE, 0),
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "tagged Send",
            Segment::tagged(Opcode::Send, 0x1000, BASE, 8),
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "tagged Terminate",
            Segment::tagged(Opcode::Terminate, 0x1000, BASE, 8),
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "reserved opcode",
            write(0x1000, BASE, 8).control(0x4c),
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "RDMAP version 0",
            write(0x1000, BASE, 8).control(0x00),
            TermCode::RDMAP_VERSION,
        ),
        (
            "RDMAP version 2",
            write(0x1000, BASE, 8).control(0x80),
            TermCode::RDMAP_VERSION,
        ),
        (
            "DDP version 0",
            write(0x1000, BASE, 8).flipping(1),
            TermCode::DDP_VERSION_TAGGED,
        ),
        (
            "DDP version 2",
            write(0x1000, BASE, 8).flipping(3),
            TermCode::DDP_VERSION_TAGGED,
        ),
    ] {
        attack(what, &[segment], code);
    }
}

#[test]
fn untagged_segments_reach_only_the_next_receive() {
    let send = Segment::send;
    for (what, segments, code) in [
        (
            "unknown queue",
            vec![Segment::untagged(Opcode::Send, 4, 1, 0, vec![0; 8])],
            TermCode::DDP_INVALID_QN,
        ),
        (
            "enormous queue",
            vec![Segment::untagged(Opcode::Send, u32::MAX, 1, 0, vec![0; 8])],
            TermCode::DDP_INVALID_QN,
        ),
        ("message 0", vec![send(0, 0, 8)], TermCode::DDP_INVALID_MSN),
        (
            "message 2 first",
            vec![send(2, 0, 8)],
            TermCode::DDP_INVALID_MSN,
        ),
        (
            "message 1 twice",
            vec![send(1, 0, 8), send(1, 0, 8)],
            TermCode::DDP_INVALID_MSN,
        ),
        (
            "no receive left",
            vec![send(1, 0, 8), send(2, 0, 8), send(3, 0, 8)],
            TermCode::DDP_NO_BUFFER,
        ),
        (
            "empty, no receive left",
            vec![send(1, 0, 8), send(2, 0, 8), send(3, 0, 0)],
            TermCode::DDP_NO_BUFFER,
        ),
        (
            "offset of a first segment",
            vec![send(1, 4, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        (
            "offset beyond",
            vec![send(1, u32::MAX, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        (
            "gap",
            vec![send(1, 0, 8).not_last(), send(1, 12, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        (
            "overlap",
            vec![send(1, 0, 8).not_last(), send(1, 4, 8)],
            TermCode::DDP_INVALID_MO,
        ),
        ("too long", vec![send(1, 0, 65)], TermCode::DDP_TOO_LONG),
        (
            "too long in parts",
            vec![send(1, 0, 60).not_last(), send(1, 60, 5)],
            TermCode::DDP_TOO_LONG,
        ),
        (
            "DDP version 3",
            vec![send(1, 0, 8).flipping(2)],
            TermCode::DDP_VERSION_UNTAGGED,
        ),
        (
            "RDMAP version 0",
            vec![send(1, 0, 8).control(0x03)],
            TermCode::RDMAP_VERSION,
        ),
        (
            "reserved opcode",
            vec![send(1, 0, 8).control(0x4d)],
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "Write to a queue",
            vec![send(1, 0, 8).control(0x40)],
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "Read Request to the receives",
            vec![send(1, 0, 28).control(0x41)],
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "Terminate to the receives",
            vec![send(1, 0, 8).control(0x47)],
            TermCode::UNEXPECTED_OPCODE,
        ),
    ] {
        attack(what, &segments, code);
    }
}

#[test]
fn a_peer_invalidates_only_what_it_may() {
    for (what, stag, code) in [
        ("unknown tag", 0x9000, TermCode::INVALID_STAG),
        ("other domain", 0x4000, TermCode::NOT_ASSOCIATED),
        ("other queue pair", 0x5000, TermCode::NOT_ASSOCIATED),
        (
            "no right to it",
            0x3000,
            TermCode::PROTECTION_CANNOT_INVALIDATE,
        ),
    ] {
        attack(what, &[Segment::invalidating(stag)], code);
    }
}

#[test]
fn reads_reach_only_what_the_tag_allows() {
    let read = |source, to, len| Segment::read(1, source, to, len);
    let end = BASE + LEN as u64;
    let short = |mut segment: Segment, len| {
        segment.payload.resize(len, 0);
        segment
    };
    for (what, segment, code) in [
        ("unknown tag", read(0x9000, BASE, 8), TermCode::INVALID_STAG),
        (
            "other domain",
            read(0x4000, BASE, 8),
            TermCode::NOT_ASSOCIATED,
        ),
        (
            "other queue pair",
            read(0x5000, BASE, 8),
            TermCode::NOT_ASSOCIATED,
        ),
        (
            "before the base",
            read(0x1000, BASE - 1, 8),
            TermCode::BOUNDS,
        ),
        (
            "one octet beyond",
            read(0x1000, end - 7, 8),
            TermCode::BOUNDS,
        ),
        (
            "far too long",
            read(0x1000, BASE, u32::MAX),
            TermCode::BOUNDS,
        ),
        ("wrap", read(0x1000, u64::MAX, 8), TermCode::TO_WRAP),
        ("no right to read", read(0x3000, BASE, 8), TermCode::ACCESS),
        (
            "too short",
            short(read(0x1000, BASE, 8), 27),
            TermCode::STREAM_CATASTROPHIC,
        ),
        (
            "too long",
            short(read(0x1000, BASE, 8), 29),
            TermCode::STREAM_CATASTROPHIC,
        ),
        (
            "empty",
            short(read(0x1000, BASE, 8), 0),
            TermCode::STREAM_CATASTROPHIC,
        ),
        (
            "not last",
            read(0x1000, BASE, 8).not_last(),
            TermCode::STREAM_CATASTROPHIC,
        ),
        (
            "message 2 first",
            Segment::read(2, 0x1000, BASE, 8),
            TermCode::DDP_INVALID_MSN,
        ),
        (
            "Send to the reads",
            read(0x1000, BASE, 8).control(0x43),
            TermCode::UNEXPECTED_OPCODE,
        ),
        (
            "RDMAP version 0",
            read(0x1000, BASE, 8).control(0x01),
            TermCode::RDMAP_VERSION,
        ),
    ] {
        attack(what, &[segment], code);
    }
    let mut displaced = read(0x1000, BASE, 8);
    if let Model::Untagged { mo, .. } = &mut displaced.header.model {
        *mo = 4;
    }
    attack("offset", &[displaced], TermCode::DDP_INVALID_MO);
}

#[test]
fn atomics_reach_only_aligned_words_that_the_tag_allows() {
    let atomic = |stag, to| Segment::atomic(1, stag, to);
    let end = BASE + LEN as u64;
    let mut reserved = atomic(0x1000, BASE);
    reserved.payload[3] = 1;
    let mut long = atomic(0x1000, BASE);
    long.payload.push(0);
    for (what, segment, code) in [
        ("unknown tag", atomic(0x9000, BASE), TermCode::INVALID_STAG),
        (
            "other domain",
            atomic(0x4000, BASE),
            TermCode::NOT_ASSOCIATED,
        ),
        (
            "other queue pair",
            atomic(0x5000, BASE),
            TermCode::NOT_ASSOCIATED,
        ),
        ("beyond", atomic(0x1000, end), TermCode::BOUNDS),
        ("wrap", atomic(0x1000, u64::MAX - 7), TermCode::TO_WRAP),
        ("no right", atomic(0x3000, BASE), TermCode::ACCESS),
        (
            "not aligned",
            atomic(0x1000, BASE + 4),
            TermCode::STREAM_CATASTROPHIC,
        ),
        ("reserved operation", reserved, TermCode::UNEXPECTED_OPCODE),
        ("too long", long, TermCode::STREAM_CATASTROPHIC),
        (
            "not last",
            atomic(0x1000, BASE).not_last(),
            TermCode::STREAM_CATASTROPHIC,
        ),
        (
            "message 3",
            Segment::atomic(3, 0x1000, BASE),
            TermCode::DDP_INVALID_MSN,
        ),
    ] {
        attack(what, &[segment], code);
    }
}

#[test]
fn unrequested_responses_are_refused() {
    let response = |msn| Segment::untagged(Opcode::AtomicResponse, 3, msn, 0, vec![0; 12]);
    attack("atomic response", &[response(1)], TermCode::DDP_NO_BUFFER);
    attack(
        "atomic response 2",
        &[response(2)],
        TermCode::DDP_INVALID_MSN,
    );
}

#[test]
fn immediate_data_is_eight_bytes_for_a_receive() {
    let immediate = |len| Segment::untagged(Opcode::Immediate, 0, 1, 0, vec![1; len]);
    for len in [0, 7, 9, 64] {
        attack("length", &[immediate(len)], TermCode::STREAM_CATASTROPHIC);
    }
    attack(
        "not last",
        &[immediate(8).not_last()],
        TermCode::STREAM_CATASTROPHIC,
    );
    let third = Segment::untagged(Opcode::Immediate, 0, 3, 0, vec![1; 8]);
    let good = [Segment::send(1, 0, 1), Segment::send(2, 0, 1), third];
    attack("no receive", &good, TermCode::DDP_NO_BUFFER);
}

#[test]
fn a_send_with_immediate_data_is_refused_where_it_was_not_agreed_on() {
    let mut foreign = config();
    foreign.extensions = false;
    for opcode in [Opcode::SendImmediate, Opcode::SendSolicitedImmediate] {
        let (mut a, mut b) = pair(foreign, config());
        b.post_receive(1, 64);
        settle(&mut a, &mut b);
        b.feed(&Segment::untagged(opcode, 0, 1, 0, vec![1; 8]).fpdu());
        let error = Error::PeerMisbehaved(TermCode::UNEXPECTED_OPCODE);
        assert_eq!(b.connection.error(), Some(error));
        assert_eq!(terminate(&b).code, TermCode::UNEXPECTED_OPCODE);
        assert_eq!(b.ram.placed, 0);
    }
    let long = Segment::untagged(Opcode::SendImmediate, 0, 1, 0, vec![1; 65]);
    attack("too long", &[long], TermCode::DDP_TOO_LONG);
}

#[test]
fn segments_too_short_for_their_header_are_refused() {
    for (control, most) in [(0xc1, 14), (0x41, 18)] {
        for len in 0..most {
            let mut end = victim(false);
            let (memory, placed) = (end.ram.clone(), end.ram.placed);
            let mut ulpdu = vec![0; len];
            if let Some(first) = ulpdu.first_mut() {
                *first = control;
            }
            // With no byte of its own, a tagged look comes from the padding: zero is untagged.
            end.feed(&fpdu(&ulpdu));
            let code = TermCode::UNSPECIFIED;
            assert_eq!(
                end.connection.error(),
                Some(Error::PeerMisbehaved(code)),
                "{len}"
            );
            assert_untouched("short", &end, &memory, placed);
            assert_eq!(terminate(&end), Terminate::bare(code), "{len}");
            assert_dead("short", end);
        }
    }
}

#[test]
fn a_flood_of_reads_beyond_ird_ends_the_stream() {
    let mut end = victim(false);
    let flood: Vec<u8> = (1..=3)
        .flat_map(|msn| Segment::read(msn, 0x1000, BASE, 4_096).fpdu())
        .collect();
    // All at once: nothing is answered in between.
    let received = end.connection.handle_bytes(end.now, &mut end.ram, &flood);
    assert_eq!(received.consumed, flood.len());
    end.drain();
    let code = TermCode::STREAM_CATASTROPHIC;
    assert_eq!(end.connection.error(), Some(Error::PeerMisbehaved(code)));
    assert_eq!(terminate(&end).code, code);
    assert_dead("flood", end);
    // One after the other they are answered.
    let mut end = victim(false);
    for msn in 1..=20 {
        end.feed(&Segment::read(msn, 0x1000, BASE, 4_096).fpdu());
    }
    assert_eq!(end.connection.error(), None);
    assert_eq!(end.fpdus.len(), 20);
}

#[test]
fn segments_without_payload_name_no_memory() {
    let mut end = victim(false);
    end.feed(&Segment::tagged(Opcode::Write, 0x9000, u64::MAX, 0).fpdu());
    end.feed(&Segment::read(1, 0x9000, u64::MAX, 0).fpdu());
    assert_eq!(end.connection.error(), None);
    assert_eq!(end.ram.placed, 0);
    let answer = Segment::tagged(Opcode::ReadResponse, 0xaa00, 0, 0);
    assert_eq!(end.fpdus, [answer.fpdu()]);
}

#[test]
fn memory_that_is_withdrawn_is_not_touched_any_more() {
    // Between two segments of a Write.
    let mut end = victim(false);
    end.feed(
        &Segment::tagged(Opcode::Write, 0x1000, BASE, 8)
            .not_last()
            .fpdu(),
    );
    assert_eq!(end.ram.placed, 8);
    end.ram.stags.remove(&Stag(0x1000));
    end.feed(&Segment::tagged(Opcode::Write, 0x1000, BASE + 8, 8).fpdu());
    assert_eq!(end.ram.placed, 8);
    assert_eq!(terminate(&end).code, TermCode::DDP_INVALID_STAG);

    // Between the request and the second segment of the answer.
    let mut foreign = config();
    foreign.extensions = false;
    let (mut a, mut b) = pair(foreign, config());
    b.ram.register(0x1000, BASE, pattern(LEN, 1), everything());
    a.ram.register(0xaa00, 0, vec![0; LEN], everything());
    let read = Operation::Read {
        sink: Stag(0xaa00),
        sink_to: 0,
        source: Stag(0x1000),
        source_to: BASE,
    };
    a.post_read(1, read, 4_096);
    a.drain();
    let request = std::mem::take(&mut a.wire);
    b.connection.handle_bytes(b.now, &mut b.ram, &request);
    let mut header = [0; haul_iwarp::HEADER_MAX];
    let first = b
        .connection
        .poll_transmit(b.now, &mut b.ram, &mut header)
        .expect("an answer");
    let done = first.segment.payload_len;
    b.ram.stags.remove(&Stag(0x1000));
    b.drain();
    let said = terminate(&b);
    assert_eq!(said.code, TermCode::INVALID_STAG);
    let left = said.read.expect("what is left of the request");
    assert_eq!((left.len, left.sink_to), (4_096 - done, u64::from(done)));
    assert_eq!(left.source_to, BASE + u64::from(done));
    assert_eq!(
        b.connection.error(),
        Some(Error::LocalMemory(TermCode::INVALID_STAG))
    );
}

/// An initiator with one read outstanding, 16 bytes into a sink of 64 at 0.
fn reader() -> End {
    let (mut a, _) = pair(config(), config());
    a.ram.register(0xaa00, 0, vec![0; 64], everything());
    a.ram.register(0xbb00, 0, vec![0; 64], everything());
    let read = Operation::Read {
        sink: Stag(0xaa00),
        sink_to: 8,
        source: Stag(0x1000),
        source_to: BASE,
    };
    a.post_read(1, read, 16);
    a.drain();
    a
}

#[test]
fn responses_write_only_where_they_were_asked_to() {
    let response = |stag, to, len| Segment::tagged(Opcode::ReadResponse, stag, to, len);
    for (what, segment, code) in [
        (
            "another own tag",
            response(0xbb00, 8, 16),
            TermCode::DDP_INVALID_STAG,
        ),
        ("before", response(0xaa00, 7, 16), TermCode::DDP_BOUNDS),
        ("after", response(0xaa00, 9, 8), TermCode::DDP_BOUNDS),
        ("too long", response(0xaa00, 8, 17), TermCode::DDP_BOUNDS),
        ("too short", response(0xaa00, 8, 15), TermCode::UNSPECIFIED),
        ("empty", response(0xaa00, 8, 0), TermCode::UNSPECIFIED),
    ] {
        let mut end = reader();
        end.feed(&segment.fpdu());
        assert_eq!(end.ram.placed, 0, "{what}");
        assert_eq!(
            end.connection.error(),
            Some(Error::PeerMisbehaved(code)),
            "{what}"
        );
        assert_eq!(terminate(&end).code, code, "{what}");
        let flushed: Vec<_> = end.completions.iter().map(|c| (c.id, c.status)).collect();
        assert_eq!(flushed, [(1, Status::Flushed)], "{what}");
    }
    // The sink is this end's: if it is withdrawn, the peer is not to blame.
    for code in [TermCode::DDP_INVALID_STAG, TermCode::ACCESS] {
        let mut end = reader();
        if code == TermCode::ACCESS {
            end.ram.stags.get_mut(&Stag(0xaa00)).unwrap().rights = Rights::REMOTE_WRITE;
        } else {
            end.ram.stags.remove(&Stag(0xaa00));
        }
        end.feed(&response(0xaa00, 8, 16).fpdu());
        assert_eq!(end.ram.placed, 0);
        assert_eq!(end.connection.error(), Some(Error::LocalMemory(code)));
        assert_eq!(end.completions[0].status, Status::LocalProtection);
    }
    let mut end = reader();
    end.feed(&response(0xaa00, 8, 16).fpdu());
    assert_eq!(end.completions[0].kind, CompletionKind::Read);
    assert_eq!(end.ram.placed, 16);
}

#[test]
fn an_atomic_response_answers_the_oldest_atomic() {
    let reply = |id: u32| {
        let payload = [&id.to_be_bytes()[..], &[0; 8]].concat();
        Segment::untagged(Opcode::AtomicResponse, 3, 1, 0, payload)
    };
    let asked = || {
        let (mut a, _) = pair(config(), config());
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        a.post_read(
            1,
            Operation::Atomic {
                stag: Stag(1),
                to: 0,
                op,
            },
            8,
        );
        a.drain();
        a
    };
    let mut end = asked();
    end.feed(&reply(7).fpdu());
    assert_eq!(terminate(&end).code, TermCode::STREAM_CATASTROPHIC);
    let mut end = asked();
    end.feed(&reply(0).fpdu());
    assert_eq!(
        end.completions[0].kind,
        CompletionKind::Atomic { original: 0 }
    );
}

#[test]
fn a_terminate_laid_out_as_siw_does_is_understood() {
    for (octets, code) in [
        ([0x11, 0, 0, 0], TermCode::DDP_INVALID_STAG),
        ([0x21, 2, 3, 0], TermCode::DDP_NO_BUFFER),
        ([0x02, 2, 0, 0], TermCode::new(0, 2, 2)),
        ([0x10, 2, 1, 0], TermCode::ACCESS),
        ([0xff, 9, 0, 0], TermCode::new(15, 15, 9)),
    ] {
        assert_eq!(Terminate::parse(&octets).code, code, "{octets:02x?}");
    }
    assert_eq!(
        Terminate::parse(&[]),
        Terminate::bare(TermCode::LOCAL_CATASTROPHIC)
    );
}
