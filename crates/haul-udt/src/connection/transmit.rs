//! Output: one control packet, or a batch of data packets as headers and named payload.

use crate::wire::{HEADER_LEN, Sealed, check};

/// A run of the send space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadRange {
    /// Position in the send space, bytes.
    pub position: u64,
    /// Bytes.
    pub len: u32,
}

/// One control packet, or a batch of data packets for one system call. Keeps its capacity from call
/// to call.
#[derive(Debug, Default)]
pub struct Transmit {
    /// A control packet; empty if this is a batch.
    pub control: Vec<u8>,
    /// Headers of the data packets.
    pub headers: Vec<[u8; HEADER_LEN]>,
    /// Their payload: as many as headers.
    pub payload: Vec<PayloadRange>,
    /// Of a sealed connection: names key and number of the first packet; each later packet has the
    /// next number. The sender must seal each packet exactly once, even if the socket takes only
    /// some.
    pub sealed: Option<Sealed>,
}

impl Transmit {
    pub(super) fn clear(&mut self) {
        self.control.clear();
        self.headers.clear();
        self.payload.clear();
        self.sealed = None;
    }

    /// Adds the checks of headers and control packets.
    pub(super) fn add_checks(&mut self) {
        if !self.control.is_empty() {
            check::seal_control(&mut self.control);
        }
        for (header, payload) in self.headers.iter_mut().zip(&self.payload) {
            check::seal_data(header, payload.len);
        }
    }

    /// Returns the bytes of each data packet but the last, header included and seal not; the last
    /// is no longer than that.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        self.payload
            .first()
            .map_or(0, |range| HEADER_LEN + range.len as usize)
    }
}
