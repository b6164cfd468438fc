//! Each control beside Linux' module of the same name: fed with what the kernel's was fed with, it
//! keeps the same window.
//!
//! `data/NAME.txt` is a trace of the kernel's control, made by `tests/guest/cc.sh`, see there for
//! what its columns are. The same acknowledgements, round-trip times and losses go to ours, and
//! whenever nothing is being recovered the two windows are compared.

use std::path::{Path, PathBuf};

use haul_cc::time::MICROSECOND_NS;
use haul_cc::{Ack, Algorithm, Loss, RttEstimator, Time};

/// How far the windows may be apart.
const APART: f64 = 0.05;
const PACKET: u64 = 1_500;
/// Linux' names of them are ours too.
const CONTROLS: [&str; 7] = [
    "reno",
    "cubic",
    "bic",
    "htcp",
    "highspeed",
    "scalable",
    "vegas",
];

/// A line of a trace.
#[derive(Debug)]
struct Line {
    now: Time,
    acked: u64,
    rtt_ns: u64,
    in_flight: u64,
    window: u64,
    state: State,
}

#[derive(Debug, PartialEq)]
enum State {
    Open,
    Loss,
    Recovery,
}

impl Line {
    fn parse(line: &str) -> Self {
        let columns: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> u64 { columns[at].parse().expect("a number") };
        Self {
            now: Time::from_ns(number(0) * MICROSECOND_NS),
            acked: number(1),
            rtt_ns: number(2) * MICROSECOND_NS,
            in_flight: number(3),
            window: number(4),
            state: match columns[5] {
                "loss" => State::Loss,
                "recovery" => State::Recovery,
                _ => State::Open,
            },
        }
    }
}

/// The result of comparing a trace.
struct Compared {
    /// The largest distance between the two windows, as a share of the kernel's.
    farthest: f64,
    mean: f64,
    compared: usize,
    losses: usize,
}

#[expect(clippy::cast_precision_loss, reason = "windows are far below 2^52")]
fn compare(name: &str, trace: &str) -> Compared {
    let algorithm: Algorithm = name.parse().expect("it is known");
    let mut control = algorithm.build(PACKET, 1);
    let mut rtt = RttEstimator::default();
    let mut packet = 0;
    let mut distances = Vec::new();
    let mut losses = 0;
    for line in trace.lines().map(Line::parse) {
        rtt.update(line.now, line.rtt_ns);
        packet += line.acked;
        let ack = Ack {
            acked_bytes: line.acked * PACKET,
            rtt_ns: Some(line.rtt_ns),
            smoothed_rtt_ns: rtt.smoothed_ns(),
            in_flight_bytes: line.in_flight * PACKET,
            ..Ack::default()
        };
        control.handle_ack(line.now, &ack);
        if line.state == State::Loss {
            losses += 1;
            let loss = Loss {
                lost_bytes: PACKET,
                first_packet: packet,
                next_packet: packet + line.in_flight,
                in_flight_bytes: line.in_flight * PACKET,
            };
            control.handle_loss(line.now, &loss);
        }
        if line.state == State::Open {
            let ours = control.window_bytes() as f64 / PACKET as f64;
            distances.push((ours / line.window as f64 - 1.0).abs());
        }
    }
    Compared {
        farthest: distances.iter().copied().fold(0.0, f64::max),
        mean: distances.iter().sum::<f64>() / distances.len() as f64,
        compared: distances.len(),
        losses,
    }
}

/// The traces of this repository, or those in the directory that `HAUL_CC_TRACES` names.
fn trace(name: &str) -> String {
    let dir = std::env::var_os("HAUL_CC_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"),
        PathBuf::from,
    );
    let path = dir.join(name).with_extension("txt");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_windows_are_those_of_the_kernels_controls() {
    let mut far = Vec::new();
    for name in CONTROLS {
        let compared = compare(name, &trace(name));
        println!(
            "{name}: {} lines, {} losses: {:.2} % apart at most, {:.2} % in the mean",
            compared.compared,
            compared.losses,
            compared.farthest * 100.0,
            compared.mean * 100.0
        );
        assert!(
            compared.compared > 100 && compared.losses >= 2,
            "{name}: too short a trace"
        );
        if compared.farthest > APART {
            far.push(name);
        }
    }
    assert!(far.is_empty(), "more than 5 % apart: {far:?}");
}
