//! Steering tags, domains and rights: numbers, never bytes.

/// A steering tag: 24 bits of index and 8 bits of key, by the owner's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Stag(pub u32);

/// A protection domain, named locally; it never appears on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pd(pub u32);

/// A queue pair, named locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QpNum(pub u32);

/// The engine's name for a registered range; the core only passes it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RegionId(pub u64);

/// Operations on memory that a tag permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The owner's own operations may write: the sink of an RDMA Read.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peer may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// The peer may read.
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may do atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// The peer may invalidate the tag by a Send with Invalidate.
    pub const REMOTE_INVALIDATE: Self = Self(16);

    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` is granted.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A valid tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagEntry {
    /// Whose it is. A stream of another domain must not use it (RFC 5041 §8.3.1).
    pub pd: Pd,
    /// The only queue pair that may use it, if it is narrowed to one.
    pub qp: Option<QpNum>,
    /// Tagged offset of its first byte.
    pub base: u64,
    /// Bytes. `base + len` does not wrap.
    pub len: u64,
    /// The permitted operations.
    pub rights: Rights,
    /// The memory.
    pub region: RegionId,
}
