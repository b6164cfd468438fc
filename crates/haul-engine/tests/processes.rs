//! Applications and engines that are killed: who is connected to them is told, and nobody waits.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of processes wait and look at the clock"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a failure of the set-up is a failure of the test"
)]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_engine::{Options, Server};
use haul_io::notify;
use haul_soft::rnic;
use haul_soft::udt::LinkError;
use haul_soft::udt::stream::{self, Ready, Received, Stream};
use haul_verbs::cm::{CmEvent, ConnParam, EventChannel};
use haul_verbs::provider::Provider;
use haul_verbs::{
    AccessFlags, AsyncEvent, Context, Cq, Error, Mr, Notify, Qp, QpInit, QpState, RecvWr, SendOp,
    SendWr, WcStatus, WorkCompletion,
};

/// Longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Within this time half of the survivors know.
const SOON: Duration = Duration::from_secs(1);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const BYTES: usize = 64 << 10;
/// Of `engine-udt`.
const UDT: usize = 1;

/// Tells this test's own program, started again, what to be.
const ROLE: &str = "HAUL_TEST_ROLE";
const SOCKET: &str = "HAUL_TEST_SOCKET";
const PEER: &str = "HAUL_TEST_PEER";

/// How often each is killed.
fn kills() -> usize {
    std::env::var("HAUL_ENGINE_KILLS").map_or(5, |count| count.parse().unwrap())
}

struct End {
    context: Context,
    cq: Cq,
    events: EventChannel,
    mr: Mr,
    qp: Qp,
}

fn end(provider: &Arc<dyn Provider>, device: usize) -> End {
    let context = provider.devices().unwrap()[device].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None, 0).unwrap();
    let events = context.create_event_channel().unwrap();
    let mr = pd
        .reg_mr(&pd.map(BYTES).unwrap(), AccessFlags::all())
        .unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    End {
        context,
        cq,
        events,
        mr,
        qp,
    }
}

fn soft() -> Arc<dyn Provider> {
    rnic::provider(rnic::Options::default())
}

fn by_engine(path: &Path) -> Arc<dyn Provider> {
    haul_engine::provider(path.to_owned(), rnic::Options::default())
}

/// Not a test: what the processes do that will be killed.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let path = PathBuf::from(std::env::var(SOCKET).unwrap());
    match role.as_str() {
        "engine" => {
            let server = Server::bind(&path, Options::default()).unwrap();
            println!("ready");
            server
                .run(&(Arc::new(|line: &str| eprintln!("{line}")) as _))
                .unwrap();
        }
        "listener" => {
            let end = end(&by_engine(&path), 0);
            let at = |port| {
                end.context
                    .listen(([127, 0, 0, 1], port).into(), &end.events, 1)
            };
            let first = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
            let first: u16 = std::fs::read_to_string(first)
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            match at(80) {
                Err(error) => println!("low: {error}"),
                Ok(_) if first <= 80 => println!("low: Permission denied nowhere"),
                Ok(_) => println!("low: permitted"),
            }
            println!("high: {}", at(0).is_ok());
            let key = std::env::var(PEER).unwrap();
            let options = rnic::Options::default();
            let protected = haul_engine::protected(path, options, Some(format!("key:{key}")));
            let device = &protected.devices().unwrap()[0];
            println!("key: {}", device.open().unwrap_err());
            // Its session's threads are of its user; signals and limits are not for it to set.
            let engine = rustix::process::getppid().unwrap();
            for task in
                std::fs::read_dir(format!("/proc/{}/task", engine.as_raw_nonzero())).unwrap()
            {
                let task = task.unwrap().file_name().into_string().unwrap();
                let pid = rustix::process::Pid::from_raw(task.parse().unwrap()).unwrap();
                assert!(rustix::process::test_kill_process(pid).is_err(), "{task}");
                let limit = rustix::process::Resource::Nofile;
                let new = rustix::process::Rlimit {
                    current: Some(3),
                    maximum: Some(3),
                };
                assert!(
                    rustix::process::prlimit(Some(pid), limit, new).is_err(),
                    "{task}"
                );
            }
            println!("signals: none");
        }
        "stream" => {
            let context = by_engine(&path).devices().unwrap()[UDT].open().unwrap();
            let peer = std::env::var(PEER).unwrap().parse().unwrap();
            let streams = haul_engine::streams(&context).unwrap();
            let stream = streams.connect(peer, &stream::Options::default()).unwrap();
            assert_eq!(stream.wait(Ready::OPEN, Some(PATIENCE)), Ready::OPEN);
            println!("ready");
            let bytes = vec![0; BYTES];
            while stream.send(&bytes).is_ok() {
                let _ = stream.wait(Ready::WRITABLE | Ready::OVER, Some(PATIENCE));
            }
        }
        _ => {
            let end = end(&by_engine(&path), usize::from(role == "udt"));
            let peer = std::env::var(PEER).unwrap().parse().unwrap();
            end.qp
                .connect(peer, &ConnParam::default(), &end.events)
                .unwrap();
            end.events.wait(Some(PATIENCE)).unwrap();
            println!("ready");
            let mut out = [WorkCompletion::default()];
            for number in 0.. {
                let wr = SendWr::new(number, SendOp::Send, end.mr.whole().unwrap());
                if end.qp.post_send(&[wr]).is_err()
                    || end.cq.wait(&mut out, Some(PATIENCE)).unwrap() != 1
                    || out[0].status != WcStatus::Success
                {
                    return;
                }
            }
        }
    }
}

