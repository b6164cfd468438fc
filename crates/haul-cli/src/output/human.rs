//! Numbers and summaries for people.

use std::fmt::Write;
use std::time::Duration;

use crate::device::{Details, Found};
pub(super) use haul::report::count_of;
use haul::report::{BenchSummary, Causes, Cpu, Entries, Summary};

/// Formats the summary of a transfer.
pub(super) fn summary(summary: &Summary) -> String {
    let mut text = String::new();
    let entries = &summary.entries;
    let (copied, there) = (entries.copied, entries.skipped);
    if copied == 0 && entries.failed == 0 && (there > 0 || !has_tree(entries)) {
        return format!("nothing to do, already present: {}", files(entries, there));
    }
    let _ = write!(
        text,
        "{} complete, {} in {}, {}",
        files(entries, copied),
        binary(summary.moved_bytes),
        time(Duration::try_from_secs_f64(summary.seconds).unwrap_or_default()),
        rate(summary.goodput_bps),
    );
    if there > 0 {
        let _ = write!(text, "; already present: {}", files(entries, there));
    }
    text.push_str(&of_tree(summary));
    if summary.resumed_bytes > 0 {
        let _ = write!(text, "; {} resumed", binary(summary.resumed_bytes));
    }
    if summary.repaired_bytes > 0 {
        let _ = write!(
            text,
            "; {} arrived damaged and were repaired",
            binary(summary.repaired_bytes)
        );
    }
    if summary.retransmitted_bytes > 0 {
        let _ = write!(
            text,
            "; {} retransmitted{}",
            binary(summary.retransmitted_bytes),
            summary
                .retransmitted_by_cause
                .map_or_else(String::new, by_cause),
        );
    }
    // Of less, the start takes nearly all of it.
    if summary.moved_bytes >= 1 << 20 {
        let _ = write!(text, "; {}", cpu(&summary.sender, &summary.receiver));
    }
    if let [file] = summary.files.as_slice()
        && let Some(hash) = &file.blake3
    {
        let _ = write!(text, "\nhaul: blake3 {hash}  {}", file.name);
    }
    text
}

/// Formats a number of files, among which links are counted if there are any.
fn files(entries: &Entries, count: u64) -> String {
    if entries.links > 0 {
        count_of(count, "file or link", "files and links")
    } else {
        count_of(count, "file", "files")
    }
}

/// Returns whether more than files was offered.
const fn has_tree(entries: &Entries) -> bool {
    entries.directories > 0 || entries.links > 0 || entries.special > 0
}

/// Formats what a summary of trees has beside the files.
fn of_tree(summary: &Summary) -> String {
    let (entries, lost) = (&summary.entries, &summary.lost);
    let mut text = String::new();
    let mut add = |number: u64, one: &str, many: &str| {
        if number > 0 {
            let _ = write!(text, "; {}", count_of(number, one, many));
        }
    };
    add(entries.directories, "directory", "directories");
    add(entries.links, "link", "links");
    add(
        entries.special,
        "special file left out",
        "special files left out",
    );
    add(entries.failed, "failed", "failed");
    add(lost.mode, "mode not kept", "modes not kept");
    add(
        lost.setuid,
        "set-user-ID bit not kept",
        "set-user-ID bits not kept",
    );
    add(lost.time, "time not kept", "times not kept");
    add(lost.owner, "owner not kept", "owners not kept");
    add(lost.xattrs, "file lost attributes", "files lost attributes");
    add(
        lost.acls,
        "access control list not kept",
        "access control lists not kept",
    );
    add(
        lost.links,
        "hard link became a file",
        "hard links became files",
    );
    text
}

/// Formats why payload was retransmitted: " (1.00 MiB lost, 3 B by timer)".
fn by_cause(causes: Causes) -> String {
    let counts = [
        (causes.lost, "lost"),
        (causes.reordered, "reordered"),
        (causes.refused, "refused by the receiver"),
        (causes.timer, "by timer"),
    ];
    let counts = counts.into_iter().filter(|(bytes, _)| *bytes > 0);
    let counts: Vec<String> = counts
        .map(|(bytes, what)| format!("{} {what}", binary(bytes)))
        .collect();
    format!(" ({})", counts.join(", "))
}

