//! What the tap writes is what was said: tshark finds every operation over TCP, good CRCs, and
//! nothing malformed; over UDT, packets whose bytes are those of the messages.

use std::path::Path;
use std::process::Command;

use haul_soft::rnic::Options;
use haul_verbs::SendOp;

use crate::support::{End, UDT, Wish, connect, pattern};

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
    let mut options = Options::default();
    // tshark wants FPDUs no longer than a segment of Ethernet.
    options.fpdu_max = 1_400;
    options.pcap = Some(path.clone());
    let others = {
        let mut options = options.clone();
        options.pcap = None;
        options
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
    // Not before the Read is answered: it would take the memory away from under it (RFC 5040 §5.5
    // rule 4).
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

/// The payloads of UDP packets in a capture of raw IP, with their ports. Lengths must fit each
/// other.
fn udp_payloads(capture: &[u8]) -> Vec<([u16; 2], Vec<u8>)> {
    let mut payloads = Vec::new();
    let mut rest = &capture[24..];
    while let Some((head, after)) = rest.split_at_checked(16) {
        let len = usize::try_from(u32::from_ne_bytes(head[8..12].try_into().unwrap())).unwrap();
        let (packet, after) = after.split_at(len);
        let be16 = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        assert_eq!((packet[0], packet[9]), (0x45, 17), "IPv4 and UDP");
        assert_eq!(usize::from(be16(2)), len);
        assert_eq!(usize::from(be16(24)), len - 20);
        payloads.push(([be16(20), be16(22)], packet[28..].to_vec()));
        rest = after;
    }
    payloads
}

/// How many packets there are, by a display filter of tshark that also checks checksums.
fn packets(capture: &Path, filter: &str) -> Option<usize> {
    let checked = [
        "-o",
        "udp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
    ];
    let output = Command::new("tshark")
        .args(checked)
        .args(["-Y", filter, "-r"])
        .arg(capture)
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).lines().count()),
        Err(_) => {
            println!("SKIPPED: no `tshark` command (Debian package tshark)");
            None
        }
    }
}

#[test]
fn a_capture_over_udt_has_the_packets_of_both_directions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("udt.pcap");
    let mut options = Options::default();
    options.pcap = Some(path.clone());
    let wish = Wish {
        device: UDT,
        ..Wish::default()
    };
    let (near, far) = (
        End::new(&options, &wish),
        End::new(&Options::default(), &wish),
    );
    connect(&near, &far, &wish);
    let (asked, answered) = (pattern(20_000, 5), pattern(20_000, 6));
    near.write(0, &asked);
    far.write(100_000, &answered);
    far.receive(0, 0, 20_000);
    near.post(1, SendOp::Send, 0, 20_000);
    near.post(2, SendOp::RdmaRead(far.mr.remote(100_000)), 50_000, 20_000);
    near.success(1);
    near.success(2);
    drop((near, far));
    let payloads = udp_payloads(&std::fs::read(&path).unwrap());
    let ports = payloads[0].0;
    let has = |ports: [u16; 2], wanted: &[u8]| {
        let mut of_it = payloads.iter().filter(|(found, _)| *found == ports);
        of_it.any(|(_, payload)| payload.windows(wanted.len()).any(|part| part == wanted))
    };
    // The beginning of each message, which is in its first packet.
    assert!(has(ports, &asked[..1_000]), "the Send");
    let back = [ports[1], ports[0]];
    assert!(has(back, &answered[..1_000]), "the Read's answer");
    assert!(!has(back, &asked[..1_000]), "directions are told apart");
    let Some(found) = packets(&path, "udp") else {
        return;
    };
    assert_eq!(found, payloads.len());
    let bad = "udp.checksum.status == 0 || ip.checksum.status == 0 || udp.length.bad";
    assert_eq!(packets(&path, bad), Some(0));
}
