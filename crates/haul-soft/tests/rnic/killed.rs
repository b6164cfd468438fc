//! A process that is killed leaves nobody waiting.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use haul_soft::rnic::Options;
use haul_verbs::cm::CmEvent;
use haul_verbs::{AccessFlags, Blame, QpState, Region, Remote, SendOp, SendWr, WcStatus};

use crate::support::{End, LOOPBACK, MEMORY, TCP, UDT, Wish};

/// Says to this test's own program, started again, whom to connect to.
const PEER: &str = "HAUL_TEST_KILLED_PEER";
/// Says to it to send nothing.
const IDLE: &str = "HAUL_TEST_KILLED_IDLE";
/// Says to it that it is about UDT.
const OVER_UDT: &str = "HAUL_TEST_KILLED_UDT";

/// Not a test: what the process that will be killed does.
#[test]
fn killed_process() {
    let Ok(address) = std::env::var(PEER) else {
        return;
    };
    let address: SocketAddr = address.parse().unwrap();
    let mut wish = Wish::default();
    if std::env::var(OVER_UDT).is_ok() {
        wish.device = UDT;
    }
    let end = End::new(&Default::default(), &wish);
    end.qp.connect(address, &wish.param(), &end.events).unwrap();
    end.established();
    println!("connected {}", end.mr.rkey());
    std::io::stdout().flush().unwrap();
    if std::env::var(IDLE).is_ok() {
        std::thread::sleep(crate::support::PATIENCE);
    }
    for number in 0.. {
        end.post(number, SendOp::Send, 0, 100_000);
        if end.completion().status != WcStatus::Success {
            return;
        }
    }
}

