//! Processes inside a lab, found by the namespace they are in, so that none escapes by leaving its
//! group or session.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// The variable that every process inside carries, with the lab's id.
pub(crate) const MARK: &str = "HAUL_LAB";

/// Sends SIGTERM to every process in these namespaces, and SIGKILL to those left after `patience`.
/// The caller holds the namespaces.
pub(crate) fn end_all(inodes: &BTreeSet<u64>, patience: Duration) {
    let deadline = Instant::now() + patience;
    let mut signal = Signal::TERM;
    // Processes may have forked meanwhile: repeat until none is left, a bounded number of times.
    for _ in 0..1000 {
        let found = inside(inodes);
        if found.is_empty() {
            return;
        }
        for pid in found {
            // It may have ended by itself since.
            let _ = rustix::process::kill_process(pid, signal);
        }
        std::thread::sleep(Duration::from_millis(5));
        // A stopped process must wake up to end.
        signal = if Instant::now() < deadline {
            Signal::CONT
        } else {
            Signal::KILL
        };
    }
}

/// Ends processes that an ended lab has left running. A namespace's number may have been reused
/// since, so only those count in which a process carries the lab's mark.
pub(crate) fn end_orphans(inodes: &BTreeSet<u64>, id: &str) {
    let left = inodes.iter().copied().filter(|&inode| {
        let here = BTreeSet::from([inode]);
        inside(&here).into_iter().any(|pid| has_mark(pid, id))
    });
    end_all(&left.collect(), Duration::from_millis(500));
}

/// The processes in these namespaces, but for this one. Those that have ended and not been waited
/// for do not count.
pub(crate) fn inside(inodes: &BTreeSet<u64>) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let own = rustix::process::getpid();
    pids.filter_map(Pid::from_raw)
        .filter(|&pid| pid != own && in_namespace(pid, inodes))
        .collect()
}

/// When a process started, in clock ticks since boot: with the pid, this names it uniquely. `None`
/// if there is none.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; state is the third field, the start time the
    // 22nd.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

fn in_namespace(pid: Pid, inodes: &BTreeSet<u64>) -> bool {
    let Ok(link) = std::fs::read_link(format!("/proc/{}/ns/net", pid.as_raw_pid())) else {
        return false;
    };
    let number = link
        .to_str()
        .and_then(|text| text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok());
    number.is_some_and(|inode| inodes.contains(&inode))
}

fn has_mark(pid: Pid, id: &str) -> bool {
    let wanted = format!("{MARK}={id}");
    std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).is_ok_and(|environment| {
        environment
            .split(|&byte| byte == 0)
            .any(|entry| entry == wanted.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_start_time_and_a_missing_one_has_none() {
        let own = rustix::process::getpid().as_raw_pid();
        assert!(start_time(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(start_time(own), start_time(own));
        assert_eq!(start_time(i32::MAX), None);
    }

    #[test]
    fn no_process_is_inside_a_namespace_that_does_not_exist() {
        assert!(inside(&BTreeSet::from([1])).is_empty());
    }
}
