//! Operations on an open connection, hostile datagrams among them: it neither panics nor spins, and
//! takes no payload beyond the memory that it offered.

#![no_main]

use std::net::SocketAddr;

use arbitrary::Arbitrary;
use haul_cc::Time;
use haul_udt::wire::{Handshake, Offer, RequestKind, SocketId, SocketKind};
use haul_udt::{Config, Connection, Received, Request, Seq, Transmit};
use libfuzzer_sys::fuzz_target;

const LOCAL: u32 = 0x2222;
const INITIAL: u32 = 0x7fff_fff0;

#[derive(Debug, Arbitrary)]
struct Input {
    stream: bool,
    placement: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Pass {
        ms: u16,
    },
    Write {
        bytes: u16,
        push: bool,
    },
    Message {
        len: u16,
        in_order: bool,
        ttl_ms: Option<u8>,
    },
    Read,
    Consume {
        share: u8,
    },
    Close,
    Data {
        ahead: u8,
        flags: u8,
        message: u8,
        offset: u16,
        len: u8,
    },
    Control {
        kind: u8,
        info: u8,
        words: Vec<Word>,
    },
    Feedback {
        number: u8,
        words: [Word; 20],
        gaps: Vec<Word>,
    },
    Bytes(Vec<u8>),
}

/// A word of a control packet: near the connection's sequence numbers more often than chance would
/// have it.
#[derive(Debug, Arbitrary)]
enum Word {
    Near(u8),
    RangeFrom(u8),
    Small(u8),
    Any(u32),
}

impl Word {
    fn get(&self) -> u32 {
        match *self {
            Self::Near(ahead) => (INITIAL + u32::from(ahead)) & 0x7fff_ffff,
            Self::RangeFrom(ahead) => (INITIAL + u32::from(ahead)) | 0x8000_0000,
            Self::Small(value) => value.into(),
            Self::Any(value) => value,
        }
    }
}

fuzz_target!(|input: Input| {
    let kind = if input.stream {
        SocketKind::Stream
    } else {
        SocketKind::Datagram
    };
    let mut host = Host::open(kind, input.placement);
    for step in &input.steps {
        host.step(step);
        host.settle();
    }
});

struct Host {
    connection: Connection,
    now: Time,
    memory_bytes: u64,
}

impl Host {
    fn open(kind: SocketKind, placement: bool) -> Self {
        let mut config = Config::default();
        config.kind = kind;
        config.slot_memory_bytes = 200_000;
        config.receive_window_bytes = 1 << 20;
        let request = Request {
            from: SocketAddr::from(([192, 0, 2, 1], 5_000)),
            handshake: Handshake {
                version: 4,
                kind,
                initial: Seq::new(INITIAL),
                mss: 1_500,
                flight: 100,
                request: RequestKind::Conclusion,
                socket: SocketId(0x1111),
                cookie: 0,
                peer: std::net::IpAddr::from([0; 4]).into(),
            },
            offer: Offer {
                placement,
                ecn: false,
                finish: placement,
                check: false,
                path: placement,
                seal: false,
            },
        };
        let now = Time::from_ns(1_000_000);
        let memory_bytes = if placement && kind == SocketKind::Stream {
            u64::MAX
        } else {
            u64::from(config.receive_slots()) * u64::from(config.mtu)
        };
        let connection = Connection::accept(now, config, SocketId(LOCAL), &request, 1);
        Self {
            connection: connection.expect("a good request"),
            now,
            memory_bytes,
        }
    }

    fn step(&mut self, step: &Step) {
        let (connection, now) = (&mut self.connection, self.now);
        match *step {
            Step::Pass { ms } => self.now = now.after(u64::from(ms) * 1_000_000),
            Step::Write { bytes, push } => {
                let _ = connection.write(now, bytes.into(), push);
            }
            Step::Message {
                len,
                in_order,
                ttl_ms,
            } => {
                let ttl_ns = ttl_ms.map(|ms| u64::from(ms) * 1_000_000);
                let _ = connection.send_message(now, len.into(), in_order, ttl_ns);
            }
            Step::Read => {
                while let Some(message) = connection.front_message() {
                    let mut bytes = 0;
                    connection.take_message(&message, |piece| bytes += u64::from(piece.len));
                    assert_eq!(bytes, message.len);
                }
                while connection.front_piece().is_some() {
                    connection.pop_piece();
                }
            }
            Step::Consume { share } => {
                let to = connection.delivered_offset() * u64::from(share) / 255;
                connection.consume(now, to);
            }
            Step::Close => connection.close(now),
            Step::Data {
                ahead,
                flags,
                message,
                offset,
                len,
            } => {
                let word1 = u32::from(flags) << 28 | u32::from(message);
                let mut packet = words(&[
                    (INITIAL + u32::from(ahead)) & 0x7fff_ffff,
                    word1,
                    offset.into(),
                    LOCAL,
                ]);
                packet.resize(packet.len() + usize::from(len) * 6, 0);
                self.take(&packet);
            }
            Step::Control {
                kind,
                info,
                words: ref body,
            } => {
                let mut packet = words(&[
                    0x8000_0000 | u32::from(kind % 10) << 16,
                    info.into(),
                    0,
                    LOCAL,
                ]);
                packet.extend(body.iter().flat_map(|word| word.get().to_be_bytes()));
                self.take(&packet);
            }
            Step::Feedback {
                number,
                words: ref fixed,
                ref gaps,
            } => {
                let mut packet = words(&[0xffff_4c48, 1, number.into(), LOCAL]);
                let body = fixed.iter().chain(gaps);
                packet.extend(body.flat_map(|word| word.get().to_be_bytes()));
                self.take(&packet);
            }
            Step::Bytes(ref bytes) => self.take(bytes),
        }
    }

    fn take(&mut self, packet: &[u8]) {
        let result = self.connection.handle_datagram(self.now, self.now, packet);
        if let Ok(Received::Data(placement)) = result {
            let end = placement.position + u64::from(placement.len);
            assert!(end <= self.memory_bytes, "{placement:?}");
        }
    }

    /// What a driver does after every input.
    fn settle(&mut self) {
        self.connection.handle_timeout(self.now);
        let (mut transmit, mut rounds) = (Transmit::default(), 0);
        while self.connection.poll_transmit(self.now, &mut transmit) {
            rounds += 1;
            assert!(rounds < 10_000, "it never comes to rest");
            assert_eq!(transmit.headers.len(), transmit.payload.len());
            let lens = transmit.payload.windows(2);
            let (equal, count) = (transmit.segment_len(), transmit.payload.len());
            assert!(
                lens.enumerate().all(|(index, pair)| {
                    pair[0].len as usize + 16 == equal
                        && (pair[1].len == pair[0].len || index + 2 == count)
                }),
                "a batch has segments of one length, but for a shorter last one"
            );
            assert!(transmit.control.is_empty() || transmit.payload.is_empty());
        }
        while self.connection.poll_event().is_some() {}
        let _ = self.connection.poll_timeout(self.now);
        let _ = self.connection.stats();
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}
