//! RDMA connections of applications, terminated at gateways and relayed from there. The device is
//! the software provider's; tests/guest has the same with the kernel's `rdma_rxe`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is not there where it must be fails the test; lengths are small; a receiver is slow on purpose; a gateway is a process, its control connection goes through a gate"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Filed, Lines, device, pattern, start, wait_until};
use haul_gateway::Gateway;
use haul_gateway::config::ChannelKind;
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel, Listener};
use haul_verbs::{
    AccessFlags, Context, Cq, Mr, Qp, QpInit, RecvWr, Region, Remote, SendOp, SendWr, WcData,
    WcStatus, WorkCompletion,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
/// Bytes of the longest message that the gateways take.
const MESSAGE: usize = 64 << 10;
/// Memory that is left at the near and at the far gateway when connections have ended: the session
/// itself stays, with its ring and its arena.
const LEFT: (u64, u64) = ((1 << 30) - (8 << 20), (1 << 30) - (16 << 20));
/// Receives that an application posts.
const POSTED: usize = 16;
/// The work-request identifier of its sends.
const SEND: u64 = 99;

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
        self.post(op, octets.len());
        self.complete().status
    }

    fn post(&self, op: SendOp, len: usize) {
        let place = self.outbox.sge(0, len as u32);
        self.qp.post_send(&[SendWr::new(SEND, op, place)]).unwrap();
    }

    fn complete(&self) -> WorkCompletion {
        let mut done = [WorkCompletion::default()];
        assert_eq!(self.cq.wait(&mut done, PATIENCE).unwrap(), 1, "in vain");
        done[0]
    }

    /// The next message, and its immediate data.
    fn take(&self) -> (Vec<u8>, WcData) {
        let done = std::iter::repeat_with(|| self.complete()).find(|done| done.wr_id != SEND);
        let done = done.unwrap();
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

    /// Answers the next request by `answer`, and returns its private data.
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
    let mut param = ConnParam::default();
    param.private_data = private_data;
    param
}

/// Asks for a connection; what comes of it is an event.
fn connect(to: SocketAddr, request: &[u8]) -> App {
    let context = open();
    let app = App::new(&context, context.create_event_channel().unwrap());
    (0..POSTED).for_each(|slot| app.receive(slot));
    app.qp.connect(to, &param(request), &app.events).unwrap();
    app
}

/// The configuration of a far gateway at `listen`.
fn far_config(listen: &str, more: &str) -> String {
    format!(
        "name = 'exit'\nlisten = '{listen}'\nanonymous = true\nring = '8MiB'\nexit = ['127.0.0.0/8']\n\
         [rdma]\ndevice = 'any'\n{more}\n[[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n"
    )
}

const LISTENER: &str = "[[listener]]\nkind = 'rdma'\nlisten = '127.0.0.1:0'\n";

/// The configuration of a near gateway with a listener to `to` over `via`.
fn near_config(to: SocketAddr, via: SocketAddr, more: &str) -> String {
    format!(
        "name = 'entry'\nanonymous = true\n[rdma]\ndevice = 'any'\n{more}\n{LISTENER}to = '{to}'\n\
         [[route]]\nto = ['*']\nvia = ['{via}']\nring = '4MiB'\nregions = 4\nchannels = ['tcp']\n"
    )
}

const ANY: &str = "127.0.0.1:0";
const EXIT: &str = "exit = ['127.0.0.0/8']";

/// Two gateways between applications and a server.
struct Path {
    near: Filed,
    far: Filed,
}

impl Path {
    fn new(to: SocketAddr, near: &str, far: &str) -> Self {
        let far = Filed::start(&far_config(ANY, far));
        let via = far.gateway.listen_addr().unwrap();
        let near = Filed::start(&near_config(to, via, near));
        Self { near, far }
    }

    fn to(server: &Server) -> Self {
        Self::new(server.listener.local_addr(), "", EXIT)
    }

    fn listener(&self) -> SocketAddr {
        self.near.listener(0)
    }

    fn memory_left(&self) -> (u64, u64) {
        let left = |filed: &Filed| filed.gateway.memory_left();
        (left(&self.near), left(&self.far))
    }
}

/// A connection through gateways, from `listener` to `server`.
fn bridged(listener: SocketAddr, server: &Server) -> (App, App) {
    let client = connect(listener, b"");
    let (served, _) = server.accept(b"");
    assert!(matches!(client.event(), CmEvent::Established { .. }));
    (client, served)
}

/// A message each way.
fn ping((client, served): &(App, App)) {
    assert_eq!(client.send(b"ping", None), WcStatus::Success);
    assert_eq!(served.take().0, b"ping");
    assert_eq!(served.send(b"pong", None), WcStatus::Success);
    assert_eq!(client.take().0, b"pong");
}

