//! Byte streams that an engine drives.
#![expect(
    clippy::unwrap_used,
    reason = "a failure of the set-up is a failure of the test"
)]

mod shared;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_engine::{Streams, streams};
use haul_io::notify;
use haul_soft::rnic;
use haul_soft::udt::stream::{Listener, Options, Ready, Received, Stream};
use haul_verbs::Context;
use haul_verbs::provider::Provider;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Longer than anything takes on a loaded machine.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
/// Of `engine-udt`.
const UDT: usize = 1;
const BYTES: usize = 20 << 20;

fn open(provider: &Arc<dyn Provider>, device: usize) -> Context {
    provider.devices().unwrap()[device].open().unwrap()
}

fn of(context: &Context) -> Streams {
    streams(context).expect("an engine drives it")
}

/// Bytes of this place of a stream.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len)
        .map(|at| at.wrapping_mul(0x9e37_79b1).to_le_bytes()[3])
        .collect()
}

fn send(stream: &Stream) {
    let mut at = 0;
    while at < BYTES {
        let piece = pattern(at, (BYTES - at).min(100_000));
        match stream.send(&piece).unwrap() {
            0 => assert!(!stream.wait(Ready::WRITABLE, PATIENCE).is_empty()),
            count => at += count,
        }
    }
    stream.finish();
    assert!(stream.wait(Ready::SENT, PATIENCE).contains(Ready::SENT));
}

fn receive(stream: &Stream) {
    let (mut at, mut room) = (0, vec![0; 300_000]);
    loop {
        match stream.recv(&mut room).unwrap() {
            Received::Bytes(count) => {
                assert!(room[..count] == pattern(at, count), "at {at}");
                at += count;
            }
            Received::Nothing => assert!(!stream.wait(Ready::READABLE, PATIENCE).is_empty()),
            Received::End => break,
        }
    }
    assert_eq!(at, BYTES);
}

/// Sends from one to the other and back.
fn exchange(near: &Stream, far: &Stream) {
    std::thread::scope(|scope| {
        scope.spawn(|| send(near));
        scope.spawn(|| receive(near));
        scope.spawn(|| send(far));
        receive(far);
    });
    let measured = near.measured().unwrap();
    assert!(measured.rtt_ns > 0, "{measured:?}");
    assert!(near.over().is_none() && far.over().is_none());
}

#[test]
fn streams_of_an_engine_carry_bytes_both_ways() {
    let provider = shared::provider(rnic::Options::default());
    let (one, other) = (open(&provider, UDT), open(&provider, UDT));
    let listener = of(&one).listen(LOOPBACK, &Options::default()).unwrap();
    let peer = listener.local_addr();
    assert!(!notify::wait_readable([listener.as_fd()], Some(0)).unwrap());
    assert!(listener.accept().unwrap().is_none());
    let near = of(&other).connect(peer, &Options::default()).unwrap();
    assert_eq!(near.peer(), peer);
    let far = listener.wait(PATIENCE).unwrap().unwrap();
    exchange(&near, &far);
}

#[test]
fn streams_of_an_engine_meet_those_of_a_process() {
    let provider = shared::provider(rnic::Options::default());
    let context = open(&provider, UDT);
    let mut listener = Listener::<Stream>::bind(LOOPBACK, Options::default()).unwrap();
    let near = of(&context)
        .connect(listener.local_addr(), &Options::default())
        .unwrap();
    let far = listener.wait(PATIENCE).unwrap().unwrap();
    exchange(&near, &far);
    let listener = of(&context).listen(LOOPBACK, &Options::default()).unwrap();
    let near = Stream::connect(listener.local_addr(), &Options::default()).unwrap();
    let far = listener.wait(PATIENCE).unwrap().unwrap();
    exchange(&near, &far);
}

/// The keys are the engine's: those of the options have no effect.
#[test]
fn streams_of_a_protected_device_are_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let path = folder.path().join(name);
        let made = haul_control::identity::PrivateKey::generate().unwrap();
        made.write(&path).unwrap();
        haul_engine::protected(
            shared::path(),
            rnic::Options::default(),
            Some(format!("key:{}", path.display())),
        )
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let contexts = [open(&ours, UDT), open(&ours, UDT), open(&theirs, UDT)];
    let listener = of(&contexts[0])
        .listen(LOOPBACK, &Options::default())
        .unwrap();
    let peer = listener.local_addr();
    let stranger = of(&contexts[2]).connect(peer, &Options::default()).unwrap();
    let over = stranger.wait(Ready::OPEN | Ready::OVER, PATIENCE);
    assert_eq!(over, Ready::OVER);
    let why = stranger.over().unwrap().to_string();
    assert!(
        why.contains("not trusted") || why.contains("refuses"),
        "{why}"
    );
    let near = of(&contexts[1]).connect(peer, &Options::default()).unwrap();
    let far = listener.wait(PATIENCE).unwrap().unwrap();
    exchange(&near, &far);
}

#[test]
fn other_devices_have_no_streams_and_limits_hold() {
    let provider = shared::provider(rnic::Options::default());
    let tcp = of(&open(&provider, 0))
        .connect(LOOPBACK, &Options::default())
        .unwrap_err();
    assert!(tcp.to_string().contains("byte streams"), "{tcp}");
    let mut options = Options::default();
    options.send_bytes = 2 << 30;
    let context = open(&provider, UDT);
    of(&context).connect(LOOPBACK, &options).unwrap_err();
    let elsewhere = SocketAddr::new([192, 0, 2, 1].into(), 0);
    let elsewhere = of(&context).listen(elsewhere, &Options::default());
    let why = elsewhere.unwrap_err().to_string();
    assert!(why.contains("Cannot assign"), "{why}");
    let in_process = haul_engine::provider("/nowhere/engine.sock".into(), rnic::Options::default());
    assert!(streams(&open(&in_process, UDT)).is_none());
    assert!(Path::new("/nowhere").metadata().is_err());
}
