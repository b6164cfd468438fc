//! A datagram queue pair, its user, and whatever may arrive.
//!
//! Nothing panics or spins; payload goes nowhere but into memory that was offered; every receive
//! and request completes at most once; no record claims what was not placed; an unknown peer gets
//! no more bytes than it sends.

#![no_main]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use arbitrary::Arbitrary;
use haul_iwarp::Operation;
use haul_iwarp::datagram::wire::{
    Body, DATA_HEADER_MAX, DataHeader, Datagram, Flags, Hello, Kind, MsgId, Opcode, Psn, Shim,
    Terms,
};
use haul_iwarp::datagram::{
    Action, Destination, RecordMode, Source, Ud, UdConfig, UdEvent, UdSendWr, UdStatus, ValidityMap,
};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::wire::rdmap::{self, ReadRequest};
use haul_iwarp::{
    AtomicAccess, Crc32c, Memory, Pd, RecvWr, RegionId, Rights, Stag, StagEntry, Target, Time,
};
use libfuzzer_sys::fuzz_target;

const REGION_LEN: u64 = 4_096;
const RECEIVE_LEN: u32 = 2_000;
const QPN: u32 = 7;

#[derive(Debug, Arbitrary)]
struct Input {
    mode: u8,
    shared: bool,
    notices: bool,
    groups: bool,
    supersede: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    /// After a good CRC has been put behind.
    Octets(Vec<u8>),
    Segment(Segment),
    Hello {
        peer: u8,
        good: bool,
    },
    ReadRequest {
        peer: u8,
        id: u8,
        len: u16,
        at: u16,
        part: Option<(u16, u16)>,
    },
    Receive,
    Post {
        kind: u8,
        len: u16,
        peer: u8,
        at: u16,
    },
    Withdraw(u8),
    Restore,
    Unplaced(Segment),
    Pass {
        ms: u16,
    },
    Close,
}

/// A segment that is mostly right.
#[derive(Debug, Arbitrary)]
struct Segment {
    peer: u8,
    opcode: u8,
    id: u8,
    psn: u8,
    offset: u16,
    len: u16,
    beyond: u16,
    base: u16,
    stag: u8,
    tail: bool,
    group: bool,
}

/// Tags 0..4, of which the first two are open to anybody.
struct Ram {
    gone: [bool; 4],
    shared: u32,
}

impl Memory for Ram {
    fn lookup(&self, stag: Stag) -> Option<StagEntry> {
        let at = usize::try_from(stag.0 & 0xff).ok()?;
        if *self.gone.get(at)? {
            return None;
        }
        Some(StagEntry {
            pd: Pd(0),
            qp: None,
            base: 0,
            len: REGION_LEN,
            rights: Rights::REMOTE_WRITE
                .with(Rights::REMOTE_READ)
                .with(Rights::LOCAL_WRITE),
            region: RegionId(at as u64),
        })
    }

    fn invalidate(&mut self, _: Stag) {
        panic!("no datagram invalidates");
    }

    fn atomic(&mut self, _: &AtomicAccess) -> u64 {
        panic!("no datagram does atomics");
    }

    fn take_receive(&mut self) -> Option<RecvWr> {
        self.shared = self.shared.checked_add(1)?;
        Some(RecvWr::new(
            u64::from(self.shared),
            self.shared,
            RECEIVE_LEN,
        ))
    }

    fn admits(&self, stag: Stag, _: &Source, is_validated: bool) -> bool {
        is_validated || stag.0 & 0xff < 2
    }
}

struct Bench {
    ud: Ud,
    ram: Ram,
    now: Time,
    placed: Vec<Vec<bool>>,
    /// Receives that may be placed into.
    open: BTreeSet<u32>,
    requests: BTreeSet<u64>,
    next: u64,
    known: bool,
    octets_in: usize,
    octets_out: usize,
}

fuzz_target!(|input: Input| run(&input));

