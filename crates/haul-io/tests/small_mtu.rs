//! UDP on a path with an ordinary MTU: loopback of a network namespace made for the purpose.

use std::io::IoSlice;
use std::process::Command;

use haul_io::udp::{RecvBatch, UdpOptions, UdpSocket};

#[test]
fn mtu_is_kept_in_a_namespace_of_its_own() {
    let test = std::env::current_exe().unwrap();
    let made = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c"])
        .arg(r#"ip link set lo mtu 1500 up || exit 77; exec "$0" --ignored --exact "$1""#)
        .arg(test)
        .arg("segment_larger_than_the_mtu_is_refused_and_offload_stays")
        .output();
    let Ok(output) = made else {
        println!("SKIPPED: no `unshare` command (Debian package util-linux)");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || text.contains("unshare:") {
        println!("SKIPPED: cannot make a network namespace here: {text}");
        return;
    }
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && report.contains("1 passed"),
        "{report}{text}"
    );
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
