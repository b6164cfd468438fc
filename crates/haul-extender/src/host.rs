//! What an extender needs of the process that it runs in.

use std::fmt;

/// Returns its memory to the host's budget when it is dropped.
pub type MemoryGuard = Box<dyn fmt::Debug + Send>;

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The extender does not work, or a listener does not.
    Error,
    /// One connection failed.
    Warning,
}

/// The process that an extender runs in. No method may block.
pub trait Host: Send {
    /// Takes `bytes` from the memory budget; `None` if fewer are left.
    fn take_memory(&self, bytes: u64) -> Option<MemoryGuard>;

    /// Returns the bytes left in the memory budget.
    fn memory_left(&self) -> u64;

    /// Tells the host that a [`PendingConnect`](crate::PendingConnect) is no longer wanted. The
    /// host asks each that it holds.
    fn withdrawn(&self);

    /// Writes a log line.
    fn log(&self, severity: Severity, text: &str);

    /// Writes a log line about a resource that ran out; the host limits how often.
    fn log_shortage(&self, text: &str);
}
