//! Memory to memory: the channels without files, counted at the receiving end.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select, unbounded};
use haul_soft::bulk::{Extent, FileRange, Sink, Source};

use super::{Carrier, CarrierEnd, Meter, account_of, channel_fault, spawn};
use crate::channel::Opening;
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::lock;
use crate::wire::{Bench, BenchEnd, BenchReport, Complete, Message};

/// The pattern that is sent over and over, bytes: stays in a processor's cache, as other tools' buffers do.
const PATTERN: usize = 512 << 10;
/// How far the space reaches ahead of what the channel has taken while time is not up, bytes.
const AHEAD: u64 = 4 << 20;
/// The receiver counts by spans of this length.
const INTERVAL: Duration = Duration::from_millis(100);
/// The longest measurement.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(3600);
/// Where received bytes are placed: `SHARDS` pieces of `SHARD` bytes, used round.
const SHARD: usize = 128 << 10;
const SHARDS: usize = 4;
/// How often an end looks whether it is done.
const TICK: Duration = Duration::from_millis(20);

/// What the sending end knows when all is done.
#[derive(Debug)]
pub(crate) struct SentBench {
    /// The receiver's count.
    pub(crate) report: BenchReport,
    /// What this end spent.
    pub(crate) spent: Complete,
}

/// What the receiving end knows when all is done.
#[derive(Debug)]
pub(crate) struct ReceivedBench {
    /// This end's count.
    pub(crate) report: BenchReport,
    /// What the sender says that it spent.
    pub(crate) peer: Complete,
}

/// Sends the pattern.
pub(crate) fn send(link: &Link, bench: &Bench, opening: Opening) -> Result<SentBench, Fault> {
    let meter = Meter::start();
    let time = bench.time_ms.map(Duration::from_millis);
    let source = Pattern::new(bench.bytes, time)
        .map_err(|error| Fault::new(Code::Other, format!("cannot make a pattern: {error}")))?;
    let result = with_channel(
        link,
        opening,
        |channel| channel.send(&source),
        |carrier, ended| {
            let mut announced = false;
            let mut ended = ended.clone();
            loop {
                select! {
                    recv(link.incoming()) -> message => {
                        match message.map_err(|_| Fault::protocol("no control connection"))?? {
                            Message::BenchReport(report) => {
                                let spent = meter.spent(source.taken(), 0, carrier.stats());
                                link.send(&Message::Complete(spent))?;
                                return Ok(SentBench { report, spent });
                            }
                            other => return Err(other.misplaced()),
                        }
                    }
                    recv(ended) -> end => {
                        check_end(link, end.ok())?;
                        ended = crossbeam_channel::never();
                    }
                    default(TICK) => {}
                }
                if let (false, Some(end)) = (announced, source.finished()) {
                    link.send(&Message::BenchEnd(BenchEnd { end }))?;
                    announced = true;
                }
            }
        },
    );
    source.stop();
    result
}

/// Receives and counts.
pub(crate) fn receive(link: &Link, opening: Opening) -> Result<ReceivedBench, Fault> {
    let meter = Meter::start();
    let counter = Counter::new();
    with_channel(
        link,
        opening,
        |channel| channel.receive(&counter),
        |carrier, ended| {
            let mut end = None;
            let mut ended = ended.clone();
            while end.is_none_or(|end| counter.bytes() < end) {
                select! {
                    recv(link.incoming()) -> message => {
                        match message.map_err(|_| Fault::protocol("no control connection"))?? {
                            Message::BenchEnd(message) => end = Some(message.end),
                            other => return Err(other.misplaced()),
                        }
                    }
                    recv(ended) -> result => {
                        check_end(link, result.ok())?;
                        ended = crossbeam_channel::never();
                    }
                    default(TICK) => {}
                }
            }
            let spent = meter.spent(counter.bytes(), 0, carrier.stats());
            let report = counter.report(spent);
            link.send(&Message::BenchReport(report.clone()))?;
            match link.receive()? {
                Message::Complete(peer) => Ok(ReceivedBench { report, peer }),
                other => Err(other.misplaced()),
            }
        },
    )
}

