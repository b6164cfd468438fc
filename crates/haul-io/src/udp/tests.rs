use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::clock::Clock;
use crate::poller::{Events, Interest, Poller};

const V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

fn socket(local: SocketAddr, options: UdpOptions) -> UdpSocket {
    let big = UdpOptions {
        recv_buffer_bytes: 1 << 21,
        send_buffer_bytes: 1 << 20,
        ..options
    };
    UdpSocket::bind(local, &big).unwrap()
}

/// Header and payload pairs, as an engine sends them, with bytes that encode their position.
fn payload(len: usize) -> Vec<u8> {
    (0..len)
        .map(|place| (place * 31 % 251).to_le_bytes()[0])
        .collect()
}

fn pairs(bytes: &[u8], header: usize, segment: usize) -> Vec<IoSlice<'_>> {
    let mut slices = Vec::new();
    for datagram in bytes.chunks(segment) {
        let (head, body) = datagram.split_at(header.min(datagram.len()));
        slices.extend([IoSlice::new(head), IoSlice::new(body)]);
    }
    slices
}

/// Receives until `count` datagrams have come.
fn receive(socket: &UdpSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let clock = Clock::new();
    let mut poller = Poller::new().unwrap();
    poller.add(socket, 0, Interest::READ).unwrap();
    let mut events = Events::with_capacity(1);
    let mut batch = RecvBatch::new(8, 1 << 16, 0).unwrap();
    let deadline = clock.now_ns() + 5_000_000_000;
    let mut datagrams = Vec::new();
    while datagrams.len() < count {
        poller.wait(&mut events, Some(deadline), clock).unwrap();
        assert!(
            clock.now_ns() < deadline,
            "{} of {count} datagrams came",
            datagrams.len()
        );
        let Ok(_) = socket.recv_batch(&mut batch) else {
            continue;
        };
        for message in batch.iter() {
            assert!(message.arrived_ns <= batch.now_ns());
            datagrams.extend(
                message
                    .datagrams()
                    .map(|bytes| (message.from, bytes.to_vec())),
            );
        }
    }
    datagrams
}

fn assert_arrives_cut(local: SocketAddr, from: UdpOptions, to: UdpOptions) {
    let (sender, receiver) = (socket(local, from), socket(local, to));
    for (len, segment) in [
        (44 * 1472, 1472),
        (10 * 1472 + 7, 1472),
        (100, 1472),
        (64 * 9, 9),
    ] {
        let sent = payload(len);
        let slices = pairs(&sent, 16, segment);
        let taken = sender
            .send_segments(receiver.local_addr(), segment, &slices)
            .unwrap();
        assert_eq!(taken, len.div_ceil(segment));
        let came = receive(&receiver, taken);
        assert!(came.iter().all(|(from, _)| *from == sender.local_addr()));
        let came: Vec<&[u8]> = came.iter().map(|(_, bytes)| bytes.as_slice()).collect();
        assert_eq!(came, sent.chunks(segment).collect::<Vec<_>>());
    }
}

#[test]
fn super_packet_arrives_with_its_boundaries_with_and_without_offload() {
    for gso in [true, false] {
        for gro in [true, false] {
            for local in [V4, V6] {
                let from = UdpOptions {
                    gso,
                    ..UdpOptions::default()
                };
                let to = UdpOptions {
                    gro,
                    ..UdpOptions::default()
                };
                assert_arrives_cut(local, from, to);
            }
        }
    }
}

#[test]
fn offload_joins_arrivals_into_one_message() {
    let (sender, receiver) = (
        socket(V4, UdpOptions::default()),
        socket(V4, UdpOptions::default()),
    );
    if sender.gso_segments_max() == 1 {
        return;
    }
    let sent = payload(20 * 1200);
    sender
        .send_segments(receiver.local_addr(), 1200, &[IoSlice::new(&sent)])
        .unwrap();
    let mut batch = RecvBatch::new(4, 1, 0).unwrap();
    assert_eq!(receiver.recv_batch(&mut batch).unwrap(), 1);
    let message = batch.message(0).unwrap();
    assert_eq!(
        (message.segment_bytes, message.datagrams().len()),
        (1200, 20)
    );
    assert_eq!(message.bytes, sent);
}

