//! The receives of a shared queue, as shards take them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use haul_verbs::{AsyncEvent, Error, PostError, RecvWr, Result, SrqInit};

use super::events::AsyncEvents;
use super::lock::lock;
use super::places::Places;
use super::shape::{check_len, check_pieces};

/// What shards take receives from.
#[derive(Debug)]
pub(super) struct SharedReceives {
    state: Mutex<State>,
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

    pub(super) fn post(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        let mut state = lock(&self.state);
        for (posted, wr) in requests.iter().enumerate() {
            let checked = check_pieces(&wr.sges, self.init.max_sge);
            let checked = checked.and_then(|()| check_len(wr.sges.total_len()));
            let error = if let Err(error) = checked {
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
        lock(&self.state).queue.is_empty()
    }

    /// The oldest receive.
    pub(super) fn take(&self) -> Option<RecvWr> {
        let mut state = lock(&self.state);
        let wr = state.queue.pop_front();
        if state.limit > 0 && state.queue.len() < state.limit as usize {
            state.limit = 0;
            let token = self.init.token;
            self.async_events
                .push(AsyncEvent::SrqLimitReached { token });
        }
        wr
    }
}