fn start(role: &str, socket: &Path, peer: Option<SocketAddr>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if let Some(peer) = peer {
        command.env(PEER, peer.to_string());
    }
    let mut child = command
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, role)
        .env(SOCKET, socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains("ready")),
        "{role} does not start"
    );
    child
}

fn kill(mut child: Child) -> Instant {
    child.kill().unwrap();
    let at = Instant::now();
    child.wait().unwrap();
    at
}

fn accept(end: &End) {
    let CmEvent::ConnectRequest(request) = end.events.wait(Some(PATIENCE)).unwrap().unwrap() else {
        panic!("no request");
    };
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    let event = end.events.wait(Some(PATIENCE)).unwrap().unwrap();
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
}

fn receive(end: &End, number: u64) {
    let wr = RecvWr::new(number, end.mr.whole().unwrap());
    end.qp.post_recv(&[wr]).unwrap();
}

fn are_soon(mut times: Vec<Duration>) {
    times.sort();
    println!("{times:?}");
    assert!(times[times.len() / 2] < SOON, "{times:?}");
}

#[test]
fn the_peer_of_an_application_that_is_killed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let engine = start("engine", &socket, None);
    for role in ["tcp", "udt"] {
        let mut times = Vec::new();
        for _ in 0..kills() {
            let end = end(&soft(), usize::from(role == "udt"));
            for number in 0..100 {
                receive(&end, number);
            }
            let listener = end.context.listen(LOOPBACK, &end.events, 1).unwrap();
            let peer = listener.local_addr();
            let started = std::thread::scope(|scope| {
                let child = scope.spawn(|| start(role, &socket, Some(peer)));
                accept(&end);
                child.join().unwrap()
            });
            let at = kill(started);
            let event = end.events.wait(Some(PATIENCE)).unwrap().unwrap();
            assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
            times.push(at.elapsed());
        }
        are_soon(times);
    }
    kill(engine);
}

