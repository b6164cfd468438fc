//! The monotonic clock, in nanoseconds.
