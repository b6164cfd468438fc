//! Shared receive queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use haul_verbs::provider::SrqOps;
use haul_verbs::{AsyncEvent, Error, PostError, RecvWr, Result, SrqInit};

use super::events::AsyncEvents;
use super::memory::Pd;
use super::places::Places;
use super::{SGES_MAX, lock};

/// Receives for any queue pair that was made with it.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) shared: Arc<Shared>,
    pub(super) pd: Arc<Pd>,
}

/// What shards take receives from.
#[derive(Debug)]
pub(super) struct Shared {
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

/// Limits of the device.
pub(super) const SRQ_WR_MAX: u32 = 1 << 20;

impl Srq {
    pub(super) fn new(pd: Arc<Pd>, init: &SrqInit) -> Result<Self> {
        Error::at_least("max_wr", init.max_wr.into(), 1)?;
        Error::at_most("max_wr", init.max_wr.into(), SRQ_WR_MAX.into())?;
        Error::at_most("max_sge", init.max_sge.into(), SGES_MAX.into())?;
        let state = Mutex::new(State {
            queue: VecDeque::new(),
            limit: 0,
        });
        Ok(Self {
            shared: Arc::new(Shared {
                state,
                places: Places::new(init.max_wr),
                init: *init,
                async_events: Arc::clone(&pd.rnic.async_events),
            }),
            pd,
        })
    }
}

impl Shared {
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

impl SrqOps for Srq {
    fn post_recv(&self, requests: &[RecvWr]) -> Result<(), PostError> {
        let init = self.shared.init;
        let mut state = lock(&self.shared.state);
        for (posted, wr) in requests.iter().enumerate() {
            let error = if wr.sges.as_slice().len() > init.max_sge as usize {
                Error::Invalid("more pieces than the shared receive queue was made for")
            } else if self.shared.places.are_taken() {
                Error::Full("shared receive queue")
            } else {
                self.shared.places.take();
                state.queue.push_back(*wr);
                continue;
            };
            return Err(PostError { posted, error });
        }
        Ok(())
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        Error::at_most("limit", limit.into(), self.shared.init.max_wr.into())?;
        lock(&self.shared.state).limit = limit;
        Ok(())
    }
}
