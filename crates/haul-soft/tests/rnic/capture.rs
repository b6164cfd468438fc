//! What the tap writes is what was said: tshark finds every operation, good CRCs, and nothing malformed.

use std::path::Path;
use std::process::Command;

use haul_soft::rnic::Options;
use haul_verbs::SendOp;

use crate::support::{End, Wish, connect};

/// What tshark says of the packets in which it finds MPA; none where there is no tshark.
fn tshark(capture: &Path) -> Option<String> {
    let output = Command::new("tshark")
        .args(["-V", "-Y", "iwarp_mpa", "-r"])
        .arg(capture)
        // They take the payload of Sends for their own.
        .args([
            "--disable-protocol",
            "smb_direct",
            "--disable-protocol",
            "rpcordma",
        ])
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(_) => {
            println!("SKIPPED: no `tshark` command (Debian package tshark)");
            None
        }
    }
}

#[test]
fn a_capture_shows_every_operation_with_good_crcs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rnic.pcap");
    let options = Options {
        // tshark wants FPDUs no longer than a segment of Ethernet.
        fpdu_max: 1_400,
        pcap: Some(path.clone()),
        ..Options::default()
    };
    let others = Options {
        pcap: None,
        ..options.clone()
    };
    let wish = Wish::default();
    let (near, far) = (End::new(&options, &wish), End::new(&others, &wish));
    connect(&near, &far, &wish);
    for number in 0..3 {
        far.receive(number, 0, 5_000);
    }
    near.post(1, SendOp::Send, 0, 5_000);
    near.post(2, SendOp::RdmaWrite(far.mr.remote(0)), 0, 30_001);
    near.post(3, SendOp::RdmaRead(far.mr.remote(0)), 0, 30_003);
    let remote = far.mr.remote(8);
    near.post(4, SendOp::FetchAdd { remote, add: 1 }, 0, 8);
    for number in 1..=4 {
        near.success(number);
    }
    // Not before the Read is answered: it would take the memory away from under it (RFC 5040 §5.5 rule 4).
    near.post(5, SendOp::SendWithInv(far.mr.rkey()), 0, 3);
    near.success(5);
    far.success(0);
    far.success(1);
    drop((near, far));
    let Some(text) = tshark(&path) else { return };
    for operation in [
        "Write",
        "Read Request",
        "Read Response",
        "Send",
        "Atomic Request",
    ] {
        assert!(text.contains(operation), "no {operation} in the capture");
    }
    let count = |what: &str| text.matches(what).count();
    assert!(
        count("(Good CRC32)") > 50,
        "{} good CRCs",
        count("(Good CRC32)")
    );
    assert_eq!((count("(Bad CRC32"), count("Malformed")), (0, 0));
}
