//! Measures channels from memory to memory, counted at the receiving end.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select, unbounded};
use haul_soft::bulk::Sink;

use super::{Carrier, CarrierEnd, Meter, account_of, channel_fault, spawn};
use crate::channel::{Channel, ChannelError, Opening};
use crate::endless::Endless;
use crate::fault::{Code, Fault};
use crate::link::Link;
use crate::lock;
use crate::report::{Event, Observer};
use crate::wire::{Bench, BenchEnd, BenchReport, Complete, Message};

/// Length of the receiver's intervals.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum length of a measurement.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(3600);
/// Received bytes are placed in `SHARDS` buffers of `SHARD` bytes, used as a ring.
const SHARD: usize = 128 << 10;
const SHARDS: usize = 4;
/// How often an end checks whether it is done.
const TICK: Duration = Duration::from_millis(20);

/// Result of the sending end.
#[derive(Debug)]
pub(crate) struct SentBench {
    /// The receiver's count.
    pub(crate) report: BenchReport,
    /// Counters of this end.
    pub(crate) spent: Complete,
}

/// Result of the receiving end.
#[derive(Debug)]
pub(crate) struct ReceivedBench {
    /// This end's count.
    pub(crate) report: BenchReport,
    /// The sender's counters.
    pub(crate) peer: Complete,
}

/// Sends the pattern.
pub(crate) fn send(
    link: &Link,
    bench: &Bench,
    opening: Opening,
    observer: &dyn Observer,
) -> Result<SentBench, Fault> {
    let meter = Meter::start();
    let time = bench.time_ms.map(Duration::from_millis);
    let source = Endless::pattern(bench.bytes, time)
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
                    default(TICK) => {
                        let bytes = carrier.moved(source.taken());
                        observer.event(&Event::Measured { bytes });
                    }
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
pub(crate) fn receive(
    link: &Link,
    opening: Opening,
    observer: &dyn Observer,
) -> Result<ReceivedBench, Fault> {
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
                    default(TICK) => {
                        let bytes = counter.bytes();
                        observer.event(&Event::Measured { bytes });
                    }
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

pub(super) fn check_end(link: &Link, end: Option<CarrierEnd>) -> Result<(), Fault> {
    match end {
        None | Some(CarrierEnd::Ran(Ok(()))) => Ok(()),
        Some(CarrierEnd::Ran(Err(error))) => Err(channel_fault(link, &error)),
        Some(CarrierEnd::NotOpened(fault)) => Err(account_of(link, fault)),
    }
}

/// Runs the channel on a thread beside the conversation and ends both together.
pub(super) fn with_channel<T>(
    link: &Link,
    opening: Opening,
    work: impl FnOnce(&dyn Channel) -> Result<(), ChannelError> + Send,
    converse: impl FnOnce(&Carrier, &Receiver<CarrierEnd>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let carrier = Carrier::new(&opening);
    std::thread::scope(|scope| {
        let (sender, ended) = unbounded();
        let channel = &carrier;
        let run = move || {
            // The conversation may have ended.
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
                .ok_or_else(|| Fault::protocol("the peer sent data beyond all offsets"))
                .map_err(io::Error::other)?;
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

    fn may_block(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
