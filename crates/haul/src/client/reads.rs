//! Reading ranges of a server's files, over sessions that are opened when they are needed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{BACKOFF, Config, Session};
use crate::fault::{Code, Fault};
use crate::lock;
use crate::session::reader::Reader;
pub use crate::session::reader::{Kind, Range, Stat};
use crate::wire::READ_SERVICE;

/// Failures in a row, without a byte in between, before a read fails.
const TRIES: u32 = 4;

/// Attributes and ranges of a server's files. Requests share one session, which is opened again
/// after it was lost. Any number of threads may use it at a time.
pub struct Reads {
    state: Mutex<State>,
}

struct State {
    config: Config,
    reader: Option<Arc<Reader>>,
    used_at: Instant,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reads").finish_non_exhaustive()
    }
}

impl Reads {
    /// Prepares reading; connects to nothing. Where the configuration has an access, it has been
    /// prepared.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            state: Mutex::new(State {
                config,
                reader: None,
                used_at: Instant::now(),
            }),
        }
    }

    /// Returns the attributes of a file or directory. Blocks for one round trip.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, Fault> {
        let mut failures = 0;
        loop {
            match self.reader().and_then(|reader| reader.stat(path)) {
                Err(fault) => self.recover(fault, &mut failures)?,
                result => return result,
            }
        }
    }

    /// Reads a range and hands its bytes to `each`, in order, at most 4 MiB at a time. Pieces are
    /// requested ahead.
    ///
    /// # Errors
    /// [`Code::SourceChanged`] if the file is not, or no longer, of the given size and time; else
    /// why it cannot be read, or the error of `each`.
    pub fn read(
        &self,
        range: &Range,
        each: &mut dyn FnMut(Vec<u8>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let end = range.offset.checked_add(range.length);
        if end.is_none_or(|end| end > range.size) {
            let text = "the range ends behind the end of the file";
            return Err(Fault::new(Code::Usage, text));
        }
        let (mut left, mut failures) = (range.clone(), 0);
        loop {
            let before = left.offset;
            let read = self.reader();
            let Err(fault) = read.and_then(|reader| reader.read(&mut left, each)) else {
                return Ok(());
            };
            if left.offset > before {
                failures = 0;
            }
            self.recover(fault, &mut failures)?;
        }
    }

    /// Ends the session if nothing was requested for this long.
    pub fn rest(&self, idle: Duration) {
        let mut state = lock(&self.state);
        if state.used_at.elapsed() >= idle
            && state
                .reader
                .as_ref()
                .is_some_and(|reader| Arc::strong_count(reader) == 1)
        {
            state.reader = None;
        }
    }

    fn reader(&self) -> Result<Arc<Reader>, Fault> {
        let mut state = lock(&self.state);
        state.used_at = Instant::now();
        if let Some(reader) = &state.reader
            && !reader.has_failed()
        {
            return Ok(Arc::clone(reader));
        }
        state.reader = None;
        let session = Session::open(&state.config, READ_SERVICE, super::transfer_id()?, Vec::new)?;
        let reader = Arc::new(Reader::start(session.link, session.opening)?);
        state.reader = Some(Arc::clone(&reader));
        Ok(reader)
    }

    /// Prepares another attempt, if one may succeed.
    fn recover(&self, fault: Fault, failures: &mut u32) -> Result<(), Fault> {
        *failures += 1;
        if !fault.code.passes() || *failures >= TRIES {
            return Err(explain(fault));
        }
        {
            let mut state = lock(&self.state);
            let access = state.config.access.clone();
            if let Some(access) = access
                && access.recover(&mut state.config, &fault)?
            {
                return Ok(());
            }
        }
        if fault.code == Code::Unreachable {
            return Err(fault);
        }
        std::thread::sleep(BACKOFF * 2_u32.pow(*failures - 1));
        Ok(())
    }
}

/// Tells a server of an earlier version from one that refuses.
fn explain(fault: Fault) -> Fault {
    match fault.code == Code::Refused && fault.text.contains("does not serve") {
        true => Fault::new(Code::Version, "the server does not serve ranges of files")
            .hint("update haul at the server"),
        false => fault,
    }
}
