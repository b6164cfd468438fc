//! The machine: what it is, and how busy.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::date;

/// A machine counts as idle when at most this share of its processors is busy…
pub const IDLE_SHARE: f64 = 0.1;
/// …for this long.
const IDLE_TIME: Duration = Duration::from_millis(300);
/// `/proc/stat` counts in hundredths of a second (`USER_HZ`, on every architecture that Linux has
/// left).
const TICKS_PER_S: f64 = 100.0;

/// What results were measured on, and with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// How many there are.
    pub cores: usize,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// This program's version.
    pub haul_version: String,
    /// Of the sources in the working directory.
    pub haul_commit: Option<String>,
    /// The version of iperf3, where it is installed.
    pub iperf3: Option<String>,
    /// When it was looked at, UTC, as RFC 3339 has it.
    pub date: String,
}

impl Machine {
    /// This machine, now.
    #[must_use]
    pub fn describe() -> Self {
        let cpu_info = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        let kib = value(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
        Self {
            cpu: value(&cpu_info, "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.unwrap_or(0_u64) << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            haul_version: env!("CARGO_PKG_VERSION").to_string(),
            haul_commit: commit(),
            iperf3: first_line(Command::new("iperf3").arg("--version")),
            date: now(),
        }
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let commit = self.haul_commit.as_deref().unwrap_or(&self.haul_version);
        format!(
            "{} cores of {}, Linux {}, haul {commit}, {}",
            self.cores, self.cpu, self.kernel, self.date
        )
    }
}

/// How much of the processors' time is used.
#[derive(Debug)]
pub struct Meter {
    begun: Instant,
    idle_s: f64,
}

impl Meter {
    /// Begins.
    #[must_use]
    pub fn start() -> Self {
        Self {
            begun: Instant::now(),
            idle_s: idle_s(),
        }
    }

    /// Processor seconds since the start in which any process, or the kernel itself, was at work:
    /// what was not idle, because the kernel measures idleness and only samples work.
    #[must_use]
    pub fn busy_s(&self) -> f64 {
        (cores() * self.elapsed_s() - (idle_s() - self.idle_s)).max(0.0)
    }

    fn busy_share(&self) -> f64 {
        self.busy_s() / self.elapsed_s().max(1e-9) / cores()
    }

    fn elapsed_s(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

/// Processors that `/proc/stat` counts in.
#[expect(clippy::cast_precision_loss, reason = "a number of processors")]
fn cores() -> f64 {
    let text = read("/proc/stat");
    let lines = text.lines().skip(1);
    lines.take_while(|line| line.starts_with("cpu")).count() as f64
}

/// Processor seconds since boot without work.
fn idle_s() -> f64 {
    let text = read("/proc/stat");
    let line = text.lines().next().unwrap_or("");
    // user nice system idle iowait irq softirq steal
    let idle = line.split_whitespace().skip(4).take(2);
    idle.filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_S
}

/// Whether the processors have nothing else to do; looks once, and waits, at most `patience`, until
/// it is so. Answers the last share that was busy.
pub fn settle(patience: Duration) -> f64 {
    let deadline = Instant::now() + patience;
    loop {
        let meter = Meter::start();
        std::thread::sleep(IDLE_TIME);
        let share = meter.busy_share();
        if share <= IDLE_SHARE || Instant::now() >= deadline {
            return share;
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The first value of a key in a file of `key : value` lines.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_string())
    })
}

/// The commit of the sources in the working directory, if they are this program's.
fn commit() -> Option<String> {
    let top = first_line(Command::new("git").args(["rev-parse", "--show-toplevel"]))?;
    if !Path::new(&top).join("crates/haul-lab").is_dir() {
        return None;
    }
    first_line(Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]))
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_string)
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date::seconds(since.map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_idled_and_is_described() {
        assert!(idle_s() > 0.0 && cores() >= 1.0);
        assert!(!Machine::describe().kernel.is_empty());
    }
}
