//! A single run of a tool on a path, for the figures of the papers.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use haul_io::netns::NetNs;
use haul_lab::compare::arrivals::{Arrivals, Ends};
use haul_lab::compare::cell;
use haul_lab::compare::runner::{Outcome, Runner, Stop};
use haul_lab::compare::tool::Tool;
use haul_lab::lab::topology::WAN;
use haul_lab::scenario::unit::{Probability, Rate, Span};

/// A path of a single run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Hosts joined directly.
    Direct,
    /// With an emulator between them. `loss_ppm`: packets lost of a million.
    Emulated {
        rate_bps: u64,
        rtt_ms: u32,
        loss_ppm: u32,
    },
}

/// The result of a single run.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) goodput_bps: f64,
    /// Of the most that the path can give, without the time that the ramp may take.
    pub(crate) ceiling_share: Option<f64>,
    /// Of the sending end and of the receiving one.
    pub(crate) cpu_s_per_gb: [f64; 2],
    pub(crate) ramp_ms: Option<f64>,
    /// As they arrived at the device.
    pub(crate) bits_by_100ms: Vec<f64>,
    pub(crate) warnings: Vec<String>,
}

impl std::fmt::Display for Path {
    /// As the arguments of `compare`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Direct => write!(f, "--unshaped"),
            Self::Emulated {
                rate_bps,
                rtt_ms,
                loss_ppm,
            } => {
                let loss = f64::from(loss_ppm) / 1e6;
                write!(f, "--rates {rate_bps}bit --rtts {rtt_ms}ms --losses {loss}")
            }
        }
    }
}

/// Runs `work` and returns its result and the bits that arrived meanwhile at the device towards the
/// path, in each 100 ms from the first payload on.
pub(crate) fn arriving<T>(netns: &NetNs, rtt_s: f64, work: impl FnOnce() -> T) -> (T, Vec<f64>) {
    const SPAN_S: f64 = 0.1;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| Arrivals::sample(netns, WAN, Arrivals::step(rtt_s), &stop));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let arrivals = sampler.join().unwrap_or_default();
        let transfer = arrivals.transfer(rtt_s, 0.0, Ends::LastByte);
        let bytes = transfer.map_or_else(Vec::new, |transfer| transfer.by_step(SPAN_S));
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let bits = bytes.into_iter().map(|bytes| bytes as f64 * 8.0);
        (done, bits.collect())
    })
}

/// One run of one tool; or why it cannot run here.
pub(crate) fn once(
    runner: &Runner<'_>,
    path: Path,
    tool: &str,
    repetition: u16,
) -> Result<std::result::Result<Once, String>, Stop> {
    let cell = match path {
        Path::Direct => cell::unshaped(1500)?,
        Path::Emulated {
            rate_bps,
            rtt_ms,
            loss_ppm,
        } => cell::figures(
            Rate { bps: rate_bps },
            Span {
                ns: u64::from(rtt_ms) * 1_000_000,
            },
            Probability(f64::from(loss_ppm) / 1e6),
            1500,
        )?,
    };
    let tool = Tool::parse(tool)?;
    if let Some(why) = runner.missing(&tool) {
        return Ok(Err(why));
    }
    let run = match runner.run(&cell, &tool, repetition)? {
        Outcome::Ran(run) => run,
        Outcome::Interrupted(signal) => return Err(Stop::Interrupted(signal)),
    };
    let Some(figures) = run.figures else {
        let why = run.error.unwrap_or_default();
        return Err(Stop::Failed(anyhow::anyhow!(
            "{} on {}: {why}",
            tool.name,
            cell.name
        )));
    };
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    let bits = figures
        .arrived_by_100ms
        .iter()
        .map(|&bytes| bytes as f64 * 8.0);
    Ok(Ok(Once {
        goodput_bps: figures.goodput_bps,
        ceiling_share: figures.after_ramp_share,
        cpu_s_per_gb: [figures.cpu_a_s_per_gb, figures.cpu_b_s_per_gb],
        ramp_ms: figures.ramp_ms,
        bits_by_100ms: bits.collect(),
        warnings: run.warnings,
    }))
}
