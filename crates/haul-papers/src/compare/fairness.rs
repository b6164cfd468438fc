//! How flows share one path: two of any tool, one with a number of TCP flows, one with UDP without
//! congestion control.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use haul_io::netns::child::{Caught, Signals};
use haul_report::machine::{self, Machine};
use haul_report::stats::{jain, median};
use serde::Serialize;

use super::args::FairnessArgs;
use haul_lab::compare::cell::{self, Cell};
use haul_lab::compare::plan::{Load, Plan, Reported};
use haul_lab::compare::runner::{self, Runner, Running, Stop};
use haul_lab::compare::tool::{self, Tool};
use haul_lab::lab::{Lab, privilege};
use haul_lab::out;
use haul_lab::report::Report;

const SCHEMA: &str = "haul.fairness/2";

const SECOND_NS: u64 = 1_000_000_000;
/// By then all flows of a tool have begun.
const CROWD_NS: u64 = 5 * SECOND_NS;
const DEFAULT_PAIRS: [&str; 2] = ["haul-udt,haul-udt", "haul-udt,iperf3-cubic"];

/// Everything.
#[derive(Debug, Serialize)]
struct Results {
    schema: &'static str,
    machine: Machine,
    path: String,
    rate_bps: Option<u64>,
    rtt_ms: f64,
    loss: f64,
    mtu: u16,
    seconds: u32,
    interrupted: Option<i32>,
    pairs: Vec<PairRecord>,
}

