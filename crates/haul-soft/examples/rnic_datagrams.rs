//! How fast datagram services are, beside what they are made of: latency of small Sends beside
//! RC's, and Write-Records beside plain UDP with segmentation offload.
//!
//! `cargo run --release -p haul-soft --example rnic_datagrams -- lat` in one place; for bandwidth
//! `target ADDR` or `sink ADDR` in one, and `write ADDR SECONDS [BYTES]` or `spout ADDR SECONDS` in
//! another: loopback, or two namespaces. `write` reads the target's number and key on a port
//! beside its own. 256 MiB of memory at both ends: colder than any cache.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures time, and tells keys over plain UDP"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "numbers of an experiment that fit"
)]

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as Plain};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use haul_io::udp::{RecvBatch, UdpOptions, UdpSocket};
use haul_soft::rnic::{Options, provider};
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    AccessFlags, Context, Cq, Data, DatagramInit, Mr, MrInit, Peer, Qp, QpInit, QpType, RecvWr,
    Region, Remote, SendFlags, SendOp, SendWr, Sources, WcOpcode, WcStatus, WorkCompletion,
};

const MEMORY: usize = 256 << 20;
const SEGMENT: usize = 1_472;
const SUPER_PACKET: usize = 44 * SEGMENT;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["lat"] => latency(),
        ["target", addr] => target(addr.parse().expect("address")),
        ["write", addr, seconds, ref rest @ ..] => {
            let bytes = rest
                .first()
                .map_or(1 << 20, |word| word.parse().expect("bytes"));
            write(
                addr.parse().expect("address"),
                seconds.parse().expect("seconds"),
                bytes,
            );
        }
        ["sink", addr] => sink(addr.parse().expect("address")),
        ["spout", addr, seconds] => {
            spout(
                addr.parse().expect("address"),
                seconds.parse().expect("seconds"),
            );
        }
        _ => eprintln!("say lat, target, write, sink or spout"),
    }
}

struct End {
    _context: Context,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

fn open(device: &str, qp_type: QpType, memory: usize) -> End {
    let devices = provider(Options::default()).devices().expect("devices");
    let device = devices.iter().find(|found| found.name() == device);
    let context = device.expect("device").open().expect("open");
    let pd = context.alloc_pd().expect("pd");
    let cq = context.create_cq(4_096, None, 0).expect("cq");
    let region = Region::map(memory).expect("memory");
    region.fill(0, memory, 1).expect("fill");
    let mr = pd.register(MrInit::new(region, AccessFlags::all()).with_sources(Sources::Any));
    let mut init = QpInit::new(&cq);
    init.qp_type = qp_type;
    init.capacity.max_inline = 64;
    init.datagram = DatagramInit::default();
    let qp = pd.create_qp(&init).expect("qp");
    End {
        _context: context,
        cq,
        mr: mr.expect("mr"),
        qp,
    }
}

// ---- latency

const ROUNDS: usize = 200_000;

fn latency() {
    let anywhere: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    for qp_type in [QpType::Ud, QpType::Rc] {
        let (tell, told) = mpsc::channel::<Option<Peer>>();
        let (answer, answered) = mpsc::channel::<SocketAddr>();
        let (tell_far, far_told) = mpsc::channel::<Peer>();
        let device = if qp_type == QpType::Rc {
            "soft-tcp"
        } else {
            "soft-udp"
        };
        let far = std::thread::spawn(move || {
            let end = open(device, qp_type, 4_096);
            let events = end._context.create_event_channel().expect("events");
            for slot in 0..16 {
                receive(&end, slot);
            }
            if qp_type == QpType::Rc {
                let listener = end._context.listen(anywhere, &events, 1).expect("listen");
                answer.send(listener.local_addr()).expect("main");
                let Some(CmEvent::ConnectRequest(request)) = events.wait(None).expect("event")
                else {
                    panic!("no request");
                };
                request
                    .accept(&end.qp, &ConnParam::default())
                    .expect("accept");
                events.wait(None).expect("established");
            } else {
                let addr = end.qp.bind(anywhere).expect("bind");
                tell_far
                    .send(Peer::new(addr, end.qp.qp_num()))
                    .expect("main");
            }
            let peer = told.recv().expect("main");
            pong(&end, peer, ROUNDS, false);
        });
        let near = open(device, qp_type, 4_096);
        let events = near._context.create_event_channel().expect("events");
        for slot in 0..16 {
            receive(&near, slot);
        }
        let peer = if qp_type == QpType::Rc {
            let addr = answered.recv().expect("far");
            near.qp
                .connect(addr, &ConnParam::default(), &events)
                .expect("connect");
            events.wait(None).expect("established");
            tell.send(None).expect("far");
            None
        } else {
            let addr = near.qp.bind(anywhere).expect("bind");
            tell.send(Some(Peer::new(addr, near.qp.qp_num())))
                .expect("far");
            Some(far_told.recv().expect("far"))
        };
        let mut times = pong(&near, peer, ROUNDS, true);
        far.join().expect("far");
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100] as f64 / 2_000.0;
        println!(
            "{qp_type:?} 64 bytes, half round trip, us: median {:.2} 99 % {:.2}",
            at(50),
            at(99)
        );
    }
}

fn receive(end: &End, slot: u64) {
    let wr = RecvWr::new(slot, end.mr.sge(slot * 64, 64));
    end.qp.post_recv(&[wr]).expect("receive");
}