/// Passes control connections on, unless it is shut.
struct Gate {
    address: SocketAddr,
    is_shut: Arc<AtomicBool>,
}

impl Gate {
    fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(ANY).unwrap();
        let address = listener.local_addr().unwrap();
        let is_shut: Arc<AtomicBool> = Arc::default();
        let shut = Arc::clone(&is_shut);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(to).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let shut = Arc::clone(&shut);
                    std::thread::spawn(move || pass(from, to, &shut));
                }
            }
        });
        Self { address, is_shut }
    }

    fn shut(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::Release);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_shut: &AtomicBool) {
    let mut octets = [0; 4096];
    while let Ok(count) = from.read(&mut octets)
        && count > 0
    {
        while is_shut.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&octets[..count]).is_err() {
            return;
        }
    }
}

/// A far gateway in a process of its own.
struct Process {
    child: Child,
    at: SocketAddr,
}

/// The environment sets that process's address; it prints the address after this prefix.
const LISTEN: &str = "HAUL_TEST_FAR_GATEWAY";
const LISTENS: &str = "listens at ";

impl Process {
    fn start(listen: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--ignored",
                "--nocapture",
                "rdma::a_far_gateway_runs",
            ])
            .env(LISTEN, listen)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let at = said.map(Result::unwrap).find_map(|line| {
            let (_, at) = line.split_once(LISTENS)?;
            Some(at.parse().unwrap())
        });
        let at = at.expect("it listens");
        Self { child, at }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The process; it ends with the one that has started it.
#[test]
#[ignore = "needs a test that starts it"]
fn a_far_gateway_runs() {
    let Ok(listen) = std::env::var(LISTEN) else {
        return;
    };
    let (gateway, _) = start(&far_config(&listen, EXIT));
    println!("{LISTENS}{}", gateway.listen_addr().unwrap());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_far_gateway_that_is_killed_ends_connections_at_both_ends() {
    let server = Server::new();
    let mut far = Process::start(ANY);
    let to = server.listener.local_addr();
    let near = Filed::start(&near_config(to, far.at, ""));
    let both = bridged(near.listener(0), &server);
    ping(&both);
    far.kill();
    let killed = Instant::now();
    assert!(matches!(server.event(), CmEvent::Disconnected { .. }));
    // The near end waits for it to come back; what does has forgotten the session.
    let _again = Process::start(&far.at.to_string());
    assert!(matches!(both.0.event(), CmEvent::Disconnected { .. }));
    assert!(killed.elapsed() < Duration::from_secs(10));
    ping(&bridged(near.listener(0), &server));
}

#[test]
fn a_connection_goes_on_while_its_destination_and_its_listener_go() {
    let server = Server::new();
    let to = server.listener.local_addr();
    let mut path = Path::to(&server);
    let (listener, via) = (path.listener(), path.far.gateway.listen_addr().unwrap());
    let both = bridged(listener, &server);
    ping(&both);
    path.far.reload(&far_config(ANY, "")).unwrap();
    ping(&both);
    let event = connect(listener, b"").event();
    assert!(matches!(event, CmEvent::Rejected { .. }), "{event:?}");
    path.far.reload(&far_config(ANY, EXIT)).unwrap();
    ping(&bridged(listener, &server));
    assert!(matches!(server.event(), CmEvent::Disconnected { .. }));

    let other = "[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '127.0.0.1:9'\n";
    let without = near_config(to, via, "").replace(&format!("{LISTENER}to = '{to}'\n"), other);
    path.near.reload(&without).unwrap();
    ping(&both);
    let event = connect(listener, b"").event();
    assert!(matches!(event, CmEvent::Unreachable { .. }), "{event:?}");
    both.0.qp.disconnect().unwrap();
    assert!(matches!(
        server.event(),
        CmEvent::Disconnected { failure: None, .. }
    ));
    wait_until("memory", || path.memory_left() == LEFT);

    let smaller = near_config(to, via, "depth = 16");
    path.near.reload(&smaller).unwrap();
    assert!(path.near.lines.contain("`rdma` has changed"));
    ping(&bridged(path.listener(), &server));
}

#[test]
fn an_application_that_does_not_answer_in_time_is_given_up() {
    let server = Server::new();
    let to = server.listener.local_addr();
    let path = Path::new(to, "", &format!("answer = 1\n{EXIT}"));
    let asked = Instant::now();
    let client = connect(path.listener(), b"");
    let CmEvent::ConnectRequest(request) = server.event() else {
        panic!("no request");
    };
    let event = client.event();
    assert!(matches!(event, CmEvent::Rejected { .. }), "{event:?}");
    let waited = asked.elapsed().as_millis();
    assert!((1_000..10_000).contains(&waited), "{waited} ms");
    path.far.lines.wait_for(&["no answer came in time"]);
    drop(request);
    wait_until("memory", || path.memory_left() == LEFT);
    ping(&bridged(path.listener(), &server));
}

#[test]
fn a_connection_that_is_given_up_before_the_session_has_answered_is_not_left_in_it() {
    let server = Server::new();
    let far = Filed::start(&far_config(ANY, EXIT));
    let gate = Gate::new(far.gateway.listen_addr().unwrap());
    let to = server.listener.local_addr();
    let near = Filed::start(&near_config(to, gate.address, "answer = 1"));
    let first = bridged(near.listener(0), &server);
    let connections = || near.gateway.sessions()[0].connections.len();
    wait_until("the first connection", || connections() == 1);
    gate.shut(true);
    let client = connect(near.listener(0), b"");
    wait_until("the second connection", || connections() == 2);
    let event = client.event();
    assert!(matches!(event, CmEvent::Rejected { .. }), "{event:?}");
    wait_until("the end of the second one", || connections() == 1);
    gate.shut(false);
    ping(&first);
    ping(&bridged(near.listener(0), &server));
    assert!(near.lines.contain("no answer came in time"));
}

#[test]
fn messages_and_what_comes_with_a_connection_are_the_same_at_the_other_end() {
    let server = Server::new();
    let path = Path::to(&server);
    let client = connect(path.listener(), b"hello");
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
        let (client, served) = bridged(path.listener(), &server);
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
        wait_until("memory", || path.memory_left() == LEFT);
    }
}

