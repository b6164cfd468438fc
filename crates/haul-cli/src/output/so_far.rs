//! Collects the figures of an unfinished transfer or bench from its events.

use std::time::Instant;

use haul::report::{Event, FileResult};
use serde::Serialize;

use super::human::{binary, rate, rate_bps, time};

/// Published files that are kept by name.
const FILES_MAX: usize = 10_000;

/// Figures of a command that was interrupted or failed.
#[derive(Debug)]
pub(super) struct SoFar {
    begun: Instant,
    peer: Option<String>,
    attempts: u32,
    /// Bytes of all files, and bytes at the receiver: now, and before this command.
    total: u64,
    present: u64,
    resumed: Option<u64>,
    /// Bytes moved by earlier attempts, and by this one.
    moved_before: u64,
    moved: u64,
    files: Vec<FileResult>,
}

/// The figures in the final JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Figures<'a> {
    peer: Option<&'a str>,
    seconds: f64,
    bytes: u64,
    present_bytes: u64,
    resumed_bytes: u64,
    moved_bytes: u64,
    goodput_bps: f64,
    reconnects: u32,
    /// Published files.
    files: &'a [FileResult],
}

impl SoFar {
    pub(super) fn new(begun: Instant) -> Self {
        Self {
            begun,
            peer: None,
            attempts: 0,
            total: 0,
            present: 0,
            resumed: None,
            moved_before: 0,
            moved: 0,
            files: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::Connected { peer, .. } => {
                self.peer = Some((*peer).to_owned());
                self.attempts += 1;
            }
            Event::Planned { total, present, .. } => {
                (self.total, self.present) = (*total, *present);
                self.resumed.get_or_insert(*present);
            }
            Event::Progress {
                present,
                total,
                moved,
                resumed,
                ..
            } => {
                (self.present, self.total, self.moved) = (*present, *total, *moved);
                // What earlier attempts have moved was not there.
                let resumed = resumed.saturating_sub(self.moved_before);
                self.resumed = self.resumed.max(Some(resumed));
            }
            Event::Measured { bytes } => self.moved = *bytes,
            Event::AttemptOver { moved } => {
                self.moved_before = self.moved_before.saturating_add(*moved);
                self.moved = 0;
            }
            Event::FileDone(file) if self.files.len() < FILES_MAX => {
                self.files.push((*file).clone());
            }
            Event::FileDone(_) | Event::Failed { .. } | Event::Note(_) | Event::Retrying { .. } => {
            }
        }
    }

    fn moved(&self) -> u64 {
        self.moved_before.saturating_add(self.moved)
    }

    /// Returns the figures; `None` if no peer has answered.
    pub(super) fn figures(&self) -> Option<Figures<'_>> {
        let elapsed = self.begun.elapsed();
        Some(Figures {
            peer: Some(self.peer.as_deref()?),
            seconds: elapsed.as_secs_f64(),
            bytes: self.total,
            present_bytes: self.present,
            resumed_bytes: self.resumed.unwrap_or(0),
            moved_bytes: self.moved(),
            goodput_bps: rate_bps(self.moved(), elapsed),
            reconnects: self.attempts.saturating_sub(1),
            files: &self.files,
        })
    }

    /// Formats the figures for people.
    pub(super) fn text(&self) -> String {
        let elapsed = self.begun.elapsed();
        let after = format!("after {}", time(elapsed));
        if self.peer.is_none() {
            return format!("{after}, before a peer answered");
        }
        let moved = self.moved();
        let moved = format!(
            "{after}: {} moved, {}",
            binary(moved),
            rate(rate_bps(moved, elapsed))
        );
        if self.total == 0 {
            return moved;
        }
        let (present, total) = (binary(self.present), binary(self.total));
        format!("{moved}; {present} of {total} are at the receiver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_attempts_have_moved_adds_up_and_what_was_there_first_stays() {
        let mut so_far = SoFar::new(Instant::now());
        assert!(so_far.figures().is_none());
        let (files, total) = (1, 1000);
        for (present, moved) in [(100, 300), (350, 200)] {
            so_far.note(&Event::Connected {
                peer: "a",
                software: "b",
            });
            so_far.note(&Event::Planned {
                files,
                total,
                present,
            });
            let present = present + moved;
            so_far.note(&Event::Progress {
                present,
                total,
                moved,
                resumed: present - moved,
                files: 0,
                is_scanned: true,
            });
            if present == 400 {
                // More has been sent than the receiver had reported.
                so_far.note(&Event::AttemptOver { moved: 320 });
            }
        }
        let figures = so_far.figures().unwrap();
        assert_eq!((figures.bytes, figures.present_bytes), (1000, 550));
        assert_eq!((figures.resumed_bytes, figures.moved_bytes), (100, 520));
        assert_eq!(figures.reconnects, 1);
    }
}
