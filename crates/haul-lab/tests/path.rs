//! Traffic of real kernels across a lab.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "the tests are the programs that run on the hosts, and what goes wrong there fails the test"
)]

use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use haul_io::udp::{RecvBatch, UdpOptions};
use haul_lab::calibrate::check_path;
use haul_lab::lab::{Engine, Host, privilege};
use haul_lab::{Lab, Scenario};

/// Nothing here takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab with this path, or `None` after saying why there can be none.
fn lab(text: &str) -> Option<Lab> {
    if let Err(error) = privilege::acquire() {
        println!("SKIPPED: {error:#}");
        return None;
    }
    Some(Lab::start(&Scenario::parse("test", text).unwrap()).unwrap())
}

/// Bytes whose every position matters.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i ^ (i >> 8) ^ (i >> 16)) & 0xff).unwrap())
        .collect()
}

/// Sends bytes over TCP from one host to another; answers what arrived.
fn carry(from: &Host, to: &Host, address: IpAddr, bytes: &[u8]) -> Vec<u8> {
    let bind = || TcpListener::bind(SocketAddr::from((address, 0)));
    let listener = to.netns().run(bind).unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    // The kernel takes the connection before anybody accepts it, so a path that does not work fails
    // here.
    let connect = || TcpStream::connect_timeout(&target, PATIENCE);
    let mut stream = from.netns().run(connect).unwrap().unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        stream.write_all(bytes).unwrap();
        drop(stream);
        received.join().unwrap()
    })
}

#[test]
fn tcp_is_byte_exact_through_everything_that_can_happen_on_a_path() {
    let Some(lab) = lab(
        "[path]\nrate = \"500Mbit\"\nrtt = \"4ms\"\njitter = \"500us\"\nloss = { share = \"0.2%\", burst = 3 }\n\
         duplicate = \"0.5%\"\ncorrupt = \"0.2%\"\nreorder = { probability = \"1%\", delay = \"300us\" }",
    ) else {
        return;
    };
    let bytes = pattern(6 << 20);
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    for address in [IpAddr::V4(b.addresses().v4), IpAddr::V6(b.addresses().v6)] {
        let arrived = carry(a, b, address, &bytes);
        assert!(
            arrived == bytes,
            "what arrived over {address} is not what was sent"
        );
    }
    let stats = lab.stats();
    let forward = stats.path.unwrap().forward;
    let link = forward.link;
    assert!(
        link.lost > 0 && link.duplicated > 0 && link.corrupted > 0,
        "{forward:?}"
    );
    assert_eq!(
        (forward.overruns, forward.refused, stats.device_drops),
        (0, 0, 0),
        "{forward:?}"
    );
    assert!(
        forward.packets_read * 2 < link.offered,
        "super-packets are not split on their way in: {forward:?}"
    );
}

#[test]
fn hosts_behind_gateways_reach_each_other() {
    let Some(lab) = lab(
        "topology = \"gateways\"\nhosts_per_side = 2\n[path]\nrate = \"500Mbit\"\nrtt = \"2ms\"",
    ) else {
        return;
    };
    let bytes = pattern(2 << 20);
    let (a2, b2) = (lab.host("a2").unwrap(), lab.host("b2").unwrap());
    for address in [IpAddr::V4(b2.addresses().v4), IpAddr::V6(b2.addresses().v6)] {
        assert!(carry(a2, b2, address, &bytes) == bytes);
    }
}

