//! Gateways that die, as their clients and servers see it: of each the process, the host in
//! silence, and the host that is back without it; in each phase of a connection. Everything is in
//! network namespaces that the test makes.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "what is not there where it must be fails the test; programs are threads with sockets"
)]

#[path = "../../haul-io/tests/own_network/mod.rs"]
mod own_network;

mod common;
#[path = "common/host.rs"]
mod host;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use common::Gateway;
use host::{Host, is_ok};

/// The far side of the path, and this side of the link by which it reaches the servers.
const FAR: &str = "10.93.2.1";
const SERVERS: &str = "10.94.0.1";
/// Where nobody answers: the router drops what goes there.
const NOBODY: &str = "10.95.0.1";
/// The metrics of the near gateway, and of the far one: on the far host, and before the servers.
const NEAR_ADMIN: &str = "127.0.0.1:4728";
const FAR_ADMIN: &str = "10.94.0.2:4728";
const LAST_ADMIN: &str = "10.94.0.1:4728";
/// Seconds. What they are by default takes too long for a test; the slack is for a loaded machine.
const HOLD: u64 = 2;
const OUTAGE: u64 = 4;
const KEEPALIVE: u64 = 1;
const SLACK: u64 = 6;
/// How long a new connection may wait for its answer.
const ANSWER: Duration = Duration::from_millis(3_300);

/// How a gateway dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// Its process is killed.
    Process,
    /// Nothing comes from its host any more.
    Silent,
    /// The same for a moment, in which its process ends: then the host refuses.
    Refused,
}

impl Death {
    /// When everybody knows.
    const fn bound(self) -> Duration {
        Duration::from_secs(match self {
            Self::Process => HOLD + SLACK,
            Self::Refused => 3 * KEEPALIVE + HOLD + SLACK,
            Self::Silent => 3 * KEEPALIVE + OUTAGE + 3 + SLACK,
        })
    }
}

/// Which gateway dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Near,
    Between,
    Far,
}

/// A router to the far host, which is beside the servers, too.
struct Network {
    router: Host,
    far: Host,
}

impl Network {
    fn make() -> Option<Self> {
        let (router, far) = (Host::new()?, Host::new()?);
        let near = format!(
            "ip link set lo up
             ip link add near type veth peer name left netns {router}
             ip address add 10.93.1.1/24 dev near
             ip link set near up
             ip link add lan type veth peer name servers netns {far}
             ip address add {SERVERS}/24 dev lan
             ip link set lan up
             ip route add 10.93.2.0/24 via 10.93.1.254
             ip route add {NOBODY}/32 via 10.93.1.254",
            router = router.id(),
            far = far.id()
        );
        let middle = format!(
            "ip link add right type veth peer name far netns {}
             ip address add 10.93.1.254/24 dev left
             ip address add 10.93.2.254/24 dev right
             ip link set left up
             ip link set right up
             ip route add blackhole {NOBODY}/32
             echo 1 >/proc/sys/net/ipv4/ip_forward",
            far.id()
        );
        let end = format!(
            "ip address add {FAR}/24 dev far
             ip link set far up
             ip route add default via 10.93.2.254
             ip address add 10.94.0.2/24 dev servers
             ip link set servers up"
        );
        let made =
            is_ok(Command::new("sh").args(["-ec", &near])) && router.run(&middle) && far.run(&end);
        made.then_some(Self { router, far })
    }

    /// Whether packets get to the far host and back.
    fn pass(&self, passes: bool) {
        let digit = u8::from(passes);
        let line = format!("echo {digit} >/proc/sys/net/ipv4/ip_forward");
        assert!(self.router.run(&line));
    }
}

const COMMON: &str = "anonymous = true\nring = '8MiB'\n";

fn waits() -> String {
    format!("keepalive = {KEEPALIVE}\n[session]\nhold = {HOLD}\noutage = {OUTAGE}\n")
}

const CHANNELS: &str = "[[channel]]\nkind = 'iwarp/udt'\nlisten = '0.0.0.0:0'\n";

/// The gateways, those that are there.
struct Gateways {
    near: Gateway,
    between: Option<Gateway>,
    far: Gateway,
    far_config: String,
}

