//! A reliable-datagram queue pair with a friend (a queue pair like itself, over a path that the
//! input decides), with half-open acquaintances, and with a hostile peer that knows everything that
//! a peer can know.

#![no_main]

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};

use arbitrary::Arbitrary;
use haul_iwarp::Operation;
use haul_iwarp::SendWr;
use haul_iwarp::datagram::rd::{RD_HEADER_MAX, RdConfig, RdEvent, RdQp, RdStatus, Remote};
use haul_iwarp::datagram::wire::{
    Ack, Body, Close, Cookie, DATA_HEADER_MAX, DataHeader, Datagram, Flags, Hello, Kind, MsgId,
    Notice, NoticeCode, Opcode, Psn, Shim, Terms,
};
use haul_iwarp::wire::ddp::Model;
use haul_iwarp::wire::rdmap::{AtomicOp, AtomicRequest, Opcode as Rdmap, ReadRequest};
use haul_iwarp::{
    AtomicAccess, Crc32c, Memory, Payload, Pd, Placement, RecvWr, RegionId, Rights, Stag,
    StagEntry, Target, Time,
};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input {
    window: u8,
    whole: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    /// Bytes from anybody, with a good CRC.
    Raw(u8, Vec<u8>),
    Data(Data),
    Ack {
        cum: i8,
        limit: i16,
        echo: u32,
        delay: u16,
        ranges: Vec<(i8, i8)>,
    },
    Hello {
        source: u8,
        cookie: bool,
        epoch: u8,
        initial: u8,
    },
    Notice {
        code: u8,
        msg: u8,
        psn: i8,
    },
    Close {
        code: u8,
        psn: i8,
    },
    Post {
        to_friend: bool,
        op: u8,
        len: u16,
        fence: bool,
    },
    FriendPost {
        op: u8,
        len: u16,
    },
    Receive(u16),
    /// Packets between the friends: the next is lost, or all arrive.
    Lose,
    Deliver(u8),
    Pass(u16),
    Revoke(u8),
    Gone,
    Disconnect,
    Close2,
}

#[derive(Debug, Arbitrary)]
struct Data {
    opcode: u8,
    psn: i8,
    msg: i8,
    len: u16,
    nth: u8,
    stag: u8,
    to: i16,
    honest: bool,
}

const OWN: u32 = 0x10;
const FRIEND: u32 = 0x20;
const FOE: u32 = 0x30;
const REGION: u64 = 4_096;
const RECEIVE: u32 = 2_000;
const INITIAL: u32 = u32::MAX - 30;

#[derive(Default)]
struct Ram {
    valid: Vec<bool>,
    receives: HashSet<u32>,
}

impl Ram {
    fn check(&self, placement: &Placement) {
        match placement.target {
            Target::Region { region, offset } => {
                assert!(self.valid[region.0 as usize]);
                assert!(offset + u64::from(placement.len) <= REGION);
            }
            Target::Receive { slot, offset } => {
                assert!(
                    self.receives.contains(&slot),
                    "it is posted and not completed"
                );
                assert!(offset + placement.len <= RECEIVE);
            }
            Target::Discard => {}
        }
    }
}

impl Memory for Ram {
    fn lookup(&self, stag: Stag) -> Option<StagEntry> {
        let at = stag.0.checked_sub(0x100)?;
        let rights = [
            Rights::REMOTE_WRITE.with(Rights::REMOTE_READ),
            Rights::REMOTE_ATOMIC,
            Rights::LOCAL_WRITE,
            Rights::REMOTE_INVALIDATE,
        ];
        self.valid.get(at as usize).filter(|valid| **valid)?;
        Some(StagEntry {
            pd: Pd(0),
            qp: None,
            base: 0,
            len: REGION,
            rights: rights[at as usize % 4],
            region: RegionId(at.into()),
        })
    }

    fn invalidate(&mut self, stag: Stag) {
        self.valid[(stag.0 - 0x100) as usize] = false;
    }

