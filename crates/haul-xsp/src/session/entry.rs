//! Entries of the tables of a session: its data channels and its connections; and the loss of its
//! control connection.

use crate::time::Time;
use crate::wire::{ChanParams, Endpoint, Metadata};

/// A data channel.
#[derive(Debug)]
pub(super) struct Chan {
    pub(super) params: ChanParams,
    pub(super) phase: ChanPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChanPhase {
    /// The peer has not answered.
    Asking,
    /// This end has not answered.
    Asked,
    /// The data connection has to show the cookie.
    Expected,
    /// There, or the peer's to expect.
    Up,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) to: Endpoint,
    /// Metadata of its application.
    pub(super) metadata: Metadata,
    pub(super) state: ConnPhase,
    /// This end opened it.
    pub(super) is_own: bool,
    /// To be reset with this code as soon as it is open.
    pub(super) reset_later: Option<u16>,
    /// The first bytes of its opener's stream, which come with the request: how many, and at the
    /// opener, until it is answered, which.
    pub(super) early_len: usize,
    pub(super) early: Vec<u8>,
    /// Its opener has a report that no answer came.
    pub(super) is_given_up: bool,
    /// This end has closed its receiving side, with this code.
    pub(super) stopped: Option<u16>,
    /// At relays: the peer has a report that the far end has everything before this offset.
    pub(super) passed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnPhase {
    /// The peer has not answered.
    Opening,
    /// This end has not answered.
    Asked,
    Open,
}

impl Conn {
    pub(super) const fn new(
        to: Endpoint,
        metadata: Metadata,
        state: ConnPhase,
        is_own: bool,
    ) -> Self {
        Self {
            to,
            metadata,
            state,
            is_own,
            reset_later: None,
            early_len: 0,
            early: Vec::new(),
            is_given_up: false,
            stopped: None,
            passed: 0,
        }
    }
}

/// The loss of a control connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub(super) since: Time,
    /// Since when every attempt has shown that the peer is gone.
    pub(super) gone: Option<Time>,
    /// An attempt had no answer.
    pub(super) was_silent: bool,
}

impl Loss {
    pub(super) const fn new(since: Time) -> Self {
        Self {
            since,
            gone: None,
            was_silent: false,
        }
    }

    pub(super) const fn is_gone(&self) -> bool {
        self.gone.is_some()
    }
}