fn check_end(link: &Link, end: Option<CarrierEnd>) -> Result<(), Fault> {
    match end {
        None | Some(CarrierEnd::Ran(Ok(()))) => Ok(()),
        Some(CarrierEnd::Ran(Err(error))) => Err(account_of(link, channel_fault(&error))),
        Some(CarrierEnd::NotOpened(fault)) => Err(account_of(link, fault)),
    }
}

/// Runs the channel on a thread beside the conversation and ends both together.
fn with_channel<T>(
    link: &Link,
    opening: Opening,
    work: impl FnOnce(&dyn crate::channel::Channel) -> io::Result<()> + Send,
    converse: impl FnOnce(&Carrier, &Receiver<CarrierEnd>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let carrier = Carrier::new(&opening);
    std::thread::scope(|scope| {
        let (sender, ended) = unbounded();
        let channel = &carrier;
        let run = move || {
            // The conversation may be over.
            let _ = sender.send(channel.run(opening, work));
        };
        let result = spawn(scope, "haul-bench", run).and_then(|()| converse(&carrier, &ended));
        if let Err(fault) = &result {
            link.report(fault);
        }
        carrier.close();
        result
    })
}

/// An endless pattern, cut off by a number of bytes or by time.
struct Pattern {
    memory: Vec<u8>,
    /// The same bytes as a file, for channels that hand files to the kernel.
    file: File,
    bytes: Option<u64>,
    time: Option<Duration>,
    begun: OnceLock<Instant>,
    state: Mutex<Reach>,
}

struct Reach {
    end: u64,
    complete: bool,
    taken: u64,
}

impl Pattern {
    fn new(bytes: Option<u64>, time: Option<Duration>) -> io::Result<Self> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut memory = Vec::with_capacity(PATTERN);
        while memory.len() < PATTERN {
            // xorshift64: nothing on the way can compress it.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            memory.extend_from_slice(&state.to_le_bytes());
        }
        let file = haul_io::file::memory_file(&memory)?;
        Ok(Self {
            memory,
            file,
            bytes,
            time,
            begun: OnceLock::new(),
            state: Mutex::new(Reach {
                end: 0,
                complete: false,
                taken: 0,
            }),
        })
    }

    /// The end of the space once it is final.
    fn finished(&self) -> Option<u64> {
        let reach = lock(&self.state);
        reach.complete.then_some(reach.end)
    }

    fn taken(&self) -> u64 {
        lock(&self.state).taken
    }

    fn stop(&self) {
        lock(&self.state).complete = true;
    }
}

impl Source for Pattern {
    fn wait(&self, offset: u64, _timeout: Duration) -> Extent {
        let begun = *self.begun.get_or_init(Instant::now);
        let mut reach = lock(&self.state);
        reach.taken = reach.taken.max(offset);
        if !reach.complete {
            let limit = self.bytes.unwrap_or(u64::MAX);
            reach.complete = self.time.is_some_and(|time| begun.elapsed() >= time);
            if !reach.complete {
                reach.end = reach.end.max(offset.saturating_add(AHEAD)).min(limit);
                reach.complete = reach.end == limit;
            }
        }
        Extent {
            end: reach.end,
            complete: reach.complete,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut at = position(offset);
        let mut buf = buf;
        while !buf.is_empty() {
            let piece = (PATTERN - at).min(buf.len());
            let (now, rest) = buf.split_at_mut(piece);
            now.copy_from_slice(&self.memory[at..at + piece]);
            (buf, at) = (rest, 0);
        }
        Ok(())
    }

    fn memory_at(&self, offset: u64) -> Option<&[u8]> {
        self.memory.get(position(offset)..)
    }

    fn file_at(&self, offset: u64) -> Option<FileRange<'_>> {
        let at = position(offset);
        Some(FileRange {
            fd: self.file.as_fd(),
            position: at as u64,
            len: (PATTERN - at) as u64,
        })
    }
}

