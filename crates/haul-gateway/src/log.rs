//! Log lines for operators. A line that repeats is counted, not logged again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use haul_report::text::cut;
use haul_xsp::SECOND_NS;
use serde::Serialize;

use crate::sync::lock;

/// Lines that the page shows.
const TAIL_LINES: usize = 200;
/// Bytes of such a line; the log has all of it.
const TAIL_LINE_BYTES: usize = 400;
/// How long the repetitions of a line are counted before their number is logged, ns.
const REPEAT_NS: u64 = 10 * SECOND_NS;
/// Lines whose repetitions are counted at a time.
const COUNTED_MAX: usize = 64;
/// Different lines about connections in [`REPEAT_NS`].
const CONNECTIONS_MAX: usize = 20;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not work.
    Error,
    /// A deviation from the configuration or a request.
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

/// Counts lines that repeat, and lines about connections beyond [`CONNECTIONS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Oldest first.
    counted: VecDeque<Counted>,
    /// Since when lines about connections are counted, ns.
    since_ns: u64,
    /// Lines about connections since then: logged, and left out.
    connections: usize,
    left_out: u64,
}

/// Whether the number of lines is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of the gateway, its sessions or its peers.
    Plain,
    /// One about a connection, of which clients can cause any number.
    Connection,
}

/// A line that was logged less than [`REPEAT_NS`] ago.
#[derive(Debug)]
struct Counted {
    level: Level,
    text: String,
    /// When it was logged, or the number of its repetitions, ns.
    since_ns: u64,
    repetitions: u64,
}

impl Counted {
    fn summary(&self, now_ns: u64) -> Option<(Level, String)> {
        let seconds = now_ns.saturating_sub(self.since_ns).div_ceil(SECOND_NS);
        let (text, count) = (&self.text, self.repetitions);
        let times = match count {
            0 => return None,
            1 => "once".to_owned(),
            _ => format!("{count} times"),
        };
        Some((self.level, format!("{text} ({times} more in {seconds} s)")))
    }
}

impl Repeats {
    /// Counts the line if it repeats an earlier one, or exceeds a limit.
    pub(crate) fn admit(&self, now_ns: u64, level: Level, kind: Kind, text: &str) -> Admission {
        let mut known = lock(&self.0);
        let is_same = |line: &&mut Counted| line.level == level && line.text == text;
        if let Some(line) = known.counted.iter_mut().find(is_same) {
            line.repetitions += 1;
            return Admission::Repeats;
        }
        if kind == Kind::Connection {
            if known.connections == CONNECTIONS_MAX {
                known.left_out += 1;
                return Admission::LeftOut;
            }
            known.connections += 1;
        }
        known.counted.push_back(Counted {
            level,
            text: text.to_owned(),
            since_ns: now_ns,
            repetitions: 0,
        });
        Admission::New
    }

    /// Returns the lines that state how often earlier ones have been repeated, as far as they are
    /// due.
    pub(crate) fn take_due(&self, now_ns: u64) -> Vec<(Level, String)> {
        let mut known = lock(&self.0);
        let Known {
            counted,
            since_ns,
            connections,
            left_out,
        } = &mut *known;
        let mut due = Vec::new();
        if now_ns >= since_ns.saturating_add(REPEAT_NS) {
            if *left_out > 0 {
                let text = format!("{left_out} more lines about connections are left out");
                due.push((Level::Warning, text));
            }
            (*since_ns, *connections, *left_out) = (now_ns, 0, 0);
        }
        let excess = counted.len().saturating_sub(COUNTED_MAX - 1);
        due.extend(
            counted
                .drain(..excess)
                .filter_map(|one| one.summary(now_ns)),
        );
        counted.retain_mut(|one| {
            if now_ns < one.since_ns.saturating_add(REPEAT_NS) {
                return true;
            }
            let summary = one.summary(now_ns);
            (one.since_ns, one.repetitions) = (now_ns, 0);
            // A line that goes on repeating is counted for another while.
            let goes_on = summary.is_some();
            due.extend(summary);
            goes_on
        });
        due
    }
}

/// The outcome of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is to be logged.
    New,
    /// It is counted as a repetition.
    Repeats,
    /// It is counted as one of too many.
    LeftOut,
}

/// The last lines, for the page.
#[derive(Debug, Default)]
pub(crate) struct Tail(Mutex<VecDeque<Line>>);

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Monotonic time of its last occurrence, ns.
    pub(crate) at_ns: u64,
    pub(crate) level: Level,
    pub(crate) text: String,
    /// How often it has occurred.
    pub(crate) times: u64,
}

