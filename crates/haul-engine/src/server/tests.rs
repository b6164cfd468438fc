//! Clients that do what no client does: their sessions end, and nobody else's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haul_slab::SharedMemory;
use haul_soft::udt::stream;
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{
    AccessFlags, Context, Cq, DatagramInit, Mr, Qp, QpCapacity, QpInit, SendOp, SendWr, WcStatus,
    WorkCompletion,
};
use rustix::net::{RecvFlags, SendFlags};

use super::*;
use crate::message::{
    ABI, Allowed, Capacity, CreateQp, Datagram, MESSAGE_MAX, Parameters, Reply, Request,
    StreamOptions,
};
use crate::shared::QpRings;

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of each message of the neighbour.
const MESSAGE: usize = 64 << 10;
/// What the hostile client does in all, unless the environment names another count.
const STEPS: u64 = 20_000;

/// An engine in this process, and where it is.
struct Running {
    path: PathBuf,
    counters: Arc<Counters>,
    _folder: tempfile::TempDir,
}

fn engine() -> Running {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let server = Server::bind(&path, Options::default()).unwrap();
    let counters = server.counters();
    let tell: Tell = Arc::new(|_: &str| {});
    std::thread::spawn(move || server.run(&tell));
    Running {
        path,
        counters,
        _folder: folder,
    }
}

