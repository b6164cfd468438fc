//! Why a measurement failed.

use std::io;

/// Why streams ended early, by where it arose.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The source's file could not be read.
    Source(io::Error),
    /// The sink's file could not be written.
    Sink(io::Error),
    /// The plan is not possible on this path.
    PathPlan(&'static str),
    /// This host has no thread, memory or descriptor for it.
    System(io::Error),
    /// The path or the peer.
    Path(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Path(error)
    }
}