#[test]
fn batch_of_different_sizes_and_receivers_arrives_whole() {
    for gso in [true, false] {
        let sender = socket(
            V4,
            UdpOptions {
                gso,
                ..UdpOptions::default()
            },
        );
        let receivers = [
            socket(V4, UdpOptions::default()),
            socket(V4, UdpOptions::default()),
        ];
        let bytes = payload(12_000);
        let sizes = [1400, 1, 700, 1472, 12_000, 9000];
        let slices: Vec<_> = sizes
            .iter()
            .map(|&size| pairs(&bytes, 16, size.max(200)))
            .collect();
        let batch: Vec<Outgoing<'_>> = (0..40)
            .map(|index| Outgoing {
                to: receivers[index % 2].local_addr(),
                segment_bytes: sizes[index % 6].max(200),
                slices: &slices[index % 6],
                source: None,
            })
            .collect();
        let cut = |index: usize| 12_000_usize.div_ceil(sizes[index % 6].max(200));
        assert_eq!(
            sender.send_batch(&batch).unwrap(),
            (0..40).map(cut).sum::<usize>()
        );
        for (parity, receiver) in receivers.iter().enumerate() {
            let mine = (0..40).filter(|index| index % 2 == parity);
            let came = receive(receiver, mine.clone().map(cut).sum());
            let came: Vec<u8> = came.into_iter().flat_map(|(_, bytes)| bytes).collect();
            assert_eq!(came, bytes.repeat(mine.count()));
        }
    }
}

#[test]
fn slices_may_straddle_segments_when_cut_here() {
    let sender = socket(
        V4,
        UdpOptions {
            gso: false,
            ..UdpOptions::default()
        },
    );
    let receiver = socket(V4, UdpOptions::default());
    let sent = payload(5000);
    for piece in [1500, 333, 20] {
        let slices: Vec<_> = sent.chunks(piece).map(IoSlice::new).collect();
        assert_eq!(
            sender
                .send_segments(receiver.local_addr(), 1000, &slices)
                .unwrap(),
            5
        );
        let came: Vec<_> = receive(&receiver, 5)
            .into_iter()
            .map(|(_, bytes)| bytes)
            .collect();
        assert_eq!(came, sent.chunks(1000).collect::<Vec<_>>());
    }
}

/// Linux cuts only packets that carry a checksum (`udp_send_skb`): without one it refuses as a poor
/// device would.
fn make_gso_fail(socket: &UdpSocket) {
    message::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
}

#[test]
fn refused_offload_is_replaced_without_the_caller_seeing_it() {
    let bytes = payload(44 * 1000 + 5);
    let slices = pairs(&bytes, 16, 1000);
    for batched in [false, true] {
        let receiver = socket(V4, UdpOptions::default());
        let sender = socket(V4, UdpOptions::default());
        make_gso_fail(&sender);
        assert_eq!(sender.gso_segments_max(), SEGMENTS_MAX);
        let to = receiver.local_addr();
        for _ in 0..3 {
            let packet = Outgoing {
                to,
                segment_bytes: 1000,
                slices: &slices,
                source: None,
            };
            let mut taken = 0;
            // The batch stops after the one that was refused; what is left is for the next call.
            while taken < 90 {
                taken += if batched {
                    sender.send_batch(&[packet, packet][taken / 45..]).unwrap()
                } else {
                    sender.send_segments(to, 1000, &slices).unwrap()
                };
            }
            assert_eq!(sender.gso_segments_max(), 1);
            let came: Vec<u8> = receive(&receiver, 90)
                .into_iter()
                .flat_map(|(_, b)| b)
                .collect();
            assert_eq!(came, bytes.repeat(2));
        }
    }
}

#[test]
fn empty_datagram_is_one_segment() {
    let (sender, receiver) = (
        socket(V4, UdpOptions::default()),
        socket(V4, UdpOptions::default()),
    );
    assert_eq!(
        sender
            .send_segments(receiver.local_addr(), 1472, &[])
            .unwrap(),
        1
    );
    let mut batch = RecvBatch::new(4, 1, 0).unwrap();
    assert_eq!(receiver.recv_batch(&mut batch).unwrap(), 1);
    assert_eq!(batch.message(0).unwrap().bytes, b"");
    assert_eq!(batch.message(0).unwrap().datagrams().len(), 0);
}