    fn atomic(&mut self, access: &AtomicAccess) -> u64 {
        assert!(self.valid[access.region.0 as usize] && access.offset + 8 <= REGION);
        1
    }
}

struct End {
    qp: RdQp,
    ram: Ram,
    sends: HashSet<u64>,
    next: u64,
    at: SocketAddr,
    over: bool,
}

impl End {
    fn new(qpn: u32, window: u8, whole: bool) -> Self {
        let mut config = RdConfig::default();
        (config.qp.send_depth, config.qp.recv_depth) = (16, 16);
        (config.qp.ird, config.qp.ord) = (2, 2);
        config.qpn = qpn;
        config.epoch = qpn;
        config.first = Some((Psn(INITIAL), MsgId(u32::MAX - 2)));
        config.datagram_max = 400;
        config.window = 64 + u32::from(window);
        config.peers_max = 3;
        config.fail_whole = whole;
        Self {
            qp: RdQp::new(config),
            ram: Ram {
                valid: vec![true; 8],
                receives: HashSet::new(),
            },
            sends: HashSet::new(),
            next: 0,
            at: address(qpn as u8),
            over: false,
        }
    }

    fn reap(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                RdEvent::Completion(done) => {
                    use haul_iwarp::CompletionKind::{Receive, ReceiveImmediate};
                    let open = match done.kind {
                        Receive { .. } | ReceiveImmediate { .. } => {
                            assert!(done.len <= RECEIVE);
                            self.ram.receives.remove(&done.slot)
                        }
                        _ => self.sends.remove(&done.id),
                    };
                    assert!(open, "it completes once");
                    assert!(!self.over || done.status != RdStatus::Success);
                }
                RdEvent::Record { to, len, .. } => {
                    assert!(
                        len == 0 || to + u64::from(len) <= REGION,
                        "an empty one names no memory"
                    );
                }
                RdEvent::Error => self.over = true,
                RdEvent::Up(_) | RdEvent::Down(..) => {}
            }
        }
    }
}

struct World {
    now: u64,
    ends: [End; 2],
    queue: Vec<(usize, Vec<u8>)>,
    /// What the foe knows: the first packet that its peer sends, and that it is expected to send
    /// itself.
    next: u32,
    msg: u32,
    cookie: Option<Cookie>,
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), 4_791))
}

impl World {
    fn new(input: &Input) -> Self {
        Self {
            now: 1_000_000_000,
            ends: [
                End::new(OWN, input.window, input.whole),
                End::new(FRIEND, input.window, false),
            ],
            queue: Vec::new(),
            next: 100,
            msg: 1,
            cookie: None,
        }
    }

    fn time(&self) -> Time {
        Time::from_ns(self.now)
    }

    fn feed(&mut self, at: usize, from: SocketAddr, bytes: &[u8], place: bool) {
        let now = self.time();
        let remote = Remote {
            addr: from,
            qpn: FOE,
        };
        let end = &mut self.ends[at];
        let mut known = end.qp.is_up(remote);
        if let Some(arrived) = end.qp.handle_datagram(now, &mut end.ram, from, bytes) {
            end.ram.check(&arrived.placement);
            assert_eq!(arrived.payload.len(), arrived.placement.len as usize);
            if place {
                end.qp.handle_placed(now, &mut end.ram);
            } else {
                end.qp.handle_memory_gone(now);
            }
        }
        known |= end.qp.is_up(remote);
        let answered = self.settle(at, from);
        assert!(known || from.port() == 4_791 || answered <= bytes.len());
    }

