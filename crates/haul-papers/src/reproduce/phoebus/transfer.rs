//! One transfer over the emulated path, directly or through gateways, and what it found.

use crate::reproduce::bench::Context;
use crate::reproduce::gateways::{Flow, Found, Gateways, Program, Route, Way};
use crate::reproduce::record::{Figure, Sample};
use haul_lab::compare::runner::Stop;
use haul_lab::compare::tool::no_congestion_control;

/// The emulated path, which this machine can carry beside four programs.
pub(super) const RATE_BPS: u64 = 500_000_000;
/// Payload of TCP with time stamps in a packet of 1500 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// The required share of a path's goodput for a gateway's channel.
pub(super) const SHARE: f64 = 95.0;
/// Regions of a ring by a gateway's default, and the least bytes of one.
const REGIONS: u64 = 8;
const REGION_BYTES_MIN: u64 = 1 << 20;
/// The beginning that is left out of "once it has begun", s, and half of a run at most.
const RAMP_S: f64 = 5.0;

/// The channel that long paths are for.
const CHANNEL: &str = "iwarp/udt";

pub(super) const CUBIC: &str = "cubic";
pub(super) const BBR: &str = "BBR";
pub(super) const GATEWAYS: &str = "cubic, gateways";

/// A line of figures 6 and 9.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) flow: Flow,
    pub(super) gateways: bool,
    /// It is measured with `--quick`, too.
    pub(super) quick: bool,
}

const fn line(
    name: &'static str,
    congestion: &'static str,
    streams: u16,
    gateways: bool,
    quick: bool,
) -> Line {
    Line {
        name,
        flow: Flow {
            program: Program::Iperf,
            congestion,
            streams,
        },
        gateways,
        quick,
    }
}

/// In the order of their turns.
pub(super) const LINES: [Line; 8] = [
    line(CUBIC, "cubic", 1, false, true),
    line("cubic × 8", "cubic", 8, false, true),
    line(BBR, "bbr", 1, false, true),
    line("BBR × 8", "bbr", 8, false, false),
    line(GATEWAYS, "cubic", 1, true, true),
    line("cubic × 8, gateways", "cubic", 8, true, true),
    line("BBR, gateways", "bbr", 1, true, false),
    line("BBR × 8, gateways", "bbr", 8, true, false),
];

/// A path between the gateways: the keys of `[path]`.
pub(super) fn path(rtt_ms: u32, loss_ppm: u32) -> String {
    let loss = f64::from(loss_ppm) / 1e6;
    format!("rate = \"{RATE_BPS}bit\"\nrtt = \"{rtt_ms}ms\"\nloss = {loss:?}\n")
}

/// A route whose ring suits the round trip: twice what is in flight, since a queue may hold as much
/// again, and the regions that are being filled and drained. A lost packet takes another round trip
/// to be retransmitted. One connection may not use all memory of the far end.
pub(super) fn route(rtt_ms: u32, loss_ppm: u32) -> Route {
    let round_trips = if loss_ppm > 0 { 3 } else { 2 };
    let bytes = round_trips * bdp_bytes(rtt_ms) * REGIONS / (REGIONS - 2) * 5 / 4;
    Route {
        channel: CHANNEL,
        ring_bytes: bytes.next_power_of_two().max(REGIONS * REGION_BYTES_MIN),
        more: String::new(),
    }
}

/// Bytes in flight.
pub(super) fn bdp_bytes(rtt_ms: u32) -> u64 {
    RATE_BPS / 8 * u64::from(rtt_ms) / 1000
}

/// The most payload of TCP per second, bits.
pub(super) fn goodput_bps(rate_bps: u64, loss_ppm: u32) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
    let rate_bps = rate_bps as f64;
    rate_bps * PAYLOAD_SHARE * (1.0 - f64::from(loss_ppm) / 1e6)
}

/// Returns what can run here, and prints why the rest cannot.
pub(super) fn lines(context: &Context<'_>, figure: &mut Figure) -> Vec<&'static Line> {
    let mut there = Vec::new();
    for line in LINES.iter().filter(|line| line.quick || !context.quick) {
        match no_congestion_control(line.flow.congestion) {
            Some(why) => figure.warn(format!("{} is left out: {why}", line.flow.congestion)),
            None => there.push(line),
        }
    }
    there
}

/// One transfer, again where its program is known to fail at times. One that fails makes the figure
/// a failure, and the others go on.
pub(super) fn run(
    context: &Context<'_>,
    figure: &mut Figure,
    told: &str,
    way: &Way,
    route: Option<&Route>,
    flow: Flow,
    repetition: u16,
) -> Result<Option<Found>, Stop> {
    let listener = flow.program.listener();
    once(context, figure, told, |figure, seconds, ramp_s| {
        let transfer = |figure: &mut Figure| {
            Gateways::start(context, way, route, listener, repetition.into())
                .and_then(|lab| lab.transfer(flow, seconds, ramp_s, figure))
        };
        let mut found = transfer(figure);
        for _ in 0..flow.program.again() {
            let Err(Stop::Failed(why)) = &found else {
                break;
            };
            figure.warn(format!("{told}: measured again, because {why:#}"));
            found = transfer(figure);
        }
        found
    })
}

/// One measurement, given its seconds and those of its beginning, and what it found in a line.
pub(super) fn once(
    context: &Context<'_>,
    figure: &mut Figure,
    told: &str,
    measure: impl FnOnce(&mut Figure, u32, f64) -> Result<Found, Stop>,
) -> Result<Option<Found>, Stop> {
    let seconds = u32::try_from(context.time_ms.div_ceil(1000)).unwrap_or(u32::MAX);
    let ramp_s = RAMP_S.min(f64::from(seconds) / 2.0);
    match measure(figure, seconds, ramp_s) {
        Ok(found) => {
            let cpu = found.cpu_s_per_gb.map_or_else(String::new, |[near, far]| {
                format!(", gateways {near:.2} and {far:.2} s/GB")
            });
            eprintln!(
                "  {told}: {:.0} Mbit/s, {:.0} from the start{cpu}",
                found.later_bps / 1e6,
                found.whole_bps / 1e6
            );
            Ok(Some(found))
        }
        Err(Stop::Failed(why)) => {
            let why = format!("{told}: {why:#}");
            eprintln!("  {why}");
            figure.failed.get_or_insert(why);
            Ok(None)
        }
        Err(stop) => Err(stop),
    }
}

pub(super) fn add(
    figure: &mut Figure,
    chart: usize,
    series: &str,
    at: u32,
    found: &Found,
    value: f64,
) {
    let sample = Sample {
        cpu_s_per_gb: found.cpu_s_per_gb.map(|[near, far]| near + far),
        ..Sample::of(value)
    };
    figure.charts[chart].add(series, at, sample);
}

pub(super) fn cpu(found: &Found) -> Sample {
    Sample::of(found.cpu_s_per_gb.map_or(0.0, |[near, far]| near + far))
}

fn values(figure: &Figure, chart: usize, series: &str) -> impl Iterator<Item = f64> {
    let series = figure
        .charts
        .get(chart)
        .and_then(|chart| chart.series(series));
    series
        .into_iter()
        .flat_map(|series| &series.points)
        .map(|point| point.value)
}

pub(super) fn least(figure: &Figure, chart: usize, series: &str) -> Option<f64> {
    values(figure, chart, series).reduce(f64::min)
}

pub(super) fn most(figure: &Figure, chart: usize, series: &str) -> Option<f64> {
    values(figure, chart, series).reduce(f64::max)
}
