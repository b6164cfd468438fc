//! One GridFTP transfer through the gateways of a lab.

use std::time::Duration;

use super::arrivals::DAY_S;
use super::gridftp::{Stack, Stored, stored};
use super::plan::Load;
use super::runner::{Runner, Stop};
use crate::lab::Lab;
use crate::lab::topology::LAN;

/// The longest time until a client's transfer begins: seconds, and round trips of its conversation
/// with the servers.
const START_S: f64 = 0.5;
const START_RTTS: f64 = 15.0;
/// Time for a transfer beyond its duration, to wait for its log.
const SLACK: Duration = Duration::from_secs(30);
/// Spans of [`transfer`], s.
const SPAN_S: f64 = 0.1;

/// A transfer by Globus' TCP from host `a` of a lab with gateways to host `b`, which lasts for
/// `seconds` at least unless its client took long to begin it. What the server on `b` took by time,
/// from when it was asked to: each span's seconds and bytes.
pub fn transfer(
    runner: &Runner<'_>,
    lab: &Lab,
    streams: u16,
    seconds: u32,
) -> Result<Vec<(f64, f64)>, Stop> {
    let dir = lab.scratch();
    #[expect(clippy::cast_precision_loss, reason = "round trips far below 2^53 ns")]
    let rtt_s = lab.scenario().rtt_ns() as f64 / 1e9;
    // Its client counts the time from its own start on.
    let begins = Duration::from_secs_f64((START_S + START_RTTS * rtt_s).ceil());
    let asked = seconds + u32::try_from(begins.as_secs())?;
    let plan = Stack::Tcp.plan(None, Load::Seconds(asked), streams, dir)?;
    let limit = Duration::from_secs(asked.into()) + SLACK;
    let watched = runner.watch(lab, &plan, LAN, rtt_s, limit)?;
    let Stored { bytes, begin, end } = stored(&watched.server.stdout())?;
    let lasted = (end - begin).rem_euclid(DAY_S);
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    let bytes = bytes as f64;
    Ok(watched.arrivals.spans(begin, lasted, SPAN_S, bytes))
}
