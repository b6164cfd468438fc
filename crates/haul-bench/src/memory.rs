//! Memory of a process and its kernel, from `/proc`.

use crate::report::Memory;

/// Memory at one moment, KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    /// Of this process, backed by nothing but itself.
    own: u64,
    /// Of the kernel's objects and of TCP's buffers, on the whole machine.
    kernel: u64,
}

impl Reading {
    /// Returns the growth since.
    pub(crate) fn until(self, after: Self) -> Memory {
        Memory {
            before_kib: self.own,
            after_kib: after.own,
            kernel_kib: after.kernel.saturating_sub(self.kernel),
        }
    }
}

/// Reads it; values that the machine does not report are zero.
pub(crate) fn read() -> Reading {
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    Reading {
        own: field(&text("/proc/self/smaps_rollup"), "Anonymous:"),
        kernel: field(&text("/proc/meminfo"), "Slab:") + 4 * tcp_pages(&text("/proc/net/sockstat")),
    }
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The last number of the line of TCP, in pages of 4 KiB.
fn tcp_pages(sockstat: &str) -> u64 {
    sockstat
        .lines()
        .find_map(|line| line.strip_prefix("TCP:"))
        .and_then(|rest| rest.split_whitespace().next_back()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_as_it_is_written() {
        let smaps = "00400000-7fff rollup\nRss:   2000 kB\nAnonymous:          1234 kB\n";
        assert_eq!(field(smaps, "Anonymous:"), 1234);
        assert_eq!(field("Slab: many kB", "Slab:"), 0);
        let sockstat = "sockets: used 7\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 11\nUDP: inuse 1\n";
        assert_eq!(tcp_pages(sockstat), 11);
    }

    #[test]
    fn memory_that_is_touched_shows() {
        let before = read();
        let bytes = vec![1_u8; 64 << 20];
        let memory = before.until(read());
        assert!(bytes.iter().all(|byte| *byte == 1));
        let grown = memory.after_kib - memory.before_kib;
        assert!((60 << 10..80 << 10).contains(&grown), "{memory:?}");
    }
}