#[test]
fn damage_is_dropped_by_the_receiving_kernel_or_passes_as_asked() {
    /// As many as a receive buffer holds on any system.
    const DATAGRAMS: usize = 60;
    for undetected in [false, true] {
        let text =
            format!("[path]\nrtt = \"1ms\"\ncorrupt = 0.5\ncorrupt_undetected = {undetected}");
        let Some(lab) = lab(&text) else { return };
        let open = |name: &str| {
            let host = lab.host(name).unwrap();
            let address = SocketAddr::from((host.addresses().v4, 0));
            host.netns()
                .run(|| UdpSocket::bind(address))
                .unwrap()
                .unwrap()
        };
        let (sender, receiver) = (open("a"), open("b"));
        receiver
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let bytes = pattern(1000);
        for _ in 0..DATAGRAMS {
            sender
                .send_to(&bytes, receiver.local_addr().unwrap())
                .unwrap();
        }
        let mut buffer = [0; 2000];
        let (mut whole, mut damaged) = (0, 0);
        while let Ok(len) = receiver.recv(&mut buffer) {
            if buffer[..len] == bytes {
                whole += 1;
            } else {
                damaged += 1;
            }
        }
        assert!(
            (12..48).contains(&whole),
            "{whole} of {DATAGRAMS} arrived whole"
        );
        assert_eq!(whole + damaged, if undetected { DATAGRAMS } else { whole });
        assert_eq!(damaged > 0, undetected);
    }
}

#[test]
fn a_queue_above_its_threshold_marks_what_is_ecn_capable() {
    const SEGMENTS: usize = 40;
    let Some(lab) = lab("[path]\nrate = \"50Mbit\"\nrtt = \"2ms\"\necn_mark = \"20KiB\"") else {
        return;
    };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    for address in [IpAddr::V4(b.addresses().v4), IpAddr::V6(b.addresses().v6)] {
        for ecn in [true, false] {
            let bind = |ip: IpAddr| {
                let mut options = UdpOptions::default();
                options.ecn = ecn;
                move || haul_io::udp::UdpSocket::bind((ip, 0).into(), &options)
            };
            let own = if address.is_ipv4() {
                IpAddr::V4(a.addresses().v4)
            } else {
                IpAddr::V6(a.addresses().v6)
            };
            let receiver = b.netns().run(bind(address)).unwrap().unwrap();
            let sender = a.netns().run(bind(own)).unwrap().unwrap();
            let bytes = pattern(SEGMENTS * 1400);
            let slices = [IoSlice::new(&bytes)];
            let sent = sender.send_segments(receiver.local_addr(), 1400, &slices);
            assert_eq!(sent.unwrap(), SEGMENTS);
            let marks = marks(&receiver, SEGMENTS);
            if ecn {
                // 20 KiB are 14 packets of 1428 or 1448 bytes.
                assert_eq!(marks[..14], [2; 14]);
                assert_eq!(marks[14..], [3; SEGMENTS - 14]);
            } else {
                assert_eq!(marks, [0; SEGMENTS]);
            }
        }
    }
}

/// The ECN bits of the next `count` datagrams.
fn marks(receiver: &haul_io::udp::UdpSocket, count: usize) -> Vec<u8> {
    let mut batch = RecvBatch::new(8, 1, 0).unwrap();
    let (mut marks, begun) = (Vec::new(), Instant::now());
    while marks.len() < count {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} of {count} came",
            marks.len()
        );
        if receiver.recv_batch(&mut batch).is_err() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        for message in batch.iter() {
            marks.extend(message.datagrams().map(|_| message.ecn));
        }
    }
    marks
}

#[test]
fn a_path_is_measured_to_be_what_it_says() {
    if let Err(error) = privilege::acquire() {
        println!("SKIPPED: {error:#}");
        return;
    }
    let text = "[path]\nrate = \"200Mbit\"\nrtt = \"20ms\"\nloss = 0.01\n\
                [path.reverse]\nrate = \"50Mbit\"\nloss = 0";
    let scenario = Scenario::parse("test", text).unwrap();
    let check = check_path(&scenario, Engine::Tun, Duration::from_millis(700)).unwrap();
    for direction in [&check.forward, &check.reverse] {
        // A machine that tests something else at the same time is not on time: half of the packets
        // are enough here.
        let late_us = direction.delay_over_us_p50.measured;
        assert!((-500.0..2000.0).contains(&late_us), "{check}");
        assert!(direction.loss.fine, "{check}");
        let rate = direction.rate_bps.unwrap();
        assert!((rate.measured / rate.asked - 1.0).abs() < 0.05, "{check}");
    }
}
