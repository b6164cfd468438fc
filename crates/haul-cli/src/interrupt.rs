//! SIGHUP, SIGINT and SIGTERM in a client: the first signal has the figures so far printed and ends
//! the process with 128 and its number; a second signal ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use haul::fault::{Code, Fault};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// A signal that comes so soon after the first is the same request: `timeout` sends it to the
/// process and to its group.
const SAME: Duration = Duration::from_millis(200);

/// A signal that asks a client to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupt(i32);

impl Interrupt {
    pub(crate) const fn name(self) -> &'static str {
        match self.0 {
            SIGHUP => "SIGHUP",
            SIGINT => "SIGINT",
            _ => "SIGTERM",
        }
    }

    /// The exit code, as shells have it for a process that a signal has ended.
    pub(crate) const fn exit(self) -> i32 {
        128 + self.0
    }

    /// The fields that the final object has beside the figures. `hint` tells how to resume.
    pub(crate) fn fields(self, hint: &str) -> Value {
        let text = format!("interrupted by {}", self.name());
        json!({
            "ok": false,
            "interrupted": self.name(),
            "error": { "code": "interrupted", "exit": self.exit(), "text": text, "hint": hint },
        })
    }
}

/// Those of `signals` that the process was not started to ignore, as `nohup` and the background
/// jobs of a shell are.
pub(crate) fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let signals = signals.iter().copied();
    signals
        .filter(|signal| !haul::is_signal_ignored(*signal))
        .collect()
}

/// From now on the first signal calls `print` and ends the process, whatever its other threads do.
///
/// # Errors
/// The system has no descriptor or no thread left.
pub(crate) fn watch(print: impl FnOnce(Interrupt) + Send + 'static) -> Result<(), Fault> {
    watch_some(true, print)
}

/// As [`watch`]; SIGHUP is left to the caller unless `takes_hangup`.
///
/// # Errors
/// As [`watch`].
pub(crate) fn watch_some(
    takes_hangup: bool,
    print: impl FnOnce(Interrupt) + Send + 'static,
) -> Result<(), Fault> {
    let failed =
        |error: std::io::Error| Fault::new(Code::Other, format!("cannot take signals: {error}"));
    let mut signals = not_ignored(&[SIGHUP, SIGINT, SIGTERM]);
    signals.retain(|signal| takes_hangup || *signal != SIGHUP);
    if signals.is_empty() {
        return Ok(());
    }
    let mut taken = Signals::new(&signals).map_err(failed)?;
    let second = Arc::new(AtomicBool::new(false));
    for signal in signals {
        let exit = Interrupt(signal).exit();
        flag::register_conditional_shutdown(signal, exit, Arc::clone(&second)).map_err(failed)?;
    }
    let thread = move || {
        if let Some(signal) = taken.forever().next() {
            let interrupt = Interrupt(signal);
            let soon = move || {
                std::thread::sleep(SAME);
                second.store(true, Ordering::Release);
            };
            // Without a thread for it a second signal does nothing.
            drop(std::thread::Builder::new().spawn(soon));
            print(interrupt);
            std::process::exit(interrupt.exit());
        }
    };
    let builder = std::thread::Builder::new().name("haul-signals".into());
    builder.spawn(thread).map(drop).map_err(failed)
}

/// Orders what the threads of a command print: it has one end, and nothing comes after it.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    is_over: Mutex<bool>,
}

impl Ending {
    /// Prints something, unless the end has been printed.
    pub(crate) fn before(&self, print: impl FnOnce()) {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_over {
            print();
        }
    }

    /// The caller prints the end and has the process exit. Whoever comes second waits here until
    /// that has happened.
    pub(crate) fn begin(&self) {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_over, true) {
            drop(is_over);
            loop {
                std::thread::park();
            }
        }
    }
}
