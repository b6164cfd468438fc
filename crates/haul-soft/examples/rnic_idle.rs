//! What an idle queue pair costs: connects N of them over loopback, both ends in this process, and
//! prints by how much the process has grown for each end.
//!
//! `cargo run --release -p haul-soft --example rnic_idle [-- N [udt]]`

use std::net::Ipv4Addr;

use haul_soft::rnic::{Options, provider};
use haul_verbs::cm::{CmEvent, ConnParam};
use haul_verbs::{QpInit, QpState};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments
        .first()
        .and_then(|word| word.parse().ok())
        .unwrap_or(1_000_usize);
    let udt = arguments.iter().any(|word| word == "udt");
    haul_io::file::raise_open_file_limit();
    let devices = provider(Options::default()).devices().expect("devices");
    let context = devices[usize::from(udt)].open().expect("open");
    let pd = context.alloc_pd().expect("pd");
    let cq = context.create_cq(64, None, 0).expect("cq");
    let events = context.create_event_channel().expect("events");
    let listener = context
        .listen((Ipv4Addr::LOCALHOST, 0).into(), &events, 1_024)
        .expect("listen");
    let mut kept = Vec::new();
    let mut before = 0;
    // The first few pay for what all share.
    for number in 0..count + 8 {
        if number == 8 {
            before = resident_bytes();
        }
        let (near, far) = (
            pd.create_qp(&QpInit::new(&cq)).expect("qp"),
            pd.create_qp(&QpInit::new(&cq)).expect("qp"),
        );
        near.connect(listener.local_addr(), &ConnParam::default(), &events)
            .expect("connect");
        let mut ready = 0;
        while ready < 2 {
            match events.wait(None).expect("event") {
                Some(CmEvent::ConnectRequest(request)) => {
                    request.accept(&far, &ConnParam::default()).expect("accept");
                }
                Some(CmEvent::Established { .. }) => ready += 1,
                other => panic!("{other:?}"),
            }
        }
        kept.push((near, far));
    }
    let grown = resident_bytes().saturating_sub(before);
    let ready = |qp: &haul_verbs::Qp| qp.state() == QpState::Rts;
    assert!(
        kept.iter().all(|(near, far)| ready(near) && ready(far)),
        "all stay connected"
    );
    println!(
        "{} idle queue pairs: {} bytes each",
        2 * count,
        grown / (2 * count)
    );
}

/// The process's memory that is in RAM: the second number of /proc/self/statm, in pages.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("pages") * 4096
}
