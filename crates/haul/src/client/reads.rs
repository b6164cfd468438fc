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
    /// Held while the access looks for the server. Locked after `state`, never before it.
    way: Mutex<Way>,
    /// Held while a session is opened.
    state: Mutex<State>,
}

/// How the server is reached.
struct Way {
    config: Config,
    /// When the access took the latest failure, and its result.
    recovered: Option<(Instant, Result<bool, Fault>)>,
}

struct State {
    reader: Option<Arc<Reader>>,
    used_at: Instant,
    /// The latest attempt that opened no session.
    failed: Option<Failed>,
}

/// A failure, and when it happened.
type Failed = (Instant, Fault);

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
            way: Mutex::new(Way {
                config,
                recovered: None,
            }),
            state: Mutex::new(State {
                reader: None,
                used_at: Instant::now(),
                failed: None,
            }),
        }
    }

    /// Returns the configuration of the next session: an access may change it after a failure.
    /// Blocks while it does.
    #[must_use]
    pub fn config(&self) -> Config {
        lock(&self.way).config.clone()
    }

    /// Returns the attributes of a file or directory. Blocks for one round trip.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, Fault> {
        let mut failures = 0;
        loop {
            match self.attempt(|reader| reader.stat(path)) {
                Ok(stat) => return Ok(stat),
                Err(failed) => self.recover(failed, &mut failures).map_err(explain)?,
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
            let Err(failed) = self.attempt(|reader| reader.read(&mut left, each)) else {
                return Ok(());
            };
            if left.offset > before {
                failures = 0;
            }
            self.recover(failed, &mut failures).map_err(explain)?;
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

    fn attempt<T>(&self, request: impl FnOnce(&Reader) -> Result<T, Fault>) -> Result<T, Failed> {
        let reader = self.reader()?;
        request(&reader).map_err(|fault| (Instant::now(), fault))
    }

    /// Returns the session, or opens one. If an attempt of another request fails meanwhile, this
    /// one fails with it.
    fn reader(&self) -> Result<Arc<Reader>, Failed> {
        let asked_at = Instant::now();
        let mut state = lock(&self.state);
        state.used_at = Instant::now();
        if let Some(reader) = &state.reader
            && !reader.has_failed()
        {
            return Ok(Arc::clone(reader));
        }
        state.reader = None;
        if let Some(failed) = &state.failed
            && failed.0 >= asked_at
        {
            return Err(failed.clone());
        }
        match self.open() {
            Ok(reader) => {
                state.reader = Some(Arc::clone(&reader));
                Ok(reader)
            }
            Err(fault) => {
                let failed = (Instant::now(), fault);
                state.failed = Some(failed.clone());
                Err(failed)
            }
        }
    }

    fn open(&self) -> Result<Arc<Reader>, Fault> {
        let id = super::transfer_id()?;
        let session = Session::open(&self.config(), READ_SERVICE, id, Vec::new)?;
        Ok(Arc::new(Reader::start(session.link, session.opening)?))
    }

    /// Prepares another attempt of a request, after `failures` before this one, if it may succeed.
    /// Blocks for the pause before it.
    ///
    /// # Errors
    /// The failure, if no attempt is to follow, or that of the access.
    pub fn recover(&self, (at, fault): (Instant, Fault), failures: &mut u32) -> Result<(), Fault> {
        *failures += 1;
        if !fault.code.passes() || *failures >= TRIES {
            return Err(fault);
        }
        if self.find(at, &fault)? {
            return Ok(());
        }
        if fault.code == Code::Unreachable {
            return Err(fault);
        }
        std::thread::sleep(BACKOFF * 2_u32.pow(*failures - 1));
        Ok(())
    }

    /// Has the access take a failure, once for all requests that failed before. Returns whether the
    /// next attempt is to follow at once.
    fn find(&self, at: Instant, fault: &Fault) -> Result<bool, Fault> {
        let mut way = lock(&self.way);
        if let Some((recovered_at, result)) = &way.recovered
            && *recovered_at >= at
        {
            return result.clone();
        }
        let Some(access) = way.config.access.clone() else {
            return Ok(false);
        };
        let result = access.recover(&mut way.config, fault);
        way.recovered = Some((Instant::now(), result.clone()));
        result
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
