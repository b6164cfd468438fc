//! What the kernel of a host tells about its devices and its congestion control.

use haul_io::netns::NetNs;

/// A common congestion control, whatever the machine's own default is.
pub(super) const CONGESTION_CONTROL: (&str, &str) = ("net.ipv4.tcp_congestion_control", "cubic");

/// Packets of this host dropped before the emulator.
pub(super) fn device_drops(netns: &NetNs, devices: &[String]) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let Ok(Ok(text)) = netns.run(read) else {
        return 0;
    };
    let drops = |line: &str| -> Option<u64> {
        let (device, counters) = line.trim_start().split_once(':')?;
        let counted = devices.iter().any(|emulated| emulated == device);
        // Eight columns of receive counters, then bytes, packets, errors and drops of transmission.
        let drops = counters.split_whitespace().nth(11)?;
        counted.then(|| drops.parse().ok()).flatten()
    };
    text.lines().filter_map(drops).sum()
}

/// The hosts' congestion control if the kernel does not let a namespace choose the lab's: only the
/// machine's own default, and what `net.ipv4.tcp_allowed_congestion_control` lists, can be one's
/// default.
pub(super) fn other_congestion_control(netns: &NetNs) -> Option<String> {
    let path = format!("/proc/sys/{}", CONGESTION_CONTROL.0.replace('.', "/"));
    let used = netns.run(|| std::fs::read_to_string(path)).ok()?.ok()?;
    (used.trim() != CONGESTION_CONTROL.1).then(|| used.trim().to_string())
}
