//! The interface of engines, and their shared state.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use haul_io::clock::thread_cpu;

use super::account::{Datagrams, Sample, Sent};
use super::failure::Failure;
use super::plan::PathPlan;
use super::store::{SinkStore, SourceStore};
use super::tally::{Budget, Tally};

/// State shared by the threads of a run.
pub(crate) struct StreamRun<'a> {
    pub(crate) plan: &'a PathPlan,
    pub(crate) budget: &'a Budget,
    pub(crate) tally: &'a Tally,
    /// The sender's count of sent data, once reported.
    pub(crate) announced: &'a Announced,
    /// Of datagrams.
    pub(crate) datagrams: &'a Mutex<Option<Datagrams>>,
}

/// The sender's report that it is done.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    done: AtomicBool,
    datagrams: AtomicU64,
}

impl Announced {
    pub(crate) fn set(&self, datagrams: u64) {
        self.datagrams.store(datagrams, Ordering::Relaxed);
        self.done.store(true, Ordering::Release);
    }

    /// How many datagrams there were.
    pub(crate) fn datagrams(&self) -> Option<u64> {
        let done = self.done.load(Ordering::Acquire);
        done.then(|| self.datagrams.load(Ordering::Relaxed))
    }
}

/// Connected streams. One thread sends or receives, another may sample or cancel.
pub(crate) trait StreamSet: Sync {
    /// Sends until the budget is spent and the transport has taken all.
    fn send(&self, run: &StreamRun<'_>, source: &SourceStore) -> Result<Streams<Sent>, Failure>;

    /// Receives until the sender is done.
    fn receive(&self, run: &StreamRun<'_>, sink: &SinkStore) -> Result<Streams<()>, Failure>;

    /// Makes `send` and `receive` end soon, with any error.
    fn cancel(&self);

    /// The sender has reported that it is done ([`StreamRun::announced`]).
    fn peer_sent(&self) {}

    /// Payload that the peer has acknowledged so far, in order or not, bytes; none where the
    /// receiver itself counts it as it comes.
    fn acknowledged(&self) -> Option<u64> {
        None
    }

    /// How the path looks to the sender.
    fn sample(&self) -> Sample;
}

/// The outcome of each stream, and the processor time of the busiest thread, nanoseconds.
#[derive(Debug)]
pub(crate) struct Streams<T> {
    pub(crate) parts: Vec<T>,
    pub(crate) thread_ns: u64,
}

impl fmt::Debug for StreamRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamRun")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// Opens all streams at once: one after another, each would take its round trips. The first error
/// is that of the first stream that has one.
pub(crate) fn open_all<S: Send, E: Send>(
    count: u16,
    open: impl Fn(u16) -> Result<S, E> + Sync,
    no_thread: fn(io::Error) -> E,
) -> Result<Vec<S>, E> {
    std::thread::scope(|scope| {
        let start = |index| {
            let open = &open;
            let builder = std::thread::Builder::new().name("haul-bench".into());
            builder.spawn_scoped(scope, move || open(index))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        let join = |thread: io::Result<std::thread::ScopedJoinHandle<'_, _>>| {
            let panicked = |_| Err(no_thread(io::Error::other("a thread has failed")));
            thread.map_err(no_thread)?.join().unwrap_or_else(panicked)
        };
        threads.into_iter().map(join).collect()
    })
}

/// Works on every stream on a thread of its own. The first error has `cancel` end the others, and
/// is the error.
pub(crate) fn each<S: Sync, T: Send>(
    streams: &[S],
    cancel: impl Fn() + Sync,
    work: impl Fn(usize, &S) -> Result<T, Failure> + Sync,
) -> Result<Streams<T>, Failure> {
    let first_error = Mutex::new(None);
    let fail = |error| {
        let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        drop(first);
        cancel();
    };
    let busiest = Mutex::new(0);
    let parts = std::thread::scope(|scope| {
        let start = |(index, stream)| {
            let (work, busiest, fail) = (&work, &busiest, &fail);
            let run = move || {
                let result = work(index, stream).map_err(fail).ok();
                let used = thread_cpu().unwrap_or_default().total_ns();
                let mut busiest = busiest.lock().unwrap_or_else(PoisonError::into_inner);
                *busiest = used.max(*busiest);
                result
            };
            let builder = std::thread::Builder::new().name("haul-bench".into());
            let thread = builder.spawn_scoped(scope, run).map_err(Failure::System);
            thread.map_err(fail).ok()
        };
        let threads: Vec<_> = streams.iter().enumerate().map(start).collect();
        // A panic has already printed its message.
        let joined = threads.into_iter().map(|thread| thread?.join().ok()?);
        joined.collect::<Vec<Option<T>>>()
    });
    let first_error = first_error.into_inner();
    match first_error.unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(Streams {
            parts: parts.into_iter().flatten().collect(),
            thread_ns: busiest.into_inner().unwrap_or_else(PoisonError::into_inner),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_opened_in_their_order_or_none_is() {
        let all = open_all(5, Ok, |error| error).unwrap();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        let open = |index: u16| {
            if index < 3 {
                return Ok(index);
            }
            Err(io::Error::other(index.to_string()))
        };
        assert_eq!(
            open_all(5, open, |error| error).unwrap_err().to_string(),
            "3"
        );
    }

    #[test]
    fn the_first_error_ends_the_others_and_is_the_error() {
        let cancelled = AtomicBool::new(false);
        let work = |index: usize, _: &()| {
            if index == 1 {
                return Err(Failure::Sink(io::ErrorKind::StorageFull.into()));
            }
            while !cancelled.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Err::<(), _>(Failure::Path(io::ErrorKind::BrokenPipe.into()))
        };
        let cancel = || cancelled.store(true, Ordering::Relaxed);
        let error = each(&[(), (), ()], cancel, work).unwrap_err();
        assert!(matches!(error, Failure::Sink(_)), "{error:?}");
        let all = each(&[5, 6], || {}, |index, stream| Ok(index + stream)).unwrap();
        assert_eq!(all.parts, [5, 7]);
    }
}
