//! What clients may have, and what an engine has done.

use std::sync::atomic::AtomicU64;

/// What one client may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) memory: u64,
    pub(super) objects: usize,
    /// Whether its session has its rights, and no others.
    pub(super) has_rights: bool,
}

/// What an engine has done.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients now.
    pub clients: AtomicU64,
    /// Clients since its start.
    pub accepted: AtomicU64,
    /// Clients that were refused: of another user or network namespace, or too many.
    pub refused: AtomicU64,
    /// Clients whose session ended because of what they did.
    pub ended: AtomicU64,
    /// Work requests, with the entries of their inline data.
    pub requests: AtomicU64,
    /// Completions.
    pub completions: AtomicU64,
    /// Objects of all clients now.
    pub objects: AtomicU64,
}