#[test]
fn the_applications_of_an_engine_that_is_killed_are_told_and_flushed() {
    for device in [0, 1] {
        let mut times = Vec::new();
        for _ in 0..kills() {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("engine.sock");
            let engine = start("engine", &socket, None);
            let (near, far) = (end(&by_engine(&socket), device), end(&soft(), device));
            let waiting = end(&by_engine(&socket), device);
            let channel = waiting.context.create_completion_channel().unwrap();
            let cq = waiting.context.create_cq(4, Some(&channel), 7).unwrap();
            cq.arm(Notify::Any).unwrap();
            connect(&near, &far).unwrap();
            for number in 0..10 {
                receive(&near, number);
            }
            // One is complete before the engine ends, and is not flushed.
            far.qp
                .post_send(&[SendWr::new(1, SendOp::Send, far.mr.sge(0, 8))])
                .unwrap();
            let mut out = [WorkCompletion::default()];
            assert_eq!(far.cq.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
            std::thread::sleep(Duration::from_millis(50));
            let at = std::thread::scope(|scope| {
                // One that sleeps for completions, and one for events of a queue.
                let sleeper = scope.spawn(|| {
                    let mut out = [WorkCompletion::default(); 16];
                    let mut seen = Vec::new();
                    while seen.len() < 10 {
                        let more = near.cq.wait(&mut out, Some(PATIENCE)).unwrap();
                        assert!(more > 0, "a sleeper was forgotten");
                        seen.extend(out[..more].iter().map(|wc| (wc.wr_id, wc.status)));
                    }
                    let wanted = (0..10).map(|number| match number {
                        0 => (number, WcStatus::Success),
                        _ => (number, WcStatus::WrFlushErr),
                    });
                    assert_eq!(seen, wanted.collect::<Vec<_>>());
                    // Nothing more will come.
                    near.cq.wait(&mut out, None).unwrap_err();
                });
                let watcher = scope.spawn(|| channel.wait_event(Some(PATIENCE)).unwrap());
                std::thread::sleep(Duration::from_millis(20));
                let at = kill(engine);
                sleeper.join().unwrap();
                assert_eq!(watcher.join().unwrap(), Some(7));
                at
            });
            let event = near.events.wait(Some(PATIENCE)).unwrap().unwrap();
            assert!(
                matches!(
                    event,
                    CmEvent::Disconnected {
                        failure: Some(_),
                        ..
                    }
                ),
                "{event:?}"
            );
            let fatal = near.context.poll_async_event().unwrap();
            assert_eq!(fatal, Some(AsyncEvent::DeviceFatal));
            times.push(at.elapsed());
            assert_eq!(near.context.poll_async_event().unwrap(), None);
            assert!(near.events.poll().unwrap().is_none());
            assert_eq!(near.qp.state(), QpState::Err);
            let wr = RecvWr::new(1, near.mr.whole().unwrap());
            let refused = near.qp.post_recv(&[wr]).unwrap_err().error;
            assert!(matches!(refused, Error::State(QpState::Err)), "{refused}");
            assert!(near.context.alloc_pd().is_err());
        }
        are_soon(times);
    }
}

fn accept_stream(
    listener: &mut stream::Listener,
    begin: impl FnOnce() -> Option<Stream>,
) -> (Option<Stream>, Stream) {
    let near = begin();
    let far = listener.wait(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(far.wait(Ready::OPEN, Some(PATIENCE)), Ready::OPEN);
    (near, far)
}

#[test]
fn the_peer_of_an_application_with_a_stream_that_is_killed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let engine = start("engine", &socket, None);
    let mut times = Vec::new();
    for _ in 0..kills() {
        let mut listener = stream::Listener::bind(LOOPBACK, stream::Options::default()).unwrap();
        let peer = listener.local_addr();
        let (child, far) = std::thread::scope(|scope| {
            let child = scope.spawn(|| start("stream", &socket, Some(peer)));
            let (_, far) = accept_stream(&mut listener, || None);
            (child.join().unwrap(), far)
        });
        let mut room = vec![0; BYTES];
        let readable = far.wait(Ready::READABLE, Some(PATIENCE));
        assert_eq!(readable, Ready::READABLE);
        let at = kill(child);
        while far.recv(&mut room).is_ok() {
            let _ = far.wait(Ready::READABLE, Some(PATIENCE));
        }
        times.push(at.elapsed());
        let over = far.over().unwrap();
        assert!(matches!(over, LinkError::PeerClosed), "{over}");
    }
    are_soon(times);
    kill(engine);
}

#[test]
fn the_streams_of_an_engine_that_is_killed_are_over() {
    let mut times = Vec::new();
    for _ in 0..kills() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let engine = start("engine", &socket, None);
        let context = by_engine(&socket).devices().unwrap()[UDT].open().unwrap();
        let streams = haul_engine::streams(&context).unwrap();
        let mut listener = stream::Listener::bind(LOOPBACK, stream::Options::default()).unwrap();
        let peer = listener.local_addr();
        let (near, far) = accept_stream(&mut listener, || {
            Some(streams.connect(peer, &stream::Options::default()).unwrap())
        });
        let near = near.unwrap();
        far.send(b"before").unwrap();
        assert_eq!(near.wait(Ready::READABLE, Some(PATIENCE)), Ready::READABLE);
        let waiting = streams
            .listen(LOOPBACK, &stream::Options::default())
            .unwrap();
        assert!(near.poll(Ready::OVER).is_empty());
        let at = std::thread::scope(|scope| {
            let wait = || near.wait(Ready::SENT | Ready::OVER, Some(PATIENCE));
            near.send(b"more").unwrap();
            assert_eq!(wait(), Ready::SENT);
            // Two wait for one stream, one for the next.
            let sleepers = [(); 2].map(|()| scope.spawn(|| near.wait(Ready::OVER, Some(PATIENCE))));
            let accepting = scope.spawn(|| waiting.wait(Some(PATIENCE)).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            let at = kill(engine);
            for sleeper in sleepers {
                assert_eq!(sleeper.join().unwrap(), Ready::OVER);
            }
            accepting.join().unwrap().unwrap_err();
            at
        });
        assert!(notify::wait_readable([near.as_fd()], Some(10_000_000_000)).unwrap());
        assert_eq!(near.poll(Ready::OVER), Ready::OVER);
        times.push(at.elapsed());
        // What had come before is still there.
        let mut room = [0; 10];
        assert_eq!(near.recv(&mut room).unwrap(), Received::Bytes(6));
        let over = near.recv(&mut room).unwrap_err().to_string();
        assert_eq!(over, "the engine has ended");
        near.send(b"before").unwrap_err();
    }
    are_soon(times);
}

#[test]
fn without_an_engine_the_devices_are_those_of_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let provider = by_engine(&folder.path().join("engine.sock"));
    for device in provider.devices().unwrap() {
        let note = device.note().unwrap();
        assert!(
            note.starts_with("in this process, for no engine answers at "),
            "{note}"
        );
    }
    let (near, far) = (end(&provider, 0), end(&provider, 0));
    connect(&near, &far).unwrap();
    let op = SendOp::RdmaWrite(far.mr.remote(0));
    near.mr.region().write(0, b"here").unwrap();
    near.qp
        .post_send(&[SendWr::new(1, op, near.mr.sge(0, 4))])
        .unwrap();
    let mut out = [WorkCompletion::default()];
    assert_eq!(near.cq.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
    assert_eq!(out[0].status, WcStatus::Success);
}

/// Memory of the application that the engine does not map is copied, and has no rights for peers.
#[test]
fn private_memory_is_copied_and_never_given_to_peers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let server = Server::bind(&path, Options::default()).unwrap();
    std::thread::spawn(move || server.run(&(Arc::new(|_: &str| {}) as _)));
    let (near, far) = (end(&by_engine(&path), 0), end(&by_engine(&path), 0));
    let listener = far.context.listen(LOOPBACK, &far.events, 1).unwrap();
    near.qp
        .connect(listener.local_addr(), &ConnParam::default(), &near.events)
        .unwrap();
    accept(&far);
    near.events.wait(Some(PATIENCE)).unwrap();
    let own = |end: &End| {
        let pd = end.context.alloc_pd().unwrap();
        let region = haul_verbs::Region::map(BYTES).unwrap();
        for remote in [AccessFlags::REMOTE_READ, AccessFlags::all()] {
            let error = pd.reg_mr(&region, remote).unwrap_err();
            assert!(error.to_string().contains("haul_mr_alloc"), "{error}");
        }
        pd
    };
    let (_, _) = (own(&near), own(&far));
    // A queue pair reaches memory of its own domain only.
    let pair = |end: &End| {
        let pd = end.context.alloc_pd().unwrap();
        let region = haul_verbs::Region::map(BYTES).unwrap();
        let mr = pd.reg_mr(&region, AccessFlags::LOCAL_WRITE).unwrap();
        let qp = pd.create_qp(&QpInit::new(&end.cq)).unwrap();
        let target = pd
            .reg_mr(&pd.map(BYTES).unwrap(), AccessFlags::all())
            .unwrap();
        (mr, qp, target)
    };
    let ((a, a_qp, _), (b, b_qp, b_target)) = (pair(&near), pair(&far));
    a_qp.connect(listener.local_addr(), &ConnParam::default(), &near.events)
        .unwrap();
    let CmEvent::ConnectRequest(request) = far.events.wait(Some(PATIENCE)).unwrap().unwrap() else {
        panic!("no request");
    };
    request.accept(&b_qp, &ConnParam::default()).unwrap();
    far.events.wait(Some(PATIENCE)).unwrap();
    near.events.wait(Some(PATIENCE)).unwrap();
    let done = |end: &End| {
        let mut out = [WorkCompletion::default()];
        assert_eq!(end.cq.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
        assert_eq!(out[0].status, WcStatus::Success);
    };
    let read = |mr: &Mr, at: usize| {
        let mut bytes = [0; 5];
        mr.region().read(at, &mut bytes).unwrap();
        bytes
    };
    b_qp.post_recv(&[RecvWr::new(1, b.sge(100, 50))]).unwrap();
    a.region().write(7, b"hello").unwrap();
    a_qp.post_send(&[SendWr::new(1, SendOp::Send, a.sge(7, 5))])
        .unwrap();
    done(&near);
    done(&far);
    assert_eq!(&read(&b, 100), b"hello");
    b_target.region().write(9, b"world").unwrap();
    let op = SendOp::RdmaRead(b_target.remote(9));
    a_qp.post_send(&[SendWr::new(2, op, a.sge(200, 5))])
        .unwrap();
    done(&near);
    assert_eq!(&read(&a, 200), b"world");
}

fn key(folder: &Path) -> PathBuf {
    let path = folder.join("key.pem");
    let made = haul_control::identity::PrivateKey::generate().unwrap();
    made.write(&path).unwrap();
    path
}

fn connect(near: &End, far: &End) -> Option<CmEvent> {
    let listener = far.context.listen(LOOPBACK, &far.events, 1).unwrap();
    near.qp
        .connect(listener.local_addr(), &ConnParam::default(), &near.events)
        .unwrap();
    accept(far);
    near.events.wait(Some(PATIENCE)).unwrap()
}

#[test]
fn an_engine_reads_the_keys_of_protected_connections() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let server = Server::bind(&path, Options::default()).unwrap();
    std::thread::spawn(move || server.run(&(Arc::new(|_: &str| {}) as _)));
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let protected = |folder: &Path| {
        std::fs::create_dir_all(folder).unwrap();
        let key = format!("key:{}", key(folder).display());
        haul_engine::protected(path.clone(), rnic::Options::default(), Some(key))
    };
    let (one, other) = (protected(&one), protected(&other));
    for device in [0, 1] {
        let event = connect(&end(&one, device), &end(&one, device)).unwrap();
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        let (near, far) = (end(&one, device), end(&other, device));
        let listener = far.context.listen(LOOPBACK, &far.events, 1).unwrap();
        near.qp
            .connect(listener.local_addr(), &ConnParam::default(), &near.events)
            .unwrap();
        let event = near.events.wait(Some(PATIENCE)).unwrap().unwrap();
        assert!(matches!(event, CmEvent::Unreachable { .. }), "{event:?}");
    }
    let missing = Some("key:/nowhere/key.pem".to_owned());
    let missing = haul_engine::protected(path, rnic::Options::default(), missing);
    let error = missing.devices().unwrap()[0].open().unwrap_err();
    assert!(error.to_string().contains("/nowhere/key.pem"), "{error}");
}