struct End {
    _context: Context,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

fn end(path: &Path) -> (End, haul_verbs::cm::EventChannel) {
    let provider = crate::provider(path.to_owned(), rnic::Options::default());
    let context = provider.devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let events = context.create_event_channel().unwrap();
    let region = pd.map(MESSAGE).unwrap();
    let mr = pd.reg_mr(&region, AccessFlags::all()).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let end = End {
        _context: context,
        cq,
        mr,
        qp,
    };
    (end, events)
}

/// Two ends with a connection.
fn connected(path: &Path) -> (End, End) {
    let ((near, near_events), (far, far_events)) = (end(path), end(path));
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let listener = far._context.listen(local, &far_events, 1).unwrap();
    let param = ConnParam::default();
    near.qp
        .connect(listener.local_addr(), &param, &near_events)
        .unwrap();
    match far_events.wait(Some(PATIENCE)).unwrap().unwrap() {
        CmEvent::ConnectRequest(request) => request.accept(&far.qp, &param).unwrap(),
        other => panic!("{other:?}"),
    }
    near_events.wait(Some(PATIENCE)).unwrap().unwrap();
    (near, far)
}

/// Random numbers of a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, most: u64) -> u64 {
        (self.next() >> 8) % most
    }

    /// Small, at a limit, or anything.
    fn number(&mut self) -> u32 {
        match self.below(4) {
            0 => u32::MAX - u32::try_from(self.below(3)).unwrap(),
            1 => u32::try_from(self.next() >> 32).unwrap(),
            _ => u32::try_from(self.below(20)).unwrap(),
        }
    }

    fn address(&mut self) -> SocketAddr {
        let port = [0, 0, 1, 9, 80][usize::try_from(self.below(5)).unwrap()];
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    fn request(&mut self) -> Request {
        let param = |dice: &mut Self| {
            let data = vec![7; usize::try_from(dice.below(600)).unwrap()];
            let mut param = ConnParam::default();
            param.private_data = &data;
            Parameters::of(&param)
        };
        let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
        let qp = self.number();
        match self.below(25) {
            0 => Request::Open {
                abi: ABI,
                transport: 0,
                protect: None,
            },
            1 => Request::AllocPd,
            2 => Request::CreateCompletionChannel,
            3 => Request::CreateEventChannel,
            4 | 23 => Request::CreateCq {
                entries: self.number(),
                channel: (self.below(2) == 0).then(|| self.number()),
                token: self.next(),
            },
            5 | 22 => {
                let mut capacity = QpCapacity::default();
                (capacity.max_send_wr, capacity.max_recv_wr) = (self.number(), self.number());
                capacity.max_inline = self.number();
                Request::CreateQp(Box::new(CreateQp {
                    pd: self.number(),
                    qp_type: u8::try_from(self.below(4)).unwrap(),
                    send_cq: self.number(),
                    recv_cq: self.number(),
                    srq: (self.below(4) == 0).then(|| self.number()),
                    capacity: Capacity::of(capacity),
                    signal_all: self.below(2) == 0,
                    remote_placement: self.below(2) == 0,
                    rate_limit: (self.below(4) == 0).then(|| (self.next(), None)),
                    datagram: Datagram::of(&DatagramInit::default()),
                }))
            }
            6 | 21 => Request::Register {
                pd: self.number(),
                offset: self.number().into(),
                len: self.number().into(),
                access: self.number(),
                addr: (self.below(2) == 0).then(|| self.next()),
                sources: Allowed::Any,
            },
            7 => Request::CreateSrq {
                pd: self.number(),
                max_wr: self.number(),
                max_sge: self.number(),
                token: self.next(),
            },
            8 => Request::ArmSrq {
                srq: qp,
                limit: self.number(),
            },
            9 => Request::Listen {
                address: self.address(),
                channel: self.number(),
                backlog: self.number(),
            },
            10 => Request::Connect {
                qp,
                peer: self.address(),
                param: param(self),
                channel: self.number(),
            },
            11 => Request::Accept {
                request: self.number(),
                qp,
                param: param(self),
            },
            12 => Request::Reject {
                request: self.number(),
                private_data: vec![1; usize::try_from(self.below(600)).unwrap()],
            },
            13 => Request::Disconnect(qp),
            14 => Request::State(qp),
            15 => Request::Statistics(qp),
            16 => Request::Bind {
                qp,
                address: self.address(),
            },
            17 => Request::Adopt(qp),
            18 => Request::Multicast {
                qp,
                attach: self.below(2) == 0,
                group,
                interface: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            },
            19 => Request::Records {
                qp,
                rkey: self.number(),
            },
            24 => self.stream_request(),
            _ => Request::Close(self.number()),
        }
    }

    fn stream_request(&mut self) -> Request {
        match self.below(3) {
            0 => Request::ConnectStream {
                local: (self.below(4) == 0).then(|| self.address()),
                peer: self.address(),
                options: self.stream_options(),
            },
            1 => Request::ListenForStreams {
                address: self.address(),
                options: self.stream_options(),
            },
            _ => Request::AcceptStream(self.number()),
        }
    }

    fn stream_options(&mut self) -> StreamOptions {
        let mut options = stream::Options::default();
        let mut bytes = || match self.below(4) {
            0 => usize::try_from(self.next() >> self.below(64)).unwrap(),
            _ => 1 << 20,
        };
        (options.send_bytes, options.receive_bytes) = (bytes(), bytes());
        if self.below(4) == 0 {
            options.rate_bps = Some(self.next() >> self.below(64));
            options.udt.config.connect_timeout_ns = self.next() >> self.below(64);
            options.udt.config.idle_timeout_ns = self.next() >> self.below(64);
        }
        StreamOptions::of(&options)
    }

    /// Memory of many kinds, and what is none.
    fn descriptor(&mut self, kept: &mut Vec<SharedMemory>) -> OwnedFd {
        match self.below(8) {
            0 => std::fs::File::open("/dev/null").unwrap().into(),
            1 => {
                let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
                let fd = rustix::fs::memfd_create(c"unsealed", flags).unwrap();
                rustix::fs::ftruncate(&fd, self.below(1 << 20)).unwrap();
                fd
            }
            2 => socket().unwrap(),
            _ => {
                let len = 1 + usize::try_from(self.below(200_000)).unwrap();
                let memory = SharedMemory::create(len).unwrap();
                let fd = memory.fd().unwrap().try_clone_to_owned().unwrap();
                kept.truncate(64);
                kept.push(memory);
                fd
            }
        }
    }
}

