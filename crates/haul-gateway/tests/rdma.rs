//! RDMA connections of applications, ended at gateways and taken on from there. The device is the software provider's; tests/guest has
//! the same with the kernel's `rdma_rxe`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; lengths are small; a receiver is slow on purpose"
)]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Lines, device, pattern, start, wait_until};
use haul_gateway::Gateway;
use haul_gateway::config::ChannelKind;
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel, Listener};
use haul_verbs::{
    AccessFlags, Context, Cq, Mr, Qp, QpInit, RecvWr, Region, Remote, SendOp, SendWr, WcData,
    WcStatus, WorkCompletion,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
/// Octets of the longest message that the gateways take.
const MESSAGE: usize = 64 << 10;
/// Memory that is left when connections have ended: the session itself stays, with its ring and its arena.
const LEFT: u64 = (1 << 30) - (8 << 20);
/// Receives that an application posts.
const POSTED: usize = 16;

/// An application's end, with its queue pair and room for messages.
struct App {
    qp: Qp,
    cq: Cq,
    events: EventChannel,
    inbox: Mr,
    outbox: Mr,
}

impl App {
    fn new(context: &Context, events: EventChannel) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None, 0).unwrap();
        let memory = |access| {
            let region = Region::map(POSTED * (MESSAGE + 1)).unwrap();
            pd.reg_mr(&region, access).unwrap()
        };
        Self {
            inbox: memory(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE),
            outbox: memory(AccessFlags::empty()),
            qp: pd.create_qp(&QpInit::new(&cq)).unwrap(),
            cq,
            events,
        }
    }

    fn receive(&self, slot: usize) {
        let len = MESSAGE as u32 + 1;
        let place = self.inbox.sge((slot * (MESSAGE + 1)) as u64, len);
        let posted = self.qp.post_recv(&[RecvWr::new(slot as u64, place)]);
        posted.unwrap();
    }

    /// Sends a message and waits until that is done.
    fn send(&self, octets: &[u8], immediate: Option<u32>) -> WcStatus {
        self.outbox.region().write(0, octets).unwrap();
        let op = immediate.map_or(SendOp::Send, SendOp::SendWithImm);
        let place = self.outbox.sge(0, octets.len() as u32);
        self.qp.post_send(&[SendWr::new(99, op, place)]).unwrap();
        self.complete().status
    }

    fn complete(&self) -> WorkCompletion {
        let mut done = [WorkCompletion::default()];
        assert_eq!(self.cq.wait(&mut done, PATIENCE).unwrap(), 1, "in vain");
        done[0]
    }

    /// The next message, and its immediate data.
    fn take(&self) -> (Vec<u8>, WcData) {
        let done = self.complete();
        assert_eq!(done.status, WcStatus::Success);
        let slot = done.wr_id as usize;
        let mut octets = vec![0; done.byte_len as usize];
        let at = slot * (MESSAGE + 1);
        self.inbox.region().read(at, &mut octets).unwrap();
        self.receive(slot);
        (octets, done.data)
    }

    fn event(&self) -> CmEvent {
        self.events.wait(PATIENCE).unwrap().expect("an event")
    }
}

/// An application that waits for connections.
struct Server {
    context: Context,
    events: EventChannel,
    listener: Listener,
}

impl Server {
    fn new() -> Self {
        let context = open();
        let events = context.create_event_channel().unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let listener = context.listen(at, &events, 8).unwrap();
        Self {
            context,
            events,
            listener,
        }
    }

    /// Answers the next request by `answer`, and says what came with it.
    fn accept(&self, answer: &[u8]) -> (App, Vec<u8>) {
        let CmEvent::ConnectRequest(request) = self.event() else {
            panic!("no request");
        };
        let app = App::new(&self.context, self.events.clone());
        (0..POSTED).for_each(|slot| app.receive(slot));
        let private_data = request.private_data.clone();
        request.accept(&app.qp, &param(answer)).unwrap();
        assert!(matches!(self.event(), CmEvent::Established { .. }));
        (app, private_data)
    }

    fn event(&self) -> CmEvent {
        self.events.wait(PATIENCE).unwrap().expect("an event")
    }
}

fn open() -> Context {
    device(ChannelKind::Verbs, None).unwrap().open().unwrap()
}

fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        private_data,
        ..ConnParam::default()
    }
}

/// Asks for a connection; what comes of it is an event.
fn connect(to: SocketAddr, request: &[u8]) -> App {
    let context = open();
    let app = App::new(&context, context.create_event_channel().unwrap());
    (0..POSTED).for_each(|slot| app.receive(slot));
    app.qp.connect(to, &param(request), &app.events).unwrap();
    app
}

