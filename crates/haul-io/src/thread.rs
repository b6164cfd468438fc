//! Threads that wait at a poller until they are dropped; the processors of threads.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::poller::{Poller, Waker};

/// A thread. Dropping it stops it and waits for its end.
#[derive(Debug)]
pub struct Thread {
    stop: Stop,
    waker: Waker,
    handle: Option<JoinHandle<()>>,
}

/// Whether a thread is to stop; it asks each time its poller wakes.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns whether the thread is to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Thread {
    /// Starts a thread that waits at `poller`.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn spawn(
        name: &str,
        poller: Poller,
        run: impl FnOnce(Poller, Stop) + Send + 'static,
    ) -> io::Result<Self> {
        Self::spawn_woken(name, poller.waker(), move |stop| run(poller, stop))
    }

    /// Starts a thread whose wait `waker` ends.
    ///
    /// # Errors
    /// If the system has no thread.
    pub fn spawn_woken(
        name: &str,
        waker: Waker,
        run: impl FnOnce(Stop) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Stop::default();
        let own = stop.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let handle = Some(thread.spawn(move || run(own))?);
        Ok(Self {
            stop,
            waker,
            handle,
        })
    }
}

impl Thread {
    /// Returns whether the thread has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|handle| !handle.is_finished())
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(handle) = self.handle.take() {
            // A panic has been reported already.
            let _ = handle.join();
        }
    }
}

/// Processors of a thread, read from a list like `1`, `2,3` or `4-7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpus(BTreeSet<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| is_number);
            number.filter(|number| *number < CpuSet::MAX_CPU)
        };
        let range = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(number(from)?..=number(to)?).filter(|range| !range.is_empty())
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let ranges = ranges.ok_or_else(|| {
            let most = CpuSet::MAX_CPU - 1;
            format!("'{text}' names no processors: write 1, 2,3 or 4-7, none above {most}")
        })?;
        Ok(Self(ranges.into_iter().flatten().collect()))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Runs `start` on `cpus`, where the threads that it starts stay; then this thread returns to its
/// own processors. Without `cpus` it only runs it.
///
/// # Errors
/// Those of `start`; `InvalidInput` if this process may not use all of `cpus`.
pub fn start_on<T>(cpus: Option<&Cpus>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some(cpus) = cpus else {
        return start();
    };
    let own = sched_getaffinity(None)?;
    let mut wanted = CpuSet::new();
    for cpu in &cpus.0 {
        wanted.set(*cpu);
    }
    // The kernel leaves out processors that this process may not use, and refuses if none is left.
    let moved = sched_setaffinity(None, &wanted).and_then(|()| sched_getaffinity(None));
    let started = match moved {
        Ok(now) if now.count() == wanted.count() => start(),
        Ok(_) | Err(Errno::INVAL) => {
            let own = Cpus(
                (0..CpuSet::MAX_CPU)
                    .filter(|cpu| own.is_set(*cpu))
                    .collect(),
            );
            let text =
                format!("this process may not use all of the processors {cpus}: it has {own}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
        Err(error) => Err(error.into()),
    };
    // They were its own a moment ago.
    let _ = sched_setaffinity(None, &own);
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_a_list_of_numbers_and_ranges() {
        let cpus = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.to_string());
        assert_eq!(cpus("1"), Ok("1".into()));
        assert_eq!(cpus("7,2-4,3"), Ok("2,3,4,7".into()));
        for bad in [
            "", ",", "1,", "a", "-1", "+1", "3-2", "1-", "0x1", "1024", "1 ",
        ] {
            let error = cpus(bad).unwrap_err();
            assert!(error.contains("write 1, 2,3 or 4-7"), "{bad}: {error}");
        }
    }

    #[test]
    fn threads_stay_where_they_were_started_and_their_starter_does_not() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU)
            .find(|cpu| before.is_set(*cpu))
            .unwrap();
        let cpus = Cpus([first].into());
        let start = || Ok(std::thread::spawn(|| sched_getaffinity(None).unwrap()));
        let theirs = start_on(Some(&cpus), start).unwrap().join().unwrap();
        assert!(theirs.count() == 1 && theirs.is_set(first));
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());

        let absent = CpuSet::MAX_CPU - 1;
        let cpus = Cpus([first, absent].into());
        let error = start_on(Some(&cpus), || Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&absent.to_string()), "{error}");
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
    }
}