impl Gateways {
    fn start(network: &Network, victim: Victim, server: SocketAddr) -> Self {
        let exit = format!(
            "name = 'far'\n{COMMON}listen = 'ADDRESS:7400'\nexit = ['{SERVERS}', '{NOBODY}']\n{}\
             [admin]\nlisten = 'ADMIN'\nallow_remote = true\n{CHANNELS}",
            waits()
        );
        let between = format!(
            "name = 'between'\n{COMMON}listen = '{FAR}:7400'\nnext = ['{SERVERS}']\n{}{CHANNELS}",
            waits()
        );
        let haul = env!("CARGO_BIN_EXE_haul");
        let there = |config: &str| Gateway::start_by(network.far.command(haul), config, &[]);
        let (far_config, far, between, via) = if victim == Victim::Between {
            let config = exit
                .replace("ADDRESS", SERVERS)
                .replace("ADMIN", LAST_ADMIN);
            let far = Gateway::start(&config);
            let via = format!("'{FAR}:7400', '{SERVERS}:7400'");
            (config, far, Some(there(&between)), via)
        } else {
            let config = exit.replace("ADDRESS", FAR).replace("ADMIN", FAR_ADMIN);
            let far = there(&config);
            (config, far, None, format!("'{FAR}:7400'"))
        };
        for gateway in between.iter().chain([&far]) {
            gateway.sessions_at();
        }
        let near = Gateway::start(&format!(
            "name = 'near'\n{COMMON}{}[admin]\nlisten = '{NEAR_ADMIN}'\n\
             [[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:8080'\nto = '{server}'\n\
             [[listener]]\nkind = 'socks5'\nlisten = '127.0.0.1:1080'\n\
             [[listener]]\nkind = 'http'\nlisten = '127.0.0.1:3128'\n\
             [[route]]\nto = ['*']\nvia = [{via}]\nring = '8MiB'\n",
            waits()
        ));
        near.listener_at();
        Self {
            near,
            between,
            far,
            far_config,
        }
    }

    fn die(&mut self, network: &Network, victim: Victim, death: Death) {
        if death != Death::Process {
            network.pass(false);
        }
        if death == Death::Silent {
            // Nothing gets to the gateway behind, either.
            if victim == Victim::Between {
                assert!(network.far.run("ip link set servers down"));
            }
            return;
        }
        match victim {
            Victim::Near => self.near.kill(),
            Victim::Between => self.between.as_mut().unwrap().kill(),
            Victim::Far => self.far.kill(),
        }
        if death == Death::Refused {
            std::thread::sleep(Duration::from_millis(300));
            network.pass(true);
        }
    }
}

/// What a program has seen: its name, how its connection ended, and when.
type Seen = (&'static str, std::io::Result<()>, Instant);

/// A server whose clients say by their first byte what they want. It reports how each connection
/// ends.
fn server(report: Sender<Seen>) -> SocketAddr {
    let listener = TcpListener::bind((SERVERS, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let report = report.clone();
            std::thread::spawn(move || {
                let (name, result) = serve(stream);
                let _ = report.send((name, result, Instant::now()));
            });
        }
    });
    address
}

fn serve(mut stream: TcpStream) -> (&'static str, std::io::Result<()>) {
    let mut first = [0];
    if stream.read_exact(&mut first).is_err() {
        return ("nothing", Ok(()));
    }
    let mut work = |name, result: std::io::Result<()>| match result {
        Ok(()) => (name, stream.write_all(&first)),
        error => (name, error),
    };
    match first[0] {
        b'i' => {
            let (name, begun) = work("idle server", Ok(()));
            (name, begun.and_then(|()| read_all(&mut stream)))
        }
        b'u' => ("upload server", read_all(&mut stream)),
        b'd' => ("download server", write_all(&mut stream, 64 << 10, 0)),
        b'h' => ("half-closed server", write_all(&mut stream, 10, 50)),
        _ => {
            stream.shutdown(Shutdown::Write).unwrap();
            ("ending server", read_all(&mut stream))
        }
    }
}

/// Reads until the end, or the error.
fn read_all(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut octets = vec![0; 64 << 10];
    while stream.read(&mut octets)? > 0 {}
    Ok(())
}