#[test]
fn limits_are_refused_before_the_kernel_is_asked() {
    let sender = socket(V4, UdpOptions::default());
    let bytes = payload(65_508);
    let all = [IoSlice::new(&bytes)];
    let many = vec![IoSlice::new(&bytes[..1]); SLICES_MAX + 1];
    for (segment, slices) in [
        (1472, &all[..]),
        (0, &all[..]),
        (1_000_000, &all[..]),
        (1472, &many),
    ] {
        let error = sender.send_segments(V4, segment, slices).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    let too_many_segments = [IoSlice::new(&bytes[..SEGMENTS_MAX * 10 + 1])];
    assert!(sender.send_segments(V4, 10, &too_many_segments).is_err());
    assert!(
        sender.gso_segments_max() > 1,
        "a fault of the caller does not turn GSO off"
    );
}

#[test]
fn arrival_is_stamped_when_it_came_not_when_it_was_read() {
    let clock = Clock::new();
    let (sender, receiver) = (
        socket(V4, UdpOptions::default()),
        socket(V4, UdpOptions::default()),
    );
    let mut poller = Poller::new().unwrap();
    let mut events = Events::with_capacity(1);
    let mut batch = RecvBatch::new(4, 1, 0).unwrap();
    // The kernel starts to stamp packets a moment after the first socket asks for it.
    poller
        .wait(&mut events, Some(clock.now_ns() + 20_000_000), clock)
        .unwrap();
    let before = clock.now_ns();
    sender
        .send_segments(receiver.local_addr(), 100, &[IoSlice::new(b"x")])
        .unwrap();
    let after = clock.now_ns();
    poller
        .wait(&mut events, Some(after + 30_000_000), clock)
        .unwrap();
    receiver.recv_batch(&mut batch).unwrap();
    let arrived = batch.message(0).unwrap().arrived_ns;
    // Two clocks are read one after the other; allow for being interrupted between them.
    assert!(arrived + 5_000_000 >= before, "{arrived} {before}");
    assert!(arrived <= after + 5_000_000, "{arrived} {after}");
    assert!(batch.now_ns() >= after + 30_000_000);
}

#[test]
fn ecn_mark_crosses_both_families() {
    for local in [V4, V6] {
        for (ecn, mark) in [(true, 2), (false, 0)] {
            let sender = socket(
                local,
                UdpOptions {
                    ecn,
                    ..UdpOptions::default()
                },
            );
            let receiver = socket(local, UdpOptions::default());
            let bytes = payload(3000);
            sender
                .send_segments(receiver.local_addr(), 1000, &[IoSlice::new(&bytes)])
                .unwrap();
            let mut batch = RecvBatch::new(4, 1, 0).unwrap();
            receiver.recv_batch(&mut batch).unwrap();
            assert_eq!(batch.message(0).unwrap().ecn, mark);
        }
    }
}

#[test]
fn ipv6_wildcard_talks_to_ipv4_peers_by_their_ipv4_address() {
    let server = socket(
        "[::]:0".parse().unwrap(),
        UdpOptions {
            ecn: true,
            ..UdpOptions::default()
        },
    );
    let client = socket(V4, UdpOptions::default());
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, server.local_addr().port()));
    client
        .send_segments(to, 10, &[IoSlice::new(b"ping")])
        .unwrap();
    let from = receive(&server, 1)[0].0;
    assert_eq!(from, client.local_addr());
    server
        .send_segments(from, 10, &[IoSlice::new(b"pong")])
        .unwrap();
    assert_eq!(receive(&client, 1)[0].1, b"pong");
}

#[test]
fn a_wildcard_answers_from_the_address_that_was_asked() {
    for (wildcard, asked) in [
        ("0.0.0.0:0", "127.0.0.9"),
        ("[::]:0", "127.0.0.9"),
        ("[::]:0", "::1"),
    ] {
        let options = UdpOptions {
            report_destination: true,
            ..UdpOptions::default()
        };
        let server = socket(wildcard.parse().unwrap(), options);
        let asked = SocketAddr::new(asked.parse().unwrap(), server.local_addr().port());
        let client = socket(if asked.is_ipv4() { V4 } else { V6 }, UdpOptions::default());
        client
            .send_segments(asked, 10, &[IoSlice::new(b"ping")])
            .unwrap();
        let mut batch = RecvBatch::new(4, 1, 0).unwrap();
        server.recv_batch(&mut batch).unwrap();
        let ping = batch.message(0).unwrap();
        let to = ping.to.unwrap();
        assert_eq!((to.ip(), to.port()), (asked.ip(), 0));
        server.send_from(to, ping.from, b"pong").unwrap();
        assert_eq!(receive(&client, 1), [(asked, b"pong".to_vec())]);
    }
}

