//! Entries of the tables of a session: its data channels and its connections.

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
    /// What its application says about it.
    pub(super) metadata: Metadata,
    pub(super) state: ConnPhase,
    /// This end opened it.
    pub(super) is_own: bool,
    /// To be reset with this code as soon as it is open.
    pub(super) reset_later: Option<u16>,
    /// This end wants nothing more of it, with this code.
    pub(super) stopped: Option<u16>,
    /// At gateways: the peer has been told that the far end has all before this.
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
            stopped: None,
            passed: 0,
        }
    }
}
