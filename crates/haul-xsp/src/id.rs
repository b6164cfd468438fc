//! Names that travel: sessions, connections, channels, slabs, regions.

use std::fmt;

/// A session, over all its hops. Chosen at random by its opener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// A connection within a session: the same number on every segment, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

impl ConnId {
    /// Set in the numbers of connections that the session's terminus opens, so that both ends may
    /// open without asking.
    pub const BY_TERMINUS: u32 = 1 << 31;

    /// Whether the session's terminus opened it.
    #[must_use]
    pub const fn is_by_terminus(self) -> bool {
        self.0 & Self::BY_TERMINUS != 0
    }
}

/// A data channel of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChanId(pub u32);

/// A slab of one direction of a segment, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlabSeq(pub u64);

impl SlabSeq {
    /// Returns the slab after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// One of the N regions that a producer fills in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u16);