/// iWARP has no RNR NAK: applications count their receives.
#[test]
fn an_application_that_counts_may_have_as_many_messages_under_way_as_it_counts() {
    let server = Server::new();
    let path = Path::to(&server);
    let (client, served) = bridged(path.listener(), &server);
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
    // More than is there by then.
    const COUNT: usize = 100;
    let server = Server::new();
    let far = format!("depth = {COUNT}\n{EXIT}");
    let path = Path::new(server.listener.local_addr(), "", &far);
    let (client, served) = bridged(path.listener(), &server);
    (0..COUNT).for_each(|number| client.receive(number % POSTED));
    (0..COUNT).for_each(|_| served.post(SendOp::Send, MESSAGE));
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
    wait_until("memory", || path.memory_left() == LEFT);
}

#[test]
fn an_unwanted_client_gets_an_error() {
    let server = Server::new();
    let path = Path::to(&server);
    let client = connect(path.listener(), b"let me in");
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
    // Not on the list; without a listener; on the list of destinations by TCP.
    let nobody: SocketAddr = "127.0.0.1:9".parse().unwrap();
    for (to, exit) in [
        ("192.0.2.1:7".parse().unwrap(), "exit = ['127.0.0.0/8']"),
        (nobody, "exit = ['127.0.0.1:9']"),
        (to, "exit = ['127.0.0.1:9']"),
    ] {
        let path = Path::new(to, "", exit);
        let client = connect(path.listener(), b"");
        let event = client.event();
        assert!(matches!(event, CmEvent::Rejected { .. }), "{to}: {event:?}");
    }
    // A gateway that has as many as it may have.
    let path = Path::new(to, "connections = 1", EXIT);
    let _first = bridged(path.listener(), &server);
    let event = connect(path.listener(), b"").event();
    assert!(matches!(event, CmEvent::Rejected { .. }), "{event:?}");
    let lines = &path.near.lines;
    assert!(lines.contain("refused"), "{:?}", lines.all());
}

#[test]
fn what_cannot_be_bridged_ends_the_connection_at_both_ends() {
    let server = Server::new();
    let path = Path::to(&server);
    // A write: the peer's key is of memory that the gateway has not.
    for is_write in [true, false] {
        let (client, served) = bridged(path.listener(), &server);
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
        path.near.lines.wait_for(&[why]);
    }
}

#[test]
fn a_gateway_without_the_device_does_not_start() {
    let config = "name = 'g'\nanonymous = true\n[rdma]\ndevice = 'none0'\n\
         [[listener]]\nkind = 'rdma'\nlisten = '127.0.0.1:0'\nto = '127.0.0.1:1'\n\
         [[route]]\nto = ['*']\nvia = ['127.0.0.1:1']\n";
    let config = haul_gateway::Config::parse(config).unwrap();
    let none = |_, name: Option<&str>| Err(format!("no device is called {name:?}"));
    let error = Gateway::start(config, none, Lines::default().log()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rdma: no device is called Some(\"none0\")"
    );
}
