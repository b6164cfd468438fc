//! Bridges of the far end, over the software device.

#![expect(
    clippy::panic,
    reason = "what is not there where it must be fails the test"
)]

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_io::poller::{Events, Interest, Poller, Waker};
use haul_io::stream::Stream;
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{Device, QpInit};

use crate::frame::{HEAD_BYTES, Head, Kind};
use crate::{Extender, Host, MemoryGuard, Plan, Severity};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn device() -> Device {
    let provider = haul_soft::rnic::provider(haul_soft::rnic::Options::default());
    let devices = provider.devices().unwrap();
    let is_meant = |device: &Device| device.name() == "soft-tcp";
    devices.into_iter().find(is_meant).unwrap()
}

/// A host with memory for everything, and no session.
struct Budget;

impl Host for Budget {
    fn take_memory(&self, bytes: u64) -> Option<MemoryGuard> {
        Some(Box::new(bytes))
    }

    fn memory_left(&self) -> u64 {
        u64::MAX
    }

    fn withdrawn(&self) {}

    fn log(&self, _: Severity, _: &str) {}

    fn log_shortage(&self, _: &str) {}
}

/// An extender that runs until it is dropped.
struct Running {
    extender: Extender,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(answer_s: u64) -> Self {
        let plan = Plan {
            message: 64 << 10,
            depth: 32,
            answer_ns: answer_s * 1_000_000_000,
        };
        let (extender, runner) = Extender::open(&device(), plan, 64).unwrap();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), runner.waker());
        let own = Arc::clone(&stop);
        let run = move || runner.run(&Budget, || own.load(Ordering::Acquire));
        Self {
            extender,
            stop,
            waker,
            thread: Some(std::thread::spawn(run)),
        }
    }

    /// Asks for a connection to one of `to`.
    fn ask(&self, to: Vec<SocketAddr>, private_data: &[u8]) -> Stream {
        let stream = self.extender.reach(to).unwrap();
        let len = u32::try_from(private_data.len()).unwrap();
        let kind = Kind::Connect;
        let sent = [&Head { kind, len }.encode()[..], private_data].concat();
        assert_eq!(stream.write(&sent).unwrap(), sent.len());
        stream
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// What the far end says first, and what follows it.
fn answer(stream: &Stream) -> (Kind, Vec<u8>) {
    let mut head = [0; HEAD_BYTES];
    read(stream, &mut head);
    let Head { kind, len } = Head::decode(head).unwrap();
    let mut octets = vec![0; len as usize];
    read(stream, &mut octets);
    (kind, octets)
}

fn read(stream: &Stream, mut room: &mut [u8]) {
    let mut poller = Poller::new().unwrap();
    poller.add(stream, 0, Interest::READ).unwrap();
    while !room.is_empty() {
        match stream.read(room) {
            Ok(0) => panic!("it has ended"),
            Ok(count) => room = &mut room[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let clock = haul_io::clock::Clock::new();
                let mut events = Events::with_capacity(1);
                poller.wait(&mut events, None, clock).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}

#[test]
fn an_application_is_reached_at_the_first_address_that_can_be_connected_to() {
    let extender = Running::start(30);
    let context = device().open().unwrap();
    let events = context.create_event_channel().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let listener = context.listen(here, &events, 8).unwrap();
    let to = vec![nobody(), nobody(), listener.local_addr(), nobody()];
    let stream = extender.ask(to, b"hello");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE).unwrap() else {
        panic!("no request");
    };
    assert_eq!(request.private_data, b"hello");
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None, 0).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let mut param = ConnParam::default();
    param.private_data = b"welcome";
    request.accept(&qp, &param).unwrap();
    assert_eq!(answer(&stream), (Kind::Accept, b"welcome".to_vec()));
}

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() {
    let extender = Running::start(6);
    // It takes the connection, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let context = device().open().unwrap();
    let events = context.create_event_channel().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let listener = context.listen(here, &events, 8).unwrap();
    let to = vec![silent.local_addr().unwrap(), listener.local_addr()];
    let stream = extender.ask(to, b"");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE).unwrap() else {
        panic!("no request");
    };
    request.reject(b"the next").unwrap();
    assert_eq!(answer(&stream), (Kind::Reject, b"the next".to_vec()));
}

#[test]
fn where_nobody_can_be_connected_to_the_near_end_is_told() {
    let extender = Running::start(30);
    let stream = extender.ask(vec![nobody(), nobody()], b"");
    assert_eq!(answer(&stream), (Kind::Reject, Vec::new()));
}

#[test]
fn who_says_no_is_the_one_that_was_meant() {
    let extender = Running::start(30);
    let context = device().open().unwrap();
    let events = context.create_event_channel().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let [first, second] = [(); 2].map(|()| context.listen(here, &events, 8).unwrap());
    let stream = extender.ask(vec![first.local_addr(), second.local_addr()], b"");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE).unwrap() else {
        panic!("no request");
    };
    request.reject(b"go away").unwrap();
    assert_eq!(answer(&stream), (Kind::Reject, b"go away".to_vec()));
}
