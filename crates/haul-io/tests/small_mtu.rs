//! UDP on a path with an ordinary MTU: loopback of a network namespace made for the purpose.

mod own_network;

use std::io::IoSlice;

use haul_io::udp::{QUOTED_MAX, RecvBatch, UdpOptions, UdpSocket, Undelivered, route_mtu};

#[test]
fn mtu_is_kept_in_a_namespace_of_its_own() {
    in_namespace("segment_larger_than_the_mtu_is_refused_and_offload_stays");
}

#[test]
fn complaints_are_heard_in_a_namespace_of_its_own() {
    in_namespace("what_is_not_delivered_is_said_with_where_it_was_for");
}

/// Runs another test of this file where the MTU is 1,500.
fn in_namespace(name: &str) {
    own_network::run_ignored(name, "ip link set lo mtu 1500 up");
}

#[test]
#[ignore = "needs a small MTU; started by complaints_are_heard_in_a_namespace_of_its_own"]
fn what_is_not_delivered_is_said_with_where_it_was_for() {
    for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let mut options = UdpOptions::default();
        options.report_errors = true;
        let sender = UdpSocket::bind(address.parse().unwrap(), &options).unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let receiver = UdpSocket::bind(local, &UdpOptions::default()).unwrap();
        let to = if sender.local_addr().ip().is_loopback() {
            (sender.local_addr().ip(), receiver.local_addr().port()).into()
        } else {
            receiver.local_addr()
        };
        assert_eq!(route_mtu(to).unwrap(), 1_500);
        let send = |len: usize| sender.send_segments(to, len, &[IoSlice::new(&vec![7; len])]);
        assert_eq!(send(1_501).unwrap_err().raw_os_error(), Some(90));
        let error = sender.next_error().unwrap().unwrap();
        let too_long = Undelivered::TooLong { mtu: 1_500 };
        assert_eq!((error.to.ip(), error.why), (to.ip(), too_long));
        assert!(error.local);
        assert_eq!(sender.next_error().unwrap(), None);
        // The socket is closed; the answer of loopback arrives within the call.
        drop(receiver);
        assert_eq!(send(100).unwrap(), 1);
        let error = sender.next_error().unwrap().unwrap();
        assert_eq!((error.to, error.why), (to, Undelivered::Refused));
        assert!(!error.local);
        assert_eq!(error.quoted(), [7; QUOTED_MAX]);
        assert_eq!(sender.next_error().unwrap(), None);
    }
}

#[test]
#[ignore = "needs a small MTU; started by mtu_is_kept_in_a_namespace_of_its_own"]
fn segment_larger_than_the_mtu_is_refused_and_offload_stays() {
    let local = "127.0.0.1:0".parse().unwrap();
    let sender = UdpSocket::bind(local, &UdpOptions::default()).unwrap();
    let receiver = UdpSocket::bind(local, &UdpOptions::default()).unwrap();
    let segments_max = sender.gso_segments_max();
    let bytes = vec![7; 40 * 1472];
    let slices = [IoSlice::new(&bytes)];
    for segment_bytes in [1473, 9000, 40 * 1472] {
        let error = sender
            .send_segments(receiver.local_addr(), segment_bytes, &slices)
            .unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(90),
            "EMSGSIZE expected, not {error}"
        );
        assert_eq!(sender.gso_segments_max(), segments_max);
    }
    assert_eq!(
        sender
            .send_segments(receiver.local_addr(), 1472, &slices)
            .unwrap(),
        40
    );
    let mut batch = RecvBatch::new(32, 1, 0).unwrap();
    receiver.recv_batch(&mut batch).unwrap();
    let came: usize = batch.iter().map(|message| message.bytes.len()).sum();
    assert_eq!(came, bytes.len());
}
