//! The highest rate that this machine carries honestly, found by trying, and kept for later.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::path::{CATCH_UP_FLOOD, rate_text};
use super::traffic::{self, Flow};
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::Scenario;

/// Rates that are tried, Mb/s, from below.
const LADDER_MBPS: [u64; 14] = [
    500, 1000, 2000, 3000, 4000, 5000, 6500, 8000, 10_000, 12_500, 15_000, 20_000, 25_000, 40_000,
];

/// The cases to try: MTU and loss. Loss costs the emulator work, since it cuts super-packets.
const TRIED: [(u16, f64); 3] = [(1500, 0.0), (1500, 0.01), (9000, 0.0)];

/// A path loses more than this before the ceiling with loss holds for it.
const LOSSY: f64 = 1e-3;

/// The round trip on which rates are tried.
const RTT_MS: u64 = 10;

/// A shared machine may be busy with something else for a moment, so a rate is tried again this
/// often.
const CHANCES: u32 = 4;

/// The share of the rate that must arrive, of 110 % of it, for the rate to be carried honestly.
const ARRIVAL_SHARE_MIN: f64 = 0.985;

/// How late one packet in a hundred may be.
const LATE_US_MAX: f64 = 1000.0;

/// The rates that this machine carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// The machine and program that they hold for.
    pub machine: String,
    /// One for each kind of path that was tried.
    pub ceilings: Vec<Ceiling>,
}

/// The highest rate of one kind of path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// IP packets of this size.
    pub mtu: u16,
    /// Share of packets lost.
    pub loss: f64,
    /// Bits per second that were carried; 0 if not even the lowest rate tried.
    pub rate_bps: u64,
}

/// Whether a scenario can be emulated honestly.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// As far as is known.
    Fine,
    /// Nothing is known about this machine, and the rate is one that not every machine carries.
    Unknown,
    /// It asks for more.
    TooFast {
        /// The scenario's rate, bits per second.
        asked_bps: u64,
        /// The rate that the machine carries.
        ceiling_bps: u64,
    },
}

/// Tries increasing rates, and calls `told` with each result.
///
/// # Errors
/// If a lab cannot be started or a socket fails.
pub fn find_ceilings(time: Duration, mut told: impl FnMut(&str)) -> Result<Ceilings> {
    let mut ceilings = Vec::new();
    for (mtu, loss) in TRIED {
        let mut carried_bps = 0;
        for rate_mbps in LADDER_MBPS {
            let mut trouble = attempt(mtu, loss, rate_mbps, time)?;
            for _ in 1..CHANCES {
                if trouble.is_some() {
                    trouble = attempt(mtu, loss, rate_mbps, time)?;
                }
            }
            let outcome = trouble.as_deref().unwrap_or("carried");
            told(&format!(
                "MTU {mtu}, loss {loss}: {rate_mbps} Mbit/s: {outcome}"
            ));
            if trouble.is_some() {
                break;
            }
            carried_bps = rate_mbps * 1_000_000;
        }
        ceilings.push(Ceiling {
            mtu,
            loss,
            rate_bps: carried_bps,
        });
    }
    Ok(Ceilings {
        machine: machine(),
        ceilings,
    })
}

