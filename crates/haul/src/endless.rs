//! An endless source: repeats the same bytes, limited by their number or by time.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use haul_soft::bulk::{Extent, FileRange, Source};

use crate::lock;

/// Length of the pattern, bytes: fits a processor's cache, as other tools' buffers do.
const PATTERN: usize = 512 << 10;
/// How far the space reaches ahead of the channel until the time is up, bytes.
const AHEAD: u64 = 4 << 20;
/// How far a paced space may reach ahead of its rate: what it holds is sent, also after the time
/// is up.
const PACED_AHEAD: Duration = Duration::from_millis(100);
/// The same for slow ones, bytes: several packets.
const PACED_BYTES: u64 = 32 << 10;
/// How long a paced space is waited for at a time.
const PACED_LOOK: Duration = Duration::from_millis(5);

/// An endless source.
pub struct Endless {
    /// `None` if a file holds the bytes.
    memory: Option<Vec<u8>>,
    /// The bytes as a file, for channels that hand files to the kernel; one of both is present.
    file: Option<File>,
    /// Bytes before it repeats.
    round: u64,
    bytes: Option<u64>,
    time: Option<Duration>,
    bytes_per_second: Option<u64>,
    begun: OnceLock<Instant>,
    state: Mutex<Reach>,
}

struct Reach {
    end: u64,
    complete: bool,
    taken: u64,
}

impl fmt::Debug for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endless")
            .field("round", &self.round)
            .field("bytes", &self.bytes)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

/// Makes `len` bytes that nothing on the path can compress (xorshift64).
#[must_use]
pub fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut memory = Vec::with_capacity(len + 8);
    while memory.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memory.extend_from_slice(&state.to_le_bytes());
    }
    memory.truncate(len);
    memory
}

impl Endless {
    /// Makes a pattern in memory. Without a limit it ends when [`Endless::stop`] is called.
    ///
    /// # Errors
    /// That of making the same bytes as a file.
    pub fn pattern(bytes: Option<u64>, time: Option<Duration>) -> io::Result<Self> {
        let memory = pattern(PATTERN);
        let file = haul_io::file::memory_file(&memory)?;
        let round = PATTERN as u64;
        Ok(Self::new(Some(memory), Some(file), round, bytes, time))
    }

    /// Repeats these bytes, at least one, from memory alone.
    #[must_use]
    pub fn of_memory(memory: Vec<u8>, bytes: Option<u64>, time: Option<Duration>) -> Self {
        let round = memory.len() as u64;
        Self::new(Some(memory), None, round, bytes, time)
    }

    /// Repeats the first `round` bytes of a file, which has as many; at least one.
    #[must_use]
    pub fn of_file(file: File, round: u64, bytes: Option<u64>, time: Option<Duration>) -> Self {
        Self::new(None, Some(file), round, bytes, time)
    }

    fn new(
        memory: Option<Vec<u8>>,
        file: Option<File>,
        round: u64,
        bytes: Option<u64>,
        time: Option<Duration>,
    ) -> Self {
        Self {
            memory,
            file,
            round: round.max(1),
            bytes,
            time,
            bytes_per_second: None,
            begun: OnceLock::new(),
            state: Mutex::new(Reach {
                end: 0,
                complete: false,
                taken: 0,
            }),
        }
    }

    /// Reaches no further ahead than a channel of that rate can send soon. Without it a slow
    /// channel has megabytes to send after the time is up.
    #[must_use]
    pub fn paced(self, bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: Some(bytes_per_second),
            ..self
        }
    }

    fn paced_end(&self, elapsed: Duration) -> u64 {
        let Some(rate) = self.bytes_per_second else {
            return u64::MAX;
        };
        let ms = u64::try_from((elapsed + PACED_AHEAD).as_millis()).unwrap_or(u64::MAX);
        (rate.saturating_mul(ms) / 1_000).saturating_add(PACED_BYTES)
    }

    /// Returns the end of the space once it is final.
    #[must_use]
    pub fn finished(&self) -> Option<u64> {
        let reach = lock(&self.state);
        reach.complete.then_some(reach.end)
    }

    /// Returns how much of it the channel has taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        lock(&self.state).taken
    }

    /// Ends the space where it is.
    pub fn stop(&self) {
        lock(&self.state).complete = true;
    }

    fn position(&self, offset: u64) -> u64 {
        offset % self.round
    }
}