/// A client by hand. None where the session has ended.
struct Hostile {
    control: Packets,
    memories: Vec<SharedMemory>,
    doorbell: Option<OwnedFd>,
    /// Of streams.
    bells: Vec<OwnedFd>,
}

impl Hostile {
    fn open(path: &Path) -> Self {
        let control = Packets::connect(path).unwrap();
        let page = SharedMemory::create(1).unwrap();
        let request = Request::Open {
            abi: ABI,
            transport: 1,
            protect: None,
        };
        control
            .put(&request, &[page.fd().unwrap()], SendFlags::empty())
            .unwrap();
        let opened = control.receive(RecvFlags::empty()).unwrap().unwrap();
        Self {
            control,
            memories: vec![page],
            doorbell: opened.descriptors.into_iter().nth(1),
            bells: Vec::new(),
        }
    }

    /// What a client asks for that behaves, so that there is something to attack.
    fn furnish(&mut self) -> Option<()> {
        let queue = |memories: &mut Vec<SharedMemory>| {
            memories.push(SharedMemory::create(crate::shared::queue_bytes(16)).unwrap());
        };
        self.ask(&Request::AllocPd, false)?;
        queue(&mut self.memories);
        let cq = Request::CreateCq {
            entries: 16,
            channel: None,
            token: 0,
        };
        self.ask(&cq, true)?;
        let capacity = QpCapacity::default();
        let bytes = QpRings::of(capacity, false).bytes;
        self.memories.push(SharedMemory::create(bytes).unwrap());
        let qp = Request::CreateQp(Box::new(CreateQp {
            pd: 1,
            qp_type: 0,
            send_cq: 2,
            recv_cq: 2,
            srq: None,
            capacity: Capacity::of(capacity),
            signal_all: false,
            remote_placement: false,
            rate_limit: None,
            datagram: Datagram::of(&DatagramInit::default()),
        }));
        self.ask(&qp, true)?;
        // A stream between itself and itself.
        let mut options = stream::Options::default();
        (options.send_bytes, options.receive_bytes) = (1 << 20, 1 << 20);
        let options = || StreamOptions::of(&options);
        let listen = Request::ListenForStreams {
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            options: options(),
        };
        let Reply::Listener { listener, address } = self.ask(&listen, false)? else {
            panic!("no listener");
        };
        let connect = Request::ConnectStream {
            local: None,
            peer: address,
            options: options(),
        };
        self.ask(&connect, false)?;
        for _ in 0..100 {
            match self.ask(&Request::AcceptStream(listener), false)? {
                Reply::Done => std::thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        Some(())
    }

    fn ask(&mut self, request: &Request, with_memory: bool) -> Option<Reply> {
        let last = self.memories.last().filter(|_| with_memory);
        let fds: Vec<_> = last.iter().filter_map(|memory| memory.fd()).collect();
        self.control.put(request, &fds, SendFlags::empty()).ok()?;
        let packet = self.control.receive(RecvFlags::empty()).ok()??;
        let reply: Reply = packet.message().ok()?;
        assert!(!matches!(reply, Reply::Failed(_)), "{reply:?}");
        if let Reply::Stream { .. } = reply {
            let mut given = packet.descriptors.into_iter();
            let memory = given.next().unwrap();
            self.memories
                .push(SharedMemory::adopt(&memory, usize::MAX).unwrap());
            self.bells.extend(given);
        }
        Some(reply)
    }

    /// One step; whether the session goes on.
    fn step(&mut self, dice: &mut Dice) -> bool {
        match dice.below(10) {
            // Words of rings, where the indices and the first entries are.
            0..=3 => {
                let which = usize::try_from(dice.below(self.memories.len() as u64)).unwrap();
                let words = self.memories[which].words();
                for _ in 0..dice.below(40) {
                    let at = match dice.below(3) {
                        0 => [0, 1, 2, 8, 16, 17, 18, 19][usize::try_from(dice.below(8)).unwrap()],
                        _ => usize::try_from(dice.below(words.len() as u64)).unwrap(),
                    };
                    let value = match dice.below(3) {
                        0 => dice.below(20),
                        _ => dice.next() >> dice.below(64),
                    };
                    words[at].store(value, Ordering::Relaxed);
                }
                self.ring();
                true
            }
            4 => {
                let len = usize::try_from(dice.below(300)).unwrap();
                let bytes: Vec<u8> = (0..len).map(|_| dice.next().to_le_bytes()[3]).collect();
                self.exchange(&bytes, dice)
            }
            5 => self.exchange(&vec![0x81; MESSAGE_MAX], dice),
            _ => {
                let bytes = minicbor::to_vec(dice.request()).unwrap();
                self.exchange(&bytes, dice)
            }
        }
    }

    fn ring(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        for doorbell in self.doorbell.iter().chain(&self.bells) {
            let _ = rustix::net::send(doorbell, &[1; 8], flags);
        }
    }

    fn exchange(&mut self, bytes: &[u8], dice: &mut Dice) -> bool {
        let mut fds = Vec::new();
        for _ in 0..dice.below(3) {
            fds.push(dice.descriptor(&mut self.memories));
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if self
            .control
            .send(bytes, &borrowed, SendFlags::empty())
            .is_err()
        {
            return false;
        }
        matches!(self.control.receive(RecvFlags::empty()), Ok(Some(_)))
    }
}

/// One at a time: they count the descriptors of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    lock(&ALONE)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_hostile_client_harms_nobody_else() {
    let _alone = alone();
    let steps = std::env::var("HAUL_ENGINE_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    let running = engine();
    let (near, far) = connected(&running.path);
    let stop = AtomicBool::new(false);
    let before = descriptors();
    let moved = std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let mut rounds = 0_u64;
            let mut out = [WorkCompletion::default()];
            while !stop.load(Ordering::Relaxed) {
                rounds += 1;
                let byte = rounds.to_le_bytes()[0];
                near.mr.region().fill(0, MESSAGE, byte).unwrap();
                let op = SendOp::RdmaWrite(far.mr.remote(0));
                let send = |op| SendWr::new(rounds, op, near.mr.whole().unwrap());
                near.qp.post_send(&[send(op)]).unwrap();
                assert_eq!(near.cq.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
                assert_eq!(out[0].status, WcStatus::Success);
                // A Read comes behind the Write, and brings what that has left.
                near.mr.region().fill(0, MESSAGE, !byte).unwrap();
                let op = SendOp::RdmaRead(far.mr.remote(0));
                near.qp.post_send(&[send(op)]).unwrap();
                assert_eq!(near.cq.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
                assert_eq!((out[0].status, out[0].wr_id), (WcStatus::Success, rounds));
                let mut seen = vec![0; MESSAGE];
                near.mr.region().read(0, &mut seen).unwrap();
                assert!(seen.iter().all(|seen| *seen == byte));
            }
            rounds
        });
        let mut dice = Dice(0x5eed);
        let mut client: Option<Hostile> = None;
        for _ in 0..steps {
            let hostile = client.get_or_insert_with(|| {
                let mut hostile = Hostile::open(&running.path);
                let furnished = dice.below(4) > 0 && hostile.furnish().is_some();
                assert!(furnished || hostile.memories.len() == 1);
                hostile
            });
            if !hostile.step(&mut dice) || dice.below(100) == 0 {
                client = None;
            }
        }
        drop(client);
        stop.store(true, Ordering::Relaxed);
        neighbour.join().unwrap()
    });
    assert!(moved > 10, "{moved} rounds");
    let ended = running.counters.ended.load(Ordering::Relaxed);
    assert!(ended > steps / 1_000, "{ended} sessions ended");
    // What they had is given back.
    let deadline = std::time::Instant::now() + PATIENCE;
    while descriptors() > before || running.counters.clients.load(Ordering::Relaxed) > 2 {
        assert!(std::time::Instant::now() < deadline, "{}", descriptors());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_come_and_go_leave_nothing() {
    let _alone = alone();
    let count = std::env::var("HAUL_ENGINE_CLIENTS").map_or(100, |count| count.parse().unwrap());
    let running = engine();
    drop(end(&running.path));
    let settle = |most: u64| {
        let deadline = std::time::Instant::now() + PATIENCE;
        while running.counters.clients.load(Ordering::Relaxed) > most {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    settle(0);
    let (before, memory) = (descriptors(), resident());
    for _ in 0..count {
        drop(end(&running.path));
        settle(8);
    }
    settle(0);
    assert!(descriptors() <= before, "{before} and {}", descriptors());
    let grown = resident().saturating_sub(memory);
    assert!(grown < 32 << 20, "{grown} bytes more");
}

/// Bytes of memory of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

#[test]
fn whoever_comes_first_or_too_late_is_told() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let options = Options {
        clients: 1,
        ..Options::default()
    };
    let server = Server::bind(&path, options).unwrap();
    let again = Server::bind(&path, Options::default()).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&lines);
    let tell: Tell = Arc::new(move |line: &str| told.lock().unwrap().push(line.to_owned()));
    let stopper = server.stopper();
    let counters = server.counters();
    let thread = std::thread::spawn(move || server.run(&tell));
    // The attempt to listen twice was a client for a moment.
    while counters.accepted.load(Ordering::Relaxed) == 0
        || counters.clients.load(Ordering::Relaxed) > 0
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = end(&path);
    let provider = crate::provider(path.clone(), rnic::Options::default());
    let second = provider.devices().unwrap()[0].open().unwrap_err();
    let why = "no more clients of the engine can be made";
    assert_eq!(second.to_string(), why);
    let told = lines.lock().unwrap().clone();
    assert_eq!(told, [format!("a client was refused: {why}")]);
    drop(first);
    stopper.stop();
    thread.join().unwrap().unwrap();
    assert!(!path.exists());
    // One that has died leaves its socket.
    let listener = socket().unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(listener);
    Server::bind(&path, Options::default()).unwrap();
}

/// Requests that cannot be posted are not kept beyond a batch for a client that takes no
/// completions.
#[test]
fn requests_that_fail_for_ever_take_no_memory() {
    let _alone = alone();
    let running = engine();
    let mut hostile = Hostile::open(&running.path);
    hostile.furnish().unwrap();
    let sends = hostile.memories[2].words();
    let before = running.counters.requests.load(Ordering::Relaxed);
    let mut produced = 0_u64;
    for _ in 0..20_000 {
        // Zeros are Sends, of a queue pair that has no connection.
        let consumed = sends[8].load(Ordering::Acquire);
        produced = (consumed + 128) & 0xffff_ffff;
        sends[0].store(produced, Ordering::Release);
        hostile.ring();
    }
    assert!(produced > 0);
    let taken = running.counters.requests.load(Ordering::Relaxed) - before;
    assert!(taken < 1_000, "{taken} requests");
}

/// A client that says nothing, or does not wait for its answer, has no session.
#[test]
fn a_doorbell_that_blocks_is_the_clients_alone() {
    let _alone = alone();
    let running = engine();
    let hostile = Hostile::open(&running.path);
    let doorbell = hostile.doorbell.as_ref().unwrap();
    rustix::io::ioctl_fionbio(doorbell, false).unwrap();
    for _ in 0..100 {
        hostile.ring();
    }
    drop(hostile);
    let deadline = std::time::Instant::now() + PATIENCE;
    while running.counters.clients.load(Ordering::Relaxed) > 0 {
        assert!(std::time::Instant::now() < deadline, "its thread waits");
        std::thread::sleep(Duration::from_millis(1));
    }
}
