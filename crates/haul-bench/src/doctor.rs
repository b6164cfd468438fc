//! Whether a host is set up for long fat networks, and the exact lines that mend it.
//!
//! [`Host::read`] reads the settings, [`examine`] judges them: a pure function, so that every
//! judgement can be tested.

use std::path::Path;

use haul_io::file::Limits;
use haul_io::netns::device::{Offload, offload};
use serde::Serialize;

/// The UDP socket buffer that `haul` requests, bytes.
const UDP_BUFFER: u64 = 16 << 20;
/// Descriptors that a busy server needs.
const FILES: u64 = 65_536;
/// Memory that RDMA devices want to pin, bytes.
const MEMLOCK: u64 = 1 << 30;
/// A jumbo frame.
const JUMBO: u64 = 9_000;

/// The path that the host is to be good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Its rate, bits per second.
    pub rate_bps: u64,
    /// Its round-trip time, milliseconds.
    pub rtt_ms: u64,
}

impl Target {
    /// Bytes in flight that fill it.
    #[must_use]
    pub fn product(&self) -> u64 {
        self.rate_bps / 8 / 1000 * self.rtt_ms
    }
}

/// A device of the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The longest IP packet, bytes.
    pub mtu: u64,
    /// Its speed, Mbit/s, if it reports one.
    pub speed: Option<u64>,
    /// Offloads that it has, by ethtool's name, and whether they are on.
    pub offloads: Vec<(&'static str, bool)>,
}

/// The host's settings; those that could not be read are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Parameters of the kernel by their names for sysctl.
    pub sysctls: Vec<(&'static str, Option<String>)>,
    /// Devices that are up, but for loopback.
    pub devices: Vec<Device>,
    /// Governors of the processors' frequency.
    pub governors: Vec<String>,
    /// The clock that the kernel uses.
    pub clock: Option<String>,
    /// Limits of this process; none is no limit.
    pub memlock: Option<u64>,
    /// Open files, the most that may be asked for.
    pub files: Option<u64>,
    /// The kernel can confine what receives files to the target (Landlock).
    pub confines: bool,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be looked at.
    Unknown,
    /// It may help.
    Advice,
    /// It costs throughput on long paths.
    Warning,
}

/// The finding on one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The setting.
    pub check: String,
    /// How it went.
    pub level: Level,
    /// Its value.
    pub found: String,
    /// Why it matters.
    pub why: String,
    /// The line that mends it, for a shell of root.
    pub fix: Option<String>,
}

/// Parameters that are read.
const SYSCTLS: [&str; 13] = [
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_available_congestion_control",
    "net.core.default_qdisc",
    "kernel.perf_event_paranoid",
];

impl Host {
    /// This host.
    #[must_use]
    pub fn read() -> Self {
        let sysctl = |name: &'static str| {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            (name, first_line(Path::new(&path)))
        };
        let limits = Limits::of_this_process();
        Self {
            sysctls: SYSCTLS.map(sysctl).to_vec(),
            devices: devices(),
            governors: governors(),
            clock: first_line(Path::new(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            )),
            memlock: limits.locked_bytes,
            files: limits.open_files,
            confines: haul_io::confine::is_supported(),
        }
    }

    fn sysctl(&self, name: &str) -> Option<&str> {
        let found = self.sysctls.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.as_deref())
    }
}

fn first_line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

fn devices() -> Vec<Device> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else {
        return Vec::new();
    };
    let device = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let read = |what: &str| first_line(&entry.path().join(what));
        if name == "lo" || read("operstate")? == "down" {
            return None;
        }
        let known = [
            ("tso", Offload::Tso),
            ("gso", Offload::Gso),
            ("gro", Offload::Gro),
            ("rx", Offload::RxChecksum),
        ];
        let state = |(word, which)| offload(&name, which).ok().map(|on| (word, on));
        Some(Device {
            mtu: read("mtu")?.parse().ok()?,
            speed: read("speed").and_then(|speed| speed.parse().ok()),
            offloads: known.into_iter().filter_map(state).collect(),
            name,
        })
    };
    let mut devices: Vec<Device> = entries.filter_map(device).collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

fn governors() -> Vec<String> {
    let processors = std::fs::read_dir("/sys/devices/system/cpu/cpufreq");
    let governor = |entry: std::io::Result<std::fs::DirEntry>| {
        first_line(&entry.ok()?.path().join("scaling_governor"))
    };
    let mut governors: Vec<String> = processors
        .into_iter()
        .flatten()
        .filter_map(governor)
        .collect();
    governors.sort_unstable();
    governors.dedup();
    governors
}

