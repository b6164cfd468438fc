//! How fast the software RNIC is over loopback, between two threads that share nothing but the
//! kernel: bandwidth of RDMA Writes, rate of small ones, and latency of small Sends beside that of
//! plain TCP.
//!
//! `cargo run --release -p haul-soft --example rnic_rate`, with `-- [udt] [no-crc] [protect]
//! [bw|rate|lat]…`
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures time, and plain TCP"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of an experiment that fit"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use haul_control::identity::PrivateKey;
use haul_control::protect::Protection;
use haul_soft::rnic::{Options, provider};
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    AccessFlags, Context, Cq, Data, Mr, Qp, QpInit, RecvWr, Region, Remote, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus, WorkCompletion,
};

const LENGTH: usize = 1 << 20;
const SLOTS: usize = 16;

struct End {
    _context: Context,
    cq: Cq,
    mr: Mr,
    qp: Qp,
    pings: AtomicU32,
    _events: haul_verbs::cm::EventChannel,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut options = Options::default();
    options.crc = !arguments.iter().any(|word| word == "no-crc");
    if arguments.iter().any(|word| word == "protect") {
        let key = PrivateKey::generate().expect("a key");
        let public = key.public();
        let protection = Protection::keys(key, vec![public]).expect("a protection");
        options.protect = Some(Arc::new(protection));
    }
    let wanted = |name: &str| {
        let chosen = |word: &String| ["bw", "rate", "lat"].contains(&word.as_str());
        !arguments.iter().any(chosen) || arguments.iter().any(|word| word == name)
    };
    let device = usize::from(arguments.iter().any(|word| word == "udt"));
    let (near, far) = connect(&options, device);
    let remote = far.mr.remote(0);
    let peer = std::thread::spawn(move || serve(&far));
    if wanted("bw") {
        bandwidth(&near, remote);
    }
    if wanted("rate") {
        rate(&near, remote);
    }
    if wanted("lat") {
        latency(&near);
    }
    near.qp.disconnect().expect("disconnect");
    peer.join().expect("the peer");
}

fn connect(options: &Options, device: usize) -> (End, End) {
    let (port, address) = mpsc::channel();
    let theirs = options.clone();
    let far = std::thread::spawn(move || {
        let (end, events) = open(&theirs, device);
        let listener = end
            ._context
            .listen((Ipv4Addr::LOCALHOST, 0).into(), &events, 1)
            .expect("listen");
        port.send(listener.local_addr()).expect("the other thread");
        let Some(CmEvent::ConnectRequest(request)) = events.wait(None).expect("event") else {
            panic!("no request");
        };
        for slot in 0..SLOTS as u64 {
            end.qp
                .post_recv(&[RecvWr::new(slot, end.mr.sge(slot * 64, 64))])
                .expect("receive");
        }
        request
            .accept(&end.qp, &ConnParam::default())
            .expect("accept");
        events.wait(None).expect("established");
        end
    });
    let (near, events) = open(options, device);
    for slot in 0..SLOTS as u64 {
        near.qp
            .post_recv(&[RecvWr::new(slot, near.mr.sge(slot * 64, 64))])
            .expect("receive");
    }
    near.qp
        .connect(
            address.recv().expect("address"),
            &ConnParam::default(),
            &events,
        )
        .expect("connect");
    events.wait(None).expect("established");
    (near, far.join().expect("the peer"))
}

fn open(options: &Options, device: usize) -> (End, haul_verbs::cm::EventChannel) {
    let devices = provider(options.clone()).devices().expect("devices");
    let context = devices[device].open().expect("open");
    let pd = context.alloc_pd().expect("pd");
    let cq = context.create_cq(4096, None, 0).expect("cq");
    let region = Region::map(LENGTH * SLOTS).expect("memory");
    region.fill(0, LENGTH * SLOTS, 1).expect("fill");
    let mr = pd.reg_mr(&region, AccessFlags::all()).expect("mr");
    let mut init = QpInit::new(&cq);
    init.capacity.max_send_wr = 1024;
    init.capacity.max_inline = 64;
    let qp = pd.create_qp(&init).expect("qp");
    let events = context.create_event_channel().expect("events");
    let end = End {
        _context: context,
        cq,
        mr,
        qp,
        pings: AtomicU32::new(0),
        _events: events.clone(),
    };
    (end, events)
}

/// Answers pings until the peer disconnects.
fn serve(end: &End) {
    let mut out = [WorkCompletion::default(); 16];
    loop {
        let count = end.cq.wait(&mut out, None).expect("completions");
        for wc in &out[..count] {
            if wc.status != WcStatus::Success {
                eprintln!("peer ends: {:?}", end.qp.failure());
                return;
            }
            if wc.opcode == WcOpcode::Recv {
                end.qp
                    .post_recv(&[RecvWr::new(wc.wr_id, end.mr.sge(wc.wr_id * 64, 64))])
                    .expect("receive");
                ping(end);
            }
        }
    }
}

/// One in so many is signalled: the completion frees the places of those before it.
const SIGNALLED_EVERY: u32 = 256;

fn ping(end: &End) {
    let wr = SendWr::new(99, SendOp::Send, Data::Inline(&[7; 64]));
    let count = end.pings.fetch_add(1, Ordering::Relaxed);
    let wr = if count.is_multiple_of(SIGNALLED_EVERY) {
        wr
    } else {
        wr.with_flags(SendFlags::empty())
    };
    end.qp.post_send(&[wr]).expect("send");
}

fn pong(end: &End) {
    pong_by(end, Cq::poll);
}