/// Two gateways between applications and a server.
struct Path {
    near: (Gateway, Lines),
    far: (Gateway, Lines),
}

impl Path {
    fn new(to: SocketAddr, near: &str, far: &str) -> Self {
        let far = start(&format!(
            "name = 'exit'\nlisten = '127.0.0.1:0'\nanonymous = true\nring = '4MiB'\nexit = ['127.0.0.0/8']\n\
             [rdma]\ndevice = 'any'\n{far}\n[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n"
        ));
        let via = far.0.listen_addr().unwrap();
        let near = start(&format!(
            "name = 'entry'\nanonymous = true\n[rdma]\ndevice = 'any'\n{near}\n\
             [[door]]\nkind = 'rdma'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
             [[route]]\nto = ['*']\nvia = ['{via}']\nring = '4MiB'\nchannels = ['tcp']\n"
        ));
        Self { near, far }
    }

    fn to(server: &Server) -> Self {
        Self::new(server.listener.local_addr(), "", "exit = ['127.0.0.0/8']")
    }

    fn door(&self) -> SocketAddr {
        self.near.0.door_addrs()[0]
    }

    fn memory_left(&self) -> (u64, u64) {
        (self.near.0.memory_left(), self.far.0.memory_left())
    }
}

#[test]
fn messages_and_what_comes_with_a_connection_are_the_same_at_the_other_end() {
    let server = Server::new();
    let path = Path::to(&server);
    let client = connect(path.door(), b"hello");
    let (served, said) = server.accept(b"welcome");
    assert_eq!(said, b"hello");
    let CmEvent::Established { established, .. } = client.event() else {
        panic!("not connected");
    };
    assert_eq!(established.private_data, b"welcome");
    let lens = [1, 0, 4095, 4096, 65_521, MESSAGE];
    for (number, len) in lens.into_iter().cycle().take(200).enumerate() {
        let (sent, back) = (pattern(len, number as u64), pattern(len, !number as u64));
        assert_eq!(client.send(&sent, None), WcStatus::Success);
        assert!(served.take().0 == sent, "{number}: {len}");
        assert_eq!(served.send(&back, None), WcStatus::Success);
        assert!(client.take().0 == back, "{number}: {len}");
    }
    // Immediate data are bridged; iWARP has room for them in messages without payload.
    assert_eq!(client.send(&[], Some(0x0102_0304)), WcStatus::Success);
    assert_eq!(served.take(), (Vec::new(), WcData::Imm(0x0102_0304)));
    client.qp.disconnect().unwrap();
    assert!(matches!(
        server.event(),
        CmEvent::Disconnected { failure: None, .. }
    ));
}

#[test]
fn what_was_sent_before_the_end_arrives_and_memory_comes_back() {
    let server = Server::new();
    let path = Path::to(&server);
    for _ in 0..3 {
        let client = connect(path.door(), b"");
        let (served, _) = server.accept(b"");
        assert!(matches!(client.event(), CmEvent::Established { .. }));
        let sent: Vec<_> = (0..POSTED as u64)
            .map(|seed| pattern(60_000, seed))
            .collect();
        for message in &sent {
            assert_eq!(client.send(message, None), WcStatus::Success);
        }
        client.qp.disconnect().unwrap();
        for message in &sent {
            assert!(served.take().0 == *message);
        }
        assert!(matches!(server.event(), CmEvent::Disconnected { .. }));
        drop((client, served));
        wait_until("memory", || path.memory_left() == (LEFT, LEFT));
    }
}

/// Over iWARP nobody says that he is not ready: applications count.
#[test]
fn an_application_that_counts_may_have_as_many_messages_under_way_as_it_counts() {
    let server = Server::new();
    let path = Path::to(&server);
    let client = connect(path.door(), b"");
    let (served, _) = server.accept(b"");
    assert!(matches!(client.event(), CmEvent::Established { .. }));
    let count = 512;
    let sending = std::thread::spawn(move || {
        for number in 0..count {
            if number > 0 && number % POSTED as u64 == 0 {
                assert_eq!(client.take().0, b"go on");
            }
            let message = pattern(MESSAGE, number);
            assert_eq!(client.send(&message, None), WcStatus::Success);
        }
        client
    });
    std::thread::sleep(Duration::from_millis(500));
    for number in 1..=count {
        let message = served.take().0;
        assert!(message == pattern(MESSAGE, number - 1), "{number}");
        if number % POSTED as u64 == 0 {
            assert_eq!(served.send(b"go on", None), WcStatus::Success);
        }
    }
    drop(sending.join().unwrap());
}