/// Judges a host.
#[must_use]
pub fn examine(host: &Host, target: &Target) -> Vec<Finding> {
    let mut findings = buffers(host, target);
    findings.extend(tcp(host));
    findings.extend(pacing(host));
    findings.extend(host.devices.iter().flat_map(device));
    findings.push(governor(host));
    findings.push(clock(host));
    findings.push(memlock(host));
    findings.push(files(host));
    findings.push(counters(host));
    findings.push(confinement(host));
    findings
}

fn finding(check: &str, level: Level, found: String, why: &str, fix: Option<String>) -> Finding {
    Finding {
        check: check.into(),
        level,
        found,
        why: why.into(),
        fix: fix.filter(|_| level > Level::Unknown),
    }
}

fn unknown(check: &str, why: &str) -> Finding {
    finding(
        check,
        Level::Unknown,
        "not to be read here".into(),
        why,
        None,
    )
}

fn mebibytes(bytes: u64) -> String {
    haul_report::axis::bytes(crate::path::record::to_f64(bytes))
}

fn buffers(host: &Host, target: &Target) -> Vec<Finding> {
    let product = target.product();
    let single = |name: &'static str, want: u64, why: &str| {
        let Some(have) = host
            .sysctl(name)
            .and_then(|value| value.parse::<u64>().ok())
        else {
            return unknown(name, why);
        };
        let level = if have >= want {
            Level::Ok
        } else {
            Level::Warning
        };
        let fix = format!("sysctl -w {name}={want}");
        finding(name, level, mebibytes(have), why, Some(fix))
    };
    // The last of three is the most that the kernel takes by itself.
    let triple = |name: &'static str, want: u64, why: &str| {
        let text = host.sysctl(name).unwrap_or_default();
        let values: Vec<u64> = text
            .split_whitespace()
            .filter_map(|value| value.parse().ok())
            .collect();
        let [least, usual, most] = values[..] else {
            return unknown(name, why);
        };
        let level = if most >= want {
            Level::Ok
        } else {
            Level::Warning
        };
        let fix = format!("sysctl -w {name}='{least} {usual} {want}'");
        finding(
            name,
            level,
            format!("at most {}", mebibytes(most)),
            why,
            Some(fix),
        )
    };
    let why_udp = "datagrams that come while the receiver is not running wait here; what does not fit is lost";
    let why_tcp = "one TCP stream has no more in flight than its buffers may grow to, and half of that is data";
    vec![
        single(
            "net.core.rmem_max",
            UDP_BUFFER.max(product.min(256 << 20)),
            why_udp,
        ),
        single(
            "net.core.wmem_max",
            UDP_BUFFER / 4,
            "what UDP hands to the kernel ahead of the device",
        ),
        triple("net.ipv4.tcp_rmem", (2 * product).max(6 << 20), why_tcp),
        triple("net.ipv4.tcp_wmem", (2 * product).max(4 << 20), why_tcp),
    ]
}

fn tcp(host: &Host) -> Vec<Finding> {
    let wanted = [
        (
            "net.ipv4.tcp_window_scaling",
            "1",
            Level::Warning,
            "without it a window has 64 KiB at most",
        ),
        (
            "net.ipv4.tcp_sack",
            "1",
            Level::Warning,
            "without it several losses in a window take a round trip each",
        ),
        (
            "net.ipv4.tcp_timestamps",
            "1",
            Level::Warning,
            "long paths need them to tell old packets from new ones",
        ),
        (
            "net.ipv4.tcp_slow_start_after_idle",
            "0",
            Level::Advice,
            "a connection that was idle for a moment begins again from a small window",
        ),
        (
            "net.ipv4.tcp_no_metrics_save",
            "1",
            Level::Advice,
            "else a connection begins with what an earlier one to the same host ended with",
        ),
        (
            "net.ipv4.tcp_mtu_probing",
            "1",
            Level::Advice,
            "gets around routers that drop long packets without a word",
        ),
    ];
    let check = |(name, want, level, why): (&str, &str, Level, &str)| {
        let Some(have) = host.sysctl(name) else {
            return unknown(name, why);
        };
        let level = if have == want || name.ends_with("probing") && have == "2" {
            Level::Ok
        } else {
            level
        };
        finding(
            name,
            level,
            have.to_owned(),
            why,
            Some(format!("sysctl -w {name}={want}")),
        )
    };
    let mut findings: Vec<Finding> = wanted.into_iter().map(check).collect();
    let name = "net.ipv4.tcp_available_congestion_control";
    let why = "TCP's bbr holds its rate under loss that is no congestion";
    findings.push(match host.sysctl(name) {
        None => unknown(name, why),
        Some(all) => {
            let there = all.split_whitespace().any(|one| one == "bbr");
            let level = if there { Level::Ok } else { Level::Advice };
            finding(
                name,
                level,
                all.to_owned(),
                why,
                Some("modprobe tcp_bbr".into()),
            )
        }
    });
    findings
}

