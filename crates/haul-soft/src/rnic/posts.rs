//! Send work requests on their way to an engine that alone drives: applications leave them here
//! without the shard's baton.

use std::sync::Mutex;

use haul_io::wake::SleepFlag;
use haul_verbs::{Data, SendWr};

use super::lock::lock;

/// The work requests that a shard's engine has not taken yet: of each queue pair no more than its
/// queues have places.
#[derive(Debug, Default)]
pub(super) struct Posts {
    waiting: Mutex<Batch>,
    engine: SleepFlag,
}

/// A member of a shard, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Pair(u32),
    Service(u32),
}

/// Work requests in the order in which they were posted, and their inline data.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    inline: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    member: Member,
    /// None: the engine has only to look after the member.
    wr: Option<SendWr<'static>>,
    /// Bytes of its inline data.
    inline: usize,
}

impl Posts {
    /// Adds to what waits. Afterwards the caller wakes the engine if [`Posts::is_awaited`].
    pub(super) fn add<R>(&self, add: impl FnOnce(&mut Batch) -> R) -> R {
        add(&mut lock(&self.waiting))
    }

    /// Whether the engine sleeps until something is added.
    pub(super) fn is_awaited(&self) -> bool {
        self.engine.is_set()
    }

    /// Moves what waits into `batch`, which is empty.
    pub(super) fn take(&self, batch: &mut Batch) {
        std::mem::swap(&mut *lock(&self.waiting), batch);
    }

    /// Has the engine sleep by `wait`, unless something waits for it.
    pub(super) fn sleep(&self, wait: impl FnOnce()) {
        self.engine.set();
        if lock(&self.waiting).entries.is_empty() {
            wait();
        }
        self.engine.clear();
    }
}

impl Batch {
    /// Adds a work request; its inline data is copied.
    pub(super) fn push(&mut self, member: Member, wr: &SendWr<'_>) {
        let (data, inline) = match wr.data {
            Data::Sges(list) => (Data::Sges(list), 0),
            Data::Inline(bytes) => {
                self.inline.extend_from_slice(bytes);
                (Data::Inline(&[][..]), bytes.len())
            }
        };
        let mut kept = SendWr::new(wr.wr_id, wr.op, data);
        (kept.flags, kept.peer) = (wr.flags, wr.peer);
        self.entries.push(Entry {
            member,
            wr: Some(kept),
            inline,
        });
    }

    /// Has the engine look after a member.
    pub(super) fn call(&mut self, member: Member) {
        self.entries.push(Entry {
            member,
            wr: None,
            inline: 0,
        });
    }

    /// Takes out each entry in order.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Member, Option<&SendWr<'_>>)) {
        let mut inline = &self.inline[..];
        for entry in self.entries.drain(..) {
            let mut wr: Option<SendWr<'_>> = entry.wr;
            if let Some(wr) = &mut wr
                && matches!(wr.data, Data::Inline(_))
            {
                let (bytes, rest) = inline.split_at(entry.inline);
                (wr.data, inline) = (Data::Inline(bytes), rest);
            }
            each(entry.member, wr.as_ref());
        }
        self.inline.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use haul_io::notify::{Signal, wait_readable};
    use haul_verbs::{Data, SendOp, SendWr, SgeList};

    use super::*;

    const MEMBER: Member = Member::Pair(1);
    /// Far longer than a wake-up takes: a lost one ends here.
    const LOST_NS: u64 = 20_000_000_000;

    #[test]
    fn inline_data_goes_with_its_request() {
        let mut batch = Batch::default();
        for (id, bytes) in [(1, &b"one"[..]), (2, b""), (3, b"three")] {
            batch.push(MEMBER, &SendWr::new(id, SendOp::Send, Data::Inline(bytes)));
            batch.push(
                MEMBER,
                &SendWr::new(id + 10, SendOp::Send, SgeList::default()),
            );
        }
        batch.call(Member::Service(2));
        let mut seen = Vec::new();
        batch.drain(|member, wr| {
            let bytes = wr.map(|wr| match wr.data {
                Data::Inline(bytes) => (wr.wr_id, Some(bytes.to_vec())),
                Data::Sges(_) => (wr.wr_id, None),
            });
            seen.push((member, bytes));
        });
        let inline = |id, bytes: &[u8]| (MEMBER, Some((id, Some(bytes.to_vec()))));
        let pieces = |id| (MEMBER, Some((id, None)));
        let wanted = [
            inline(1, b"one"),
            pieces(11),
            inline(2, b""),
            pieces(12),
            inline(3, b"three"),
            pieces(13),
            (Member::Service(2), None),
        ];
        assert_eq!(seen, wanted);
        batch.drain(|_, _| panic!("it was emptied"));
    }

    #[test]
    fn no_wake_up_is_lost_in_a_hundred_thousand_rounds() {
        const ROUNDS: u64 = 100_000;
        let (posts, signal) = (Posts::default(), Signal::new().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut batch = Batch::default();
                let mut next = 0;
                while next < ROUNDS {
                    signal.clear();
                    posts.take(&mut batch);
                    batch.drain(|_, wr| {
                        assert_eq!(wr.unwrap().wr_id, next);
                        next += 1;
                    });
                    if next < ROUNDS {
                        posts.sleep(|| {
                            let woken = wait_readable([signal.as_fd()], Some(LOST_NS)).unwrap();
                            assert!(woken, "a wake-up was lost after {next} posts");
                        });
                    }
                }
            });
            for id in 0..ROUNDS {
                let wr = SendWr::new(id, SendOp::Send, Data::Inline(b"x"));
                posts.add(|batch| batch.push(MEMBER, &wr));
                if posts.is_awaited() {
                    signal.set();
                }
                // So that the engine sleeps at another moment of each round.
                for _ in 0..id % 257 {
                    std::hint::spin_loop();
                }
            }
        });
    }
}