#[test]
fn what_was_sent_before_the_end_arrives_though_the_other_end_is_sending() {
    let server = Server::new();
    let path = Path::to(&server);
    let client = connect(path.door(), b"");
    let (served, _) = server.accept(b"");
    assert!(matches!(client.event(), CmEvent::Established { .. }));
    // More than the client has receives for: some of it is on its way for good.
    for number in 0..2 * POSTED as u64 {
        assert_eq!(
            served.send(&pattern(MESSAGE, number), None),
            WcStatus::Success
        );
    }
    let sent: Vec<_> = (0..POSTED as u64)
        .map(|seed| pattern(60_000, seed))
        .collect();
    for message in &sent {
        assert_eq!(client.send(message, None), WcStatus::Success);
    }
    client.qp.disconnect().unwrap();
    for message in &sent {
        assert!(served.take().0 == *message);
    }
    assert!(matches!(server.event(), CmEvent::Disconnected { .. }));
    wait_until("memory", || path.memory_left() == (LEFT, LEFT));
}

#[test]
fn who_is_not_wanted_is_told() {
    let server = Server::new();
    let path = Path::to(&server);
    let client = connect(path.door(), b"let me in");
    let CmEvent::ConnectRequest(request) = server.event() else {
        panic!("no request");
    };
    assert_eq!(request.private_data, b"let me in");
    request.reject(b"go away").unwrap();
    let CmEvent::Rejected { private_data, .. } = client.event() else {
        panic!("not rejected");
    };
    assert_eq!(private_data, b"go away");
}

#[test]
fn what_cannot_be_reached_is_rejected() {
    let server = Server::new();
    let to = server.listener.local_addr();
    // Not on the list; nobody there; on the list of those that are reached by TCP.
    let nobody: SocketAddr = "127.0.0.1:9".parse().unwrap();
    for (to, exit) in [
        ("192.0.2.1:7".parse().unwrap(), "exit = ['127.0.0.0/8']"),
        (nobody, "exit = ['127.0.0.1:9']"),
        (to, "exit = ['127.0.0.1:9']"),
    ] {
        let path = Path::new(to, "", exit);
        let client = connect(path.door(), b"");
        let event = client.event();
        assert!(matches!(event, CmEvent::Rejected { .. }), "{to}: {event:?}");
    }
    // A gateway that has as many as it may have.
    let path = Path::new(to, "connections = 1", "exit = ['127.0.0.0/8']");
    let first = connect(path.door(), b"");
    let (_served, _) = server.accept(b"");
    assert!(matches!(first.event(), CmEvent::Established { .. }));
    let event = connect(path.door(), b"").event();
    assert!(matches!(event, CmEvent::Rejected { .. }), "{event:?}");
    assert!(
        path.near.1.contain("it is refused"),
        "{:?}",
        path.near.1.all()
    );
}

#[test]
fn what_cannot_be_bridged_ends_the_connection_at_both_ends() {
    let server = Server::new();
    let path = Path::to(&server);
    // A write: the peer's key is of memory that the gateway has not.
    for is_write in [true, false] {
        let client = connect(path.door(), b"");
        let (served, _) = server.accept(b"");
        assert!(matches!(client.event(), CmEvent::Established { .. }));
        let place = match is_write {
            true => client.outbox.sge(0, 8),
            false => client.outbox.sge(0, MESSAGE as u32 + 1),
        };
        let remote = Remote {
            addr: served.inbox.addr(),
            rkey: served.inbox.rkey(),
        };
        let op = match is_write {
            true => SendOp::RdmaWrite(remote),
            false => SendOp::Send,
        };
        client.qp.post_send(&[SendWr::new(1, op, place)]).unwrap();
        assert!(matches!(client.event(), CmEvent::Disconnected { .. }));
        assert!(matches!(server.event(), CmEvent::Disconnected { .. }));
    }
    for why in ["invalid STag", "message too long for its buffer"] {
        path.near.1.wait_for(&[why]);
    }
}

#[test]
fn a_gateway_without_the_device_does_not_start() {
    let config = "name = 'g'\nanonymous = true\n[rdma]\ndevice = 'none0'\n\
         [[door]]\nkind = 'rdma'\nlisten = '127.0.0.1:0'\nto = '127.0.0.1:1'\n\
         [[route]]\nto = ['*']\nvia = ['127.0.0.1:1']\n";
    let config = haul_gateway::Config::parse(config).unwrap();
    let none = |_, name: Option<&str>| Err(format!("no device is called {name:?}"));
    let error = Gateway::start(config, none, Lines::default().log()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rdma: no device is called Some(\"none0\")"
    );
}
