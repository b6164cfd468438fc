//! Lines on stderr.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::{Mutex, PoisonError};

use haul_report::text::cut;

/// The longest line of a log, bytes: the rest is left out.
const LINE_MAX: usize = haul::PIPE_BUF - 128;

/// Lines of the log that could not be written.
static DROPPED: Mutex<Dropped> = Mutex::new(Dropped { count: 0, told: 0 });

struct Dropped {
    count: u64,
    /// Of these, how many the log mentions.
    told: u64,
}

/// A line on stderr.
pub(crate) fn tell(text: &str) {
    // Whoever reads it may have gone; the work does not depend on it.
    let _ = writeln!(std::io::stderr().lock(), "haul: {text}");
}

/// Writes a line of a server's log, as [`log_line`] does.
pub(crate) fn note(text: &str) {
    log_line(&format!("haul: {text}"));
}

/// Writes a line of a server's log on stderr. It does not wait for a reader: if stderr has no room,
/// the line is dropped, and the next one that is written comes with the number of those.
pub(crate) fn log_line(line: &str) {
    let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = match dropped.count - dropped.told {
        0 => String::new(),
        count => format!("haul: log lines dropped, because stderr was not read: {count}\n"),
    };
    text += cut(line, LINE_MAX);
    text.push('\n');
    match haul::write_now(std::io::stderr().as_fd(), text.as_bytes()) {
        Ok(()) => dropped.told = dropped.count,
        Err(_) => dropped.count += 1,
    }
}

/// Returns how many lines [`log_line`] has dropped.
pub(crate) fn dropped_lines() -> u64 {
    let dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    dropped.count
}