fn run(input: &Input) {
    let mut config = UdConfig::default();
    config.qpn = QPN;
    config.epoch = 1;
    config.shared_receive = input.shared;
    config.record_mode = [
        RecordMode::Aggregate,
        RecordMode::PerChunk,
        RecordMode::Query,
    ][usize::from(input.mode) % 3];
    config.notices = input.notices;
    config.group_writes = input.groups;
    config.supersede_overlapping = input.supersede;
    config.slots = 4;
    config.records = 4;
    config.records_per_source = 3;
    config.slots_per_source = 2;
    config.sources = 2;
    config.validated = 2;
    config.records_kept = 4;
    config.datagram_max = 548;
    let mut bench = Bench {
        ud: Ud::new(config),
        ram: Ram {
            gone: [false; 4],
            shared: 1 << 20,
        },
        now: Time::from_ns(1),
        placed: vec![vec![false; REGION_LEN as usize]; 4],
        open: BTreeSet::new(),
        requests: BTreeSet::new(),
        next: 0,
        known: false,
        octets_in: 0,
        octets_out: 0,
    };
    for step in &input.steps {
        bench.step(step);
        bench.drain();
    }
    bench.ud.close();
    bench.drain();
    assert!(
        bench.requests.is_empty(),
        "not completed: {:?}",
        bench.requests
    );
}

fn peer(n: u8) -> SocketAddr {
    ([192, 0, 2, n % 4], 4_791).into()
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut crc = Crc32c::new();
    crc.update(&bytes);
    bytes.extend_from_slice(&crc.to_wire());
    bytes
}

fn shim(n: u8, id: u8) -> Shim {
    Shim {
        kind: Kind::Data,
        flags: Flags::NONE,
        dst_qpn: QPN,
        src_qpn: u32::from(n % 4),
        epoch: 1,
        psn: Psn(0),
        msg_id: MsgId(u32::from(id)),
        msg_len: 0,
        seg_off: 0,
    }
}

fn data(header: &DataHeader<'_>, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; DATA_HEADER_MAX];
    let len = header.emit(&mut out);
    out.truncate(len);
    out.extend_from_slice(payload);
    sealed(out)
}