fn pacing(host: &Host) -> Option<Finding> {
    let name = "net.core.default_qdisc";
    let why = "fq spaces the packets of a paced stream; bursts of a fast sender overflow shallow queues on the way";
    let Some(have) = host.sysctl(name) else {
        return Some(unknown(name, why));
    };
    let level = if have == "fq" {
        Level::Ok
    } else {
        Level::Advice
    };
    let now: String = host
        .devices
        .iter()
        .map(|device| format!(" && tc qdisc replace dev {} root fq", device.name))
        .collect();
    Some(finding(
        name,
        level,
        have.to_owned(),
        why,
        Some(format!("sysctl -w {name}=fq{now}")),
    ))
}

fn device(device: &Device) -> Vec<Finding> {
    let name = &device.name;
    let fast = device.speed.is_some_and(|speed| speed >= 10_000);
    let why = "each packet costs the same, long or short; every device on the path must have the same MTU";
    let level = match device.mtu {
        ..1280 => Level::Warning,
        mtu if mtu < JUMBO && fast => Level::Advice,
        _ => Level::Ok,
    };
    let want = if device.mtu < 1280 { 1500 } else { JUMBO };
    let fix = format!("ip link set dev {name} mtu {want}");
    let mut findings = vec![finding(
        &format!("{name}: MTU"),
        level,
        device.mtu.to_string(),
        why,
        Some(fix),
    )];
    for (offload, on) in &device.offloads {
        let why = match *offload {
            "gro" => {
                "joins packets that arrive: without it the receiver's processor works for each one"
            }
            "rx" => "checks sums of what arrives in the device",
            _ => {
                "cuts packets as late as can be: without it the sender's processor works for each one"
            }
        };
        let (level, found) = if *on {
            (Level::Ok, "on")
        } else {
            (Level::Warning, "off")
        };
        let fix = format!("ethtool -K {name} {offload} on");
        findings.push(finding(
            &format!("{name}: {offload}"),
            level,
            found.into(),
            why,
            Some(fix),
        ));
    }
    findings
}

fn governor(host: &Host) -> Finding {
    let why = "a processor that saves power answers late, and is slow when a burst comes";
    let check = "governor of the processors";
    if host.governors.is_empty() {
        return finding(
            check,
            Level::Ok,
            "none: the frequency is not the system's to choose".into(),
            why,
            None,
        );
    }
    let fast = host
        .governors
        .iter()
        .all(|governor| governor == "performance");
    let level = if fast { Level::Ok } else { Level::Warning };
    let fix =
        "echo performance | tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor".into();
    finding(check, level, host.governors.join(", "), why, Some(fix))
}

fn clock(host: &Host) -> Finding {
    let why = "pacing looks at the clock for every batch; clocks that need a system call, or the hypervisor, are slow";
    let check = "clock source";
    let Some(clock) = &host.clock else {
        return unknown(check, why);
    };
    let fast = [
        "tsc",
        "kvm-clock",
        "arch_sys_counter",
        "hyperv_clocksource_tsc_page",
    ]
    .contains(&clock.as_str());
    let level = if fast { Level::Ok } else { Level::Warning };
    let fix = "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource".into();
    finding(check, level, clock.clone(), why, Some(fix))
}

fn memlock(host: &Host) -> Finding {
    let why = "RDMA devices pin the memory that they move (the software provider does not)";
    let line = "printf '* - memlock unlimited\\n' > /etc/security/limits.d/90-haul.conf";
    match host.memlock {
        None => finding("memlock", Level::Ok, "no limit".into(), why, None),
        Some(bytes) if bytes >= MEMLOCK => {
            finding("memlock", Level::Ok, mebibytes(bytes), why, None)
        }
        Some(bytes) => finding(
            "memlock",
            Level::Advice,
            mebibytes(bytes),
            why,
            Some(line.into()),
        ),
    }
}

fn files(host: &Host) -> Finding {
    let why = "a server has a few descriptors open for each session and each file";
    let line = format!("printf '* - nofile {FILES}\\n' > /etc/security/limits.d/91-haul.conf");
    match host.files {
        None => finding("open files", Level::Ok, "no limit".into(), why, None),
        Some(count) => {
            let level = if count >= FILES {
                Level::Ok
            } else {
                Level::Warning
            };
            finding("open files", level, count.to_string(), why, Some(line))
        }
    }
}

