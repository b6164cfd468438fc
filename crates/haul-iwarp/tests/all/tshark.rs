//! Traffic of two ends, dissected by Debian's tshark: every CRC good, every operation named,
//! nothing malformed. The capture is made up (raw IP, link type 101), so no privilege is needed.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails; packets are short"
)]

use crate::common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{End, config, ends, everything, pattern};
use haul_iwarp::ReliableConnection as _;
use haul_iwarp::wire::mpa::RtrKinds;
use haul_iwarp::wire::rdmap::AtomicOp;
use haul_iwarp::{Operation, Stag, StreamConfig};

/// A capture of one TCP connection.
struct Capture {
    octets: Vec<u8>,
    packets: u32,
    /// The next sequence number of each end.
    sequence: [u32; 2],
}

const SYN: u8 = 2;
const ACK: u8 = 16;
const PUSH: u8 = 8;

impl Capture {
    fn new() -> Self {
        let mut octets = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
            octets.extend(word.to_le_bytes());
        }
        let mut capture = Self {
            octets,
            packets: 0,
            sequence: [1_000, 9_000],
        };
        capture.packet(0, SYN, &[]);
        capture.sequence[0] += 1;
        capture.packet(1, SYN | ACK, &[]);
        capture.sequence[1] += 1;
        capture.packet(0, ACK, &[]);
        capture
    }

    /// Bytes from one end, one packet for each of `most`.
    fn say(&mut self, from: usize, octets: &[u8], most: usize) {
        for part in octets.chunks(most) {
            self.packet(from, ACK | PUSH, part);
            self.sequence[from] += part.len() as u32;
        }
    }

    fn packet(&mut self, from: usize, flags: u8, payload: &[u8]) {
        let len = 40 + payload.len();
        self.packets += 1;
        for word in [self.packets, 0, len as u32, len as u32] {
            self.octets.extend(word.to_le_bytes());
        }
        let hosts = [[192, 0, 2, 1], [192, 0, 2, 2]];
        let ports = [40_000_u16, 4_791];
        let mut ip = vec![0x45, 0];
        ip.extend((len as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(hosts[from]);
        ip.extend(hosts[1 - from]);
        ip.extend(ports[from].to_be_bytes());
        ip.extend(ports[1 - from].to_be_bytes());
        ip.extend(self.sequence[from].to_be_bytes());
        let acknowledged = if flags & ACK != 0 {
            self.sequence[1 - from]
        } else {
            0
        };
        ip.extend(acknowledged.to_be_bytes());
        ip.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        self.octets.extend(ip);
        self.octets.extend(payload);
    }
}

/// Returns tshark's dissection of the packets in which it finds MPA; `None` where there is no
/// tshark.
fn dissect(capture: &Capture, how: &[&str]) -> Option<String> {
    let mut command = Command::new("tshark");
    command.args(["-r", "-", "-Y", "iwarp_mpa"]).args(how);
    // Both guess at payload, and find it malformed.
    for guessing in ["smb_direct", "rpcordma"] {
        command.args(["--disable-protocol", guessing]);
    }
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("SKIPPED: no `tshark` command (Debian package tshark)");
        return None;
    };
    let mut input = child.stdin.take().unwrap();
    let octets = capture.octets.clone();
    let writer = std::thread::spawn(move || input.write_all(&octets));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Carries bytes both ways until there are none, and records them.
fn converse(a: &mut End, b: &mut End, capture: &mut Capture, most: usize) {
    loop {
        a.drain();
        b.drain();
        let said = [std::mem::take(&mut a.wire), std::mem::take(&mut b.wire)];
        if said.iter().all(Vec::is_empty) {
            return;
        }
        capture.say(0, &said[0], most);
        b.feed(&said[0]);
        capture.say(1, &said[1], most);
        a.feed(&said[1]);
    }
}

fn open(initiator: StreamConfig, capture: &mut Capture) -> (End, End) {
    let (mut a, mut b) = ends(initiator, config(), b"hello");
    converse(&mut a, &mut b, capture, usize::MAX);
    b.connection.accept(b.now, b"ok").unwrap();
    converse(&mut a, &mut b, capture, usize::MAX);
    (a, b)
}

/// Opcodes in the order of the capture, of which every CRC is good.
fn opcodes(capture: &Capture) -> Option<Vec<u8>> {
    let words = dissect(capture, &["-V"])?;
    assert!(
        !words.contains("Bad CRC32") && !words.contains("Malformed"),
        "{words}"
    );
    let fields = dissect(capture, &["-T", "fields", "-e", "iwarp_rdma.opcode"])?;
    let opcodes: Vec<u8> = fields
        .split([',', '\n'])
        .filter(|one| !one.is_empty())
        .map(parse_number)
        .collect();
    assert_eq!(
        words.matches("Good CRC32").count(),
        opcodes.len(),
        "{words}"
    );
    Some(opcodes)
}

fn parse_number(text: &str) -> u8 {
    let digits = text.trim_start_matches("0x");
    u8::from_str_radix(digits, if digits.len() < text.len() { 16 } else { 10 }).unwrap()
}

#[test]
fn every_operation_is_dissected_with_a_good_crc() {
    let kinds = RtrKinds {
        send: false,
        write: true,
        read: true,
    };
    let mut initiator = config();
    initiator.peer_to_peer = Some(kinds);
    for most in [1_448, usize::MAX] {
        let mut capture = Capture::new();
        let (mut a, mut b) = open(initiator, &mut capture);
        let stag = b
            .ram
            .register(0x1122_3300, 1 << 40, pattern(200_000, 1), everything());
        b.ram.register(0x1122_3400, 0, vec![0; 8], everything());
        a.ram
            .register(0xaabb_cc00, 0, vec![0; 100_000], everything());
        for id in 1..=5 {
            b.post_receive(id, 5_000);
        }
        let send = |solicited, invalidate| Operation::Send {
            solicited,
            invalidate,
        };
        let other = Some(Stag(0x1122_3400));
        let (to, placed) = ((1 << 40) + 7, false);
        a.post_send(
            1,
            Operation::Write { stag, to, placed },
            pattern(150_001, 3),
        );
        a.post_send(2, send(false, None), pattern(4_321, 5));
        a.post_send(3, send(true, None), b"x".to_vec());
        a.post_send(4, send(false, other), vec![]);
        let read = Operation::Read {
            sink: Stag(0xaabb_cc00),
            sink_to: 1,
            source: stag,
            source_to: 1 << 40,
        };
        a.post_read(5, read, 70_003);
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let to = 1 << 40;
        a.post_read(6, Operation::Atomic { stag, to, op }, 8);
        a.post_send(
            7,
            Operation::Immediate {
                data: 7,
                solicited: true,
            },
            vec![],
        );
        converse(&mut a, &mut b, &mut capture, most.min(32_000));
        assert_eq!((a.connection.error(), b.connection.error()), (None, None));
        let Some(mut found) = opcodes(&capture) else {
            return;
        };
        assert_eq!(
            found.len(),
            a.fpdus.len() + b.fpdus.len(),
            "every FPDU is found"
        );
        found.dedup();
        assert_eq!(found, [0, 3, 5, 4, 1, 0xa, 9, 2, 0xb]);
    }
}

#[test]
fn a_terminate_is_dissected() {
    let mut capture = Capture::new();
    let (mut a, mut b) = open(config(), &mut capture);
    let placed = false;
    let stag = Stag(0x5500);
    a.post_send(
        1,
        Operation::Write {
            stag,
            to: 0x10,
            placed,
        },
        vec![1; 8],
    );
    converse(&mut a, &mut b, &mut capture, usize::MAX);
    let mut how = vec!["-T", "fields"];
    for field in [
        "iwarp_rdma.term_layer",
        "iwarp_rdma.term_etype_ddp",
        "iwarp_rdma.term_errcode_ddp_tagged",
    ] {
        how.extend(["-e", field]);
    }
    let Some(lines) = dissect(&capture, &how) else {
        return;
    };
    assert_eq!(lines.lines().last(), Some("0x01\t0x01\t0x00"));
    assert_eq!(opcodes(&capture), Some(vec![0, 7]));
}

#[test]
fn markers_are_dissected() {
    // tshark wants markers both ways, and one FPDU to a packet.
    let mut marked = config();
    marked.markers = true;
    let mut capture = Capture::new();
    let (mut a, mut b) = ends(marked, marked, b"");
    converse(&mut a, &mut b, &mut capture, usize::MAX);
    b.connection.accept(b.now, b"").unwrap();
    converse(&mut a, &mut b, &mut capture, usize::MAX);
    let send = Operation::Send {
        solicited: false,
        invalidate: None,
    };
    for id in 1..=6 {
        let len = 400 * id as usize + 3;
        b.post_receive(id, len as u32);
        a.post_send(id, send, pattern(len, 1));
        a.drain();
        let wire = std::mem::take(&mut a.wire);
        b.feed(&wire);
    }
    for fpdu in &a.fpdus {
        capture.say(0, fpdu, usize::MAX);
    }
    assert_eq!(b.completions.len(), 6);
    if let Some(found) = opcodes(&capture) {
        assert_eq!(found, vec![3; a.fpdus.len()]);
    }
}
