//! A stream between two processes: one uses it, the other drives its connection.
//!
//! The rings lie in memory that both map, behind a [`Page`] in which each tells how far it is. The
//! driving process ([`Served`]) has a [`Border`], which does at the engine's turns what a user of
//! the same process does himself; to the using process, [`Far`] does what the engine would. Whoever
//! reads an offset of the other process checks it, so that neither can make the other touch memory
//! that is not the stream's.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_io::notify::{has_hung_up, wait_readable};
use haul_io::ring::{Consumer, Producer};

use super::options::Ready;
use super::page::{self, Flags, Page};
use super::shared::{Shared, lock};
use crate::udt::LinkError;

/// What the process that drives a stream gives the one that uses it.
#[derive(Debug)]
pub struct Ends {
    /// The page and the rings.
    pub memory: OwnedFd,
    /// What [`Stream::as_fd`](super::Stream) is there.
    pub watch: OwnedFd,
    /// Wakes threads that wait.
    pub waiters: OwnedFd,
    /// Bytes of the ring of what is sent, whole pages.
    pub send_bytes: usize,
    /// Of that of what arrives.
    pub receive_bytes: usize,
}

/// The ends of the rings that belong to the user, in the process that drives the connection.
#[derive(Debug)]
pub(super) struct Border {
    pub(super) given: Producer,
    pub(super) come: Consumer,
}

impl Border {
    /// Takes over what the user has done.
    ///
    /// # Errors
    /// `InvalidData` for offsets that cannot be.
    pub(super) fn pull(&mut self, shared: &Shared) -> io::Result<()> {
        let Some(page) = &shared.page else {
            return Ok(());
        };
        // Before what was given, which is written first.
        let finishing = page.load(page::FINISHING) != 0;
        let given = page.load(page::GIVEN);
        let more = given.wrapping_sub(self.given.committed());
        let taken = page.load(page::TAKEN);
        let room = self.given.writable(usize::MAX).len() as u64;
        if more > room || taken > self.come.committed() {
            return Err(impossible());
        }
        self.given.commit(usize::try_from(more).unwrap_or(0));
        self.come.release(taken);
        shared.given.store(given, Ordering::Release);
        shared.taken.store(taken, Ordering::Release);
        if finishing {
            shared.finishing.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn impossible() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the other process of the stream has written offsets that cannot be",
    )
}

/// The ends of the rings that belong to the engine, in the process that uses the stream.
#[derive(Debug)]
pub(super) struct Far {
    ends: Mutex<(Consumer, Producer)>,
    /// Whether a thread that waits listens to the doorbell for all of them.
    listens: Mutex<bool>,
    changed: Condvar,
    /// Ends the stream at the other process when it is dropped.
    _keeper: Box<dyn Keeper>,
}

/// What keeps a stream of another process.
pub trait Keeper: Debug + Send + Sync {}

impl Far {
    pub(super) fn new(to_send: Consumer, arriving: Producer, keeper: Box<dyn Keeper>) -> Self {
        Self {
            ends: Mutex::new((to_send, arriving)),
            listens: Mutex::new(false),
            changed: Condvar::new(),
            _keeper: keeper,
        }
    }

    /// Takes over what the engine has done.
    pub(super) fn pull(&self, shared: &Shared) {
        let Some(page) = &shared.page else { return };
        let mut ends = lock(&self.ends);
        let (to_send, arriving) = &mut *ends;
        // Before the counts, which are written first.
        let flags = Flags::from_bits_truncate(page.load(page::FLAGS));
        let arrived = page.load(page::ARRIVED);
        let come = page.load(page::COME);
        let more = come.wrapping_sub(arriving.committed());
        let room = arriving.writable(usize::MAX).len() as u64;
        if arrived > to_send.committed() || more > room {
            // What is over first stays.
            let _ = shared.over.set(LinkError::System(impossible()));
            return;
        }
        to_send.release(arrived);
        arriving.commit(usize::try_from(more).unwrap_or(0));
        shared.arrived.store(arrived, Ordering::Release);
        shared.come.store(come, Ordering::Release);
        shared
            .noted
            .store(page.load(page::NOTED), Ordering::Release);
        for (flag, so) in [
            (Flags::OPEN, &shared.open),
            (Flags::PLAIN, &shared.plain),
            (Flags::FINISHED, &shared.finished),
            (Flags::PEER_FINISHED, &shared.peer_finished),
        ] {
            if flags.contains(flag) {
                so.store(true, Ordering::Release);
            }
        }
        if flags.contains(Flags::OVER) {
            let _ = shared.over.get_or_init(|| page.over());
        }
    }

    fn ready(&self, shared: &Shared) -> Ready {
        self.pull(shared);
        shared.ready()
    }

    /// As [`super::Stream::poll`].
    pub(super) fn poll(&self, shared: &Shared, wanted: Ready) -> Ready {
        let Some(page) = &shared.page else {
            return Ready::empty();
        };
        page.watch.clear();
        page.watch_for(wanted.bits());
        let mut ready = self.ready(shared) & wanted;
        if ready.is_empty() && is_gone(page) {
            end(shared);
            ready = shared.ready() & wanted;
        }
        if !ready.is_empty() {
            page.watch_for(0);
        }
        ready
    }

    /// As [`super::Stream::wait`]. One of the threads that wait listens, and tells the others.
    pub(super) fn wait(&self, shared: &Shared, wanted: Ready, timeout: Option<Duration>) -> Ready {
        let Some(page) = &shared.page else {
            return Ready::empty();
        };
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut listens = lock(&self.listens);
        loop {
            page.wait_for(wanted.bits());
            let ready = self.ready(shared) & wanted;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !ready.is_empty() || left == Some(Duration::ZERO) {
                return ready;
            }
            if *listens {
                listens = match left {
                    None => self.changed.wait(listens),
                    Some(left) => {
                        let waited = self.changed.wait_timeout(listens, left);
                        waited
                            .map(|(listens, _)| listens)
                            .map_err(|error| PoisonError::new(error.into_inner().0))
                    }
                }
                .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            *listens = true;
            drop(listens);
            let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
            let waited = wait_readable([page.waiters.as_fd()], left_ns);
            page.waiters.clear();
            if waited.is_err() || is_gone(page) {
                end(shared);
            }
            listens = lock(&self.listens);
            *listens = false;
            self.changed.notify_all();
        }
    }
}

/// Whether the other process has ended.
fn is_gone(page: &Page) -> bool {
    has_hung_up(page.waiters.as_fd()).unwrap_or(true)
}

fn end(shared: &Shared) {
    let gone = LinkError::Told("the engine has ended".to_owned());
    // What is over first stays.
    let _ = shared.over.set(gone);
}
