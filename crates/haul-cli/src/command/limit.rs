//! `--bwlimit`: keeps the limit of a transfer by a timetable.
#![expect(
    clippy::disallowed_types,
    reason = "a timetable is a file of this host"
)]

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haul::fault::{Code, Fault};
use haul::limit::Limit;
use haul::printable;
use signal_hook::consts::SIGHUP;
use signal_hook::flag;

use crate::output::tell;
use crate::timetable::{Bwlimit, Timetable};

/// How often the time of day is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum size of a timetable's file, bytes.
const FILE_MAX: u64 = 64 << 10;

/// Returns the limit, which a thread keeps. A timetable in a file is read again on SIGHUP.
///
/// # Errors
/// The file cannot be read, or the system has no thread.
pub(super) fn start(bwlimit: &Bwlimit, is_quiet: bool) -> Result<Limit, Fault> {
    let limit = Limit::default();
    let failed = |error| Fault::file("cannot keep the bandwidth limit", &error);
    let (mut table, file) = match bwlimit {
        Bwlimit::Rates(table) => (table.clone(), None),
        Bwlimit::File(file) => (read(file)?, Some(file.clone())),
    };
    let is_due = Arc::new(AtomicBool::new(false));
    if file.is_some() {
        flag::register(SIGHUP, Arc::clone(&is_due)).map_err(failed)?;
    }
    limit.set(table.at(haul::local_second_of_day().map_err(failed)?));
    let kept = limit.clone();
    let keep = move || {
        loop {
            if let Some(file) = &file
                && is_due.swap(false, Ordering::Relaxed)
            {
                match read(file) {
                    Ok(now) => {
                        table = now;
                        if !is_quiet {
                            tell("read the bandwidth limit again");
                        }
                    }
                    Err(fault) => tell(&format!("keeps the bandwidth limit that it has: {fault}")),
                }
            }
            if let Ok(second) = haul::local_second_of_day() {
                kept.set(table.at(second));
            }
            std::thread::sleep(LOOK);
        }
    };
    let thread = std::thread::Builder::new().name("haul-bwlimit".into());
    thread.spawn(keep).map_err(failed)?;
    Ok(limit)
}

fn read(file: &Path) -> Result<Timetable, Fault> {
    let shown = printable(file.as_os_str().as_encoded_bytes());
    let mut text = String::new();
    File::open(file)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
        .map_err(|error| Fault::file(&format!("cannot read the timetable '{shown}'"), &error))?;
    if text.len() as u64 > FILE_MAX {
        let kib = FILE_MAX >> 10;
        let text = format!("the timetable '{shown}' has more than {kib} KiB");
        return Err(Fault::new(Code::Usage, text));
    }
    Timetable::parse(&text).map_err(|why| {
        let text = format!("the timetable '{shown}' is wrong: {why}");
        Fault::new(Code::Usage, text)
    })
}
