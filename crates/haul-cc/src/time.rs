//! The clock's currency: nanoseconds since an epoch of the caller's choice.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment, in nanoseconds since the caller's epoch. Monotonic by contract: callers never pass an
/// earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND_NS: u64 = 1_000_000;
/// Nanoseconds in a microsecond.
pub const MICROSECOND_NS: u64 = 1_000;

impl Time {
    /// The epoch.
    pub const ZERO: Self = Self(0);

    /// Makes the moment `ns` nanoseconds after the epoch.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the epoch.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds from `earlier` to here; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns this moment plus `ns` nanoseconds.
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Returns this moment minus `ns` nanoseconds, not before the epoch.
    #[must_use]
    pub const fn before(self, ns: u64) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        self.after(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        Duration::from_nanos(self.since(rhs))
    }
}