/// How an end learns that the answer is there.
type Look = fn(&Cq, &mut [WorkCompletion]) -> haul_verbs::Result<usize>;

fn pong_by(end: &End, look: Look) {
    let mut out = [WorkCompletion::default()];
    while look(&end.cq, &mut out).expect("completions") == 0 || out[0].opcode != WcOpcode::Recv {
        assert_eq!(out[0].status, WcStatus::Success, "{:?}", end.qp.failure());
    }
    let slot = out[0].wr_id;
    end.qp
        .post_recv(&[RecvWr::new(slot, end.mr.sge(slot * 64, 64))])
        .expect("receive");
}

/// A round trip behind everything that was written.
fn barrier(end: &End) {
    ping(end);
    pong(end);
}

/// Series of each kind, and round trips of each series: they take turns, so that all meet the same
/// machine.
const SERIES: usize = 20;
const PINGS: usize = 2_000;
/// Round trips before each series.
const WARM_UP: usize = 200;

/// Polling, waiting, and plain TCP that waits in its calls: half of the median round trip of each.
fn latency(end: &End) {
    let mut trips: [Vec<Duration>; 3] = std::array::from_fn(|_| Vec::new());
    let mut plain = Plain::new();
    for _ in 0..SERIES {
        let [polled, waited, tcp] = &mut trips;
        series(polled, || {
            ping(end);
            pong(end);
        });
        series(waited, || {
            ping(end);
            pong_by(end, |cq, out| cq.wait(out, None));
        });
        series(tcp, || plain.trip());
    }
    let [polled, waited, tcp] = trips.map(|mut trips| {
        trips.sort_unstable();
        trips[trips.len() / 2].as_secs_f64() * 1e6 / 2.0
    });
    println!(
        "half of the median round trip of 64 bytes: polling {polled:.2} us, waiting {waited:.2} us, TCP {tcp:.2} us; \
         {:.2} and {:.2} times TCP",
        polled / tcp,
        waited / tcp
    );
}

fn series(trips: &mut Vec<Duration>, mut trip: impl FnMut()) {
    for _ in 0..WARM_UP {
        trip();
    }
    for _ in 0..PINGS {
        let start = Instant::now();
        trip();
        trips.push(start.elapsed());
    }
}

/// A connection of plain TCP to a thread that answers.
struct Plain(TcpStream);

impl Plain {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (mut far, _) = listener.accept().expect("accept");
        near.set_nodelay(true).expect("nodelay");
        far.set_nodelay(true).expect("nodelay");
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while far.read_exact(&mut bytes).is_ok() {
                far.write_all(&bytes).expect("write");
            }
        });
        Self(near)
    }

    fn trip(&mut self) {
        let mut bytes = [0; 64];
        self.0.write_all(&bytes).expect("write");
        self.0.read_exact(&mut bytes).expect("read");
    }
}

fn bandwidth(end: &End, remote: Remote) {
    for _ in 0..3 {
        let cpu = haul_io::clock::process_cpu().expect("clock");
        let start = Instant::now();
        let (mut posted, mut done) = (0_u64, 0_u64);
        let mut out = [WorkCompletion::default(); 16];
        while start.elapsed() < Duration::from_secs(2) || done < posted {
            while posted - done < SLOTS as u64 && start.elapsed() < Duration::from_secs(2) {
                let at = posted % SLOTS as u64 * LENGTH as u64;
                let to = Remote {
                    addr: remote.addr + at,
                    ..remote
                };
                let wr = SendWr::new(posted, SendOp::RdmaWrite(to), end.mr.sge(at, LENGTH as u32));
                end.qp.post_send(&[wr]).expect("write");
                posted += 1;
            }
            done += end.cq.poll(&mut out).expect("completions") as u64;
        }
        barrier(end);
        let seconds = start.elapsed().as_secs_f64();
        let bytes = (done * LENGTH as u64) as f64;
        let cpu = haul_io::clock::process_cpu()
            .expect("clock")
            .since(cpu)
            .total_ns() as f64
            / 1e9;
        println!(
            "RDMA Write of 1 MiB: {:.1} Gb/s, {:.2} CPU s/GB",
            bytes * 8e-9 / seconds,
            cpu / (bytes / 1e9)
        );
    }
}

fn rate(end: &End, remote: Remote) {
    const BATCH: usize = 64;
    for _ in 0..3 {
        let start = Instant::now();
        let (mut posted, mut done) = (0_u64, 0_u64);
        let mut out = [WorkCompletion::default(); 64];
        while start.elapsed() < Duration::from_secs(1) {
            let requests: [SendWr<'_>; BATCH] = std::array::from_fn(|at| {
                let at = at as u64 * 64;
                let to = Remote {
                    addr: remote.addr + at,
                    ..remote
                };
                let flags = if at as usize == (BATCH - 1) * 64 {
                    SendFlags::SIGNALED
                } else {
                    SendFlags::empty()
                };
                SendWr::new(1, SendOp::RdmaWrite(to), end.mr.sge(at, 64)).with_flags(flags)
            });
            end.qp.post_send(&requests).expect("writes");
            posted += 1;
            while posted - done > 8 {
                done += end.cq.poll(&mut out).expect("completions") as u64;
            }
        }
        while done < posted {
            done += end.cq.poll(&mut out).expect("completions") as u64;
        }
        barrier(end);
        let count = (posted * BATCH as u64) as f64;
        println!(
            "RDMA Write of 64 bytes: {:.2} M/s",
            count * 1e-6 / start.elapsed().as_secs_f64()
        );
    }
}
