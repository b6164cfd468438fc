//! Log lines for operators.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::sync::lock;

/// Lines that the page shows.
const TAIL_LINES: usize = 200;
/// Bytes of such a line; the log has all of it.
const TAIL_LINE_BYTES: usize = 400;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something works differently from what was configured or asked for.
    Warning,
    /// Sessions and data channels open and close.
    Info,
    /// Connections open and close.
    Debug,
}

type Sink = dyn Fn(Level, &str) + Send + Sync;

/// Where log lines go.
#[derive(Clone)]
pub struct Log(Arc<Sink>);

impl Log {
    /// Creates a log that calls `sink` with each line. `sink` must not block.
    pub fn new(sink: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    pub(crate) fn line(&self, level: Level, text: &str) {
        (self.0)(level, text);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// The last lines, for the page.
#[derive(Debug, Default)]
pub(crate) struct Tail(Mutex<VecDeque<Line>>);

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Monotonic time, ns.
    pub(crate) at_ns: u64,
    pub(crate) level: Level,
    pub(crate) text: String,
}

impl Tail {
    pub(crate) fn push(&self, at_ns: u64, level: Level, text: &str) {
        let end = (0..=TAIL_LINE_BYTES.min(text.len())).rfind(|end| text.is_char_boundary(*end));
        let text = text[..end.unwrap_or(0)].to_owned();
        let mut lines = lock(&self.0);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(Line { at_ns, level, text });
    }

    /// Returns all lines kept, oldest first.
    pub(crate) fn lines(&self) -> Vec<Line> {
        lock(&self.0).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_keeps_the_last_lines_and_the_beginning_of_long_ones() {
        let tail = Tail::default();
        for number in 0..TAIL_LINES as u64 + 7 {
            tail.push(number, Level::Info, "x");
        }
        tail.push(1_000, Level::Error, &format!("x{}", "é".repeat(400)));
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[0].at_ns), (TAIL_LINES, 8));
        let last = &lines[TAIL_LINES - 1].text;
        assert_eq!(*last, format!("x{}", "é".repeat(199)));
    }
}