fn start(address: SocketAddr, settings: &[&str]) -> (Child, u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.envs(settings.iter().map(|setting| (setting, "")));
    let mut child = command
        .args(["--exact", "killed::killed_process", "--nocapture"])
        .env(PEER, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let rkey = lines.map_while(Result::ok).find_map(|line| {
        let (_, rkey) = line.split_once("connected ")?;
        rkey.parse().ok()
    });
    (child, rkey.expect("the child has connected"))
}

#[test]
fn the_survivor_is_told_and_everything_is_flushed() {
    assert_eq!(Wish::default().device, TCP);
    let end = End::new(&Default::default(), &Wish::default());
    for number in 0..100 {
        end.receive(number, 0, 100_000);
    }
    let listener = end.context.listen(LOOPBACK, &end.events, 8).unwrap();
    let address = listener.local_addr();
    let accepting = std::thread::spawn(move || start(address, &[]));
    let CmEvent::ConnectRequest(request) = end.event() else {
        panic!("no request");
    };
    request.accept(&end.qp, &Wish::default().param()).unwrap();
    end.established();
    let (mut child, _) = accepting.join().unwrap();
    end.success(0);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut flushed = 0;
    for _ in 1..100 {
        match end.completion().status {
            WcStatus::Success => assert_eq!(flushed, 0, "a success behind a flush"),
            WcStatus::WrFlushErr => flushed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(flushed > 0);
    match end.event() {
        CmEvent::Disconnected { failure, .. } => {
            assert_eq!(failure.unwrap().blame, Blame::Network);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn an_idle_peer_that_is_killed_did_not_disconnect_in_order() {
    let end = End::new(&Default::default(), &Wish::default());
    let listener = end.context.listen(LOOPBACK, &end.events, 8).unwrap();
    let address = listener.local_addr();
    let accepting = std::thread::spawn(move || start(address, &[IDLE]));
    let CmEvent::ConnectRequest(request) = end.event() else {
        panic!("no request");
    };
    request.accept(&end.qp, &Wish::default().param()).unwrap();
    end.established();
    let (mut child, _) = accepting.join().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    match end.event() {
        CmEvent::Disconnected { failure, .. } => {
            let failure = failure.expect("a reason");
            assert_eq!(failure.blame, Blame::Network);
            assert!(!failure.reason.is_empty());
        }
        other => panic!("{other:?}"),
    }
}

/// An end that is connected to a process that is stopped, that process, and the key of its memory.
fn stopped(options: &Options, device: usize) -> (End, Child, u32) {
    let wish = Wish {
        device,
        ..Wish::default()
    };
    let settings: &[&str] = match device {
        UDT => &[IDLE, OVER_UDT],
        _ => &[IDLE],
    };
    let end = End::new(options, &wish);
    let listener = end.context.listen(LOOPBACK, &end.events, 8).unwrap();
    let address = listener.local_addr();
    let accepting = std::thread::spawn(move || start(address, settings));
    let CmEvent::ConnectRequest(request) = end.event() else {
        panic!("no request");
    };
    request.accept(&end.qp, &wish.param()).unwrap();
    end.established();
    let (child, rkey) = accepting.join().unwrap();
    signal(&child, "-STOP");
    (end, child, rkey)
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([name, &id]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn memory_that_goes_in_the_midst_of_a_segment_is_the_local_users() {
    let (end, mut child, rkey) = stopped(&Options::default(), TCP);
    let region = Region::map(MEMORY).unwrap();
    let source = end.pd.reg_mr(&region, AccessFlags::all()).unwrap();
    let op = SendOp::RdmaWrite(Remote { addr: 0, rkey });
    let len = MEMORY as u32;
    let requests: Vec<_> = (0..16)
        .map(|number| SendWr::new(number, op, source.sge(0, len)))
        .collect();
    end.qp.post_send(&requests).unwrap();
    // Until the socket takes no more.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        end.cq.poll(&mut []).unwrap();
    }
    source.dereg().unwrap();
    signal(&child, "-CONT");
    let statuses: Vec<_> = (0..16).map(|_| end.completion().status).collect();
    let charged = statuses
        .iter()
        .position(|status| *status == WcStatus::LocProtErr);
    let charged = charged.expect("one is charged");
    assert!(
        statuses[..charged]
            .iter()
            .all(|status| *status == WcStatus::Success)
    );
    let flushed = |status: &WcStatus| *status == WcStatus::WrFlushErr;
    assert!(statuses[charged + 1..].iter().all(flushed), "{statuses:?}");
    assert_eq!(disconnected(&end).0, Blame::Local);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The next event, and how long it took.
fn disconnected(end: &End) -> (Blame, Duration) {
    let start = Instant::now();
    match end.event() {
        CmEvent::Disconnected { failure, .. } => (failure.unwrap().blame, start.elapsed()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_end_follows_the_flush_though_the_peer_takes_nothing() {
    let (end, mut child, _) = stopped(&Options::default(), UDT);
    let region = Region::map(8 << 20).unwrap();
    let source = end.pd.reg_mr(&region, AccessFlags::all()).unwrap();
    let op = SendOp::RdmaWrite(Remote::default());
    let requests: Vec<_> = (0..16)
        .map(|number| SendWr::new(number, op, source.sge(0, 8 << 20)))
        .collect();
    source.dereg().unwrap();
    end.qp.post_send(&requests).unwrap();
    let statuses: Vec<_> = (0..16).map(|_| end.completion().status).collect();
    assert!(statuses.contains(&WcStatus::LocProtErr), "{statuses:?}");
    let (blame, after) = disconnected(&end);
    assert_eq!(blame, Blame::Local);
    assert!(after < Duration::from_secs(2), "{after:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_peer_that_answers_nothing_has_the_time_that_the_options_say() {
    let mut options = Options::default();
    options.peer_timeout = Duration::from_secs(2);
    let (end, mut child, _) = stopped(&options, UDT);
    let (blame, after) = disconnected(&end);
    assert_eq!(blame, Blame::Network);
    assert!(after < Duration::from_secs(8), "{after:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The kernel answers for a process that is stopped. What waits for it ends all the same.
#[test]
fn a_peer_that_is_stopped_is_noticed_over_tcp_while_something_waits_for_it() {
    let mut options = Options::default();
    options.peer_timeout = Duration::from_secs(2);
    for op in [SendOp::RdmaRead as fn(Remote) -> SendOp, SendOp::RdmaWrite] {
        let (end, mut child, rkey) = stopped(&options, TCP);
        let op = op(Remote { addr: 0, rkey });
        let begun = Instant::now();
        // Writes are complete as long as the kernels' buffers take them.
        let status = loop {
            end.post(1, op, 0, 1 << 20);
            let status = end.completion().status;
            if status != WcStatus::Success {
                break status;
            }
            assert!(begun.elapsed() < crate::support::PATIENCE);
        };
        assert_eq!(status, WcStatus::WrFlushErr);
        assert!(begun.elapsed() >= options.peer_timeout);
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(disconnected(&end).0, Blame::Network);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