/// Sends 110 % of a rate; answers why it was not carried honestly, if it was not.
fn attempt(mtu: u16, loss: f64, rate_mbps: u64, time: Duration) -> Result<Option<String>> {
    let text = format!(
        "[path]\nrate = \"{rate_mbps}Mbit\"\nrtt = \"{RTT_MS}ms\"\nmtu = {mtu}\nloss = {loss}"
    );
    let scenario = Scenario::parse("ceiling", &text)?;
    let lab = Lab::start(&scenario)?;
    let rate_bps = rate_mbps * 1_000_000;
    let flow = Flow {
        wire_bytes: mtu.into(),
        rate_bps: rate_bps / 10 * 11,
        time,
        one_by_one: false,
        catch_up: CATCH_UP_FLOOD,
    };
    let outcome = traffic::send(&lab, lab.host("a")?, lab.host("b")?, flow)?;
    let report = Report::from(lab.stats());
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
    let share = outcome.arrival_bps / (rate_bps as f64 * (1.0 - loss));
    let late_us = report
        .forward
        .as_ref()
        .map_or(0.0, |forward| forward.late_us_p99);
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
    let starved = outcome.sent_bps < rate_bps as f64;
    Ok(if starved {
        Some(format!(
            "the sender manages only {}",
            rate_text(outcome.sent_bps)
        ))
    } else if share < ARRIVAL_SHARE_MIN {
        Some(format!("only {:.1} % arrives", share * 100.0))
    } else if report.emulator_drops > 0 {
        Some(format!(
            "the emulator lost {} packets",
            report.emulator_drops
        ))
    } else if late_us > LATE_US_MAX {
        Some(format!("one packet in a hundred is {late_us:.0} µs late"))
    } else {
        None
    })
}

impl Ceilings {
    /// Those found earlier on this machine with this program, if any.
    ///
    /// # Errors
    /// If there is no directory for them.
    pub fn load() -> Result<Option<Self>> {
        let Ok(text) = std::fs::read_to_string(file()?) else {
            return Ok(None);
        };
        let found: Option<Self> = serde_json::from_str(&text).ok();
        Ok(found.filter(|ceilings| ceilings.machine == machine()))
    }

    /// Keeps them for later. Answers where.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self) -> Result<PathBuf> {
        let path = file()?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let temporary = path.with_extension("new");
        std::fs::write(&temporary, serde_json::to_string_pretty(self)?)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Whether a scenario asks for more than is carried. A path without a rate asks for nothing.
    #[must_use]
    pub fn judge(known: Option<&Self>, scenario: &Scenario) -> Verdict {
        /// Any machine of these years carries this.
        const EVERYWHERE_BPS: u64 = 1_000_000_000;

        let rates = [&scenario.forward, &scenario.reverse].map(|direction| direction.link.rate);
        let Some(asked_bps) = rates
            .into_iter()
            .flatten()
            .map(|shaper| shaper.rate_bps)
            .max()
        else {
            return Verdict::Fine;
        };
        let Some(ceiling_bps) = known.and_then(|known| known.of(scenario)) else {
            return if asked_bps > EVERYWHERE_BPS {
                Verdict::Unknown
            } else {
                Verdict::Fine
            };
        };
        if asked_bps > ceiling_bps {
            Verdict::TooFast {
                asked_bps,
                ceiling_bps,
            }
        } else {
            Verdict::Fine
        }
    }

    /// The ceiling of the nearest kind of path that is not easier: packets as large or smaller,
    /// loss as high or higher.
    fn of(&self, scenario: &Scenario) -> Option<u64> {
        let lossy = [&scenario.forward, &scenario.reverse]
            .into_iter()
            .any(|direction| {
                let link = &direction.link;
                super::path::expected_loss(link.loss).0 > LOSSY
                    || link.reorder.is_some()
                    || link.duplicate > LOSSY
            });
        let fits = |ceiling: &&Ceiling| {
            ceiling.mtu <= scenario.mtu.max(1500) && (!lossy || ceiling.loss > LOSSY)
        };
        let best = self
            .ceilings
            .iter()
            .filter(fits)
            .max_by_key(|ceiling| ceiling.rate_bps)?;
        let share = u64::from(scenario.mtu.min(1500));
        Some(best.rate_bps * share / 1500)
    }
}