impl Source for Endless {
    fn wait(&self, offset: u64, timeout: Duration) -> Extent {
        let begun = *self.begun.get_or_init(Instant::now);
        if self.paced_end(begun.elapsed()) <= offset {
            std::thread::sleep(timeout.min(PACED_LOOK));
        }
        let mut reach = lock(&self.state);
        reach.taken = reach.taken.max(offset);
        if !reach.complete {
            let limit = self.bytes.unwrap_or(u64::MAX);
            reach.complete = self.time.is_some_and(|time| begun.elapsed() >= time);
            if !reach.complete {
                let ahead = offset.saturating_add(AHEAD);
                let paced = self.paced_end(begun.elapsed());
                reach.end = reach.end.max(ahead.min(paced)).min(limit);
                reach.complete = reach.end == limit;
            }
        }
        Extent {
            end: reach.end,
            complete: reach.complete,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut at = self.position(offset);
        let mut buf = buf;
        while !buf.is_empty() {
            let left = usize::try_from(self.round - at).unwrap_or(usize::MAX);
            let (now, rest) = buf.split_at_mut(left.min(buf.len()));
            match (&self.memory, &self.file) {
                (Some(memory), _) => {
                    let at = usize::try_from(at).unwrap_or(0);
                    now.copy_from_slice(&memory[at..at + now.len()]);
                }
                (None, Some(file)) => file.read_exact_at(now, at)?,
                (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
            }
            (buf, at) = (rest, 0);
        }
        Ok(())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        let at = usize::try_from(self.position(offset)).ok()?;
        self.memory.as_ref()?.get(at..)
    }

    fn file_at(&self, offset: u64) -> Option<FileRange<'_>> {
        let at = self.position(offset);
        Some(FileRange {
            fd: self.file.as_ref()?.as_fd(),
            position: at,
            len: self.round - at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_reads_the_same_from_memory_and_file() {
        let pattern = Endless::pattern(Some(1 << 30), None).unwrap();
        let offset = (PATTERN as u64) * 3 - 10;
        let mut from_memory = vec![0; 30];
        pattern.read_at(offset, &mut from_memory).unwrap();
        let mut from_file = vec![0; 30];
        let file = pattern.file.as_ref().unwrap();
        file.read_exact_at(&mut from_file[..10], PATTERN as u64 - 10)
            .unwrap();
        pattern
            .file
            .as_ref()
            .unwrap()
            .read_exact_at(&mut from_file[10..], 0)
            .unwrap();
        assert_eq!(from_memory, from_file);
    }

    #[test]
    fn a_paced_space_reaches_little_ahead_of_its_rate() {
        const RATE: u64 = 1_000;
        let source = Endless::of_memory(vec![0; 10], None, None).paced(RATE);
        let begun = Instant::now();
        let mut offset = 0;
        for _ in 0..3 {
            let extent = source.wait(offset, Duration::from_millis(1));
            let earned = RATE * (begun.elapsed() + PACED_AHEAD).as_secs() + RATE;
            assert!(extent.end <= PACED_BYTES + earned, "{}", extent.end);
            assert!(extent.end >= PACED_BYTES && !extent.complete);
            offset = extent.end;
        }
    }

    #[test]
    fn a_byte_limit_ends_the_space_exactly() {
        let pattern = Endless::pattern(Some(AHEAD + 5), None).unwrap();
        let first = pattern.wait(0, Duration::ZERO);
        assert_eq!(
            first,
            Extent {
                end: AHEAD,
                complete: false
            }
        );
        let last = pattern.wait(AHEAD, Duration::ZERO);
        assert_eq!(
            last,
            Extent {
                end: AHEAD + 5,
                complete: true
            }
        );
    }

    #[test]
    fn a_time_limit_ends_the_space_where_it_stands() {
        let pattern = Endless::pattern(None, Some(Duration::ZERO)).unwrap();
        assert_eq!(
            pattern.wait(0, Duration::ZERO),
            Extent {
                end: 0,
                complete: true
            }
        );
        assert_eq!(pattern.finished(), Some(0));
    }

    #[test]
    fn a_file_begins_again_where_it_ends() {
        let file = haul_io::file::memory_file(b"abcdefg").unwrap();
        let source = Endless::of_file(file, 5, Some(100), None);
        let mut bytes = [0; 12];
        source.read_at(3, &mut bytes).unwrap();
        assert_eq!(&bytes, b"deabcdeabcde");
        assert!(source.memory_at(0).is_none());
        assert_eq!(
            source.file_at(8).map(|range| (range.position, range.len)),
            Some((3, 2))
        );
    }
}