/// Two flows.
#[derive(Debug, Serialize)]
struct PairRecord {
    flows: Vec<FlowRecord>,
    /// Of the bytes of both over the time in which both ran.
    jain: Option<f64>,
    jain_by_second: Vec<Option<f64>>,
    /// Both together, by what the path can carry.
    ceiling_share: Option<f64>,
    /// One, by what is left beside another one that sends at a rate whatever happens.
    residual_share: Option<f64>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct FlowRecord {
    tool: String,
    streams: u16,
    goodput_bps: f64,
    /// Its share of the total goodput.
    share: f64,
    /// The share by the share that as many streams of all would have.
    fair_ratio: f64,
    resent_share: f64,
    bps_by_second: Vec<f64>,
}

/// Measures every pair.
pub(crate) fn run(args: &FairnessArgs) -> Result<ExitCode> {
    let cell = match &args.scenario {
        Some(which) => cell::named(which)?,
        None => cell::figures(args.rate, args.rtt, args.loss, args.mtu)?,
    };
    let seconds = tool::whole_seconds(args.time)?;
    let pairs = pairs(args)?;
    let later = later(args, seconds)?;
    privilege::acquire()?;
    let signals = Signals::block().context("cannot handle signals")?;
    let runner = Runner {
        programs: args.programs.resolve(),
        signals: &signals,
        load: Load::Seconds(seconds),
        settle: Duration::from_secs(10),
    };
    let mut results = Results {
        schema: SCHEMA,
        machine: Machine::describe(),
        path: cell.name.clone(),
        rate_bps: cell.rate_bps(),
        rtt_ms: cell.rtt_s() * 1e3,
        loss: cell.loss(),
        mtu: cell.scenario.mtu,
        seconds,
        interrupted: None,
        pairs: Vec::new(),
    };
    let mut failed = false;
    out::line(results.machine.line());
    out::line(format_args!("{}, {seconds} s", cell.name));
    for tools in &pairs {
        match measure(&runner, &cell, tools, later) {
            Ok(record) => {
                out::line(render(&record).trim_end());
                results.pairs.push(record);
            }
            Err(Stop::Interrupted(signal)) => {
                results.interrupted = Some(signal);
                break;
            }
            Err(Stop::Failed(error)) => {
                eprintln!(
                    "{} and {}: {}",
                    tools[0].name,
                    tools[1].name,
                    haul_lab::line(&error)
                );
                failed = true;
            }
        }
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&results)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(match results.interrupted {
        Some(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        None if failed => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

/// Everything that the arguments ask for.
fn pairs(args: &FairnessArgs) -> Result<Vec<[Tool; 2]>> {
    let tcp = args.against.iter().flat_map(|congestion| {
        let flows = args.flows.iter();
        flows.map(move |flows| format!("iperf3-{congestion}-{flows}"))
    });
    let udp = args.udp.iter().map(|rate| format!("udp-{}bit", rate.bps));
    let asked = args.pairs.iter().cloned();
    let mut texts: Vec<String> = asked
        .chain(tcp.chain(udp).map(|other| format!("{other},{}", args.tool)))
        .collect();
    if texts.is_empty() {
        texts = DEFAULT_PAIRS.map(String::from).into();
    }
    texts.iter().map(|text| pair(text)).collect()
}

/// How many seconds the second flow comes after the first: after many flows of one tool, when they
/// are all there.
fn later(args: &FairnessArgs, seconds: u32) -> Result<u32> {
    let usual = if args.against.is_empty() && args.udp.is_empty() {
        0
    } else {
        CROWD_NS
    };
    let ns = args.later.map_or(usual, |later| later.ns);
    let later = u32::try_from(ns / SECOND_NS).unwrap_or(u32::MAX);
    if later >= seconds || !ns.is_multiple_of(SECOND_NS) {
        bail!(
            "--later must be whole seconds and less than --time (it is 5s with --against and --udp)"
        );
    }
    Ok(later)
}

fn pair(text: &str) -> Result<[Tool; 2]> {
    match text.split_once(',') {
        Some((first, second)) => Ok([Tool::parse(first)?, Tool::parse(second)?]),
        None => bail!("`{text}` is no pair: write two tools, such as haul-udt,iperf3-cubic"),
    }
}

fn measure(
    runner: &Runner<'_>,
    cell: &Cell,
    tools: &[Tool; 2],
    later: u32,
) -> Result<PairRecord, Stop> {
    for tool in tools {
        if let Some(reason) = tool.missing(&runner.programs, runner.load) {
            return Err(Stop::Failed(anyhow!("{} cannot run: {reason}", tool.name)));
        }
    }
    machine::settle(runner.settle);
    let lab = Lab::start_with(&cell.scenario, cell.engine)?;
    let dir = lab.scratch();
    let (mut plans, mut servers) = (Vec::new(), Vec::new());
    for (index, tool) in (0..).zip(tools) {
        let plan = tool.plan(&runner.programs, cell, runner.load, dir, index)?;
        servers.push(runner.serve(&lab, &plan)?);
        plans.push(plan);
    }
    let mut clients = vec![runner::spawn(&lab, "a", &plans[0].client)?];
    pause(runner, Duration::from_secs(later.into()))?;
    clients.push(runner::spawn(&lab, "a", &plans[1].client)?);
    let mut reported = Vec::new();
    for (((tool, plan), server), client) in
        tools.iter().zip(&plans).zip(&mut servers).zip(&mut clients)
    {
        let limit = runner.limit(cell) + Duration::from_secs(later.into());
        reported.push(finish(runner, cell, tool, (plan, server, client), limit)?);
    }
    let warnings = Report::from(lab.stats()).warnings();
    Ok(PairRecord::new(cell, tools, &reported, later, warnings))
}

fn finish(
    runner: &Runner<'_>,
    cell: &Cell,
    tool: &Tool,
    (plan, server, client): (&Plan, &mut Running, &mut Running),
    limit: Duration,
) -> Result<Reported, Stop> {
    let ended = runner.wait(client, limit)?;
    if !ended.status.success() {
        return Err(Stop::Failed(client.failure(&tool.name, &ended)));
    }
    runner.end_server(plan, server)?;
    Ok(runner::reported_by(tool, server, client, cell)?)
}

fn pause(runner: &Runner<'_>, time: Duration) -> Result<(), Stop> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if let Some(Caught::End(signal)) = runner.signals.wait(left)? {
            return Err(Stop::Interrupted(signal));
        }
    }
}

impl PairRecord {
    /// `later`: seconds of the first flow before the second began, which do not count.
    fn new(
        cell: &Cell,
        tools: &[Tool; 2],
        reported: &[Reported],
        later: u32,
        warnings: Vec<String>,
    ) -> Self {
        let mut rates: Vec<Vec<f64>> = reported
            .iter()
            .map(|reported| by_second(&reported.spans))
            .collect();
        let later = usize::try_from(later)
            .unwrap_or(usize::MAX)
            .min(rates[0].len());
        rates[0].drain(..later);
        let common = rates.iter().map(Vec::len).min().unwrap_or(0);
        for flow in &mut rates {
            flow.truncate(common);
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds of a measurement")]
        let means: Vec<f64> = rates
            .iter()
            .map(|flow| flow.iter().sum::<f64>() / (common as f64).max(1.0))
            .collect();
        let whole: f64 = means.iter().sum();
        let streams: u16 = tools.iter().map(Tool::streams).sum();
        let ceiling = cell.ceiling_bps(tools[0].header_bytes());
        let of_residual = |own: usize| {
            let offered = tools[1 - own].offers_bps(cell.scenario.mtu)?;
            let left = cell.left_beside(offered, tools[own].header_bytes())?;
            Some(means[own] / left)
        };
        let residual_share = of_residual(1).or_else(|| of_residual(0));
        let jain_by_second = (0..common).map(|second| jain(&[rates[0][second], rates[1][second]]));
        Self {
            jain: jain(&means),
            jain_by_second: jain_by_second.collect(),
            ceiling_share: ceiling.map(|most| whole / most),
            residual_share,
            warnings,
            flows: tools
                .iter()
                .zip(reported)
                .zip(rates.iter().zip(means))
                .map(|((tool, reported), (flow, goodput_bps))| {
                    #[expect(clippy::cast_precision_loss, reason = "bytes of a measurement")]
                    let bytes = reported.bytes as f64;
                    let share = goodput_bps / whole.max(1.0);
                    FlowRecord {
                        tool: tool.name.clone(),
                        streams: tool.streams(),
                        goodput_bps,
                        share,
                        fair_ratio: share * f64::from(streams) / f64::from(tool.streams()),
                        resent_share: reported.resent_bytes / bytes,
                        bps_by_second: flow.clone(),
                    }
                })
                .collect(),
        }
    }
}

fn render(record: &PairRecord) -> String {
    let mut text = String::new();
    for flow in &record.flows {
        text += &format!(
            "  {:<18} {:>8.1} Mbit/s  {:>5.1} % of both  {:.2} % resent\n",
            flow.tool,
            flow.goodput_bps / 1e6,
            flow.share * 100.0,
            flow.resent_share * 100.0
        );
    }
    let seconds: Vec<f64> = record.jain_by_second.iter().copied().flatten().collect();
    let lowest = seconds.iter().copied().fold(1.0, f64::min);
    if let Some(share) = record.residual_share {
        text += &format!("  {:.1} % of what is left", share * 100.0);
    } else if let Some(own) = [1, 0]
        .into_iter()
        .find(|own| record.flows[1 - own].streams > 1)
    {
        text += &format!("  {:.2} of a fair share", record.flows[own].fair_ratio);
    } else {
        text += &format!(
            "  Jain index {:.3} overall; by second: median {:.3}, lowest {lowest:.3}",
            record.jain.unwrap_or(0.0),
            median(seconds).unwrap_or(0.0)
        );
    }
    if let Some(share) = record.ceiling_share {
        text += &format!("; both together {:.1} % of the ceiling", share * 100.0);
    }
    for warning in &record.warnings {
        text += &format!("\n  warning: {warning}");
    }
    format!("\n{text}\n")
}

/// Bits in each whole second, from spans that follow one another. A span that reaches over the end
/// of a second counts in both by its length; what does not fill a second at the end is left out.
fn by_second(spans: &[(f64, f64)]) -> Vec<f64> {
    let mut seconds = Vec::new();
    let (mut filled, mut bits) = (0.0, 0.0);
    for &(length, bytes) in spans {
        let mut left = length;
        while left > 1e-9 {
            let piece = (1.0_f64 - filled).min(left);
            bits += bytes * 8.0 * piece / length;
            filled += piece;
            left -= piece;
            if filled > 1.0 - 1e-6 {
                seconds.push(bits);
                (filled, bits) = (0.0, 0.0);
            }
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_lab::compare::arrivals::Ends;

    #[test]
    fn spans_are_divided_among_seconds() {
        let spans = [(0.6, 60.0), (0.6, 60.0), (0.6, 120.0), (0.6, 0.0)];
        let seconds = by_second(&spans);
        assert_eq!(seconds.len(), 2);
        assert!((seconds[0] - 800.0).abs() < 1e-6);
        assert!((seconds[1] - (160.0 + 960.0)).abs() < 1e-6);
        assert!(by_second(&[(0.1, 5.0)]).is_empty());
    }

    #[test]
    fn every_number_of_flows_meets_every_control_and_every_rate() {
        let args = |more: &[&str]| {
            let words = ["fairness"].iter().chain(more);
            <Line as clap::Parser>::parse_from(words).args
        };
        let names = |more: &[&str]| -> Vec<String> {
            let pairs = pairs(&args(more)).unwrap();
            pairs
                .iter()
                .map(|[a, b]| format!("{} {}", a.name, b.name))
                .collect()
        };
        assert_eq!(names(&[]), ["haul-udt haul-udt", "haul-udt iperf3-cubic"]);
        let asked = [
            "--tool=haul-udt-reno",
            "--against=bbr",
            "--flows=1,32",
            "--udp=1Mbit",
        ];
        assert_eq!(
            names(&asked),
            [
                "iperf3-bbr-1 haul-udt-reno",
                "iperf3-bbr-32 haul-udt-reno",
                "udp-1000000bit haul-udt-reno"
            ]
        );
    }

    #[test]
    fn a_flow_is_judged_beside_others_whichever_comes_first() {
        let cell = cell::named("wan-100ms").unwrap();
        let record = |words: &str, rates: [f64; 2]| {
            let reported = rates.map(|bps| Reported {
                bytes: 1,
                seconds: 3.0,
                ends: Ends::Reported,
                resent_bytes: 0.0,
                spans: vec![(1.0, bps / 8.0); 3],
            });
            PairRecord::new(&cell, &pair(words).unwrap(), &reported, 1, Vec::new())
        };
        // Half of a gigabit in packets of 1500 bytes, headers of 28 in each.
        let udp = "udp-490666666bit";
        for (words, rates) in [
            (format!("{udp},haul-udt"), [490e6, 400e6]),
            (format!("haul-udt,{udp}"), [400e6, 490e6]),
        ] {
            let share = record(&words, rates).residual_share.unwrap();
            assert!((0.8..0.84).contains(&share), "{words}: {share}");
        }
        for (words, rates) in [
            ("iperf3-cubic-4,haul-udt", [800e6, 100e6]),
            ("haul-udt,iperf3-cubic-4", [100e6, 800e6]),
        ] {
            let text = render(&record(words, rates));
            // A ninth, where a fifth would be fair.
            assert!(text.contains("0.56 of a fair share"), "{text}");
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: FairnessArgs,
    }

    #[test]
    fn a_pair_is_two_tools() {
        assert!(pair("haul-udt,iperf3-cubic").is_ok());
        assert!(pair("haul-udt").is_err());
        assert!(pair("haul-udt,").is_err());
    }
}