#[test]
fn a_super_packet_leaves_from_the_address_that_is_named() {
    for gso in [true, false] {
        let options = UdpOptions {
            gso,
            ..UdpOptions::default()
        };
        let sender = socket("0.0.0.0:0".parse().unwrap(), options);
        let receiver = socket(V4, UdpOptions::default());
        let bytes = payload(2_500);
        for segment_bytes in [1_000, 2_500] {
            let packet = Outgoing {
                to: receiver.local_addr(),
                segment_bytes,
                slices: &[IoSlice::new(&bytes)],
                source: Some("127.0.0.9:0".parse().unwrap()),
            };
            let count = bytes.len().div_ceil(segment_bytes);
            assert_eq!(sender.send_super_packet(&packet).unwrap(), count);
            assert_eq!(sender.send_batch(&[packet]).unwrap(), count);
            for (from, _) in receive(&receiver, 2 * count) {
                assert_eq!(from.ip(), "127.0.0.9".parse::<std::net::IpAddr>().unwrap());
            }
        }
    }
}

#[test]
fn a_bound_socket_can_be_adopted_and_another_cannot() {
    let theirs = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    theirs.bind(&SockAddr::from(V4)).unwrap();
    let address = theirs.local_addr().unwrap().as_socket().unwrap();
    let ours = UdpSocket::adopt(theirs.into(), &UdpOptions::default()).unwrap();
    assert_eq!(ours.local_addr(), address);
    let sender = socket(V4, UdpOptions::default());
    sender
        .send_segments(address, 10, &[IoSlice::new(b"ping")])
        .unwrap();
    assert_eq!(receive(&ours, 1)[0].1, b"ping");
    let stream = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    stream.bind(&SockAddr::from(V4)).unwrap();
    let unbound = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    for other in [stream.into(), unbound.into()] {
        let refused = UdpSocket::adopt(other, &UdpOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn nothing_to_receive_would_block() {
    let receiver = socket(V4, UdpOptions::default());
    let mut batch = RecvBatch::new(4, 1, 0).unwrap();
    assert_eq!(
        receiver.recv_batch(&mut batch).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    assert!(batch.is_empty());
}

#[test]
fn closed_port_of_a_connected_peer_is_reported() {
    let gone = socket(V4, UdpOptions::default()).local_addr();
    let sender = socket(V4, UdpOptions::default());
    sender.connect(gone).unwrap();
    sender
        .send_segments(gone, 10, &[IoSlice::new(b"x")])
        .unwrap();
    let mut batch = RecvBatch::new(4, 1, 0).unwrap();
    let error = sender.recv_batch(&mut batch).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn taken_buffer_outlives_the_batch_and_its_room_comes_back() {
    let (sender, receiver) = (
        socket(V4, UdpOptions::default()),
        socket(V4, UdpOptions::default()),
    );
    let mut batch = RecvBatch::new(2, 1, 1).unwrap();
    let mut send_and_take = |text: &[u8]| {
        sender
            .send_segments(receiver.local_addr(), 100, &[IoSlice::new(text)])
            .unwrap();
        receiver.recv_batch(&mut batch).unwrap();
        let taken = batch.take(0);
        let left = batch.message(0).unwrap().bytes.len();
        (taken, left)
    };
    let (first, left) = send_and_take(b"first");
    let first = first.unwrap();
    assert_eq!(left, 0);
    let (second, left) = send_and_take(b"second");
    assert!(
        second.is_none() && left == 6,
        "one spare buffer, and it is out"
    );
    assert_eq!(&*first, b"first");
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert_eq!(&*send_and_take(b"third").0.unwrap(), b"third");
}

#[test]
fn full_receive_buffer_shows_in_the_drop_count() {
    let sender = socket(V4, UdpOptions::default());
    let small = UdpOptions {
        recv_buffer_bytes: 4096,
        ..UdpOptions::default()
    };
    let receiver = UdpSocket::bind(V4, &small).unwrap();
    assert!(receiver.recv_buffer_bytes() >= 4096 && sender.recv_buffer_bytes() >= 1 << 20);
    let bytes = payload(1000);
    for _ in 0..100 {
        sender
            .send_segments(receiver.local_addr(), 1000, &[IoSlice::new(&bytes)])
            .unwrap();
    }
    assert!(receiver.receive_buffer_drops().unwrap() > 0);
}
