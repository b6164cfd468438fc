//! What the threads that use a stream and its engine tell each other.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use haul_io::wake::{Readiness, SleepWord};

use super::options::Ready;
use super::page::{self, Flags, Page};
use crate::udt::LinkError;

/// What the threads that use a stream and its engine tell each other. Offsets of the stream; each
/// has one writer.
#[derive(Debug)]
pub(super) struct Shared {
    /// Given to be sent.
    pub(super) given: AtomicU64,
    /// `arrived <= given`
    pub(super) arrived: AtomicU64,
    /// Come, in order.
    pub(super) come: AtomicU64,
    /// `taken <= come`
    pub(super) taken: AtomicU64,
    /// As much of `taken` as the engine has seen.
    pub(super) noted: AtomicU64,
    pub(super) send_bytes: u64,
    pub(super) receive_bytes: u64,
    pub(super) open: AtomicBool,
    /// The peer knows only the end of both directions.
    pub(super) plain: AtomicBool,
    /// Nothing more will be given.
    pub(super) finishing: AtomicBool,
    /// The peer has that end, and all before it.
    pub(super) finished: AtomicBool,
    /// The peer's end has come, behind all of `come`.
    pub(super) peer_finished: AtomicBool,
    /// Nobody uses the stream any more.
    pub(super) left: AtomicBool,
    pub(super) over: OnceLock<LinkError>,
    /// Whether the engine sleeps, where there is no page for that.
    asleep: AtomicU64,
    pub(super) readiness: Readiness,
    /// Where the two sides are processes of their own.
    pub(super) page: Option<Page>,
}

impl Shared {
    pub(super) fn new(
        send_bytes: usize,
        receive_bytes: usize,
        page: Option<Page>,
    ) -> io::Result<Self> {
        Ok(Self {
            given: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            come: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            send_bytes: send_bytes as u64,
            receive_bytes: receive_bytes as u64,
            open: AtomicBool::new(false),
            plain: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            peer_finished: AtomicBool::new(false),
            left: AtomicBool::new(false),
            over: OnceLock::new(),
            asleep: AtomicU64::new(0),
            readiness: Readiness::new()?,
            page,
        })
    }

    pub(super) fn ready(&self) -> Ready {
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        let flag = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let (open, over) = (flag(&self.open), self.over.get().is_some());
        let arrived = load(&self.arrived);
        let under_way = load(&self.given).saturating_sub(arrived);
        let finishing = flag(&self.finishing);
        let taken = load(&self.taken);
        let set = [
            (Ready::OPEN, open),
            (
                Ready::READABLE,
                over || flag(&self.peer_finished) || load(&self.come) > taken,
            ),
            (
                Ready::WRITABLE,
                open && !over
                    && !finishing
                    && self.send_bytes - under_way.min(self.send_bytes) >= self.send_bytes / 8,
            ),
            (
                Ready::SENT,
                open && under_way == 0 && (!finishing || flag(&self.finished)),
            ),
            (Ready::OVER, over),
        ];
        let so = set.into_iter().filter(|(_, so)| *so);
        so.fold(Ready::empty(), |all, (one, _)| all | one)
    }

    /// Both ends have everything of each other.
    pub(super) fn is_complete(&self) -> bool {
        let flag = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let taken = match &self.page {
            None => self.taken.load(Ordering::Acquire),
            Some(page) => page.load(page::TAKEN),
        };
        flag(&self.finished)
            && flag(&self.peer_finished)
            && taken == self.come.load(Ordering::Acquire)
            && self.over.get().is_none()
    }

    /// Wakes those who wait for what is so now.
    pub(super) fn tell(&self) {
        self.readiness.notify(|| self.ready().bits());
        if let Some(page) = &self.page {
            self.publish(page);
            page.rouse(|| self.ready().bits());
        }
    }

    /// Writes what the engine knows for another process.
    fn publish(&self, page: &Page) {
        for (at, count) in [
            (page::ARRIVED, &self.arrived),
            (page::COME, &self.come),
            (page::NOTED, &self.noted),
        ] {
            page.store(at, count.load(Ordering::Relaxed));
        }
        let mut flags = Flags::empty();
        for (flag, so) in [
            (Flags::OPEN, &self.open),
            (Flags::PLAIN, &self.plain),
            (Flags::FINISHED, &self.finished),
            (Flags::PEER_FINISHED, &self.peer_finished),
        ] {
            flags.set(flag, so.load(Ordering::Relaxed));
        }
        if let Some(over) = self.over.get() {
            page.put_over(over);
            flags |= Flags::OVER;
        }
        // Behind all that it tells of.
        page.store(page::FLAGS, flags.bits());
    }

    /// Whether the engine sleeps.
    pub(super) fn asleep(&self) -> SleepWord<'_> {
        match &self.page {
            None => SleepWord(&self.asleep),
            Some(page) => page.asleep(),
        }
    }

    /// A user of the stream has given so many bytes.
    pub(super) fn note_given(&self, count: u64) {
        self.note(&self.given, page::GIVEN, count);
    }

    /// A user of the stream has received so many bytes.
    pub(super) fn note_taken(&self, count: u64) {
        self.note(&self.taken, page::TAKEN, count);
    }

    fn note(&self, own: &AtomicU64, word: usize, count: u64) {
        own.store(count, Ordering::Release);
        if let Some(page) = &self.page {
            page.store(word, count);
        }
    }

    /// A user of the stream gives nothing more.
    pub(super) fn finish(&self) {
        self.finishing.store(true, Ordering::Release);
        if let Some(page) = &self.page {
            page.store(page::FINISHING, 1);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