fn position(offset: u64) -> usize {
    usize::try_from(offset % PATTERN as u64).unwrap_or(0)
}

/// Places into memory and counts, in all and by time.
struct Counter {
    memory: Vec<Mutex<Box<[u8]>>>,
    first: OnceLock<Instant>,
    bytes: AtomicU64,
    last_ns: AtomicU64,
    intervals: Vec<AtomicU64>,
}

impl Counter {
    fn new() -> Self {
        let count = TIME_MAX.as_millis() / INTERVAL.as_millis();
        let shard = || Mutex::new(vec![0; SHARD].into_boxed_slice());
        Self {
            memory: (0..SHARDS).map(|_| shard()).collect(),
            first: OnceLock::new(),
            bytes: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            intervals: (0..count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn report(&self, spent: Complete) -> BenchReport {
        let counts: Vec<u64> = self
            .intervals
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let used = counts
            .iter()
            .rposition(|count| *count > 0)
            .map_or(0, |last| last + 1);
        BenchReport {
            bytes: self.bytes(),
            duration_us: self.last_ns.load(Ordering::Relaxed) / 1000,
            intervals: counts[..used].to_vec(),
            spent,
        }
    }

    fn copy(&self, mut offset: u64, mut bytes: &[u8]) {
        const ROUND: u64 = (SHARD * SHARDS) as u64;
        while !bytes.is_empty() {
            let at = usize::try_from(offset % ROUND).unwrap_or(0);
            let inside = at % SHARD;
            let piece = (SHARD - inside).min(bytes.len());
            let (now, rest) = bytes.split_at(piece);
            lock(&self.memory[at / SHARD])[inside..inside + piece].copy_from_slice(now);
            offset += piece as u64;
            bytes = rest;
        }
    }
}

impl Sink for Counter {
    fn place(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for part in parts {
            self.copy(at, part);
            at = at
                .checked_add(part.len() as u64)
                .ok_or(io::ErrorKind::InvalidInput)?;
        }
        let since = self.first.get_or_init(Instant::now).elapsed();
        let interval =
            usize::try_from(since.as_nanos() / INTERVAL.as_nanos()).unwrap_or(usize::MAX);
        let len = at - offset;
        if let Some(count) = self.intervals.get(interval.min(self.intervals.len() - 1)) {
            count.fetch_add(len, Ordering::Relaxed);
        }
        let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.fetch_max(since_ns, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_reads_the_same_from_memory_and_file() {
        use std::os::unix::fs::FileExt;
        let pattern = Pattern::new(Some(1 << 30), None).unwrap();
        let offset = (PATTERN as u64) * 3 - 10;
        let mut from_memory = vec![0; 30];
        pattern.read_at(offset, &mut from_memory).unwrap();
        let mut from_file = vec![0; 30];
        pattern
            .file
            .read_exact_at(&mut from_file[..10], PATTERN as u64 - 10)
            .unwrap();
        pattern.file.read_exact_at(&mut from_file[10..], 0).unwrap();
        assert_eq!(from_memory, from_file);
    }

    #[test]
    fn a_byte_limit_ends_the_space_exactly() {
        let pattern = Pattern::new(Some(AHEAD + 5), None).unwrap();
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
        let pattern = Pattern::new(None, Some(Duration::ZERO)).unwrap();
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
    fn bytes_are_counted_in_the_interval_in_which_they_came() {
        let counter = Counter::new();
        counter
            .place(0, &[IoSlice::new(&[1; 1000]), IoSlice::new(&[2; 24])])
            .unwrap();
        let report = counter.report(Complete::default());
        assert_eq!((report.bytes, report.intervals), (1024, vec![1024]));
    }
}
