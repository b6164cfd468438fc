//! Progress: a bar on a terminal, single lines elsewhere.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::human::{binary, percent, rate, rate_bps, time};
use super::tell;

/// The rate is averaged over this time.
const WINDOW: Duration = Duration::from_secs(8);
/// The time left is shown once the rate covers this long: before, it shows only the start.
const FORECAST_AFTER: Duration = Duration::from_secs(1);
/// Without a terminal, a line is printed this often.
const LINE_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Progress {
    quiet: bool,
    bar: Option<ProgressBar>,
    total: u64,
    /// The scan goes on: the total grows.
    is_scanning: bool,
    /// Files that are finished, of trees.
    files: u64,
    /// Never decreases, also across reconnects.
    shown: u64,
    samples: VecDeque<(Instant, u64)>,
    last_line: Instant,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            bar: None,
            total: 0,
            is_scanning: false,
            files: 0,
            shown: 0,
            samples: VecDeque::new(),
            last_line: Instant::now(),
        }
    }

    /// Begins once the plan is known: `present` of `total` bytes are present.
    pub(super) fn begin(&mut self, total: u64, present: u64) {
        self.total = total;
        self.samples.clear();
        self.samples.push_back((Instant::now(), present));
        if !self.quiet && self.bar.is_none() && std::io::stderr().is_terminal() {
            let bar =
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(8));
            let style = ProgressStyle::with_template("{wide_bar} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar = Some(bar);
        }
        self.advance(present);
    }

    /// Takes how far the scan is, and how many files are finished.
    pub(super) fn scan(&mut self, total: u64, is_scanned: bool, files: u64) {
        self.total = self.total.max(total);
        self.is_scanning = !is_scanned;
        self.files = self.files.max(files);
    }

    /// Takes the number of present bytes.
    pub(super) fn advance(&mut self, present: u64) {
        let now = Instant::now();
        self.samples.push_back((now, present));
        while self.samples.len() > 2
            && self
                .samples
                .front()
                .is_some_and(|(at, _)| now - *at > WINDOW)
        {
            self.samples.pop_front();
        }
        self.shown = self.shown.max(present).min(self.total);
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
            bar.set_position(self.shown);
            bar.set_message(self.line());
        } else if now - self.last_line >= LINE_EVERY {
            self.last_line = now;
            self.say(&self.line());
        }
    }

    /// Prints a line without disturbing the bar.
    pub(super) fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| tell(text)),
            None => tell(text),
        }
    }

    /// Clears the bar.
    pub(super) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&self) -> String {
        let (shown, total) = (binary(self.shown), binary(self.total));
        // A share of what is known so far would fall when more is found.
        let mut line = match self.is_scanning {
            true => format!("{shown} of {total} found so far"),
            false => format!("{} {shown} of {total}", percent(self.shown, self.total)),
        };
        if self.files > 1 {
            line.push_str(&format!(", {} files", self.files));
        }
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return line;
        };
        let span = last.0 - first.0;
        let bps = rate_bps(last.1.saturating_sub(first.1), span);
        if bps > 0.0 {
            line.push_str(&format!(", {}", rate(bps)));
        }
        if bps > 0.0 && span >= FORECAST_AFTER && !self.is_scanning {
            let left = self.total.saturating_sub(self.shown);
            let left = rate_bps(left, Duration::from_secs(1)) / bps;
            let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
            line.push_str(&format!(", {} left", time(left)));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_never_goes_back() {
        let mut progress = Progress::new(true);
        progress.begin(1000, 400);
        assert!(progress.line().starts_with("40 %"));
        progress.advance(700);
        progress.begin(1000, 600);
        progress.advance(650);
        assert!(progress.line().starts_with("70 %"), "{}", progress.line());
        progress.advance(5000);
        assert!(progress.line().starts_with("100 %"));
        progress.scan(3000, false, 7);
        progress.advance(1000);
        let line = progress.line();
        assert!(
            line.starts_with("1000 B of 2.93 KiB found so far, 7 files"),
            "{line}"
        );
    }
}
