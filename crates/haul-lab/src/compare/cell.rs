//! The paths of a matrix, and the most that each can carry.

use anyhow::Result;
use haul_netem::LossModel;

use crate::lab::Engine;
use crate::scenario::Scenario;
use crate::scenario::unit::{Probability, Rate, Span};
use crate::usage::Usage;

/// One path.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Its name in the results.
    pub name: String,
    /// The emulated path.
    pub scenario: Scenario,
    /// By which emulator.
    pub engine: Engine,
    /// It comes from the matrix of figures, not from a scenario.
    pub in_matrix: bool,
}

/// A path of these figures.
pub fn figures(rate: Rate, rtt: Span, loss: Probability, mtu: u16) -> Result<Cell> {
    let text = format!(
        "[path]\nrate = \"{}bit\"\nrtt = \"{}ns\"\nloss = {:?}\nmtu = {mtu}\n",
        rate.bps, rtt.ns, loss.0
    );
    let short = |shown: String| shown.replace("/s", "").replace(' ', "");
    let mut name = format!(
        "{} {} loss {}",
        short(rate.to_string()),
        short(rtt.to_string()),
        percent(loss.0)
    );
    if mtu != 1500 {
        name += &format!(" mtu {mtu}");
    }
    Ok(Cell {
        scenario: Scenario::parse(&name, &text)?,
        name,
        engine: Engine::Tun,
        in_matrix: true,
    })
}

/// A scenario's path.
pub fn named(which: &str) -> Result<Cell> {
    let scenario = Scenario::load(which)?;
    let names = scenario.host_names();
    if !["a", "b"]
        .iter()
        .all(|host| names.iter().any(|name| name == host))
    {
        return Err(Usage(format!("scenario {which} has no hosts a and b")).into());
    }
    Ok(Cell {
        name: scenario.name.clone(),
        scenario,
        engine: Engine::Tun,
        in_matrix: false,
    })
}

/// Two hosts joined directly; nothing is emulated.
///
/// # Errors
/// If no scenario can have this MTU.
pub fn unshaped(mtu: u16) -> Result<Cell> {
    let name = format!("unshaped mtu {mtu}");
    let text = format!("[path]\nrtt = \"0ms\"\nmtu = {mtu}\n");
    Ok(Cell {
        scenario: Scenario::parse(&name, &text)?,
        name,
        engine: Engine::None,
        in_matrix: false,
    })
}

impl Cell {
    /// The rate that wire packets from `a` to `b` may have for long, bits per second.
    pub fn rate_bps(&self) -> Option<u64> {
        let link = &self.scenario.forward.link;
        let shaped = link.rate.map(|shaper| shaper.rate_bps);
        let policed = link.policer.map(|policer| policer.rate_bps);
        shaped.into_iter().chain(policed).min()
    }

    /// Round-trip time without load, seconds.
    pub fn rtt_s(&self) -> f64 {
        seconds(self.scenario.rtt_ns())
    }

    /// The share of packets from `a` to `b` that do not arrive whole, in the long run.
    pub fn loss(&self) -> f64 {
        let link = &self.scenario.forward.link;
        let lost = mean_loss(&link.loss);
        lost + link.corrupt * (1.0 - lost)
    }

    /// The most payload per second, in bits: the rate, less headers, less losses (DESIGN §9).
    /// `header_bytes` is the overhead of each full IP packet.
    pub fn ceiling_bps(&self, header_bytes: u16) -> Option<f64> {
        let mtu = f64::from(self.scenario.mtu);
        let wire = mtu + f64::from(self.scenario.forward.overhead_bytes);
        let payload = mtu - f64::from(header_bytes);
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
        self.rate_bps()
            .map(|rate| rate as f64 * payload / wire * (1.0 - self.loss()))
    }

    /// The ceiling of the remaining rate beside `offered_bps` of IP packets without congestion
    /// control.
    pub fn left_beside(&self, offered_bps: f64, header_bytes: u16) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
        let rate_bps = self.rate_bps()? as f64;
        let left = (1.0 - offered_bps / rate_bps).max(0.0);
        Some(self.ceiling_bps(header_bytes)? * left).filter(|&left| left > 0.0)
    }

    /// Rate times round-trip time, bytes.
    pub fn bdp_bytes(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
        self.rate_bps().map(|rate| rate as f64 / 8.0 * self.rtt_s())
    }
}

/// A share as people write it.
pub fn percent(share: f64) -> String {
    if share == 0.0 {
        return "0".into();
    }
    if share >= 0.001 {
        format!("{}%", round(share * 100.0))
    } else {
        format!("{share:e}")
    }
}

fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn mean_loss(model: &LossModel) -> f64 {
    match *model {
        LossModel::None => 0.0,
        LossModel::Random(p) => p,
        LossModel::GilbertElliott {
            p,
            r,
            loss_good,
            loss_bad,
        } if p + r > 0.0 => (loss_good * r + loss_bad * p) / (p + r),
        LossModel::GilbertElliott { loss_good, .. } => loss_good,
    }
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Cell {
        Cell {
            name: "test".into(),
            scenario: Scenario::parse("test", text).unwrap(),
            engine: Engine::Tun,
            in_matrix: false,
        }
    }

    #[test]
    fn the_ceiling_is_the_rate_less_headers_less_loss() {
        let rate = Rate { bps: 1_000_000_000 };
        let rtt = Span { ns: 100_000_000 };
        let cell = figures(rate, rtt, Probability(0.01), 1500).unwrap();
        let ceiling = cell.ceiling_bps(44).unwrap();
        assert!((ceiling - 1e9 * 1456.0 / 1500.0 * 0.99).abs() < 1.0);
        assert!((cell.bdp_bytes().unwrap() - 12.5e6).abs() < 1.0);
        assert_eq!(cell.name, "1Gbit 100ms loss 1%");
    }

    #[test]
    fn a_policer_sets_the_ceiling_below_the_rate() {
        let cell = scenario(
            "[path]\nrtt = \"1ms\"\nrate = \"1Gbit\"\noverhead = 38\npolicer = { rate = \"500Mbit\", burst = \"1MiB\" }",
        );
        let ceiling = cell.ceiling_bps(52).unwrap();
        assert!((ceiling - 5e8 * 1448.0 / 1538.0).abs() < 1.0);
    }

    #[test]
    fn bursts_count_by_the_share_they_lose() {
        let cell = scenario(
            "[path]\nrtt = \"1ms\"\nrate = \"1Gbit\"\nloss = { share = \"1%\", burst = 8 }",
        );
        assert!((cell.loss() - 0.01).abs() < 1e-9);
    }

    #[test]
    fn a_path_without_a_rate_has_no_ceiling() {
        assert_eq!(unshaped(1500).unwrap().ceiling_bps(44), None);
    }
}