/// Formats the list of devices; the first column is the provider.
pub(super) fn devices(found: &[Found]) -> String {
    let mut text = String::new();
    for found in found {
        let provider = found.provider;
        if let Some(reason) = &found.reason {
            let _ = writeln!(text, "{provider:6} none: {reason}");
        }
        for device in &found.devices {
            let name = &device.name;
            let _ = match (&device.error, &device.details) {
                (None, Some(details)) => writeln!(text, "{provider:6} {}", describe(name, details)),
                (error, _) => writeln!(
                    text,
                    "{provider:6} {name}: cannot be used: {}",
                    error.as_deref().unwrap_or_default()
                ),
            };
            if let Some(note) = &device.note {
                let _ = writeln!(text, "       {note}");
            }
        }
    }
    text
}

fn describe(name: &str, details: &Details) -> String {
    format!(
        "{name}: {}; {}\n       {} queue pairs of {} work requests, {} pieces, {} inline; IRD {}, ORD {}; \
         messages up to {}, regions up to {}; driven by {}",
        details.transport,
        details.capabilities.join(", "),
        details.max_qp,
        details.max_qp_wr,
        details.max_sge,
        binary(details.max_inline_bytes.into()),
        details.max_ird,
        details.max_ord,
        binary(details.max_message_bytes),
        binary(details.max_mr_bytes),
        details.drive.join(" or "),
    )
}

/// Formats the summary of a bench.
pub(super) fn bench(summary: &BenchSummary) -> String {
    format!(
        "{} in {:.2} s, {}; {} retransmitted; {}",
        binary(summary.bytes),
        summary.seconds,
        rate(summary.goodput_bps),
        binary(summary.retransmitted_bytes),
        cpu(&summary.sender, &summary.receiver),
    )
}

/// Formats bytes in binary units.
#[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
pub(super) fn binary(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// Formats bits per second in decimal units.
pub(super) fn rate(bps: f64) -> String {
    match bps {
        bps if bps >= 1e9 => format!("{:.2} Gbit/s", bps / 1e9),
        bps if bps >= 1e6 => format!("{:.1} Mbit/s", bps / 1e6),
        bps => format!("{:.0} kbit/s", bps / 1e3),
    }
}

/// Computes the rate of `bytes` in `elapsed`, bits per second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people, not a count")]
pub(super) fn rate_bps(bytes: u64, elapsed: Duration) -> f64 {
    bytes as f64 * 8.0 / elapsed.as_secs_f64().max(1e-9)
}

/// Formats a share, rounded down so that 100 % means all of it.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    format!("{share} %")
}

/// Formats a span of time.
pub(super) fn time(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..=59 => format!("{:.1} s", span.as_secs_f64()),
        60..=3599 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

fn cpu(sender: &Cpu, receiver: &Cpu) -> String {
    let per_gb = |cpu: &Cpu| {
        cpu.cpu_s_per_gb
            .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"))
    };
    format!(
        "CPU s/GB: {} sending, {} receiving",
        per_gb(sender),
        per_gb(receiver)
    )
}

pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    count_of(number as u64, one, many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_carry_their_unit() {
        assert_eq!(binary(1023), "1023 B");
        assert_eq!(binary(1 << 30), "1.00 GiB");
        assert_eq!(rate(1.25e9), "1.25 Gbit/s");
        assert_eq!(percent(999, 1000), "99 %");
        assert_eq!(time(Duration::from_secs(3661)), "1 h 01 min");
    }

    #[test]
    fn links_count_beside_files() {
        let mut entries = Entries::default();
        assert_eq!(files(&entries, 3), "3 files");
        entries.links = 1;
        assert_eq!(files(&entries, 3), "3 files and links");
    }

    #[test]
    fn causes_that_did_not_occur_are_left_out() {
        let causes = Causes {
            lost: 1 << 20,
            timer: 3,
            ..Causes::default()
        };
        assert_eq!(by_cause(causes), " (1.00 MiB lost, 3 B by timer)");
    }
}