impl Tail {
    pub(crate) fn push(&self, at_ns: u64, level: Level, text: &str) {
        let text = cut(text, TAIL_LINE_BYTES).to_owned();
        let mut lines = lock(&self.0);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(Line {
            at_ns,
            level,
            text,
            times: 1,
        });
    }

    /// Counts a repetition of a line, which becomes the last one again.
    pub(crate) fn repeat(&self, at_ns: u64, level: Level, text: &str) {
        let short = cut(text, TAIL_LINE_BYTES);
        let mut lines = lock(&self.0);
        let is_same = |line: &Line| line.level == level && line.text == short;
        let known = lines.iter().rposition(is_same);
        let Some(mut line) = known.and_then(|known| lines.remove(known)) else {
            drop(lines);
            return self.push(at_ns, level, text);
        };
        line.at_ns = at_ns;
        line.times += 1;
        lines.push_back(line);
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
        let long = format!("x{}", "é".repeat(400));
        tail.push(1_000, Level::Error, &long);
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[0].at_ns), (TAIL_LINES, 8));
        let last = &lines[TAIL_LINES - 1];
        assert_eq!(last.text, format!("x{}", "é".repeat(199)));
        tail.push(1_001, Level::Info, "y");
        tail.repeat(1_002, Level::Error, &long);
        let last = tail.lines().pop().unwrap();
        assert_eq!(
            (last.at_ns, last.times, last.level),
            (1_002, 2, Level::Error)
        );
        assert_eq!(tail.lines().len(), TAIL_LINES);
    }

    fn admit(repeats: &Repeats, now_ns: u64, level: Level, text: &str) -> bool {
        repeats.admit(now_ns, level, Kind::Plain, text) == Admission::New
    }

    #[test]
    fn a_line_that_repeats_is_logged_once_and_then_its_number() {
        let repeats = Repeats::default();
        assert!(admit(&repeats, 0, Level::Info, "a"));
        for now_ns in 1..=3 {
            assert!(!admit(&repeats, now_ns, Level::Info, "a"));
        }
        assert!(admit(&repeats, 4, Level::Error, "a"), "of another level");
        assert!(repeats.take_due(REPEAT_NS - 1).is_empty());
        let counted = |count: &str| (Level::Info, format!("a ({count} more in 10 s)"));
        assert_eq!(repeats.take_due(REPEAT_NS), [counted("3 times")]);
        // It goes on.
        assert!(!admit(&repeats, REPEAT_NS + 1, Level::Info, "a"));
        assert_eq!(repeats.take_due(2 * REPEAT_NS), [counted("once")]);
        assert!(repeats.take_due(3 * REPEAT_NS).is_empty());
        assert!(
            admit(&repeats, 3 * REPEAT_NS, Level::Info, "a"),
            "it is new again"
        );
    }

    #[test]
    fn of_many_lines_the_oldest_are_no_longer_counted() {
        let repeats = Repeats::default();
        assert!(admit(&repeats, 0, Level::Info, "first"));
        assert!(!admit(&repeats, 0, Level::Info, "first"));
        let mut told = Vec::new();
        for number in 0..2 * COUNTED_MAX {
            told.extend(repeats.take_due(SECOND_NS));
            assert!(admit(&repeats, SECOND_NS, Level::Info, &number.to_string()));
        }
        assert_eq!(told, [(Level::Info, "first (once more in 1 s)".to_owned())]);
        assert!(lock(&repeats.0).counted.len() <= COUNTED_MAX);
    }

    #[test]
    fn clients_cannot_fill_the_log_with_different_lines() {
        let repeats = Repeats::default();
        repeats.take_due(REPEAT_NS);
        let admit = |number: usize| {
            let text = format!("to port {number}");
            repeats.admit(REPEAT_NS, Level::Warning, Kind::Connection, &text)
        };
        let admitted = (0..CONNECTIONS_MAX + 5).filter(|number| admit(*number) == Admission::New);
        assert_eq!(admitted.count(), CONNECTIONS_MAX);
        assert_eq!(admit(0), Admission::Repeats);
        let told = repeats.take_due(2 * REPEAT_NS);
        let left_out = "5 more lines about connections are left out";
        assert!(
            told.contains(&(Level::Warning, left_out.to_owned())),
            "{told:?}"
        );
        assert_eq!(admit(CONNECTIONS_MAX), Admission::New);
    }
}
