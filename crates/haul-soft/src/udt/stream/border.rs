//! A stream between two processes: one uses it, the other drives its connection.
//!
//! The rings lie in memory that both map, behind a [`Page`] in which each tells how far it is. The
//! driving process ([`Served`](super::Served)) has a [`Border`], which does at the engine's turns
//! what a user of the same process does himself; to the using process, [`Far`] does what the engine
//! would. Whoever reads an offset of the other process checks it, so that neither can make the
//! other touch memory that is not the stream's.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_io::notify::{has_hung_up, wait_readable};
use haul_io::ring::{Consumer, Producer, mirror_ring_at, page_bytes};

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

/// The rings behind the page: of what is sent, of what arrives.
pub(super) fn map_rings(
    memory: BorrowedFd<'_>,
    send_bytes: usize,
    receive_bytes: usize,
) -> io::Result<[(Producer, Consumer); 2]> {
    let first = page_bytes() as u64;
    let second = first + send_bytes as u64;
    Ok([
        mirror_ring_at(memory, first, send_bytes)?,
        mirror_ring_at(memory, second, receive_bytes)?,
    ])
}

/// Bytes of a page and two rings.
pub(super) fn memory_bytes(send_bytes: usize, receive_bytes: usize) -> Option<usize> {
    page_bytes()
        .checked_add(send_bytes)?
        .checked_add(receive_bytes)
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
        let noted = page.load(page::NOTED);
        let taken = shared.taken.load(Ordering::Acquire);
        if arrived > to_send.committed() || more > room || noted > taken {
            // What is over first stays.
            let _ = shared.over.set(LinkError::System(impossible()));
            return;
        }
        to_send.release(arrived);
        arriving.commit(usize::try_from(more).unwrap_or(0));
        shared.arrived.store(arrived, Ordering::Release);
        shared.come.store(come, Ordering::Release);
        shared.noted.store(noted, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use haul_io::notify::Doorbell;
    use haul_io::ring::mirror_ring;
    use haul_slab::SharedMemory;

    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl Keeper for Nobody {}

    const RING: usize = 8_192;

    fn shared() -> (SharedMemory, Shared) {
        let memory = SharedMemory::create(1).unwrap();
        let [watch, waiters] = [(); 2].map(|()| Doorbell::pair().unwrap().0);
        let page = Page::new(memory.clone(), Arc::new(watch), waiters);
        let shared = Shared::new(RING, RING, Some(page)).unwrap();
        (memory, shared)
    }

    struct Dice(u64);

    impl Dice {
        fn next(&mut self) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            self.0 >> 33
        }

        /// Mostly a small step from `at`; else one back, and anything.
        fn offset(&mut self, at: u64) -> u64 {
            let dice = self.next();
            match dice % 32 {
                0 => dice.rotate_left(40),
                1 => at.wrapping_sub(dice % 100),
                2 => u64::MAX - dice % 3,
                _ => at + dice % 3_000,
            }
        }
    }

    #[test]
    fn whatever_a_user_writes_is_refused_or_inside_the_rings() {
        let mut dice = Dice(0x5eed);
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..2_000 {
            let (memory, shared) = shared();
            let (given, mut to_send) = mirror_ring(RING).unwrap();
            let (mut arriving, come) = mirror_ring(RING).unwrap();
            let mut border = Border { given, come };
            arriving.commit(5_000);
            for _ in 0..20 {
                for (at, offset) in [
                    (page::GIVEN, dice.offset(to_send.committed())),
                    (page::TAKEN, dice.next() % 5_100),
                    (page::FINISHING, dice.next()),
                ] {
                    memory.words()[at].store(offset, Ordering::Relaxed);
                }
                if border.pull(&shared).is_err() {
                    refused += 1;
                    break;
                }
                taken += 1;
                let held = to_send.committed() - to_send.released();
                assert!(held <= RING as u64);
                assert!(border.come.released() <= arriving.committed());
                assert_eq!(shared.given.load(Ordering::Relaxed), to_send.committed());
                to_send.release(to_send.released() + held / 2);
            }
        }
        assert!(taken > 500 && refused > 500, "{taken} {refused}");
    }

    #[test]
    fn whatever_an_engine_writes_is_refused_or_inside_the_rings() {
        let mut dice = Dice(0x5eed);
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..2_000 {
            let (memory, shared) = shared();
            let (mut outgoing, to_send) = mirror_ring(RING).unwrap();
            let (arriving, mut incoming) = mirror_ring(RING).unwrap();
            let far = Far::new(to_send, arriving, Box::new(Nobody));
            outgoing.commit(5_000);
            for _ in 0..20 {
                for at in page::FLAGS..page::FLAGS + 100 {
                    let flags = dice.next() & !Flags::OVER.bits();
                    memory.words()[at].store(flags, Ordering::Relaxed);
                }
                for (at, offset) in [
                    (page::ARRIVED, dice.next() % 5_100),
                    (page::COME, dice.offset(incoming.committed())),
                    (page::NOTED, u64::from(dice.next().is_multiple_of(64))),
                ] {
                    memory.words()[at].store(offset, Ordering::Relaxed);
                }
                far.pull(&shared);
                let _ = shared.page.as_ref().unwrap().over().to_string();
                if shared.over.get().is_some() {
                    refused += 1;
                    break;
                }
                taken += 1;
                assert!(outgoing.released() <= 5_000);
                // Nothing was received so far.
                assert_eq!(shared.noted.load(Ordering::Relaxed), 0);
                let held = incoming.committed() - incoming.released();
                assert!(held <= RING as u64);
                assert_eq!(shared.come.load(Ordering::Relaxed), incoming.committed());
                incoming.release(incoming.released() + held / 2);
            }
        }
        assert!(taken > 500 && refused > 500, "{taken} {refused}");
    }
}
