//! Why something that a client asks for fails, and why its session ends.

use std::io;

use haul_verbs::Error;

use crate::entry;
use crate::ring::Broken;

/// Why a session ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client is gone.
    Gone,
    /// It did what no client does.
    Refused(&'static str),
    /// The system did not do what it was asked for.
    System(io::Error),
}

impl From<Broken> for End {
    fn from(_: Broken) -> Self {
        Self::Refused("it wrote an index that cannot be")
    }
}

impl From<entry::Wrong> for End {
    fn from(_: entry::Wrong) -> Self {
        Self::Refused("it wrote a request that means nothing")
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Why memory of a client is not mapped.
pub(super) const ADOPTING: fn(io::Error) -> Error = |error| match error.kind() {
    io::ErrorKind::InvalidData => {
        Error::Invalid("memory of an engine must be a sealed memfd within the limits of the client")
    }
    _ => SYSTEM(error),
};

pub(super) const INVALID: Error = Error::Invalid("the engine does not know this object or value");

pub(super) const SYSTEM: fn(io::Error) -> Error = |source| Error::Os {
    what: "the engine",
    source,
};
