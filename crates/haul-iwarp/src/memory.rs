//! The memory of the engine, as the core sees it: numbers, never bytes.

use crate::address::Source;
use crate::operation::RecvWr;
use crate::stag::{RegionId, Stag, StagEntry};
use crate::wire::rdmap::AtomicOp;

/// The effect of a valid, in-bounds atomic: `op` on the 64-bit word at `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicAccess {
    /// The memory.
    pub region: RegionId,
    /// Bytes from the start of the region. The address behind it has been checked to be a multiple
    /// of eight as a tagged offset; the engine sees to it that regions open to atomics start on
    /// such an address.
    pub offset: u64,
    /// The operation; [`AtomicOp::apply`] computes it.
    pub op: AtomicOp,
}

/// The memory of the engine, handed in with every call that may need it.
///
/// A tag that is no longer found is refused from that moment: the core keeps no copy of an entry
/// beyond one call.
pub trait Memory {
    /// The entry of a tag that is valid now.
    fn lookup(&self, stag: Stag) -> Option<StagEntry>;

    /// Makes a tag invalid, on the peer's behalf. It was checked just before.
    fn invalidate(&mut self, stag: Stag);

    /// Performs a 64-bit read-modify-write in host byte order, atomic among all that come this way,
    /// and returns the value before it.
    fn atomic(&mut self, access: &AtomicAccess) -> u64;

    /// The next receive of the shared queue, for queue pairs that were created with one.
    fn take_receive(&mut self) -> Option<RecvWr> {
        None
    }

    /// Whether a tag may be used by the sender of a datagram, which no connection identifies.
    /// `is_validated`: the sender has proved that it receives at its address. Rights and domain are
    /// checked besides.
    fn admits(&self, stag: Stag, source: &Source, is_validated: bool) -> bool {
        let _ = (stag, source);
        is_validated
    }
}

/// The destination of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// In registered memory, `offset` bytes from the start of the region.
    Region {
        /// The memory.
        region: RegionId,
        /// Bytes from its start.
        offset: u64,
    },
    /// In the buffers of a posted receive, `offset` bytes into the message.
    Receive {
        /// [`RecvWr::slot`].
        slot: u32,
        /// Bytes from the start of the message.
        offset: u32,
    },
    /// Nowhere: it belongs to a segment that has failed its checks. It still counts for the CRC.
    Discard,
}

/// The answer to checked headers: the next `len` bytes of payload belong there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Where.
    pub target: Target,
    /// Bytes, at least one.
    pub len: u32,
}
