//! Resources that an end uses during a measurement: its processor time, context switches, the
//! processor's counters, and how busy the whole machine is.

use std::io;

use haul_io::clock::{Clock, CpuTime, Switches, process_cpu, process_switches};
use haul_io::perf::{Counters, Counts};
use serde::{Deserialize, Serialize};

/// `/proc/stat` counts in hundredths of a second (`USER_HZ`, on every architecture that Linux has
/// left).
const TICK_US: u64 = 10_000;

/// Resources that one end used, as sent to the other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// How long it measured, microseconds.
    pub wall_us: u64,
    /// Processor time of the process in user code, microseconds.
    pub user_us: u64,
    /// Processor time in the kernel on its behalf, microseconds.
    pub system_us: u64,
    /// Processor time of its busiest thread, microseconds; zero where there are no figures per
    /// thread.
    pub thread_us: u64,
    /// Context switches to wait for something.
    pub voluntary: u64,
    /// Context switches because others were to run.
    pub involuntary: u64,
    /// The whole machine.
    pub machine: MachineTime,
    /// The processor's counters.
    pub counters: Option<Hardware>,
    /// Why there are none.
    pub no_counters: Option<String>,
}

/// Processor time of the whole machine, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MachineTime {
    /// Processors.
    pub cores: u32,
    /// Anything but idleness, in steps of a hundredth of a second.
    pub busy_us: u64,
    /// Interrupts.
    pub irq_us: u64,
    /// The kernel's interrupt work, which includes most network processing.
    pub softirq_us: u64,
    /// Taken by the hypervisor.
    pub steal_us: u64,
}

/// The processor's counters of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Hardware {
    /// Cycles.
    pub cycles: Option<u64>,
    /// Instructions.
    pub instructions: Option<u64>,
    /// Accesses to the last level of cache.
    pub cache_references: Option<u64>,
    /// Those that went on to memory.
    pub cache_misses: Option<u64>,
    /// The kernel's work is not in them.
    pub user_only: bool,
}

/// Counts from its start on.
#[derive(Debug)]
pub(crate) struct Meter {
    clock: Clock,
    begun_ns: u64,
    cpu: CpuTime,
    switches: Switches,
    machine: MachineTime,
    counters: Result<(Counters, Counts), String>,
}

impl Meter {
    /// Starts. Threads that the calling thread makes from now on are in the processor's counters.
    pub(crate) fn start() -> Self {
        let counters = Counters::start().map(|counters| {
            let before = counters.read();
            (counters, before)
        });
        let clock = Clock::new();
        Self {
            counters: counters.map_err(|error| why_not(&error)),
            machine: machine(),
            switches: process_switches().unwrap_or_default(),
            cpu: process_cpu().unwrap_or_default(),
            begun_ns: clock.now_ns(),
            clock,
        }
    }

    /// Returns the resources used since.
    pub(crate) fn spent(&self, thread_ns: u64) -> Spent {
        let wall_ns = self.clock.now_ns().saturating_sub(self.begun_ns);
        let cpu = process_cpu().unwrap_or_default().since(self.cpu);
        let switches = process_switches().unwrap_or_default().since(self.switches);
        let (counters, no_counters) = match &self.counters {
            Ok((counters, before)) => (Some(difference(&counters.read(), before)), None),
            Err(why) => (None, Some(why.clone())),
        };
        Spent {
            wall_us: wall_ns / 1000,
            user_us: cpu.user_ns / 1000,
            system_us: cpu.system_ns / 1000,
            thread_us: thread_ns / 1000,
            voluntary: switches.voluntary,
            involuntary: switches.involuntary,
            machine: machine().since(&self.machine),
            counters,
            no_counters,
        }
    }
}

fn why_not(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "not permitted: lower /proc/sys/kernel/perf_event_paranoid to 2".into()
        }
        io::ErrorKind::NotFound => "the processor, or the virtual machine, has none".into(),
        _ => error.to_string(),
    }
}

fn difference(now: &Counts, before: &Counts) -> Hardware {
    let since = |now: Option<u64>, before: Option<u64>| {
        now.map(|now| now.saturating_sub(before.unwrap_or(0)))
    };
    Hardware {
        cycles: since(now.cycles, before.cycles),
        instructions: since(now.instructions, before.instructions),
        cache_references: since(now.cache_references, before.cache_references),
        cache_misses: since(now.cache_misses, before.cache_misses),
        user_only: now.user_only,
    }
}

impl MachineTime {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            cores: self.cores,
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            irq_us: self.irq_us.saturating_sub(earlier.irq_us),
            softirq_us: self.softirq_us.saturating_sub(earlier.softirq_us),
            steal_us: self.steal_us.saturating_sub(earlier.steal_us),
        }
    }
}

fn machine() -> MachineTime {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    parse(&text)
}

/// The first lines of `/proc/stat`: user nice system idle iowait irq softirq steal, and then a line
/// for each processor.
fn parse(text: &str) -> MachineTime {
    let mut lines = text.lines().take_while(|line| line.starts_with("cpu"));
    let first = lines.next().unwrap_or_default();
    let mut ticks = [0_u64; 8];
    for (into, field) in ticks.iter_mut().zip(first.split_whitespace().skip(1)) {
        *into = field.parse().unwrap_or(0);
    }
    let [user, nice, system, _idle, _waiting, irq, softirq, steal] = ticks;
    MachineTime {
        cores: u32::try_from(lines.count()).unwrap_or(0),
        busy_us: (user + nice + system + irq + softirq + steal).saturating_mul(TICK_US),
        irq_us: irq.saturating_mul(TICK_US),
        softirq_us: softirq.saturating_mul(TICK_US),
        steal_us: steal.saturating_mul(TICK_US),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read() {
        let text = "cpu  10 1 20 700 9 3 4 5 0 0\ncpu0 5 0 0 0\ncpu1 5 0 0 0\nintr 99\n";
        let machine = parse(text);
        assert_eq!((machine.cores, machine.busy_us), (2, 430_000));
        assert_eq!(
            (machine.irq_us, machine.softirq_us, machine.steal_us),
            (30_000, 40_000, 50_000)
        );
        assert_eq!(parse(""), MachineTime::default());
    }

    #[test]
    fn counters_are_there_or_it_is_said_why_not() {
        let spent = Meter::start().spent(5_000);
        assert_eq!(spent.thread_us, 5);
        assert_ne!(spent.counters.is_some(), spent.no_counters.is_some());
    }
}