impl Bench {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Octets(octets) => self.arrive(peer(0), &sealed(octets.clone()), true),
            Step::Segment(segment) => {
                let bytes = self.segment(segment);
                self.arrive(peer(segment.peer), &bytes, true);
            }
            Step::Unplaced(segment) => {
                let bytes = self.segment(segment);
                self.arrive(peer(segment.peer), &bytes, false);
            }
            Step::Hello { peer: n, good } => {
                let source = Source {
                    addr: peer(*n),
                    qpn: u32::from(n % 4),
                    epoch: 1,
                };
                if *good {
                    self.known = true;
                    self.ud.admit(&source);
                }
                let mut out = [0; 200];
                let hello = Body::Hello(Hello {
                    cookie: None,
                    terms: Terms::default(),
                });
                let len = hello.emit(&shim(*n, 0), &mut out);
                self.arrive(peer(*n), &out[..len], true);
            }
            Step::ReadRequest {
                peer: n,
                id,
                len,
                at,
                part,
            } => {
                let request = ReadRequest {
                    sink: Stag(1),
                    sink_to: 0,
                    len: u32::from(*len),
                    source: Stag(2),
                    source_to: u64::from(*at),
                };
                let words = part.map(|(start, len)| [u32::from(start), u32::from(len)]);
                let mut header = DataHeader {
                    shim: shim(*n, *id),
                    ext: words.as_ref().map_or(&[], |words| words),
                    opcode: Opcode::Rdmap(rdmap::Opcode::ReadRequest),
                    model: Model::Untagged {
                        ulp: 0,
                        qn: 1,
                        msn: u32::from(*id),
                        mo: 0,
                    },
                };
                header.shim.flags = Flags::LAST;
                header.shim.msg_len = 28;
                self.arrive(peer(*n), &data(&header, &request.emit()), true);
            }
            Step::Receive => self.receive(),
            Step::Post {
                kind,
                len,
                peer,
                at,
            } => self.post(*kind, *len, *peer, *at),
            Step::Withdraw(n) => {
                self.ram.gone[usize::from(n % 4)] = true;
                if n & 0x80 != 0 {
                    self.ud.handle_invalidated(Stag(u32::from(n % 4)));
                }
            }
            Step::Restore => self.ram.gone = [false; 4],
            Step::Pass { ms } => {
                self.now = self.now.after(u64::from(*ms) * 1_000_000);
                self.ud.handle_timeout(self.now);
                let due = self.ud.poll_timeout();
                assert!(due.is_none_or(|due| due > self.now), "it would spin");
            }
            Step::Close => self.ud.close(),
        }
    }

    fn segment(&mut self, segment: &Segment) -> Vec<u8> {
        let opcode = match segment.opcode % 8 {
            0 => Opcode::WriteRecord,
            1 => Opcode::WriteRecordImmediate,
            2 => Opcode::Rdmap(rdmap::Opcode::Write),
            3 => Opcode::Rdmap(rdmap::Opcode::ReadResponse),
            4 => Opcode::Rdmap(rdmap::Opcode::SendSolicited),
            5 => Opcode::Rdmap(rdmap::Opcode::Immediate),
            _ => Opcode::Rdmap(rdmap::Opcode::Send),
        };
        let len = u32::from(segment.len % 600);
        let offset = u32::from(segment.offset % 4_096);
        let mut shim = shim(segment.peer, segment.id);
        shim.psn = Psn(u32::from(segment.psn));
        shim.seg_off = offset;
        shim.msg_len = offset + len + u32::from(segment.beyond % 2_048);
        let is_last = shim.msg_len == offset + len;
        let group = segment.group;
        if group {
            shim.dst_qpn = haul_iwarp::datagram::wire::ANY_QPN;
        }
        shim.flags = Flags::NONE
            .with_if(Flags::LAST, is_last)
            .with_if(Flags::TAILDUP, is_last && segment.tail)
            .with_if(Flags::MCAST, group)
            .with_if(
                Flags::RESP,
                opcode == Opcode::Rdmap(rdmap::Opcode::ReadResponse),
            );
        let top = if group { 0xff00_0000 } else { 0 };
        let model = match opcode.queue() {
            Some(qn) => Model::Untagged {
                ulp: 0,
                qn,
                msn: shim.msg_id.0,
                mo: offset,
            },
            None => Model::Tagged {
                stag: Stag(top | u32::from(segment.stag % 5)),
                to: u64::from(segment.base % 4_096) + u64::from(offset),
            },
        };
        let header = DataHeader {
            shim,
            ext: if opcode == Opcode::WriteRecordImmediate {
                &[1, 2]
            } else {
                &[]
            },
            opcode,
            model,
        };
        data(&header, &vec![1; len as usize])
    }

    fn arrive(&mut self, from: SocketAddr, bytes: &[u8], place: bool) {
        self.octets_in += bytes.len();
        if let Ok(covered) = Datagram::check(bytes)
            && let Some((target, payload)) = self.ud.handle_alike(&self.ram, from, covered)
        {
            self.place(target, payload.len(), place);
            return;
        }
        let datagram = match Datagram::open(bytes) {
            Ok(datagram) => datagram,
            Err(reject) => {
                assert!(matches!(
                    self.ud.handle_reject(self.now, from, reject),
                    Action::Drop(_)
                ));
                return;
            }
        };
        let action = self
            .ud
            .handle_datagram(self.now, &mut self.ram, from, &datagram);
        let Action::Place(placement) = action else {
            return;
        };
        let Body::Data(segment) = datagram.body else {
            panic!("a placement without data");
        };
        assert_eq!(placement.len as usize, segment.payload.len());
        self.place(placement.target, segment.payload.len(), place);
    }

    fn place(&mut self, target: Target, len: usize, place: bool) {
        let len = u32::try_from(len).expect("of a datagram");
        match target {
            Target::Region { region, offset } => {
                let end = offset + u64::from(len);
                assert!(end <= REGION_LEN);
                let at = usize::try_from(region.0).expect("one of four");
                assert!(!self.ram.gone[at]);
                if place {
                    self.placed[at][offset as usize..end as usize].fill(true);
                }
            }
            Target::Receive { slot, offset } => {
                assert!(slot > 1 << 20 || self.open.contains(&slot));
                assert!(offset + len <= RECEIVE_LEN);
            }
            Target::Discard => panic!("nothing is discarded"),
        }
        self.ud.handle_placed(self.now, place);
    }

    fn receive(&mut self) {
        self.next += 1;
        let slot = u32::try_from(self.next).expect("few");
        let wr = RecvWr::new(self.next, slot, RECEIVE_LEN);
        if self.ud.post_receive(wr).is_ok() {
            self.open.insert(slot);
        }
    }

    fn post(&mut self, kind: u8, len: u16, to: u8, at: u16) {
        self.next += 1;
        let (stag, at) = (Stag(u32::from(kind >> 4) % 5), u64::from(at));
        let op = match kind % 5 {
            0 => Operation::Send {
                solicited: false,
                invalidate: None,
            },
            1 => Operation::Immediate {
                data: at,
                solicited: false,
            },
            2 => Operation::Write {
                stag,
                to: at,
                placed: false,
            },
            3 => Operation::WriteRecord {
                stag,
                to: at,
                immediate: (len & 1 == 0).then_some(at),
            },
            _ => Operation::Read {
                sink: Stag(3),
                sink_to: 0,
                source: stag,
                source_to: at,
            },
        };
        let slot = u32::try_from(self.next).expect("few");
        let to = Destination {
            addr: peer(to),
            qpn: u32::from(to % 4),
        };
        let wr = UdSendWr::new(self.next, slot, to, op, u32::from(len % 8_192));
        if self.ud.post_send(wr).is_ok() {
            self.requests.insert(self.next);
            // Requests of this end are no response to an unknown peer.
            self.known = true;
        }
    }

    fn drain(&mut self) {
        let mut header = [0; DATA_HEADER_MAX];
        let mut turns = 0;
        while let Some(transmit) = self.ud.poll_transmit(self.now, &self.ram, &mut header) {
            assert!(transmit.wire_len() <= transmit.full_len && transmit.full_len <= 548);
            self.octets_out += transmit.wire_len();
            while self.ud.poll_alike(&mut header).is_some() {
                assert_eq!(transmit.wire_len(), transmit.full_len);
                assert!(
                    Datagram::parse(
                        &[
                            &header[..transmit.header_len],
                            &vec![0; transmit.payload_len as usize]
                        ]
                        .concat()
                    )
                    .is_ok()
                );
                self.octets_out += transmit.wire_len();
            }
            turns += 1;
            assert!(turns < 100_000, "it spins");
        }
        let mut out = [0; 9_000];
        while let Some((_, len)) = self.ud.poll_control(self.now, &mut out) {
            assert!(Datagram::open(&out[..len]).is_ok());
            self.octets_out += len;
        }
        assert!(self.known || self.octets_out <= self.octets_in, "a weapon");
        while let Some(event) = self.ud.poll_event() {
            self.check(&event);
        }
    }

    fn check(&mut self, event: &UdEvent) {
        match event {
            UdEvent::Received(received) => {
                let posted = self.open.remove(&received.slot);
                assert!(posted || received.slot > 1 << 20, "completed twice");
                assert!(received.len <= RECEIVE_LEN || received.status != UdStatus::Success);
            }
            UdEvent::Completion(completion) => {
                assert!(self.requests.remove(&completion.id), "completed twice");
            }
            UdEvent::Record(record) => {
                let ranges: Vec<(u32, u32)> = match &record.map {
                    ValidityMap::Full => vec![(0, record.len)],
                    ValidityMap::Ranges(ranges) => ranges.to_vec(),
                };
                let region = &self.placed[(record.stag.0 & 0xff) as usize];
                for (start, end) in ranges {
                    let at = record.to + u64::from(start);
                    let octets = at as usize..(record.to + u64::from(end)) as usize;
                    assert!(region[octets].iter().all(|placed| *placed), "claimed");
                }
            }
            _ => {}
        }
    }
}
