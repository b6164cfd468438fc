//! The path made by the kernel's netem queueing discipline.

use std::process::Command;

use anyhow::{Context, Result, bail};
use haul_io::netns::NetNs;
use haul_netem::LossModel;

use super::topology::WAN;
use crate::scenario::Direction;

/// Packets in a netem queue that has to hold everything in flight, when none are asked for.
const LIMIT_PACKETS: u64 = 1_000_000;

/// Puts netem on the device through which packets leave this namespace.
pub(super) fn shape(netns: &NetNs, direction: &Direction) -> Result<()> {
    let arguments = arguments(direction)?;
    let run = || {
        Command::new("tc")
            .args(["qdisc", "add", "dev", WAN, "root", "netem"])
            .args(&arguments)
            .output()
    };
    let output = netns
        .run(run)?
        .context("cannot run `tc`: install iproute2")?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("qdisc kind is unknown") || message.contains("No such file") {
        bail!(
            "this kernel has no netem: load the module sch_netem, or leave out `--emulator kernel`"
        );
    }
    bail!(
        "`tc` failed: {}",
        message.lines().collect::<Vec<_>>().join("; ")
    )
}

/// The words for `tc` that ask for this direction.
fn arguments(direction: &Direction) -> Result<Vec<String>> {
    let link = &direction.link;
    if link.policer.is_some() || direction.corrupt_undetected || direction.overhead_bytes > 0 {
        bail!(
            "kernel netem has no policer, overhead or undetected corruption: leave out `--emulator kernel`"
        );
    }
    let mut words = vec!["delay".to_string(), micros(link.delay_ns)];
    if link.jitter_ns > 0 {
        words.push(micros(link.jitter_ns));
    }
    match link.loss {
        LossModel::None => {}
        LossModel::Random(p) => words.extend(["loss".into(), percent(p)]),
        LossModel::GilbertElliott {
            p,
            r,
            loss_good,
            loss_bad,
        } => words.extend([
            "loss".into(),
            "gemodel".into(),
            percent(p),
            percent(r),
            percent(loss_bad),
            percent(loss_good),
        ]),
    }
    if let Some(reorder) = link.reorder {
        bail!(
            "kernel netem lets packets overtake by {} ns only with its own rules: leave out `--emulator kernel`",
            reorder.delay_ns
        );
    }
    if link.ecn_mark_bytes.is_some() {
        bail!("kernel netem has no threshold for marks: leave out `--emulator kernel`");
    }
    for (word, probability) in [("duplicate", link.duplicate), ("corrupt", link.corrupt)] {
        if probability > 0.0 {
            words.extend([word.into(), percent(probability)]);
        }
    }
    let mut limit = LIMIT_PACKETS;
    if let Some(shaper) = link.rate {
        words.extend(["rate".into(), format!("{}bit", shaper.rate_bps)]);
        limit = shaper.queue_packets.unwrap_or(limit);
    }
    words.extend(["limit".into(), limit.to_string()]);
    Ok(words)
}

/// `tc` counts in microseconds, with decimals.
fn micros(ns: u64) -> String {
    format!("{}.{:03}us", ns / 1000, ns % 1000)
}

fn percent(probability: f64) -> String {
    format!("{}%", probability * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_path_is_written_in_the_terms_of_tc() {
        let text = "[path]\nrate = \"1Gbit\"\nrtt = \"20ms\"\njitter = \"1ms\"\nloss = 0.01\nqueue = \"100packets\"";
        let scenario = Scenario::parse("test", text).unwrap();
        let words = arguments(&scenario.forward).unwrap().join(" ");
        assert_eq!(
            words,
            "delay 10000.000us 1000.000us loss 1% rate 1000000000bit limit 100"
        );
    }

    #[test]
    fn what_netem_cannot_do_is_refused() {
        let text = "[path]\nrtt = \"20ms\"\npolicer = { rate = \"1Gbit\", burst = \"1MiB\" }";
        let scenario = Scenario::parse("test", text).unwrap();
        assert!(
            arguments(&scenario.forward)
                .unwrap_err()
                .to_string()
                .contains("policer")
        );
    }
}
