//! A process that is killed leaves nobody waiting.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use haul_verbs::cm::CmEvent;
use haul_verbs::{Blame, QpState, SendOp, WcStatus};

use crate::support::{End, LOOPBACK, TCP, Wish};

/// Says to this test's own program, started again, whom to connect to.
const PEER: &str = "HAUL_TEST_KILLED_PEER";
/// Says to it to send nothing.
const IDLE: &str = "HAUL_TEST_KILLED_IDLE";

/// Not a test: what the process that will be killed does.
#[test]
fn killed_process() {
    let Ok(address) = std::env::var(PEER) else {
        return;
    };
    let address: SocketAddr = address.parse().unwrap();
    let end = End::new(&Default::default(), &Wish::default());
    end.qp
        .connect(address, &Wish::default().param(), &end.events)
        .unwrap();
    end.established();
    println!("connected");
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

fn start(address: SocketAddr, is_idle: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if is_idle {
        command.env(IDLE, "");
    }
    let mut child = command
        .args(["--exact", "killed::killed_process", "--nocapture"])
        .env(PEER, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let connected = lines
        .map_while(Result::ok)
        .any(|line| line.contains("connected"));
    assert!(connected, "the child has not connected");
    child
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
    let accepting = std::thread::spawn(move || start(address, false));
    let CmEvent::ConnectRequest(request) = end.event() else {
        panic!("no request");
    };
    request.accept(&end.qp, &Wish::default().param()).unwrap();
    end.established();
    let mut child = accepting.join().unwrap();
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
    let accepting = std::thread::spawn(move || start(address, true));
    let CmEvent::ConnectRequest(request) = end.event() else {
        panic!("no request");
    };
    request.accept(&end.qp, &Wish::default().param()).unwrap();
    end.established();
    let mut child = accepting.join().unwrap();
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
