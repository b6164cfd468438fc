#![expect(
    clippy::panic,
    reason = "what is not there where it must be fails the test"
)]

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use haul_verbs::QpInit;
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_xsp::Directory;

use super::frame::{HEAD_BYTES, Head, Kind};
use super::*;
use crate::config::Config;
use crate::house::Secrets;
use crate::log::Log;
use crate::path::Backend;
use crate::resolver::Resolver;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn device() -> Device {
    let provider = haul_soft::rnic::provider(haul_soft::rnic::Options::default());
    let devices = provider.devices().unwrap();
    let is_meant = |device: &Device| device.name() == "soft-tcp";
    devices.into_iter().find(is_meant).unwrap()
}

/// What bridges, without sessions.
fn house() -> (Arc<House>, Thread) {
    house_of("")
}

fn house_of(rdma: &str) -> (Arc<House>, Thread) {
    let config = format!("name = 'exit'\nanonymous = true\n[rdma]\ndevice = 'any'\n{rdma}");
    let config = Config::parse(&config).unwrap();
    let (extender, means) = Extender::open(&device(), config.rdma.as_ref().unwrap()).unwrap();
    let house = Arc::new(House::new(
        config.clone(),
        Secrets::load(&config).unwrap(),
        Resolver::start().unwrap(),
        Directory::new(config.sessions, config.allowed(), [1; 32]),
        (Vec::new(), Some(extender)),
        Backend::new(&config.path).unwrap(),
        Log::new(|_, _| {}),
    ));
    let thread = start(&house, means).unwrap();
    (house, thread)
}

/// Asks for a connection to one of `to`.
fn ask(house: &House, to: Vec<SocketAddr>, private_data: &[u8]) -> Stream {
    let stream = house.extender.as_ref().unwrap().reach(to).unwrap();
    let len = u32::try_from(private_data.len()).unwrap();
    let kind = Kind::Connect;
    let said = [&Head { kind, len }.encode()[..], private_data].concat();
    assert_eq!(stream.write(&said).unwrap(), said.len());
    stream
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
    let (house, _thread) = house();
    let context = device().open().unwrap();
    let events = context.create_event_channel().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let listener = context.listen(here, &events, 8).unwrap();
    let to = vec![nobody(), nobody(), listener.local_addr(), nobody()];
    let stream = ask(&house, to, b"hello");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE).unwrap() else {
        panic!("no request");
    };
    assert_eq!(request.private_data, b"hello");
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None, 0).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let param = ConnParam {
        private_data: b"welcome",
        ..ConnParam::default()
    };
    request.accept(&qp, &param).unwrap();
    assert_eq!(answer(&stream), (Kind::Accept, b"welcome".to_vec()));
}

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() {
    let (house, _thread) = house_of("answer = 6\n");
    // It takes the connection, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let context = device().open().unwrap();
    let events = context.create_event_channel().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let listener = context.listen(here, &events, 8).unwrap();
    let to = vec![silent.local_addr().unwrap(), listener.local_addr()];
    let stream = ask(&house, to, b"");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE).unwrap() else {
        panic!("no request");
    };
    request.reject(b"the next").unwrap();
    assert_eq!(answer(&stream), (Kind::Reject, b"the next".to_vec()));
}

#[test]
fn where_nobody_can_be_connected_to_the_near_end_is_told() {
    let (house, _thread) = house();
    let stream = ask(&house, vec![nobody(), nobody()], b"");
    assert_eq!(answer(&stream), (Kind::Reject, Vec::new()));
}

#[test]
fn who_says_no_is_the_one_that_was_meant() {
    let (house, _thread) = house();
    let context = device().open().unwrap();
    let events = context.create_event_channel().unwrap();
    let here = "127.0.0.1:0".parse().unwrap();
    let [first, second] = [(); 2].map(|()| context.listen(here, &events, 8).unwrap());
    let stream = ask(&house, vec![first.local_addr(), second.local_addr()], b"");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE).unwrap() else {
        panic!("no request");
    };
    request.reject(b"go away").unwrap();
    assert_eq!(answer(&stream), (Kind::Reject, b"go away".to_vec()));
}