fn confinement(host: &Host) -> Finding {
    let why = "a second guard that nothing is written outside the target: Linux 5.19 and later, with landlock in the boot \
               parameter lsm= if that is set";
    let (level, found) = match host.confines {
        true => (Level::Ok, "on"),
        false => (Level::Advice, "not there"),
    };
    finding("Landlock", level, found.into(), why, None)
}

fn counters(host: &Host) -> Finding {
    let name = "kernel.perf_event_paranoid";
    let why = "above 2 the processor's counters are for root alone; benches then tell no cycles and cache misses";
    let Some(have) = host
        .sysctl(name)
        .and_then(|value| value.parse::<i64>().ok())
    else {
        return unknown(name, why);
    };
    let level = if have <= 2 { Level::Ok } else { Level::Advice };
    finding(
        name,
        level,
        have.to_string(),
        why,
        Some(format!("sysctl -w {name}=2")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target {
        rate_bps: 10_000_000_000,
        rtt_ms: 100,
    };

    fn good() -> Host {
        let value = |name| match name {
            "net.core.rmem_max" | "net.core.wmem_max" => "268435456",
            "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem" => "4096\t131072\t536870912",
            "net.ipv4.tcp_slow_start_after_idle" => "0",
            "net.ipv4.tcp_available_congestion_control" => "cubic bbr",
            "net.core.default_qdisc" => "fq",
            "kernel.perf_event_paranoid" => "2",
            _ => "1",
        };
        Host {
            sysctls: SYSCTLS
                .map(|name| (name, Some(value(name).to_owned())))
                .to_vec(),
            devices: vec![Device {
                name: "eth0".into(),
                mtu: 9000,
                speed: Some(10_000),
                offloads: vec![("gro", true), ("tso", true)],
            }],
            governors: vec!["performance".into()],
            clock: Some("tsc".into()),
            memlock: None,
            files: Some(1 << 20),
            confines: true,
        }
    }

    fn fixes(host: &Host) -> Vec<String> {
        let findings = examine(host, &TARGET);
        findings
            .into_iter()
            .filter_map(|finding| finding.fix.filter(|_| finding.level > Level::Ok))
            .collect()
    }

    #[test]
    fn a_good_host_has_nothing_to_mend() {
        for finding in examine(&good(), &TARGET) {
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
        assert_eq!(fixes(&good()), Vec::<String>::new());
    }

    #[test]
    fn each_fault_has_the_line_that_mends_it() {
        let with = |name: &str, value: &str| {
            let mut host = good();
            for (known, have) in &mut host.sysctls {
                if *known == name {
                    *have = Some(value.into());
                }
            }
            fixes(&host)
        };
        assert_eq!(
            with("net.core.rmem_max", "212992"),
            ["sysctl -w net.core.rmem_max=125000000"]
        );
        assert_eq!(
            with("net.ipv4.tcp_rmem", "4096 131072 6291456"),
            ["sysctl -w net.ipv4.tcp_rmem='4096 131072 250000000'"]
        );
        assert_eq!(
            with("net.core.default_qdisc", "pfifo_fast"),
            ["sysctl -w net.core.default_qdisc=fq && tc qdisc replace dev eth0 root fq"]
        );
        assert_eq!(
            with("net.ipv4.tcp_available_congestion_control", "cubic"),
            ["modprobe tcp_bbr"]
        );
        assert_eq!(
            with("net.ipv4.tcp_sack", "0"),
            ["sysctl -w net.ipv4.tcp_sack=1"]
        );
        let mut host = good();
        host.devices[0].offloads[0].1 = false;
        host.devices[0].mtu = 1500;
        host.governors = vec!["powersave".into()];
        host.memlock = Some(8 << 20);
        host.files = Some(1024);
        host.clock = Some("hpet".into());
        let fixes = fixes(&host);
        assert_eq!(fixes.len(), 6, "{fixes:?}");
        assert!(fixes.contains(&"ethtool -K eth0 gro on".to_owned()));
        assert!(fixes.contains(&"ip link set dev eth0 mtu 9000".to_owned()));
    }

    #[test]
    fn what_cannot_be_read_is_neither_good_nor_bad() {
        let findings = examine(&Host::default(), &TARGET);
        assert!(
            findings
                .iter()
                .any(|finding| finding.level == Level::Unknown)
        );
        assert!(
            findings
                .iter()
                .all(|finding| finding.level < Level::Warning),
            "{findings:?}"
        );
    }

    #[test]
    fn this_host_can_be_looked_at() {
        let host = Host::read();
        assert!(host.sysctl("net.ipv4.tcp_rmem").is_some(), "{host:?}");
    }
}