    /// What an engine does; returns the bytes that went to `source`.
    fn settle(&mut self, at: usize, source: SocketAddr) -> usize {
        let now = self.time();
        let mut out = [0; RD_HEADER_MAX];
        let mut answered = 0;
        for round in 0.. {
            assert!(round < 10_000, "it never comes to rest");
            let end = &mut self.ends[at];
            let transmit = end.qp.poll_transmit(now, &end.ram, &mut out);
            end.reap();
            let Some(transmit) = transmit else {
                return answered;
            };
            if let Payload::Region { region, offset } = transmit.payload {
                assert!(end.ram.valid[region.0 as usize]);
                assert!(offset + u64::from(transmit.payload_len) <= REGION);
            }
            let mut bytes = out[..transmit.header_len].to_vec();
            bytes.resize(bytes.len() + transmit.payload_len as usize, 7);
            if transmit.needs_crc {
                seal(&mut bytes);
            }
            assert!(bytes.len() <= 400 || bytes[1] != 0);
            let opened = Datagram::open(&bytes).expect("what it sends is well-formed");
            if transmit.to == source {
                answered += bytes.len();
            }
            if let Body::Cookie(cookie) = opened.body {
                self.cookie = Some(cookie);
            }
            if transmit.to == self.ends[1 - at].at && self.queue.len() < 1_000 {
                self.queue.push((1 - at, bytes));
            }
        }
        answered
    }

    fn deliver(&mut self, most: usize) {
        for _ in 0..most {
            if self.queue.is_empty() {
                return;
            }
            let (to, bytes) = self.queue.remove(0);
            self.feed(to, self.ends[1 - to].at, &bytes, true);
        }
    }

    fn control(&mut self, psn: u32, msg: u32, body: &Body<'_>, source: SocketAddr, epoch: u32) {
        let shim = Shim {
            kind: Kind::Ack,
            flags: Flags::RD,
            dst_qpn: OWN,
            src_qpn: FOE,
            epoch,
            psn: Psn(psn),
            msg_id: MsgId(msg),
            msg_len: msg,
            seg_off: OWN,
        };
        let mut bytes = [0; 1_200];
        let len = body.emit(&shim, &mut bytes);
        self.feed(0, source, &bytes[..len], true);
    }

    fn hello(&mut self, source: u8, cookie: bool, epoch: u8, initial: u8) {
        let terms = Terms {
            init_psn: Psn(self.next.wrapping_add(initial.into())),
            window: 200,
            max_seg: 300 + u16::from(initial),
            ird: 2,
            ord: 2,
            ..Terms::default()
        };
        let cookie = self.cookie.filter(|_| cookie);
        let hello = Body::Hello(Hello { cookie, terms });
        self.control(0, 0, &hello, unknown(source), u32::from(epoch % 4) + 1);
    }