#[test]
fn an_engine_of_root_has_no_more_rights_than_its_client() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: needs root, to be another user");
    }
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder.path(), 0o755);
    let key = key(folder.path());
    // Where another user can execute it.
    let program = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for (all_users, most) in [(true, 64), (true, 0), (false, 64)] {
        let path = folder
            .path()
            .join(format!("engine-{all_users}-{most}.sock"));
        let mut options = Options::default();
        (options.all_users, options.user_clients) = (all_users, most);
        let server = Server::bind(&path, options).unwrap();
        open(&path, 0o666);
        let counters = server.counters();
        std::thread::spawn(move || server.run(&(Arc::new(|_: &str| {}) as _)));
        let out = Command::new(&program)
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, "listener")
            .env(SOCKET, &path)
            .env(PEER, &key)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let errors = String::from_utf8_lossy(&out.stderr);
        if most == 0 {
            assert!(errors.contains("clients of this user"), "{text}{errors}");
        } else if all_users {
            assert!(
                text.contains("low: ") && text.contains("Permission denied"),
                "{text}{errors}"
            );
            assert!(text.contains("high: true"), "{text}{errors}");
            assert!(text.contains("signals: none"), "{text}{errors}");
            assert!(
                text.contains("key: ") && text.contains("key.pem"),
                "{text}{errors}"
            );
        } else {
            assert!(
                errors.contains("a client of another user"),
                "{text}{errors}"
            );
            assert_eq!(
                counters.refused.load(std::sync::atomic::Ordering::Relaxed),
                1
            );
        }
    }
}