impl Verdict {
    /// Refuses a scenario that cannot be emulated accurately, or warns if `--force` is set.
    ///
    /// # Errors
    /// The refusal, with the remedy.
    pub fn enforce(&self, force: bool) -> Result<()> {
        match *self {
            Self::Fine => {}
            Self::Unknown => {
                eprintln!(
                    "note: not known whether this machine carries that rate; `haul lab calibrate` finds out"
                );
            }
            Self::TooFast {
                asked_bps,
                ceiling_bps,
            } => {
                let rate = crate::scenario::unit::Rate { bps: asked_bps };
                let ceiling = crate::scenario::unit::Rate { bps: ceiling_bps };
                if !force {
                    bail!(
                        "this machine emulates at most {ceiling} honestly, the scenario asks for {rate}: \
                         lower its rate, calibrate again if the machine was busy, or insist with --force"
                    );
                }
                eprintln!(
                    "WARNING: {rate} is more than the {ceiling} that this machine emulates honestly; results will mislead"
                );
            }
        }
        Ok(())
    }
}

impl fmt::Display for Ceilings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "highest rate carried honestly ({})", self.machine)?;
        for Ceiling {
            mtu,
            loss,
            rate_bps,
        } in &self.ceilings
        {
            let rate = crate::scenario::unit::Rate { bps: *rate_bps };
            write!(f, "\n  MTU {mtu:>5}  loss {loss:<5}  {rate}")?;
        }
        Ok(())
    }
}

/// `haul/lab-ceilings.json` in the user's cache directory.
fn file() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let cache =
        cache.context("there is no directory for the calibration: set XDG_CACHE_HOME or HOME")?;
    Ok(cache.join("haul").join("lab-ceilings.json"))
}

/// The validity of a calibration: another processor, kernel or version may carry more or less.
fn machine() -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{processors} × {model}, Linux {}, haul {}",
        kernel.trim(),
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Ceilings {
        let ceiling = |mtu, loss, gbps: u64| Ceiling {
            mtu,
            loss,
            rate_bps: gbps * 1_000_000_000,
        };
        Ceilings {
            machine: "test".into(),
            ceilings: vec![
                ceiling(1500, 0.0, 8),
                ceiling(1500, 0.01, 3),
                ceiling(9000, 0.0, 12),
            ],
        }
    }

    fn verdict(text: &str) -> Verdict {
        let scenario = Scenario::parse("test", &format!("[path]\nrtt = \"10ms\"\n{text}")).unwrap();
        Ceilings::judge(Some(&known()), &scenario)
    }

    #[test]
    fn a_scenario_is_held_against_its_kind_of_path() {
        assert_eq!(verdict(""), Verdict::Fine);
        assert_eq!(verdict("rate = \"8Gbit\""), Verdict::Fine);
        assert_eq!(verdict("rate = \"12Gbit\"\nmtu = 9000"), Verdict::Fine);
        let too_fast = |asked: u64, ceiling: u64| Verdict::TooFast {
            asked_bps: asked * 1_000_000_000,
            ceiling_bps: ceiling * 1_000_000_000,
        };
        assert_eq!(verdict("rate = \"10Gbit\""), too_fast(10, 8));
        assert_eq!(verdict("rate = \"5Gbit\"\nloss = 0.01"), too_fast(5, 3));
        assert_eq!(verdict("rate = \"5Gbit\"\nmtu = 750"), too_fast(5, 4));
    }

    #[test]
    fn an_unknown_machine_is_trusted_with_a_gigabit() {
        let scenario = |rate: &str| {
            Scenario::parse("test", &format!("[path]\nrtt = \"1ms\"\nrate = \"{rate}\"")).unwrap()
        };
        assert_eq!(Ceilings::judge(None, &scenario("1Gbit")), Verdict::Fine);
        assert_eq!(Ceilings::judge(None, &scenario("2Gbit")), Verdict::Unknown);
    }

    #[test]
    fn too_much_is_refused_unless_insisted_on() {
        let verdict = Verdict::TooFast {
            asked_bps: 10_000_000_000,
            ceiling_bps: 8_000_000_000,
        };
        let message = verdict.enforce(false).unwrap_err().to_string();
        assert!(
            message.contains("8 Gbit/s") && message.contains("--force") && !message.contains('\n')
        );
        assert!(verdict.enforce(true).is_ok());
    }
}
