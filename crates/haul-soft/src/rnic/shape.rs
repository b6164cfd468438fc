//! What a shard and an application share of a queue pair, and how it was made.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use haul_iwarp::Params;
use haul_verbs::{
    Blame, Data, Error, Failure, QpCapacity, QpState, RateLimit, RecvWr, Result, SendWr, SgeList,
    WcStatus,
};

use super::lock::lock;
use super::queue::Queue;

/// What an application sees of a queue pair without its shard.
#[derive(Debug)]
pub(super) struct View {
    pub(super) qp_num: u32,
    state: AtomicU8,
    failure: Mutex<Option<Failure>>,
    /// What the ends of the connection have agreed on, from [`QpState::Rts`] on.
    pub(super) params: OnceLock<Params>,
}

const STATES: [QpState; 4] = [QpState::Reset, QpState::Rtr, QpState::Rts, QpState::Err];

impl View {
    pub(super) fn new(qp_num: u32) -> Self {
        Self {
            qp_num,
            state: AtomicU8::new(0),
            failure: Mutex::new(None),
            params: OnceLock::new(),
        }
    }

    pub(super) fn state(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    pub(super) fn set_state(&self, state: QpState) {
        let number = STATES.iter().position(|known| *known == state);
        let number = number.and_then(|number| u8::try_from(number).ok());
        self.state.store(number.unwrap_or(0), Ordering::Release);
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    pub(super) fn set_failure(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
    }

    /// Completions were lost.
    pub(super) fn note_overflow(&self) {
        self.set_failure(Failure::new(
            Blame::Local,
            "its completion queue has overflowed",
        ));
    }
}

/// How a queue pair was made.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) view: Arc<View>,
    pub(super) send_cq: Arc<Queue>,
    pub(super) recv_cq: Arc<Queue>,
    pub(super) capacity: QpCapacity,
    pub(super) signal_all: bool,
    pub(super) remote_placement: bool,
    pub(super) rate_limit: Option<RateLimit>,
}

impl Shape {
    /// The bytes of a work request's message, if it has no more pieces than there is room for.
    pub(super) fn check_data(&self, wr: &SendWr<'_>) -> Result<u32> {
        check_data(&self.capacity, wr)
    }

    /// The bytes of a receive.
    pub(super) fn check_receive(&self, wr: &RecvWr) -> Result<u32> {
        check_pieces(&wr.sges, self.capacity.max_recv_sge)?;
        check_len(wr.sges.total_len())
    }
}

/// The bytes of a work request's message, if it has no more pieces than there is room for.
pub(super) fn check_data(capacity: &QpCapacity, wr: &SendWr<'_>) -> Result<u32> {
    match &wr.data {
        Data::Sges(list) => check_pieces(list, capacity.max_send_sge)?,
        Data::Inline(bytes) => {
            let max = capacity.max_inline.into();
            Error::at_most("the length of inline data", bytes.len() as u64, max)?;
        }
    }
    check_len(wr.data.total_len())
}

/// Checks that a work request has no more pieces than its queue was made for.
pub(super) fn check_pieces(list: &SgeList, max: u32) -> Result<()> {
    let pieces = list.as_slice().len() as u64;
    Error::at_most("the number of pieces", pieces, max.into())
}

/// Checks the bytes of a message.
pub(super) fn check_len(len: u64) -> Result<u32> {
    Error::at_most("the length of all pieces", len, u32::MAX.into())?;
    Ok(u32::try_from(len).unwrap_or(u32::MAX))
}

pub(super) const NOT_SHARED: Error = Error::Invalid("the queue pair has an srq; post to that");

/// The status of a work request that was admitted, and that its queue pair refused afterwards.
pub(super) fn refused(error: &Error) -> WcStatus {
    match error {
        Error::State(_) => WcStatus::WrFlushErr,
        Error::Limit { .. } => WcStatus::LocLenErr,
        _ => WcStatus::LocQpOpErr,
    }
}

/// 32 bits of what an Immediate Data message holds (RFC 7306 §6).
pub(super) fn lower_half(data: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = data.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}
