//! What may be done to a region, and by whom.

bitflags::bitflags! {
    /// Rights of a memory region (IBTA 1.4 §10.6.3; `ibv_access_flags`). Reading it locally is
    /// always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AccessFlags: u32 {
        /// This end may place into it: receives, and the sink of reads and atomics.
        const LOCAL_WRITE = 1;
        /// The peer may write it. Asks for `LOCAL_WRITE` too, as IBTA does.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read it.
        const REMOTE_READ = 1 << 2;
        /// The peer may change it by atomic operations. Asks for `LOCAL_WRITE` too.
        const REMOTE_ATOMIC = 1 << 3;
        /// The peer may take it away with Send with Invalidate (RFC 5040 §5.3).
        const REMOTE_INVALIDATE = 1 << 4;
    }
}

impl AccessFlags {
    /// IBTA §10.6.3.1: what a peer may change, this end must be allowed to change.
    #[must_use]
    pub fn is_consistent(self) -> bool {
        let remote = Self::REMOTE_WRITE | Self::REMOTE_ATOMIC;
        !self.intersects(remote) || self.contains(Self::LOCAL_WRITE)
    }
}