/// Writes until the error.
fn write_all(stream: &mut TcpStream, len: usize, pause_ms: u64) -> std::io::Result<()> {
    let octets = vec![7; len];
    loop {
        stream.write_all(&octets)?;
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
}

/// Clients in every phase, each of which reports how its connection ends.
fn clients(report: &Sender<Seen>) -> usize {
    let phases = ["idle", "upload", "download", "half-closed", "ending"];
    let (ready, begun) = channel();
    for name in phases {
        let (report, ready) = (report.clone(), ready.clone());
        std::thread::spawn(move || {
            let mut stream = TcpStream::connect("127.0.0.1:8080").unwrap();
            stream.write_all(&name.as_bytes()[..1]).unwrap();
            let result = use_it(name, &mut stream, &ready);
            let _ = report.send((name, result, Instant::now()));
        });
    }
    for _ in phases {
        begun.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    let report = report.clone();
    // Its server does not answer, so that the far gateway has not, either.
    std::thread::spawn(move || {
        let stream = ask_socks(&format!("{NOBODY}:9").parse().unwrap());
        let mut reply = [0; 10];
        let result = stream.and_then(|mut stream| stream.read_exact(&mut reply));
        let failed = std::io::Error::other(format!("reply {}", reply[1]));
        let result = if reply[1] == 0 { result } else { Err(failed) };
        let _ = report.send(("opening", result, Instant::now()));
    });
    std::thread::sleep(Duration::from_millis(300));
    phases.len() + 1
}

fn use_it(name: &str, stream: &mut TcpStream, ready: &Sender<()>) -> std::io::Result<()> {
    let mut octets = vec![0; 1 << 10];
    match name {
        "upload" => {
            stream.write_all(&octets)?;
            ready.send(()).unwrap();
            write_all(stream, 16 << 10, 1)
        }
        "ending" => {
            let ended = stream.read(&mut octets)?;
            assert_eq!(ended, 0);
            ready.send(()).unwrap();
            write_all(stream, 10, 50)
        }
        _ => {
            if name == "half-closed" {
                stream.shutdown(Shutdown::Write)?;
            }
            assert!(stream.read(&mut octets)? > 0);
            ready.send(()).unwrap();
            read_all(stream)
        }
    }
}

fn timed(to: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// A SOCKS client whose request has no answer yet.
fn ask_socks(to: &SocketAddr) -> std::io::Result<TcpStream> {
    let SocketAddr::V4(to) = to else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let mut stream = timed("127.0.0.1:1080")?;
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut [0; 2])?;
    let mut request = vec![5, 1, 0, 1];
    request.extend(to.ip().octets());
    request.extend(to.port().to_be_bytes());
    stream.write_all(&request)?;
    Ok(stream)
}

/// New connections by each listener: all are answered in time. What SOCKS and HTTP said.
fn ask_anew(server: SocketAddr) -> (u8, String) {
    let began = Instant::now();
    let forward = std::thread::spawn(|| {
        let mut stream = timed("127.0.0.1:8080")?;
        stream.write_all(b"i")?;
        stream.read(&mut [0])
    });
    let http = std::thread::spawn(move || {
        let mut stream = timed("127.0.0.1:3128").unwrap();
        write!(
            stream,
            "CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n"
        )
        .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8_lossy(&head[9..]).into_owned()
    });
    let mut reply = [0; 10];
    ask_socks(&server).unwrap().read_exact(&mut reply).unwrap();
    let status = http.join().unwrap();
    let read = forward.join().unwrap();
    let took = began.elapsed();
    assert!(took <= ANSWER, "{took:?}: {} {status} {read:?}", reply[1]);
    let reset = read
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(reset || reply[1] == 0, "{read:?}");
    (reply[1], status)
}

/// Waits for what all of these see.
fn gather(seen: &Receiver<Seen>, count: usize, since: Instant, bound: Duration, server: bool) {
    let mut got: Vec<String> = Vec::new();
    while got.len() < count {
        let left = (since + bound).saturating_duration_since(Instant::now());
        let Ok((name, result, at)) = seen.recv_timeout(left) else {
            panic!("after {bound:?} only these have seen an end: {got:?}");
        };
        if name.ends_with("server") != server || name == "nothing" {
            continue;
        }
        let after = at.saturating_duration_since(since);
        assert!(at >= since, "{name} ended before: {result:?}");
        assert!(result.is_err(), "{name}: an end as if all were there");
        got.push(format!("{name} {:.1} s", after.as_secs_f64()));
    }
    println!("{got:?}");
}

fn kill_one(victim: Victim, death: Death) {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nsenter` or the right to use them is missing");
        return;
    };
    let (report, seen) = channel();
    let (server_report, servers_seen) = channel();
    let server = server(server_report);
    let mut gateways = Gateways::start(&network, victim, server);
    let count = clients(&report);
    let since = Instant::now();
    gateways.die(&network, victim, death);
    println!("{victim:?} {death:?}");
    if victim != Victim::Near || death == Death::Silent {
        for wait_ms in [0, 1_500] {
            std::thread::sleep(Duration::from_millis(wait_ms));
            let (reply, status) = ask_anew(server);
            println!("new connections: SOCKS {reply}, HTTP {status}");
            assert_eq!(reply, 4);
            let expected = if death == Death::Silent { "504" } else { "502" };
            assert!(status == expected || death == Death::Refused, "{status}");
        }
    }
    gather(&seen, count, since, death.bound(), false);
    if victim != Victim::Far {
        // Of the five that have got to it.
        gather(&servers_seen, count - 1, since, death.bound(), true);
    }
    // All but the one that was being opened.
    if victim != Victim::Near || death == Death::Silent {
        assert_counted(NEAR_ADMIN, count - 1);
    }
    match victim {
        Victim::Near => assert_counted(FAR_ADMIN, count - 1),
        Victim::Between => assert_counted(LAST_ADMIN, count - 1),
        Victim::Far => {}
    }
    let near = gateways.near.all_said();
    drop(gateways);
    println!("{}", near.last().unwrap());
}

/// Waits until a gateway has counted a session and so many connections as lost: a moment after the
/// resets.
fn assert_counted(admin: &str, connections: usize) {
    let lost = || ["sessions_lost", "connections_lost"].map(|name| counter(admin, name));
    let until = Instant::now() + Duration::from_secs(SLACK);
    while lost() != [1, connections] {
        assert!(Instant::now() < until, "{admin}: {:?}", lost());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A counter of a gateway.
fn counter(admin: &str, name: &str) -> usize {
    let mut stream = timed(admin).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let name = format!("haul_{name}_total");
    let line = text.lines().find(|line| line.starts_with(&name)).unwrap();
    let (_, value) = line.rsplit_once(' ').unwrap();
    value.trim_end_matches(".0").parse().unwrap()
}

/// The far gateway is started again while connections are held.
fn come_back() {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nsenter` or the right to use them is missing");
        return;
    };
    let (report, seen) = channel();
    let (server_report, _servers) = channel();
    let server = server(server_report);
    let mut gateways = Gateways::start(&network, Victim::Far, server);
    let count = clients(&report);
    let since = Instant::now();
    gateways.far.kill();
    let haul = network.far.command(env!("CARGO_BIN_EXE_haul"));
    gateways.far = Gateway::start_by(haul, &gateways.far_config, &[]);
    gateways.far.sessions_at();
    let back = Instant::now();
    // New connections come by a new session, at once.
    let (reply, status) = ask_anew(server);
    assert_eq!((reply, status.as_str()), (0, "200"));
    let bound = back.duration_since(since) + Duration::from_secs(SLACK);
    gather(&seen, count, since, bound, false);
}

/// A gateway is being stopped, and waits for its connections; it or another one dies.
fn die_while_draining(drains: Victim, victim: Victim, death: Death) {
    let Some(network) = Network::make() else {
        println!("SKIPPED: `ip`, `nsenter` or the right to use them is missing");
        return;
    };
    let (report, seen) = channel();
    let (server_report, servers_seen) = channel();
    let server = server(server_report);
    let mut gateways = Gateways::start(&network, victim, server);
    let count = clients(&report);
    let stopped = match drains {
        Victim::Near => &gateways.near,
        Victim::Between => gateways.between.as_ref().unwrap(),
        Victim::Far => &gateways.far,
    };
    stopped.signal("TERM");
    std::thread::sleep(Duration::from_millis(500));
    let since = Instant::now();
    gateways.die(&network, victim, death);
    println!("{drains:?} drains, {victim:?} {death:?}");
    if drains == Victim::Near {
        // Nobody listens any more.
        let error = TcpStream::connect("127.0.0.1:8080").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    } else {
        let (reply, status) = ask_anew(server);
        println!("new connections: SOCKS {reply}, HTTP {status}");
        assert!(reply != 0 && status.starts_with("50"), "{reply} {status}");
    }
    gather(&seen, count, since, death.bound(), false);
    if victim != Victim::Far {
        gather(&servers_seen, count - 1, since, death.bound(), true);
    }
    if drains != Victim::Near {
        assert_counted(NEAR_ADMIN, count - 1);
    } else if victim != Victim::Near || death == Death::Silent {
        assert_eq!(gateways.near.exit_code(), Some(0));
    }
    match victim {
        Victim::Near => assert_counted(FAR_ADMIN, count - 1),
        Victim::Between => assert_counted(LAST_ADMIN, count - 1),
        Victim::Far => {}
    }
}

/// A test, and what it runs in a network of its own.
macro_rules! in_own_network {
    ($($name:ident, $inner:ident: $run:expr;)*) => {$(
        #[test]
        fn $name() {
            own_network::run_ignored(stringify!($inner), "true");
        }

        #[test]
        #[ignore = "needs a network of its own; another test starts it there"]
        fn $inner() {
            $run;
        }
    )*};
}

in_own_network! {
    a_near_gateway_dies_process, near_process: kill_one(Victim::Near, Death::Process);
    a_near_gateway_dies_silent, near_silent: kill_one(Victim::Near, Death::Silent);
    a_near_gateway_dies_refused, near_refused: kill_one(Victim::Near, Death::Refused);
    a_between_gateway_dies_process, between_process: kill_one(Victim::Between, Death::Process);
    a_between_gateway_dies_silent, between_silent: kill_one(Victim::Between, Death::Silent);
    a_between_gateway_dies_refused, between_refused: kill_one(Victim::Between, Death::Refused);
    a_far_gateway_dies_process, far_process: kill_one(Victim::Far, Death::Process);
    a_far_gateway_dies_silent, far_silent: kill_one(Victim::Far, Death::Silent);
    a_far_gateway_dies_refused, far_refused: kill_one(Victim::Far, Death::Refused);
    a_far_gateway_comes_back_without_its_sessions, far_returns: come_back();
    a_near_gateway_dies_while_it_is_stopped_process, near_draining_process:
        die_while_draining(Victim::Near, Victim::Near, Death::Process);
    a_near_gateway_dies_while_it_is_stopped_silent, near_draining_silent:
        die_while_draining(Victim::Near, Victim::Near, Death::Silent);
    a_near_gateway_dies_while_it_is_stopped_refused, near_draining_refused:
        die_while_draining(Victim::Near, Victim::Near, Death::Refused);
    a_between_gateway_dies_while_it_is_stopped_process, between_draining_process:
        die_while_draining(Victim::Between, Victim::Between, Death::Process);
    a_between_gateway_dies_while_it_is_stopped_silent, between_draining_silent:
        die_while_draining(Victim::Between, Victim::Between, Death::Silent);
    a_between_gateway_dies_while_it_is_stopped_refused, between_draining_refused:
        die_while_draining(Victim::Between, Victim::Between, Death::Refused);
    a_far_gateway_dies_while_it_is_stopped_process, far_draining_process:
        die_while_draining(Victim::Far, Victim::Far, Death::Process);
    a_far_gateway_dies_while_it_is_stopped_silent, far_draining_silent:
        die_while_draining(Victim::Far, Victim::Far, Death::Silent);
    a_far_gateway_dies_while_it_is_stopped_refused, far_draining_refused:
        die_while_draining(Victim::Far, Victim::Far, Death::Refused);
    a_far_gateway_dies_while_the_near_one_is_stopped, near_draining_far_process:
        die_while_draining(Victim::Near, Victim::Far, Death::Process);
}
