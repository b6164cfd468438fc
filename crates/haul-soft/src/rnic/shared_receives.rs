//! The receives of a shared queue, as shards take them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};

use haul_verbs::{AsyncEvent, Error, PostError, RecvWr, Result, SrqInit};

use super::events::AsyncEvents;
use super::lock::lock;
use super::places::Places;
use super::shape::{check_len, check_pieces};

/// Where a queue's receives come from if nobody posts them: a queue of the caller's own, in which
/// receives are visible to shards as soon as they are in it.
pub trait ReceiveSource: Debug + Send + Sync {
    /// Takes the oldest receive. Called with a lock held that posts and arrivals wait for.
    fn take(&self) -> Option<RecvWr>;
    /// How many there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What shards take receives from.
#[derive(Debug)]
pub(super) struct SharedReceives {
    state: Mutex<State>,
    source: OnceLock<Arc<dyn ReceiveSource>>,
    places: Arc<Places>,
    init: SrqInit,
    async_events: Arc<AsyncEvents>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<RecvWr>,
    /// Report once when fewer are left; zero is off.
    limit: u32,
}

impl SharedReceives {
    pub(super) fn new(init: &SrqInit, async_events: &Arc<AsyncEvents>) -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                limit: 0,
            }),
            source: OnceLock::new(),
            places: Places::new(init.max_wr),
            init: *init,
            async_events: Arc::clone(async_events),
        }
    }

    pub(super) fn max_wr(&self) -> u32 {
        self.init.max_wr
    }

    /// Has the application told once when fewer are left; zero is off.
    pub(super) fn arm_limit(&self, limit: u32) {
        lock(&self.state).limit = limit;
    }

    /// Takes receives from `source` from now on.
    pub(super) fn set_source(&self, source: Arc<dyn ReceiveSource>) -> Result<()> {
        let twice = |_| Error::Invalid("the queue has a source of receives");
        self.source.set(source).map_err(twice)
    }

    /// Takes one more receive from the source, if the queue is empty and there is one.
    fn pull(&self, state: &mut State) {
        let Some(source) = self.source.get() else {
            return;
        };
        while state.queue.is_empty() && !self.places.are_taken() {
            let Some(wr) = source.take() else { return };
            // One that the source should have refused is left out.
            if self.check(&wr).is_ok() {
                self.places.take();
                state.queue.push_back(wr);
            }
        }
    }

    fn check(&self, wr: &RecvWr) -> Result<()> {
        check_pieces(&wr.sges, self.init.max_sge)?;
        check_len(wr.sges.total_len()).map(|_| ())
    }

    pub(super) fn post(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        let mut state = lock(&self.state);
        for (posted, wr) in requests.iter().enumerate() {
            let error = if let Err(error) = self.check(wr) {
                error
            } else if self.places.are_taken() {
                Error::Full("shared receive queue")
            } else {
                self.places.take();
                state.queue.push_back(*wr);
                continue;
            };
            return Err(PostError::new(posted, error));
        }
        Ok(())
    }

    pub(super) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    pub(super) fn is_empty(&self) -> bool {
        let mut state = lock(&self.state);
        self.pull(&mut state);
        state.queue.is_empty()
    }

    /// The oldest receive.
    pub(super) fn take(&self) -> Option<RecvWr> {
        let mut state = lock(&self.state);
        self.pull(&mut state);
        let wr = state.queue.pop_front();
        let more = self.source.get().map_or(0, |source| source.len());
        if state.limit > 0 && state.queue.len() + more < state.limit as usize {
            state.limit = 0;
            let token = self.init.token;
            self.async_events
                .push(AsyncEvent::SrqLimitReached { token });
        }
        wr
    }
}