/// Plays `rounds`; the time of each in ns, at the end that begins.
fn pong(end: &End, peer: Option<Peer>, rounds: usize, begins: bool) -> Vec<u64> {
    let bytes = [7; 64];
    let mut wr = SendWr::new(0, SendOp::Send, Data::Inline(&bytes));
    wr.peer = peer;
    let mut out = [WorkCompletion::default(); 4];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        // The completion of one in so many frees the places of those before it.
        wr.flags.set(SendFlags::SIGNALED, round % 64 == 0);
        let before = Instant::now();
        if begins {
            end.qp.post_send(&[wr]).expect("send");
        }
        while end.cq.poll(&mut out[..1]).expect("poll") == 0 || out[0].opcode != WcOpcode::Recv {
            assert_eq!(out[0].status, WcStatus::Success);
        }
        receive(end, out[0].wr_id);
        if !begins {
            end.qp.post_send(&[wr]).expect("send");
        }
        times.push(before.elapsed().as_nanos() as u64);
    }
    times
}

// ---- bandwidth

/// The port where a target tells its number and key.
fn beside(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port() + 1)
}

fn target(addr: SocketAddr) {
    let end = open("soft-udp", QpType::Ud, MEMORY);
    end.qp.bind(addr).expect("bind");
    let desk = Plain::bind(beside(addr)).expect("bind");
    let (_, who) = desk.recv_from(&mut [0]).expect("a question");
    let remote = end.mr.remote(0);
    let answer = [end.qp.qp_num().to_be_bytes(), remote.rkey.to_be_bytes()].concat();
    desk.send_to(&answer, who).expect("answer");
    let mut out = [WorkCompletion::default(); 64];
    let (mut start, mut end_at, mut bytes, mut full, mut records) = (None, Instant::now(), 0, 0, 0);
    loop {
        let count = end
            .cq
            .wait(&mut out, Some(Duration::from_secs(2)))
            .expect("wait");
        if count == 0 && start.is_some() {
            break;
        }
        for wc in &out[..count] {
            let record = end.qp.take_record(wc.wr_id).expect("record");
            if start.is_none() {
                // What the first one took is not known.
                start = Some(Instant::now());
                continue;
            }
            bytes += u64::from(record.valid);
            full += u64::from(record.valid == record.len);
            records += 1;
            end_at = Instant::now();
        }
    }
    let seconds = end_at
        .duration_since(start.expect("a record"))
        .as_secs_f64();
    let rate = bytes as f64 * 8e-9 / seconds;
    println!("placed {rate:.2} Gb/s, {full} of {records} records full");
    println!("{:?}", end.qp.datagram_statistics().expect("statistics"));
}

fn write(addr: SocketAddr, seconds: u64, len: u32) {
    let end = open("soft-udp", QpType::Ud, MEMORY);
    let own = if addr.ip().is_loopback() {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    end.qp.bind((own, 0).into()).expect("bind");
    let desk = Plain::bind((own, 0)).expect("bind");
    desk.send_to(b"?", beside(addr)).expect("question");
    let mut answer = [0; 8];
    desk.recv(&mut answer).expect("answer");
    let word = |at: usize| {
        u32::from_be_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]])
    };
    let (peer, rkey) = (Peer::new(addr, word(0)), word(4));
    let mut out = [WorkCompletion::default(); 64];
    let stop = Instant::now() + Duration::from_secs(seconds);
    let (mut posted, mut done) = (0_u64, 0_u64);
    while Instant::now() < stop {
        while posted - done < 4 {
            let at = posted * u64::from(len) % (MEMORY as u64 - u64::from(len) + 1);
            let remote = Remote { addr: at, rkey };
            let wr = SendWr::new(posted, SendOp::WriteRecord(remote), end.mr.sge(at, len));
            end.qp.post_send(&[wr.to(peer)]).expect("post");
            posted += 1;
        }
        done += end.cq.wait(&mut out, None).expect("wait") as u64;
    }
    println!(
        "sent {:.2} Gb/s",
        done as f64 * f64::from(len) * 8e-9 / seconds as f64
    );
}

/// Plain UDP: received by super-packets into 256 MiB of buffers, one after the other.
fn sink(addr: SocketAddr) {
    let mut options = UdpOptions::default();
    options.recv_buffer_bytes = 4 << 20;
    options.timestamps = false;
    let socket = UdpSocket::bind(addr, &options).expect("bind");
    let places = MEMORY >> 16;
    let mut batch = RecvBatch::new(8, 1 << 16, places).expect("buffers");
    let mut cold = VecDeque::with_capacity(places);
    let (mut start, mut end, mut bytes) = (None, Instant::now(), 0);
    loop {
        match socket.recv_batch(&mut batch) {
            Ok(count) => {
                for at in 0..count {
                    bytes += batch.message(at).map_or(0, |message| message.bytes.len());
                    if cold.len() == places {
                        cold.pop_front();
                    }
                    cold.extend(batch.take(at));
                }
                end = Instant::now();
                start.get_or_insert(end);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if start.is_some() && end.elapsed() > Duration::from_secs(1) {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    let seconds = end.duration_since(start.expect("something")).as_secs_f64();
    println!("received {:.2} Gb/s", bytes as f64 * 8e-9 / seconds);
}

fn spout(addr: SocketAddr, seconds: u64) {
    let own = if addr.ip().is_loopback() {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    let mut options = UdpOptions::default();
    options.send_buffer_bytes = 4 << 20;
    let socket = UdpSocket::bind((own, 0).into(), &options).expect("bind");
    let memory = vec![7; MEMORY];
    let (stop, mut bytes) = (Instant::now() + Duration::from_secs(seconds), 0);
    for piece in memory.chunks_exact(SUPER_PACKET).cycle() {
        if Instant::now() >= stop {
            break;
        }
        let sent = socket.send_segments(addr, SEGMENT, &[IoSlice::new(piece)]);
        bytes += sent.unwrap_or(0) * SEGMENT;
    }
    println!("sent {:.2} Gb/s", bytes as f64 * 8e-9 / seconds as f64);
}