    fn data(&mut self, data: &Data) {
        let opcode = match data.opcode % 14 {
            0xc => Opcode::WriteRecord,
            0xd => Opcode::WriteRecordImmediate,
            code => {
                let all = [
                    Rdmap::Write,
                    Rdmap::ReadRequest,
                    Rdmap::ReadResponse,
                    Rdmap::Send,
                    Rdmap::SendInvalidate,
                    Rdmap::SendSolicited,
                    Rdmap::SendSolicitedInvalidate,
                    Rdmap::Terminate,
                    Rdmap::Immediate,
                    Rdmap::ImmediateSolicited,
                    Rdmap::AtomicRequest,
                    Rdmap::AtomicResponse,
                ];
                Opcode::Rdmap(all[usize::from(code)])
            }
        };
        let stag = Stag(0x100 + u32::from(data.stag % 10));
        let to = i64::from(data.to).cast_unsigned();
        let own = match opcode {
            Opcode::Rdmap(Rdmap::ReadRequest) => ReadRequest {
                sink: stag,
                sink_to: to,
                len: data.len.into(),
                source: stag,
                source_to: to,
            }
            .emit()
            .to_vec(),
            Opcode::Rdmap(Rdmap::AtomicRequest) => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                AtomicRequest {
                    id: 1,
                    stag,
                    to,
                    op,
                }
                .emit()
                .to_vec()
            }
            Opcode::Rdmap(Rdmap::Immediate | Rdmap::ImmediateSolicited) => vec![1; 8],
            Opcode::Rdmap(Rdmap::AtomicResponse) => vec![0; 12],
            _ => Vec::new(),
        };
        // As the others cut: segments of what the hello agreed on.
        let around = match (opcode, opcode.queue()) {
            (Opcode::WriteRecordImmediate, _) => 22,
            (_, None) => 14,
            _ => 18,
        };
        let room = 300 - 40 - around;
        let (len, offset, payload) = if own.is_empty() {
            let len = u32::from(data.len);
            let offset = (u32::from(data.nth) * room).min(len);
            (len, offset, vec![1; room.min(len - offset) as usize])
        } else {
            (own.len() as u32, 0, own)
        };
        let psn = self.next.wrapping_add_signed(data.psn.into());
        let msg = self.msg.wrapping_add_signed(data.msg.into());
        if data.psn == 0 {
            self.next = self.next.wrapping_add(1);
        }
        let last = offset + payload.len() as u32 == len;
        self.msg = self.msg.wrapping_add(u32::from(last && data.msg == 0));
        let response = matches!(
            opcode,
            Opcode::Rdmap(Rdmap::ReadResponse | Rdmap::AtomicResponse)
        );
        let model = match opcode.queue() {
            None => Model::Tagged {
                stag,
                to: to.wrapping_add(offset.into()),
            },
            Some(qn) => Model::Untagged {
                ulp: stag.0,
                qn,
                msn: msg,
                mo: offset,
            },
        };
        let words = [5, 6, 7];
        let immediate = opcode == Opcode::WriteRecordImmediate;
        let header = DataHeader {
            shim: Shim {
                kind: Kind::Data,
                flags: Flags::RD
                    .with_if(Flags::LAST, last)
                    .with_if(Flags::RESP, response),
                dst_qpn: OWN,
                src_qpn: FOE,
                epoch: 1,
                psn: Psn(psn),
                msg_id: MsgId(msg),
                msg_len: len,
                seg_off: offset,
            },
            ext: if immediate { &words } else { &words[..1] },
            opcode,
            model,
        };
        let mut bytes = vec![0; DATA_HEADER_MAX];
        let header_len = header.emit(&mut bytes);
        bytes.truncate(header_len);
        bytes.extend(payload);
        seal(&mut bytes);
        self.feed(0, unknown(0), &bytes, data.honest);
    }

    fn post(&mut self, at: usize, to: Remote, kind: u8, len: u16, fence: bool) {
        let (stag, to_offset) = (Stag(0x100 + u32::from(kind >> 4)), u64::from(kind & 8));
        let op = match kind % 6 {
            0 => Operation::Send {
                solicited: false,
                invalidate: (kind & 64 != 0).then_some(stag),
            },
            1 => Operation::Write {
                stag,
                to: to_offset,
                placed: false,
            },
            2 => Operation::WriteRecord {
                stag,
                to: to_offset,
                immediate: (kind & 64 != 0).then_some(9),
            },
            3 => Operation::Read {
                sink: Stag(0x102),
                sink_to: 0,
                source: stag,
                source_to: to_offset,
            },
            4 => Operation::Atomic {
                stag,
                to: to_offset,
                op: AtomicOp::FetchAdd { add: 1, mask: 0 },
            },
            _ => Operation::Immediate {
                data: 3,
                solicited: false,
            },
        };
        let now = self.time();
        let end = &mut self.ends[at];
        let id = end.next;
        let mut wr = SendWr::new(id, 0, op, len.into());
        wr.fence = fence;
        if end.qp.post_send(now, to, wr).is_ok() {
            end.next += 1;
            end.sends.insert(id);
            assert!(end.sends.len() <= 16, "the depth is kept");
        }
        self.settle(at, address(0));
    }

    fn receive(&mut self, at: usize, slot: u32) {
        let now = self.time();
        let end = &mut self.ends[at];
        let wr = RecvWr::new(slot.into(), slot, RECEIVE);
        if !end.ram.receives.contains(&slot) && end.qp.post_receive(now, wr).is_ok() {
            end.ram.receives.insert(slot);
        }
        self.settle(at, address(0));
    }

    fn step(&mut self, step: &Step) {
        let foe = Remote {
            addr: unknown(0),
            qpn: FOE,
        };
        let now = self.time();
        match step {
            Step::Raw(source, bytes) => {
                let mut bytes = bytes.clone();
                if let [first, ..] = &mut bytes[..] {
                    *first = 0xd1;
                }
                seal(&mut bytes);
                self.feed(0, unknown(*source), &bytes, true);
            }
            Step::Data(data) => self.data(data),
            Step::Ack {
                cum,
                limit,
                echo,
                delay,
                ranges,
            } => {
                let psn = |by: i32| Psn(INITIAL.wrapping_add_signed(by));
                let ranges: Vec<_> = ranges
                    .iter()
                    .map(|&(start, end)| (psn(start.into()), psn(end.into())))
                    .collect();
                let ack = Ack::new(
                    psn((*cum).into()),
                    psn((*limit).into()),
                    *echo,
                    (*delay).into(),
                    &ranges,
                );
                self.control(self.next, self.msg, &Body::Ack(ack), unknown(0), 1);
            }
            Step::Hello {
                source,
                cookie,
                epoch,
                initial,
            } => self.hello(*source, *cookie, *epoch, *initial),
            Step::Notice { code, msg, psn } => {
                let code = match code % 6 {
                    0 => NoticeCode::Rnr,
                    1 => NoticeCode::TooLong,
                    2 => NoticeCode::Access,
                    3 => NoticeCode::Unsupported,
                    4 => NoticeCode::UnknownPeer,
                    _ => NoticeCode::Other(9),
                };
                let psn = INITIAL.wrapping_add_signed((*psn).into());
                let notice = Body::Notice(Notice { code, detail: 0 });
                self.control(psn, (*msg).into(), &notice, unknown(0), 1);
            }
            Step::Close { code, psn } => {
                let psn = INITIAL.wrapping_add_signed((*psn).into());
                let code = (*code).into();
                self.control(psn, 0, &Body::Close(Close { code }), unknown(0), 1);
            }
            Step::Post {
                to_friend,
                op,
                len,
                fence,
            } => {
                let friend = Remote {
                    addr: self.ends[1].at,
                    qpn: FRIEND,
                };
                let to = if *to_friend { friend } else { foe };
                self.post(0, to, *op, *len, *fence);
            }
            Step::FriendPost { op, len } => {
                let to = Remote {
                    addr: self.ends[0].at,
                    qpn: OWN,
                };
                self.post(1, to, *op, *len, false);
            }
            Step::Receive(slot) => {
                self.receive(0, (*slot).into());
                self.receive(1, (*slot).into());
            }
            Step::Lose => {
                if !self.queue.is_empty() {
                    self.queue.remove(0);
                }
            }
            Step::Deliver(most) => self.deliver((*most).into()),
            Step::Pass(ms) => {
                self.now += u64::from(*ms) * 100_000;
                let now = self.time();
                for at in 0..2 {
                    self.ends[at].qp.handle_timeout(now);
                    self.settle(at, address(0));
                }
            }
            Step::Revoke(at) => self.ends[0].ram.valid[usize::from(at % 8)] = false,
            Step::Gone => self.ends[0].qp.handle_memory_gone(now),
            Step::Disconnect => self.ends[0].qp.disconnect(now, foe),
            Step::Close2 => self.ends[0].qp.close(now),
        }
        self.settle(0, address(0));
        let count = self.ends[0].qp.peer_count();
        assert!(count <= 3, "the table has a limit");
    }
}

/// Unknown peers have ports of their own.
fn unknown(source: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 1, 0, source % 6), 9))
}

fn seal(bytes: &mut Vec<u8>) {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    bytes.extend(crc.to_wire());
}

fuzz_target!(|input: Input| {
    let mut world = World::new(&input);
    // Two acquaintances: a friend, and a foe with a good cookie.
    let friend = Remote {
        addr: world.ends[1].at,
        qpn: FRIEND,
    };
    world.post(0, friend, 5, 0, false);
    world.deliver(10);
    world.hello(0, false, 0, 0);
    world.hello(0, true, 0, 0);
    for step in &input.steps {
        world.step(step);
    }
});
